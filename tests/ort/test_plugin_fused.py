"""Steps of cells in plain operators in the plug-in, compared with ONNX Runtime's own kernels."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

from onnx import helper  # noqa: E402

import lnrnn  # noqa: E402
from lnrnn.onnx.cells.patterns import PATTERNS  # noqa: E402
from networks import calm  # noqa: E402
from onnx_cells import (  # noqa: E402
    BLENDS,
    Writer,
    affine,
    blend,
    cut,
    draw,
    exported,
    layer_norm,
    lstm,
    step,
    step_model,
)
from onnx_files import FLOAT, model  # noqa: E402
from onnx_runtimes import written  # noqa: E402
from plugin_runs import agree, alone, check, claimed, draw_inputs, left, plugged  # noqa: E402

D, H = 3, 4


# --- the table of patterns ----------------------------------------------------------------------------------


def configuration(pattern):
    norm = None if pattern.norm is None else lnrnn.LayerNormSpec(**pattern.norm)
    more = {"proj_size": 4} if pattern.has_projection else {}
    return {"cell": pattern.cell, "norm": norm, **pattern.options, **more}


CONFIGURATIONS = {str(c): c for c in map(configuration, PATTERNS)}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_each_pattern_as_a_step_of_to_onnx(rng, tmp_path, name):
    rnn = calm(5, 8, **CONFIGURATIONS[name])
    proto = written(rnn, tmp_path / "model.onnx", step=True)
    check(proto, rng, tmp_path)
    check(proto, rng, tmp_path, B=1)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", [name for name in CONFIGURATIONS if "LayerNorm" in name])
def test_each_pattern_with_a_norm_in_a_scan_of_to_onnx(rng, tmp_path, name, reverse):
    if reverse and "proj_size" in name:
        pytest.skip("tested once")
    proto = written(calm(5, 8, reverse=reverse, **CONFIGURATIONS[name]), tmp_path / "model.onnx")
    check(proto, rng, tmp_path)
    check(proto, rng, tmp_path, B=1, T=1)


# --- the forms that files have ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["Split", "Split into sizes", "Slice", "Slice by Shape"])
@pytest.mark.parametrize(
    "product", ["Gemm", "Gemm without transB", "MatMul", "MatMul of Transpose", "joined"]
)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "LiGRU"])
def test_forms_of_a_step(rng, tmp_path, kind, product, how):
    """The order of an LSTM's gates is not lnrnn's."""
    if (kind, product) == ("GRU", "joined"):
        pytest.skip("a GRU needs the product with h alone")
    for blended, size in zip(BLENDS, (D, H, D, 2), strict=True):
        w = Writer(rng)
        p = draw(rng, kind, size, H, bias=blended != "n - h")
        order = "fogi" if kind == "LSTM" else None
        new = step(w, kind, p, "x", ("h0", "c0"), order, product, how, blended)
        check(step_model(w, new, size, H), rng, tmp_path)


@pytest.mark.parametrize("alpha", [0.2, 1 / 6])
def test_hard_sigmoids(rng, tmp_path, alpha):
    w, p = Writer(rng), draw(rng, "LSTM", D, H)
    a = w.node("Add", affine(w, "x", p["weight_ih"], p["bias_ih"]), affine(w, "h0", p["weight_hh"], None))
    gates = dict(zip("ifgo", cut(w, a, 4, H), strict=True))
    check(step_model(w, lstm(w, gates, "c0", "HardSigmoid", alpha=alpha), D, H), rng, tmp_path)


@pytest.mark.parametrize("primitives", [False, True])
@pytest.mark.parametrize("placement", ["split", "joint", "gate"])
def test_forms_of_norms(rng, tmp_path, placement, primitives):
    """The order of gates is not lnrnn's. ONNX Runtime 1.24 reads eps only as the second operand of Add."""
    p, w = draw(rng, "LSTM", D, H, bias=False), Writer(None if primitives else rng)
    x_, h_ = affine(w, "x", p["weight_ih"], None), affine(w, "h0", p["weight_hh"], None)

    def norm(a, n):
        gain, bias = rng.uniform(0.5, 1.5, n), rng.uniform(-1, 1, n)
        return layer_norm(w, a, gain, bias, 1e-3, primitives)

    if placement == "split":
        parts = cut(w, w.node("Add", norm(x_, 4 * H), norm(h_, 4 * H)), 4, H)
    elif placement == "joint":
        parts = cut(w, norm(w.node("Add", x_, h_), 4 * H), 4, H)
    else:
        parts = [norm(a, H) for a in cut(w, w.node("Add", x_, h_), 4, H)]
    h, c = lstm(w, dict(zip("gofi", parts, strict=True)), "c0")
    check(step_model(w, [h, c], D, H), rng, tmp_path)


def test_shapes_that_are_broadcast(rng, tmp_path):
    """One state serves all sequences, and x has three axes."""
    w, p = Writer(), draw(rng, "LSTM", D, H)
    proto = step_model(w, step(w, "LSTM", p, "x", ("h0", "c0"), product="MatMul"), D, H)
    for value, shape in zip(proto.graph.input, [("T", "B", D), (1, H), ("B", H)], strict=True):
        value.CopyFrom(helper.make_tensor_value_info(value.name, FLOAT, shape))
    check(proto, rng, tmp_path)
    check(proto, rng, tmp_path, B=1)
    check(proto, rng, tmp_path, T=0)


