"""Helpers for tests of recurrent networks: random networks, the reference for all layers, new processes."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lnrnn
from lnrnn import reference as ref
from lnrnn.rnn import cells

NORMS = ("layer", "batch", None)
NONLINEARITIES = cells.NONLINEARITIES
CELLS = ("RNN", "LSTM", "GRU", "LiGRU")
each_norm = pytest.mark.parametrize("norm", NORMS)
each_cell = pytest.mark.parametrize("cell", CELLS)
same = np.testing.assert_array_equal


def spec(placement, cell="out", **options):
    return lnrnn.LayerNormSpec(placement, cell, **options)


def rms(placement, cell="out", eps=1e-5, **options):
    return lnrnn.RMSNormSpec(placement, cell, eps, **options)


# A batch that starts from h = 0 gives W_hh h the variance 0 at step 0. With the default eps, batch norm would
# amplify another h0 by 1 / sqrt(1e-5).
MILD = lnrnn.BatchNormSpec(eps=0.1)

# Arguments of `network` for every norm of every cell, by the name in the id of a test. New ones come last, so
# that digests of older versions stay comparable.
VARIANTS = {
    "RNN": dict(cell="RNN"),
    "RNN none": dict(cell="RNN", norm=None),
    "RNN batch": dict(cell="RNN", norm="batch"),
    "RNN split": dict(cell="RNN", norm=spec("split")),
    "LSTM none": dict(cell="LSTM", norm=None),
    "LSTM batch": dict(cell="LSTM", norm=MILD),
    **{
        f"LSTM {p} {c}": dict(cell="LSTM", norm=spec(p, c))
        for p in ("split", "joint", "gate")
        for c in ("out", "carry", None)
    },
    "GRU none": dict(cell="GRU", norm=None),
    "GRU batch": dict(cell="GRU", norm=MILD),
    "GRU split all": dict(cell="GRU", norm=spec("split", span="all")),
    **{f"GRU {p}": dict(cell="GRU", norm=spec(p)) for p in ("split", "joint", "gate")},
    "LiGRU none": dict(cell="LiGRU", norm=None),
    "LiGRU batch": dict(cell="LiGRU", norm=MILD, nonlinearity="tanh"),
    "LiGRU joint": dict(cell="LiGRU", norm=spec("joint")),
    **{
        f"LiGRU {p}": dict(cell="LiGRU", norm=spec(p), nonlinearity="tanh")
        for p in ("input", "split", "gate")
    },
    "LSTM heads none": dict(cell="LSTM", num_heads=2, norm=None),
    "LSTM heads split out": dict(cell="LSTM", num_heads=2, norm=spec("split")),
    "GRU heads split": dict(cell="GRU", num_heads=2, norm=spec("split")),
    "LSTM none hard": dict(cell="LSTM", norm=None, gate_activation="hard_sigmoid"),
    "GRU none hard": dict(cell="GRU", norm=None, gate_activation="hard_sigmoid"),
    "GRU reset none hard": dict(cell="GRU", norm=None, reset_after=False, gate_activation="hard_sigmoid"),
    "GRU reset none": dict(cell="GRU", norm=None, reset_after=False),
    "GRU reset split": dict(cell="GRU", norm=spec("split"), reset_after=False),
    "GRU reset batch": dict(cell="GRU", norm=MILD, reset_after=False),
    "SLSTM": dict(cell="SLSTM", num_heads=2),
    "SLSTM none": dict(cell="SLSTM", num_heads=1, norm=None),
    "SLSTM exp": dict(cell="SLSTM", num_heads=3, exp_forget=True),
    "LSTM none projected": dict(cell="LSTM", norm=None, projected=True),
    "LSTM split projected": dict(cell="LSTM", norm=spec("split"), projected=True),
    "LSTM batch projected": dict(cell="LSTM", norm=MILD, projected=True),
    "RNN rms joint": dict(cell="RNN", norm=rms("joint", eps=None)),
    "LSTM rms split out": dict(cell="LSTM", norm=rms("split", bias=True)),
    "LSTM rms gate carry": dict(cell="LSTM", norm=rms("gate", "carry")),
    "GRU rms split": dict(cell="GRU", norm=rms("split")),
    "GRU rms gate": dict(cell="GRU", norm=rms("gate", bias=True)),
    "GRU rms reset split": dict(cell="GRU", norm=rms("split"), reset_after=False),
    "LiGRU rms input": dict(cell="LiGRU", norm=rms("input")),
    "GRU none hard identity": dict(
        cell="GRU", norm=None, nonlinearity="identity", gate_activation="hard_sigmoid"
    ),
    "GRU split sigmoid": dict(cell="GRU", norm=spec("split"), reset_after=True, nonlinearity="sigmoid"),
    "GRU gate relu": dict(cell="GRU", norm=spec("gate"), reset_after=True, nonlinearity="relu"),
    "GRU reset none relu": dict(cell="GRU", norm=None, reset_after=False, nonlinearity="relu"),
    "LSTM none peepholes": dict(cell="LSTM", norm=None, peepholes=True),
    "LSTM gate carry peepholes": dict(cell="LSTM", norm=spec("gate", "carry"), peepholes=True),
    "LSTM batch projected peepholes": dict(cell="LSTM", norm=MILD, projected=True, peepholes=True),
    "LSTM heads none hard peepholes": dict(
        cell="LSTM", norm=None, num_heads=2, gate_activation="hard_sigmoid", peepholes=True
    ),
}
each_variant = pytest.mark.parametrize("variant", VARIANTS)

# The reference's arguments for initial states.
STARTS = ("h0", "c0", "n0", "m0")

# VARIANTS, also with biases inside the norms. "RNN joint" names the default placement of "RNN".
WITH_INNER_BIASES = VARIANTS | {"RNN joint": dict(cell="RNN", norm=spec("joint"))}
WITH_INNER_BIASES |= {
    f"{name} inner": variant | {"norm": replace(variant["norm"], inner_bias=True)}
    for name, variant in WITH_INNER_BIASES.items()
    if isinstance(variant.get("norm"), lnrnn.LayerNormSpec) and variant["cell"] != "SLSTM"
}


def network(input_size, hidden_size, *, cell="RNN", seed=0, trained=0, projected=False, **options):
    """Returns a network with random gains and biases. trained: the number of steps with statistics of batch
    norm. num_heads: replaced by the next larger divisor of hidden_size. An SLSTM gets the next smaller one,
    because its norm of a head of one unit would return the bias. projected: proj_size is half of
    hidden_size."""
    if cell == "SLSTM":
        most = options.get("num_heads", 4)
        options["num_heads"] = next(n for n in range(most, 0, -1) if hidden_size % n == 0)
    elif "num_heads" in options:
        least = min(options["num_heads"], hidden_size)
        options["num_heads"] = next(n for n in range(least, hidden_size + 1) if hidden_size % n == 0)
    options |= dict(proj_size=hidden_size // 2) if projected else {}
    rnn = getattr(lnrnn, cell)(input_size, hidden_size, seed=seed, **options)
    rng = np.random.default_rng(seed + 1)
    for name, value in rnn.parameters().items():
        if name.startswith("gain"):
            setattr(rnn, name, rng.uniform(0.5, 1.5, value.shape))
        elif "bias" in name:
            setattr(rnn, name, rng.uniform(-0.5, 0.5, value.shape))
    return learn(rnn, rng, trained, 16)


def learn(rnn, rng, steps, batch):
    """Gives batch norm the statistics of a random batch with this number of steps and sequences."""
    if steps and isinstance(rnn.norm, lnrnn.BatchNormSpec):
        x = rng.standard_normal((steps, batch, rnn.input_size))
        rnn.calibrate([x.swapaxes(0, 1) if rnn.batch_first else x])
    return rnn


def sparse(rnn, density):
    """Returns a network with block-sparse weights where its cell has kernels for them."""
    dense = getattr(rnn, "num_heads", 1) > 1 or not getattr(rnn, "reset_after", True)
    return lnrnn.sparsify(rnn, {"weight_ih": density, "weight_hh": 1 if dense else density})


def blocks_of(w):
    """Returns the blocks (rows, columns, 8, 4) of w."""
    n, k = w.shape
    return w.reshape(n // 8, 8, k // 4, 4).swapaxes(1, 2)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def suffixes(rnn):
    """Returns the suffixes of parameters by layer: [["_l0", "_l0_reverse"], ["_l1", ...]]."""
    ends = ("", "_reverse") if rnn.bidirectional else ("",)
    return [[f"_l{k}{end}" for end in ends] for k in range(rnn.num_layers)]


def only_forward(rnn):
    """Returns whether no layer reads sequences from their ends. Only such networks have streams."""
    return not (rnn.bidirectional or rnn.reverse)


def newer_arguments(rnn):
    """Returns the arguments of the constructor that the first versions did not have."""
    names = (
        "reverse", "reset_after", "num_heads", "proj_size", "gate_activation", "peepholes", "exp_forget",
        "state_dtype",
    )  # fmt: skip
    return {name: getattr(rnn, name) for name in names if hasattr(rnn, name)}


def cell_of(rnn):
    return type(rnn).__name__


def options_of(rnn, suffix, training=False):
    """Returns the reference's arguments for one layer and direction: (parameters, options)."""
    parameters = {
        name.removesuffix(suffix): value for name, value in rnn.parameters().items() if name.endswith(suffix)
    }
    options = dict(norm=None, reverse=rnn.reverse or suffix.endswith("_reverse"))
    names = ["num_heads", "exp_forget", "state_dtype", "nonlinearity", "reset_after", "gate_activation"]
    options |= {name: getattr(rnn, name) for name in names if hasattr(rnn, name)}
    if cell_of(rnn) == "SLSTM":
        options |= dict(norm="layer", eps=rnn.norm.eps) if rnn.norm else {}
    elif isinstance(rnn.norm, lnrnn.LayerNormSpec):
        kind = "rms" if isinstance(rnn.norm, lnrnn.RMSNormSpec) else "layer"
        options |= dict(norm=kind, eps=rnn.norm.eps, placement=rnn.norm.placement)
        options |= dict(cell=rnn.norm.cell) if cell_of(rnn) == "LSTM" else {}
        options |= dict(span=rnn.norm.span) if cell_of(rnn) == "GRU" else {}
    elif rnn.norm is not None:
        options |= dict(norm="batch", eps=rnn.norm.eps)
        if not training:
            given = {
                side: tuple(
                    getattr(rnn, f"{name}{side and '_'}{side}{suffix}")[: rnn.known_steps]
                    for name in ("running_mean", "running_var")
                )
                for side in sides(rnn)
            }
            options |= dict(statistics=given.get("", given), overrun=rnn.overrun)
    return parameters, options


