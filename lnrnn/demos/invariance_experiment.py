"""The measuring of the demo ``invariances``: a layer under three norms, changed in the six ways of Table 1 of
the layer norm paper, and how far its output moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import lnrnn
from lnrnn.data import japanese_vowels
from lnrnn.demos.study import Progress

Array = np.ndarray
UNITS, CASES = 64, 128
FACTORS = (0.01, 0.3, 3.0, 100.0)
SHIFTS = (0.3, 3.0, 100.0)
EPS = 1e-5  # of the shipped layers
ONE_PERCENT = 0.01


@dataclass(frozen=True)
class Layer:
    """weights (UNITS, I), cases (CASES, I), float64, and what the changes need: shifts (I,) as large as the
    weights and as the cases (root mean square), the unit and the case that are changed alone."""

    weights: Array
    cases: Array
    weight_shift: Array
    case_shift: Array
    unit: int
    case: int


def make_layer(frames: Array, seed: int) -> Layer:
    """frames (F, I): what cases are drawn from."""
    rng = np.random.default_rng(seed)
    inputs = frames.shape[1]
    cases = frames[rng.choice(len(frames), CASES, replace=False)].astype(np.float64)
    weights = rng.standard_normal((UNITS, inputs)) / inputs**0.5

    def shift(like: Array) -> Array:
        vector = np.asarray(rng.standard_normal(inputs))
        return np.asarray(vector * (root_mean_square(like) / root_mean_square(vector)))

    return Layer(
        weights, cases, shift(weights), shift(cases), int(rng.integers(UNITS)), int(rng.integers(CASES))
    )


def root_mean_square(values: Array, axis: int | None = None) -> Array:
    return np.asarray(np.sqrt(np.square(values).mean(axis)))


# --- the six changes: layer, amount -> weights, cases -------------------------------------------------------

Change = Callable[[Layer, float], tuple[Array, Array]]


def _one(values: Array, index: int, factor: float) -> Array:
    changed = values.copy()
    changed[index] *= factor
    return changed


CHANGES: dict[str, Change] = {
    "W scaled": lambda layer, factor: (layer.weights * factor, layer.cases),
    "W recentred": lambda layer, size: (layer.weights + size * layer.weight_shift, layer.cases),
    "w scaled": lambda layer, factor: (_one(layer.weights, layer.unit, factor), layer.cases),
    "D scaled": lambda layer, factor: (layer.weights, layer.cases * factor),
    "D recentred": lambda layer, size: (layer.weights, layer.cases + size * layer.case_shift),
    "x scaled": lambda layer, factor: (layer.weights, _one(layer.cases, layer.case, factor)),
}


SCALINGS = ("W scaled", "w scaled", "D scaled", "x scaled")


def amounts(change: str) -> tuple[float, ...]:
    """The factors, or sizes of the shift, that an entry of the table is decided by."""
    return FACTORS if change in SCALINGS else SHIFTS


# --- the norms: weights, cases, eps -> y (CASES, UNITS), in the dtype of weights and cases ------------------

Norm = Callable[[Array, Array, float], Array]


def summed_inputs(weights: Array, cases: Array) -> Array:
    # einsum, not @: BLAS may add in another order with another number of threads.
    return np.asarray(np.einsum("ni,hi->nh", cases, weights))


def batch_norm(weights: Array, cases: Array, eps: float) -> Array:
    return lnrnn.batch_norm(summed_inputs(weights, cases), None, None, training=True, eps=eps)


def weight_norm(weights: Array, cases: Array, eps: float) -> Array:
    inputs = weights.shape[1]
    unit_length = lnrnn.rms_norm(weights, inputs, weight=np.full(inputs, inputs**-0.5), eps=eps)
    return summed_inputs(unit_length, cases)


def layer_norm(weights: Array, cases: Array, eps: float) -> Array:
    return lnrnn.layer_norm(summed_inputs(weights, cases), len(weights), eps=eps)


def stored_batch_norm(layer: Layer) -> Norm:
    """Batch norm at inference: with the statistics of the unchanged layer."""
    before = summed_inputs(layer.weights, layer.cases)
    mean, var = before.mean(0), before.var(0)
    return lambda weights, cases, eps: lnrnn.batch_norm(summed_inputs(weights, cases), mean, var, eps=eps)


NORMS: dict[str, Norm] = {"batch norm": batch_norm, "weight norm": weight_norm, "layer norm": layer_norm}
STORED = "stored"
# Table 1 of the paper.
TABLE: dict[str, dict[str, bool]] = {
    norm: dict(zip(CHANGES, row, strict=True))
    for norm, row in {
        "batch norm": (True, False, True, True, True, False),
        "weight norm": (True, False, True, False, False, False),
        "layer norm": (True, True, False, True, False, True),
    }.items()
}


# --- measuring ----------------------------------------------------------------------------------------------


def output(norm: Norm, weights: Array, cases: Array, dtype: type, eps: float) -> Array:
    return norm(weights.astype(dtype), cases.astype(dtype), eps).astype(np.float64)


def deviation(changed: Array, y: Array) -> float:
    """How far the first is from the second, (CASES, UNITS): the root mean square of the difference over that
    of y, within a case and within a unit; the worst of them."""
    ratios = (root_mean_square(changed - y, axis) / root_mean_square(y, axis) for axis in (0, 1))
    return float(max(ratio.max() for ratio in ratios))


def divided_by(norm: str, layer: Layer) -> Array:
    """What the norm divides by: standard deviations of summed inputs, of each unit (batch norm) or case
    (layer norm), or the root mean square of each unit's weights."""
    if norm == "weight norm":
        return root_mean_square(layer.weights, 1)
    return np.asarray(summed_inputs(layer.weights, layer.cases).std(0 if norm == "batch norm" else 1))


