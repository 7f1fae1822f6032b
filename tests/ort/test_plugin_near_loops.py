"""Loops and Scans that are nearly all steps of a network, in the plug-in, compared with ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import onnx_loops  # noqa: E402
from onnx_cells import draw, step  # noqa: E402
from onnx_files import FLOAT  # noqa: E402
from plugin_runs import agree, alone, plugged, version  # noqa: E402

T, B, D, H = 5, 3, onnx_loops.D, onnx_loops.H


def only(nodes, op):
    (node,) = (node for node in nodes if node.op_type == op)
    return node


def body_of(proto):
    (graph,) = (a.g for node in proto.graph.node for a in node.attribute if a.name == "body")
    return graph


def given_to(proto, rng, sizes):
    shapes = {
        i.name: [sizes.get(d.dim_param, d.dim_value) for d in i.type.tensor_type.shape.dim]
        for i in proto.graph.input
    }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def agrees(proto, rng, more=(), **sizes):
    """Compares a model with the runtime. The plug-in may take its Loop, its step or nothing."""
    given = given_to(proto, rng, {"T": T, "B": B} | sizes) | dict(more)
    names = [o.name for o in proto.graph.output if o.type.HasField("tensor_type")]
    agree(plugged(proto).run(names, given), alone(proto).run(names, given))


def output(proto, name, of=FLOAT):
    proto.graph.output.append(helper.make_tensor_value_info(name, of, None))


def constant_x(proto, rng):
    (x,) = (i for i in proto.graph.input if i.name == "x")
    proto.graph.input.remove(x)
    values = rng.standard_normal((T, B, D)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(values, "x"))


# --- Scan ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_scan_without_attributes(rng, kind):
    proto = onnx_loops.scan(rng, kind)
    node = only(proto.graph.node, "Scan")
    for a in [a for a in node.attribute if a.name.startswith("scan_")]:
        node.attribute.remove(a)
    agrees(proto, rng)


@pytest.mark.parametrize("axes", [(1, 0), (1, 1)])
def test_a_scan_over_another_axis(rng, axes):
    agrees(onnx_loops.scan(rng, "GRU", axes=axes), rng)


def test_a_scan_with_two_directions_of_one_input_stays_an_error(rng):
    proto = onnx_loops.scan(rng, "GRU")
    for a in only(proto.graph.node, "Scan").attribute:
        if a.name == "scan_input_directions":
            a.ints.append(0)
    for make in (alone, plugged):
        with pytest.raises(Exception, match="Number of entries in 'scan_input_directions' was 2"):
            make(proto)


def test_a_scan_of_a_constant(rng):
    proto = onnx_loops.scan(rng, "LSTM")
    constant_x(proto, rng)
    agrees(proto, rng)


def test_a_scan_whose_step_has_another_input(rng):
    """All steps read z (B, D), a value of the outer graph."""
    proto = onnx_loops.scan(rng, "GRU")
    for node in body_of(proto).node:
        node.input[:] = ["z" if name == "x_t" else name for name in node.input]
    proto.graph.input.append(helper.make_tensor_value_info("z", FLOAT, ("B", D)))
    agrees(proto, rng)


def test_a_scan_whose_y_is_computed_from_h(rng):
    proto = onnx_loops.scan(rng, "GRU")
    only(body_of(proto).node, "Identity").op_type = "Abs"
    agrees(proto, rng)


def test_a_scan_of_two_inputs(rng):
    """c_t of each step is an input too, and not the state of the step before."""
    proto = onnx_loops.scan(rng, "LSTM")
    node = only(proto.graph.node, "Scan")
    for a in node.attribute:
        if a.name == "num_scan_inputs":
            a.i = 2
        elif a.name.startswith("scan_"):
            a.ints.append(0)
    (c,) = (i for i in proto.graph.input if i.name == "c0_0")
    c.CopyFrom(helper.make_tensor_value_info("c0_0", FLOAT, ("T", "B", H)))
    agrees(proto, rng)


# --- Loop ---------------------------------------------------------------------------------------------------


def joined_on_axis_1(proto):
    for a in only(proto.graph.node, "ConcatFromSequence").attribute:
        a.i = 1


def empty_is_read(proto):
    proto.graph.node.append(helper.make_node("SequenceLength", ["empty"], ["n"]))
    output(proto, "n", TensorProto.INT64)


def sequence_is_read(proto):
    proto.graph.node.append(helper.make_node("SequenceLength", ["ys_n"], ["n"]))
    output(proto, "n", TensorProto.INT64)


def sequence_output(name):
    def change(proto):
        of = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
        proto.graph.output.append(helper.make_value_info(name, of))

    change.__name__ = f"{name} is an output"
    return change


def another_sequence(proto):
    """Each step begins a sequence of its own."""
    body = body_of(proto)
    only(body.node, "SequenceInsert").input[0] = "none"
    body.node.insert(0, helper.make_node("SequenceEmpty", [], ["none"]))


def c_in_the_sequence(proto):
    body = body_of(proto)
    only(body.node, "SequenceInsert").input[1] = body.output[2].name


def a_condition(proto):
    """The loop ends after the third step."""
    body = body_of(proto)
    only(body.node, "Identity").op_type = "Not"
    node = only(body.node, "Not")
    node.input[0] = "is_late"
    body.node.insert(0, helper.make_node("Greater", ["t", "one"], ["is_late"]))
    body.initializer.append(numpy_helper.from_array(np.array(1), "one"))


def batch_first(proto):
    for a in only(body_of(proto).node, "Gather").attribute:
        a.i = 1


def x_of_the_body(proto):
    body = body_of(proto)
    only(body.node, "Gather").input[0] = "own"
    body.node.insert(0, helper.make_node("Neg", ["x"], ["own"]))


def x_of_a_fixed_step(proto):
    body = body_of(proto)
    only(body.node, "Gather").input[1] = "one"
    body.initializer.append(numpy_helper.from_array(np.array(1), "one"))


CHANGES = (
    joined_on_axis_1, empty_is_read, sequence_is_read, sequence_output("empty"), sequence_output("ys_n"),
    another_sequence, c_in_the_sequence,
    a_condition, batch_first, x_of_the_body, x_of_a_fixed_step,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_another_loop(rng, change):
    proto = onnx_loops.loop(rng, "LSTM")
    change(proto)
    agrees(proto, rng, B=T)


def test_a_loop_that_joins_c(rng):
    proto = onnx_loops.loop(rng, "LSTM", join="scan output")
    body = body_of(proto)
    (last,) = (node for node in body.node if node.output[0] == "y_t")
    last.input[0] = body.output[2].name
    agrees(proto, rng)


def test_a_loop_over_a_constant(rng):
    proto = onnx_loops.loop(rng, "GRU", join="scan output", trip=3)
    constant_x(proto, rng)
    agrees(proto, rng)


@pytest.mark.parametrize("go", [True, False])
def test_a_loop_with_a_given_condition(rng, go):
    proto = onnx_loops.loop(rng, "GRU")
    only(proto.graph.node, "Loop").input[1] = "go_on"
    proto.graph.input.append(helper.make_tensor_value_info("go_on", TensorProto.BOOL, ()))
    given = given_to(proto, rng, {"T": T, "B": B}) | {"go_on": np.array(go)}
    ours, theirs = caught(plugged(proto), given), caught(alone(proto), given)
    assert isinstance(ours, str) == isinstance(theirs, str) == (not go)  # no step: nothing to concatenate
    if go:
        agree(ours, theirs)


def caught(session, given):
    try:
        return session.run(None, given)
    except Exception as error:
        return str(error)


@pytest.mark.parametrize("rank", [1, 3])
def test_a_state_of_another_rank(rng, rank):
    def add(w, rng, kind, D, H, x, old):
        return list(step(w, kind, draw(rng, kind, D, H), x, old, product="MatMul"))

    proto = onnx_loops.loop(rng, "GRU", add=add)
    names = [i.name for i in proto.graph.input if i.name.startswith("h")]
    for value in [*proto.graph.input, *body_of(proto).input]:
        if value.name in names:
            value.CopyFrom(helper.make_tensor_value_info(value.name, FLOAT, (1, "B", H)[3 - rank :]))
        elif value.name.startswith("h"):
            value.CopyFrom(helper.make_tensor_value_info(value.name, FLOAT, None))
    agrees(proto, rng)


@pytest.mark.skipif(version() < (1, 32), reason="earlier runtimes do not pass all inputs of a Loop")
def test_numbers_of_steps_and_sequences(rng):
    """M has the shape (1,), or is negative; x or a state has one sequence."""
    proto = onnx_loops.loop(rng, "LSTM", join="scan output")
    for node in [node for node in proto.graph.node if node.output[0] in ("zero", "shape", "T1", "T")]:
        proto.graph.node.remove(node)
    proto.graph.input.append(helper.make_tensor_value_info("T", TensorProto.INT64, (1,)))
    for i in proto.graph.input[:3]:
        i.type.tensor_type.shape.dim[-2].ClearField("dim_param")
    for i in body_of(proto).input[2:]:
        i.type.tensor_type.shape.dim[0].ClearField("dim_param")
    shapes = {"x": (T, B, D), "h0": (B, H), "c0": (B, H)}
    session, theirs = plugged(proto), alone(proto)
    for name in (None, "x", "h0", "c0"):
        given = {
            key: rng.standard_normal((*shape[:-2], 1 if key == name else B, shape[-1])).astype(np.float32)
            for key, shape in shapes.items()
        }
        for steps in (0, 1, 3, T):
            given["T"] = np.array([steps])
            ours, wanted = session.run(None, given), theirs.run(None, given)
            assert steps == 0 or [a.shape for a in ours] == [a.shape for a in wanted]
            if steps:
                agree(ours, wanted)
    for name, other in (("x", 2), ("h0", 2), ("c0", 2)):
        wrong = rng.standard_normal((*shapes[name][:-2], other, shapes[name][-1])).astype(np.float32)
        with pytest.raises(Exception, match="lnrnn: .* numbers? of sequences"):
            session.run(None, given | {name: wrong})
    with pytest.raises(Exception, match="lnrnn: .* (more|fewer) steps than"):
        session.run(None, given | {"T": np.array([T + 1])})
    assert session.run(None, given | {"T": np.array([-1])})[0].shape == (0, B, H)