def sides(rnn):
    """Returns the names of the sites where batch norm has statistics."""
    return {"RNN": [""], "LSTM": ["ih", "hh", "c"], "GRU": ["ih", "hh"], "LiGRU": ["ih"]}[cell_of(rnn)]


def parts(rnn, state):
    """Returns a state as a list: [h], [h, c] of an LSTM, [h, c, n, m] of an SLSTM. If the state is None, so
    are all items."""
    count = {"LSTM": 2, "SLSTM": 4}.get(cell_of(rnn), 1)
    return [None] * count if state is None else list(state) if count > 1 else [state]


def widths(rnn):
    """Returns the number of values in a row of each array of a state, as a list."""
    H = rnn.hidden_size
    return [getattr(rnn, "proj_size", 0) or H, *[H] * (len(parts(rnn, None)) - 1)]


def whole(rnn, result):
    """Returns the state that has these arrays, the inverse of `parts`."""
    return tuple(result) if cell_of(rnn) in ("LSTM", "SLSTM") else result[0]


def equal(rnn, got, want, message=""):
    """Asserts that two pairs (y, state) have equal bits."""
    for a, b in zip((got[0], *parts(rnn, got[1])), (want[0], *parts(rnn, want[1])), strict=True):
        same(a, b, err_msg=message)


