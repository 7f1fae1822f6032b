"""Replaces recurrent parts of a model by RNN, LSTM and GRU nodes, or by calls of functions.

networks.py builds a network's nodes. Nodes added around them restore the axes of the file's values.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir
from onnx_ir.passes import common

from ...recognise.graph import attribute, constant, dependents, is_zero, moved_axes, parent, subgraphs
from ...recognise.interface import DOMAINS
from ...recognise.part import KEEPS, REPEATS, WHOLE_FILE, GraphPart
from ...recognise.proof import STEPS, Unchecked
from ...rnn.settings import snapshot
from ...rnn.snapshot import Snapshot
from ..parts import parts_of
from ..proof import drawn, extracted, prove, results_of, runner
from ..reading import external_file, external_tensors, graphs, opset_of, read
from . import IR_VERSION, LAYER_NORM, OPSETS
from .builder import Graph, Value
from .functions import DOMAIN, INLINED, VERSION, Function, function
from .networks import Form, is_plain

FILES = "lnrnn.files"  # key of Model.meta: {path: state_of(path)} of the model and its external data
MASKED = "if_mask_has_lengths"  # name of an If node; numbers may follow
NEAR = 1e-4  # largest difference of outputs without a proof that rounding explains it
SMALL = 1024  # larger arrays are compared by identity, not by contents
FARTHEST = -(2**31)  # end of a Slice with step -1 that includes element 0


def changed(source: Any, functions: bool = True, quick: bool = False) -> tuple[onnx_ir.Model, dict[str, str]]:
    """Returns (model with parts replaced, {path of each part: reason why it stays, or ""}).

    functions: also replace parts by functions if ONNX has no node for their cell. quick: skip the proof for
    parts that nearly agree with lnrnn's kernels, and leave out RNN, LSTM and GRU nodes.
    """
    own = {os.fspath(source)} if isinstance(source, (str, os.PathLike)) else set()
    before = {path: state_of(path) for path in own}
    model = read(source, keep=DOMAIN)
    external = {external_file(tensor) for tensor in external_tensors(model)}
    model.meta[FILES] = before | {path: state_of(path) for path in external}
    reasons, calls = dict[str, str](), list[Call]()
    for part in (each for first in parts_of(model, nodes=not quick) for each in (first, *first.same)):
        reason = reasons[part.path] = _refusal(part, model, functions, quick)
        if not reason:
            calls.append(Call.of(part, model))
    if calls:
        replacement = _Replacement(model)
        for call in calls:
            replacement.add(call)
        replacement.finish()
    return model, reasons


def state_of(path: str) -> tuple[int, ...]:
    """Returns a file's inode, size and modification time. They change if the file is written."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class Call:
    """A network's call in place of a part: values of the file, and their axes as in GraphPart.

    before, after: values of initial and last states, by kind of state. Constant initial states are arrays.
    repeats: past a sequence's end, y repeats the last output instead of 0.
    """

    part: GraphPart
    network: Snapshot
    form: Form
    x: Any
    lengths: Any
    y: Any
    before: Sequence[Sequence[Any]]
    after: Sequence[Sequence[Any]]
    axes: dict[str, str]
    repeats: bool

    @classmethod
    def of(cls, part: GraphPart, model: onnx_ir.Model) -> Call:
        assert part.network is not None
        now = snapshot(part.network)
        made, axes = replace(now.architecture, batch_first=False), part.axes
        found = (
            {v.name: v for v in (*model.graph.inputs, *model.graph.outputs)}
            if part.kind == WHOLE_FILE
            else {}
        )
        x, lengths, y = part.x, part.lengths, part.y
        before, after = [part.h0, part.c0][: made.cell.states], [part.h, part.c][: made.cell.states]
        if found:
            x, lengths, y = (found.get(name) for name in ("x", "lengths", "y"))
            before, after = ([(found.get(n + end),) for n in made.cell.state_names] for end in ("0", ""))
            order = "B" if part.baked else "BT" if now.architecture.batch_first else "TB"
            axes = {"x": f"{order}I", "y": f"{order}H", "h": "DBH"}
        has_lengths = lengths is not None or part.mask is not None
        form = Form("T" not in axes["x"], True, has_lengths, "resets" in found)
        now = now.changed(architecture=made, dropout=0.0)
        starts = _initial(before, part.initial_states)
        zero = all(isinstance(v, np.ndarray) and not v.ndim for values in starts for v in values)
        form = replace(form, states=not (zero and is_plain(now, form)))
        repeats = bool({REPEATS, KEEPS} & {*part.warnings})
        return cls(part, now, form, x, lengths, y, starts, after, axes, repeats)

    @property
    def inputs(self) -> Iterator[tuple[Any, str]]:
        """Yields (value, axes) of the call's inputs that are not constant."""
        states = ((v, self.axes["h"]) for values in self.before for v in values)
        every = ((self.x, self.axes["x"]), (self.lengths, "B"), (self.part.mask, "TB"), *states)
        return ((v, axes) for v, axes in every if v is not None and not isinstance(v, np.ndarray))

    @property
    def outputs(self) -> Iterator[Any]:
        return (v for values in ([self.y], *self.after) for v in values if v is not None)


