"""Tables of public functions' arguments, with the constraints that check them.

TAKES maps the name of a function or class to its table: {argument: constraint}. A constraint's method
check(name, value, known) returns the value converted. `known` has values of this call, such as axis sizes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .errors import as_array, bad_type, bad_value, is_masked, is_tensor, message, real

Known = Mapping[str, Any]
NOTHING: Known = {}
TAKES: dict[str, dict[str, Any]] = {}
# Largest number of elements of a parameter: NumPy's MemoryError would not name the argument.
LARGEST = 2**40
REAL, INTEGERS, BOOLEANS = "real numbers", "integers", "booleans"
KINDS = {INTEGERS: "iu", BOOLEANS: "b"}  # dtype.kind of each kind of elements


def check(function: str, given: Mapping[str, Any], known: Known = NOTHING) -> list[Any]:
    """Returns the checked and converted arguments that the table and `given` share, in the table's order."""
    return list(by_name(function, given, known).values())


def by_name(function: str, given: Mapping[str, Any], known: Known = NOTHING) -> dict[str, Any]:
    """Like `check`, but returns a dict. Raises ValueError or TypeError for the first invalid argument.

    given: values by name, for example locals().
    """
    takes = TAKES[function].items()
    return {name: each.check(name, given[name], known) for name, each in takes if name in given}


class Integer(NamedTuple):
    """A constraint: an integer in [least, most], not a bool."""

    least: int
    most: int | None = None

    def check(self, name: str, value: Any, known: Known = NOTHING) -> int:
        most = math.inf if self.most is None else self.most
        whole: Any = None if isinstance(value, (bool, np.bool_)) else value  # operator.index accepts bools
        try:
            result = operator.index(whole)
        except TypeError:
            result = None
        if result is not None and self.least <= result <= most:
            return result
        expected = f"an integer of at least {self.least}" + f" and at most {most}" * (most < math.inf)
        raise (bad_type if result is None else bad_value)(name, expected, value)


class Number(NamedTuple):
    """A constraint: a finite number in [least, most], and less than `below`."""

    least: float
    most: float = math.inf
    below: float = math.inf

    def check(self, name: str, value: Any, known: Known = NOTHING) -> float:
        kind = getattr(getattr(value, "dtype", None), "kind", "f")  # float() accepts an array of one string
        text = isinstance(value, (str, bytes, bool, np.bool_)) or kind not in "fiu"
        wrong: Any = bad_value
        result = math.nan
        try:
            result = float(value if not text else "text")
        except OverflowError:
            pass
        except (TypeError, ValueError, RuntimeError):
            wrong = bad_type
        if self.least <= result <= self.most and result < self.below:  # False for NaN and infinity
            return result
        limits = f" and at most {self.most:g}" * (self.most < math.inf)
        limits += f" and below {self.below:g}" * (self.below < math.inf)
        raise wrong(name, f"a finite number of at least {self.least:g}{limits}", value)


class Flag(NamedTuple):
    def check(self, name: str, value: Any, known: Known = NOTHING) -> bool:
        if not isinstance(value, (bool, np.bool_)):
            raise bad_type(name, "True or False", value)
        return bool(value)


class Choice(NamedTuple):
    choices: tuple[Any, ...]

    def check(self, name: str, value: Any, known: Known = NOTHING) -> Any:
        for each in self.choices:
            if value is each or (isinstance(value, str) and value == each):
                return each
        expected = "one of " + ", ".join(map(repr, self.choices))
        raise (bad_value if isinstance(value, str) or value is None else bad_type)(name, expected, value)


class Instance(NamedTuple):
    kind: Any
    expected: str

    def check(self, name: str, value: Any, known: Known = NOTHING) -> Any:
        if not isinstance(value, self.kind):
            raise bad_type(name, self.expected, value)
        return value


class Optional(NamedTuple):
    """A constraint: None, or a value that fits another constraint."""

    of: Any

    def check(self, name: str, value: Any, known: Known = NOTHING) -> Any:
        return None if value is None else self.of.check(name, value, known)


class Sizes(NamedTuple):
    """A constraint: the size of one axis, or a tuple of sizes. Converted to a tuple."""

    def check(self, name: str, value: Any, known: Known = NOTHING) -> tuple[int, ...]:
        if type(value) is int and 0 <= value <= LARGEST:
            return (value,)
        one = isinstance(value, str) or getattr(value, "ndim", 1) == 0 or not hasattr(value, "__len__")
        sizes = tuple(Integer(0, LARGEST).check(name, n) for n in ((value,) if one else value))
        if sizes and math.prod(sizes) <= LARGEST:
            return sizes
        raise bad_value(name, "an integer or a tuple of integers, of at most 2**40 elements in all", value)


