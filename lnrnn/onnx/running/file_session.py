"""FileSession: an onnxruntime session with checked inputs and known states, for lnrnn.onnx.Model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...arguments import Integer
from ...errors import bad_type, bad_value, message, real
from ...onnxruntime import register
from ...onnxruntime import session as plugin_session
from ...recognise.graph import attribute, constant, is_zero, parent
from ..errors import text_of
from ..nodes.node import is_recurrent
from ..reading import external_file, external_tensors, graphs, read
from ..runtime import open_session, session_options
from .states import REMEDY, Dims, State, dims_of, find_states, inputs, outputs, shown

Array = np.ndarray
MOST = 2**28  # largest number of elements of one lane's states


def _session(path: str, threads: int, plugin: bool) -> Any:
    """Returns an onnxruntime session, with lnrnn's plug-in if `plugin` and onnxruntime is new enough."""
    if plugin:
        try:
            register()
        except ImportError:
            plugin = False
    try:
        if plugin:
            return plugin_session(path, threads=threads, sess_options=session_options(threads))
        return open_session(path, threads)
    except ImportError as error:
        raise ImportError(f"lnrnn.onnx.Model needs onnxruntime: pip install onnxruntime ({error})") from error
    except MemoryError:  # pragma: no cover - no memory for the file
        raise
    except Exception as error:
        got = f"one that it refuses: {text_of(error)}"
        raise ValueError(message(f"path {path!r}", "an ONNX file that onnxruntime runs", got)) from None


