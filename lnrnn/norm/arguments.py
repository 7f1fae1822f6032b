"""Tables of arguments of norms and activations, and conversions for the kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..arguments import TAKES, Flag, Integer, Known, Number, Optional, Output, Sizes, check
from ..arguments import Array as Takes
from ..errors import bad_type, bad_value, real

Array = np.ndarray


_DOUBLE = Takes("C", dtype="double")


class Statistic(NamedTuple):
    """A constraint: running mean or variance of C channels. Training updates it in place, or it is None."""

    def check(self, name: str, value: Any, known: Known) -> Array | None:
        if not known["training"]:
            if value is None:
                raise bad_value(name, f"an array of shape {known['C']} unless training", None)
            return _DOUBLE.check(name, value, known)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            raise bad_type(name, "a numpy array of floats", value, "training updates it in place")
        return Output("C").check(name, value, {"C": known["C"], "dtype of C": value.dtype})


_ROWS = Optional(Takes("normalized_shape", dtype="computed"))
_CHANNELS = Optional(Takes("C", dtype="computed"))
_OUT, _GY = Optional(Output()), Takes("x", dtype="dtype of x")
TAKES["rms_norm"] = {
    "x": Takes("* normalized_shape"), "normalized_shape": Sizes(), "weight": _ROWS,
    "eps": Optional(Number(0)), "out": _OUT,
}  # fmt: skip
TAKES["layer_norm"] = TAKES["rms_norm"] | {"eps": Number(0), "bias": _ROWS}
for _name in ("layer_norm", "rms_norm"):
    TAKES[_name + "_backward"] = {n: c for n, c in TAKES[_name].items() if n != "out"} | {"gy": _GY}
TAKES["batch_norm_backward"] = {
    "x": Takes("N C *"), "running_mean": Statistic(), "running_var": Statistic(), "weight": _CHANNELS,
    "training": Flag(), "eps": Number(0), "gy": _GY,
}  # fmt: skip
TAKES["batch_norm"] = {n: c for n, c in TAKES["batch_norm_backward"].items() if n != "gy"} | {
    "bias": _CHANNELS, "momentum": Number(0, 1), "out": _OUT,
}  # fmt: skip
TAKES["exp"] = TAKES["tanh"] = TAKES["sigmoid"] = {
    "x": Takes("*", dtype="computed"),
    "out": Optional(Output()),
}


def input_array(name: str, value: ArrayLike) -> Array:
    """Returns value as a C-contiguous, aligned array of a dtype that kernels support."""
    array = real(name, value)
    # dtype.char comes first: dtype.name takes longer than converting a short array.
    if array.dtype.char not in "ef" and array.dtype.name != "bfloat16":
        array = np.asarray(array, np.result_type(array.dtype, np.float32))
        array = array if array.dtype == np.float32 else array.astype(np.float64, copy=False)
    flags = array.flags
    if array.dtype.isnative and flags.c_contiguous and flags.aligned and type(array) is np.ndarray:
        return array
    return np.require(array, array.dtype.newbyteorder("="), ["C", "A"])


def computed(x: Array) -> np.dtype:
    return np.dtype(np.float64 if x.dtype == np.float64 else np.float32)


def of_rows(function: str, given: dict[str, Any]) -> list[Any]:
    """Returns checked arguments of layer or RMS norm, x and normalized_shape first. given: by name."""
    x = input_array("x", given["x"])
    shape = TAKES[function]["normalized_shape"].check("normalized_shape", given.pop("normalized_shape"))
    known = {"x": x.shape, "normalized_shape": shape, "dtype of x": x.dtype, "computed": computed(x)}
    x, *more = check(function, given | {"x": x}, known)
    return [x, shape, *more]


def of_channels(function: str, given: dict[str, Any]) -> list[Any]:
    """Returns checked arguments of batch norm, x first. given: arguments by name."""
    takes = TAKES[function]
    x = takes["x"].check("x", input_array("x", given.pop("x")))
    training = takes["training"].check("training", given["training"])
    if training and x.shape[1] and x.size // x.shape[1] < 2:
        raise bad_value("x", "of more than 1 value per channel in training", x)
    kinds = {"dtype of x": x.dtype, "computed": computed(x), "double": np.float64}
    known = {"x": x.shape, "C": x.shape[1:2], "training": training, **kinds}
    return [x, *check(function, given, known)]


def axes_of(x: Array, normalized_shape: Any, axis: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns (normalized_shape as a tuple, non-negative axes of x with these sizes)."""
    (shape,) = check("layer_norm", {"normalized_shape": normalized_shape})
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    if len(given) != len(shape):
        raise bad_value("axis", f"one axis for each size of normalized_shape {shape}", axis)
    axes = tuple(Integer(-x.ndim, x.ndim - 1).check("axis", n) % x.ndim for n in given)
    if len(set(axes)) != len(axes):
        raise bad_value("axis", "different axes of x", axis)
    if tuple(x.shape[n] for n in axes) != shape:
        raise bad_value("x", f"an array whose axes {axes} have the sizes of normalized_shape, {shape}", x)
    return shape, axes
