"""ONNX models whose nodes compute steps of cells, in the many ways that exporters write them, for tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from lnrnn.onnx.parts import parts_of
from lnrnn.onnx.proof import prove
from lnrnn.onnx.reading import read
from onnx_files import FLOAT, model

GATES = {"LSTM": "ifgo", "GRU": "rzn", "RNN": "a", "LiGRU": "zn"}


def graph_parts(source):
    """Returns the parts of a file, with their nodes and values in its graph."""
    return parts_of(read(source))


def only_part(proto):
    """Returns the only part of a model, with nodes and values. Its network computes the model's outputs."""
    (part,) = graph_parts(proto)
    assert part.network is not None, part.reason
    assert prove(part, read(proto)) == ""
    return part


def taken(proto, nodes=1):
    """Returns the only part of a model, which a session of lnrnn runs as so many nodes, without a Loop."""
    part = only_part(proto)
    try:
        from plugin_runs import agree, alone, draw_inputs, profiled
    except pytest.skip.Exception:  # an old runtime
        return part
    theirs = alone(proto)
    given = draw_inputs(theirs, np.random.default_rng(0))
    with TemporaryDirectory() as folder:
        ours, ran, left = profiled(proto, given, Path(folder))
    agree(ours, theirs.run(None, given))
    assert len(ran) == nodes and not {"Loop", "Scan"} & left
    return part


class Writer:
    """Collects nodes. rng: exchanges the operands of Add and Mul at random; None keeps them."""

    def __init__(self, rng=None, prefix=""):
        self.nodes, self.arrays, self.rng, self.prefix = [], {}, rng, prefix

    def node(self, op, *inputs, n=1, **attributes):
        if op in ("Add", "Mul") and self.rng is not None and self.rng.integers(2):
            inputs = inputs[::-1]
        names = [f"{self.prefix}v{len(self.nodes)}_{k}" for k in range(n)]
        self.nodes.append(
            helper.make_node(op, inputs, names, f"{self.prefix}n{len(self.nodes)}", **attributes)
        )
        return names[0] if n == 1 else names

    def array(self, value, dtype=np.float32):
        name = f"{self.prefix}a{len(self.arrays)}"
        self.arrays[name] = np.asarray(value, dtype)
        return name

    def integers(self, *values):
        return self.array(values, np.int64)


def draw(rng, kind, D, H, bias=True):
    """Returns weights of one layer by lnrnn's names, for norm None."""
    G = len(GATES[kind])
    shapes = {"weight_ih": (G * H, D), "weight_hh": (G * H, H)}
    shapes |= {"bias_ih": (G * H,), "bias_hh": (G * H,)} if bias else {}
    return {name: rng.uniform(-0.7, 0.7, shape).astype(np.float32) for name, shape in shapes.items()}


def reordered(a, kind, order):
    """Returns an array with its gates in another order, such as "iofg"."""
    parts = dict(zip(GATES[kind], np.split(a, len(GATES[kind])), strict=True))
    return np.concatenate([parts[gate] for gate in order])


def affine(w, v, weight, bias, product="Gemm"):
    """Adds nodes for W v + b. product: "Gemm", "Gemm without transB", "MatMul", or "MatMul of Transpose"."""
    if product.startswith("Gemm"):
        transposed = product == "Gemm"
        given = [v, w.array(weight if transposed else weight.T)] + (
            [w.array(bias)] if bias is not None else []
        )
        return w.node("Gemm", *given, transB=int(transposed))
    matrix = w.array(weight if "Transpose" in product else weight.T)
    if "Transpose" in product:
        matrix = w.node("Transpose", matrix, perm=[1, 0])
    a = w.node("MatMul", v, matrix)
    return a if bias is None else w.node("Add", a, w.array(bias))


def cut(w, a, n, H, how="Split"):
    """Cuts `a` into n parts of H by nodes. how: "Split", "Split into sizes", "Slice", or "Slice by Shape"."""
    if how == "Split":
        return w.node("Split", a, n=n, axis=-1) if n > 1 else [a]
    if how == "Split into sizes":
        return w.node("Split", a, w.integers(*[H] * n), n=n, axis=1) if n > 1 else [a]
    axis = w.integers(1)
    if how == "Slice":
        return [w.node("Slice", a, w.integers(k * H), w.integers((k + 1) * H), axis) for k in range(n)]
    size = w.node("Div", w.node("Gather", w.node("Shape", a), axis), w.integers(n))
    ends = [w.node("Mul", size, w.integers(k)) for k in range(n + 1)]
    return [w.node("Slice", a, ends[k], ends[k + 1], axis) for k in range(n)]


def layer_norm(w, a, gain, bias, eps=1e-5, primitives=False):
    if not primitives:
        given = [a, w.array(gain)] + ([w.array(bias)] if bias is not None else [])
        return w.node("LayerNormalization", *given, axis=-1, epsilon=eps)
    d = w.node("Sub", a, w.node("ReduceMean", a, axes=[-1]))
    var = w.node("ReduceMean", w.node("Pow", d, w.array(2.0)), axes=[-1])
    a = w.node("Div", d, w.node("Sqrt", w.node("Add", var, w.array(eps))))
    a = w.node("Mul", a, w.array(gain))
    return a if bias is None else w.node("Add", a, w.array(bias))


