"""Every argument of all constructors, given wrongly: the type of the error, and the name of the argument in
its text. (The functions of norms have files of their own; calls and what belongs to a network are in
test_bad_calls.py.)"""

from __future__ import annotations

import math

import numpy as np
import pytest

import lnrnn
from bad_values import (
    HUGE,
    NO_FLAG,
    NO_INTEGER,
    D,
    E,
    H,
    Hostile,
    V,
    cases,
    label,
    numbers,
    refuses,
    sizes,
    wrong,
)


@cases(
    sizes("input_size", 2**31 - 1),
    sizes("hidden_size", 2**31 - 1),
    sizes("num_layers", 1024),
    wrong(
        E, "nonlinearity", [3, ["tanh"], b"tanh", np.tanh, math.tanh, Hostile(), np.array(["tanh", "relu"])]
    ),
    wrong(V, "nonlinearity", ["Tanh", "", "tanh ", "softmax", None, "x" * 10_000]),
    wrong(
        E,
        "norm",
        [3, True, ["layer"], b"layer", lnrnn.LayerNormSpec, {"layer": 1}, lnrnn.LayerNorm(3), Hostile()],
    ),
    wrong(V, "norm", ["Layer", "", "none", "instance"]),
    *(wrong(E, name, NO_FLAG) for name in ("bias", "batch_first", "bidirectional")),
    wrong(E, "seed", [v for v in NO_INTEGER if v is not None]),
    wrong(V, "seed", [-1, -HUGE]),
)
def test_rnn(error, name, given):
    refuses(error, name, lnrnn.RNN, **dict(input_size=D, hidden_size=H) | given)


def test_rnn_takes_what_is_an_integer():
    for two in (np.int8(2), np.uint64(2), np.array(2)):
        rnn = lnrnn.RNN(two, two, two, seed=two)
        assert (rnn.input_size, rnn.hidden_size, rnn.num_layers) == (2, 2, 2)
        spec = lnrnn.BatchNormSpec(max_steps=two)
        assert type(rnn.input_size) is type(spec.max_steps) is int  # or no file could hold it
        np.testing.assert_array_equal(rnn.weight_ih_l0, lnrnn.RNN(2, 2, seed=2).weight_ih_l0)
        assert lnrnn.LayerNorm(two).normalized_shape == (2,)
    assert lnrnn.RNN(1, 1, 1024).num_layers == 1024  # the most there may be


@cases(
    numbers("eps"),
    wrong(E, "eps", [None]),
    wrong(V, "placement", ["none", "Joint", ""]),
    wrong(E, "placement", [1, ["joint"], Hostile()]),
    wrong(V, "cell", ["in", ""]),
    wrong(E, "cell", [1, True, ["out"]]),
    wrong(V, "span", ["paper", ""]),
    wrong(E, "span", [1, False, ["all"]]),
    wrong(E, "inner_bias", [1, None, "yes", np.ones(3), Hostile()]),
)
def test_layer_norm_spec(error, name, given):
    refuses(error, name, lnrnn.LayerNormSpec, **given)


@cases(
    numbers("eps"),
    wrong(E, "eps", [None]),
    numbers("momentum", most=1),
    wrong(E, "max_steps", [v for v in NO_INTEGER if v is not None]),
    wrong(V, "max_steps", [0, -1, 2**31, HUGE]),
    wrong(V, "overrun", ["Raise", "", "first", None]),
    wrong(E, "overrun", [1, ["last"], b"last", Hostile()]),
)
def test_batch_norm_spec(error, name, given):
    refuses(error, name, lnrnn.BatchNormSpec, **given)


@cases(
    numbers("eps"),
    wrong(E, "eps", [None]),
    wrong(E, "elementwise_affine", NO_FLAG),
    wrong(E, "bias", NO_FLAG),
    wrong(E, "normalized_shape", ["4", None, 4.0, True, (4.0,), (True,), [[4]], Hostile(), np.array(["a"])]),
    wrong(V, "normalized_shape", [-1, (), [], (3, -4), -HUGE, 2**63, HUGE, (2**63, 1)]),
)
def test_layer_norm_layer(error, name, given):
    refuses(error, name, lnrnn.LayerNorm, **dict(normalized_shape=4) | given)


@cases(
    numbers("eps"),
    wrong(E, "eps", [None]),
    numbers("momentum", most=1),
    wrong(E, "affine", NO_FLAG),
    wrong(E, "track_running_stats", NO_FLAG),
    wrong(E, "num_features", NO_INTEGER),
    wrong(V, "num_features", [-1, -HUGE, 2**63, HUGE]),
)
def test_batch_norm_layer(error, name, given):
    refuses(error, name, lnrnn.BatchNorm, **dict(num_features=4) | given)


@cases(sizes("n", 1024))
def test_set_num_threads(error, name, given):
    before = lnrnn.get_num_threads()
    refuses(error, name, lnrnn.set_num_threads, **given)
    assert lnrnn.get_num_threads() == before


@pytest.mark.parametrize("mode", NO_FLAG, ids=label)
def test_mode(mode):
    for layer in (lnrnn.LayerNorm(3), lnrnn.BatchNorm(3)):
        refuses(E, "mode", layer.train, mode)
        assert layer.training is True