def stays(rnn, stream, before, steps):
    """Asserts that a stream still has the states `before` (a list) and the step numbers `steps`."""
    equal(rnn, (0, stream.state), (0, whole(rnn, before)))
    same(stream.steps_done, steps)


def equal_arrays(got, want):
    assert list(got) == list(want)
    for name, value in want.items():
        same(got[name], value, err_msg=name)


def zone_out(rnn, rate):
    if cell_of(rnn) != "SLSTM":
        rnn.zoneout = rate


@contextmanager
def unchanged(rnn):
    before = rnn.state_dict()
    yield
    equal_arrays(rnn.state_dict(), before)


def drawn_state(rng, rnn, batch):
    """Returns random h0, or (h0, c0), or (h0, c0, n0, m0) with a positive n0, for `batch` sequences."""
    lines = rnn.num_layers * rnn.num_directions
    found = [normal(rng, lines, batch, width) for width in widths(rnn)]
    if len(found) == 4:
        found[2] = np.abs(found[2]) + np.float32(0.5)
    return whole(rnn, found)


def taken(rnn, state, who):
    return whole(rnn, [s[:, who] for s in parts(rnn, state)])


def dropped_input(masks, layer, a):
    """Returns a layer's input `a`, or its gradient, after dropout with these masks, in float64."""
    if masks is not None and masks.between[layer] is not None:
        a = a * masks.between[layer] * masks.scale
    return a if masks is None or masks.inputs[layer] is None else a * masks.inputs[layer].astype(float)


