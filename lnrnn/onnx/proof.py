"""Checks a converted part: runs a small model of the part's nodes, and its network, on random input.

ONNX Runtime runs the part, or onnx.reference if ONNX Runtime is missing or refuses the part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx
import onnx.helper as make
import onnx.numpy_helper
import onnx_ir

from ..recognise import proof
from ..recognise.graph import attribute, constant, is_zero, subgraphs
from ..recognise.interface import DOMAINS, named
from ..recognise.part import KEEPS, REPEATS, WHOLE_FILE, GraphPart
from ..recognise.proof import Leaf, Outputs, Unchecked
from ..rnn.settings import architecture
from .errors import DisprovedError, quiet, text_of
from .nodes.node import constants, dequantized, is_quantized
from .runtime import open_session

Array = np.ndarray
Run = Callable[[dict[str, Array]], dict[str, Array]]
MOST = 2**22  # elements of x or y, since a file may fix large sizes
LARGEST = 2.0**56  # limit of weights before a norm: squares of their sums stay finite in float32
IR_VERSION = 8  # old runtimes read it, and initializers need not be inputs
INT64 = onnx_ir.DataType.INT64
OPTIONAL = range(5, 8)  # inputs initial_h, initial_c and P of a recurrent node, dropped if they are 0


def prove(part: GraphPart, model: onnx_ir.Model, reset_after: bool | None = None) -> str:
    """Compares a part with its network. Returns "" if the outputs agree, or why the part could not be run.

    Raises DisprovedError if the outputs differ. reset_after: as in from_onnx.
    """
    if part.kind == WHOLE_FILE:  # read_back has compared all nodes
        return ""
    try:
        proto, dtype = extracted(part, model, reset_after)
        run = runner(proto, part)
        try:
            _compare(part, run, dtype, proof.STEPS)
        except proof.RoundingHidesDifference:  # errors grow from step to step, so one step may do
            _compare(part, run, dtype, 1)
    except Unchecked as error:
        return str(error)
    return ""


def runner(proto: onnx.ModelProto, part: GraphPart) -> Run:
    """Returns run(inputs) for a model: both its argument and its result are {name: array}."""
    names, says, session = [value.name for value in proto.graph.output], "ONNX Runtime says", None
    try:
        session = open_session(proto.SerializeToString(), optimised=False)
    except Exception as error:  # onnxruntime raises exceptions of many types
        missing = isinstance(error, ImportError)
        reason = "onnxruntime is not installed" if missing else f"{says}: {text_of(error)}"
        says = f"{reason}; onnx.reference says"
        if part.lengths is not None or any(attribute(node, "activations") for node in part.layers):
            raise Unchecked(f"{reason}, and onnx.reference ignores sequence_lens and activations") from None

    def run(feed: dict[str, Array]) -> dict[str, Array]:
        from onnx.reference import ReferenceEvaluator

        feed = {value.name: feed[value.name] for value in proto.graph.input}
        try:
            with np.errstate(all="ignore"):
                results = (session or ReferenceEvaluator(proto)).run(names, feed)
        except Exception as error:  # pragma: no cover - an error of the runtime, which depends on its version
            raise Unchecked(f"{says}: {text_of(error)}") from None
        return dict(zip(names, results, strict=True))

    return run


def _compare(part: GraphPart, run: Run, dtype: np.dtype, steps: int) -> None:
    """Raises DisprovedError if the outputs of the part and its network differ on one random input."""
    given, feed = drawn(part, steps)
    got = run({name: a.astype(dtype) if a.dtype.kind == "f" else a for name, a in feed.items()})
    outputs = Outputs(given.x, given.states, results_of(part, given, got), given.lengths)
    converted = part.converted
    assert converted is not None
    weights = [*converted.state.values()]
    if not all(np.isfinite(a).all() for a in (*(a for _, a in outputs.parts), *weights)):
        raise Unchecked("its weights or outputs are not finite")  # ONNX Runtime may turn NaN into numbers
    if converted.arguments["norm"] is not None and any((np.abs(a) > LARGEST).any() for a in weights):
        raise Unchecked("squares of its weights are not finite")
    eps = max(float(np.finfo(dtype).eps), proof.SINGLE)
    difference = proof.compare(outputs, proof.Reference(converted), eps, True)
    if difference:
        raise DisprovedError(
            f"the converted network does not reproduce part {part.path!r}: on random input outputs differ by "
            f"{difference[0]:.3g}, rounding explains {difference[1]:.1g}; report it, or pass check=False"
        )


def drawn(part: GraphPart, steps: int) -> tuple[Outputs, dict[str, Array]]:
    """Returns random inputs of a part twice: as Outputs without results, and as {input name: array}.

    The file may fix their sizes. Arrays by name have the axes of the part, not of the network.
    """
    network = part.network
    assert network is not None
    rng = np.random.default_rng(0)
    T, B = part.baked.get("T", steps), part.baked.get("B", proof.BATCH)
    if T * B * max(network.input_size, network.hidden_size) > MOST:
        raise Unchecked(f"the file fixes T={T} and B={B}, which are too large to try")
    x = rng.standard_normal((T, B, network.input_size), dtype=np.float32)
    feed, lengths = {part.x.name: _arranged(x, "TBI", part.axes["x"])}, None
    if part.lengths is not None or part.mask is not None:
        lengths = np.maximum(T - np.arange(B) * 2, 1).astype(np.int32)
    if part.lengths is not None and lengths is not None:
        feed[part.lengths.name] = lengths.astype(_lengths_dtype(part))
    if part.mask is not None:
        feed[part.mask.name] = _arranged(_inside(T, lengths), "TBI", part.axes["mask"])
    states = []
    known: dict[int, Array] = {}  # several layers may share one initial state
    places = network.num_layers * network.num_directions
    first = part.initial_states if isinstance(part.initial_states, tuple) else (part.initial_states, None)
    widths = architecture(network).state_widths
    for values, width, fixed in zip((part.h0, part.c0), widths, first, strict=False):
        own = places // len(values)
        state = np.zeros((len(values), own, B, width), np.float32)
        for k, value in enumerate(values):
            if value is not None:
                numbers = rng.uniform(-0.9, 0.9, state.shape[1:]).astype(np.float32)
                if fixed is not None and constant(value, any_batch=True) is not None:
                    numbers[:] = fixed.reshape(-1, own, *fixed.shape[1:])[k]
                state[k] = known.setdefault(id(value), numbers)
                feed[value.name] = _arranged(state[k], "DBH", part.axes["h"])
        states.append(state.reshape(places, B, width))
    return Outputs(x, states, [], lengths), feed


def _lengths_dtype(part: GraphPart) -> np.dtype:
    return np.dtype(np.int64 if part.lengths is not None and part.lengths.dtype == INT64 else np.int32)


def _inside(T: int, lengths: Array | None) -> Array:
    """Returns a mask (T, B, 1) that is True at the steps before each sequence's end. lengths: (B,)."""
    return np.arange(T)[:, None, None] < np.asarray(lengths)[:, None]