def _refusal(part: GraphPart, model: onnx_ir.Model, functions: bool, quick: bool) -> str:
    """Returns the reason why a part is not replaced, or "" if it is."""
    if part.network is None:
        return part.reason
    if part.layers:
        return "ONNX's own nodes compute it"
    if part.path.startswith("function "):
        return "onnx cannot convert its function to the opset of the file"
    if model.ir_version >= 4 and any(v.is_initializer() for v in model.graph.inputs):
        return "initializers of the file are inputs too, so a caller may replace its weights"
    call, opset = Call.of(part, model), opset_of(model) or 1
    made = call.network.architecture
    if made.batch_norm:
        return "it has batch norm"
    if call.form.resets:
        return "it has resets"
    around = parent(part.nodes[0].graph)
    if part.mask is not None and around is not None and (around.name or "").startswith(MASKED):
        return "it is the branch for masks that are false before a step where they are true"
    unknown = call.lengths is not None and REPEATS in part.warnings  # y of an empty sequence would differ
    if call.repeats and (made.directions > 1 or made.reverse or part.flipped or unknown):
        return "past the end of a sequence, its y is not 0"
    if not functions and not is_plain(call.network, call.form):
        return "ONNX has no node for it, and functions=False"
    if not functions and call.form.lengths:
        return "OpenVINO ignores the lengths of nodes, and functions=False"
    least = OPSETS[0] if made.norm is None else LAYER_NORM
    if not least <= opset <= OPSETS[1]:
        return f"it needs an opset from {least} to {OPSETS[1]}, got {opset}"
    sizes = {_size(v, axes, "B") for v, axes in call.inputs} - {None}
    fixed = {size for size in sizes if isinstance(size, int)}
    if len(fixed) > 1 or (len(sizes) > 1 and 1 in fixed):  # 1 may be broadcast
        return f"its inputs have different numbers of sequences, {', '.join(sorted(map(str, sizes)))}"
    if (leak := _leak(call)) is not None:
        return f"nodes outside of it also read its inner value {leak!r}"
    if dependents(call.outputs) & {id(v) for v, _ in call.inputs}:
        return "its later layers start from states that its first layers compute"
    try:
        doubt = "" if quick and part.kind != WHOLE_FILE and _agrees(part, model) else prove(part, model)
    except ValueError as error:
        return str(error)
    return f"it could not be checked: {doubt}" if doubt else ""


