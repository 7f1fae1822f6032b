"""Builds the cells of peers_rnn.py and peers_plain.py with weights in bfloat16 and int8.

Builders have the arguments of those in peers_rnn.py. p has the order of `cell.for_peers`, or torch's order
without a norm. A builder raises Unavailable if its library would silently compute in float32."""

from __future__ import annotations

import logging
import tempfile
import warnings
from functools import partial
from pathlib import Path

import numpy as np

import peers_plain
import peers_rnn
from case import Unavailable
from peers_norm import onnx_session
from peers_rnn import openvino_infer, torch_on
from race import Call

# OpenVINO quantises this many activations of a row with one scale. Smaller groups are more exact, and usually
# slower.
GROUP = 256


def torch_module(cell, p, x, threads) -> Call:
    """Returns a contender: torch.nn's RNN, LSTM or GRU, with x, y and states in bfloat16."""
    torch = torch_on(threads)
    module, x = peers_plain.torch_layer(torch, cell, p).bfloat16(), torch.from_numpy(x).bfloat16()
    return Call(partial(module, x), answer=lambda: module(x)[0])


def torch_loop(cell, p, x, threads) -> Call:
    return peers_rnn.torch_loop(cell, p, x, threads, "bfloat16")


def torch_quantized(cell, p, x, threads) -> Call:
    """Returns torch.nn's module after quantize_dynamic: weights in int8 with a scale for each output,
    activations in 7 bits with a scale for each product. torch has no other type of activations."""
    torch = torch_on(threads)
    kind, tools = getattr(torch.nn, cell.NAME), torch.ao.quantization
    holder = torch.nn.ModuleList([peers_plain.torch_layer(torch, cell, p)])  # quantize_dynamic replaces it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # later versions of torch deprecate it
        module = tools.quantize_dynamic(holder, {kind: tools.per_channel_dynamic_qconfig})[0]
    if type(module) is kind:
        raise Unavailable(f"has no {cell.NAME}: quantize_dynamic leaves it in float32")
    x = torch.from_numpy(x)
    return Call(partial(module, x), answer=lambda: module(x)[0])


INTEGER = {"MatMulInteger", "DynamicQuantizeLSTM"}  # the operators of quantised products


def _quantized(model: bytes, name: str) -> bytes:
    """Returns the model after quantize_dynamic: int8 weights with a scale for each output, activations in 8
    bits with a scale for each product."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    how = {"per_channel": True, "weight_type": QuantType.QInt8, "extra_options": {"EnableSubgraph": True}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "quantized.onnx")
        logging.disable(logging.WARNING)  # the warning advises to simplify the model first
        try:
            quantize_dynamic(onnx.load_from_string(model), path, **how)
        finally:
            logging.disable(logging.NOTSET)
        quantized = onnx.load(path)
    bodies = [a.g for node in quantized.graph.node for a in node.attribute if a.HasField("g")]
    for graph in bodies or [quantized.graph]:
        if not INTEGER & {node.op_type for node in graph.node}:
            raise Unavailable(f"has no {name}: quantize_dynamic leaves it in float32")
    return quantized.SerializeToString()


def onnxruntime_scan(cell, p, x, threads) -> Call:
    model = _quantized(peers_rnn.onnx_model(cell, p, x, whole=True), cell.NAME)
    return Call(partial(onnx_session(model, threads).run, ["y"], {"x": x}))


def onnxruntime_operator(cell, p, x, threads) -> Call:
    session = onnx_session(_quantized(peers_plain.onnx_model(cell, p, x), cell.NAME), threads)
    run = partial(session.run, ["y"], {"x": x})
    return Call(run, answer=lambda: run()[0][:, 0])


def _int8_matrices(graph) -> None:
    """Replaces the matrices of an ONNX graph by int8 with a scale for each output, and a DequantizeLinear.
    OpenVINO then multiplies in int8, and quantises the other factor."""
    from onnx import helper, numpy_helper

    matrices = {value.name: value for value in graph.initializer}
    dequantized = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _int8_matrices(attribute.g)
        if node.op_type == "MatMul":
            name = node.input[1]
            w = numpy_helper.to_array(matrices[name])  # (inputs, outputs)
            scale = np.abs(w).max(0) / np.float32(127)
            graph.initializer.remove(matrices[name])
            parts = {f"{name}_int8": np.rint(w / scale).astype(np.int8), f"{name}_scale": scale}
            graph.initializer.extend(numpy_helper.from_array(v, key) for key, v in parts.items())
            dequantized.append(helper.make_node("DequantizeLinear", [*parts], [name], axis=1))
    nodes = [*dequantized, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def openvino_quantized_scan(cell, p, x, threads) -> Call:
    """Returns ONNX's Scan with int8 matrices, and activations in 8 bits with a scale for GROUP numbers of a
    row."""
    import onnx

    model = onnx.load_from_string(peers_rnn.onnx_model(cell, p, x, whole=True))
    _int8_matrices(model.graph)
    more = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP}
    infer = openvino_infer(model.SerializeToString(), x, threads, more=more)
    return Call(infer, answer=lambda: infer()[0].copy())


# {norm of the cell: {type of the weights: {peer: builder}}}
NARROW = {
    "layer": {
        "bfloat16": {"openvino bf16": partial(peers_rnn.openvino_scan, precision="bf16"),
                     "torch.jit bf16": torch_loop},
        "int8": {"openvino int8": openvino_quantized_scan, "onnxruntime int8": onnxruntime_scan},
    },
    None: {
        "bfloat16": {"openvino bf16": partial(peers_plain.openvino_operator, precision="bf16"),
                     "torch bf16": torch_module},
        "int8": {"onnxruntime int8": onnxruntime_operator, "torch int8": torch_quantized},
    },
}  # fmt: skip
