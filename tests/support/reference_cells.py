"""Helpers for tests of the reference: all its cells, their parameters, and functions that run them."""

from __future__ import annotations

import numpy as np

from lnrnn import reference as ref

GATES = {"rnn": 1, "lstm": 4, "gru": 3, "ligru": 2}

# Five-point differences with h = 1e-4 have two errors. The first is h^4 / 30 times the fifth derivative,
# which is up to 1e8 if a variance over three units is small. The second is eps / h ~ 1e-12 times the loss of
# ~10. Measured errors are at most 8e-11.
DIFFERENCE_TOLERANCE = 1e-9

TWO = "gain_ih bias_ih gain_hh bias_hh"

# {name: (cell, options, names of parameters except weights and inner biases)}
CELLS = {
    "rnn plain": ("rnn", dict(norm=None), "bias_ih bias_hh"),
    "rnn joint": ("rnn", dict(placement="joint"), "gain bias"),
    "rnn split": ("rnn", dict(placement="split"), TWO),
    "rnn batch": ("rnn", dict(norm="batch"), "gain bias"),
    "lstm plain": ("lstm", dict(norm=None), "bias_ih bias_hh"),
    "lstm split": ("lstm", dict(), TWO + " gain_c bias_c"),
    "lstm split carry": ("lstm", dict(cell="carry"), TWO + " gain_c bias_c"),
    "lstm split none": ("lstm", dict(cell=None), TWO),
    "lstm joint": ("lstm", dict(placement="joint"), "gain bias gain_c bias_c"),
    "lstm joint carry": ("lstm", dict(placement="joint", cell="carry"), "gain bias gain_c bias_c"),
    "lstm joint none": ("lstm", dict(placement="joint", cell=None), "gain bias"),
    "lstm gate": ("lstm", dict(placement="gate"), "gain bias gain_c bias_c"),
    "lstm gate carry": ("lstm", dict(placement="gate", cell="carry"), "gain bias gain_c bias_c"),
    "lstm gate none": ("lstm", dict(placement="gate", cell=None), "gain bias"),
    "lstm batch": ("lstm", dict(norm="batch"), "gain_ih gain_hh bias gain_c bias_c"),
    "lstm projected plain": ("lstm", dict(norm=None), "bias_ih bias_hh"),
    "lstm projected split": ("lstm", dict(), TWO + " gain_c bias_c"),
    "lstm projected batch": ("lstm", dict(norm="batch"), "gain_ih gain_hh bias gain_c bias_c"),
    "gru plain": ("gru", dict(norm=None), "bias_ih bias_hh"),
    "gru split": ("gru", dict(), TWO),
    "gru split all": ("gru", dict(span="all"), TWO),
    "gru joint": ("gru", dict(placement="joint"), "gain bias"),
    "gru gate": ("gru", dict(placement="gate"), "gain bias"),
    "gru batch": ("gru", dict(norm="batch"), "gain_ih gain_hh bias"),
    "ligru plain": ("ligru", dict(norm=None), "bias_ih bias_hh"),
    "ligru input": ("ligru", dict(nonlinearity="tanh"), "gain_ih bias_ih"),
    "ligru split": ("ligru", dict(placement="split", nonlinearity="tanh"), TWO),
    "ligru joint": ("ligru", dict(placement="joint"), "gain bias"),
    "ligru gate": ("ligru", dict(placement="gate", nonlinearity="sigmoid"), "gain bias"),
    "ligru batch": ("ligru", dict(norm="batch", nonlinearity="tanh"), "gain_ih bias_ih"),
    "lstm hard": ("lstm", dict(norm=None, gate_activation="hard_sigmoid"), "bias_ih bias_hh"),
    "gru hard": ("gru", dict(norm=None, gate_activation="hard_sigmoid"), "bias_ih bias_hh"),
    "gru reset hard": (
        "gru",
        dict(norm=None, reset_after=False, gate_activation="hard_sigmoid"),
        "bias_ih bias_hh",
    ),
    "gru reset plain": ("gru", dict(norm=None, reset_after=False), "bias_ih bias_hh"),
    "gru reset split": ("gru", dict(reset_after=False), TWO),
    "gru reset batch": ("gru", dict(norm="batch", reset_after=False), "gain_ih gain_hh bias"),
    "gru relu plain": ("gru", dict(norm=None, nonlinearity="relu"), "bias_ih bias_hh"),
    "gru joint sigmoid": ("gru", dict(placement="joint", nonlinearity="sigmoid"), "gain bias"),
    "gru reset identity": ("gru", dict(reset_after=False, nonlinearity="identity"), TWO),
    "rnn rms": ("rnn", dict(norm="rms"), "gain bias"),
    "lstm rms carry": ("lstm", dict(norm="rms", cell="carry"), "gain_ih gain_hh gain_c"),
    "gru rms gate": ("gru", dict(norm="rms", placement="gate"), "gain"),
    "ligru rms": ("ligru", dict(norm="rms", placement="input"), "gain_ih bias_ih"),
    "lstm peephole plain": ("lstm", dict(norm=None), "bias_ih bias_hh peephole"),
    "lstm peephole carry": ("lstm", dict(cell="carry"), TWO + " gain_c bias_c peephole"),
    "lstm peephole batch": ("lstm", dict(norm="batch"), "gain_ih gain_hh bias gain_c bias_c peephole"),
}