def _agrees(part: GraphPart, model: onnx_ir.Model) -> bool:
    """Returns whether a part and lnrnn's kernels nearly agree on one random input."""
    given: Any
    rnn: Any = part.network
    try:
        given, feed = drawn(part, STEPS)
        wanted = results_of(part, given, runner(extracted(part, model)[0], part)(feed))
    except Unchecked:
        return False
    x = given.x.swapaxes(0, 1) if rnn.batch_first else given.x
    start = given.states[0] if len(given.states) == 1 else tuple(given.states)
    y, end = rnn(x, start, lengths=given.lengths)
    y, ends = y.swapaxes(0, 1) if rnn.batch_first else y, end if isinstance(end, tuple) else (end,)
    return all(np.abs(leaf.of(y, ends) - a).max(initial=0) <= NEAR for leaf, a in wanted)


def _leak(call: Call) -> str | None:
    """Returns the name of an intermediate value of a part that nodes outside read, or None."""
    own, results = {id(node) for node in call.part.nodes}, {id(v) for v in call.outputs}

    def is_inside(node: Any) -> bool:
        return node is not None and (id(node) in own or is_inside(parent(node.graph)))

    every = (v for node in call.part.nodes for v in node.outputs if id(v) not in results)
    leaks = (v for v in every if v.is_graph_output() or not all(map(is_inside, v.consumers())))
    return next((v.name for v in leaks), None)


