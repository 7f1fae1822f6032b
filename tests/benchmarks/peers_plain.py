"""The cells without a norm, torch.nn's own, by the libraries' own operators for a whole sequence. Builders as
in peers_rnn.py; p has torch's names and order of gates.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from peers_norm import onnx_session
from peers_rnn import openvino_infer, torch_on
from race import Call


def torch_layer(torch, cell, p):
    """torch.nn.RNN, LSTM or GRU with these parameters."""
    layer = getattr(torch.nn, cell.NAME)(p["weight_ih"].shape[1], p["weight_hh"].shape[1]).eval()
    layer.load_state_dict({f"{name}_l0": torch.from_numpy(v) for name, v in p.items()})
    return layer


def torch_module(cell, p, x, threads) -> Call:
    torch = torch_on(threads)
    module, x = torch_layer(torch, cell, p), torch.from_numpy(x)
    return Call(partial(module, x), answer=lambda: module(x)[0])


def onnx_model(cell, p, x) -> bytes:
    """x (T, B, I) to y (T, 1, B, H) by ONNX's operator, whose gates have an order of their own."""
    from onnx import TensorProto, helper, numpy_helper

    hidden, (steps, batch, inputs) = p["weight_hh"].shape[1], x.shape
    reordered = {
        name: np.concatenate([np.split(v, cell.GATES)[k] for k in cell.ONNX_GATES])[None]
        for name, v in p.items()
    }
    constants = {
        "w": reordered["weight_ih"],
        "r": reordered["weight_hh"],
        "b": np.concatenate([reordered["bias_ih"], reordered["bias_hh"]], 1),
    }

    def value(name, *shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    node = helper.make_node(cell.NAME, ["x", "w", "r", "b"], ["y"], hidden_size=hidden, **cell.ONNX_OPTIONS)
    graph = helper.make_graph(
        [node],
        "sequence",
        [value("x", steps, batch, inputs)],
        [value("y", steps, 1, batch, hidden)],
        [numpy_helper.from_array(v, name) for name, v in constants.items()],
    )
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()


def onnxruntime_operator(cell, p, x, threads) -> Call:
    run = partial(onnx_session(onnx_model(cell, p, x), threads).run, ["y"], {"x": x})
    return Call(run, answer=lambda: run()[0][:, 0])


def openvino_operator(cell, p, x, threads, precision="f32") -> Call:
    infer = openvino_infer(onnx_model(cell, p, x), x, threads, precision)
    return Call(infer, answer=lambda: infer()[0][:, 0].copy())


PLAIN = {"torch": torch_module, "onnxruntime": onnxruntime_operator, "openvino": openvino_operator}
