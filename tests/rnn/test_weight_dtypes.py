"""Tests weights in bfloat16 and int8: definition, equal bits, accuracy on real speech, and given integers."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import rounds_bfloat16_rows
from lnrnn.speakers import SpeakerNetwork, SpeakerSettings, TrainingSettings
from networks import network, normal, same, unchanged
from short_weights import flushed, int8_product, to_bfloat16, to_bits, to_int8

each_dtype = pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int8 of 8 bits"])
each_bits = pytest.mark.parametrize("bits", [14, 8])


def converted(rnn, dtype):
    """Calls to_dtype. "int8 of 8 bits" also sets activation_bits."""
    return rnn.to_dtype("int8", activation_bits=8) if dtype == "int8 of 8 bits" else rnn.to_dtype(dtype)


@pytest.mark.parametrize("hidden, inputs", [(1, 1), (17, 3), (48, 33), (65, 16), (130, 7)])
@pytest.mark.parametrize("norm", ["layer", None])
def test_bfloat16_is_float32_with_rounded_weights(isa, rng, norm, hidden, inputs):
    """Tests instruction sets that round only the weights. test_units.py tests those that round the inputs
    too."""
    if rounds_bfloat16_rows():
        pytest.skip("this set's unit rounds rows")
    rnn = network(inputs, hidden, norm=norm)
    rounded = network(inputs, hidden, norm=norm)
    for name in ("weight_ih_l0", "weight_hh_l0"):
        setattr(rounded, name, to_bfloat16(getattr(rnn, name)))
    for batch in (1, 2, 7, 9):
        x = normal(rng, 12, batch, inputs)
        same(rnn.to_dtype("bfloat16")(x)[0], rounded(x)[0])


@each_bits
@pytest.mark.parametrize("hidden, inputs", [(1, 1), (17, 3), (48, 33), (65, 16), (130, 7), (193, 520)])
def test_int8_adds_products_of_integers(isa, rng, hidden, inputs, bits):
    rnn = network(inputs, hidden, norm=None, nonlinearity="identity")
    x, h0 = normal(rng, 1, 40, inputs), normal(rng, 1, 40, hidden)
    want = int8_product(x[0], rnn.weight_ih_l0, bits) + int8_product(h0[0], rnn.weight_hh_l0, bits)
    want += rnn.bias_ih_l0 + rnn.bias_hh_l0
    rounded = rnn.to_dtype("int8", activation_bits=bits)
    for batch in (1, 3, 4, 5, 9, 17, 40):
        got = rounded(x[:, :batch], h0[:, :batch])[0][0]
        # four roundings of float32: both products, their sum, the bias
        most = 4 * np.finfo(np.float32).eps * max(1, np.abs(want[:batch]).max())
        assert np.abs(got - want[:batch]).max() <= most


def quantized_rows(rng, lowest, highest, scale):
    """Returns rows of integers, each from its lowest to its highest, which both occur, and scaled rows."""
    q = np.array([rng.integers(low, high + 1, 50) for low, high in zip(lowest, highest, strict=True)])
    q[:, 0], q[:, 1] = lowest, highest
    return q, q.astype(np.float32) * np.float32(scale)


@each_bits
@pytest.mark.parametrize("scale", [1, 0.0123, 3e-29, 7e33])
def test_int8_keeps_weights_that_are_integers_times_a_scale(isa, rng, bits, scale):
    """Weights that another program has quantised, often with one scale, are not rounded a second time."""
    lowest = [-127, -128, -128, -126, -97, -63, -11, -3, -1, 0, 0, -64]
    highest = [127, 127, 0, 97, 101, 39, 11, 2, 1, 1, 127, 5]
    rnn = network(50, len(lowest), norm=None, nonlinearity="identity", bias=False)
    q, rnn.weight_ih_l0 = quantized_rows(rng, lowest, highest, scale)
    x = normal(rng, 1, 5, 50)
    p, step = to_bits(x[0], bits)
    want = (p @ q.T) * step.astype(np.float64) * float(np.float32(scale))
    got = rnn.to_dtype("int8", activation_bits=bits)(x)[0][0]
    size = np.abs(want).max(0)
    # at most 6 roundings: the scale, the upper and lower parts of the sum, and its product with two scales
    assert (np.abs(got - want) <= 6 * np.finfo(np.float32).eps * size).all()


@each_bits
def test_int8_rounds_weights_that_do_not_fit(isa, rng, bits):
    """Integers beyond -128 .. 127 are rounded like other weights."""
    rnn = network(50, 3, norm=None, nonlinearity="identity", bias=False)
    q, rnn.weight_ih_l0 = quantized_rows(rng, [-128, -131, -255], [128, 101, 255], 0.5)
    x = normal(rng, 1, 5, 50)
    want = int8_product(x[0], rnn.weight_ih_l0, bits)
    rounded = to_int8(rnn.weight_ih_l0)[0]
    assert np.abs(rounded).max() == 127 and not np.array_equal(rounded, q)
    got = rnn.to_dtype("int8", activation_bits=bits)(x)[0][0]
    assert np.abs(got - want).max() <= 4 * np.finfo(np.float32).eps * np.abs(want).max()
    most = 2**31 // (127 * 128)
    for inputs in (most, most + 1):
        long = lnrnn.RNN(inputs, 1, norm=None, nonlinearity="identity", bias=False)
        long.weight_ih_l0 = np.where(np.arange(inputs) == 7, 127, -128)[None]
        y = long.to_dtype("int8", bits)(np.ones((1, 1, inputs), np.float32))[0]
        np.testing.assert_allclose(y, [[[127 - 128 * (inputs - 1)]]], rtol=1e-6)


def test_quantized_weights_reach_the_accuracy_of_their_activations(rng, tmp_path):
    """Only x and h are rounded. A second rounding of the weights would make the error 40 times as large."""
    rnn = network(40, 64, cell="LSTM", norm=None)
    twice = rnn.state_dict()
    for name in ("weight_ih_l0", "weight_hh_l0"):
        w = getattr(rnn, name) * rng.uniform(0.1, 1, (256, 1))  # with one scale, most rows do not reach 127
        scale = np.float32(np.abs(w).max() / 127)
        setattr(rnn, name, np.rint(w / scale).astype(np.float32) * scale)
        step = np.abs(getattr(rnn, name)).max(1, keepdims=True) / 127
        twice[name] = np.rint(getattr(rnn, name) / step) * step
    x = normal(rng, 50, 4, 40)
    kept, again = rnn.to_dtype("int8"), rnn.to_dtype("int8")
    again.load_state_dict(twice)
    errors = [np.sqrt(np.square(each(x)[0] - rnn(x)[0]).mean()) for each in (kept, again)]
    assert errors[0] < 1e-5 and errors[1] > 40 * errors[0]
    kept.save(tmp_path / "kept.safetensors")
    loaded = lnrnn.load(tmp_path / "kept.safetensors")
    other = network(40, 64, cell="LSTM", norm=None)
    other.load_state_dict(kept.state_dict())
    for same_weights in (loaded, other.to_dtype("int8"), kept.to_dtype("float32").to_dtype("int8")):
        same(same_weights(x)[0], kept(x)[0])
    same(kept.to_dtype("float32")(x)[0], rnn(x)[0])


@each_bits
def test_a_projection_of_int8(isa, rng, bits):
    """If h is 0, a step computes the cell of an LSTM without a projection. So the test compares only the
    projection of the LSTM's output."""
    rnn, whole = (network(5, 33, cell="LSTM", proj_size=size) for size in (17, 0))
    for name, value in rnn.parameters().items():
        if not name.startswith(("weight_hh", "weight_hr")):
            setattr(whole, name, value)
    x = normal(rng, 1, 9, 5)
    outputs = whole.to_dtype("int8", activation_bits=bits)(x)[0][0]
    want = int8_product(outputs, rnn.weight_hr_l0, bits)
    got = rnn.to_dtype("int8", activation_bits=bits)(x)[0][0]
    assert np.abs(got - want).max() <= 2 * np.finfo(np.float32).eps * max(1, np.abs(want).max())


