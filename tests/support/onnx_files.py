"""ONNX models with recurrent nodes, for tests of lnrnn.onnx."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32


def weights(rng, kind, width=3, H=4, D=1, bias=True, prefix=""):
    """Returns W, R and B of a node as a dict. width: the number of inputs."""
    G = GATES[kind]
    shapes = {"W": (D, G * H, width), "R": (D, G * H, H)} | ({"B": (D, 2 * G * H)} if bias else {})
    return {prefix + name: rng.uniform(-0.6, 0.6, shape).astype(np.float32) for name, shape in shapes.items()}


def model_of(graph):
    """Returns a model that old runtimes read, such as those of two years ago."""
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def model(nodes, inputs, outputs, initializers=(), opset=17, producer="", more_opsets=(), **options):
    """Returns a model. inputs: {name: (type, shape)}. initializers: {name: array}."""
    return helper.make_model(
        helper.make_graph(
            nodes, "main",
            [helper.make_tensor_value_info(name, *info) for name, info in inputs.items()],
            [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
            [numpy_helper.from_array(a, name) for name, a in dict(initializers).items()],
        ),
        opset_imports=[helper.make_opsetid("", opset), *more_opsets], ir_version=8, producer_name=producer,
        **options,
    )  # fmt: skip


def recurrent(
    rng, kind, width=3, H=4, D=1, *, bias=True, lengths=False, states=False, opset=17, producer="",
    outputs=None, name="node", layout=0, peepholes=None, **attributes,
):  # fmt: skip
    """Returns a model of one node with inputs X, and lens, h0 and c0 if asked for, and all outputs.

    peepholes: the largest number of P; None: no P.
    """
    own = weights(rng, kind, width, H, D, bias)
    inputs = ["X", "W", "R", "B" if bias else "", "lens" if lengths else ""]
    names = ["h0", "c0"][: 1 + (kind == "LSTM")]
    inputs += names if states else []
    if peepholes is not None:
        own["P"] = rng.uniform(-peepholes, peepholes, (D, 3 * H)).astype(np.float32)
        inputs += [*[""] * (7 - len(inputs)), "P"]
    outputs = ["Y", "Y_h", "Y_c"][: 2 + (kind == "LSTM")] if outputs is None else outputs
    if layout:
        attributes["layout"] = layout
    if D == 2:
        attributes.setdefault("direction", "bidirectional")
    node = helper.make_node(kind, inputs, outputs, name, hidden_size=H, **attributes)
    given = {"X": (FLOAT, ("B", "T", width) if layout else ("T", "B", width))}
    given |= {"lens": (INT32, ("B",))} if lengths else {}
    given |= {each: (FLOAT, None) for each in names} if states else {}
    return model([node], given, [o for o in outputs if o], own, opset, producer)


def constant(name, value):
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value)))