def results_of(part: GraphPart, given: Outputs, got: dict[str, Array]) -> list[tuple[Leaf, Array]]:
    """Returns (Leaf, array) for each output of a part: y (T, B, *) and states (layers * directions, B, *)."""
    assert part.network is not None
    own = part.network.num_layers * part.network.num_directions // len(part.h)
    result = [(Leaf(kind, slice(k * own, k * own + own)), _arranged(got[v.name], part.axes["h"], "DBH"))
              for kind, values in enumerate((part.h, part.c))
              for k, v in enumerate(values) if v is not None]  # fmt: skip
    if part.y is not None:
        y = _arranged(got[part.y.name], part.axes["y"], "TBDH").reshape(*given.x.shape[:2], -1)
        y = y[::-1] if part.flipped else y
        keeps = part.mask is not None or {REPEATS, KEEPS} & {*part.warnings}
        y = np.where(_inside(len(y), given.lengths), y, 0) if keeps else y
        result.append((Leaf(), y))
    return result


def _arranged(array: Array, axes: str, wanted: str) -> Array:
    """Transposes an array from the axes `axes` to `wanted`, one letter each. Missing axes get size 1.

    If only `wanted` has D, the axis H contains all directions: they stay together as one direction.
    """
    if array.ndim != len(axes):
        raise Unchecked(f"an output has {array.ndim} axes, where {len(axes)} are expected")
    array = array.squeeze(tuple(i for i, axis in enumerate(axes) if axis not in wanted))
    axes = "".join(axis for axis in axes if axis in wanted)
    array = array.transpose([axes.index(axis) for axis in wanted if axis in axes])
    return np.expand_dims(array, [i for i, axis in enumerate(wanted) if axis not in axes])


# --- a part as a model --------------------------------------------------------------------------------------


def extracted(
    part: GraphPart, model: onnx_ir.Model, reset_after: bool | None = None
) -> tuple[onnx.ModelProto, np.dtype]:
    """Returns (model, dtype): a model that computes y, h and c of a part from x, lengths, h0 and c0.

    Values that are None are left out. States in `initial_states` stay constants of the model. reset_after:
    as in from_onnx.
    """
    outputs = [v for v in (part.y, *part.h, *part.c) if v is not None]
    states = [v for v in (*part.h0, *part.c0) if part.initial_states is None or constant(v) is None]
    inputs = {id(v): v for v in (part.x, part.lengths, part.mask, *states) if v is not None}
    if not outputs:
        raise Unchecked("the file uses no output of it")
    values, arrays, nodes = dict(inputs), dict[str, Array](), list[onnx.NodeProto]()
    layers, stack = {id(node) for node in part.layers}, outputs[::-1]
    while stack:  # a loop, since chains of nodes may be longer than Python's stack
        value = stack[-1]
        node = value.producer()
        if id(value) in values:
            stack.pop()
        elif node is None or node.op_type == "Constant":
            array = constant(value)
            if array is None:
                raise Unchecked(f"its nodes also read {value.name!r}, which is no constant and no state")
            arrays[value.name], values[id(value)] = array, value
        else:
            read = _layer_inputs(node) if id(node) in layers else _read(node)
            missing = [v for v in read if id(v) not in values]
            if not missing:
                nodes += _layer(node, read, arrays) if id(node) in layers else [_proto(node)]
                values |= {id(v): v for v in node.outputs if v.name}
            stack += missing
    if len({v.name for v in values.values()}) != len(values):
        raise Unchecked("two of its values have the same name")
    if reset_after is not None:
        _set_reset_after(nodes, reset_after)
    weights = constant(part.layers[0].inputs[1]) if part.layers else None
    dtype = np.dtype(np.float32) if weights is None or weights.dtype.kind in "iu" else weights.dtype
    dtypes = {id(part.lengths): _lengths_dtype(part), id(part.mask): np.dtype(bool)}
    kinds = {key: make.np_dtype_to_tensor_dtype(dtypes.get(key, dtype)) for key in values}
    given, results = ([make.make_tensor_value_info(v.name, kinds[id(v)], None) for v in some]
                      for some in (inputs.values(), outputs))  # fmt: skip
    tensors = [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()]
    graph = make.make_graph(nodes, "part", given, results, tensors)
    opsets = [make.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    return make.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION), dtype


