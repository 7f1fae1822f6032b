"""Loops and Scans of steps in the plug-in, compared with ONNX Runtime's own kernels."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

from onnx import helper, numpy_helper  # noqa: E402

import onnx_loops  # noqa: E402
from onnx_files import FLOAT  # noqa: E402
from plugin_runs import agree, alone, check, draw_inputs, left, plugged, profiled, version  # noqa: E402

D, H = onnx_loops.D, onnx_loops.H
LOOPS = pytest.mark.skipif(version() < (1, 32), reason="earlier runtimes do not pass all inputs of a Loop")
CELLS = pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])


@LOOPS
@CELLS
@pytest.mark.parametrize("trip", ["shape", 3])
@pytest.mark.parametrize("join", ["sequence", "scan output"])
def test_a_loop_of_steps(rng, tmp_path, kind, join, trip):
    proto = onnx_loops.loop(rng, kind, join=join, trip=trip)
    check(proto, rng, tmp_path)
    check(proto, rng, tmp_path, T=9, B=1)


@LOOPS
def test_a_loop_with_more_steps_than_its_input_is_an_error(rng):
    session = plugged(onnx_loops.loop(rng, "GRU", trip=6))
    with pytest.raises(Exception, match=r"node 'loop' \(Loop\): input x \('x'\) has fewer steps"):
        session.run(None, draw_inputs(session, rng))
    session.run(None, draw_inputs(session, rng, T=6))


@LOOPS
def test_states_of_a_loop_that_are_constants_or_serve_all_sequences(rng, tmp_path):
    for shape in ((1, H), (2, H)):
        proto = onnx_loops.loop(rng, "LSTM")
        for name in ("h0", "c0"):
            value = rng.standard_normal(shape).astype(np.float32)
            proto.graph.initializer.append(numpy_helper.from_array(value, name))
            (given,) = (i for i in proto.graph.input if i.name == name)
            proto.graph.input.remove(given)
        for node in proto.graph.node:
            for a in node.attribute:
                if a.name == "body":
                    for i in a.g.input[2:4]:
                        i.type.tensor_type.shape.dim[0].ClearField("dim_param")
        check(proto, rng, tmp_path)


@LOOPS
@CELLS
@pytest.mark.parametrize("index", onnx_loops.INDICES)
def test_a_loop_that_reads_its_input_backwards_or_later(rng, tmp_path, kind, index):
    for join in ("sequence", "front of sequence", "scan output"):
        trip = "shape" if "T" in index or "size" in index else 3
        proto = onnx_loops.loop(rng, kind, index=index, join=join, trip=trip)
        check(proto, rng, tmp_path)
        check(proto, rng, tmp_path, T=4, B=1)


@LOOPS
@CELLS
@pytest.mark.parametrize("index", ["t", "size of x - 1 - t"])
def test_a_loop_over_the_second_axis(rng, tmp_path, kind, index):
    for axes in ((1, 0), (0, 1), (1, 1)):
        for join in ("sequence", "front of sequence"):
            proto = onnx_loops.loop(rng, kind, index=index, join=join, axes=axes)
            check(proto, rng, tmp_path)
            check(proto, rng, tmp_path, T=1, B=5)


@LOOPS
def test_an_index_below_0_counts_from_the_end(rng, tmp_path):
    """The runtime's Gather does so. The loop has more steps than the index is above 0."""
    proto = onnx_loops.loop(rng, "GRU", index="2 - t", trip=6)
    check(proto, rng, tmp_path, T=5)
    session = plugged(proto)
    with pytest.raises(Exception, match="has fewer steps than the loop"):
        session.run(None, draw_inputs(session, rng, T=2))


@LOOPS
@pytest.mark.parametrize("index, trip", [("T - 1 - t", 3), ("1 + t", "shape")])
def test_an_index_that_is_another_number_of_steps(rng, tmp_path, index, trip):
    """T is no input of a loop with a constant number of steps, so that its body alone is taken."""
    proto = onnx_loops.loop(rng, "GRU", index=index, trip=trip)
    if trip == 3:
        check(proto, rng, tmp_path, loop=True)
    else:
        with pytest.raises(Exception, match="has fewer steps than the loop"):
            plugged(proto).run(None, draw_inputs(alone(proto), rng))