PER_STEP = [name for name in CELLS if name.endswith("batch")]
PLAIN = [name for name in CELLS if name.endswith("plain")]
LAYER = [name for name in CELLS if name not in PER_STEP + PLAIN]


def draw(name, rng, t=5, b=4, i=3, h=4, inner=None):
    """Returns (values, lengths). values: random x, initial state and parameters of a cell, float64, by name.
    lengths include T, 0 and 1. inner: whether norms have inner biases (default: yes)."""
    cell, options, more = CELLS[name]
    n = GATES[cell]
    values = dict(x=rng.standard_normal((t, b, i)), h0=rng.standard_normal((b, h)))
    if cell == "lstm":
        values["c0"] = rng.standard_normal((b, h))
    values |= dict(weight_ih=rng.standard_normal((n * h, i)), weight_hh=rng.standard_normal((n * h, h)))
    if "projected" in name:  # P, the number of values of h, is H here
        values["weight_hr"] = rng.standard_normal((h, h))
    if name not in PLAIN if inner is None else inner:
        more += " inner_bias_ih inner_bias_hh"
    for parameter in more.split():
        width = h if parameter.endswith("_c") else 3 * h if "peephole" in parameter else n * h
        gain = parameter.startswith("gain")
        values[parameter] = rng.uniform(0.5, 1.5, width) if gain else rng.standard_normal(width) / 2
    return values, np.array([t, 0, 1, t - 1])


def forward(name, values, **more):
    """Runs a cell. Returns (y, state, tape); the state is always a tuple."""
    cell, options, _ = CELLS[name]
    options = options | more
    if cell == "rnn":
        y, h, tape = ref.rnn(**values, **options)
        return y, (h,), tape
    inputs = {k: v for k, v in values.items() if k in ("x", "h0", "c0")}
    parameters = {k: v for k, v in values.items() if k not in inputs}
    y, state, tape = getattr(ref, cell)(**inputs, parameters=parameters, **options)
    return y, state if cell == "lstm" else (state,), tape


def backward(name, tape, gy, gstate=()):
    """Returns the gradients of x, h0, c0 and the parameters, by the names of `draw`."""
    cell = CELLS[name][0]
    gx, gstate0, grads = getattr(ref, cell + "_backward")(tape, gy, *gstate)
    states = dict(zip(("h0", "c0"), gstate0 if cell == "lstm" else (gstate0,), strict=False))
    assert not set(grads) & {"x", "h0", "c0"}
    return dict(x=gx, **states, **grads)


def statistics_of(name, rng, steps, h=4):
    """Returns random statistics for inference: (mean, var) for an RNN, {site: (mean, var)} else."""
    cell = CELLS[name][0]
    widths = {site: GATES[cell] * h for site in (("ih",) if cell == "ligru" else ("ih", "hh"))}
    widths |= dict(c=h) if cell == "lstm" else {}
    drawn = {
        site: (rng.standard_normal((steps, w)), rng.uniform(0.5, 2, (steps, w)))
        for site, w in ({"": h} if cell == "rnn" else widths).items()
    }
    return drawn[""] if cell == "rnn" else drawn


def mapped(statistics, f):
    if isinstance(statistics, dict):
        return {site: mapped(s, f) for site, s in statistics.items()}
    return tuple(f(s) for s in statistics)


def numeric_slope(loss, x, direction, h=1e-4):
    """Returns d loss(x + a direction) / da at a = 0, by five-point central differences."""
    near, far = (loss(x + a * direction) - loss(x - a * direction) for a in (h, 2 * h))
    return (8 * near - far) / (12 * h)


def assert_gradients(rng, run, back, values):
    """Asserts that gradients agree with differences along two random directions in the space of all values.
    Any wrong entry of a gradient changes both. run(values): returns y, state, tape. back(tape, gy, gstate):
    returns the gradients of all values by name. Returns the tape, gradients of y and of the state, and the
    result of back."""
    y, state, tape = run(values)
    gy, gstate = rng.standard_normal(y.shape), [rng.standard_normal(s.shape) for s in state]
    gradients = back(tape, gy, gstate)
    assert set(gradients) == set(values)

    def loss(flat):
        y, state, _ = run(unflat(flat))
        return (gy * y).sum() + sum((g * s).sum() for g, s in zip(gstate, state, strict=True))

    def unflat(flat):
        ends = np.cumsum([v.size for v in values.values()])
        parts = np.split(flat, ends[:-1])
        return {key: part.reshape(v.shape) for (key, v), part in zip(values.items(), parts, strict=True)}

    flat, gradient = (np.concatenate([a[key].ravel() for key in values]) for a in (values, gradients))
    for _ in range(2):
        direction = rng.standard_normal(flat.size)
        direction /= np.linalg.norm(direction)
        want = numeric_slope(loss, flat, direction)
        assert abs(direction @ gradient - want) < DIFFERENCE_TOLERANCE * np.abs(direction * gradient).sum()
    return tape, gy, gstate, gradients
