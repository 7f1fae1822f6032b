"""Exceptions about arguments, and their messages. arguments.py has the checks.

A message names the argument, the expected value and the given value, and may add a remedy.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np


class SequenceTooLongError(ValueError):
    """Raised for a time step for which a batch-normalised network has no statistics.

    Attributes
    ----------
    sequence : int
        The index of the sequence in the batch, or of the lane in a stream.
    length : int
        The number of time steps of the sequence.
    known_steps : int
        The number of time steps that have statistics.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> rnn = lnrnn.RNN(3, 4, norm="batch", seed=0)
    >>> _ = rnn.forward_train(np.zeros((5, 2, 3)))
    >>> rnn(np.zeros((6, 2, 3)))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    lnrnn.errors.SequenceTooLongError: sequence 0 has 6 steps, but statistics are known for 5 only; ...
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
        # pickle's default would pass the message as the only argument.
        return type(self), (self.sequence, self.length, self.known_steps, self._hint, self._what)


def described(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape == () and hasattr(value, "item") and not hasattr(value, "__len__"):  # a NumPy scalar
        value = value.item()
    elif isinstance(shape, tuple) and dtype is not None:
        return f"{'a masked' if is_masked(value) else 'an'} array of shape {tuple(shape)} and dtype {dtype}"
    try:
        text = repr(value)
    except Exception:  # repr may fail, e.g. for an int of ten thousand digits
        text = "a value"
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def message(name: str, expected: str, got: str, do: str = "") -> str:
    """Returns "`name` must be `expected`, got `got`; `do`". do: a remedy, or ""."""
    return f"{name} must be {expected}, got {got}" + (f"; {do}" if do else "")


def bad_value(name: str, expected: str, value: Any, do: str = "") -> ValueError:
    return ValueError(message(name, expected, described(value), do))


def bad_type(name: str, expected: str, value: Any, do: str = "") -> TypeError:
    return TypeError(message(name, expected, described(value), do))


def reason(error: Exception) -> str:
    """Returns an exception's message on one line, without the errno of an OSError."""
    text = str(error)
    if isinstance(error, OSError) and isinstance(error.strerror, str) and error.strerror:
        names = " -> ".join(repr(name) for name in (error.filename, error.filename2) if name is not None)
        text = error.strerror
        text = (text[0].lower() if text[1:2].islower() else text[0]) + text[1:] + (names and f": {names}")
    return " ".join(text.split()) or type(error).__name__


def unexpected(function: str, given: Mapping[str, Any], ours: Mapping[str, str]) -> TypeError:
    """Returns a TypeError for keyword arguments `given` that a function does not have, as Python words it.

    ours: {name in other libraries: lnrnn's name}, for a hint.
    """
    name = next(iter(given))
    hint = f"; it is called {ours[name]}" if name in ours else ""
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


def is_tensor(value: Any) -> bool:
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def is_masked(value: Any) -> bool:
    """Returns whether value is a masked array or a list with masked arrays: converting them ignores masks."""
    if isinstance(value, (list, tuple)):  # lists that begin with a number contain no arrays
        return not isinstance(next(iter(value), 0), (int, float, np.generic)) and any(map(is_masked, value))
    return isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


def as_array(value: Any) -> np.ndarray:
    """Returns value as an array. CPU arrays of other libraries are not copied.

    Other libraries' arrays may only support DLPack. bfloat16 tensors need the dtype of ml_dtypes.
    """
    if type(value) is np.ndarray:
        return value
    if is_tensor(value) and str(value.dtype) == "torch.bfloat16":
        import torch

        try:
            import ml_dtypes
        except ImportError:
            raise ImportError("tensors of bfloat16 need ml_dtypes: pip install ml_dtypes") from None
        # Raises the error of Tensor.numpy() here: the view below would ignore requires_grad.
        if value.requires_grad:
            raise RuntimeError("it requires grad: use its detach()")
        array: np.ndarray = value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return array
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    found = np.asanyarray(value)
    if is_masked(value) or is_masked(found):
        raise ValueError("lnrnn would ignore the mask: give filled(0), and lengths= for missing steps")
    return np.asarray(found)


def real(name: str, value: Any) -> np.ndarray:
    """Returns value as an array of real numbers of any dtype. Arrays are not copied."""
    try:
        array = as_array(value)
    except MemoryError:  # memory is lacking; the argument may be right
        raise
    except Exception as error:  # ragged lists, GPU tensors and gradients raise many types
        raise bad_type(name, "an array of real numbers", value, str(error)) from None
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise bad_type(name, "an array of real numbers", array)
    return array