def lstm(w, gates, c, sigmoid="Sigmoid", **attributes):
    """Adds nodes that compute an LSTM's new h and c. gates: {name: pre-activation}."""
    i, f, o = (w.node(sigmoid, gates[k], **attributes) for k in "ifo")
    c = w.node("Add", w.node("Mul", f, c), w.node("Mul", i, w.node("Tanh", gates["g"])))
    return w.node("Mul", o, w.node("Tanh", c)), c


def blend(w, z, n, h, how):
    """Adds nodes that compute a GRU's new h, (1 - z) n + z h, in a form that files have."""
    if how == "1 - z":
        return w.node("Add", w.node("Mul", w.node("Sub", w.array(1.0), z), n), w.node("Mul", z, h))
    if how == "h - n":
        return w.node("Add", w.node("Mul", w.node("Sub", h, n), z), n)
    if how == "n - h":
        return w.node("Add", w.node("Mul", w.node("Sub", w.array(1.0), z), w.node("Sub", n, h)), h)
    assert how == "z n"  # z is the weight of n
    return w.node("Add", w.node("Mul", z, n), w.node("Mul", w.node("Sub", w.array(1.0), z), h))


BLENDS = ("1 - z", "h - n", "n - h", "z n")


def step(w, kind, p, x, old, order=None, product="Gemm", how="Split", blended="h - n", f="Tanh"):
    """Adds one step without norms. p: weights by lnrnn's names. order: that of the file's gates. Returns h
    and, for an LSTM, c."""
    order = order or GATES[kind]
    p = {name: reordered(a, kind, order) for name, a in p.items()}
    H, n = p["weight_hh"].shape[1], len(order)
    if blended == "z n" and "z" in order:  # sigmoid(-a) is 1 - sigmoid(a)
        for a in p.values():
            a[order.index("z") * H : (order.index("z") + 1) * H] *= -1
    if product == "joined":
        matrix = np.concatenate([p["weight_ih"], p["weight_hh"]], 1)
        bias = p["bias_ih"] + p["bias_hh"] if "bias_ih" in p else None
        both = affine(w, w.node("Concat", x, old[0], axis=1), matrix, bias, "Gemm")
        gates = dict(zip(order, cut(w, both, n, H, how), strict=True))
    else:
        x_ = affine(w, x, p["weight_ih"], p.get("bias_ih"), product)
        h_ = affine(w, old[0], p["weight_hh"], p.get("bias_hh"), product)
        if kind == "GRU":
            return (gru(w, *(dict(zip(order, cut(w, a, n, H, how), strict=True)) for a in (x_, h_)), old[0],
                        blended),)  # fmt: skip
        gates = dict(zip(order, cut(w, w.node("Add", x_, h_), n, H, how), strict=True))
    if kind == "LSTM":
        return lstm(w, gates, old[1])
    if kind == "RNN":
        return (w.node(f, gates["a"]),)
    return (blend(w, w.node("Sigmoid", gates["z"]), w.node(f, gates["n"]), old[0], blended),)


def gru(w, x, h, old, blended):
    """Adds nodes that compute a GRU's new h. x, h: {gate: its part of W x or W h}."""
    r, z = (w.node("Sigmoid", w.node("Add", x[k], h[k])) for k in "rz")
    n = w.node("Tanh", w.node("Add", x["n"], w.node("Mul", r, h["n"])))
    return blend(w, z, n, old, blended)


def step_model(w, new, D, H, names=("x", "h0", "c0"), opset=17):
    """Returns the model of one step. new: the names of the new states."""
    sizes = dict(zip(names, (D, H, H), strict=False))
    used = {name for node in w.nodes for name in node.input}
    inputs = {name: (FLOAT, ("B", size)) for name, size in sizes.items() if name in used}
    return model(w.nodes, inputs, list(new), w.arrays, opset)


def body(w, inputs, outputs, name="body"):
    """Returns a graph for a Loop or Scan. inputs: {name: (type, shape)}. outputs: {name: type}."""
    return helper.make_graph(
        w.nodes, name, [helper.make_tensor_value_info(k, *v) for k, v in inputs.items()],
        [helper.make_tensor_value_info(k, v, None) for k, v in outputs.items()],
        [numpy_helper.from_array(a, k) for k, a in w.arrays.items()],
    )  # fmt: skip


@cache
def keep_registry():
    """Lets torch make its table of operators once a process, which takes longer than an export of a cell."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    ONNXRegistry.from_torchlib = staticmethod(cache(ONNXRegistry.from_torchlib))


def exported(module, args, dynamo, opset=17, free=False, **options):
    """Returns torch's export of a module as an onnx.ModelProto. free: the first two sizes of x are free."""
    import io
    import logging
    import warnings

    import torch

    if free:
        options["input_names"] = ["x"]
        sizes = {0: torch.export.Dim("a"), 1: torch.export.Dim("b")}
        free_of_script = dict(dynamic_axes={"x": {0: "a", 1: "b"}})
        options |= dict(dynamic_shapes=(sizes, *[None] * (len(args) - 1))) if dynamo else free_of_script
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            if dynamo:
                pytest.importorskip("onnxscript")
                keep_registry()
                program = torch.onnx.export(
                    module.eval(), args, dynamo=True, opset_version=max(opset, 18), verbose=False, **options
                )
                proto = program.model_proto
            else:
                file = io.BytesIO()
                torch.onnx.export(module.eval(), args, file, dynamo=False, opset_version=opset, **options)
                proto = onnx.load_from_string(file.getvalue())
    finally:
        logging.disable(logging.NOTSET)
    return proto
