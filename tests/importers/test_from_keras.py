"""Tests from_keras on arrays, in order or by name, without Keras.

Compares converted networks with the formulas of Keras's cells. Wrong arrays are refused.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import foreign_cells
import lnrnn
from importing import assert_agrees, drawn, initial
from lnrnn.importers.keras_weights import convert_keras

T, B, I, H = 9, 3, 5, 12  # noqa: E741 - the letters of the shapes in the documentation


def shapes(gates, bias=None, **more):
    bias = {} if bias is None else {"bias": bias}
    return {"kernel": (I, gates * H), "recurrent_kernel": (H, gates * H), **bias, **more}


def before(x, state, p, **options):
    """Computes a step of Keras's GRU with reset_after=False, which has one bias."""
    bias = p.get("bias", np.zeros(p["kernel"].shape[1]))
    return foreign_cells.keras_gru(x, state, p | {"bias": bias}, reset_after=False, **options)


NORMS = {f"{side}_norm/{part}": (H if side == "state" else 4 * H,)
         for side in ("kernel", "recurrent", "state") for part in ("gamma", "beta")}  # fmt: skip
GAMMA = {"layernorm/gamma": (H,)}
# {name: (function of the cell, shapes of its weights in the order of get_weights(), number of states, options
# that the arrays do not show)}
KERAS = {
    "SimpleRNN": (foreign_cells.keras_simple_rnn, shapes(1, (H,)), 1,
                  {"kind": "SimpleRNN", "nonlinearity": "tanh"}),
    "SimpleRNN without bias": (foreign_cells.keras_simple_rnn, shapes(1), 1, {"nonlinearity": "tanh"}),
    "LSTM": (foreign_cells.keras_lstm, shapes(4, (4 * H,)), 2, {}),
    "LSTM without bias": (foreign_cells.keras_lstm, shapes(4), 2, {}),
    "GRU": (foreign_cells.keras_gru, shapes(3, (2, 3 * H)), 1, {}),
    "GRU without bias": (foreign_cells.keras_gru, shapes(3), 1, {"reset_after": True}),
    "GRU reset before": (before, shapes(3, (3 * H,)), 1, {}),
    "GRU reset before without bias": (before, shapes(3), 1, {"reset_after": False}),
    "LayerNormLSTMCell": (foreign_cells.tfa_lstm, shapes(4, (4 * H,), **NORMS), 2, {}),
    "LayerNormLSTMCell without bias": (foreign_cells.tfa_lstm, shapes(4, **NORMS), 2, {}),
    "LayerNormSimpleRNNCell": (foreign_cells.tfa_simple_rnn, shapes(1, (H,), **GAMMA), 1,
                               {"nonlinearity": "tanh"}),
    "LayerNormSimpleRNNCell without bias": (foreign_cells.tfa_simple_rnn, shapes(1, **GAMMA), 1,
        {"kind": "LayerNormSimpleRNNCell", "nonlinearity": "tanh"}),
}  # fmt: skip


for _name, _gates in (
    ("hard_sigmoid", foreign_cells.keras_hard_sigmoid),
    ("keras2_hard_sigmoid", foreign_cells.keras_2_hard_sigmoid),
):
    for _cell in ("LSTM", "LSTM without bias", "GRU", "GRU reset before"):
        _function, _shapes, _states, _options = KERAS[_cell]
        KERAS[f"{_cell} {_name}"] = (
            partial(_function, sigmoid=_gates), _shapes, _states, _options | {"recurrent_activation": _name}
        )  # fmt: skip


def weights(rng, name, inputs=I):
    result = drawn(rng, KERAS[name][1])
    result["kernel"] = rng.uniform(-0.8, 0.8, (inputs, result["kernel"].shape[1]))
    return result


def computed(rng, name, layers, **given):
    """Returns a function that compares a converted network with the formula of the cell."""
    cell, _, states, _ = KERAS[name]
    nested, flat = initial(rng, states, len(layers), len(layers[0]), B, H)
    x = rng.standard_normal((T, B, I))
    want = foreign_cells.run(cell, x, layers, nested, **given)
    return lambda converted: assert_agrees(converted, want, x, flat)


@pytest.mark.parametrize("name", KERAS)
def test_every_cell_computes_its_formula(rng, name):
    p, options = weights(rng, name), KERAS[name][3]
    check = computed(rng, name, [[p]])
    for source in (
        list(p.values()),
        tuple(p.values()),
        p,
        {f"rnn/{name}_3/{leaf}:0": v for leaf, v in p.items()},
    ):
        converted = convert_keras(source, **options)
        assert converted.arguments["batch_first"] is True
        check(converted)
    assert convert_keras(p, **options, batch_first=False).arguments["batch_first"] is False