@each_bits
def test_int8_sums_blocks_of_inputs(isa, rng, bits):
    """Sums of 2048 inputs are exact, even of the largest integers, and are added as float32."""
    rnn = lnrnn.RNN(2 * 2048 + 5, 50, norm=None, nonlinearity="identity", bias=False)
    rnn.weight_hh_l0 = np.zeros((50, 50))
    w = rng.integers(-128, 128, (50, rnn.input_size))
    w[:, 0], w[0], w[1, 1:] = 127, 127, -128
    rnn.weight_ih_l0 = w
    x = rng.uniform(-1, 1, (1, 11, rnn.input_size)).astype(np.float32)
    x[0, 0], x[0, 1] = 1, -1
    small = rnn.to_dtype("int8", activation_bits=bits)
    got = small(x)[0]
    p, step = to_bits(x[0], bits)
    want = (p @ w.T) * step.astype(np.float64)
    size = np.abs(x[0].astype(np.float64)) @ np.abs(w).T
    assert (np.abs(got[0] - want) <= 4 * np.finfo(np.float32).eps * size).all()
    for batch in (1, 2, 3, 4, 7):
        same(small(x[:, :batch])[0], got[:, :batch])


@each_dtype
def test_nan_and_zeros_stay_in_their_sequence(isa, rng, dtype):
    rnn = converted(network(5, 33), dtype)
    x = normal(rng, 8, 6, 5)
    want = rnn(x)[0]
    x[3, 2], x[:, 4], x[2, 5] = np.nan, 0, np.inf
    got = rnn(x)[0]
    same(got[:, [0, 1, 3]], want[:, [0, 1, 3]])
    assert np.isnan(got[3:, 2]).all() and np.isfinite(got[:, 4]).all() and np.isnan(got[2:, 5]).all()