def dropping(rnn, masks, k):
    """Returns the reference's arguments for dropout in the k-th layer and direction. masks: None without
    dropout."""
    if cell_of(rnn) == "SLSTM":
        return dict(states_mask=None if masks is None else masks.states[k])
    result = parts(rnn, rnn.zoneout)
    if masks is not None:
        result = [0 if d is None else d for d in masks.zoneout[k][: len(result)]]
    states = None if masks is None else masks.states[k]
    return dict(states_mask=states, zoneout=whole(rnn, result))


def reference_forward(rnn, x, h0=None, lengths=None, training=False, masks=None, own=None):
    """Runs the reference with rnn's parameters on x (T, B, D). Returns y, the last state, and tapes by
    suffix.

    masks: tape.masks of a training run with dropout. own: other parameters, such as those in float64.
    """
    tapes, ends = {}, []
    for n, layer in enumerate(suffixes(rnn)):
        outputs, x = [], dropped_input(masks, n, x)
        for suffix in layer:
            p, options = options_of(rnn, suffix, training)
            p |= {name: own[name + suffix] for name in p} if own else {}
            start = [None if s is None else s[len(ends)] for s in parts(rnn, h0)]
            options |= dict(zip(STARTS, start, strict=False)) | dict(lengths=lengths)
            options |= dropping(rnn, masks, len(ends))
            if cell_of(rnn) == "RNN":
                y, h, tapes[suffix] = ref.rnn(x, **p, **options)
            else:
                y, h, tapes[suffix] = getattr(ref, cell_of(rnn).lower())(x, p, **options)
            outputs.append(y)
            ends.append(parts(rnn, h))
        x = np.concatenate(outputs, axis=-1)
    return x, whole(rnn, [np.array(s) for s in zip(*ends, strict=True)]), tapes


def reference_backward(rnn, tapes, gy, gh=None, masks=None):
    """Runs the reference back with gy (T, B, directions * size of h). Returns gx, gh0, and gradients by
    parameter name."""
    P, grads, gh0 = widths(rnn)[0], {}, []
    backward = getattr(ref, f"{cell_of(rnn).lower()}_backward")
    for n, layer in reversed(list(enumerate(suffixes(rnn)))):
        below, states = 0, []
        for d, suffix in enumerate(layer):
            index = [s for names in suffixes(rnn) for s in names].index(suffix)
            part = gy[..., d * P : (d + 1) * P]
            gend = [None if g is None else g[index] for g in parts(rnn, gh)]
            gx, g, result = backward(tapes[suffix], part, *gend)
            below = below + gx
            states.append(parts(rnn, g))
            grads |= {name + suffix: value for name, value in result.items()}
        gy, gh0 = dropped_input(masks, n, below), states + gh0
    return gy, whole(rnn, [np.array(g) for g in zip(*gh0, strict=True)]), grads


# If an argument of relu is closer to 0 than KINK, float32 and the reference may have different slopes.
KINK = 3e-6


def kink(rnn, tapes):
    """Returns the smallest magnitude of relu's arguments, because relu's slope jumps at 0."""
    nearest = np.inf
    for tape in tapes.values() if getattr(rnn, "nonlinearity", None) == "relu" else ():
        for step in tape.steps:
            if cell_of(rnn) == "LiGRU":
                nearest = min(nearest, np.abs(step.kept[-1]).min())
                continue
            if cell_of(rnn) == "GRU":  # whose tape lacks arguments below 0
                n = step.kept[2]
                nearest = min(nearest, n[n > 0].min(initial=nearest))
                continue
            argument = 0
            for name, normed in step.norms.at.items():
                site, p = step.norms.sites[name], tape.parameters
                argument = argument + normed.ahat * p.get(site.gain, 1) + p.get(site.bias, 0)
            nearest = min(nearest, np.abs(argument).min())
    return nearest