def test_shapes_that_do_not_fit_are_errors(rng):
    w = Writer()
    session = plugged(step_model(w, step(w, "GRU", draw(rng, "GRU", D, H), "x", ["h0"]), D, H))
    given = draw_inputs(session, rng)
    with pytest.raises(Exception, match=r"the step .* node 'n13' \(Add\): input h0 \('h0'\) has a shape"):
        session.run(None, given | {"h0": given["h0"][[0, 0, 0]]})


@pytest.mark.parametrize("dtype, limit", [("bfloat16", 0.02), ("int8", 0.02)])
def test_dtypes(rng, dtype, limit):
    w = Writer()
    proto = step_model(w, step(w, "LSTM", draw(rng, "LSTM", 24, 32), "x", ("h0", "c0")), 24, 32)
    given = draw_inputs(alone(proto), rng)
    ours, theirs = plugged(proto, dtype=dtype).run(None, given), alone(proto).run(None, given)
    agree(ours, theirs, limit)
    assert float(np.abs(ours[0] - theirs[0]).max()) > 1e-5


# --- where steps stand --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_steps_in_a_row(rng, tmp_path, kind):
    """The steps have the same constants, or their own."""
    for shared in (True, False):
        w, state, p = Writer(), ("h0", "c0"), draw(rng, kind, D, H)
        for k in range(4):
            state = step(w, kind, p if shared else draw(rng, kind, D, H), f"x{k}", state)
        inputs = {f"x{k}": (FLOAT, ("B", D)) for k in range(4)}
        inputs |= {name: (FLOAT, ("B", H)) for name in ("h0", "c0")[: len(state)]}
        if shared or kind != "RNN":
            check(model(w.nodes, inputs, list(state), w.arrays), rng, tmp_path, nodes=1 if shared else 4)


# --- near misses: left to the runtime, or right -------------------------------------------------------------


def lstm_step(rng, half=1.0, old_c="c0", candidate="Tanh", eps=(1e-5, 1e-5), how="Split", prefix=""):
    """An LSTM with layer norm, or another cell. Returns the writer and the values by role."""
    w, p = Writer(prefix=prefix), draw(rng, "LSTM", D, H, bias=False)
    n = 4 * H
    x_, h_ = (
        layer_norm(w, affine(w, name, p[weight], None), rng.uniform(0.5, 1.5, n), rng.uniform(-1, 1, n), e)
        for name, weight, e in zip(("x", "h0"), ("weight_ih", "weight_hh"), eps, strict=True)
    )
    v = {"a": w.node("Add", x_, h_)}
    v |= dict(zip("ifgo", cut(w, v["a"], 4, H, how), strict=True))
    v |= {f"s{k}": w.node("Sigmoid", v[k]) for k in "ifo"}
    v["n"] = w.node("Mul", v["si"], w.node(candidate, v["g"]))
    scaled = w.node("Mul", v["n"], w.array(half)) if half != 1 else v["n"]
    v["c"] = w.node("Add", w.node("Mul", v["sf"], v.get(old_c, old_c)), scaled)
    v["t"] = w.node("Tanh", v["c"])
    v["h"] = w.node("Mul", v["so"], v["t"])
    return w, v


def test_the_step_without_a_fault_is_taken(rng, tmp_path):
    w, v = lstm_step(rng)
    check(step_model(w, [v["h"], v["c"]], D, H), rng, tmp_path)


def test_another_epsilon_is_used(rng, tmp_path):
    w, v = lstm_step(rng, eps=(0.1, 0.1))
    check(step_model(w, [v["h"], v["c"]], D, H), rng, tmp_path)


@pytest.mark.parametrize("fault", [
    {"half": 0.5}, {"candidate": "Relu"}, {"candidate": "Softsign"}, {"old_c": "g"},
    {"eps": (1e-5, 1e-3)},
], ids=str)  # fmt: skip
def test_another_cell_is_left(rng, tmp_path, fault):
    w, v = lstm_step(rng, **fault)
    check(step_model(w, [v["h"], v["c"]], D, H), rng, tmp_path, nodes=0)


def test_one_value_may_be_both_states(rng, tmp_path):
    w, v = lstm_step(rng, old_c="h0")
    check(step_model(w, [v["h"], v["c"]], D, H), rng, tmp_path)


@pytest.mark.parametrize("name", ["a", "i", "si", "n", "t"])
def test_a_value_inside_that_is_read_outside_keeps_the_step(rng, tmp_path, capfd, name):
    w, v = lstm_step(rng)
    proto = step_model(w, [v["h"], v["c"], v[name]], D, H)
    check(proto, rng, tmp_path, nodes=0)
    (line,) = left(proto, capfd)
    assert f"'{w.nodes[-1].name}' (Mul) to the runtime: another node or an output reads a value" in line
    w, v = lstm_step(rng)
    w.nodes.append(helper.make_node("Neg", [v[name]], ["more"], "reader"))
    check(step_model(w, [v["h"], v["c"], "more"], D, H), rng, tmp_path, nodes=0)