def sized(rows, largest):
    """Returns the rows scaled so that each has the given largest element."""
    return rows * (np.array(largest, np.float32)[:, None] / np.abs(rows).max(1, keepdims=True))


@each_dtype
def test_rows_of_tiny_and_huge_weights_and_inputs(isa, rng, dtype):
    """int8 replaces all values of a row by 0 if they are below 2^-100, because 1 / scale would overflow."""
    rnn = network(4, 20, norm=None, nonlinearity="identity")
    w = rnn.weight_ih_l0.copy()
    w[3:9] = sized(w[3:9], [0, 1e-39, 1e-31, 1e-29, 1e30, 1e37])
    rnn.weight_ih_l0 = w
    x = normal(rng, 1, 6, 4)
    x[0, 1:5] = sized(x[0, 1:5], [0, 1e-39, 1e-31, 1e-29])
    y = converted(rnn, dtype)(x)[0][0]
    if dtype != "bfloat16":
        bits = 8 if dtype == "int8 of 8 bits" else 14

        def held(a):
            return np.where(np.abs(a).max(1, keepdims=True) < 2.0**-100, 0, a).astype(np.float32)

        with np.errstate(divide="ignore", invalid="ignore"):
            product = np.nan_to_num(int8_product(held(x[0]), held(w), bits))
    else:
        taken, held = x[0], to_bfloat16(w)
        if rounds_bfloat16_rows():
            taken, held = (to_bfloat16(flushed(v)) for v in (taken, w))
        product = taken.astype(np.float64) @ held.T.astype(np.float64)
    want = product + rnn.bias_ih_l0 + rnn.bias_hh_l0
    size = np.maximum(1, np.abs(x[0]).astype(np.float64) @ np.abs(w).T)
    assert (np.abs(y - want) <= 6 * np.finfo(np.float32).eps * size).all()


@each_bits
def test_int8_replaces_tiny_rows_of_weights_by_zeros(isa, bits):
    """If all weights of a row are below 2^-100, the row becomes 0, even if inputs are large."""
    rnn = network(4, 7, norm=None, nonlinearity="identity")
    w = np.zeros((7, 4), np.float32)
    w[:, 0] = 2.0 ** np.array([-99, -100, -101, -110, -126, -127, -149])
    rnn.weight_ih_l0 = w
    y = rnn.to_dtype("int8", bits)(np.full((1, 1, 4), 2.0**100, np.float32))[0][0, 0]
    want = np.array([2, 1, 0, 0, 0, 0, 0]) + rnn.bias_ih_l0 + rnn.bias_hh_l0
    np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-6)


@each_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_nan_or_infinite_weight_reaches_the_output(isa, rng, dtype, bad):
    rnn = network(3, 20, norm=None, nonlinearity="identity")
    w = rnn.weight_ih_l0.copy()
    w[4, 1] = bad
    rnn.weight_ih_l0 = w
    y = converted(rnn, dtype)(normal(rng, 1, 2, 3))[0][0]
    assert not np.isfinite(y[:, 4]).any() and np.isfinite(np.delete(y, 4, 1)).all()


