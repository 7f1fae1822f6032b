"""Tests weights as (q, scale, zero_point): dtype "int8" computes with exactly these integers."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from networks import network, normal, same

H, I = 24, 6  # noqa: E741 - the letters of the shapes in the documentation


def drawn(rng, dtype, zero, shape=(H, I)):
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
        "int8": (drawn(rng, np.int8, 0), 0.0123, 0),
        "uint8": (drawn(rng, np.uint8, 128), np.float64(7e-4), np.uint8(128)),
        "rows": (drawn(rng, np.int8, 0), scales, np.zeros(H, np.int8)),
        "rows of float32, a zero point": (drawn(rng, np.uint8, 128), scales.astype(np.float32), 128),
        "rows with zero points": (drawn(rng, np.uint8, zeros).clip(0, 254), scales, zeros),
        "tiny": (drawn(rng, np.int8, 0), 1e-30, 0),
        "huge": (drawn(rng, np.int8, 0), 1e36, 0),
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
    triple = drawn(rng, np.int8, 0), 0.01, 0
    kept.weight_ih_l0 = rnn.weight_ih_l0 = triple
    rnn.weight_hh_l0 = kept.weight_hh_l0 = drawn(rng, np.int8, 0, (H, H)), 0.002, 0
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
