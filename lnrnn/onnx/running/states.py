"""Finds the states of an ONNX file: pairs of a graph input and the output that is its next value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import bad_type, message
from ...recognise.misfits import unknown
from ...recognise.part import Part
from ..errors import OnnxFileError
from ..parts import parts_of

Dims = tuple["int | str | None", ...]  # a size, the name of a free size, or None for a free size without one

# Types of ONNX that NumPy has.
NUMPY_TYPES = {
    **{name.upper(): np.dtype(name) for name in ("int8", "int16", "int32", "int64")},
    **{name.upper(): np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64")},
    "FLOAT16": np.dtype("f2"), "FLOAT": np.dtype("f4"), "DOUBLE": np.dtype("f8"), "BOOL": np.dtype(bool),
}  # fmt: skip
MOST = 1000  # inputs or outputs of a file whose states are searched
# Words that tell a state's input from its output; names are compared without them.
DIRECTIONS = {
    "in", "input", "inputs", "prev", "previous", "old", "init", "initial", "past",
    "out", "output", "outputs", "next", "new", "n", "final", "last", "present", "cur", "current", "updated",
}  # fmt: skip
# Words in names of states. Equal names without such a word are no proof: x_in and x_out may be data.
WORDS = {
    "h", "c", "hx", "cx", "hxs", "state", "states", "hidden", "cell", "recurrent", "memory", "mem",
    "cache", "caches", "cached", "buf", "buffer", "history", "context", "ctx",
}  # fmt: skip
LANES = {"b", "n", "batch", "batch_size", "batchsize", "lanes"}  # names of the axis of independent sequences


class AmbiguousStatesError(ValueError):
    """Raised if several outputs of a file may be the next value of an input.

    Attributes
    ----------
    candidates : dict of str to list of str
        For each such input, the outputs.
    pairs : str
        The same as text.
    """

    def __init__(self, candidates: Mapping[str, list[str]]) -> None:
        self.candidates = {name: list(outputs) for name, outputs in candidates.items()}
        self.pairs = "; ".join(f"{name} -> {' or '.join(found)}" for name, found in self.candidates.items())
        do = "give the pairs that are states, as states={input: output}"
        super().__init__(message("states", "given for this file", f"several candidates, {self.pairs}", do))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.candidates,)


@dataclass(frozen=True)
class Tensor:
    """An input or output of a graph. shape and dtype are None if the file does not declare them, or if NumPy
    has no such type. given: whether the caller gave the shape."""

    name: str
    shape: Dims | None
    dtype: np.dtype[Any] | None
    given: bool = False


@dataclass(frozen=True)
class State:
    """A state of a file. shape: the sizes that its input and output declare. evidence: "name", "flow" or
    "caller"."""

    input: str
    output: str
    shape: Dims | None
    dtype: np.dtype[Any]
    evidence: str

    @property
    def lane_axis(self) -> int | None:
        """The axis of independent sequences: the only free one, or the only one with such a name."""
        free = [axis for axis, size in enumerate(self.shape or ()) if not isinstance(size, int)]
        named = [axis for axis in free if str(self.shape[axis]).lower() in LANES] if self.shape else []
        return free[0] if len(free) == 1 else named[0] if len(named) == 1 else None


def tensor(value: Any, shapes: Mapping[str, Dims] | None = None) -> Tensor:
    """Returns an onnx_ir Value as a Tensor. shapes: replace those of the file."""
    if not isinstance(value.name, str):  # protobuf returns bytes that are not UTF-8 as they are
        raise OnnxFileError(f"names must be text in UTF-8, got {value.name!r}")
    dtype = None
    if type(value.type).__name__ == "TensorType" and value.dtype is not None:
        dtype = NUMPY_TYPES.get(value.dtype.name)
    if shapes is not None and value.name in shapes:
        return Tensor(value.name, tuple(shapes[value.name]), dtype, given=True)
    dims = None
    if value.shape is not None:
        dims = tuple(_size(size if isinstance(size, int) else size.value) for size in value.shape)
    return Tensor(value.name, dims, dtype)


def _size(size: Any) -> int | str | None:
    """Returns a size of a shape. Negative numbers, and names that are not UTF-8, stand for free sizes."""
    return size if isinstance(size, str) or (isinstance(size, int) and size >= 0) else None


def inputs(graph: Any, shapes: Mapping[str, Dims] | None = None) -> list[Tensor]:
    """Returns the inputs that a call must give: those without an initializer."""
    return [tensor(value, shapes) for value in graph.inputs if value.name not in graph.initializers]


def outputs(graph: Any) -> list[Tensor]:
    return [tensor(value) for value in graph.outputs]


def stem(name: str) -> tuple[str, ...]:
    """Returns the words and numbers of a name, without those that tell an input from an output.

    "state" and "stateN" have the same stem, and so have "h_in", "hn" and "next_h".
    """
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)]
    words = [part for word in words for part in ((word[0], "n") if word in ("hn", "cn") else (word,))]
    return tuple(word for word in words if word not in DIRECTIONS)


def merged(given: Tensor, returned: Tensor) -> Dims | None:
    """Returns the shape of a state from the declarations of both ends. Raises ValueError if they differ."""
    if given.shape is None or returned.shape is None:
        return given.shape if returned.shape is None else returned.shape
    if len(given.shape) != len(returned.shape):
        raise ValueError(f"{len(given.shape)} and {len(returned.shape)} axes")
    pairs = list(zip(given.shape, returned.shape, strict=True))
    if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
        raise ValueError(f"shapes {shown(given.shape)} and {shown(returned.shape)}")
    if given.given:
        return given.shape
    return tuple(b if isinstance(b, int) or a is None else a for a, b in pairs)


def shown(shape: Dims | None) -> str:
    """Returns a shape as text: "(2, batch, 128)"; a free size without a name is "?"."""
    if shape is None:
        return "(...)"
    sizes = ["?" if size is None else str(size) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def find_states(
    model: Any, pairs: Mapping[str, str] | None = None, shapes: Mapping[str, Dims] | None = None
) -> list[State]:
    """Returns the states of a model that `read` has returned.

    pairs: of inputs and outputs; the names and the graph do not matter then. shapes: replace those of the
    file. Raises AmbiguousStatesError, and ValueError for wrong arguments.
    """
    given = {each.name: each for each in inputs(model.graph, shapes)}
    returned = {each.name: each for each in outputs(model.graph)}
    if pairs is not None:
        return _checked_pairs(pairs, given, returned)
    if max(len(given), len(returned)) > MOST:
        got = f"{len(given)} inputs and {len(returned)} outputs"
        raise ValueError(message("states", f"given for a file of more than {MOST} inputs or outputs", got))
    return _Search(model, given, returned).run()


def unknown_recurrences(model: Any, parts: list[Part]) -> list[str]:
    """Returns a text for each recurrence of a model that is no part, and has none inside."""
    from ..reading import checked_graphs

    found: list[State] = []
    with suppress(ValueError):  # unclear, or too many
        found = find_states(model)
    values = {each.name: each for each in (*model.graph.inputs, *model.graph.outputs)}
    pairs = [(values[each.input], values[each.output]) for each in found]
    return unknown(checked_graphs(model), parts, pairs)


def _state(given: Tensor, returned: Tensor, evidence: str) -> State:
    if given.dtype is None or returned.dtype is None:
        raise ValueError("another type than numbers")
    if given.dtype != returned.dtype:
        raise ValueError(f"dtype {given.dtype} and {returned.dtype}")
    return State(given.name, returned.name, merged(given, returned), given.dtype, evidence)


def _checked_pairs(pairs: Any, given: Mapping[str, Tensor], returned: Mapping[str, Tensor]) -> list[State]:
    if not isinstance(pairs, Mapping):
        raise bad_type("states", "a mapping of inputs to outputs", pairs)
    result: list[State] = []
    for name, output in pairs.items():
        for what, each, known in (("input", name, given), ("output", output, returned)):
            if each not in known:
                expected = f"one of the file's {what}s, {', '.join(known) or 'none'}"
                raise ValueError(message(f"the {what} in states", expected, repr(each)))
        if output in [state.output for state in result]:
            raise ValueError(message("states", "pairs with different outputs", f"{output!r} twice"))
        try:
            result.append(_state(given[name], returned[output], "caller"))
        except ValueError as error:
            expected = "an input and an output of the same shape and dtype"
            raise ValueError(message(f"states[{name!r}]", expected, f"{output!r} with {error}")) from None
    return result


class _Search:
    """Pairs inputs with outputs, from the strongest evidence to the weakest."""

    def __init__(self, model: Any, given: Mapping[str, Tensor], returned: Mapping[str, Tensor]) -> None:
        from .flow import Flow

        self._model, self._flow = model, Flow(model.graph)
        self._values = {value.name: value for value in model.graph.inputs}
        self._results = {value.name: value for value in model.graph.outputs}
        self._given, self._returned = dict(given), dict(returned)
        self._follow()
        self._found: dict[str, State] = {}
        self._open: dict[str, list[str]] = {}

    def _follow(self) -> None:
        self._entries = {name: self._flow.entries(self._values[name]) for name in self._given}
        self._exits = {name: self._flow.exits(self._results[name]) for name in self._returned}

    def run(self) -> list[State]:
        order = list(self._given)
        self._match(self._same_name, "name")
        self._match(self._same_slot, "flow")
        self._match(self._cached, "flow")
        self._match(self._same_slot_at_all_steps, "flow")
        shapes = [each.shape for each in self._returned.values() if each.shape]
        if any(each.given or each.shape in shapes for each in self._given.values()):
            self._flow.add_parts(parts_of(self._model))  # cells in plain operators; this takes longer
            self._follow()
            self._match(self._same_slot, "flow")
        unclear = {name: outputs for name, outputs in self._open.items() if name not in self._found}
        if unclear:
            raise AmbiguousStatesError(unclear)
        return [self._found[name] for name in order if name in self._found]

    def _match(self, related: Callable[[str], list[str]], evidence: str) -> None:
        """Pairs the inputs and outputs for which `related` leaves one choice.

        Where it leaves several, equal shapes decide, and then names.
        """
        choices = {name: found for name in self._given if (found := self._fitting(name, related(name)))}
        for narrow in (lambda name, found: found, self._of_equal_shape, self._of_equal_stem):
            narrowed = {name: narrow(name, found) for name, found in choices.items()}
            rivals = [output for found in narrowed.values() for output in found]
            for name, found in narrowed.items():
                if len(found) == 1 and rivals.count(found[0]) == 1:
                    self._found[name] = _state(self._given.pop(name), self._returned.pop(found[0]), evidence)
                    del choices[name]
            choices = {
                name: left
                for name, found in choices.items()
                if (left := [output for output in found if output in self._returned])
            }
        for name, found in choices.items():
            self._open.setdefault(name, found)

    def _fitting(self, name: str, found: list[str]) -> list[str]:
        result = []
        for output in found:
            try:
                _state(self._given[name], self._returned[output], "")
            except ValueError:
                continue
            result.append(output)
        return result

    def _of_equal_shape(self, name: str, found: list[str]) -> list[str]:
        return [output for output in found if self._returned[output].shape == self._given[name].shape]

    def _of_equal_stem(self, name: str, found: list[str]) -> list[str]:
        return [output for output in found if stem(output) == stem(name)]

    def _same_name(self, name: str) -> list[str]:
        """Returns outputs whose names differ from that of an input by words such as "in" and "next" only.

        Where the graph contradicts the names, the graph decides.
        """
        ours = stem(name)
        first = ours[:-1] if len(ours) == 2 and ours[0] in ("h", "c") and ours[1] == "0" else ours
        if not WORDS & set(ours):
            return []
        found = [output for output in self._returned if stem(output) == ours]
        found = found or [output for output in self._returned if stem(output) == first]
        entered = self._entries[name]
        return [o for o in found if not (entered and self._exits[o]) or entered & self._exits[o]]

    def _same_slot(self, name: str) -> list[str]:
        """Returns outputs that come from a recurrent node's last state, whose first state is the input."""
        return [output for output in self._returned if self._entries[name] & self._exits[output]]

    def _cached(self, name: str) -> list[str]:
        """Returns outputs that consist of numbers of the input and of newer ones."""
        joined = self._flow.joined(self._values[name])
        return [output for output in self._returned if self._results[output] in joined]

    def _same_slot_at_all_steps(self, name: str) -> list[str]:
        """Returns outputs of a node for all steps that are its last state too, because there is one step."""
        entered, shape = self._entries[name], self._given[name].shape
        return [
            output
            for output, each in self._returned.items()
            if each.shape == shape and shape is not None and None not in shape
            and entered & self._flow.sequence_of(self._results[output])
        ]  # fmt: skip
