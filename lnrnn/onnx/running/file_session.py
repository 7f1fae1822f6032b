"""FileSession: an ONNX file in onnxruntime, with checked inputs and known states, for lnrnn.onnx.Model."""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...arguments import Integer
from ...errors import bad_type, bad_value, message, real
from ...onnxruntime import register
from ...onnxruntime import session as plugin_session
from ..errors import text_of
from ..reading import external_file, external_tensors, read
from .flow import Flow
from .states import Dims, State, Tensor, find_states, inputs, outputs, shown

Array = np.ndarray
MOST = 2**28  # numbers of all states in a lane


def open_session(
    model: str | bytes, threads: int = 1, *, optimised: bool = True, plugin: bool = False
) -> Any:
    """Returns an onnxruntime.InferenceSession of a path, or of the bytes of a file, on the CPU.

    optimised: whether onnxruntime may change the graph and its weights. plugin: whether lnrnn's plug-in takes
    recurrent nodes. Raises ImportError without onnxruntime, and for a model that it refuses errors without a
    common class.
    """
    onnxruntime: Any = importlib.import_module("onnxruntime")  # it has no types
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # errors are raised, so do not print them too
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
    if plugin:
        return plugin_session(model, threads=threads, sess_options=options)
    # Without the fallback: it prints text, and tries the same provider again.
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def _session(path: str, threads: int, plugin: bool) -> Any:
    """Returns a session. Without the plug-in if onnxruntime is too old for it."""
    if plugin:
        try:
            register()
        except ImportError:
            plugin = False
    try:
        return open_session(path, threads, plugin=plugin)
    except ImportError as error:
        raise ImportError(f"lnrnn.onnx.Model needs onnxruntime: pip install onnxruntime ({error})") from error
    except MemoryError:  # pragma: no cover - no memory for the file
        raise
    except Exception as error:
        got = f"one that it refuses: {text_of(error)}"
        raise ValueError(message(f"path {path!r}", "an ONNX file that onnxruntime runs", got)) from None