@each_dtype
def test_to_dtype_returns_a_new_network(rng, dtype):
    rnn, x = network(5, 33), normal(rng, 8, 3, 5)
    want = rnn(x)[0]
    other = converted(rnn, dtype)
    assert (rnn.dtype, other.dtype) == ("float32", dtype.split()[0])
    assert not np.array_equal(other(x)[0], want)
    same(rnn(x)[0], want)
    same(other.to_dtype("float32")(x)[0], want)
    with unchanged(rnn):
        other.gain_l0 = other.gain_l0 * 2
    with pytest.raises(ValueError, match="float32"):
        other.forward_train(x)


def test_repr_shows_activation_bits():
    rnn = lnrnn.RNN(2, 3)
    assert rnn.activation_bits is None and "activation_bits" not in repr(rnn)
    for given, bits in ((None, 14), (14, 14), (8, 8), (np.int64(8), 8)):
        other = rnn.to_dtype("int8", activation_bits=given)
        assert other.activation_bits == bits and f"dtype='int8', activation_bits={bits})" in repr(other)
        assert other.to_dtype("bfloat16").activation_bits is None
    assert rnn.to_dtype("int8", 8).to_dtype("int8").activation_bits == 14


def test_packed_weights_have_a_half_or_a_quarter_of_the_bytes(rng):
    """int8 weights also have a scale and a sum for each output, together 8 bytes."""
    rnn, sizes = lnrnn.RNN(256, 384, seed=0), {}
    for dtype in ("float32", "bfloat16", "int8", "int8 of 8 bits"):
        other = converted(rnn, dtype)
        other(normal(rng, 1, 1, 256))
        sizes[dtype] = other.packed_bytes
    assert sizes["float32"] == 4 * 384 * (256 + 384)
    assert sizes["bfloat16"] == sizes["float32"] // 2
    assert sizes["int8"] == sizes["int8 of 8 bits"] == sizes["float32"] // 4 + 2 * 8 * 384


def test_accuracy_on_real_speech():
    """bfloat16 and int8 change the accuracy of the demo's network on Japanese Vowels by at most half a
    point."""
    data = lnrnn.data.japanese_vowels()
    names = {dtype: [] for dtype in ("float32", "bfloat16", "int8", "int8 of 8 bits")}
    settings = SpeakerSettings(training=TrainingSettings(epochs=60))
    for seed in range(2):
        network = SpeakerNetwork(data.train, "layer", settings, seed)
        trained = network.classifier.rnn
        for dtype, answers in names.items():
            network.classifier.rnn = converted(trained, dtype)
            answers.append(network.name_speakers(data.test.x) == data.test.labels)
    accuracy = {dtype: 100 * np.mean(answers) for dtype, answers in names.items()}
    assert accuracy["float32"] > 90
    for dtype in ("bfloat16", "int8", "int8 of 8 bits"):
        assert abs(accuracy[dtype] - accuracy["float32"]) <= 0.5, accuracy


# --- weights as (q, scale, zero_point): dtype "int8" computes with exactly these integers -------------------

H, I = 24, 6  # noqa: E741 - the letters of the shapes in the documentation


def drawn_integers(rng, dtype, zero, shape=(H, I)):
    """Returns integers q of a dtype. q - zero is from -128 to 127, and small in many rows."""
    most = rng.integers(3, 127, (shape[0], 1))
    q = np.rint(rng.uniform(-1, 1, shape) * most)
    q[0, :2], q[1, 0] = (-128, 127), -128
    return (q + np.reshape(zero, (-1, 1))).astype(dtype)


def ways(rng):
    """Returns triples: a scale and zero point for all outputs, or for each."""
    scales = rng.uniform(1e-3, 1e-1, H)
    zeros = rng.integers(0, 2, H) + 127
    zeros[:2] = 128
    return {
        "int8": (drawn_integers(rng, np.int8, 0), 0.0123, 0),
        "uint8": (drawn_integers(rng, np.uint8, 128), np.float64(7e-4), np.uint8(128)),
        "rows": (drawn_integers(rng, np.int8, 0), scales, np.zeros(H, np.int8)),
        "rows of float32, a zero point": (drawn_integers(rng, np.uint8, 128), scales.astype(np.float32), 128),
        "rows with zero points": (drawn_integers(rng, np.uint8, zeros).clip(0, 254), scales, zeros),
        "tiny": (drawn_integers(rng, np.int8, 0), 1e-30, 0),
        "huge": (drawn_integers(rng, np.int8, 0), 1e36, 0),
    }


