"""Wrong models and wrong inputs of sessions with the plug-in: errors that name the node and the input.

If attributes and weights of a node contradict each other, no session is made. The runtime's own LSTM reads
beyond such weights in some versions, such as 1.26.0.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import onnx
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from onnx_files import GATES, recurrent  # noqa: E402
from plugin_runs import KINDS, agree, alone, computed, feed, left, plugged  # noqa: E402


def weight(proto, name, array):
    """Replaces an initializer."""
    (found,) = (a for a in proto.graph.initializer if a.name == name)
    found.CopyFrom(numpy_helper.from_array(array, name))


def contradictions(kind):
    """Returns (input, shape) that do not fit a node of 3 inputs and 4 units."""
    n = GATES[kind] * 4
    w = [(1, n, 2), (1, n, 9), (1, n // 2, 3), (1, 2 * n, 3), (2, n, 3), (n, 3), (1, n, 0), (0, n, 3)]
    r = [(1, n, 2), (1, n, 9), (1, n // 2, 4), (1, 2 * n, 8), (2, n, 4), (n, 4), (1, 0, 0), (0, n, 4)]
    b = [(1, n), (1, 2 * n - 1), (1, 20 * n), (2, 2 * n), (2 * n,), (1, 0)]
    return [(name, shape) for name, shapes in (("W", w), ("R", r), ("B", b)) for shape in shapes]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_contradict_the_node_are_errors(rng, kind):
    for name, shape in contradictions(kind):
        proto = recurrent(rng, kind, lengths=True, states=True)
        weight(proto, name, rng.standard_normal(shape).astype(np.float32))
        named = "W" if name == "R" and shape[-1] == 8 else name
        message = rf"node 'node'( \({kind}\))?: ((axis 1 of )?input {named}|input X) must have s"
        with pytest.raises(Exception, match=message):
            plugged(proto).run(None, feed(rng, kind, lengths=(7, 2, 3), states=True))


@pytest.mark.parametrize("hidden_size", [-1, 0, 1, 3, 5, 400, 2**31, 2**62])
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_sizes_that_contradict_the_weights_are_errors(rng, kind, hidden_size):
    proto = recurrent(rng, kind)
    (attribute,) = (a for a in proto.graph.node[0].attribute if a.name == "hidden_size")
    attribute.i = hidden_size
    message = f"node 'node': attribute hidden_size must be 4, as R has, got {hidden_size}"
    with pytest.raises(Exception, match=message):
        plugged(proto)


@pytest.mark.parametrize("direction", ["forwar", "", "reversed", "bidirectional and more"])
def test_unknown_directions_are_errors_of_the_runtime(rng, direction):
    proto = recurrent(rng, "GRU", direction=direction)
    with pytest.raises(Exception, match="Invalid 'direction' argument"):
        plugged(proto)


@pytest.mark.parametrize(
    "wrong", [{"activations": ["Tanh"] * 7}, {"activations": ["Sigmoid", "T" * 20]}, {"layout": 2}]
)
def test_other_wrong_attributes_are_errors_of_the_runtime(rng, wrong):
    with pytest.raises(Exception, match="Exception during initialization"):
        plugged(recurrent(rng, "GRU", **wrong))


@pytest.mark.parametrize("H", [4, 16])
def test_more_sequences_than_memory_can_hold(rng, H):
    session = plugged(recurrent(rng, "LSTM", D=2, H=H))
    with pytest.raises(Exception, match=f"fit into memory, got 0 steps and {2**57}"):
        session.run(None, feed(rng, "LSTM", T=0, B=2**57))


@pytest.mark.parametrize("T, B", [(0, 2), (5, 0), (0, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_no_steps_and_no_sequences(rng, kind, T, B):
    for D in (1, 2):
        for layout in (0, 1):
            proto = recurrent(rng, kind, D=D, lengths=True, states=True, layout=layout, opset=14)
            given = feed(rng, kind, T, B, D=D, lengths=np.zeros(B), states=True, layout=layout)
            y, *states = plugged(proto).run(None, given)
            assert y.shape == ((B, T, D, 4) if layout else (T, D, B, 4))
            assert all(s.shape == ((B, D, 4) if layout else (D, B, 4)) and not s.any() for s in states)
            given["lens"] = np.ones(B, np.int32)
            if B and not T:
                with pytest.raises(
                    Exception, match=r"node 'node' .*sequence_lens must be between 0 and the 0"
                ):
                    plugged(proto).run(None, given)


WRONG = [
    ("X", (7, 3)), ("X", (1,) * 30), ("X", (7, 3, 4)), ("X", (7, 3, 0)), ("X", (7, 3, 3, 1)), ("X", ()),
    ("sequence_lens", (2,)), ("sequence_lens", (4,)), ("sequence_lens", ()), ("sequence_lens", (3, 1)),
    ("initial_h", (2, 3, 5)), ("initial_h", (1, 3, 4)), ("initial_h", (2, 2, 4)), ("initial_h", (2, 12)),
    ("initial_h", (2, 3, 4, 1)),
    ("initial_c", (2, 3)), ("initial_c", ()), ("initial_c", (3, 2, 4)), ("initial_c", (0, 3, 4)),
]  # fmt: skip


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("constant", [False, True])
def test_shapes_of_inputs(rng, constant, layout):
    """Constants are inputs that the plug-in keeps. The runtime refuses some of them at once."""
    for name, shape in WRONG:
        key = {"X": "X", "sequence_lens": "lens", "initial_h": "h0", "initial_c": "c0"}[name]
        if constant and name == "X":
            continue
        if layout and len(shape) == 3 and name != "X":
            shape = (shape[1], shape[0], shape[2])
        proto = recurrent(rng, "LSTM", D=2, lengths=True, states=True, layout=layout, opset=14)
        for info in proto.graph.input:
            info.type.tensor_type.ClearField("shape")
        right = feed(rng, "LSTM", D=2, lengths=(7, 0, 3), states=True, layout=layout)
        given = right | {key: np.zeros(shape, right[key].dtype)}
        if constant:
            proto.graph.initializer.append(numpy_helper.from_array(given.pop(key), key))
            (old,) = (info for info in proto.graph.input if info.name == key)
            proto.graph.input.remove(old)
        got = re.escape(f"got {str(shape)[:64]}")  # longer shapes are cut
        with pytest.raises(Exception, match=rf"node 'node' \(LSTM\): input {name} must have shape .*, {got}"):
            session = plugged(proto)
            session.run(None, given)
        if not constant and not layout:  # the session runs on
            agree(session.run(None, right), alone(proto).run(None, right))


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("length", [-1, 8, 2**31 - 1, -(2**31)])
def test_lengths_beyond_the_steps(rng, length, constant):
    proto, given = recurrent(rng, "GRU", lengths=True), feed(rng, "GRU", lengths=(7, length, 3))
    if constant:
        proto.graph.initializer.append(numpy_helper.from_array(given.pop("lens"), "lens"))
        del proto.graph.input[1]
    message = (
        rf"'node' \(GRU\): input sequence_lens must be between 0 and the 7 steps, got {length} for sequence 1"
    )
    with pytest.raises(Exception, match=message):
        plugged(proto).run(None, given)


def test_nodes_of_earlier_opsets_are_left_to_the_runtime(rng, capfd):
    with pytest.raises(Exception, match="GRU"):
        left(recurrent(rng, "GRU", opset=6), capfd)
    assert "the operator must be of opset 7 or later, got 3" in capfd.readouterr().err


def test_nodes_of_bfloat16_are_left_to_the_runtime(rng, capfd):
    proto = recurrent(rng, "LSTM", opset=22)
    for array in proto.graph.initializer:
        numbers = numpy_helper.to_array(array).ravel()
        array.CopyFrom(helper.make_tensor(array.name, TensorProto.BFLOAT16, array.dims, numbers))
    for info in [*proto.graph.input, *proto.graph.output]:
        info.type.tensor_type.elem_type = TensorProto.BFLOAT16
    with pytest.raises(Exception, match="LSTM"):
        left(proto, capfd)
    assert "input R must be of float32, got another type" in capfd.readouterr().err


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_nodes_of_other_dtypes_are_left_to_the_runtime(rng, tmp_path, dtype):
    """The runtime has no kernel for float64 either."""
    proto = recurrent(rng, "LSTM")
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for array in proto.graph.initializer:
        array.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(array).astype(dtype), array.name))
    for info in [*proto.graph.input, *proto.graph.output]:
        info.type.tensor_type.elem_type = element
    given = {"X": feed(rng, "LSTM")["X"].astype(dtype)}
    if dtype == np.float64:
        with pytest.raises(Exception, match="LSTM"):
            plugged(proto).run(None, given)
        return
    computed(proto, given, tmp_path, 0)


def test_lengths_of_another_dtype_are_an_error(rng):
    proto = recurrent(rng, "LSTM", lengths=True)
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    with pytest.raises(Exception, match=r"Type 'tensor\(int64\)' of input parameter \(lens\) .*LSTM.*node"):
        plugged(proto)


def test_a_node_without_outputs(rng, tmp_path):
    proto = recurrent(rng, "LSTM")
    extra = helper.make_node("LSTM", ["X", "W", "R", "B"], ["", "", ""], "no outputs", hidden_size=4)
    proto.graph.node.append(extra)
    computed(proto, feed(rng, "LSTM"), tmp_path, 2)


CHANGED = """
import sys
import numpy as np
from plugin_runs import plugged
path, change = sys.argv[1:]
x = np.ones((7, 3, 64), np.float32)
session = plugged(path + "/model.onnx")
before = session.run(None, {"X": x})
if change == "truncate":
    open(path + "/weights", "r+b").truncate(0)
else:
    size = len(open(path + "/weights", "rb").read())
    open(path + "/weights", "r+b").write(bytes([255]) * size)
assert all(np.array_equal(a, b) for a, b in zip(before, session.run(None, {"X": x})))
"""


@pytest.mark.parametrize("change", ["truncate", "overwrite"])
def test_weights_may_change_in_their_file_after_a_session_has_loaded_them(rng, tmp_path, change):
    """The runtime maps external data, so that a read of a truncated file would end the process."""
    proto = recurrent(rng, "LSTM", width=64, H=64)
    onnx.save(
        proto, tmp_path / "model.onnx", save_as_external_data=True, location="weights", size_threshold=64
    )
    assert (tmp_path / "weights").stat().st_size > 2**17
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", CHANGED, tmp_path, change], check=True, env=environment)