@CELLS
@pytest.mark.parametrize("axes", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_scan_of_steps(rng, tmp_path, kind, axes):
    for back in ((0, 0), (0, 1), (1, 0), (1, 1)):
        proto = onnx_loops.scan(rng, kind, back, axes)
        check(proto, rng, tmp_path)
        check(proto, rng, tmp_path, T=1, B=5)


@CELLS
def test_two_steps_in_a_scan(rng, tmp_path, kind):
    check(onnx_loops.scan(rng, kind, layers=2), rng, tmp_path, nodes=2, loop=True)


@LOOPS
def test_a_sequence_that_two_nodes_read_keeps_the_loop(rng, tmp_path):
    more = helper.make_node("ConcatFromSequence", ["ys_n"], ["y2"], axis=0, new_axis=1)
    proto = onnx_loops.loop(rng, "GRU", extra=[more])
    proto.graph.output.append(helper.make_tensor_value_info("y2", FLOAT, None))
    check(proto, rng, tmp_path, nodes=0, loop=True)


@pytest.mark.parametrize("fault", ["states exchanged", "a state that stays", "c as y"])
def test_a_scan_with_other_outputs_is_left_or_right(rng, tmp_path, fault):
    proto = onnx_loops.scan(rng, "LSTM")
    (body,) = (a.g for node in proto.graph.node for a in node.attribute if a.name == "body")
    h, c, y = (value.name for value in body.output)
    for node in body.node:
        if node.output[0] == y and fault == "c as y":
            node.input[0] = c
    if fault == "states exchanged":
        body.output[0].name, body.output[1].name = c, h
    if fault == "a state that stays":
        body.node.append(helper.make_node("Identity", [body.input[1].name], ["same"]))
        body.output[1].name = "same"
    check(proto, rng, tmp_path, loop=True)


@LOOPS
def test_a_loop_whose_outputs_are_joined_without_a_new_axis_is_left(rng, tmp_path):
    proto = onnx_loops.loop(rng, "GRU")
    (join,) = (node for node in proto.graph.node if node.op_type == "ConcatFromSequence")
    del join.attribute[:]
    join.attribute.append(helper.make_attribute("axis", 0))
    check(proto, rng, tmp_path, nodes=0, loop=True)


@LOOPS
@CELLS
def test_x_and_h_of_one_size(rng, tmp_path, monkeypatch, kind):
    """Nothing else tells them apart. The order of operands is random."""
    monkeypatch.setattr(onnx_loops, "D", H)
    for _ in range(6):
        check(onnx_loops.loop(rng, kind, index="T - 1 - t", D=H), rng, tmp_path)
        check(onnx_loops.scan(rng, kind, (1, 0), D=H), rng, tmp_path)
        check(onnx_loops.keras_loop(rng, kind)[0], rng, tmp_path)


# --- files of Keras -----------------------------------------------------------------------------------------

FORMS = [{}, {"zeros": False}, {"where": True}, {"where": True, "zeros": False}, {"backwards": True}]


@LOOPS
@CELLS
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_masked_loop_of_keras(rng, tmp_path, kind, form):
    """The mask is random, so that it has gaps."""
    proto, _ = onnx_loops.keras_loop(rng, kind, **form)
    check(proto, rng, tmp_path)
    check(proto, rng, tmp_path, T=9, B=5)
    check(proto, rng, tmp_path, T=1, B=1)


@LOOPS
@pytest.mark.parametrize("active", [0, 1, 3, 5])
def test_masks_without_gaps(rng, active):
    proto, _ = onnx_loops.keras_loop(rng, "LSTM", zeros=active != 3)
    session = plugged(proto)
    given = draw_inputs(session, rng)
    given["mask"][:] = np.arange(5)[:, None, None] < [[[active], [5 - active]]]
    agree(session.run(None, given), alone(proto).run(None, given))


@LOOPS
def test_weights_that_a_loop_hands_on(rng, tmp_path):
    """As in files of Keras, whose bodies have no weights of their own."""
    for changed in (False, True):
        proto, p = onnx_loops.keras_loop(rng, "LSTM")
        (node,) = (n for n in proto.graph.node if n.op_type == "Loop")
        (body,) = (a.g for a in node.attribute if a.name == "body")
        handed = [a for a in body.initializer if len(a.dims) == 2]
        assert len(handed) == 2
        ys = body.output[-1].name
        del body.output[-1], node.output[-1]
        for k, a in enumerate(handed):
            name = f"weight{k}"
            body.initializer.remove(a)
            body.input.append(helper.make_tensor_value_info(a.name, FLOAT, a.dims))
            doubled = changed and k == 1
            body.node.append(
                helper.make_node("Add", [a.name] * 2, [f"{name}_out"])
                if doubled else helper.make_node("Identity", [a.name], [f"{name}_out"])
            )  # fmt: skip
            body.output.append(helper.make_tensor_value_info(f"{name}_out", FLOAT, None))
            a.name = name
            proto.graph.initializer.append(a)
            node.input.append(name)
            node.output.append(f"{name}_n")
        body.output.append(helper.make_tensor_value_info(ys, FLOAT, None))
        node.output.append("yr")
        check(proto, rng, tmp_path, nodes=int(not changed), loop=changed)


def edited(rng, fault):
    """Returns a loop of Keras that is no recurrent layer, or whose results are read elsewhere."""
    proto, _ = onnx_loops.keras_loop(rng, "LSTM", swapped=fault == "states swapped")
    (node,) = (n for n in proto.graph.node if n.op_type == "Loop")
    (body,) = (a.g for a in node.attribute if a.name == "body")
    casts = [n for n in body.node if n.op_type == "Not"]
    if fault == "the number of steps as an output":
        proto.graph.output.append(helper.make_tensor_value_info(node.output[0], 6, ()))
    made = {n.output[0]: n for n in body.node}
    if fault == "another value kept":  # zeros, where the mask is false
        for name in made[body.output[3].name].input:
            made[name].input[:] = ["zero_in" if v == "h_in" else v for v in made[name].input]
    if fault == "c without its mask":
        products = [made[name] for name in made[body.output[4].name].input]
        (new,) = (v for n in products if "c_in" not in n.input for v in n.input if made[v].op_type != "Cast")
        body.output[4].name = new
    if fault == "counter from 1":
        (start,) = (a for a in proto.graph.initializer if a.name == node.input[2])
        start.CopyFrom(numpy_helper.from_array(np.array(1, np.int32), start.name))
    if fault == "counter by 2":
        (one,) = (a for a in body.initializer if not a.dims)
        one.CopyFrom(numpy_helper.from_array(np.array(2, np.int32), one.name))
    if fault == "another mask":
        body.node.insert(0, helper.make_node("Not", [casts[0].input[0]], ["other"]))
        body.node.insert(0, body.node.pop(next(
            k for k, n in enumerate(body.node) if n.output[0] == casts[0].input[0])))  # fmt: skip
        for n in body.node:
            if n.op_type == "Cast" and n.input[0] == casts[-1].output[0]:
                n.input[0] = casts[-1].input[0]
    return proto


CARRIED = "a value that the loop carries is no state of the step"
MASK = "the states or the mask of the loop are not those of a recurrent layer"
INDEX = "the body does not read one step of x, forwards or backwards"


@LOOPS
@pytest.mark.parametrize("fault, reason", [
    ("states swapped", CARRIED), ("the number of steps as an output", CARRIED), ("counter from 1", INDEX),
    ("another value kept", CARRIED), ("c without its mask", MASK), ("counter by 2", INDEX),
    ("another mask", CARRIED),
])  # fmt: skip
def test_another_loop_of_keras_is_left(rng, tmp_path, capfd, fault, reason):
    proto = edited(rng, fault)
    lines = left(proto, capfd)
    assert len(lines) == 1 and f"'while' (Loop) to the runtime: {reason}" in lines[0]
    given = draw_inputs(alone(proto), rng)
    ours, _, others = profiled(proto, given, tmp_path)
    agree(ours, alone(proto).run(None, given))
    assert "Loop" in others


@LOOPS
def test_errors_name_the_loop_and_the_input(rng):
    proto, _ = onnx_loops.keras_loop(rng, "GRU")
    session = plugged(proto)
    given = draw_inputs(session, rng)
    for name, wrong, text in (
        ("mask", given["mask"][:3], "mask .* has fewer steps than the loop"),
        ("h0", given["h0"][[0, 0, 0]], "h0 .* has another number of sequences"),
    ):
        with pytest.raises(Exception, match=rf"node 'while' \(Loop\): input {text}"):
            session.run(None, given | {name: wrong})
