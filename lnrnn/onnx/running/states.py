"""Finds the states of an ONNX file: pairs of a graph input and the output that is its next value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ...errors import bad_type, message
from ...recognise.misfits import unknown
from ...recognise.part import GraphPart
from ..errors import OnnxFileError

# For each axis: a fixed size, the name of a free size, or None for a free size without a name.
Dims = tuple["int | str | None", ...]
Shapes = Mapping[str, Dims]

# ONNX tensor types with a NumPy dtype.
NUMPY_TYPES = {
    **{name.upper(): np.dtype(name) for name in ("int8", "int16", "int32", "int64")},
    **{name.upper(): np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64")},
    "FLOAT16": np.dtype("f2"), "FLOAT": np.dtype("f4"), "DOUBLE": np.dtype("f8"), "BOOL": np.dtype(bool),
}  # fmt: skip
MOST = 1000  # largest number of inputs or outputs to search for states
# Words that distinguish a state's input from its output. They are ignored when names are compared.
DIRECTIONS = {
    "in", "input", "inputs", "prev", "previous", "old", "init", "initial", "past",
    "out", "output", "outputs", "next", "new", "n", "final", "last", "present", "cur", "current", "updated",
}  # fmt: skip
# Words that mark a state. Equal names alone do not: x_in and x_out may be data.
WORDS = {
    "h", "c", "hx", "cx", "hxs", "state", "states", "hidden", "cell", "recurrent", "memory", "mem",
    "cache", "caches", "cached", "buf", "buffer", "history", "context", "ctx",
}  # fmt: skip
LANES = {"b", "n", "batch", "batch_size", "batchsize", "lanes"}  # names of the batch axis
REMEDY = "if the file has a free axis of lanes, give shapes with None there, otherwise export it with one"


@dataclass(frozen=True)
class Tensor:
    """An input or output of a graph. shape: None if undeclared. dtype: None if undeclared or absent in NumPy.
    given: whether the caller gave the shape."""

    name: str
    shape: Dims | None
    dtype: np.dtype[Any] | None
    given: bool = False


@dataclass(frozen=True)
class State:
    """A state of a file. shape: the sizes that its input and output declare."""

    input: str
    output: str
    shape: Dims | None
    dtype: np.dtype[Any]

    @property
    def lane_axis(self) -> int | None:
        """The batch axis: the only free axis, or the only free axis with a name of LANES, or None."""
        free = [axis for axis, size in enumerate(self.shape or ()) if not isinstance(size, int)]
        named = [axis for axis in free if str(self.shape[axis]).lower() in LANES] if self.shape else []
        return free[0] if len(free) == 1 else named[0] if len(named) == 1 else None


def tensor(value: Any, shapes: Shapes | None = None) -> Tensor:
    """Returns an onnx_ir Value as a Tensor. shapes: overrides of declared shapes by name, or None."""
    if not isinstance(value.name, str):  # protobuf returns bytes if they are not UTF-8
        raise OnnxFileError(f"names must be text in UTF-8, got {value.name!r}")
    dtype = None
    if type(value.type).__name__ == "TensorType" and value.dtype is not None:
        dtype = NUMPY_TYPES.get(value.dtype.name)
    if shapes is not None and value.name in shapes:
        return Tensor(value.name, tuple(shapes[value.name]), dtype, given=True)
    sizes = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    return Tensor(value.name, None if sizes is None else dims_of(sizes), dtype)


def dims_of(sizes: Iterable[Any]) -> Dims:
    """Returns declared sizes as Dims. Negative sizes, and names that are not UTF-8, count as free."""
    return tuple(d if isinstance(d, str) or (isinstance(d, int) and d >= 0) else None for d in sizes)


def inputs(graph: Any, shapes: Shapes | None = None) -> list[Tensor]:
    """Returns the graph inputs that a call must give: those without an initializer."""
    return [tensor(value, shapes) for value in graph.inputs if value.name not in graph.initializers]


def outputs(graph: Any) -> list[Tensor]:
    return [tensor(value) for value in graph.outputs]


@lru_cache(2 * MOST)
def stem(name: str) -> tuple[str, ...]:
    """Returns the words of a name that the input and output of one state share.

    "state" and "stateN" have the same stem, and so have "h_in", "h0", "hn" and "next_h".
    """
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)]
    words = [part for word in words for part in ((word[0], "n") if word in ("hn", "cn") else (word,))]
    found = tuple(word for word in words if word not in DIRECTIONS)
    return found[:1] if found in (("h", "0"), ("c", "0")) else found


def shown(shape: Dims | None) -> str:
    """Returns a shape as text such as "(2, batch, 128)". A free size without a name is "?"."""
    if shape is None:
        return "(...)"
    sizes = ["?" if size is None else str(size) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def find_states(
    model: Any, pairs: Mapping[str, str] | None = None, shapes: Shapes | None = None
) -> list[State]:
    """Returns the states of a model. model: from `reading.read`.

    pairs: maps input names to output names. By default, names with the same stem and one of WORDS are paired
    if their shapes and dtypes agree. shapes: replace the file's shapes. Raises ValueError for wrong
    arguments, and for ambiguous names; then the message suggests `pairs`.
    """
    given, returned = inputs(model.graph, shapes), outputs(model.graph)
    if pairs is not None:
        return _checked_pairs(pairs, given, returned)
    if max(len(given), len(returned)) > MOST:
        got = f"{len(given)} inputs and {len(returned)} outputs"
        raise ValueError(message("states", f"given for a file of more than {MOST} inputs or outputs", got))
    named = [each for each in given if WORDS & set(stem(each.name))]
    alike = {
        each: [o for o in returned if stem(o.name) == stem(each.name) and _fits(each, o)] for each in named
    }
    rivals = [output for choices in alike.values() for output in choices]
    found = {each: o[0] for each, o in alike.items() if len(o) == 1 and rivals.count(o[0]) == 1}
    doubtful = [each for each in named if each not in found]
    if not named and len(given) > 1:  # integers without a state's name are data, such as lengths
        doubtful = [each for each in given if each.dtype is not None and each.dtype.kind == "f"]
    likely = _by_shape(doubtful, [each for each in returned if each not in found.values()])
    if not likely:
        return [_state(each, output) for each, output in found.items()]
    if len(likely) == len(given) > 1:  # the first input of a step is data, no state
        del likely[next(iter(likely))]
    every = {each.name: output.name for each, output in (found | likely).items()}
    do = f"pass states={every} if these are the states, or states={{}} if there is none"
    raise ValueError(message("states", "given if names do not show the states", "None", do))


def _by_shape(given: Iterable[Tensor], left: list[Tensor]) -> dict[Tensor, Tensor]:
    """Returns {input: output of agreeing shape}. Prefers equal stems, then equal shapes."""
    result: dict[Tensor, Tensor] = {}
    for each in given:
        if found := [output for output in left if _fits(each, output)]:
            result[each] = min(found, key=lambda o: (stem(o.name) != stem(each.name), o.shape != each.shape))
            left = [output for output in left if output is not result[each]]
    return result


def unknown_recurrences(model: Any, parts: list[GraphPart]) -> list[str]:
    """Returns a text for each recurrence of a model that was not converted and contains no part."""
    from ..reading import checked_graphs

    found: list[State] = []
    with suppress(ValueError):  # the names do not say which states belong together
        found = find_states(model)
    values = {each.name: each for each in (*model.graph.inputs, *model.graph.outputs)}
    pairs = [(values[each.input], values[each.output]) for each in found]
    return unknown(checked_graphs(model)[0], parts, pairs)


def _fits(given: Tensor, returned: Tensor) -> bool:
    with suppress(ValueError):
        return _state(given, returned) is not None
    return False


def _state(given: Tensor, returned: Tensor) -> State:
    """Returns the State of an input and an output. Raises ValueError if their shapes or dtypes differ."""
    if given.dtype is None or returned.dtype is None:
        raise ValueError("a type other than numbers")
    if given.dtype != returned.dtype:
        raise ValueError(f"dtype {given.dtype} and {returned.dtype}")
    shape = given.shape if returned.shape is None else returned.shape
    if given.shape is not None and returned.shape is not None:
        pairs = list(zip(given.shape, returned.shape, strict=False))
        wrong = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
        if wrong or len(given.shape) != len(returned.shape):
            raise ValueError(f"shapes {shown(given.shape)} and {shown(returned.shape)}")
        shape = tuple(b if isinstance(b, int) or a is None else a for a, b in pairs)
    return State(given.name, returned.name, given.shape if given.given else shape, given.dtype)


def _checked_pairs(pairs: Any, given: Iterable[Tensor], returned: Iterable[Tensor]) -> list[State]:
    if not isinstance(pairs, Mapping):
        raise bad_type("states", "a mapping of inputs to outputs", pairs)
    ends = {"input": {each.name: each for each in given}, "output": {each.name: each for each in returned}}
    result: list[State] = []
    for pair in pairs.items():
        for (what, known), name in zip(ends.items(), pair, strict=True):
            if name not in known:
                expected = f"one of the file's {what}s, {', '.join(known) or 'none'}"
                raise ValueError(message(f"the {what} in states", expected, repr(name)))
        name, output = pair
        if output in [state.output for state in result]:
            raise ValueError(message("states", "pairs with different outputs", f"{output!r} twice"))
        try:
            result.append(_state(ends["input"][name], ends["output"][output]))
        except ValueError as error:
            expected = "an input and an output of the same shape and dtype"
            raise ValueError(message(f"states[{name!r}]", expected, f"{output!r} with {error}")) from None
    return result
