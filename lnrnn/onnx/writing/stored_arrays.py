"""Converts a network's arrays to those of an ONNX file: rounded, with batch norm tables, in ONNX's order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...importers.weights import reordered
from ...reference.cells import block_diagonal
from ...reference.slstm import as_bfloat16
from ...rnn.architecture import Architecture
from ...rnn.snapshot import Snapshot
from .scan_bodies import EQUATIONS

Array = np.ndarray
FLOAT32 = np.float32
ROUNDING = 257 * 2.0**-31  # relative error of a product of two rounded float32 numbers, a little above 2^-23


def to_int8(w: Array) -> Array:
    """Rounds each row to integers times a scale, as kernels/pack.h does. Rows with max |w| < 2^-100 become 0.

    The scale is max |w| / 127. Rows that are integers from -128 to 127 times a scale keep their values.
    """
    most = np.abs(w).max(1, keepdims=True)
    scale = np.where(most < FLOAT32(2.0**-100), FLOAT32(0), most / _largest_integers(w, most))
    inverse = np.divide(FLOAT32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    found: Array = np.rint(w * inverse) * scale
    return found


def _largest_integers(w: Array, most: Array) -> Array:
    """Returns the integer to which each row's largest |w| is mapped, (n, 1) float32. most: max |w| (n, 1)."""
    top = np.full(most.shape, 127, FLOAT32)
    left = np.flatnonzero(~_multiples(w, most, 127))
    for n in (128, *range(126, 0, -1)):
        if n == 128 and w.shape[1] > (2**31 - 1) // (127 * 128):  # int32 sums could overflow
            continue
        found = left[_multiples(w[left, :4], most[left], n)]  # a quick filter: few rows pass
        found = found[_multiples(w[found], most[found], n)]
        top[found] = n
        left = np.setdiff1d(left, found)
    return top


def _multiples(w: Array, most: Array, top: int) -> Array:
    """Returns for each row whether all values are integer multiples of most / top, up to float32 rounding."""
    step = most.astype(np.float64) / top
    n = np.rint(np.divide(w, step, out=np.zeros(w.shape), where=step > 0))
    found: Array = ((np.abs(w - n * step) <= np.abs(w) * ROUNDING) & (n <= 127)).all(1)
    return found


ROUNDED: dict[str, Callable[[Array], Array]] = {
    "float32": lambda w: w, "bfloat16": as_bfloat16, "int8": to_int8,
}  # fmt: skip


def layer_arrays(snapshot: Snapshot, suffix: str) -> dict[str, Array]:
    """Returns the arrays of one layer and direction, by name without suffix.

    Weights are rounded to the network's dtype; block-diagonal weights become full matrices. With batch norm,
    the arrays of `tables` are added.
    """
    made, rounded = snapshot.architecture, ROUNDED[snapshot.dtype]
    found: dict[str, Array] = {}
    for name in made.shapes:
        if not name.endswith(suffix):
            continue
        array, name = snapshot.parameters[name], name.removesuffix(suffix)
        if name.startswith("weight"):
            array = rounded(array)
        if name == "weight_hh":
            array = block_diagonal(array, made.num_heads)
        found[name] = array
    return found | (tables(snapshot, suffix, found) if made.sides else {})


def tables(snapshot: Snapshot, suffix: str, arrays: dict[str, Array]) -> dict[str, Array]:
    """Returns batch norm as tables of scale and shift (steps, width) for each position of a norm.

    Row t belongs to step t. If overrun is "mean", a last row has the mean statistics for later steps.
    """
    made, statistics = snapshot.architecture, snapshot.statistics[suffix]
    assert made.batch_norm is not None
    found: dict[str, Array] = {}
    for side, names in made.sites.items():
        mean, var = (statistics.arrays[names[use]][: statistics.known] for use in ("mean", "variance"))
        if snapshot.overrun == "mean":
            mean, var = (np.concatenate([a, a.mean(0, keepdims=True)]) for a in (mean, var))
        gain, bias = (arrays.get(names.get(use, "")) for use in ("gain", "bias"))
        scale = (1.0 if gain is None else gain.astype(float)) / np.sqrt(var + made.batch_norm.eps)
        shift = (0.0 if bias is None else bias.astype(float)) - mean * scale
        end = side and f"_{side}"
        found |= {f"scale{end}": scale.astype(FLOAT32), f"shift{end}": shift.astype(FLOAT32)}
    return found


def node_arrays(made: Architecture, arrays: list[dict[str, Array]]) -> dict[str, Array | None]:
    """Returns W, R, B and P of an ONNX node. arrays: for each direction. B or P is None if absent."""
    cell = EQUATIONS[made.cell.name]

    def stored(name: str) -> Array:
        return np.stack([reordered(each[name], cell.gates, cell.node) for each in arrays])

    B = np.concatenate([stored("bias_ih"), stored("bias_hh")], 1) if made.bias else None
    P = np.stack([reordered(each["peephole"], "ifo", "iof") for each in arrays]) if made.peepholes else None
    return {"W": stored("weight_ih"), "R": stored("weight_hh"), "B": B, "P": P}
