"""Recurrent networks of several studies, and the statistics that batch norm stores for each step."""

import time

import numpy as np

import lnrnn
from lnrnn import demo
from lnrnn.data import pad_sequence
from lnrnn.speakers import AT_A_TIME, Classifier, cross_entropy

SLOPE = 0.1  # a tanh unit with a smaller derivative is saturated
SMALLEST, LARGEST = -45.0, 38.5  # log10 of float32's range


def scale(rnn, factor):
    """Multiplies the initial gains by ``factor``, or without a norm the initial weights."""
    for name, value in rnn.parameters().items():
        if name.startswith("weight" if rnn.norm is None else "gain"):
            setattr(rnn, name, np.float32(factor) * value)


class StepClassifier(Classifier):
    """A recurrent network with logits at every step, as for the next character.

    The head computes one product per step with ``@``, several times faster than einsum. BLAS computes such
    small products (N x H x classes up to a few 100,000) in one thread, so their order of sums is fixed."""

    def logits(self, y):
        """Returns logits (T, N, classes) for states y (T, N, H)."""
        return np.matmul(y, self.head_weight.T) + self.head_bias

    def losses(self, x, labels):
        """Returns cross-entropies in nats (T, N) in inference mode, for x (T, N, I), labels (T, N)."""
        return cross_entropy(self.logits(self.rnn(x)[0]), labels)[0]

    def loss_and_gradients(self, x, lengths, labels):
        """x (T, N, I), lengths (N,), labels (T, N). Returns the mean cross-entropy in nats over all steps of
        all sequences, and its gradients by parameter name. Labels past a length are ignored, but must be
        valid classes. Batch norm updates its running statistics."""
        y, _, tape = self.rnn.forward_train(x, lengths=lengths)
        losses, glogits = cross_entropy(self.logits(y), labels)
        alive = np.arange(len(x))[:, None] < lengths
        glogits *= (alive / np.float32(alive.sum()))[..., None]
        _, _, gradients = self.rnn.backward(tape, np.matmul(glogits, self.head_weight))
        gradients["head_weight"] = np.matmul(glogits.transpose(0, 2, 1), y).sum(axis=0)
        gradients["head_bias"] = glogits.sum(axis=(0, 1))
        return float(losses[alive].mean()), gradients


def statistics(rnn):
    """Returns mean and deviation at each step, (2, steps, units), and how many utterances reach it."""
    return np.stack([rnn.running_mean_l0, np.sqrt(rnn.running_var_l0)]), rnn.count_l0


def typical_deviation(found, count):
    """Returns for each unit the root of its variance averaged over all training steps, (units,)."""
    return np.sqrt(np.average(found[1] ** 2, axis=0, weights=count))


def statistics_distance(a, b, unit):
    """Returns the distance of statistics a and b (2, steps, units) at each step, (steps,). It is the root
    mean square over units, means and deviations, divided by the units' standard deviations ``unit``."""
    return np.sqrt((((a - b) / unit) ** 2).mean(axis=(0, 2)))


