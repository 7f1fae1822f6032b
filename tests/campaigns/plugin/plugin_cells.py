"""Random ONNX models of cells in plain operators: one step, unrolled steps, a Scan or a Loop."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import lnrnn
import onnx_loops
from lnrnn.recognise.patterns import PATTERNS
from networks import calm
from onnx_cells import BLENDS, GATES, Writer, affine, cut, draw, gru, layer_norm, lstm, step, step_model
from onnx_files import FLOAT, model

Rng = np.random.Generator
SIZES = (1, 2, 3, 5, 8, 16, 17, 33)
EPSILONS = (1e-5, 1e-3, 1e-2, 0.1)


def pick(rng: Rng, choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def by_to_onnx(rng: Rng) -> tuple[onnx.ModelProto, bool]:
    """Returns a network of a random pattern as to_onnx writes it, and whether the model is one step."""
    pattern = pick(rng, PATTERNS)
    norm = None if pattern.norm is None else lnrnn.LayerNormSpec(**pattern.norm)
    norm = replace(norm, eps=float(pick(rng, EPSILONS))) if norm else None
    D, H = (int(pick(rng, SIZES)) for _ in range(2))
    more = dict(pattern.options) | ({"proj_size": max(H // 2, 1)} if pattern.has_projection else {})
    one = norm is None or bool(rng.random() < 0.5)
    if H == 1 and "proj_size" in more:
        H = 2
    if not one:
        more["reverse"] = bool(rng.random() < 0.5)
    rnn = calm(D, H, cell=pattern.cell, norm=norm, seed=int(rng.integers(1 << 30)), **more)
    with tempfile.TemporaryDirectory() as folder:
        lnrnn.to_onnx(rnn, Path(folder) / "model.onnx", step=one)
        return onnx.load(str(Path(folder) / "model.onnx")), one


def normed(w: Writer, rng: Rng, kind: str, D: int, H: int, x: str, old: list[str]) -> list[str]:
    """Adds a step of an LSTM or GRU with layer norm. The order of an LSTM's gates is random."""
    eps, primitives = float(pick(rng, EPSILONS)), bool(rng.random() < 0.5)
    order = "".join(rng.permutation(list(GATES[kind]))) if kind == "LSTM" else GATES[kind]
    p, placement = draw(rng, kind, D, H, bias=False), pick(rng, ("split", "joint", "gate"))

    def norm(a: str, n: int) -> str:
        bias = rng.uniform(-1, 1, n) if rng.random() < 0.7 else None
        return str(layer_norm(w, a, rng.uniform(0.5, 1.5, n), bias, eps, primitives))

    n, how = len(order), pick(rng, ("Split", "Slice"))
    x_, h_ = (affine(w, v, p[k], None) for v, k in ((x, "weight_ih"), (old[0], "weight_hh")))
    if kind == "GRU":
        sides = [dict(zip(order, cut(w, norm(a, n * H), n, H, how), strict=True)) for a in (x_, h_)]
        return [gru(w, *sides, old[0], pick(rng, BLENDS[:3]))]
    if placement == "split":
        parts = cut(w, w.node("Add", norm(x_, n * H), norm(h_, n * H)), n, H, how)
    elif placement == "joint":
        parts = cut(w, norm(w.node("Add", x_, h_), n * H), n, H, how)
    else:
        parts = [norm(a, H) for a in cut(w, w.node("Add", x_, h_), n, H, how)]
    return list(lstm(w, dict(zip(order, parts, strict=True)), old[1]))


def without_norm(w: Writer, rng: Rng, kind: str, D: int, H: int, x: str, old: list[str]) -> list[str]:
    product = pick(rng, ("Gemm", "Gemm without transB", "MatMul", "MatMul of Transpose", "joined"))
    product = "Gemm" if (kind, product) == ("GRU", "joined") else product
    order = "".join(rng.permutation(list(GATES[kind]))) if kind != "GRU" else None
    how, blended = pick(rng, ("Split", "Split into sizes", "Slice", "Slice by Shape")), pick(rng, BLENDS)
    p = draw(rng, kind, D, H, bias=blended != "n - h" and bool(rng.random() < 0.8))
    return list(step(w, kind, p, x, old, order, product, how, blended))