def bend(scale: Array, eps: float) -> Array:
    """By which part eps shrinks the output of a norm that divides by scale."""
    return np.asarray(1 - scale / np.sqrt(scale**2 + eps))


def scale_at(part: float, eps: float) -> float:
    """The scale at which ``bend`` is that part."""
    return float((1 - part) * np.sqrt(eps / (1 - (1 - part) ** 2)))


def crossing(scales: Array, deviations: Array, level: float) -> float:
    """The scale at which deviations, which fall as scales rise, pass the level; between two scales by
    interpolation in logarithms."""
    low = int(np.flatnonzero(deviations > level)[-1])
    logs = np.log(deviations[low : low + 2])
    part = (logs[0] - np.log(level)) / (logs[0] - logs[1])
    return float(scales[low] * (scales[low + 1] / scales[low]) ** part)


@dataclass(frozen=True)
class Results:
    """S seeds; deviations are float64.

    entries, shipped: by norm (NORMS, then STORED) and change, (S, amounts), of the changed output from the
    unchanged one, in float64 at eps 0 and in float32 at EPS.
    mirrored: by norm and change, (S,), of the output under the factor -1 from the output, its sign turned.
    multiplied: (S, FACTORS), of weight norm's output for scaled cases from the factor times the output.
    scales, scaled: by norm, (S, F) and (3, S, F): the smallest number that the norm divides by, after weights
    are scaled by ``factors``; and the deviation of that output from the exact one, under each of CONDITIONS.
    shifted: by norm, (3, S, sizes): likewise under the norm's change in RECENTRED.
    """

    factors: Array
    sizes: Array
    entries: dict[tuple[str, str], Array]
    shipped: dict[tuple[str, str], Array]
    mirrored: dict[tuple[str, str], Array]
    multiplied: Array
    scales: dict[str, Array]
    scaled: dict[str, Array]
    shifted: dict[str, Array]

    def crossings(self, norm: str) -> Array:
        """Below which scale the float32 kernels at EPS are off by more than ONE_PERCENT, (S,)."""
        rows = zip(self.scales[norm], self.scaled[norm][0], strict=True)
        return np.array([crossing(scales, deviations, ONE_PERCENT) for scales, deviations in rows])


