"""Converts DynamicQuantizeLSTM of ONNX Runtime, and keeps its 8-bit weights in int8 networks."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx_ir")
from onnx import helper, numpy_helper  # noqa: E402

import lnrnn  # noqa: E402
from onnx_files import FLOAT, model  # noqa: E402
from quantized_lstm import BATCH, INPUTS, KINDS, D, H, X, feed, proto, quantized  # noqa: E402

each_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)


@each_kind
def test_a_step_has_onnx_runtime_s_result(rng, options):
    """The inputs are exact in 8 bits, so ONNX Runtime and int8 networks both have only errors of float32."""
    from onnx_runs import agree, outputs, run

    made, given = proto(quantized(rng, **options)), feed(rng)
    rnn = lnrnn.from_onnx(made)
    theirs = run(made, given)
    agree(outputs(rnn, given["X"], given["h0"], given["c0"]), theirs, 2e-6)
    as_int8 = rnn.to_dtype("int8", activation_bits=8)
    given["X"], given["h0"] = (np.where(a == -2, np.float32(-127 / 64), a) for a in (given["X"], given["h0"]))
    ours = outputs(as_int8, given["X"], given["h0"], given["c0"])  # -127 .. 127 are exact
    agree(ours, outputs(rnn, given["X"], given["h0"], given["c0"]), 2e-6)


def test_peepholes_stay(rng):
    from onnx_runs import agree, outputs, run

    own = quantized(rng, np.uint8, zero=128)
    made, given = proto(own), feed(rng)
    node, P = made.graph.node[0], rng.standard_normal((len(own["W"]), 3 * H)).astype(np.float32)
    made.graph.initializer.append(numpy_helper.from_array(P, "P"))
    node.input[7] = "P"
    rnn = lnrnn.from_onnx(made)
    assert rnn.peepholes
    agree(outputs(rnn, given["X"], given["h0"], given["c0"]), run(made, given), 2e-6)


@each_kind
def test_more_steps_differ_by_the_rounding_of_the_states(rng, options):
    """ONNX Runtime rounds states to 8 bits, an int8 network to 14. The weights of both are exact."""
    from onnx_runs import agree, outputs, run

    made, given = proto(quantized(rng, **options)), feed(rng, 20)
    rnn = lnrnn.from_onnx(made)
    float32 = outputs(rnn, given["X"], given["h0"], given["c0"])
    theirs = run(made, given)
    agree(float32, theirs, 6e-3)
    int8 = outputs(rnn.to_dtype("int8"), given["X"], given["h0"], given["c0"])
    assert np.sqrt(np.square(int8["Y"] - float32["Y"]).mean()) < 2e-5
    for name, w in rnn.parameters().items():  # weights that are not integers times a scale are rounded
        setattr(rnn, name, w * (1 + 1e-5 * rng.standard_normal(w.shape)))
    int8 = outputs(rnn.to_dtype("int8"), given["X"], given["h0"], given["c0"])
    assert np.sqrt(np.square(int8["Y"] - float32["Y"]).mean()) > 2e-4


def test_the_weights_are_the_file_s(rng):
    own = quantized(rng, np.uint8, zero=128, columns=True)
    rnn = lnrnn.from_onnx(proto(own), check=False)
    for d, end in enumerate(("", "_reverse")):
        for name, key in (("weight_ih_l0", "W"), ("weight_hh_l0", "R")):
            i, o, f, c = np.split(((own[key][d].astype(np.float32) - 128) * own[f"{key}_scale"][d]).T, 4)
            np.testing.assert_array_equal(getattr(rnn, name + end), np.concatenate([i, f, c, o]))


def test_weights_of_dequantize_linear_are_kept_too(rng):
    """A model for quantisation-aware training has LSTM nodes with a scale for each row of W and R."""
    own, nodes = {}, []
    for name, n in (("W", INPUTS), ("R", H)):
        q = rng.integers(-128, 128, (1, 4 * H, n)).astype(np.int8)
        own |= {f"{name}_q": q, f"{name}_scale": rng.uniform(0.001, 0.004, 4 * H).astype(np.float32)}
        own[f"{name}_zero"] = np.zeros(4 * H, np.int8)
        names = [f"{name}_q", f"{name}_scale", f"{name}_zero"]
        nodes.append(helper.make_node("DequantizeLinear", names, [name], axis=1))
    nodes.append(helper.make_node("LSTM", ["X", "W", "R"], ["Y"], "node", hidden_size=H))
    rnn = lnrnn.from_onnx(model(nodes, {"X": (FLOAT, X)}, ["Y"], own))
    x = rng.standard_normal((20, BATCH, INPUTS)).astype(np.float32)
    assert np.sqrt(np.square(rnn.to_dtype("int8")(x)[0] - rnn(x)[0]).mean()) < 2e-5


@pytest.mark.parametrize("zero, said", [(128, "keeps the weights"), (100, "rounds weights")])
def test_a_part_says_whether_int8_keeps_its_weights(rng, zero, said):
    own = quantized(rng, np.uint8, zero=128)
    for name in ("W", "R"):
        own[f"{name}_zero_point"][:] = zero
    (part,) = lnrnn.onnx.parts(proto(own))
    assert any(f"to_dtype('int8') {said}" in text for text in part.warnings)


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("W_scale", np.float32([0.1, np.nan]), "W_scale must be numbers from 0 to 2"),
        ("R_scale", np.float32([0.1, -0.1]), "R_scale must be numbers from 0 to 2"),
        ("W_scale", np.float32([0.1, 1e37]), "W_scale must be numbers from 0 to 2"),
        ("W_scale", np.float32([0.1]), "W_scale must be a constant of shape"),
        ("W_scale", np.float64([0.1, 0.1]), "W_scale must be a constant of shape .* of float32"),
        ("R_zero_point", np.uint8([1, 1]), "R_zero_point must be a constant of shape .* of int8"),
        ("R_zero_point", np.zeros((D, H), np.int8), "R_zero_point must be a constant of shape"),
        ("W", np.zeros((D, INPUTS, 4 * H), np.int16), "W must have 3 axes of int8 or uint8"),
        ("R", np.zeros((D, H), np.int8), "R must have 3 axes of int8 or uint8"),
    ],
)
def test_bad_weights_are_refused_by_name(rng, name, value, message):
    with pytest.raises(ValueError, match=f"'node'.*{message}"):
        lnrnn.from_onnx(proto(quantized(rng) | {name: value}))
