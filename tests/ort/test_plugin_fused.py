"""Steps of cells in plain operators in the plug-in, compared with ONNX Runtime's own kernels."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

from onnx import helper  # noqa: E402

import lnrnn  # noqa: E402
from lnrnn.recognise.patterns import PATTERNS  # noqa: E402
from networks import calm  # noqa: E402
from onnx_cells import (  # noqa: E402
    Writer,
    draw,
    step,
    step_model,
)
from onnx_files import FLOAT  # noqa: E402
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


# --- files of torch -----------------------------------------------------------------------------------------