CONDITIONS: tuple[tuple[type, float], ...] = ((np.float32, EPS), (np.float32, 0.0), (np.float64, 0.0))
RECENTRED = {"layer norm": "W recentred", "batch norm": "D recentred"}


def deviations(norm: Norm, layer: Layer, change: str, dtype: type, eps: float) -> Array:
    """Of the changed output from the unchanged one, both under these conditions, one per amount."""
    y = output(norm, layer.weights, layer.cases, dtype, eps)
    changed = (CHANGES[change](layer, amount) for amount in amounts(change))
    return np.array([deviation(output(norm, *arrays, dtype, eps), y) for arrays in changed])


def curves(norm: Norm, layer: Layer, change: str, sizes: Array) -> Array:
    """Of the changed output under each of CONDITIONS from the exact one, (3, sizes)."""
    exact = output(norm, layer.weights, layer.cases, np.float64, 0)
    changed = [CHANGES[change](layer, float(size)) for size in sizes]
    return np.array(
        [[deviation(output(norm, *arrays, *kind), exact) for arrays in changed] for kind in CONDITIONS]
    )


def measure(seeds: int, quick: bool, progress: Progress) -> Results:
    frames = np.concatenate(japanese_vowels().train.x)
    # An even number of factors: none is 1, which changes nothing.
    factors = np.logspace(-4, 4, 16 if quick else 80)
    sizes = np.logspace(-1, 6, 8 if quick else 29)
    parts = []
    for seed in range(seeds):
        progress(seed / seeds, f"seed {seed}")
        parts.append(_measure_one(make_layer(frames, seed), factors, sizes))
    one = parts[0]
    return Results(
        factors,
        sizes,
        entries={key: np.stack([part.entries[key] for part in parts]) for key in one.entries},
        shipped={key: np.stack([part.shipped[key] for part in parts]) for key in one.shipped},
        mirrored={key: np.stack([part.mirrored[key] for part in parts]) for key in one.mirrored},
        multiplied=np.stack([part.multiplied for part in parts]),
        scales={norm: np.stack([part.scales[norm] for part in parts]) for norm in one.scales},
        scaled={norm: np.stack([part.scaled[norm] for part in parts], 1) for norm in one.scaled},
        shifted={norm: np.stack([part.shifted[norm] for part in parts], 1) for norm in one.shifted},
    )


def _measure_one(layer: Layer, factors: Array, sizes: Array) -> Results:
    """Results of one seed, without the axis of the seeds."""
    norms = {**NORMS, STORED: stored_batch_norm(layer)}
    pairs = [(norm, change) for norm in norms for change in CHANGES]
    exact, shipped = (
        {(norm, change): deviations(norms[norm], layer, change, *kind) for norm, change in pairs}
        for kind in ((np.float64, 0.0), (np.float32, EPS))
    )
    mirrored = {}
    for norm, change in pairs:
        if change in SCALINGS and TABLE.get(norm, {}).get(change):
            y = output(norms[norm], layer.weights, layer.cases, np.float64, 0)
            alone: dict[str, Any] = {"w scaled": np.s_[:, layer.unit], "x scaled": np.s_[layer.case]}
            y[alone.get(change, ...)] *= -1
            turned = output(norms[norm], *CHANGES[change](layer, -1), np.float64, 0)
            mirrored[norm, change] = np.array(deviation(turned, y))
    y = output(weight_norm, layer.weights, layer.cases, np.float64, 0)
    multiplied = [
        deviation(output(weight_norm, layer.weights, layer.cases * factor, np.float64, 0), factor * y)
        for factor in FACTORS
    ]
    return Results(
        factors,
        sizes,
        exact,
        shipped,
        mirrored,
        np.array(multiplied),
        scales={norm: divided_by(norm, layer).min() * factors for norm in NORMS},
        scaled={norm: curves(NORMS[norm], layer, "W scaled", factors) for norm in NORMS},
        shifted={norm: curves(NORMS[norm], layer, change, sizes) for norm, change in RECENTRED.items()},
    )
