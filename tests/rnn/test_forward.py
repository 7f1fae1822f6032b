"""RNN, LSTM and GRU with every norm and placement have the results of the reference.

Tests instruction sets, odd sizes, layers, directions, lengths, states, and inputs of every kind.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error, on_every_family
from networks import (
    NONLINEARITIES,
    VARIANTS,
    calm,
    drawn_state,
    each_variant,
    equal,
    network,
    normal,
    parts,
    reference_forward,
    same,
    taken,
    whole,
)

# Sizes around the widths of vectors and panels of every instruction set.
SIZES = (1, 2, 15, 16, 17, 31, 33, 47, 48, 49, 63, 64, 65, 97, 130, 193)
BATCHES = (*range(1, 14), 31, 32, 33, 64, 70)

# The tolerance of networks from `calm`, which do not amplify rounding errors. The largest measured error is
# 1.7e-6.
WHOLE = 3e-6


def close(rnn, got, want, most=WHOLE):
    """Compares y and state. Errors are relative to a number if it is above 1, as after relu and identity. The
    states of an SLSTM are sums of terms that cancel, so its errors are relative to the largest number."""
    for a, b in zip((got[0], *parts(rnn, got[1])), (want[0], *parts(rnn, want[1])), strict=True):
        assert a.dtype == np.float32
        b = np.asarray(b)
        size = np.maximum(1, abs(b))
        size = size.max(initial=1) if isinstance(rnn, lnrnn.SLSTM) else size
        assert absolute_error(a / size, b / size) < most


def test_layer_norm_of_rows_far_from_zero(family):
    """Sums with mean 1e4 and deviation 1 are exact in float32, so only the norm has errors, at most 5e-7."""
    rng = np.random.default_rng(3)
    for hidden in SIZES[2:]:
        rnn = calm(1, hidden, nonlinearity="identity")
        a = 1e4 + np.round(4 * rng.standard_normal((hidden, 1))) / 4
        rnn.weight_ih_l0 = a
        want, _, _ = reference_forward(rnn, np.ones((1, 3, 1)))
        assert absolute_error(rnn(np.ones((1, 3, 1)))[0], want) < 1e-6, hidden


@each_variant
def test_every_size_equals_the_reference(variant):
    """Tests each size of SIZES and BATCHES: a variant has every second one, the next variant the others.
    Layer norm over two units is nearly the sign function, and amplifies errors by up to 1 / sqrt(eps) near
    its jump. So eps is large for two units."""
    rng = np.random.default_rng(3)
    for k, hidden in list(enumerate(SIZES[:-1]))[list(VARIANTS).index(variant) % 2 :: 2]:
        inputs, batch = SIZES[(7 * k + 3) % len(SIZES)], BATCHES[(5 * k + len(variant)) % len(BATCHES)]
        options = dict(VARIANTS[variant])
        if hidden < 3 and (norm := options.get("norm", lnrnn.LayerNormSpec())):
            options["norm"] = replace(norm, eps=0.1) if norm != "batch" else norm
        rnn = calm(inputs, hidden, seed=k, trained=5, **options)
        x, h0 = normal(rng, 5, batch, inputs), drawn_state(rng, rnn, batch)
        want = reference_forward(rnn, x, h0)
        for got in on_every_family(partial(rnn, x, h0), large=hidden > 33).values():
            close(rnn, got, want)


def test_a_tensor_of_torch_is_accepted(rng):
    torch = pytest.importorskip("torch")
    rnn, x = network(3, 17), normal(rng, 5, 4, 3)
    same(rnn(torch.tensor(x))[0], rnn(x)[0])
    same(rnn(torch.tensor(x.swapaxes(0, 1).copy()).transpose(0, 1))[0], rnn(x)[0])
    with pytest.raises(TypeError, match=r"\bx\b"):
        rnn(torch.tensor(x, requires_grad=True))


def test_any_pair_of_states_is_accepted(rng):
    """The pair (h0, c0) of an LSTM may be a list, and h0 or c0 may be None."""
    lstm = network(3, 17, cell="LSTM", num_layers=2)
    x, (h0, c0) = normal(rng, 5, 4, 3), drawn_state(rng, lstm, 4)
    zeros = np.zeros_like(h0)
    equal(lstm, lstm(x, [h0, c0]), lstm(x, (h0, c0)))
    equal(lstm, lstm(x, (h0, None)), lstm(x, (h0, zeros)))
    equal(lstm, lstm(x, (None, c0)), lstm(x, (zeros, c0)))
    equal(lstm, lstm(x), lstm(x, (zeros, zeros)))
    y, state = lstm(x)
    assert type(state) is tuple and not np.shares_memory(*state)


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
def test_a_nan_reaches_the_output(family, rng, nonlinearity):
    rnn, x = network(3, 33, norm=None, nonlinearity=nonlinearity), normal(rng, 2, 3, 3)
    x[0, 1, 0] = np.nan
    y = rnn(x)[0]
    assert np.isnan(y[:, 1]).all() and np.isfinite(y[:, [0, 2]]).all()


@each_variant
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stay_in_their_sequence(rng, variant, value):
    rnn = network(3, 33, num_layers=2, bidirectional=True, trained=6, **VARIANTS[variant])
    x, h0 = normal(rng, 6, 13, 3), drawn_state(rng, rnn, 13)
    want = rnn(x, h0)
    for spoiled in range(1 + len(parts(rnn, h0))):
        bad_x, bad = x.copy(), [s.copy() for s in parts(rnn, h0)]
        if spoiled == 0:
            bad_x[2, 4, 1] = value
        else:
            bad[spoiled - 1][0, 4, 7] = value
        y, h = rnn(bad_x, whole(rnn, bad))
        others = np.delete(np.arange(13), 4)
        equal(rnn, (y[:, others], taken(rnn, h, others)), (want[0][:, others], taken(rnn, want[1], others)))
        if np.isnan(value) or variant == "RNN":  # tanh of infinity is 1, and layer norm of it NaN
            assert np.isnan(y[2:, 4]).any()


# --- hard sigmoids beyond their limits ----------------------------------------------------------------------

HARD = dict(norm=None, gate_activation="hard_sigmoid")
HARD_CELLS = {"LSTM": {}, "GRU": {}, "GRU reset before": dict(reset_after=False)}


@pytest.fixture(params=HARD_CELLS)
def hard(request):
    return network(3, 21, cell=request.param.split()[0], **HARD, **HARD_CELLS[request.param])


def with_gates(rnn, value):
    """Returns the network with weights of 0, and biases that give all gates the argument `value`."""
    rnn.weight_ih_l0, rnn.weight_hh_l0 = 0 * rnn.weight_ih_l0, 0 * rnn.weight_hh_l0
    bias, H = np.full_like(rnn.bias_ih_l0, value), rnn.hidden_size
    bias[2 * H : 3 * H] = 0.5  # the candidate
    rnn.bias_ih_l0, rnn.bias_hh_l0 = bias, 0 * bias
    return rnn


@pytest.mark.parametrize(("value", "gate"), [(3, 1), (50, 1), (-3, 0), (-50, 0), (0, 0.5), (1.5, 0.75)])
def test_the_function_of_the_gates(isa, hard, value, gate):
    h = np.full((1, 1, 21), 0.25, np.float32)
    state = (h, h) if isinstance(hard, lnrnn.LSTM) else h
    y, _ = with_gates(hard, value)(np.zeros((1, 1, 3)), state)
    if isinstance(hard, lnrnn.LSTM):
        want = gate * np.tanh(gate * 0.25 + gate * np.tanh(0.5))
    else:
        want = gate * 0.25 + (1 - gate) * np.tanh(0.5)
    assert np.abs(y - want).max() < 2e-7


def test_slopes_are_0_beyond_the_limits(isa, hard):
    x = normal(np.random.default_rng(0), 1, 2, 3)
    for value, moves in ((50, False), (-50, False), (0.5, True)):
        _, _, tape = with_gates(hard, value).forward_train(x)
        grads = hard.backward(tape, np.ones((1, 2, 21), np.float32))[2]
        bias, H = grads["bias_ih_l0"], hard.hidden_size
        gates = np.concatenate([bias[:H], bias[-H:]]) if isinstance(hard, lnrnn.LSTM) else bias[H : 2 * H]
        assert gates.any() == moves
