"""Tests GRU(reset_after=False): the equation as Keras and ONNX write it, threads, and errors."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import absolute_error
from networks import drawn_state, equal, network, normal

D, T, B = 5, 9, 7
# The tolerance for nine steps in float32. The largest measured error is 6e-7.
CLOSE = 2e-6


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def keras_cell(x, h, kernel, recurrent, bias):
    """Computes a step of keras.layers.GRU with reset_after=False in float64. Its gates are z, r, n."""
    H = h.shape[1]
    xz, xr, xn = np.split(x @ kernel + bias, 3, 1)
    z = sigmoid(xz + h @ recurrent[:, :H])
    r = sigmoid(xr + h @ recurrent[:, H : 2 * H])
    n = np.tanh(xn + (r * h) @ recurrent[:, 2 * H :])
    return z * h + (1 - z) * n


def onnx_cell(x, h, w, r_, wb, rb):
    """Computes a step of ONNX's GRU with linear_before_reset=0 in float64. Its gates are z, r, h."""
    H = h.shape[1]
    wz, wr, wh = np.split(w, 3)
    rz, rr, rh = np.split(r_, 3)
    z = sigmoid(x @ wz.T + h @ rz.T + rb[:H] + wb[:H])
    r = sigmoid(x @ wr.T + h @ rr.T + rb[H : 2 * H] + wb[H : 2 * H])
    n = np.tanh(x @ wh.T + (r * h) @ rh.T + rb[2 * H :] + wb[2 * H :])
    return (1 - z) * n + z * h


def theirs(a):
    """Returns the gates r, z, n of an array in the order z, r, n."""
    r, z, n = np.split(np.asarray(a, float), 3)
    return np.concatenate([z, r, n])


@pytest.mark.parametrize("hidden", [1, 4, 17, 64])
def test_the_equations_of_keras_and_onnx(isa, rng, hidden):
    rnn = network(D, hidden, cell="GRU", norm=None, reset_after=False)
    x, h0 = normal(rng, T, B, D), drawn_state(rng, rnn, B)
    y, _ = rnn(x, h0)
    w, u, b, c = (
        theirs(rnn.state_dict()[f"{n}_l0"]) for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    keras = onnx = h0[0].astype(float)
    for t in range(T):
        keras = keras_cell(x[t].astype(float), keras, w.T, u.T, b + c)
        onnx = onnx_cell(x[t].astype(float), onnx, w, u, b, c)
        assert absolute_error(y[t], keras) < CLOSE
        assert absolute_error(y[t], onnx) < CLOSE


def test_both_forms_are_one_without_a_state(rng):
    """In the first step h is 0. So reset_after has no effect without a recurrent bias."""
    after, before = (network(D, 16, cell="GRU", norm=None, reset_after=r) for r in (True, False))
    for rnn in (after, before):
        rnn.bias_hh_l0 = np.zeros(48)
    x = normal(rng, T, B, D)
    equal(after, before(x[:1]), after(x[:1]))
    assert not np.array_equal(before(x)[0], after(x)[0])


@pytest.mark.parametrize(
    "dtype, bits, bound", [("bfloat16", None, 0.02), ("int8", 14, 1e-3), ("int8", 8, 0.05)]
)
def test_rounded_products(isa, rng, dtype, bits, bound):
    """The weights need few bits, so one step rounds only x, h and r h."""
    rnn = network(D, 48, cell="GRU", norm=None, reset_after=False)
    for name, w in rnn.parameters().items():
        if "weight" in name:
            whole = np.clip(np.round(w * 300), -126, 126)
            whole[:, 0] = 127  # the scale of each output
            setattr(rnn, name, whole / 128)
    x, h0 = normal(rng, 1, B, D), drawn_state(rng, rnn, B)
    want = rnn(x, h0)[0]
    got = rnn.to_dtype(dtype, activation_bits=bits)(x, h0)[0]
    assert absolute_error(got, want) < bound


@pytest.mark.parametrize("heads", [2, 4])
def test_block_diagonal_weights(rng, heads):
    """Compares with a network whose W_hh has zeros outside of the heads."""
    H = 32
    rnn = network(D, H, cell="GRU", reset_after=False, num_heads=heads)
    dense = network(D, H, cell="GRU", reset_after=False)
    state = rnn.state_dict()
    wide, units = np.zeros((3 * H, H), np.float32), H // heads
    for o in range(3 * H):
        at = o % H // units * units
        wide[o, at : at + units] = state["weight_hh_l0"][o]
    dense.load_state_dict(state | {"weight_hh_l0": wide})
    x, gy = normal(rng, T, B, D), normal(rng, T, B, H)
    y, h, tape = rnn.forward_train(x)
    want, _, other = dense.forward_train(x)
    assert absolute_error(y, want) < CLOSE
    gx, _, grads = rnn.backward(tape, gy)
    gwant, _, gdense = dense.backward(other, gy)
    assert absolute_error(gx, gwant) < 1e-4
    for o in range(3 * H):
        at = o % H // units * units
        own = gdense["weight_hh_l0"][o, at : at + units]
        assert absolute_error(grads["weight_hh_l0"][o], own) < 1e-3


def test_files_and_states_of_both_forms_differ(tmp_path):
    pytest.importorskip("safetensors", reason="models are saved by the safetensors package")
    after, before = (network(D, 8, cell="GRU", reset_after=r) for r in (True, False))
    assert "reset_after=False" in repr(before) and "reset_after" not in repr(after)
    after.save(tmp_path / "after")
    assert b"reset_after" not in (tmp_path / "after").read_bytes()
    with pytest.raises(ValueError, match="state"):  # of another network
        after.stream(B).set_state(None, before.stream(B).get_state())