def test_a_value_inside_that_a_subgraph_reads_keeps_the_step(rng, tmp_path):
    w, v = lstm_step(rng)
    branches = [
        helper.make_graph([helper.make_node(op, [v["t"]], [op])], op, [],
                          [helper.make_tensor_value_info(op, FLOAT, None)]) for op in ("Neg", "Abs")
    ]  # fmt: skip
    proto = step_model(w, [v["h"], v["c"], "more"], D, H)
    proto.graph.input.append(helper.make_tensor_value_info("flag", 9, ()))
    proto.graph.node.append(
        helper.make_node("If", ["flag"], ["more"], then_branch=branches[0], else_branch=branches[1])
    )
    for flag in (True, False):
        given = draw_inputs(alone(proto), rng) | {"flag": np.array(flag)}
        ours, ran = claimed(proto, given, tmp_path)
        agree(ours, alone(proto).run(None, given))
        assert ran == 0


def test_an_unused_state_is_no_output(rng, tmp_path):
    w, v = lstm_step(rng)
    check(step_model(w, [v["h"]], D, H), rng, tmp_path)
    w, v = lstm_step(rng)
    check(step_model(w, [v["h"], v["c"]], D, H), rng, tmp_path)


def test_weights_that_are_inputs_keep_the_step(rng, tmp_path):
    w, v = lstm_step(rng)
    proto = step_model(w, [v["h"], v["c"]], D, H)
    weight = proto.graph.initializer[0]
    proto.graph.input.append(helper.make_tensor_value_info(weight.name, FLOAT, weight.dims))
    del proto.graph.initializer[0]
    check(proto, rng, tmp_path, nodes=0)


@pytest.mark.parametrize("fault", ["gates exchanged", "r twice", "another old h", "h0 once more"])
def test_another_gru_is_left_or_right(rng, tmp_path, fault):
    w, p = Writer(), draw(rng, "GRU", D, H)
    x_, h_ = affine(w, "x", p["weight_ih"], p["bias_ih"]), affine(w, "h0", p["weight_hh"], p["bias_hh"])
    x, h = (dict(zip("rzn", cut(w, a, 3, H), strict=True)) for a in (x_, h_))
    r, z = (
        w.node("Sigmoid", w.node("Add", x[k], h[k])) for k in ("zr" if fault == "gates exchanged" else "rz")
    )
    reset = w.node("Mul", r, h["n"])
    n = w.node("Tanh", w.node("Add", x["n"], w.node("Mul", r, reset) if fault == "r twice" else reset))
    new = blend(w, z, n, "c0" if fault == "another old h" else "h0", "h - n")
    if fault == "h0 once more":
        new = w.node("Add", new, "h0")
    taken = fault in ("gates exchanged", "h0 once more")
    check(step_model(w, [new], D, H), rng, tmp_path, nodes=int(taken))


def test_an_attention_is_no_rnn(rng, tmp_path):
    w, p = Writer(), draw(rng, "RNN", D, H)
    a = step(w, "RNN", p, "x", ["h0"])[0]
    check(step_model(w, [w.node("Neg", a)], D, H), rng, tmp_path, nodes=0)


def test_a_part_of_a_norm_for_two_gates_is_no_lstm(rng, tmp_path):
    for twice in (False, True):
        w, p = Writer(), draw(rng, "LSTM", D, H, bias=False)
        x_, h_ = (
            cut(w, layer_norm(w, affine(w, name, p[weight], None), rng.uniform(0.5, 1.5, 4 * H), None), 4, H)
            for name, weight in (("x", "weight_ih"), ("h0", "weight_hh"))
        )
        order = [0, 0, 2, 3] if twice else [1, 0, 2, 3]
        gates = [w.node("Add", x_[k], h_[at]) for k, at in enumerate(order)]
        new = lstm(w, dict(zip("ifgo", gates, strict=True)), "c0")
        check(step_model(w, new, D, H), rng, tmp_path, nodes=int(not twice))


# --- files of torch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_a_cell_of_torch(rng, tmp_path, kind, dynamo):
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    torch.manual_seed(1)
    x, h, c = torch.randn(2, D), torch.randn(2, H), torch.randn(2, H)
    given = (x, (h, c)) if kind == "LSTMCell" else (x, h)
    check(exported(getattr(torch.nn, kind)(D, H), given, dynamo), rng, tmp_path)


@pytest.mark.parametrize("dynamo, opset", [(False, 16), (False, 17), (True, 18)])
def test_an_unrolled_layer_norm_lstm_of_torch(rng, tmp_path, dynamo, opset):
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from torch_cells import LayerNormLSTMCell, Sequence, shaken

    given = torch.randn(5, 2, D), torch.randn(2, H), torch.randn(2, H)
    module = Sequence(shaken(LayerNormLSTMCell(D, H)))
    check(exported(module, given, dynamo, opset), rng, tmp_path)