class Array(NamedTuple):
    """A constraint: an array with named axes. `known` maps names to sizes; other axes may have any size.

    axes: names, or alternatives separated by |. A name may stand for several axes, and * for any number.
    An alternative with an axis of size None is ignored. of: the kind of elements. most: the key in
    `known` of the largest permitted integer. words: text of this limit in messages. note: text after the
    shape in messages. dtype: the key in `known` of the result's dtype. If it is missing, real numbers are
    not converted.
    """

    axes: str
    of: str = REAL
    most: str = ""
    words: str = "{}"
    note: str = ""
    dtype: str = "dtype"

    def check(self, name: str, value: Any, known: Known = NOTHING) -> np.ndarray:
        given = real(name, value)
        array = given[...] if self.of == REAL else np.array(given)  # a view: no thread can change its shape
        kinds = KINDS.get(self.of)
        if kinds and array.dtype.kind not in kinds and array.size:
            raise bad_type(name, f"an array of {self.of}", array)
        if array.shape != known.get(self.axes):
            lists = [sizes for axes in _lists(self.axes) if (sizes := _sizes(axes, known)) is not None]
            if not any(_fits(array.shape, sizes) for sizes in lists):
                raise bad_value(name, f"of shape {' or '.join(map(_shown, lists))}{self.note}", array)
        if self.most and array.size and not 0 <= array.min() <= array.max() <= known[self.most]:
            wrong = int(array.max() if array.min() >= 0 else array.min())
            raise bad_value(name, f"between 0 and {self.words.format(known[self.most])}", wrong)
        if kinds:
            return array.astype(np.int64 if self.of == INTEGERS else bool, copy=False)
        dtype, flags = known.get(self.dtype), array.flags
        if dtype is None:
            return given
        plain = array.dtype == dtype and flags.c_contiguous and flags.aligned and type(array) is np.ndarray
        return array if plain else np.require(array, dtype, ["C", "A"])  # np.require takes longer


@lru_cache
def _lists(axes: str) -> list[list[str]]:
    return [names.split() for names in axes.split("|")]


def _sizes(axes: list[str], known: Known) -> tuple[int | str, ...] | None:
    found: list[int | str] = []
    for axis in axes:
        size = known.get(axis, axis)
        if size is None:
            return None
        found += size if isinstance(size, tuple) else (size,)
    return tuple(found)


def _fits(shape: tuple[int, ...], sizes: tuple[int | str, ...]) -> bool:
    if "*" in sizes:
        first, more = sizes.index("*"), len(shape) - len(sizes) + 1
        sizes = sizes[:first] + shape[first : first + more] + sizes[first + 1 :]
    same = [isinstance(size, str) or n == size for n, size in zip(shape, sizes, strict=False)]
    return len(shape) == len(sizes) and all(same)


def _shown(shape: tuple[int | str, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


class Output(NamedTuple):
    """A constraint: an array for results, with the shape and dtype of another array, such as x."""

    like: str = "x"

    def check(self, name: str, value: Any, known: Known = NOTHING) -> np.ndarray:
        """Returns an array to which results can be written. It shares memory with a torch tensor."""
        shape, dtype = known[self.like], np.dtype(known[f"dtype of {self.like}"])
        if not isinstance(value, np.ndarray) or is_masked(value):
            kind = f"a numpy array or a torch tensor on the CPU, of shape {shape} and dtype {dtype}"
            if not is_tensor(value):
                raise bad_type(name, kind, value)
            try:
                value = as_array(value)
            except MemoryError:  # pragma: no cover - no memory for a copy of a tensor
                raise
            except Exception as error:  # a tensor that is on a GPU, sparse or requires gradients
                raise bad_type(name, kind, value, str(error)) from None
        if value.dtype != dtype:
            raise bad_type(name, f"of dtype {dtype}", value)
        if value.shape != shape:
            raise bad_value(name, f"of shape {shape}", value)
        if not value.flags.writeable:
            raise ValueError(message(name, "writeable", "a read-only array"))
        array: np.ndarray = value
        return array


THREADS = Optional(Integer(1, 1024))