@pytest.mark.parametrize("name", KERAS)
def test_two_directions_and_two_layers(rng, name):
    options = KERAS[name][3]
    first, second = ([weights(rng, name, n), weights(rng, name, n)] for n in (I, 2 * H))
    check = computed(rng, name, [first, second])
    check(
        convert_keras([[*a.values(), *b.values()] for a, b in (first, second)], bidirectional=True, **options)
    )
    named = [
        {
            f"bidirectional_{k}/{way}_lstm/lstm_cell/{leaf}": v
            for way, p in zip(("forward", "backward"), pair, strict=True)
            for leaf, v in p.items()
        }
        for k, pair in enumerate((first, second))
    ]
    check(convert_keras(named, **options))
    one, two = weights(rng, name), weights(rng, name, H)
    computed(rng, name, [[one], [two]])(convert_keras([one, list(two.values())], **options))


@pytest.mark.parametrize("name", [n for n in KERAS if "Norm" in n])
def test_the_given_eps_is_used(rng, name):
    p, options = weights(rng, name), KERAS[name][3]
    computed(rng, name, [[p]], eps=0.3)(convert_keras(p, eps=0.3, **options))


@pytest.mark.parametrize("nonlinearity", ["relu", "sigmoid", "identity"])
@pytest.mark.parametrize("name", [n for n in KERAS if "RNN" in n])
def test_the_given_activation_of_an_rnn_is_used(rng, name, nonlinearity):
    p, options = weights(rng, name), KERAS[name][3] | {"nonlinearity": nonlinearity}
    for w in ("kernel", "recurrent_kernel"):
        p[w] /= 4  # so that states stay small over nine steps of the identity
    computed(rng, name, [[p]], nonlinearity=nonlinearity)(convert_keras(p, **options))


def test_tensorflow_addons_own_expected_numbers():
    # test_cell_output of tensorflow_addons/rnn/tests/layer_norm_lstm_cell_test.py has these values: every
    # weight is 0.5, gamma 1, beta 0.
    def cell(inputs):
        return [np.full((inputs, 8), 0.5), np.full((2, 8), 0.5), np.full(8, 0.5),
                np.ones(8), np.zeros(8), np.ones(8), np.zeros(8), np.ones(2), np.zeros(2)]  # fmt: skip

    lstm = lnrnn.from_keras([cell(2), cell(2)], eps=1e-12)
    h0, c0 = np.array([[[0.2, 0.3]], [[0.6, 0.7]]]), np.array([[[0, 0.1]], [[0.4, 0.5]]])
    y, (h, c) = lstm(np.ones((1, 1, 2)), (h0, c0))
    expected = np.array([[-0.47406167, 0.47406143]])
    np.testing.assert_allclose(y[0], expected, rtol=1e-5)
    np.testing.assert_allclose(h, [expected, expected], rtol=1e-5)
    np.testing.assert_allclose(c, [[[-1, 1]], [[-1, 1]]], rtol=1e-5)


def test_reset_after_false_is_another_equation(rng):
    for bias, shown in (((3 * H,), False), ((2, 3 * H), True)):
        p = drawn(rng, shapes(3, bias))
        with pytest.raises(ValueError, match=f"reset_after must be {shown} for a bias of shape"):
            convert_keras(p, reset_after=not shown)
    with pytest.raises(ValueError, match="reset_after must be given for a GRU without bias"):
        convert_keras(drawn(rng, shapes(3)))


@pytest.mark.parametrize("name", KERAS)
def test_missing_surplus_and_misshapen_arrays_are_refused(rng, name):
    p, options = weights(rng, name), KERAS[name][3]
    for leaf, value in p.items():
        less = {k: v for k, v in p.items() if k != leaf}
        # Without the bias or layernorm/gamma, the other arrays are a valid cell of another kind.
        if leaf not in ("bias", "layernorm/gamma"):
            with pytest.raises(ValueError, match="must be the arrays of a known cell"):
                convert_keras(less, **options)
        for wrong in (value[:-1], value[..., :-1], value[None], value[..., :0]):
            if wrong.shape != (I - 1, *p["kernel"].shape[1:]) or leaf != "kernel":  # another number of inputs
                for source in ({**p, leaf: wrong}, list({**p, leaf: wrong}.values())):
                    with pytest.raises(
                        ValueError, match=r"must be of shape|a known cell|weights must be the arrays of"
                    ):
                        convert_keras(source, **options)
    with pytest.raises(ValueError, match="a known cell, got .*momentum"):
        convert_keras({**p, "momentum": np.ones(3)}, **options)
    for source in ([*p.values()][:1], [*p.values()] * 2, [*p.values(), np.ones(3), np.ones(3), np.ones(3)]):
        with pytest.raises(ValueError, match="weights must be the arrays of|must be of shape"):
            convert_keras(source, **options)