def by_exporters(rng: Rng) -> tuple[onnx.ModelProto, bool]:
    """Returns a cell in a form that exporters write, and whether the model is one step."""
    add = pick(rng, (normed, without_norm))
    kind = str(pick(rng, ("LSTM", "GRU") if add is normed else ("LSTM", "GRU", "RNN", "LiGRU")))
    D, H, form = int(pick(rng, SIZES)), int(pick(rng, SIZES)), pick(rng, ("step", "step", "Scan", "Loop"))
    if form == "step" or kind == "LiGRU":
        w = Writer(rng)
        return step_model(w, add(w, rng, kind, D, H, "x", ["h0", "c0"]), D, H), True
    if form == "Scan":
        back = (int(rng.integers(2)),) * 2 if rng.random() < 0.8 else (0, 1)
        return onnx_loops.scan(rng, kind, back, D=D, H=H, add=add), False
    options = {"join": pick(rng, ("sequence", "scan output")), "trip": pick(rng, ("shape", 2))}
    return onnx_loops.loop(rng, kind, D=D, H=H, add=add, **options), False


def unrolled(rng: Rng, proto: onnx.ModelProto, steps: int) -> onnx.ModelProto:
    """Returns `steps` copies of a step, each with the states of the one before. x may be one input of all
    steps, forwards or backwards, and a Concat may join the outputs. The outputs end with the last states."""
    graph, w = proto.graph, Writer()
    states = [i.name for i in graph.input if i.name != "x"]
    new = [o.name for o in graph.output][-len(states) :]
    one_x, joined, first, by = rng.random() < 0.6, rng.random() < 0.6, int(rng.integers(2)), 1
    if rng.random() < 0.3:
        first, by = first + steps - 1, -1
    ys, more = [], {}
    for i in graph.input:
        shape = [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim]
        if i.name != "x":
            more[i.name] = shape
        elif one_x:
            more["x"] = [steps + 1, *shape]
        else:
            more |= {f"x{t}": shape for t in range(steps)}
    for t in range(steps):
        x = w.node("Gather", "x", w.array(first + by * t, np.int64), axis=0) if one_x else f"x{t}"
        names = {a.name: f"{a.name}_0" for a in graph.initializer} | {"x": x, "": ""}
        names |= {h: h if not t else f"{after}_{t - 1}_0" for h, after in zip(states, new, strict=True)}
        for node in graph.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            del copy.input[:], copy.output[:]
            copy.input.extend(names.get(name, f"{name}_{t}_0") for name in node.input)
            copy.output.extend(f"{name}_{t}_0" if name else "" for name in node.output)
            copy.name = f"{node.name}_{t}_0"
            w.nodes.append(copy)
        ys.append(f"{new[0]}_{t}_0")
    if joined:
        outputs = [w.node("Concat", *(w.node("Unsqueeze", y, w.integers(0)) for y in ys), axis=0)]
    else:
        outputs = ys[:-1]
    outputs += [f"{name}_{steps - 1}_0" for name in new]
    own = w.arrays | {f"{a.name}_0": numpy_helper.to_array(a) for a in graph.initializer}
    return model(w.nodes, {name: (FLOAT, shape) for name, shape in more.items()}, outputs, own,
                 proto.opset_import[0].version)  # fmt: skip


