"""DynamicQuantizeLSTM in the plug-in: its int8 weights, scales and zero points stay as they are."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import helper  # noqa: E402

from onnx_files import FLOAT, model  # noqa: E402
from plugin_runs import agree, alone, claimed, left, plugged  # noqa: E402
from quantized_lstm import INPUTS, KINDS, STATE, D, H, X, feed, proto, quantized  # noqa: E402

each_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)


def in_float32(own):
    """Returns the model with a node LSTM of the same weights in float32."""
    result = {"B": own["B"]}
    for name in ("W", "R"):
        zero, scale = (own[f"{name}_{end}"].reshape(D, 1, -1) for end in ("zero_point", "scale"))
        result[name] = ((own[name].astype(np.float32) - zero) * scale).swapaxes(1, 2).copy()
    inputs = ["X", "W", "R", "B", "", "h0", "c0"]
    outputs = ["Y", "Y_h", "Y_c"]
    node = helper.make_node("LSTM", inputs, outputs, "node", hidden_size=H, direction="bidirectional")
    return model([node], {"X": (FLOAT, X), "h0": (FLOAT, STATE), "c0": (FLOAT, STATE)}, outputs, result)


def exact(rng, own, tmp_path, dtype="float32"):
    """Compares with float32. All inputs and states are multiples of 1 / 64 up to 127 / 64, which 8 bits
    represent; or with dtype "int8" multiples of 1 / 4096 up to 8191 / 4096, which 14 bits represent."""
    given = {name: np.maximum(a, np.float32(-127 / 64)) for name, a in feed(rng).items()}
    if dtype == "int8":
        given = {
            name: np.rint(a * np.float32(64 * 8191 / 127)) / np.float32(4096) for name, a in given.items()
        }
    ours, nodes = claimed(proto(own), given, tmp_path, dtype=dtype)
    assert nodes == 1
    agree(ours, alone(in_float32(own)).run(None, given), 2e-6)


@each_kind
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_weights_are_exact(rng, tmp_path, options, dtype):
    own = quantized(rng, **options)
    exact(rng, own, tmp_path, dtype)


INPUTS_OF = {"both signs": lambda x: x, "one sign": np.abs, "far from 0": lambda x: x - 5}


@each_kind
@pytest.mark.parametrize("change", INPUTS_OF.values(), ids=INPUTS_OF)
def test_errors_are_at_most_those_of_the_runtime_s_own_kernel(rng, options, change):
    """Both round x and h to 8 bits. The plug-in has a scale and a zero point for each sequence."""
    own = quantized(rng, **options)
    given = {name: np.float32(change(rng.standard_normal(a.shape))) for name, a in feed(rng, 40).items()}
    sessions = plugged(proto(own)), alone(proto(own)), alone(in_float32(own))
    ours, theirs, exact = (session.run(None, given)[0] for session in sessions)
    assert np.square(ours - exact).mean() < 1.1 * np.square(theirs - exact).mean() < 1e-4


@pytest.mark.parametrize(
    "change, reason",
    [
        (
            {"W_scale": np.float32([0.1, np.nan])},
            "input W_scale must be 0 or 2^-100 .. 2^119, got nan",
        ),
        (
            {"R_scale": np.float32([-0.1, 0.1])},
            "input R_scale must be 0 or 2^-100 .. 2^119, got -0.1",
        ),
        (
            {"R_zero_point": np.full(D, 9, np.int8)},
            "input R minus its zero point must be -128 .. 127, as in int8, got ",
        ),
        (
            quantized(np.random.default_rng(0), np.uint8, zero=128)
            | {"W": np.full((D, INPUTS, 4 * H), 255, np.uint8), "W_zero_point": np.full(D, 100, np.uint8)},
            "input W minus its zero point must be -128 .. 127, as in int8, got 155",
        ),
        (
            {"W_scale": np.float32([0.1, 1e37])},
            "input W_scale must be 0 or 2^-100 .. 2^119, got 1e+37",
        ),
    ],
)
def test_weights_that_int8_does_not_hold_are_left_to_the_runtime(rng, tmp_path, capfd, change, reason):
    made, given = proto(quantized(rng) | change), feed(rng, 3)
    assert claimed(made, given, tmp_path)[1] == 0
    (said,) = left(made, capfd)
    assert f"node 'node' (DynamicQuantizeLSTM) to the runtime: {reason}" in said


def test_many_inputs_permit_no_weight_of_minus_128(rng, capfd):
    own = quantized(rng)
    own["W"] = np.full((D, 132105, 4 * H), -128, np.int8)
    (said,) = left(proto(own), capfd)
    assert "input W minus its zero point must be -127 .. 127, as in int8, got -128" in said


@pytest.mark.parametrize("columns", [False, True])
def test_a_scale_of_each_column_with_one_zero_point(rng, tmp_path, columns):
    """The runtime's own kernel permits it, and the reverse."""
    own = quantized(rng, np.uint8, zero=128, columns=columns)
    for name in ("W", "R"):
        own[f"{name}_zero_point"] = np.full((D,) if columns else (D, 4 * H), 128, np.uint8)
    exact(rng, own, tmp_path)
    alone(proto(own)).run(None, feed(rng))


CONTRADICTIONS = [
    ("W", (D, INPUTS, 4 * H - 1)), ("W", (D, INPUTS, 8 * H)), ("W", (1, INPUTS, 4 * H)), ("W", (D, 0, 4 * H)),
    ("R", (D, H, 4 * H - 1)), ("R", (D, H + 5, 4 * H)), ("R", (D, 4 * H, H)), ("R", (H, 4 * H)),
    ("W_scale", ()), ("W_scale", (1,)), ("W_scale", (D, 1)), ("R_scale", (D, 4 * H + 1)), ("R_scale", (0,)),
    ("W_zero_point", (3,)), ("W_zero_point", (1, 4 * H)), ("R_zero_point", (4 * H,)),
    ("B", (D, 4 * H)), ("B", (1, 8 * H)),
]  # fmt: skip


@pytest.mark.parametrize("name, shape", CONTRADICTIONS)
def test_shapes_that_contradict_each_other_are_errors(rng, name, shape):
    own = quantized(rng)
    own[name] = np.ones(shape, own[name].dtype)
    with pytest.raises(Exception, match=f"node 'node': .*input {name} must have ") as error:
        plugged(proto(own))
    assert f"got {shape[-1] if 'axis' in str(error.value) else shape}" in str(error.value)


def test_scales_of_zero(rng, tmp_path):
    own = quantized(rng, columns=True)
    own["W_scale"][:, ::5] = 0
    exact(rng, own, tmp_path)
