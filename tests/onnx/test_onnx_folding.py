"""Weights that nodes compute from constants have the values that ONNX Runtime computes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx_ir")

from onnx import TensorProto, helper  # noqa: E402

from lnrnn.onnx import OnnxFileError  # noqa: E402
from lnrnn.onnx.reading import read  # noqa: E402
from lnrnn.recognise.graph import constant as folded  # noqa: E402
from lnrnn.recognise.graph import is_zero
from onnx_files import FLOAT, constant, model  # noqa: E402
from onnx_runs import run  # noqa: E402

A = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
INTS = np.array([1, 2], np.int64)


def ints(*numbers):
    return np.array(numbers, np.int64)


# (operator, inputs, attributes, opset, number of outputs)
CASES = [
    ("Identity", [A], {}, 17, 1),
    ("Cast", [A], {"to": TensorProto.INT32}, 17, 1),
    ("Cast", [A], {"to": TensorProto.DOUBLE}, 17, 1),
    ("Concat", [A, A], {"axis": 1}, 17, 1),
    ("Concat", [A, A], {"axis": -1}, 17, 1),
    ("Transpose", [A], {}, 17, 1),
    ("Transpose", [A], {"perm": [1, 0, 2]}, 17, 1),
    ("Reshape", [A, ints(0, -1)], {}, 17, 1),
    ("Reshape", [A, ints(4, 0, 2)], {}, 17, 1),
    ("Reshape", [A[:0], ints(0, 5)], {"allowzero": 1}, 17, 1),
    ("Flatten", [A], {}, 17, 1),
    ("Flatten", [A], {"axis": 0}, 17, 1),
    ("Flatten", [A], {"axis": -1}, 17, 1),
    ("Unsqueeze", [A, ints(0, 2)], {}, 17, 1),
    ("Unsqueeze", [A, ints(-1)], {}, 17, 1),
    ("Unsqueeze", [A], {"axes": [0, 4]}, 11, 1),
    ("Squeeze", [A[:1], ints(0)], {}, 17, 1),
    ("Squeeze", [A[:1]], {}, 17, 1),
    ("Squeeze", [A[:1]], {"axes": [0]}, 11, 1),
    ("Slice", [A, ints(1), ints(3), ints(1)], {}, 17, 1),
    ("Slice", [A, ints(0, 1), ints(1, 2**62)], {}, 17, 1),
    ("Slice", [A, ints(-1), ints(-(2**62)), ints(2), ints(-1)], {}, 17, 1),
    ("Slice", [A, ints(2**40), ints(0), ints(2), ints(-2)], {}, 17, 1),
    ("Slice", [A, ints(-9), ints(-1), ints(-1), ints(2)], {}, 17, 1),
    ("Slice", [A, ints(-5), ints(-(2**62)), ints(2), ints(-1)], {}, 17, 1),
    ("Slice", [A, ints(-9), ints(-(2**31)), ints(-1), ints(-2)], {}, 17, 1),
    ("Slice", [A, ints(2), ints(1), ints(0)], {}, 17, 1),
    ("Slice", [A], {"starts": [1, 0], "ends": [2, 2]}, 9, 1),
    ("Slice", [A], {"starts": [-2], "ends": [2**31], "axes": [2]}, 9, 1),
    ("Split", [A], {"axis": 2}, 17, 2),
    ("Split", [A, ints(1, 3)], {"axis": -1}, 17, 2),
    ("Split", [A], {"axis": 2, "split": [3, 1]}, 11, 2),
    ("Split", [A], {"axis": 1, "num_outputs": 2}, 18, 2),
    ("Gather", [A, ints(2, 0)], {"axis": 1}, 17, 1),
    ("Gather", [A, np.array(-1)], {}, 17, 1),
    ("Shape", [A], {}, 17, 1),
    ("Shape", [A], {"start": -2}, 17, 1),
    ("Shape", [A], {"start": 0, "end": -1}, 17, 1),
    ("ConstantOfShape", [INTS], {}, 17, 1),
    ("ConstantOfShape", [INTS], {"value": helper.make_tensor("v", FLOAT, [1], [1.5])}, 17, 1),
    ("Expand", [A[:1], ints(2, 2, 1, 1)], {}, 17, 1),
    ("Expand", [A, ints(4)], {}, 17, 1),
    ("DequantizeLinear", [A.astype(np.int8), np.float32(0.5)], {}, 17, 1),
    ("DequantizeLinear", [A.astype(np.uint8), np.float32(0.5), np.uint8(3)], {}, 17, 1),
    ("DequantizeLinear", [A.astype(np.int8), np.float32([1, 2, 3]), np.int8([1, -2, 3])], {}, 17, 1),
    ("DequantizeLinear", [A.astype(np.int8), np.float32([1, 2]), np.int8([1, -2])], {"axis": 0}, 17, 1),
    ("DequantizeLinear", [A.astype(np.int32), np.float32(0.1)], {}, 10, 1),
    ("Constant", [], {"value_int": 3}, 17, 1),
    ("Constant", [], {"value_ints": [3, 4]}, 17, 1),
    ("Constant", [], {"value_float": 0.5}, 17, 1),
    ("Constant", [], {"value_floats": [0.5, 2.0]}, 17, 1),
]


def node_of(op, count, attributes, outputs):
    return helper.make_node(
        op, [f"i{k}" for k in range(count)], [f"o{k}" for k in range(outputs)], **attributes
    )


@pytest.mark.parametrize(
    "op, inputs, attributes, opset, outputs", CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_an_operator_on_constants_has_the_value_of_onnx_runtime(op, inputs, attributes, opset, outputs):
    nodes = [constant(f"i{k}", a) for k, a in enumerate(inputs)]
    names = [f"o{k}" for k in range(outputs)]
    proto = model([*nodes, node_of(op, len(inputs), attributes, outputs)], {}, names, opset=opset)
    for value in proto.graph.output:
        value.type.ClearField("tensor_type")
    want = run(proto, {})
    graph = read(proto).graph
    for value in graph.outputs:
        got = folded(value)
        assert got.dtype == want[value.name].dtype and not got.flags.writeable
        np.testing.assert_array_equal(got, want[value.name])


WRONG = [
    ("Concat", [A, A[:, :2]], {"axis": 0}),
    ("Concat", [A], {"axis": 9}),
    ("Transpose", [A], {"perm": [0, 0, 1]}),
    ("Reshape", [A, ints(5, -1)], {}),
    ("Reshape", [A, ints(-1, -1)], {}),
    ("Reshape", [A, A], {}),
    ("Unsqueeze", [A, ints(9)], {}),
    ("Unsqueeze", [A, ints(0, 0)], {}),
    ("Squeeze", [A, ints(1)], {}),
    ("Slice", [A, ints(0, 1), ints(1)], {}),
    ("Slice", [A, ints(0), ints(1), ints(7)], {}),
    ("Slice", [A, ints(0), ints(1), ints(0), ints(0)], {}),
    ("Split", [A, ints(9)], {}),
    ("Split", [A, ints(-1)], {}),
    ("Gather", [A, ints(9)], {}),
    ("Expand", [A, ints(5)], {}),
    ("Expand", [A, ints(2**40, 2, 3, 4)], {}),
    ("ConstantOfShape", [ints(2**40)], {}),
    ("ConstantOfShape", [ints(-1)], {}),
    ("ConstantOfShape", [ints(2**62, 2**62)], {}),
    ("ConstantOfShape", [A], {}),
    ("Cast", [A], {"to": 99}),
    ("Cast", [A], {}),
    ("DequantizeLinear", [A.astype(np.int8), np.float32([1, 2])], {"axis": 1}),
    ("DequantizeLinear", [A.astype(np.int8), np.zeros(A.shape, np.float32)], {}),
    ("Identity", [], {}),
]  # fmt: skip


@pytest.mark.parametrize("op, inputs, attributes", WRONG, ids=lambda v: v if isinstance(v, str) else "")
def test_a_node_that_does_not_fit_its_constants_is_named(op, inputs, attributes):
    nodes = [constant(f"i{k}", a) for k, a in enumerate(inputs)]
    proto = model([*nodes, node_of(op, len(inputs), attributes, 1)], {}, ["o0"])
    with pytest.raises(OnnxFileError, match=rf"\({op}\)"):
        folded(read(proto).graph.outputs[0])


def test_constants_that_need_more_memory_than_the_file_justifies_are_refused():
    """Each of 40 nodes Concat doubles an array."""
    nodes = [constant("c0", np.zeros(1000, np.float32))]
    nodes += [helper.make_node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(40)]
    with pytest.raises(OnnxFileError, match="at most 16 bytes for each byte of the file"):
        folded(read(model(nodes, {}, ["c40"])).graph.outputs[0])


def test_a_long_chain_of_nodes_is_computed():
    nodes = [constant("c0", A)]
    nodes += [helper.make_node("Identity", [f"c{i}"], [f"c{i + 1}"]) for i in range(5000)]
    np.testing.assert_array_equal(folded(read(model(nodes, {}, ["c5000"])).graph.outputs[0]), A)


@pytest.mark.parametrize("op, inputs, attributes", [
    ("QuantizeLinear", [A, np.float32(1)], {}), ("Cast", [A], {"to": TensorProto.STRING}),
    ("Constant", [], {"value_string": "a"}), ("Gather", [A, np.zeros((9, 9), np.int64)], {}),
    ("DequantizeLinear", [A.astype(np.int8), A[:, :2]], {"block_size": 2}),
])  # fmt: skip
def test_a_valid_node_that_is_not_computed_is_no_constant(op, inputs, attributes):
    nodes = [*(constant(f"i{k}", a) for k, a in enumerate(inputs)), node_of(op, len(inputs), attributes, 1)]
    assert folded(read(model(nodes, {}, ["o0"])).graph.outputs[0]) is None


def test_zeros_are_recognised_whatever_their_shape_is():
    given = {"X": (FLOAT, None), "shape": (TensorProto.INT64, None)}
    nodes = [
        constant("zero", np.float32(0)),
        constant("one", np.float32(1)),
        helper.make_node("ConstantOfShape", ["shape"], ["a"]),
        helper.make_node(
            "ConstantOfShape", ["shape"], ["b"], value=helper.make_tensor("v", FLOAT, [1], [2.0])
        ),
        helper.make_node("Expand", ["zero", "shape"], ["c"]),
        helper.make_node("Expand", ["one", "shape"], ["d"]),
        helper.make_node("Concat", ["a", "c"], ["e"], axis=0),
        helper.make_node("Concat", ["a", "d"], ["f"], axis=0),
        helper.make_node("Mul", ["a", "X"], ["g"]),
        helper.make_node("Transpose", ["e"], ["h"]),
    ]
    graph = read(model(nodes, given, list("abcdefgh") + ["X"])).graph
    assert not is_zero(graph.inputs[0])
    zero = {value.name for value in graph.outputs if is_zero(value)}
    assert zero == {"a", "c", "e", "h"} and is_zero(None)