def named_gradients(rnn, gradients):
    """Returns gradients (gx, gh0, grads) as one dict."""
    gx, gh0, grads = gradients
    return {"x": gx, **dict(zip(STARTS, parts(rnn, gh0), strict=False)), **grads}


def drawn_run(seed, rnn, steps, ends):
    """Returns random arguments of a training run, (x, h0, lengths, gy, gh), for lengths `ends`."""
    rng, batch = np.random.default_rng(seed), len(ends)
    x = normal(rng, steps, batch, rnn.input_size)
    gy = normal(rng, steps, batch, widths(rnn)[0] * rnn.num_directions)
    return x, drawn_state(rng, rnn, batch), np.asarray(ends), gy, drawn_state(rng, rnn, batch)


def trained(rnn, x, h0, ends, gy, gh, **options):
    """Runs forward and backward once. Returns {name: gradient}. options: arguments of backward."""
    return named_gradients(rnn, rnn.backward(rnn.forward_train(x, h0, ends)[2], gy, gh, **options))


def true_gradients(rnn, x, h0, ends, gy, gh, masks=None):
    """Returns the reference's {name: gradient}, or None if an argument of relu is closer to 0 than KINK."""
    _, _, tapes = reference_forward(rnn, x, h0, ends, training=True, masks=masks)
    found = named_gradients(rnn, reference_backward(rnn, tapes, gy, gh, masks))
    return found if kink(rnn, tapes) > KINK else None


def nudged(rng, value):
    """Moves each number by -1, 0 or 1 float32, at random."""
    value = np.asarray(value, np.float32)
    return np.nextafter(value, value + rng.integers(-1, 2, value.shape).astype(np.float32))


# These filters are also in pyproject.toml, for the process of the suite.
WARNINGS = ["-W", "error"]
for setting in ("shape", "dtype"):
    WARNINGS += ["-W", f"ignore:Setting the {setting} on a NumPy array:DeprecationWarning"]


def run_python(code, timeout=120, **environment):
    """Runs code in a new interpreter with the same packages. In `environment` None removes a variable."""
    path = [str(Path(__file__).parent), *filter(None, sys.path), os.getcwd()]
    here = {"PYTHONPATH": os.pathsep.join(path)}
    env = {name: v for name, v in {**os.environ, **here, **environment}.items() if v is not None}
    return subprocess.run(
        [sys.executable, *WARNINGS, "-c", code], capture_output=True, text=True, timeout=timeout, env=env
    )


# An environment without the variables that choose the numbers of threads, the cores and the kernels.
FREE = dict.fromkeys([
    "LNRNN_ISA", "LNRNN_NUM_THREADS", "LNRNN_TEAM", "OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OMP_DYNAMIC",
    "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "OMP_STACKSIZE", "GOMP_STACKSIZE",
])  # fmt: skip


def said(code, **environment):
    """Returns the output of code in a new process, with only these variables for threads and kernels."""
    done = run_python(code, **{**FREE, **environment})
    assert done.returncode == 0 and not done.stderr, f"exit {done.returncode}\n{done.stderr[-2000:]}"
    return done.stdout.strip()


def run_apart(function, **environment):
    """Calls a function of a test module in a new process, so that a crash does not end the suite."""
    done = run_python(f"from {function.__module__} import {function.__name__} as f; f()", **environment)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def calm(input_size, hidden_size, *, seed=0, trained=0, **options):
    """Returns a network that does not amplify rounding errors. Every unit's W_ih x has a variance near 1, and
    W_hh has the spectral radius 0.6. The gain is small if W_hh h has its own norm, or if the normalised c is
    carried. Batch norm has statistics of random sequences."""
    small = {"gain_hh": 0.3, "gain_c": 0.5}
    rnn = network(input_size, hidden_size, seed=seed, **options)
    rng = np.random.default_rng(seed + 2)
    for name, value in rnn.parameters().items():
        if name.startswith("weight_ih"):
            setattr(rnn, name, rng.uniform(-1, 1, value.shape) * (3 / value.shape[1]) ** 0.5)
        elif name.startswith("gain"):
            setattr(rnn, name, rng.uniform(0.5, 1, value.shape) * small.get(name.partition("_l")[0], 1))
    return learn(rnn, rng, trained, 64)
