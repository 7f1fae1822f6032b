"""Builds cells without a norm, from each library's own operator for whole sequences.

Builders have the arguments of those in peers_rnn.py. p has torch's names and order of gates.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from peers_norm import onnx_session
from peers_rnn import openvino_infer, torch_on
from race import Call

PARAMETERS = "weight_ih", "weight_hh", "bias_ih", "bias_hh"


def torch_layer(torch, cell, p):
    layer = getattr(torch.nn, cell.NAME)(p["weight_ih"].shape[1], p["weight_hh"].shape[1]).eval()
    layer.load_state_dict({f"{name}_l0": torch.from_numpy(v) for name, v in p.items()})
    return layer


def torch_module(cell, p, x, threads) -> Call:
    torch = torch_on(threads)
    module, x = torch_layer(torch, cell, p), torch.from_numpy(x)
    return Call(partial(module, x), answer=lambda: module(x)[0])


def onnx_model(cell, p, x, states=False) -> bytes:
    """Returns a model from x (T, B, I) to y (T, 1, B, H) with ONNX's operator, which has another order of
    gates. states: h, and an LSTM's c, are inputs too, and hn and cn are the only outputs."""
    from onnx import TensorProto, helper, numpy_helper

    hidden, (steps, batch, inputs) = p["weight_hh"].shape[1], x.shape
    parts = {name: np.split(v, cell.GATES) for name, v in p.items()}
    w, r, *b = (np.concatenate([v[k] for k in cell.ONNX_GATES])[None] for v in map(parts.get, PARAMETERS))
    constants = {"w": w, "r": r, "b": np.concatenate(b, 1)}

    def value(name, *shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    inputs_of, outputs_of, state = ["x", "w", "r", "b"], ["y"], (1, batch, hidden)
    ins, outs = [value("x", steps, batch, inputs)], [value("y", steps, 1, batch, hidden)]
    if states:
        before, after = ["h", "c"][: cell.STATES], ["hn", "cn"][: cell.STATES]
        inputs_of, outputs_of = [*inputs_of, "", *before], ["", *after]
        ins, outs = [*ins, *(value(n, *state) for n in before)], [value(n, *state) for n in after]
    node = helper.make_node(cell.NAME, inputs_of, outputs_of, hidden_size=hidden, **cell.ONNX_OPTIONS)
    initializers = [numpy_helper.from_array(v, name) for name, v in constants.items()]
    graph = helper.make_graph([node], "sequence", ins, outs, initializers)
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()


def onnxruntime_operator(cell, p, x, threads) -> Call:
    run = partial(onnx_session(onnx_model(cell, p, x), threads).run, ["y"], {"x": x})
    return Call(run, answer=lambda: run()[0][:, 0])


def openvino_operator(cell, p, x, threads, precision="f32") -> Call:
    infer = openvino_infer(onnx_model(cell, p, x), x, threads, precision)
    return Call(infer, answer=lambda: infer()[0][:, 0].copy())


PLAIN = {"torch": torch_module, "onnxruntime": onnxruntime_operator, "openvino": openvino_operator}
