"""Cells in plain operators whose constants, sizes and conditions are unusual: taken right, or left."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

from onnx import helper, numpy_helper  # noqa: E402
from test_plugin_fused import D, H, check, draw_inputs, lstm_step  # noqa: E402
from test_plugin_loops import LOOPS  # noqa: E402

import onnx_loops  # noqa: E402
from onnx_cells import Writer, affine, cut, draw, layer_norm, lstm, step, step_model  # noqa: E402
from plugin_runs import agree, alone, plugged  # noqa: E402


@pytest.mark.parametrize("n", [4 * H - 1, 4 * H + 1, 8 * H])
@pytest.mark.parametrize("which", ["gain", "bias"])
def test_a_norm_whose_vectors_do_not_fit_stays_an_error(rng, which, n):
    w, v = lstm_step(rng, how="Slice")
    (node, *_) = (node for node in w.nodes if node.op_type == "LayerNormalization")
    name = node.input[1 + (which == "bias")]
    w.arrays[name] = np.resize(w.arrays[name], n)
    session = plugged(step_model(w, [v["h"], v["c"]], D, H))
    with pytest.raises(Exception, match="must match X.shape|Got scale size"):
        session.run(None, draw_inputs(session, rng))


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


@LOOPS
def test_a_constant_number_of_steps_that_is_not_one_number_stays_an_error(rng):
    proto = onnx_loops.loop(rng, "GRU", trip=2)
    (found,) = (a for a in proto.graph.initializer if a.name == "M")
    found.CopyFrom(numpy_helper.from_array(np.array([2, 2]), "M"))
    session = plugged(proto)
    with pytest.raises(Exception, match="'M' should be a scalar"):
        session.run(None, draw_inputs(session, rng))


def test_steps_with_equal_weights_and_their_own_epsilon(rng, tmp_path):
    w, first = lstm_step(np.random.default_rng(0))
    other, second = lstm_step(np.random.default_rng(0), eps=(0.1, 0.1), prefix="other_")
    w.nodes, w.arrays = w.nodes + other.nodes, w.arrays | other.arrays
    new = [values[name] for values in (first, second) for name in "hc"]
    check(step_model(w, new, D, H), rng, tmp_path, nodes=2)


def test_factors_of_a_gemm(rng, tmp_path):
    w, p = Writer(rng), draw(rng, "LSTM", D, H)
    a, b = (
        w.node("Gemm", v, w.array(p[f"weight_{k}"]), w.array(p[f"bias_{k}"]), transB=1, alpha=0.5, beta=1.7)
        for v, k in (("x", "ih"), ("h0", "hh"))
    )
    gates = dict(zip("ifgo", cut(w, w.node("Add", a, b), 4, H), strict=True))
    check(step_model(w, lstm(w, gates, "c0"), D, H), rng, tmp_path)


def test_a_norm_with_another_power_is_left(rng, tmp_path):
    w, p = Writer(), draw(rng, "LSTM", D, H, bias=False)
    a = w.node("Add", affine(w, "x", p["weight_ih"], None), affine(w, "h0", p["weight_hh"], None))
    a = layer_norm(w, a, rng.uniform(0.5, 1.5, 4 * H), None, 0.1, primitives=True)
    new = lstm(w, dict(zip("ifgo", cut(w, a, 4, H), strict=True)), "c0")
    for power in (2, 4):
        for name, value in w.arrays.items():
            if value.size == 1 and value == 2:
                w.arrays[name] = np.float32(power)
        check(step_model(w, new, D, H), rng, tmp_path, nodes=int(power == 2))


@LOOPS
@pytest.mark.parametrize("constant", [False, True])
def test_a_loop_with_a_condition_before_its_first_step(rng, constant):
    proto = onnx_loops.loop(rng, "GRU", join="scan output")
    proto.graph.initializer.remove(next(a for a in proto.graph.initializer if a.name == "true"))
    if not constant:
        proto.graph.input.append(helper.make_tensor_value_info("true", onnx_loops.BOOL, ()))
    given = draw_inputs(alone(onnx_loops.loop(rng, "GRU")), rng)
    for flag in (True, False):
        if constant:
            proto.graph.initializer.append(numpy_helper.from_array(np.array(flag), "true"))
        else:
            given["true"] = np.array(flag)
        agree(plugged(proto).run(None, given), alone(proto).run(None, given))
        if constant:
            del proto.graph.initializer[-1]


def test_a_matrix_of_its_own_for_each_gate(rng, tmp_path):
    """Some are equal arrays with names of their own, and others have equal shapes only."""
    w, p, gates = Writer(rng), draw(rng, "LSTM", D, D), {}
    for k, gate in enumerate("ifgo"):
        x_, h_ = (p[name][k * D : (k + 1) * D] for name in ("weight_ih", "weight_hh"))
        gates[gate] = w.node("Add", affine(w, "x", x_, None), affine(w, "h0", x_ if k == 3 else h_, None))
    check(step_model(w, lstm(w, gates, "c0"), D, D), rng, tmp_path)


@pytest.mark.parametrize("normed", [False, True])
def test_a_state_that_is_the_product_of_the_input(rng, normed):
    """W_hh multiplies W_ih x, so that h0 is a value within the step."""
    w, gain = Writer(), rng.uniform(0.5, 1.5, H)
    p = draw(rng, "RNN", D, H, bias=False)
    x_ = affine(w, "x", p["weight_ih"], None)
    h_ = affine(w, x_, p["weight_hh"], None)
    if normed:
        x_, h_ = (layer_norm(w, a, gain, None) for a in (x_, h_))
    proto = step_model(w, [w.node("Tanh", w.node("Add", x_, h_))], D, H)
    given = {"x": rng.standard_normal((3, D)).astype(np.float32)}
    agree(plugged(proto).run(None, given), alone(proto).run(None, given))


@pytest.mark.parametrize("shapes", [
    ((3, D), (3, H), (1, H)), ((3, D), (1, H), (1, 1)), ((3, D), (3, H), (3, 1)), ((1, D), (3, H), (3, H)),
    ((2, 1, D), (3, H), (1, H)), ((3, D), (2, 1, H), (3, H)),
], ids=str)  # fmt: skip
def test_shapes_that_only_a_run_knows(rng, shapes):
    w, p = Writer(), draw(rng, "LSTM", D, H)
    proto = step_model(w, step(w, "LSTM", p, "x", ("h0", "c0"), product="MatMul"), D, H)
    for value in proto.graph.input:
        value.type.tensor_type.ClearField("shape")
    given = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in zip(("x", "h0", "c0"), shapes, strict=True)
    }
    session = plugged(proto)
    agree(session.run(None, given), alone(proto).run(None, given))
    for name, shape in (("x", (3, 1)), ("h0", (3, 1)), ("x", (1,) * 7 + (3, D)), ("c0", (3, H + 1))):
        wrong = given | {name: np.ones(shape, np.float32)}
        with pytest.raises(Exception, match="lnrnn: "):
            session.run(None, wrong)


@pytest.mark.parametrize("other", ["i", "f", "o"])
def test_gates_of_two_functions_are_right(rng, other):
    w, p = Writer(), draw(rng, "LSTM", D, H)
    a, b = affine(w, "x", p["weight_ih"], p["bias_ih"]), affine(w, "h0", p["weight_hh"], p["bias_hh"])
    v = dict(zip("ifgo", cut(w, w.node("Add", a, b), 4, H), strict=True))
    i, f, o = (w.node("HardSigmoid" if k == other else "Sigmoid", v[k]) for k in "ifo")
    c = w.node("Add", w.node("Mul", f, "c0"), w.node("Mul", i, w.node("Tanh", v["g"])))
    proto = step_model(w, [w.node("Mul", o, w.node("Tanh", c)), c], D, H)
    given = draw_inputs(alone(proto), rng)
    agree(plugged(proto).run(None, given), alone(proto).run(None, given))
