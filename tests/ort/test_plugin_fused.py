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
from plugin_runs import agree, alone, check, draw_inputs, plugged  # noqa: E402

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