def inputs_of(rng: Rng, proto: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    """Returns the inputs of two calls, of other sizes."""
    calls = []
    for _ in range(2):
        sizes = {"T": int(rng.integers(2, 7)), "B": int(rng.integers(1, 5))}
        shapes = {
            i.name: [sizes.get(d.dim_param, d.dim_value) for d in i.type.tensor_type.shape.dim]
            for i in proto.graph.input
        }
        calls.append({k: rng.standard_normal(shape).astype(np.float32) for k, shape in shapes.items()})
    return calls


def drawn(seed: int) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """Returns a model, and the inputs of two calls."""
    rng = np.random.default_rng(seed)
    proto, one = pick(rng, (by_to_onnx, by_exporters))(rng)
    if one and rng.random() < 0.5:
        proto = unrolled(rng, proto, int(rng.integers(2, 6)))
    return proto, inputs_of(rng, proto)


# --- near misses --------------------------------------------------------------------------------------------

OTHERS = {
    "Add": ("Sub", "Mul"), "Mul": ("Add", "Sub"), "Sub": ("Add", "Mul"), "Sigmoid": ("Tanh", "HardSigmoid"),
    "Tanh": ("Sigmoid", "Relu"), "Div": ("Mul",), "Pow": ("Mul",), "Relu": ("Tanh",), "Sqrt": ("Abs",),
}  # fmt: skip


def graphs_of(proto: onnx.ModelProto) -> list[onnx.GraphProto]:
    return [proto.graph, *(a.g for node in proto.graph.node for a in node.attribute if a.name == "body")]


def another_edge(rng: Rng, graph: onnx.GraphProto) -> str:
    """An input of a node becomes another value that is known before it, or two inputs change places."""
    at = int(rng.integers(len(graph.node)))
    node = graph.node[at]
    if not node.input:
        return ""
    k = int(rng.integers(len(node.input)))
    if len(node.input) > 1 and rng.random() < 0.3:
        node.input[0], node.input[1] = node.input[1], node.input[0]
        return f"inputs of {node.name}"
    known = [i.name for i in graph.input] + [a.name for a in graph.initializer]
    known += [name for before in graph.node[:at] for name in before.output if name]
    old, node.input[k] = node.input[k], str(pick(rng, known))
    return f"input {k} of {node.name}" if node.input[k] != old else ""


def another_attribute(rng: Rng, graph: onnx.GraphProto) -> str:
    found = [(n, a) for n in graph.node for a in n.attribute if a.type in (1, 2, 7)]
    if not found:
        return ""
    node, a = pick(rng, found)
    if a.type == onnx.AttributeProto.FLOAT:
        a.f *= pick(rng, (0.0, 0.5, 2.0, 100.0))
    elif a.type == onnx.AttributeProto.INT:
        a.i = 1 - a.i if a.i in (0, 1) else a.i + int(pick(rng, (-1, 1)))
    elif a.ints:
        a.ints[int(rng.integers(len(a.ints)))] += int(pick(rng, (-1, 1)))
    return f"attribute {a.name} of {node.name}"


def another_constant(rng: Rng, graph: onnx.GraphProto) -> str:
    if not graph.initializer:
        return ""
    array = pick(rng, graph.initializer)
    a = numpy_helper.to_array(array).copy()
    if not a.size:
        return ""
    at = tuple(int(rng.integers(n)) for n in a.shape)
    how = rng.integers(4)
    if a.dtype == bool:
        a = ~a
    elif a.dtype != np.float32:
        a[at] += pick(rng, (-1, 1))
    elif how == 0:
        a[at] = pick(rng, (0.0, 2.0, -1.0))
    elif how == 1:
        a *= np.float32(pick(rng, (0.0, 0.5, -1.0)))
    elif how == 2:
        a = a[None]
    else:
        a = np.roll(a, 1)
    array.CopyFrom(numpy_helper.from_array(a, array.name))
    return f"constant {array.name}"


def another_operator(rng: Rng, graph: onnx.GraphProto) -> str:
    node = pick(rng, graph.node)
    if node.op_type not in OTHERS or (node.op_type == "Pow" and len(node.input) != 2):
        return ""
    node.op_type = pick(rng, OTHERS[node.op_type])
    return f"operator of {node.name}"


def another_output(rng: Rng, graph: onnx.GraphProto) -> str:
    """A value inside becomes an output, in the place of another or as one more; or two change places."""
    values = [name for node in graph.node for name in node.output if name]
    k = int(rng.integers(len(graph.output)))
    how = rng.integers(3)
    if how == 0 and len(graph.output) > 1:
        j = (k + 1) % len(graph.output)
        graph.output[k].name, graph.output[j].name = graph.output[j].name, graph.output[k].name
    else:
        name = str(pick(rng, values))
        if name in [o.name for o in graph.output]:
            return ""
        if how == 1:
            graph.output[k].name = name
        else:
            graph.output.append(helper.make_tensor_value_info(name, FLOAT, None))
    return f"output {k}"


CHANGES = (another_edge, another_edge, another_attribute, another_constant, another_operator, another_output)


def changed(rng: Rng, proto: onnx.ModelProto) -> str:
    """Changes one edge, attribute, constant, operator or output of a model. Returns the name of the part."""
    for _ in range(20):
        if what := pick(rng, CHANGES)(rng, graphs_of(proto)[int(rng.integers(len(graphs_of(proto))))]):
            return str(what)
    return ""