@dataclass
class _Replacement:
    """Replaces parts of a model in place.

    now: {id of a replaced value: its replacement}. arrays: added initializers, by contents. functions: by
    network id and Form. names: of all values, and of all nodes with the prefix "node ".
    """

    model: onnx_ir.Model
    now: dict[int, onnx_ir.Value] = field(default_factory=dict)
    arrays: dict[Any, onnx_ir.Value] = field(default_factory=dict)
    functions: dict[Any, Function] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for _, graph in graphs(self.model):
            values = (*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs))
            self.names |= {v.name or "" for v in values} | {f"node {node.name}" for node in graph}

    def add(self, call: Call) -> None:
        """Replaces a part by a call of its network, at the end of the same graph."""
        g, given, opset = Graph("call"), list[onnx_ir.Value](), opset_of(self.model) or 1
        if call.part.kind == WHOLE_FILE:  # a file of to_onnx: keep the names of its initializers
            self.names -= {*self.model.graph.initializers}
            self.model.graph.initializers.clear()

        def value(v: Any) -> Value:
            given.append(self.now.get(id(v), v))
            return g.input("given", "float", ["?"])

        x = _arranged(value(call.x), call.axes["x"], "BI" if call.form.step else "TBI")
        steps = call.part.baked.get("T", 1)
        if "T" in call.part.baked and not call.form.step and _size(call.x, call.axes["x"], "T") != steps:
            x = g.node("Gather", x, g.integers(*range(steps)), axis=0)  # fails if x has fewer steps
        starts = _starts(call, value, x, opset) if call.form.states else []
        graph, mask = call.part.nodes[0].graph, call.part.mask
        count, holds = (call.lengths, None) if mask is None else self._lengths(call, graph)
        lengths = [] if count is None else [value(count)]
        if lengths and mask is None and call.part.kind != WHOLE_FILE:  # nodes refuse lengths above T
            long, most = g.cast(lengths[0], "int64"), g.node("Gather", g.node("Shape", x), g.index(0))
            limited = g.node("Max", g.node("Min", long, most), g.array("zero_int64", np.array(0, np.int64)))
            lengths = [g.cast(limited, "int32")]
        elif lengths and count.dtype != onnx_ir.DataType.INT32:
            lengths = [g.cast(lengths[0], "int32")]
        key = id(call.part.network), call.form
        own = self.functions.get(key) or function(call.network, call.form, opset)
        self.functions[key] = own
        body: Any = onnx_ir.from_proto(own.proto)
        self.model.functions[body.identifier()] = body
        arrays = [g.array(name, array) for name, array in own.inputs.items()]
        results = g.nodes_of(
            own.proto.name, x, *starts, *lengths, *arrays, outputs=1 + len(call.before),
            domain=own.proto.domain, name=own.proto.name.partition("_")[0], **own.attributes,
        )  # fmt: skip
        of_steps = None
        if call.repeats:
            of_steps = _inside(x, lengths[0]) if mask is None else _of_steps(call, value(mask))
        ends = _ends(call, *results, mask=of_steps)
        for end in ends:
            g.output(end, "float", ["?"])
        if holds is None:
            self._rename(call, self._moved(g, graph, given))
            _remove(call.part.nodes)
            return
        then, other = (onnx_ir.Graph((), (), nodes=(), name=name) for name in ("has_lengths", "has_holes"))
        then.outputs.extend(self._moved(g, then, given))
        olds, inside = [*call.outputs], {*call.part.nodes}
        uses = [(old, node, at) for old in olds for node, at in old.uses() if node in inside]
        graph.remove(call.part.nodes)
        other.extend(call.part.nodes)
        branches = onnx_ir.AttrGraph("then_branch", then), onnx_ir.AttrGraph("else_branch", other)
        either = onnx_ir.Node("", "If", [holds], branches, num_outputs=len(olds), name=self._fresh(MASKED))
        for old, branch, new in zip(olds, then.outputs, either.outputs, strict=True):
            branch.type, branch.shape, new.name = old.type, old.shape, self._fresh(old.name or "")
        graph.append(either)
        self._rename(call, either.outputs)
        for old, node, at in uses:
            node.replace_input_with(at, old)
        other.outputs.extend(olds)

    def _rename(self, call: Call, results: Sequence[onnx_ir.Value]) -> None:
        """Lets all readers of a part's outputs read the network's outputs, under the old names."""
        for old, new in zip(call.outputs, results, strict=True):
            new.type, new.shape = old.type, old.shape
            new.name, old.name = old.name, new.name
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            self.now[id(old)] = new

    def _lengths(self, call: Call, graph: onnx_ir.Graph) -> list[onnx_ir.Value]:
        """Adds nodes that compute lengths (B,) from a mask. Returns [lengths, whether they fit the mask]."""
        g = Graph("lengths")
        mask = _of_steps(call, g.input("mask", "bool", ["?"]))
        lengths = g.node("ReduceSum", g.cast(mask, "int32"), g.integers(0), keepdims=0)
        inside = _inside(mask, lengths)
        zero = g.array("zero_int32", np.array(0, np.int32))
        wrong = g.node("ReduceSum", g.cast(g.node("Xor", mask, inside), "int32"), keepdims=0)
        if call.repeats:  # an empty sequence has no last output to repeat
            empty = g.cast(g.node("Equal", lengths, zero), "int32")
            wrong = wrong + g.node("ReduceSum", empty, keepdims=0)
        g.output(lengths, "int32", ["?"])
        g.output(g.node("Equal", wrong, zero), "bool", [])
        return self._moved(g, graph, [self.now.get(id(call.part.mask), call.part.mask)])

    def _moved(self, g: Graph, graph: onnx_ir.Graph, given: list[onnx_ir.Value]) -> list[onnx_ir.Value]:
        """Moves the nodes of g to the end of `graph`, with `given` as their inputs. Returns their outputs."""
        stored = [self._initializer(name, array) for name, array in g.arrays.items()]
        new: Any = onnx_ir.from_proto(g.proto(arrays=False))
        for inner, outer in zip(new.inputs, [*given, *stored], strict=True):
            inner.replace_all_uses_with(outer)
        outputs, nodes = [*new.outputs], [*new]
        new.outputs.clear()
        new.remove(nodes)
        for node in nodes:
            node.name = self._fresh(f"node {node.name}")[5:]
            for value in node.outputs:
                value.name = value.name and self._fresh(value.name)
        graph.extend(nodes)
        return outputs

    def _initializer(self, name: str, array: np.ndarray) -> onnx_ir.Value:
        """Returns the main graph's initializer with these contents, and adds it if there is none."""
        known = self.model.graph.initializers.get(name)
        old = None if known is None else constant(known)
        # Large arrays are compared by identity: calls of one network share them.
        key = name, array.shape, array.tobytes() if array.nbytes <= SMALL else id(array)
        if known is not None and old is not None and old.dtype == array.dtype and np.array_equal(old, array):
            return known
        if key not in self.arrays:
            tensor = onnx_ir.Tensor(array, name=self._fresh(name))
            value = onnx_ir.Value(
                name=tensor.name, type=onnx_ir.TensorType(tensor.dtype),
                shape=onnx_ir.Shape(array.shape), const_value=tensor,
            )  # fmt: skip
            self.model.graph.register_initializer(value)
            self.arrays[key] = value
        return self.arrays[key]

    def _fresh(self, name: str) -> str:
        """Returns an unused name of the model: `name`, or `name` with a number."""
        numbered = (f"{name}_{k}" for k in itertools.count(2))
        found = next(each for each in itertools.chain([name], numbered) if each not in self.names)
        self.names.add(found)
        return found

    def finish(self) -> None:
        """Removes unused nodes and initializers, and sorts the nodes topologically."""
        model = self.model
        if model.ir_version < 4:  # these files list initializers as inputs too
            common.RemoveInitializersFromInputsPass()(model)
        model.ir_version = max(model.ir_version, IR_VERSION)
        common.InlinePass(lambda each: each.domain == INLINED)(model)
        model.graph.sort()
        for node in model.graph.all_nodes():
            _simplify(node)
        common.RemoveUnusedNodesPass()(model)
        for node in model.graph.all_nodes():  # the pass drops unused trailing outputs
            if node.domain == DOMAIN:
                node.resize_outputs(len(model.functions[node.op_identifier()].outputs))
                for value in node.outputs:
                    value.name = value.name or self._fresh(f"{node.name}_unused")
            elif node.op_type == "Loop" and len(node.inputs) < 2:
                node.resize_inputs(2)
        model.opset_imports.pop(INLINED, None)
        if any(domain == DOMAIN for domain, *_ in model.functions):
            model.opset_imports[DOMAIN] = VERSION


