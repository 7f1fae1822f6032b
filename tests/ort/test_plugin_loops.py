"""Loops and Scans of steps in the plug-in, compared with ONNX Runtime's own kernels."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

from onnx import helper  # noqa: E402

import onnx_loops  # noqa: E402
from plugin_runs import agree, alone, check, draw_inputs, plugged, version  # noqa: E402

D, H = onnx_loops.D, onnx_loops.H
LOOPS = pytest.mark.skipif(version() < (1, 32), reason="earlier runtimes do not pass all inputs of a Loop")
CELLS = pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])


@LOOPS
def test_a_loop_with_more_steps_than_its_input_is_an_error(rng):
    session = plugged(onnx_loops.loop(rng, "GRU", trip=6))
    with pytest.raises(Exception, match=r"node 'loop' \(Loop\): input x \('x'\) has fewer steps"):
        session.run(None, draw_inputs(session, rng))
    session.run(None, draw_inputs(session, rng, T=6))


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


@LOOPS
@CELLS
def test_x_and_h_of_one_size(rng, tmp_path, monkeypatch, kind):
    """Nothing else tells them apart. The order of operands is random."""
    monkeypatch.setattr(onnx_loops, "D", H)
    for _ in range(6):
        check(onnx_loops.loop(rng, kind, index="T - 1 - t", D=H), rng, tmp_path)
        check(onnx_loops.scan(rng, kind, (1, 0), D=H), rng, tmp_path)
        check(onnx_loops.keras_loop(rng, kind)[0], rng, tmp_path)


@LOOPS
def test_numbers_of_steps_and_sequences(rng):
    """M has the shape (1,), or is negative; x or a state has one sequence."""
    proto = onnx_loops.loop(rng, "LSTM", join="scan output")
    for node in [node for node in proto.graph.node if node.output[0] in ("zero", "shape", "T1", "T")]:
        proto.graph.node.remove(node)
    T, B = 5, 3
    proto.graph.input.append(helper.make_tensor_value_info("T", onnx_loops.INT64, (1,)))
    for i in proto.graph.input[:3]:
        i.type.tensor_type.shape.dim[-2].ClearField("dim_param")
    (body,) = (a.g for node in proto.graph.node for a in node.attribute if a.name == "body")
    for i in body.input[2:]:
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


@LOOPS
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_loop_whose_number_of_steps_is_not_one_number_is_an_error(rng, count):
    proto = onnx_loops.loop(rng, "GRU")
    (node,) = (node for node in proto.graph.node if node.op_type == "Loop")
    node.input[0] = "M"
    proto.graph.input.append(helper.make_tensor_value_info("M", onnx_loops.INT64, ("n",)))
    sessions = plugged(proto), alone(proto)
    given = draw_inputs(sessions[0], rng, n=count) | {"M": np.full(count, 4)}
    if count == 1:
        agree(*(session.run(None, given) for session in sessions))
        return
    for session in sessions if count else sessions[:1]:  # the runtime may crash
        with pytest.raises(
            Exception, match="input M.? (of|must|should)|\\('M'\\) must|'M' should be a scalar"
        ):
            session.run(None, given)


# --- files of Keras -----------------------------------------------------------------------------------------


@LOOPS
@pytest.mark.parametrize("active", [0, 1, 3, 5])
def test_masks_without_gaps(rng, active):
    proto, _ = onnx_loops.keras_loop(rng, "LSTM", zeros=active != 3)
    session = plugged(proto)
    given = draw_inputs(session, rng)
    given["mask"][:] = np.arange(5)[:, None, None] < [[[active], [5 - active]]]
    agree(session.run(None, given), alone(proto).run(None, given))


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
