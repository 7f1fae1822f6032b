"""Networks that several studies train: stacks of small feed-forward networks.

A single small network would spend most of its time in calls of Python functions, so M networks run as a
stack. Activations are (B, M, units). Every network has its own parameters, data and learning rate.

Products use einsum, because a study must always give the same bits. The order of sums in BLAS can depend on
the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from common import best, side_by_side
from study_data import CLASSES, PIXELS, load_digits

import lnrnn
from lnrnn.speakers import Adam, NormName, cross_entropy

Nonlinearity = Literal["relu", "sigmoid"]
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
SIZES = (PIXELS, 32, 32, CLASSES)
EPS = 1e-5
SIDE = 8  # pixels of a digit
CHANNELS, STRIDES = (8, 8, 16, 16), (1, 1, 2, 1)  # of each convolution, whose kernel is 3 x 3
MOMENTUM = 0.1  # the default of torch.nn.BatchNorm1d


@dataclass(frozen=True)
class Layer:
    """Views of one layer's parameters in M networks, (M, out, in) or (M, out). gain may be None."""

    weight: np.ndarray
    bias: np.ndarray
    gain: np.ndarray | None


class FeedForward:
    """A stack of M networks: dense layers with a nonlinearity f between them, and a norm before each f.

    A hidden layer is f(gain * norm(W x) + bias), without a norm f(W x + bias); the last layer is W x + bias.
    Weights are normal with variance 2 / in (He et al. 2015) times ``scale`` squared, gains ``gain``, biases
    0.

    seeds: one per network. Networks of one seed have the same initial weights, whatever their norm. scale:
    multiplies the initial weights; one number, one per network, (M,), or one per network and layer, (M,
    layers). momentum: of batch norm's running statistics. gain: the initial gain; one number, or one per
    network.

    ``values``, float32 (M, P), has all trained parameters. ``running``, under batch norm, has a pair (mean,
    variance) per hidden layer, each float32 (M * units,), because all units of all networks are channels.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        norm: NormName | None,
        sizes: Sequence[int] = SIZES,
        scale: float | np.ndarray = 1.0,
        momentum: float = MOMENTUM,
        nonlinearity: Nonlinearity = "relu",
        gain: float | np.ndarray = 1.0,
    ) -> None:
        self.norm, self.sizes, self.momentum = norm, tuple(sizes), momentum
        self.nonlinearity: Nonlinearity = nonlinearity
        self.count = len(seeds)
        self.values = np.zeros((self.count, self._end(len(sizes) - 1)), np.float32)
        layers = self.layers(self.values)
        scales = np.asarray(scale, np.float32)
        scales = scales[:, None] if scales.ndim == 1 else scales
        scales = np.broadcast_to(scales, (self.count, len(layers)))
        for index, seed in enumerate(seeds):
            rng = np.random.default_rng(seed)
            for place, layer in enumerate(layers):
                deviation = np.float32((2 / layer.weight.shape[2]) ** 0.5)
                normal = rng.standard_normal(layer.weight.shape[1:], dtype=np.float32)
                layer.weight[index] = scales[index, place] * deviation * normal
        for layer in layers:
            if layer.gain is not None:
                layer.gain[...] = np.broadcast_to(np.asarray(gain, np.float32), self.count)[:, None]
        self.running = [
            (np.zeros(self.count * units, np.float32), np.ones(self.count * units, np.float32))
            for units in (sizes[1:-1] if norm == "batch" else ())
        ]

    def _end(self, layers: int) -> int:
        """Returns how many parameters the first ``layers`` layers of one network have."""
        pairs = list(zip(self.sizes, self.sizes[1:], strict=False))
        gained = len(pairs) - 1 if self.norm else 0
        return sum(n * (k + 1 + (index < gained)) for index, (k, n) in enumerate(pairs[:layers]))

    def layers(self, values: np.ndarray) -> list[Layer]:
        """Returns views of each layer in ``values`` (M, P): parameters or gradients of M networks."""
        found = []
        for index, (k, n) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            start, end = self._end(index), self._end(index + 1)
            weight = values[:, start : start + n * k].reshape(-1, n, k)
            bias = values[:, start + n * k : start + n * (k + 1)]
            gain = values[:, start + n * (k + 1) : end] if end > start + n * (k + 1) else None
            found.append(Layer(weight, bias, gain))
        return found

    def logits(self, x: np.ndarray, *, training: bool = False) -> np.ndarray:
        """x (B, M, in), or (B, in) for all networks. Returns logits (B, M, classes).

        training: batch norm uses the statistics of this batch, and does not update its running statistics. It
        then raises ValueError if B is 1, because one value has no variance."""
        _, h = self._passed(x, training, 0.0)
        last = self.layers(self.values)[-1]
        return np.asarray(np.einsum("bmi,moi->bmo", h, last.weight) + last.bias)

    def part(self, chosen: Sequence[int] | np.ndarray) -> FeedForward:
        """Returns a new stack with copies of the chosen networks."""
        stack = FeedForward(
            [0] * len(chosen), self.norm, self.sizes, momentum=self.momentum, nonlinearity=self.nonlinearity
        )
        stack.values[...] = self.values[chosen]
        for old, new in zip(self.running, stack.running, strict=True):
            for statistic, copy in zip(old, new, strict=True):
                copy[...] = statistic.reshape(self.count, -1)[chosen].ravel()
        return stack

    def calibrate(self, x: np.ndarray) -> None:
        """Sets batch norm's running statistics to the statistics of one batch x (B, M, in)."""
        self._passed(x, True, 1.0)

    def summed_inputs(self, x: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """x (B, M, in), or (B, in) for all networks. Returns W h of each hidden layer, and gain * norm(W h) +
        bias, the argument of f: (B, M, units). Batch norm uses the statistics of this batch, and does not
        update the running ones."""
        return [(z, normalised) for _, z, normalised in self._passed(x, True, 0.0)[0]]

    def _passed(self, x: np.ndarray, training: bool, momentum: float) -> tuple[list[Arrays], np.ndarray]:
        """Returns for each hidden layer its input h, z = W h and gain * norm(z) + bias, and the last layer's
        output. momentum: of the running statistics."""
        h, found = _for_all(x, self.count), []
        for index, layer in enumerate(self.layers(self.values)[:-1]):
            z = np.einsum("bmi,moi->bmo", h, layer.weight)
            found.append((h, z, self._normalised(layer, z, index, training, momentum)))
            h = activated(self.nonlinearity, found[-1][2])
        return found, h

    def _normalised(
        self, layer: Layer, z: np.ndarray, index: int, training: bool, momentum: float
    ) -> np.ndarray:
        """Returns gain * norm(z) + bias, from z = W x (B, M, units). momentum: of the running statistics."""
        if self.norm is None:
            return np.asarray(z + layer.bias)
        if self.norm == "layer":
            # Multiply here, because layer_norm's argument weight cannot differ between networks.
            return np.asarray(lnrnn.layer_norm(z, z.shape[2], eps=EPS) * layer.gain + layer.bias)
        assert layer.gain is not None
        mean, var = self.running[index] if not training or momentum else (None, None)
        flat = lnrnn.batch_norm(
            z.reshape(len(z), -1), mean, var, layer.gain.ravel(), layer.bias.ravel(), training, momentum, EPS
        )
        return flat.reshape(z.shape)

    def losses_and_gradients(
        self, x: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """x (B, M, in), labels (B, M). Returns each network's mean cross-entropy in nats (M,), the gradients
        of ``values`` (M, P), and the logits (B, M, classes).

        weights (B, M): the images' weights in the mean, by default 1 / B. Images of weight 0 still count in
        the statistics of batch norm. Batch norm updates its running statistics, and raises ValueError if B is
        1.
        """
        passed, h = self._passed(x, True, self.momentum)
        *hidden, last = self.layers(self.values)
        logits = np.einsum("bmi,moi->bmo", h, last.weight) + last.bias

        losses, g = cross_entropy(logits, labels)
        if weights is None:
            g /= np.float32(len(x))
        else:
            g *= weights[..., None]

        gradients = np.empty_like(self.values)
        *ghidden, glast = self.layers(gradients)
        np.einsum("bmo,bmi->moi", g, h, out=glast.weight)
        np.sum(g, axis=0, out=glast.bias)
        weight = last.weight
        for layer, glayer, (x_in, z, _) in zip(hidden[::-1], ghidden[::-1], passed[::-1], strict=True):
            g = np.einsum("bmo,moi->bmi", g, weight) * _slope(self.nonlinearity, h)
            g = self._through_norm(layer, glayer, z, g)
            np.einsum("bmo,bmi->moi", g, x_in, out=glayer.weight)
            weight, h = layer.weight, x_in
        mean = losses.mean(axis=0) if weights is None else (losses * weights).sum(axis=0)
        return mean, gradients, logits

    def _through_norm(self, layer: Layer, glayer: Layer, z: np.ndarray, g: np.ndarray) -> np.ndarray:
        """g (B, M, units): the gradient with respect to gain * norm(z) + bias.

        Returns the gradient with respect to z, and writes those of gain and bias to ``glayer``.
        """
        np.sum(g, axis=0, out=glayer.bias)
        if layer.gain is None or glayer.gain is None:
            return g
        if self.norm == "layer":
            units = z.shape[2]
            np.sum(g * lnrnn.layer_norm(z, units, eps=EPS), axis=0, out=glayer.gain)
            return lnrnn.layer_norm_backward(g * layer.gain, z, units, eps=EPS)[0]
        flat = len(z), -1
        gz, ggain, _ = lnrnn.batch_norm_backward(
            g.reshape(flat), z.reshape(flat), weight=layer.gain.ravel(), training=True, eps=EPS
        )
        assert ggain is not None
        glayer.gain[...] = ggain.reshape(glayer.gain.shape)
        return gz.reshape(z.shape)


def activated(nonlinearity: Nonlinearity, x: np.ndarray) -> np.ndarray:
    if nonlinearity == "relu":
        return np.asarray(np.maximum(x, 0))
    # Use tanh, because exp(-x) overflows if x is far below zero.
    return np.asarray(0.5 * np.tanh(0.5 * x) + 0.5)


def _slope(nonlinearity: Nonlinearity, h: np.ndarray) -> np.ndarray:
    """Returns the derivative of f at the arguments where f has the values h."""
    return np.asarray(h > 0 if nonlinearity == "relu" else h * (1 - h))


def _for_all(x: np.ndarray, count: int) -> np.ndarray:
    return np.broadcast_to(x[:, None], (len(x), count, x.shape[1])) if x.ndim == 2 else x


class Sgd:
    """Plain stochastic gradient descent, with the interface of Adam."""

    def __init__(self, learning_rate: float | np.ndarray) -> None:
        self.learning_rate = learning_rate

    def step(
        self, parameters: dict[str, np.ndarray], gradients: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        return {name: value - self.learning_rate * gradients[name] for name, value in parameters.items()}


def train(
    networks: FeedForward,
    x: np.ndarray,
    labels: np.ndarray,
    chosen: Sequence[np.ndarray],
    seeds: Sequence[int],
    learning_rates: Sequence[float],
    batch_size: int,
    epochs: int,
    on_epoch: Callable[[], object] = lambda: None,
    on_update: Callable[[], object] = lambda: None,
    optimiser: type[Adam | Sgd] = Adam,
    whole: bool = False,
) -> np.ndarray:
    """Trains the stack in place, in epochs of full batches. An epoch omits images that fill no whole batch.

    x (N, in), labels (N,): the images. chosen: for each network the indices of its training images, equally
    many for all. seeds: for each network the seed of its order of images. learning_rates: one per network.
    on_update: a function that is called after every update; ``networks.values`` is then a new array. whole:
    batch norm takes its statistics over all images of ``chosen``, not over the batch.
    Returns bool (images seen, M): whether the network was right on the image before it learnt from it."""
    steps = optimiser(np.asarray(learning_rates, np.float32)[:, None])
    orders, own = [np.random.default_rng([1, seed]) for seed in seeds], np.stack(chosen, axis=1)
    every, told = (x[own], labels[own]) if whole else (), []
    for _ in range(epochs):
        order = np.stack([rng.permutation(len(own)) for rng in orders], axis=1)
        for start in range(0, len(order) - batch_size + 1, batch_size):
            places = order[start : start + batch_size]
            batch = np.take_along_axis(own, places, axis=0)
            if whole:
                weights = np.zeros(own.shape, np.float32)
                np.put_along_axis(weights, places, np.float32(1 / batch_size), axis=0)
                _, gradients, logits = networks.losses_and_gradients(*every, weights)
                logits = np.take_along_axis(logits, places[..., None], axis=0)
            else:
                _, gradients, logits = networks.losses_and_gradients(x[batch], labels[batch])
            told.append(logits.argmax(axis=2) == labels[batch])
            networks.values = steps.step({"values": networks.values}, {"values": gradients})["values"]
            on_update()
        on_epoch()
    return np.concatenate(told)


def accuracy(networks: FeedForward, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns accuracies (M,) in inference mode, for x (N, in) or (N, M, in), labels (N,) or (N, M)."""
    right = networks.logits(x).argmax(axis=2) == labels.reshape(len(labels), -1)
    return np.asarray(right.mean(axis=0))


def train_on_digits(
    networks: FeedForward, seeds: Sequence[int], rates: Sequence[float], batch_size: int, epochs: int,
    images: int | None = None, **options: Any,
) -> np.ndarray:  # fmt: skip
    """Trains the stack on digits outside the folds of ``seeds``, one seed per network. options: for `train`.
    Returns the indices of the images of each network, (images, M)."""
    data = load_digits()
    chosen = [data.learnt(seed)[:images] for seed in seeds]
    train(networks, data.train_x, data.train_labels, chosen, seeds, rates, batch_size, epochs, **options)
    return np.stack(chosen, axis=1)


def best_rates(
    parts: Sequence[Any], rates: tuple[float, ...], seeds: Sequence[int],
    make: Callable[[Any, list[int], tuple[float, ...]], FeedForward],
) -> dict[str, float]:  # fmt: skip
    """Returns for each of ``parts``, by `key`, the rate with the best accuracy on held-out digits, averaged
    over seeds. make(part, seeds, rates): returns trained networks, one per seed and rate."""
    x, labels = held_out([seed for seed in seeds for _ in rates])

    def rate(part: Any) -> float:
        networks = make(part, [seed for seed in seeds for _ in rates], rates * len(seeds))
        right = accuracy(networks, x, labels)
        return float(best(rates, right.reshape(len(seeds), len(rates)).mean(axis=0)))

    return dict(zip(map(key, parts), side_by_side(rate, parts, "rates"), strict=True))


def held_out(seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the held-out digits of each seed: x (200, M, 64), labels (200, M)."""
    data = load_digits()
    held = np.stack([data.held(seed) for seed in seeds], axis=1)
    return data.train_x[held], data.train_labels[held]


def key(part: Any) -> str:
    """Returns the name of a part, such as ("LN", 32), in stored results: "LN, 32"."""
    return ", ".join(map(str, part))


def patches(x, stride):
    """Returns the inputs of each output of a 3 x 3 convolution of x (B, side, side, inputs). They are zero
    beyond the edges, and have the shape (B, side / stride, side / stride, 3, 3, inputs)."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::stride, ::stride]
    return np.ascontiguousarray(np.moveaxis(windows, 3, -1))


def add_patches(gradient, stride):
    """Returns the gradient with respect to the input of `patches`, from the gradient of its result."""
    count, side, inputs = len(gradient), stride * gradient.shape[1], gradient.shape[-1]
    whole = np.zeros((count, side + 2, side + 2, inputs), gradient.dtype)
    for row, column in np.ndindex(3, 3):
        whole[:, row : row + side : stride, column : column + side : stride] += gradient[:, :, :, row, column]
    return whole[:, 1:-1, 1:-1]


class ConvolutionalNetwork:
    """Convolutions relu(gain * norm(W * x) + bias), without a norm relu(W * x + bias), then a dense layer.

    Activations are (B, height, width, channels). LN averages each image over channels and positions, and
    every unit has a gain and a bias, as in the LN paper. BN averages each channel over the batch and all
    positions, and every channel has a gain and a bias.

    Initial weights are normal with variance 2 / inputs (He et al. 2015), gains 1, biases 0. Networks of one
    seed have the same initial weights, whatever their norm. right: for each image of training, whether the
    network was right before it learnt from that image."""

    def __init__(self, norm, seed):
        self.norm, self.right, self.values, self.running = norm, [], {}, []
        rng, inputs, side = np.random.default_rng(seed), 1, SIDE

        def normal(outputs, inputs):
            values = rng.standard_normal((outputs, inputs), dtype=np.float32)
            return values * np.float32((2 / inputs) ** 0.5)

        for layer, (channels, stride) in enumerate(zip(CHANNELS, STRIDES, strict=True)):
            side //= stride
            units = (side, side, channels) if norm == "layer" else (channels,)
            self.values[f"weight_{layer}"] = normal(channels, 9 * inputs)
            self.values[f"bias_{layer}"] = np.zeros(units, np.float32)
            if norm:
                self.values[f"gain_{layer}"] = np.ones(units, np.float32)
            self.running.append((np.zeros(units, np.float32), np.ones(units, np.float32)))
            inputs = channels
        self.values["head_weight"] = normal(CLASSES, side * side * inputs)
        self.values["head_bias"] = np.zeros(CLASSES, np.float32)

    def parameters(self):
        return dict(self.values)

    def set_parameters(self, values):
        self.values.update(values)

    def hidden(self, x, training=False):
        """Returns the inputs, products and outputs of each convolution, for x (B, pixels)."""
        h, found = x.reshape(-1, SIDE, SIDE, 1), []
        for layer, stride in enumerate(STRIDES):
            seen = patches(h, stride)
            rows = seen.reshape(-1, 9 * h.shape[-1])
            # Use einsum, because the order of sums in BLAS can depend on the number of threads.
            z = np.einsum("pk,ck->pc", rows, self.values[f"weight_{layer}"]).reshape(*seen.shape[:3], -1)
            h = np.maximum(self._normalised(z, layer, training), 0)
            found.append((seen, z, h))
        return found

    def logits(self, x):
        """Returns logits (B, classes) in inference mode, for x (B, pixels)."""
        return self._head(self.hidden(x)[-1][2])

    def _head(self, h):
        product = np.einsum("bi,ci->bc", h.reshape(len(h), -1), self.values["head_weight"])
        return product + self.values["head_bias"]

    def _normalised(self, z, layer, training):
        bias, gain = self.values[f"bias_{layer}"], self.values.get(f"gain_{layer}")
        if self.norm is None:
            return z + bias
        if self.norm == "layer":
            return lnrnn.layer_norm(z, z.shape[1:], gain, bias, EPS)
        rows, (mean, variance) = z.reshape(-1, z.shape[-1]), self.running[layer]
        return lnrnn.batch_norm(rows, mean, variance, gain, bias, training, MOMENTUM, EPS).reshape(z.shape)

    def loss_and_gradients(self, x, lengths, labels):
        """Has the interface that `lnrnn.speakers.train` needs: x (1, B, pixels) has images as sequences of
        one step, and labels are (B,). Returns the mean cross-entropy in nats, and its gradients by parameter
        name. Updates BN's running statistics."""
        found = self.hidden(x[0], training=True)
        h = found[-1][2]
        logits = self._head(h)
        self.right.append(logits.argmax(axis=1) == labels)
        losses, g = cross_entropy(logits, labels)
        g /= len(labels)
        gradients = {"head_weight": np.einsum("bc,bi->ci", g, h.reshape(len(h), -1)), "head_bias": g.sum(0)}
        g = np.einsum("bc,ci->bi", g, self.values["head_weight"]).reshape(h.shape)
        for layer, (seen, z, h) in reversed(list(enumerate(found))):
            g, own = self._through_norm(g * (h > 0), z, layer)
            gradients.update(own)
            rows = g.reshape(-1, g.shape[-1])
            gradients[f"weight_{layer}"] = np.einsum("pc,pk->ck", rows, seen.reshape(len(rows), -1))
            if layer:
                g = np.einsum("pc,ck->pk", rows, self.values[f"weight_{layer}"])
                g = add_patches(g.reshape(seen.shape), STRIDES[layer])
        return float(losses.mean()), gradients

    def _through_norm(self, g, z, layer):
        """Returns the gradients of z, and of gain and bias by name. g: the gradient of gain * norm(z) +
        bias."""
        if self.norm is None:
            return g, {f"bias_{layer}": g.sum(axis=(0, 1, 2))}
        bias, gain = self.values[f"bias_{layer}"], self.values[f"gain_{layer}"]
        if self.norm == "layer":
            gz, ggain, gbias = lnrnn.layer_norm_backward(g, z, z.shape[1:], gain, bias, EPS)
        else:
            rows = -1, z.shape[-1]
            gz, ggain, gbias = lnrnn.batch_norm_backward(
                g.reshape(rows), z.reshape(rows), weight=gain, training=True, eps=EPS
            )
        return gz.reshape(z.shape), {f"gain_{layer}": ggain, f"bias_{layer}": gbias}
