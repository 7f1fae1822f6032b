"""What is said when an argument is wrong: its name, what came, what was expected. Every check of the package
is here."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

Choice = TypeVar("Choice")


class SequenceTooLongError(ValueError):
    """A batch-normalised network met a time step for which it has no statistics.

    Attributes: `sequence` (its place in the batch, or the lane of a stream), `length` (its steps),
    `known_steps` (the longest known).
    """

    def __init__(
        self, sequence: int, length: int, known_steps: int, hint: str, what: str = "sequence"
    ) -> None:
        super().__init__(
            f"{what} {sequence} has {length} steps, but statistics are known for {known_steps} only; {hint}"
        )
        self.sequence, self.length, self.known_steps = sequence, length, known_steps
        self._hint, self._what = hint, what

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are else made again from their message alone, as where a process hands one to another.
        return type(self), (self.sequence, self.length, self.known_steps, self._hint, self._what)


def described(value: Any) -> str:
    """A value as a message shows it: short whatever it is."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        return f"an array of shape {tuple(shape)} and dtype {dtype}"
    try:
        text = repr(value)
    except Exception:  # an int of ten thousand digits has no repr, and what has none may still be wrong
        text = "a value"
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def bad_value(name: str, expected: str, value: Any) -> ValueError:
    return ValueError(f"{name} must be {expected}, got {described(value)}")


def bad_type(name: str, expected: str, value: Any) -> TypeError:
    return TypeError(f"{name} must be {expected}, got {described(value)}")


def unexpected(function: str, given: Mapping[str, Any], ours: Mapping[str, str]) -> TypeError:
    """Python's error for keyword arguments that a function does not have. ours: by another library's name of
    an argument, its name here."""
    name = next(iter(given))
    hint = f"; it is called {ours[name]}" if name in ours else ""
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


def integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    """value as an int >= least; a bool or a float is a TypeError."""
    expected = f"an integer of at least {least}" + (f" and at most {most}" if most is not None else "")
    if isinstance(value, (bool, np.bool_)):
        raise bad_type(name, expected, value)
    try:
        result = operator.index(value)
    except TypeError:
        raise bad_type(name, expected, value) from None
    if result < least or (most is not None and result > most):
        raise bad_value(name, expected, value)
    return result


def number(name: str, value: Any, least: float, most: float = math.inf, *, below: float = math.inf) -> float:
    """value as a finite float in [least, most], and less than `below`."""
    expected = f"a finite number of at least {least:g}"
    if most < math.inf:
        expected += f" and at most {most:g}"
    if below < math.inf:
        expected += f" and below {below:g}"
    kind = getattr(getattr(value, "dtype", None), "kind", "f")  # an array of one string makes a float too
    if isinstance(value, (str, bytes, bool, np.bool_)) or kind not in "fiu":
        raise bad_type(name, expected, value)
    try:
        result = float(value)
    except OverflowError:
        raise bad_value(name, expected, value) from None
    except (TypeError, ValueError, RuntimeError):
        raise bad_type(name, expected, value) from None
    if not (math.isfinite(result) and least <= result <= most and result < below):
        raise bad_value(name, expected, value)
    return result


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise bad_type(name, "True or False", value)
    return bool(value)


def choice(name: str, value: Any, choices: tuple[Choice, ...]) -> Choice:
    for found in choices:
        if value is found or (isinstance(value, str) and value == found):
            return found
    expected = "one of " + ", ".join(map(repr, choices))
    raise (bad_value if isinstance(value, str) or value is None else bad_type)(name, expected, value)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def _array(value: Any) -> np.ndarray:
    """value as an array, without a copy where there is memory already: also one that says it by DLPack alone,
    and a torch tensor of bfloat16, which NumPy knows only through ml_dtypes."""
    if type(value) is np.ndarray:
        return value
    if _is_tensor(value) and str(value.dtype) == "torch.bfloat16":
        import torch

        try:
            import ml_dtypes
        except ImportError:
            raise ImportError("tensors of bfloat16 need ml_dtypes: pip install ml_dtypes") from None
        # as numpy() refuses other dtypes; the view below would drop the gradient silently
        if value.requires_grad:
            raise RuntimeError("it requires grad: use its detach()")
        array: np.ndarray = value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return array
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    return np.asarray(value)


def real(name: str, value: Any) -> np.ndarray:
    """value as an array of real numbers, in whatever dtype, without a copy where there is an array
    already."""
    try:
        array = _array(value)
    except MemoryError:  # the value is right, and there is no room for it
        raise
    except (
        Exception
    ) as error:  # ragged lists, tensors elsewhere or with a gradient: each library has its own error
        raise bad_type(name, f"an array of real numbers ({error})", value) from None
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise bad_type(name, "an array of real numbers", array)
    return array


def shaped(name: str, value: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """value as a C-contiguous, aligned array of that shape and dtype: a view or a copy, whose shape nobody
    else can set."""
    array = real(name, value)[...]
    if array.shape != shape:
        raise bad_value(name, f"of shape {shape}", array)
    flags = array.flags
    if array.dtype == dtype and flags.c_contiguous and flags.aligned and type(array) is np.ndarray:
        return array  # what np.require would give, which takes longer
    return np.require(array, dtype, ["C", "A"])


def output(name: str, value: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """value, if it is an array that a result of that shape and dtype can be written to; of a torch tensor,
    its memory."""
    if not isinstance(value, np.ndarray):
        kind, why = (
            f"a numpy array or a torch tensor on the CPU, of shape {shape} and dtype {np.dtype(dtype)}",
            "",
        )
        tensor, given = _is_tensor(value), value
        if tensor:
            try:
                value = _array(given)
            except MemoryError:  # pragma: no cover - no memory for a copy of a tensor
                raise
            except (
                Exception
            ) as error:  # elsewhere, sparse, or with a gradient, which the write would not be part of
                tensor, why = False, f" ({error})"
        if not tensor:
            raise bad_type(name, kind + why, value)
    if value.dtype != dtype:
        raise bad_type(name, f"of dtype {np.dtype(dtype)}", value)
    if value.shape != shape:
        raise bad_value(name, f"of shape {shape}", value)
    if not value.flags.writeable:
        raise ValueError(f"{name} must be writeable, got a read-only array")
    found: np.ndarray = value
    return found