def statistics_error(rnn, x, lengths, unit, rng, splits=5):
    """Returns the error of the statistics at each step that all halves reach. It is half the distance between
    two random halves of the sequences, averaged over ``splits`` divisions. (The error of a half is sqrt(2)
    times that of the whole.) Leaves the network with the statistics of all."""
    found = []
    for _ in range(splits):
        order = rng.permutation(len(lengths))
        halves = []
        for half in np.split(order, [len(order) // 2]):
            rnn.calibrate([(x[:, half], lengths[half])])
            halves.append(statistics(rnn)[0][:, : lengths[half].max()])
        known = min(half.shape[1] for half in halves)
        found.append(statistics_distance(halves[0][:, :known], halves[1][:, :known], unit) / 2)
    rnn.calibrate([(x, lengths)])
    return np.mean([one[: min(map(len, found))] for one in found], axis=0)


def keep_steps(rnn, state, steps):
    """Gives the network only the statistics of the first ``steps`` steps. Later steps repeat the last one."""
    names = ("running_mean_l0", "running_var_l0", "count_l0")
    rnn.load_state_dict({**state, **{name: state[name][:steps] for name in names}})
    rnn.overrun = "last"


# --- sizes of states and gradients --------------------------------------------------------------------------


def recurrent_weights(rng, units):
    """Returns a Gaussian matrix of spectral radius 1, float64 (units, units)."""
    weights = rng.standard_normal((units, units)) / units**0.5
    # Round the radius, because LAPACK's last bits depend on its order of summation.
    return weights / round(float(np.abs(np.linalg.eigvals(weights)).max()), 6)


def log_size(values):
    """Returns log10 of the root mean square over the last axis, clipped to float32's range, then averaged."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        found = np.log10(np.sqrt((values.astype(np.float64) ** 2).mean(axis=-1)))
    found = np.where(np.isfinite(values).all(axis=-1), found, LARGEST)
    return float(found.clip(SMALLEST, LARGEST).mean())


def length(vectors):
    """Returns Euclidean lengths over the last axis, which is kept with length 1."""
    return np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=-1, keepdims=True))


def run(rnn, x, h0, gradient, piece=10):
    """x (T, B, I), h0 (1, B, H), gradient (1, B, H) of the last state; T is a multiple of ``piece``.

    Returns log10 of the states' size after piece, 2 piece, ... steps, (T / piece,), log10 of the gradient's
    size the same numbers of steps before the end, and the share of saturated units after step 100. After each
    piece the gradient is scaled to length 1 and its logarithm recorded, so it stays in range."""
    tapes, states, saturated, h = [], [], [0.0], h0
    for start in range(0, len(x), piece):
        y, h, tape = rnn.forward_train(x[start : start + piece], h)
        tapes.append(tape)
        states.append(log_size(h))
        if start >= 100:
            saturated.append(float((1 - y.astype(np.float64) ** 2 < SLOPE).mean()))
    gradients, lost = [], np.zeros(h0.shape[:2])
    gradient = gradient / length(gradient)
    for tape in reversed(tapes):
        _, gradient, _ = rnn.backward(tape, None, gradient.astype(np.float32))
        size = length(gradient)
        lost += np.log10(size[..., 0])
        gradient = gradient / size
        gradients.append(float(lost.mean()))
    return np.array([states, gradients]), np.mean(saturated[1:] or saturated)


class PixelLSTM(lnrnn.LSTM):
    """An LSTM over single pixels, whose h0 is Gaussian noise in training and zero in inference.

    start: the initial gain, or without a norm the factor of the initial weights. noise: its deviation.
    Initial forget biases are 1, other biases 0. BN's running statistics are those of the last batch, until
    `calibrate_noisily` sets them to the statistics of all training images."""

    def __init__(self, hidden, norm, start, seed, noise):
        super().__init__(1, hidden, norm=norm, seed=seed)
        self.draws, self.deviation = np.random.default_rng([2, seed]), np.float32(noise)
        scale(self, start)
        values = self.parameters()
        for key, value in values.items():
            if key.startswith("bias"):
                setattr(self, key, np.zeros_like(value))
        bias = np.zeros(4 * hidden, np.float32)
        bias[hidden : 2 * hidden] = 1
        setattr(self, "bias_l0" if "bias_l0" in values else "bias_hh_l0", bias)

    def forward_train(self, x, h0=None, *others, **options):
        """Calls the library's method. If h0 is None, h0 is noise and c0 is zero."""
        start = self.noise(self.draws, x.shape[1]) if h0 is None else h0
        return super().forward_train(x, start, *others, **options)

    def noise(self, draws, count):
        return self.deviation * draws.standard_normal((1, count, self.hidden_size), dtype=np.float32), None

    def calibrate_noisily(self, x, seed):
        """Sets BN's statistics to the statistics of one batch x (T, N, 1), with noise as h0."""
        self.forward_train(x, self.noise(np.random.default_rng([3, seed]), x.shape[1]))


def batches(network, sequences):
    """Returns batches of a few sequences, standardised and padded: a list of (x, lengths)."""
    starts = range(0, len(sequences), AT_A_TIME)
    return [pad_sequence(network.standardised(sequences[start : start + AT_A_TIME])) for start in starts]


def right(network, padded, labels):
    """Returns whether the network recognises each sequence's speaker, (N,). padded: from `batches`."""
    return np.concatenate([network.classifier.predict(*batch) for batch in padded]) == labels


def bare_rnn(nonlinearity, radius, gain, weights, inputs):
    """Returns an RNN without biases. weights: W_hh of spectral radius 1. inputs: W_ih. gain: LN's, or None
    for no norm."""
    norm = None if gain is None else "layer"
    rnn = lnrnn.RNN(inputs.shape[1], len(weights), norm=norm, bias=False, nonlinearity=nonlinearity, seed=0)
    rnn.weight_hh_l0 = (radius * weights).astype(np.float32)
    rnn.weight_ih_l0 = inputs.astype(np.float32)
    if gain is not None:
        rnn.gain_l0 = np.full(len(weights), gain, np.float32)
    return rnn


def answers_by_step(networks, cliff):
    """Returns two results for each method of the demo. (1) The number of right answers at each step. (2)
    Accuracy at the ends of the first and last utterance."""
    found, places = {}, range(len(cliff.ends))
    first, last = ([ends[k] - 1 for ends in cliff.ends] for k in (0, -1))
    for method, right in demo.right_answers(networks, cliff).items():
        found["right_by_step", method] = right.sum(axis=1)
        found["demo", method] = np.array([right[steps, places].mean() for steps in (first, last)])
    return found


def step_times(networks, rounds, steps):
    """Returns the microseconds of a step of a stream of each network, (rounds,). networks: by name.

    The networks take turns. A time is the mean of ``steps`` steps, after one that is not measured."""
    streams = {
        name: (rnn.stream(), np.ones((1, rnn.input_size), np.float32)) for name, rnn in networks.items()
    }
    found = {name: [] for name in networks}
    for _ in range(rounds):
        for name, (stream, x) in streams.items():
            stream(x)
            began = time.perf_counter()
            for _ in range(steps):
                stream(x)
            found[name].append(1e6 * (time.perf_counter() - began) / steps)
    return found