def _remove(nodes: Sequence[onnx_ir.Node]) -> None:
    """Removes nodes whose outputs are unused from their graphs, with their sub-graphs."""
    for node in reversed(nodes):
        if node.graph is None or any(v.uses() or v.is_graph_output() for v in node.outputs):
            continue
        for inner in (inner for _, body in subgraphs(node) for inner in body.all_nodes()):
            for k in range(len(inner.inputs)):  # otherwise it remains a user of outer values
                inner.replace_input_with(k, None)
        node.graph.remove(node, safe=True)


def _simplify(node: onnx_ir.Node) -> None:
    """Removes a node and its producer if they cancel: Squeeze and Unsqueeze, or Split and Concat."""
    before = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    if before is None or not before.inputs or {node.domain, before.domain} - {*DOMAINS}:
        return
    ops = before.op_type, node.op_type
    if {*ops} == {"Squeeze", "Unsqueeze"}:
        undoes = moved_axes(node) is not None and moved_axes(node) == moved_axes(before)
    else:
        undoes = ops == ("Split", "Concat") and tuple(node.inputs) == tuple(before.outputs)
        undoes = undoes and attribute(node, "axis") == attribute(before, "axis", 0)
    whole, old = before.inputs[0], node.outputs[0]
    if not undoes or whole is None:
        return
    if old.is_graph_output():
        if whole.producer() is None or whole.is_graph_output() or whole.graph is not old.graph:
            return
        whole.name, old.name = old.name, whole.name
        whole.type, whole.shape = old.type, old.shape
    old.replace_all_uses_with(whole, replace_graph_outputs=True)


# --- the nodes around a call --------------------------------------------------------------------------------


def _initial(states: Sequence[Sequence[Any]], given: Any) -> list[list[Any]]:
    """Returns initial states by kind and layer, as in Call.before. given: the part's `initial_states`."""
    arrays = given if isinstance(given, tuple) else (given,)
    result = []
    for values, array in itertools.zip_longest(states, arrays[: len(states)]):
        rows = [None] * len(values) if array is None else np.split(array, len(values))
        fixed = [np.zeros((), np.float32) if v is None or is_zero(v) else row
                 for v, row in zip(values, rows, strict=True)]  # fmt: skip
        result.append([
            v if row is None or (row.ndim and constant(v, any_batch=True) is None) else row
            for v, row in zip(values, fixed, strict=True)
        ])  # fmt: skip
    return result