class FileSession:
    """An ONNX file's session, states, inputs and outputs.

    states: {input name: State}. inputs: {name: Tensor}, without states and constants. outputs: names, without
    states. returned: names of outputs, then of next states. restarting: names of recurrent nodes whose state
    starts at 0 in each run.
    """

    def __init__(
        self, path: str, states: Any, constants: Any, shapes: Any, threads: int, plugin: bool
    ) -> None:
        model = read(path)
        graph = model.graph
        self.path, self._hash = path, ""
        self._arguments = (path, states, constants, shapes, threads, plugin)
        declared = {each.name: each.shape for each in inputs(graph)}
        shapes = _checked_shapes({} if shapes is None else shapes, declared)
        self.states = {state.input: state for state in find_states(model, states, shapes)}
        known = {each.name: each for each in inputs(graph, shapes)}
        for each in known.values():
            if each.dtype is None:
                expected = "a tensor of a number type that NumPy has"
                got = next(str(value.type) for value in graph.inputs if value.name == each.name)
                raise ValueError(message(f"input {each.name!r} of the file", expected, got))
        self.inputs = {name: each for name, each in known.items() if name not in self.states}
        self.constants = self._checked_constants({} if constants is None else constants)
        returned = [state.output for state in self.states.values()]
        self.outputs = tuple(each.name for each in outputs(graph) if each.name not in returned)
        self.returned = [*self.outputs, *returned]
        self._files = [path, *sorted({external_file(t) for t in external_tensors(model)})]
        self.session = _session(path, threads, plugin)  # raises for invalid nodes
        nodes = [node for _, inner in graphs(model) for node in inner if is_recurrent(node)]
        anew = [node for node in nodes if _restarts(node, bool(self.states))]
        self._has_nodes, self.restarting = bool(nodes), [str(node.name or node.op_type) for node in anew]
        given, inferred = ({each.name: dims_of(each.shape) for each in ends}
                           for ends in (self.session.get_inputs(), self.session.get_outputs()))  # fmt: skip
        # Both ends of a state must agree in shape. The caller's shape replaces the inferred output shape.
        self._ends = {
            name: [given[name]] + [inferred[state.output]] * (not known[name].given)
            for name, state in self.states.items()
        }

    def __deepcopy__(self, memo: Any) -> FileSession:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return FileSession, self._arguments

    # --- inputs ---------------------------------------------------------------------------------------------

    def _checked_constants(self, constants: Any) -> dict[str, Array]:
        """Checks the argument `constants`: arrays for inputs that stay the same. Returns copies by name."""
        if not isinstance(constants, Mapping):
            raise bad_type("constants", "a mapping of inputs to arrays", constants)
        result = {}
        for name, value in constants.items():
            label, given = f"constants[{name!r}]", self.inputs.get(name)
            if given is None:
                got = "a state" if name in self.states else "another name"
                raise ValueError(message(label, f"one of the file's inputs, {', '.join(self.inputs)}", got))
            result[name] = _checked(label, value, given.dtype, given.shape).copy()
        self.inputs = {name: each for name, each in self.inputs.items() if name not in result}
        return result

    def feed(self, x: Any) -> tuple[dict[str, Array], int | None]:
        """Returns (inputs as {name: array}, number of steps or None). None: x has no time axis."""
        if by_name := isinstance(x, Mapping):
            for name in self.states:
                if name in x:
                    do = "set it by the attribute state of a stream, or the argument state of a call"
                    raise ValueError(message("x", "a mapping without states", f"the state {name!r}", do))
            _check_names("x", x, self.inputs, "if an input is a state, give states={input: output} to Model")
        elif len(self.inputs) != 1:
            do = f"give {{{', '.join(f'{name!r}: ...' for name in self.inputs)}}}"
            raise bad_type("x", f"a mapping with the file's {len(self.inputs)} inputs", x, do)
        arrays: dict[str, Array] = {}
        steps: int | None = None
        for name, each in self.inputs.items():
            label, value = (f"x[{name!r}]", x[name]) if by_name else ("x", x)
            more = f", or {shown(('T', *each.shape))} for T steps" if each.shape is not None else ""
            arrays[name] = array = _checked(label, value, each.dtype, each.shape, more)
            if self._has_time(name, array):
                if steps is not None and steps != len(array):
                    raise bad_value(label, f"of {steps} steps, as an input before it", array)
                steps = len(array)
        return arrays, steps

    def at(self, feed: Mapping[str, Array], step: int) -> dict[str, Array]:
        """Returns the inputs at one step; zeros if x has 0 steps. Inputs without time axis stay the same."""
        timed = {name: array for name, array in feed.items() if self._has_time(name, array)}
        now = {n: a[step, ...] if len(a) else np.zeros(a.shape[1:], a.dtype) for n, a in timed.items()}
        return {**feed, **now}

    def _has_time(self, name: str, array: Array) -> bool:
        shape = self.inputs[name].shape
        return shape is not None and array.ndim > len(shape)

    def lanes_of(self, feed: Mapping[str, Array], state: Any) -> int:
        """Returns the number of lanes of a call: from its states, else from its inputs, else 1."""
        sizes: dict[Any, int] = {}
        for name, array in feed.items():
            shape = array.shape[self._has_time(name, array) :]
            sizes |= zip(self.inputs[name].shape or (), shape, strict=False)
        for name, each in self.states.items():
            if each.shape is None or (axis := each.lane_axis) is None:
                continue
            if isinstance(state, Mapping) and name in state:
                given = real(f"state[{name!r}]", state[name]).shape
                return int(given[axis]) if len(given) > axis else 1
            if each.shape[axis] is not None and each.shape[axis] in sizes:
                return sizes[each.shape[axis]]
        return 1

    # --- states ---------------------------------------------------------------------------------------------

    def zeros(self, lanes: int) -> dict[str, Array]:
        """Returns zeros as initial states. Raises ValueError if the file cannot have so many lanes."""
        if lanes != 1 and self.states and all(each.lane_axis is None for each in self.states.values()):
            raise bad_value("lanes", "1 for a file whose states have fixed sizes", lanes, REMEDY)
        shapes = {name: self._shape(state, lanes) for name, state in self.states.items()}
        for name, shape in shapes.items():
            for declared in self._ends[name]:
                if declared and not _fits(shape, declared):  # empty if the rank is unknown
                    expected = f"a number with which state {name!r} has the shape {shown(declared)}"
                    raise bad_value("lanes", expected, lanes, REMEDY)
        if sum(map(math.prod, shapes.values())) > MOST * lanes:
            got = ", ".join(shown(state.shape) for state in self.states.values())
            raise ValueError(message("the file's states", f"of at most {MOST} numbers in a lane", got))
        return {name: np.zeros(shapes[name], state.dtype) for name, state in self.states.items()}

    def _shape(self, state: State, lanes: int) -> tuple[int, ...]:
        dims: list[int | str | None] = [None] if state.shape is None else list(state.shape)
        if state.lane_axis is not None:
            dims[state.lane_axis] = lanes
        sizes = tuple(size for size in dims if isinstance(size, int))
        if len(sizes) < len(dims):
            expected = f"given for state {state.input!r}"
            do = "give its sizes, with None at the axis of lanes, for example (2, None, 128)"
            raise ValueError(message("shapes", expected, f"the file's shape {shown(state.shape)}", do))
        return sizes

    def checked_states(self, label: str, value: Any, lanes: int) -> dict[str, Array]:
        """Returns checked copies of states that a user has set. label: the argument's name in messages."""
        if not isinstance(value, Mapping):
            raise bad_type(label, "a mapping of states' names to arrays", value)
        _check_names(label, value, self.states)
        return {
            name: _checked(f"{label}[{name!r}]", value[name], state.dtype, self._shape(state, lanes)).copy()
            for name, state in self.states.items()
        }

    # --- runs -----------------------------------------------------------------------------------------------

    def run(
        self, feed: Mapping[str, Array], states: Mapping[str, Array]
    ) -> tuple[list[Any], dict[str, Array]]:
        """Runs the file once. Returns (outputs, next states), with states of the same shapes as `states`."""
        given = {**self.constants, **feed, **states}
        for name, array in given.items():
            if self._has_nodes and not array.size:
                expected = "without a size of 0 for a file with recurrent nodes"
                # onnxruntime 1.32 calls abort().
                do = (
                    "onnxruntime ends the process if an LSTM has no sequence, or a GRU no sequence or no step"
                )
                raise bad_value(f"input {name!r}", expected, array, do)
        try:
            found = self.session.run(self.returned, given)
        except MemoryError:  # pragma: no cover - no memory for the results
            raise
        except Exception as error:  # onnxruntime raises errors of many classes
            shapes = ", ".join(f"{name} {array.shape}" for name, array in given.items())
            do = "give lanes if the inputs have another number of lanes than the states" if states else ""
            text = message("the inputs", "ones with which onnxruntime runs the file",
                           f"{shapes}: {text_of(error, 2000)}", do)  # fmt: skip
            raise ValueError(text) from None
        count = len(self.outputs)
        following = dict(zip(self.states, found[count:], strict=True))
        for name, array in following.items():
            before = states[name]
            if array.shape != before.shape or array.dtype != before.dtype:
                expected = f"of shape {before.shape} and dtype {before.dtype}, as {name!r}"
                do = "give lanes if the number of lanes is wrong, and states if this output is no state"
                raise bad_value(f"output {self.states[name].output!r}", expected, array, do)
        return found[:count], following

    def fingerprint(self) -> str:
        """Returns a SHA-256 of the file, its external data and its states. It is equal on all machines."""
        if not self._hash:
            result = hashlib.sha256(repr(sorted((n, s.output) for n, s in self.states.items())).encode())
            for path in self._files:
                with open(path, "rb") as file:
                    while block := file.read(2**20):
                        result.update(block)
            self._hash = result.hexdigest()
        return self._hash