@pytest.mark.parametrize("way", ways(np.random.default_rng(0)))
def test_int8_computes_with_the_given_integers(rng, way):
    """The outputs for the rows of a unit matrix are the weights, since one-hot inputs are exact."""
    q, scale, zero = ways(rng)[way]
    rnn = network(I, H, norm=None, nonlinearity="identity", bias=False).to_dtype("int8")
    rnn.load_state_dict(rnn.state_dict() | {"weight_ih_l0": (q, scale, zero)})
    integers = q.astype(int) - np.reshape(zero, (-1, 1)).astype(int)
    assert integers.min() == -128 and integers.max() >= 126
    w = integers * np.reshape(scale, (-1, 1)).astype(float)
    np.testing.assert_allclose(rnn.weight_ih_l0, w, rtol=2**-23)
    for bits in (14, 8):
        outputs = rnn.to_dtype("int8", bits)(np.eye(I)[None])[0][0]
        np.testing.assert_allclose(outputs.T, w, rtol=2**-21)
        assert np.array_equal(np.rint(outputs.T / np.reshape(scale, (-1, 1))), integers)


def test_one_parameter_may_be_set_and_dtypes_share_it(rng):
    rnn = network(I, H, norm=None)
    kept = rnn.to_dtype("int8")
    triple = drawn_integers(rng, np.int8, 0), 0.01, 0
    kept.weight_ih_l0 = rnn.weight_ih_l0 = triple
    rnn.weight_hh_l0 = kept.weight_hh_l0 = drawn_integers(rng, np.int8, 0, (H, H)), 0.002, 0
    x = normal(rng, 7, 3, I)
    same(kept(x)[0], rnn.to_dtype("int8")(x)[0])
    same(kept.to_dtype("float32")(x)[0], rnn(x)[0])
    assert rnn.weight_ih_l0.dtype == np.float32
    torch = pytest.importorskip("torch")
    rnn.weight_ih_l0 = torch.from_numpy(triple[0]), torch.tensor(0.01), torch.tensor(0)
    same(rnn.weight_ih_l0, kept.weight_ih_l0)


def test_a_bias_is_no_triple():
    rnn = network(2, 3, norm=None)
    rnn.load_state_dict(rnn.state_dict() | {"bias_ih_l0": (1.0, 2.0, 3.0)})
    assert rnn.bias_ih_l0.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match=r"bias_ih_l0 must be of shape \(3,\)"):
        rnn.bias_ih_l0 = np.zeros((3, 2), np.int8), 1, 0


def test_integers_beyond_int8_are_refused_with_dtype_int8():
    rnn = network(I, H, norm=None)
    far = np.full((H, I), 228, np.uint8), 0.01, 100  # 128 after subtraction
    rnn.weight_ih_l0 = far
    assert np.unique(rnn.weight_ih_l0) == [np.float32(1.28)]
    rnn.to_dtype("bfloat16").load_state_dict(rnn.state_dict() | {"weight_ih_l0": far})
    kept = rnn.to_dtype("int8")
    with pytest.raises(
        ValueError, match="q - zero_point of weight_ih_l0 must be .* got 128 to 128; .*float32"
    ):
        kept.load_state_dict(rnn.state_dict() | {"weight_ih_l0": far})
    kept.weight_ih_l0 = far[0] - np.uint8(1), 0.01, 100
    most = 2**31 // (127 * 128)  # sums of more products of -128 could exceed 32 bits
    for inputs in (most, most + 1):
        long = lnrnn.RNN(inputs, 1, norm=None, nonlinearity="identity", bias=False).to_dtype("int8")
        weights = np.full((1, inputs), -128, np.int8), 1, 0
        if inputs > most:
            with pytest.raises(ValueError, match="got -128 to -128"):
                long.weight_ih_l0 = weights
        else:
            long.weight_ih_l0 = weights
            np.testing.assert_allclose(long(np.ones((1, 1, inputs)))[0], [[[-128 * inputs]]], rtol=1e-6)
