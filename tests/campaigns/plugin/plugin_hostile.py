"""Random ONNX models whose sizes, types, inputs or external files contradict each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import lnrnn
from onnx_files import recurrent
from plugin_runs import KINDS, alone, called, draw_inputs, feed

Rng = np.random.Generator
Call = dict[str, np.ndarray]


def some(rng: Rng, found: Any) -> Any:
    return found[int(rng.integers(len(found)))]


def one_node(rng: Rng) -> tuple[onnx.ModelProto, Call]:
    kind, D, layout = KINDS[rng.integers(3)], int(rng.integers(1, 3)), int(rng.random() < 0.2)
    H, width, T, B = (int(n) for n in rng.integers(1, 9, 4))
    options = {"lengths": bool(rng.random() < 0.6), "states": bool(rng.random() < 0.6), "layout": layout}
    proto = recurrent(rng, kind, width, H, D, bias=bool(rng.random() < 0.7), opset=14, **options)
    lengths = rng.integers(1, T + 1, B) if options["lengths"] else None
    return proto, feed(rng, kind, T, B, width, H, D, lengths, options["states"], layout)


def one_call(rng: Rng) -> tuple[onnx.ModelProto, Call]:
    """Returns the model of a call of a function, and inputs."""
    cell = getattr(lnrnn, some(rng, ["RNN", "LSTM", "GRU", "LiGRU"]))
    D, H, T, B = (int(n) for n in rng.integers((1, 3, 1, 1), 9))
    rnn = cell(D, H, num_layers=int(rng.integers(1, 3)), norm="layer", seed=int(rng.integers(100)))
    proto = called(rnn, **some(rng, [{}, {"lengths": True}, {"step": True}]))
    given = draw_inputs(alone(proto), rng, T=T, B=B)
    return proto, given | ({"lengths": rng.integers(0, T + 1, B, np.int32)} if "lengths" in given else {})


def drawn(seed: int) -> tuple[onnx.ModelProto, Call]:
    """Returns a model without a fault, and inputs."""
    rng = np.random.default_rng(seed)
    return some(rng, (one_node, one_node, one_call))(rng)


def other_size(rng: Rng, shape: tuple[int, ...]) -> list[int]:
    """Returns a shape with another size, another axis, or one axis less."""
    new = list(shape)
    how = rng.integers(5)
    if not new or how == 0:
        return [*new, int(rng.integers(0, 3))]
    k = int(rng.integers(len(new)))
    if how == 1:
        del new[k]
    elif how == 2 and len(new) > 1:
        new[k], new[k - 1] = new[k - 1], new[k]
    else:
        new[k] = max(0, new[k] + int(rng.choice([-1, 1, 7, new[k], -new[k]])))
    return new


def weight_size(rng: Rng, proto: onnx.ModelProto, given: Call) -> str:
    array = some(rng, proto.graph.initializer)
    a = numpy_helper.to_array(array)
    new = np.resize(a, other_size(rng, a.shape)) if a.size else a
    if array.name == "M" and not new.size:
        return ""  # ONNX Runtime 1.32 reads the first number of an empty constant
    array.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(new), array.name))
    return f"shape {new.shape} of {array.name}"


def weight_type(rng: Rng, proto: onnx.ModelProto, given: Call) -> str:
    array = some(rng, proto.graph.initializer)
    dtype = (np.float64, np.float16, np.int32, np.int8, np.uint8, np.int64)[rng.integers(6)]
    array.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(array).astype(dtype), array.name))
    return f"type of {array.name}"


def attribute(rng: Rng, proto: onnx.ModelProto, given: Call) -> str:
    node = some(rng, proto.graph.node)
    if not node.attribute or node.domain == "lnrnn":  # whose body does not read them
        return ""
    a = node.attribute[int(rng.integers(len(node.attribute)))]
    if a.type == onnx.AttributeProto.INT:
        a.i = int(rng.choice([-1, 0, 1, 2, a.i + 1, a.i - 1, 2**31, 2**62, -(2**62)]))
    elif a.type == onnx.AttributeProto.STRING:
        a.s = rng.choice([b"", b"forwar", b"bidirectional", b"reverse"])
    elif a.type == onnx.AttributeProto.INTS:
        a.ints.append(int(rng.choice([-1, 0, 1, 2**40])))
    else:
        return ""
    return f"attribute {a.name} of {node.name}"


def lengths(rng: Rng, proto: onnx.ModelProto, given: Call) -> str:
    if "lens" not in given:
        return ""
    given["lens"][rng.integers(given["lens"].size)] = rng.choice([-1, -(2**31), 2**31 - 1, 100, 10])
    return "lengths"


def input_size(rng: Rng, proto: onnx.ModelProto, given: Call) -> str:
    name = str(rng.choice(list(given)))
    shape = other_size(rng, given[name].shape)
    if len(shape) != given[name].ndim and proto.functions:
        return ""  # ONNX Runtime 1.32 aborts the process in the Scan of the body
    given[name] = np.resize(given[name], shape) if given[name].size else np.zeros(shape, given[name].dtype)
    for i in proto.graph.input:
        if i.name == name and rng.random() < 0.7:
            i.type.tensor_type.ClearField("shape")
    return f"shape {shape} of {name}"


def input_type(rng: Rng, proto: onnx.ModelProto, given: Call) -> str:
    i = proto.graph.input[int(rng.integers(len(proto.graph.input)))]
    types = (TensorProto.DOUBLE, TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT16, TensorProto.FLOAT)
    i.type.tensor_type.elem_type = types[rng.integers(5)]
    if i.name in given:
        dtype = helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
        given[i.name] = given[i.name].astype(dtype)
    return f"type of {i.name}"


def outputs(rng: Rng, proto: onnx.ModelProto, given: Call) -> str:
    node = some(rng, proto.graph.node)
    if not node.output or node.op_type == "Split":
        return ""  # ONNX Runtime 1.32 crashes if an output of Split is left out
    node.output[int(rng.integers(len(node.output)))] = ""
    return f"an output of {node.name}"


def inputs(rng: Rng, proto: onnx.ModelProto, given: Call) -> str:
    node = some(rng, proto.graph.node)
    if not node.input or node.op_type == "LayerNormalization":
        return ""  # ONNX Runtime 1.32 crashes if the name of a bias is empty
    if rng.random() < 0.5:
        node.input[int(rng.integers(len(node.input)))] = ""
    else:
        node.input.append(node.input[int(rng.integers(len(node.input)))])
    return f"an input of {node.name}"


CHANGES: tuple[Any, ...] = (
    weight_size, weight_size, weight_type, attribute, lengths, input_size, input_type, outputs, inputs,
)  # fmt: skip


def changed(rng: Rng, proto: onnx.ModelProto, given: Call) -> str:
    """Changes a model or its inputs. Returns the name of the part."""
    for _ in range(20):
        if what := CHANGES[rng.integers(len(CHANGES))](rng, proto, given):
            return str(what)
    return ""


def saved(proto: onnx.ModelProto, folder: Path) -> tuple[str, Path]:
    """Writes a model with its weights in a file. Returns the paths of both."""
    for old in folder.glob("weights*"):
        old.unlink()
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    path = folder / "external.onnx"
    onnx.save(copy, path, save_as_external_data=True, location="weights", size_threshold=0)
    return str(path), folder / "weights"