def _restarts(node: Any, stateful: bool) -> bool:
    """Returns whether a recurrent node starts from a constant in each run, so that its state is lost.

    stateful: the file has states. Then reversed nodes, and nodes in branches, return False. The axis of a
    reversed node may be frequency, and a branch may serve only calls without a state.
    """
    if stateful and (attribute(node, "direction", "forward") != "forward" or parent(node.graph) is not None):
        return False
    first = node.inputs[5] if len(node.inputs) > 5 else None
    return is_zero(first) or constant(first, any_batch=True) is not None


# --- checks -------------------------------------------------------------------------------------------------


def _checked_shapes(shapes: Any, known: Mapping[str, Dims | None]) -> dict[str, Dims]:
    if not isinstance(shapes, Mapping):
        raise bad_type("shapes", "a mapping of inputs to tuples", shapes)
    result: dict[str, Dims] = {}
    for name, shape in shapes.items():
        label = f"shapes[{name!r}]"
        if name not in known:
            raise ValueError(
                message(label, f"of one of the file's inputs, {', '.join(known)}", "another name")
            )
        if not isinstance(shape, (tuple, list)):
            raise bad_type(label, "a tuple of sizes, with None for a free one", shape)
        result[name] = tuple(s if s is None else Integer(0).check(label, s) for s in shape)
        declared = known[name]
        if declared is not None and len(declared) != len(shape):
            raise bad_value(label, f"of {len(declared)} sizes, as the file's {shown(declared)}", shape)
    return result


def _check_names(label: str, given: Mapping[Any, Any], known: Iterable[str], do: str = "") -> None:
    missing = [name for name in known if name not in given]
    more = [str(name) for name in given if name not in known]
    if missing or more:
        parts = [f"missing {', '.join(missing)}"] * bool(missing) + [f"unexpected {', '.join(more)}"] * bool(
            more
        )
        expected = f"a mapping with the names {', '.join(known) or 'of nothing'}"
        raise ValueError(message(label, expected, " and ".join(parts), do if missing else ""))


def _checked(label: str, value: Any, dtype: Any, dims: Dims | None, more: str = "") -> Array:
    """Returns value as a C-contiguous array with the dtype and fixed sizes of an input.

    Floats are converted to any float dtype. Integers must be in the range of the input's dtype. more: text
    about a permitted shape with a time axis, or "".
    """
    array: Array = real(label, value)[...]  # a view: another thread cannot change its shape
    if array.dtype != dtype or not (array.flags.c_contiguous and array.flags.aligned):
        if dtype.kind != "f" and array.dtype.kind not in ("b" if dtype.kind == "b" else "biu"):
            raise bad_type(label, f"of dtype {dtype}, as the file's input", array)
        given, array = array, np.require(array, dtype, ["C", "A"])
        if dtype.kind in "iu" and (changed := array != given).any():
            wrong = int(given[changed].flat[0])
            raise bad_value(label, f"within {dtype}, the type of the file's input", wrong)
    if not _fits(array.shape, dims) and not (more and _fits(array.shape, (None, *(dims or ())))):
        raise bad_value(label, f"of shape {shown(dims)}{more}", array)
    return array


def _fits(shape: tuple[int, ...], dims: Dims | None) -> bool:
    """Returns whether a shape agrees with declared sizes. dims: None, or a size or None for each axis."""
    if dims is None or shape == dims:
        return True
    return len(shape) == len(dims) and all(
        d == n or not isinstance(d, int) for d, n in zip(dims, shape, strict=True)
    )
