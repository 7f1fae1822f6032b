"""Draws random sizes, values, memory layouts and networks for the fuzzer."""

from __future__ import annotations

import numpy as np
from cases import Case

import lnrnn
from helpers import layouts
from networks import (
    CELLS,
    NONLINEARITIES,
    VARIANTS,
    cell_of,
    drawn_state,
    newer_arguments,
    normal,
    parts,
    zone_out,
)

EVERY_CELL = (*CELLS, "SLSTM")
STYLES = ("normal", "normal", "shifted", "far", "outlier", "whole", "scaled", "constant", "mixed")


def pick(rng, values):
    return values[rng.integers(len(values))]


def chance(rng, p: float) -> bool:
    return bool(rng.random() < p)


def size(rng, least: int = 1) -> int:
    """Returns a size: mostly small, often near the width of a vector, rarely hundreds."""
    at = rng.random()
    if at < 0.65:
        return int(rng.integers(least, 10))
    if at < 0.92:
        return int(rng.integers(least, 35))
    return int(rng.integers(30, 140)) if at < 0.995 else int(rng.integers(140, 600))


def values(rng, shape, dtype, style: str) -> np.ndarray:
    """Returns an array whose rows (along the last axis) are numerically difficult for a norm."""
    x = rng.standard_normal(shape)
    if style == "shifted":
        x = 3 * x + 1
    elif style == "far":
        x += rng.choice([-1, 1]) * 10 ** rng.uniform(1, 4)
    elif style == "outlier" and x.size:
        x.reshape(-1)[rng.integers(x.size)] *= 10 ** rng.uniform(2, 6)
    elif style == "whole":
        x = rng.integers(-3, 4, shape).astype(float)
    elif style == "scaled":
        x *= 2.0 ** rng.integers(-30, 30)
    elif style == "constant":
        x[...] = rng.standard_normal()
    elif style == "mixed":
        x *= np.where(rng.random(shape) < 0.3, 0, 2.0 ** rng.integers(-8, 8, shape))
    if dtype is np.float16:
        x = np.clip(x, -60000, 60000)
    return x.astype(dtype)


def arranged(rng, x: np.ndarray, most: int = 4):
    """Returns x in some memory layouts, as (name, array)."""
    every = list(layouts(x).items()) if x.ndim and x.size else []
    for k in rng.permutation(len(every))[:most]:
        yield every[k]


def spec_options(rng, cell: str, known: int) -> dict:
    """Returns a network's random arguments for its cell and norm."""
    options = dict(VARIANTS[pick(rng, [name for name in VARIANTS if name.split()[0] == cell])])
    norm = options.get("norm", "layer")
    if norm == "layer":
        norm = lnrnn.LayerNormSpec()
    if isinstance(norm, lnrnn.LayerNormSpec):
        norm = lnrnn.LayerNormSpec(
            norm.placement, norm.cell, pick(rng, (1e-5, 1e-5, 1e-3, 0.1, 1.0)), span=norm.span,
            inner_bias=cell != "SLSTM" and chance(rng, 0.3),
        )  # fmt: skip
    elif norm is not None:
        overrun = pick(rng, ("raise", "last", "mean", "batch"))
        momentum = pick(rng, (0.1, None, 0.5, 1.0))
        max_steps = pick(rng, (None, None, known + 6))
        norm = lnrnn.BatchNormSpec(max_steps, overrun, momentum, pick(rng, (1e-5, 1e-3, 0.1)))
    options["norm"] = norm
    if cell in ("RNN", "LiGRU"):
        options["nonlinearity"] = pick(rng, NONLINEARITIES)
    return options


def parameters(rng, shapes: dict[str, tuple[int, ...]], calm: bool, uneven=False) -> dict[str, np.ndarray]:
    """Returns random parameters. If `calm` is True, rounding errors do not grow from step to step.

    uneven: W_ih x differs in size from unit to unit, so some gates are closed and some candidates large."""
    drawn = {}
    for name, shape in shapes.items():
        if name.startswith("weight_ih"):
            bound = (3 / shape[1]) ** 0.5
        elif name.startswith("weight"):
            bound = (0.6 if calm else 1.5) / shape[1] ** 0.5
        else:
            bound = 0.5
        value = rng.uniform(-bound, bound, shape)
        if uneven and name.startswith("weight_ih"):
            value *= 2.0 ** rng.integers(-3, 12, (shape[0], 1))
        if name.startswith("gain"):
            small = 0.3 if calm and name.startswith(("gain_hh", "gain_c")) else 1
            value = small * (1 + value)
        drawn[name] = value.astype(np.float32)
    return drawn


def statistics(rng, state: dict[str, np.ndarray], known: int) -> dict[str, np.ndarray]:
    """Returns {name: statistics of batch norm} for `known` steps. Counts fall from step to step."""
    count = np.sort(rng.integers(1, 50, known))[::-1]
    every = {}
    for name, value in state.items():
        if not name.startswith(("count", "running")):
            continue
        drawn = rng.standard_normal((known, *value.shape[1:])) * 0.5
        drawn = count if name.startswith("count") else np.abs(drawn) + 0.3 if "var" in name else drawn
        every[name] = np.zeros((len(value) or known, *value.shape[1:]), value.dtype)
        every[name][:known] = drawn
    return every