def _read(node: onnx_ir.Node) -> list[onnx_ir.Value]:
    """Returns all values that a node reads, including outer values that its sub-graphs read."""
    nodes = [node, *(inner for _, body in subgraphs(node) for inner in body.all_nodes())]
    bodies = [body for each in nodes for _, body in subgraphs(each)]
    own = {id(body) for body in bodies}
    every = [*(v for each in nodes for v in each.inputs), *(v for body in bodies for v in body.outputs)]
    return [v for v in every if v is not None and id(v.graph) not in own]


def _proto(node: onnx_ir.Node) -> onnx.NodeProto:
    try:
        with quiet():
            return onnx_ir.serde.serialize_node(node)  # onnx_ir.to_proto takes five times as long
    except Exception:  # many types: onnx_ir reads texts and attributes that it cannot write
        raise Unchecked(f"onnx_ir cannot write node {named(node)}") from None


def _layer_inputs(node: onnx_ir.Node) -> list[onnx_ir.Value]:
    """Returns the inputs of a recurrent node that may differ from 0, without quantized weights."""
    left_out = (1, 2, *range(8, 99)) if is_quantized(node) else ()
    return [v for i, v in enumerate(node.inputs)
            if v is not None and i not in left_out and not (i in OPTIONAL and is_zero(v))]  # fmt: skip


def _layer(
    node: onnx_ir.Node, read: Iterable[onnx_ir.Value], arrays: dict[str, Array]
) -> list[onnx.NodeProto]:
    """Returns a recurrent node as ONNX Runtime can run it, without inputs that are 0, as a list of nodes.

    layout=1 becomes layout=0 between Transposes. A DynamicQuantizeLSTM becomes an LSTM, since it would
    round its inputs to 8 bits. Its weights are added to `arrays`.
    """
    kept = {id(v) for v in read}
    names = [v.name or "" if v is not None and id(v) in kept else "" for v in node.inputs]
    if is_quantized(node):
        W, R, _ = dequantized(node, constants(node))
        for i, array in enumerate((W, R), 1):
            names[i] = f"{node.outputs[0].name} {'WR'[i - 1]} in float32"
            arrays[names[i]] = np.ascontiguousarray(array)
        options = {name: attribute(node, name) for name in node.attributes}
        return [make.make_node("LSTM", names[:8], [v.name or "" for v in node.outputs], **options)]
    proto = _proto(node)
    proto.input[:] = names
    if not attribute(node, "layout", 0):
        return [proto]
    before, after = [], []
    _remove(proto, "layout")
    for i in (0, 5, 6):  # X, initial_h and initial_c
        if i < len(names) and names[i]:
            proto.input[i] = f"{proto.output} input {i}"
            before.append(make.make_node("Transpose", [names[i]], [proto.input[i]], perm=(1, 0, 2)))
    for i, name in enumerate(list(proto.output)):
        if name:
            proto.output[i] = f"{name} with layout 0"
            perm = (2, 0, 1, 3) if i == 0 else (1, 0, 2)
            after.append(make.make_node("Transpose", [proto.output[i]], [name], perm=perm))
    return [*before, proto, *after]


def _set_reset_after(nodes: Iterable[onnx.NodeProto], reset_after: bool) -> None:
    """Sets linear_before_reset of all GRU nodes, also in sub-graphs."""
    for node in nodes:
        for a in node.attribute:
            for graph in (a.g, *a.graphs):
                _set_reset_after(graph.node, reset_after)
        if node.op_type == "GRU" and node.domain in DOMAINS:
            _remove(node, "linear_before_reset")
            node.attribute.append(make.make_attribute("linear_before_reset", int(reset_after)))


def _remove(proto: onnx.NodeProto, name: str) -> None:
    for each in [a for a in proto.attribute if a.name == name]:
        proto.attribute.remove(each)
