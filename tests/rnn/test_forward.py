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
from lnrnn import reference as ref
from networks import (
    NONLINEARITIES,
    VARIANTS,
    calm,
    drawn_state,
    each_norm,
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
    """Compares y and state. Errors are relative to a number if it is above 1, as after relu and identity.

    The states of an SLSTM are sums of terms that cancel, so its errors are relative to the largest number."""
    for a, b in zip((got[0], *parts(rnn, got[1])), (want[0], *parts(rnn, want[1])), strict=True):
        assert a.dtype == np.float32
        b = np.asarray(b)
        size = np.maximum(1, abs(b))
        size = size.max(initial=1) if isinstance(rnn, lnrnn.SLSTM) else size
        assert absolute_error(a / size, b / size) < most


def step_error(rnn, x, h0, y):
    """Returns the error of single steps, in roundings (2^-24) of a step's sum of terms, divided by the square
    root of the number of terms.

    The reference computes each step from the state of y itself. So errors do not add up over time, and
    networks may amplify errors.

    An error of 1 is the effect of one rounding of a term of a_t = W_ih x + W_hh h. It changes f(gain / sigma
    (a - mu) + bias) by gain / sigma times the rounding, plus a rounding of y. Each product is one chain of
    multiply-adds, whose rounding errors grow like a random walk, as sqrt(D + H).
    """
    p = {name.removesuffix("_l0"): value.astype(np.float64) for name, value in rnn.parameters().items()}
    before = np.concatenate([h0, y[:-1]]).astype(np.float64)
    a = x @ p["weight_ih"].T.astype(np.float64) + before @ p["weight_hh"].T
    terms = np.abs(x) @ np.abs(p["weight_ih"]).T + np.abs(before) @ np.abs(p["weight_hh"]).T
    if rnn.norm is None:
        bias = p["bias_ih"] + p["bias_hh"]
        z, unit = a + bias, terms + np.abs(bias)
    elif isinstance(rnn.norm, lnrnn.LayerNormSpec):
        ahat, _, var = ref.standardize(a, -1, rnn.norm.eps)
        z = p["gain"] * ahat + p["bias"]
        # mu and sigma contain the rounding errors of all hidden units, so the errors of one unit affect all
        # others
        unit = terms.max(-1, keepdims=True) * p["gain"] / np.sqrt(var + rnn.norm.eps) * (1 + np.abs(ahat))
        unit = unit + np.abs(p["bias"])
    else:
        mean, var = (s[: len(x), None] for s in (rnn.running_mean_l0, rnn.running_var_l0))
        scale = p["gain"] / np.sqrt(var + rnn.norm.eps)
        z = scale * (a - mean) + p["bias"]
        unit = scale * (terms + np.abs(mean)) + np.abs(p["bias"])
    want = ref.ACTIVATIONS[rnn.nonlinearity][0](z)
    slope = 1 / 4 if rnn.nonlinearity == "sigmoid" else 1
    unit = slope * unit + np.abs(want)
    return float((np.abs(y - want) / unit).max() * 2**24 / np.sqrt(rnn.input_size + rnn.hidden_size))


# The limit of `step_error`. It was at most 0.45 without a norm, 0.43 with batch norm, 0.23 with layer norm.
STEP = 0.6


@each_norm
@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
def test_each_step_within_a_few_roundings(family, norm, nonlinearity):
    rng = np.random.default_rng(1)
    for k, hidden in enumerate(SIZES):
        inputs, batch = SIZES[(7 * k + 3) % len(SIZES)], BATCHES[(5 * k + len(norm or "")) % len(BATCHES)]
        steps = (7, 2, 1, 7, 50)[k % 5]
        rnn = network(inputs, hidden, seed=k, norm=norm, nonlinearity=nonlinearity, trained=steps)
        x, h0 = normal(rng, steps, batch, inputs), normal(rng, 1, batch, hidden)
        y, h = rnn(x, h0)
        assert y.dtype == h.dtype == np.float32 and y.shape == (steps, batch, hidden)
        assert step_error(rnn, x, h0, y) < STEP, (hidden, inputs, batch)
        same(h[0], y[-1])


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
    its jump. So eps is large for two units.
    """
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


@pytest.mark.parametrize("cell, options", [
    ("RNN", dict(nonlinearity="tanh")), ("RNN", dict(nonlinearity="relu")), ("LSTM", {}), ("GRU", {}),
    ("LSTM", dict(proj_size=32)), ("LSTM", dict(proj_size=5)),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(
    "layers, both, batch_first, bias",
    [(1, False, False, True), (2, True, True, True), (3, False, True, False), (2, True, False, True)],
)
def test_without_a_norm_results_are_those_of_torch(rng, cell, options, layers, both, batch_first, bias):
    torch = pytest.importorskip("torch")
    options = options | dict(num_layers=layers, bidirectional=both, batch_first=batch_first, bias=bias)
    rnn = network(7, 33, cell=cell, norm=None, **options)
    other = getattr(torch.nn, cell)(7, 33, **options, dtype=torch.float64)
    other.load_state_dict({name: torch.tensor(value).double() for name, value in rnn.state_dict().items()})
    x, h0 = normal(rng, 9, 9, 7), drawn_state(rng, rnn, 9)
    start = whole(rnn, [torch.tensor(s).double() for s in parts(rnn, h0)])
    ends = np.array([9, 4, 1, 9, 7, 2, 3, 8, 5])
    with torch.no_grad():
        close(rnn, rnn(torch.tensor(x), h0), other(torch.tensor(x).double(), start))
        packed = torch.nn.utils.rnn.pack_padded_sequence(torch.tensor(x).double(), ends, batch_first, False)
        y, h = other(packed, start)
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first)
        close(rnn, rnn(x, h0, torch.tensor(ends)), (y, h))


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