def maker(rng, *, known: int = 4, most_layers: int = 3, stream: bool = False, sizes=None):
    """Returns a function that makes equal networks with random options; its arguments replace these.

    known: how many steps have statistics of batch norm."""
    options = spec_options(rng, pick(rng, EVERY_CELL), known)
    options |= dict(
        num_layers=int(pick(rng, (1, 1, 2, most_layers))),
        bidirectional=not stream and chance(rng, 0.3),
        batch_first=chance(rng, 0.4),
        bias=chance(rng, 0.8),
    )
    options["reverse"] = not (stream or options["bidirectional"]) and chance(rng, 0.2)
    sizes = sizes or (size(rng), size(rng))
    if options.pop("projected", False):
        options["proj_size"] = int(rng.integers(0, sizes[1]))
    if "num_heads" in options:
        options["num_heads"] = int(pick(rng, [n for n in range(1, sizes[1] + 1) if sizes[1] % n == 0]))
    kind, options["seed"] = getattr(lnrnn, options.pop("cell")), int(rng.integers(99))
    rnn = kind(*sizes, **options)
    state = rnn.state_dict()
    shapes = {name: value.shape for name, value in rnn.parameters().items()}
    uneven = rnn.norm is None and not isinstance(rnn, lnrnn.SLSTM) and chance(rng, 0.4)
    drawn = parameters(rng, shapes, chance(rng, 0.7), uneven) | statistics(rng, state, known)

    def make(**others):
        rnn = kind(*sizes, **options | others)
        if "num_heads" not in others:  # otherwise the shapes differ
            rnn.load_state_dict(drawn)
        return rnn

    return make


def network(rng, **options):
    return maker(rng, **options)()


def described(rnn) -> str:
    names = "input_size", "hidden_size", "num_layers", "norm", "bias", "batch_first", "bidirectional"
    values = {n: getattr(rnn, n) for n in (*names, "zoneout", "dtype", "activation_bits")}
    shown = ", ".join(f"{name}={value!r}" for name, value in (values | newer_arguments(rnn)).items())
    return f"{type(rnn).__name__} {getattr(rnn, 'nonlinearity', '')} {shown}"


def swapped(rnn, a: np.ndarray) -> np.ndarray:
    """Swaps the first two axes of `a` if the network has batch_first: to (T, B, ...) or back."""
    return a.swapaxes(0, 1) if rnn.batch_first else a


def drawn_case(rng, known: int = 4, learns: bool = False) -> Case:
    """Returns a random Case of tests/conformance, whose sequences do not depend on each other."""
    large, rest = chance(rng, 0.02), {"known": known}
    if large:  # enough work for several threads
        rest = dict(known=26, most_layers=2, sizes=(int(rng.integers(1, 40)), int(rng.integers(60, 140))))
    first, rates, overrun = (
        maker(rng, **rest),
        rng.uniform(0, 0.9, 2),
        pick(rng, ("last", "mean")),
    )
    rates *= chance(rng, 0.3) and not learns
    dtype = "float32" if learns else pick(rng, ("float32",) * 3 + ("bfloat16", "int8"))
    bits = pick(rng, (None, 14, 8)) if dtype == "int8" else None

    def make(zoneout=tuple(rates), batch_first=False, **others):
        rnn = first(batch_first=batch_first, **others)
        if rnn.overrun is not None:
            rnn.overrun = overrun
        zone_out(rnn, zoneout if cell_of(rnn) == "LSTM" else zoneout[0])
        return rnn.to_dtype(dtype, bits)

    T, B = (32, 70) if large else (int(rng.integers(0, 9)), int(rng.integers(0, 8)))
    rnn, ends = make(), lengths(rng, T, B)
    x, start = inputs(rng, rnn, T, B), parts(rnn, drawn_state(rng, rnn, B)) if chance(rng, 0.6) else None
    ends = np.full(B, T) if ends is None else ends
    x[np.arange(T)[:, None] >= ends] = pick(rng, (np.nan, np.inf, 1e30))
    resets = rng.random((T, B)) < 0.3 if T and chance(rng, 0.4) else None
    return Case(make, x, start, ends, resets, int(rng.integers(1, 4)))


def lengths(rng, steps: int, batch: int):
    """Returns None, or a length for every sequence. Often one is 0, and one is the number of steps."""
    if chance(rng, 0.35):
        return None
    ends = rng.integers(0, steps + 1, batch)
    if batch > 1 and chance(rng, 0.5):
        ends[:2] = steps, 0
    return rng.permuted(ends)


def inputs(rng, rnn, steps: int, batch: int) -> np.ndarray:
    x = normal(rng, steps, batch, rnn.input_size)
    return x * np.float32(2.0 ** rng.integers(-3, 4)) if chance(rng, 0.2) else x


def caches(rng) -> tuple[int, int, int]:
    """Returns random sizes of L1, L2 and L3. Results must not depend on them."""
    l1 = 2 ** int(rng.integers(9, 17))
    return l1, l1 * 2 ** int(rng.integers(0, 6)), l1 * 2 ** int(rng.integers(6, 10))