class FileSession:
    """A file, its states and its other inputs and outputs.

    states: maps names of inputs to their State. inputs: maps names to a Tensor, without states and constants.
    outputs: names, without states. restarting: names of recurrent nodes whose state starts at 0 in each run.
    """

    def __init__(
        self, path: str, states: Any, constants: Any, shapes: Any, threads: int, plugin: bool
    ) -> None:
        model = read(path)
        graph = model.graph
        shapes = _checked_shapes(shapes, inputs(graph))
        self.path = path
        self._arguments = (path, states, constants, shapes, threads, plugin)
        self.states = {state.input: state for state in find_states(model, states, shapes)}
        known = {each.name: each for each in inputs(graph, shapes)}
        for each in known.values():
            if each.dtype is None:
                expected = "a tensor of real numbers of a type that NumPy has"
                raise ValueError(message(f"input {each.name!r} of the file", expected, "another type"))
        self._constants = _checked_constants(constants, known, self.states)
        self.inputs = {n: t for n, t in known.items() if n not in self.states and n not in self._constants}
        returned = {state.output for state in self.states.values()}
        self.outputs = tuple(each.name for each in outputs(graph) if each.name not in returned)
        flow = Flow(graph)
        self.restarting = [str(node.name or node.op_type) for node in flow.restarting(not self.states)]
        self._has_nodes = flow.has_recurrent_nodes()
        external = {external_file(t) for t in external_tensors(model)}
        self._files = [path, *sorted(external)]
        self.session = _session(path, threads, plugin)
        self._names = [*self.outputs, *(state.output for state in self.states.values())]
        self._hash = ""

    def __deepcopy__(self, memo: Any) -> FileSession:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return FileSession, self._arguments

    # --- inputs ---------------------------------------------------------------------------------------------

    def feed(self, x: Any) -> tuple[dict[str, Array], int | None]:
        """Returns the inputs of a call as arrays, and the number of steps: None without an axis of time."""
        by_name = isinstance(x, Mapping)
        if by_name:
            self._check_names(x)
        elif len(self.inputs) != 1:
            do = f"give {{{', '.join(f'{name!r}: ...' for name in self.inputs)}}}"
            raise bad_type("x", f"a mapping with the file's {len(self.inputs)} inputs", x, do)
        arrays: dict[str, Array] = {}
        steps: int | None = None
        for name, tensor in self.inputs.items():
            label = f"x[{name!r}]" if by_name else "x"
            arrays[name] = array = _converted(label, x[name] if by_name else x, tensor.dtype)
            dims, shape = tensor.shape, array.shape
            if dims is not None and len(shape) == len(dims) + 1:
                if steps is not None and steps != shape[0]:
                    expected = f"of {steps} steps, as an input before it"
                    raise bad_value(label, expected, array)
                steps, shape = shape[0], shape[1:]
            if not _fits(shape, dims):
                more = f", or {shown(('T', *dims))} for T steps" if dims is not None else ""
                raise bad_value(label, f"of the file's shape {shown(dims)}{more}", array)
        return arrays, steps

    def _check_names(self, x: Mapping[Any, Any]) -> None:
        for name in x:
            if name in self.states:
                do = "set it by the attribute state of a stream, or the argument state of a call"
                raise ValueError(message("x", "a mapping without states", f"the state {name!r}", do))
        missing = [name for name in self.inputs if name not in x]
        unexpected = [str(name) for name in x if name not in self.inputs]
        if missing or unexpected:
            parts = [f"missing {', '.join(missing)}"] * bool(missing)
            parts += [f"unexpected {', '.join(unexpected)}"] * bool(unexpected)
            expected = f"a mapping with the file's inputs, {', '.join(self.inputs) or 'none'}"
            do = "if an input is a state, give states={input: output} to Model" if missing else ""
            raise ValueError(message("x", expected, " and ".join(parts), do))

    def at(self, feed: Mapping[str, Array], step: int) -> dict[str, Array]:
        """Returns the inputs of one step. Inputs without an axis of time are the same at all steps."""
        return {name: a[step, ...] if self._has_time(name, a) else a for name, a in feed.items()}

    def empty_step(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Returns zeros as the inputs of one step, for sequences without steps."""
        return {
            name: np.zeros(a.shape[1:], a.dtype) if self._has_time(name, a) else a for name, a in feed.items()
        }

    def _has_time(self, name: str, array: Array) -> bool:
        shape = self.inputs[name].shape
        return shape is not None and array.ndim > len(shape)

    def lanes_of(self, feed: Mapping[str, Array], state: Any) -> int:
        """Returns the number of lanes of a call: from its states, or from an axis of an input, or else 1."""
        for name, each in self.states.items():
            axis = each.lane_axis
            if axis is None:
                continue
            if isinstance(state, Mapping) and name in state:
                value = real(f"state[{name!r}]", state[name])
                if value.ndim == len(each.shape or ()):
                    return int(value.shape[axis])
            label = each.shape[axis] if each.shape else None
            for other, array in feed.items():
                shape = self.inputs[other].shape
                if label is not None and shape is not None and label in shape:
                    return int(array.shape[shape.index(label) + self._has_time(other, array)])
        return 1

    # --- states ---------------------------------------------------------------------------------------------

    @property
    def apart(self) -> bool:
        """Whether each lane has numbers of its own in all states."""
        return all(state.lane_axis is not None for state in self.states.values())

    def zeros(self, lanes: int) -> dict[str, Array]:
        """Returns the states of `lanes` lanes at the start."""
        axes = [state.lane_axis for state in self.states.values()]
        if lanes != 1 and axes and all(axis is None for axis in axes):
            raise bad_value("lanes", "1 for a file whose states have fixed sizes", lanes, self.remedy())
        shapes = {name: self._shape(state, lanes) for name, state in self.states.items()}
        if sum(map(math.prod, shapes.values())) > MOST * lanes:
            expected = f"of at most {MOST} numbers in a lane"
            raise ValueError(message("the file's states", expected, f"{len(shapes)} states with more"))
        return {name: np.zeros(shapes[name], state.dtype) for name, state in self.states.items()}

    def remedy(self) -> str:
        """Returns advice for a file whose states have no known axis of lanes."""
        for given in self.session.get_inputs():
            dims = [size if isinstance(size, int) else None for size in given.shape]
            if given.name in self.states and None in dims:
                at = dims.index(None)
                text = ", ".join("..." if d is None and k != at else str(d) for k, d in enumerate(dims))
                return (
                    f"if axis {at} of {given.name!r} has the lanes, give shapes={{{given.name!r}: ({text})}}"
                )
        return "export it with a free batch axis"

    def _shape(self, state: State, lanes: int) -> tuple[int, ...]:
        dims: list[int | str | None] = [None] if state.shape is None else list(state.shape)
        if state.lane_axis is not None:
            dims[state.lane_axis] = lanes
        sizes = [size for size in dims if isinstance(size, int)]
        if len(sizes) < len(dims):
            expected = f"given for state {state.input!r}"
            do = "give its sizes, with None at the axis of lanes, for example (2, None, 128)"
            raise ValueError(message("shapes", expected, f"the file's shape {shown(state.shape)}", do))
        if math.prod(sizes) > MOST * lanes:
            expected = f"of at most {MOST} numbers in a lane"
            raise ValueError(message(f"state {state.input!r}", expected, shown(state.shape)))
        return tuple(sizes)

    def checked_states(self, label: str, value: Any, lanes: int) -> dict[str, Array]:
        """Returns copies of a user's states of `lanes` lanes. label: the argument, for messages."""
        if not isinstance(value, Mapping):
            raise bad_type(label, "a mapping of states' names to arrays", value)
        if set(value) != set(self.states):
            expected = f"a mapping with the names {', '.join(self.states) or 'of no states'}"
            raise ValueError(message(label, expected, ", ".join(map(str, value)) or "none"))
        result = {}
        for name, state in self.states.items():
            array = _converted(f"{label}[{name!r}]", value[name], state.dtype)
            shape = self._shape(state, lanes)
            if array.shape != shape:
                raise bad_value(f"{label}[{name!r}]", f"of shape {shape}", array)
            result[name] = array.copy()
        return result

    # --- runs -----------------------------------------------------------------------------------------------

    def run(
        self, feed: Mapping[str, Array], states: Mapping[str, Array]
    ) -> tuple[list[Any], dict[str, Array]]:
        """Runs the file once. Returns its outputs, and its next states, which have the shapes of `states`."""
        given = {**self._constants, **feed, **states}
        if self._has_nodes and not all(array.size for array in given.values()):
            name = next(name for name, array in given.items() if not array.size)
            # onnxruntime 1.32 calls abort().
            do = "onnxruntime ends the process if an LSTM has no sequence, or a GRU no sequence or no step"
            expected = "without a size of 0 for a file with recurrent nodes"
            raise bad_value(f"input {name!r}", expected, given[name], do)
        try:
            found = self.session.run(self._names, given)
        except MemoryError:  # pragma: no cover - no memory for the results
            raise
        except Exception as error:  # onnxruntime's errors have no common class
            shapes = ", ".join(f"{name} {array.shape}" for name, array in given.items())
            expected = "ones with which onnxruntime runs the file"
            text = message("the inputs", expected, f"{shapes}: {text_of(error, 2000)}")
            raise ValueError(self._hint(feed, states) + text) from None
        count = len(self.outputs)
        following = dict(zip(self.states, found[count:], strict=True))
        for name, array in following.items():
            before = states[name]
            if array.shape != before.shape or array.dtype != before.dtype:
                expected = f"of shape {before.shape} and dtype {before.dtype}, as {name!r}"
                do = "give lanes if the number of lanes is wrong, and states if this output is no state"
                raise bad_value(f"output {self.states[name].output!r}", expected, array, do)
        return found[:count], following

    def _hint(self, feed: Mapping[str, Array], states: Mapping[str, Array]) -> str:
        """Returns advice if the states have another number of lanes than an input, perhaps."""
        axes = {name: state.lane_axis for name, state in self.states.items()}
        lanes = {states[name].shape[axis] for name, axis in axes.items() if axis is not None}
        for name, array in feed.items():
            for size, count in zip(self.inputs[name].shape or (), array.shape, strict=False):
                if isinstance(size, int):
                    continue
                if lanes and count not in lanes:
                    return f"the file does not name the lanes of {name!r}; give lanes={count}. "
                break
        return ""

    def fingerprint(self) -> str:
        """Returns a hash of the file, its external data and its states, equal on all machines."""
        if not self._hash:
            result = hashlib.sha256(repr(sorted((n, s.output) for n, s in self.states.items())).encode())
            for path in self._files:
                with open(path, "rb") as file:
                    while block := file.read(2**20):
                        result.update(block)
            self._hash = result.hexdigest()
        return self._hash


def _checked_shapes(shapes: Any, known: list[Tensor]) -> dict[str, Dims] | None:
    if shapes is None:
        return None
    if not isinstance(shapes, Mapping):
        raise bad_type("shapes", "a mapping of inputs to tuples", shapes)
    ranks = {each.name: each.shape for each in known}
    result: dict[str, Dims] = {}
    for name, shape in shapes.items():
        label = f"shapes[{name!r}]"
        if name not in ranks:
            raise ValueError(
                message(label, f"of one of the file's inputs, {', '.join(ranks)}", "another name")
            )
        if not isinstance(shape, (tuple, list)):
            raise bad_type(label, "a tuple of sizes, with None for a free one", shape)
        result[name] = tuple(s if s is None else Integer(0).check(label, s) for s in shape)
        declared = ranks[name]
        if declared is not None and len(declared) != len(shape):
            raise bad_value(label, f"of {len(declared)} sizes, as the file's {shown(declared)}", shape)
    return result


def _checked_constants(
    constants: Any, known: Mapping[str, Tensor], states: Mapping[str, State]
) -> dict[str, Array]:
    if constants is None:
        return {}
    if not isinstance(constants, Mapping):
        raise bad_type("constants", "a mapping of inputs to arrays", constants)
    result = {}
    for name, value in constants.items():
        label = f"constants[{name!r}]"
        if name not in known or name in states:
            others = ", ".join(each for each in known if each not in states)
            got = "a state" if name in states else "another name"
            raise ValueError(message(label, f"one of the file's inputs, {others}", got))
        array = _converted(label, value, known[name].dtype)
        dims = known[name].shape
        if not _fits(array.shape, dims):
            raise bad_value(label, f"of the file's shape {shown(dims)}", array)
        result[name] = array.copy()
    return result


def _converted(label: str, value: Any, dtype: Any) -> Array:
    """Returns value as a C-contiguous array of an input's dtype.

    Floats are converted to any type of floats. Integers must be in the range of the input's type.
    """
    if type(value) is np.ndarray and value.dtype == dtype:
        array = value[...]  # other threads cannot set the shape of this view
        if array.flags.c_contiguous and array.flags.aligned:
            return array
    else:
        array = real(label, value)
    kind = array.dtype.kind
    if (dtype.kind in "iu" and kind not in "biu") or (dtype.kind == "b" and kind != "b"):
        raise bad_type(label, f"of dtype {dtype}, as the file's input", array)
    if dtype.kind in "iu" and array.dtype != dtype and array.size:
        limits = np.iinfo(dtype)
        for most in (int(array.min()), int(array.max())):
            if not limits.min <= most <= limits.max:
                raise bad_value(label, f"within {dtype}, the type of the file's input", most)
    result: Array = np.require(array, dtype, ["C", "A"])
    return result


def _fits(shape: tuple[int, ...], dims: Dims | None) -> bool:
    """Returns whether a shape has the fixed sizes of a file's declaration."""
    if dims is None or shape == dims:
        return True
    return len(shape) == len(dims) and all(
        d == n or not isinstance(d, int) for d, n in zip(dims, shape, strict=True)
    )