def _size(v: Any, axes: str, axis: str) -> int | str | None:
    """Returns the declared size or symbolic name of one axis of a value, or None."""
    size: Any = None if v.shape is None or axis not in axes else v.shape[axes.index(axis)]
    return size if size is None or isinstance(size, int) else size.value


def _arranged(a: Value, axes: str, wanted: str) -> Value:
    """Returns a value transposed from `axes` to `wanted`. Adds or removes a first axis D of size 1."""
    g = a.graph
    if "D" in wanted and "D" not in axes:
        a, axes = g.unsqueeze(a, 0), f"D{axes}"
    if "D" in axes and "D" not in wanted:
        a, axes = g.squeeze(a, axes.index("D")), axes.replace("D", "")
    order = [axes.index(axis) for axis in wanted]
    return a if order == sorted(order) else g.node("Transpose", a, perm=order)


def _starts(call: Call, value: Any, x: Value, opset: int) -> list[Value]:
    """Returns the initial states (layers * directions, B, *). value: maps a file's value to x's graph."""
    g, made, result = x.graph, call.network.architecture, list[Value]()
    at = 0 if call.form.step else 1
    if opset < 15:
        batch = g.node("Gather", g.node("Shape", x), g.integers(at), axis=0)
    else:
        batch = g.node("Shape", x, start=at, end=at + 1)
    for name, values, width in zip(made.cell.state_names, call.before, made.state_widths, strict=True):
        rows, found = made.num_layers * made.directions // len(values), list[Value]()
        for k, v in enumerate(values):
            if isinstance(v, np.ndarray):
                shape = g.concat([g.integers(rows), batch, g.integers(width)], 0)
                found.append(g.node("Expand", g.array(f"{name}0_{k}" if v.ndim else "zero", v), shape))
            else:
                found.append(_arranged(value(v), call.axes["h"], "DBH"))
        result.append(g.concat(found, 0))
    return result


def _inside(x: Value, lengths: Value) -> Value:
    """Returns a mask (T, B), true before each sequence's end. x: has T steps on axis 0. lengths: (B,)."""
    g = x.graph
    steps = g.node("Range", g.index(0), g.node("Gather", g.node("Shape", x), g.index(0)), g.index(1))
    return g.node("Less", g.unsqueeze(steps, 1), g.cast(lengths, "int64"))


def _of_steps(call: Call, mask: Value) -> Value:
    """Returns a part's mask as (T, B), without a third axis of size 1."""
    return mask.graph.squeeze(mask, 2) if len(call.axes["mask"]) == 3 else mask


def _ends(call: Call, y: Value, *ends: Value, mask: Value | None) -> list[Value]:
    """Converts results of a network to the outputs of a call: their axes, order and values past the end."""
    g, made, axes, result = y.graph, call.network.architecture, call.axes, list[Value]()
    if call.y is not None:
        if mask is not None:
            last = g.node("Gather", ends[0], g.index(-1), axis=0)
            y = g.where(g.unsqueeze(mask, 2), y, last)
        if call.part.flipped:
            y = g.node("Slice", y, g.integers(-1), g.integers(FARTHEST), g.integers(0), g.integers(-1))
        if "D" in axes["y"]:
            y = g.node("Reshape", y, g.integers(0, 0, made.directions, made.h_width))
        order = "BH" if call.form.step else "TBDH" if "D" in axes["y"] else "TBH"
        result.append(_arranged(y, order, axes["y"]))
    for values, end in zip(call.after, ends, strict=True):
        if any(v is not None for v in values):
            parts = g.split(end, [made.num_layers * made.directions // len(values)] * len(values), 0)
            result += [_arranged(part, "DBH", axes["h"])
                       for v, part in zip(values, parts, strict=True) if v is not None]  # fmt: skip
    return result
