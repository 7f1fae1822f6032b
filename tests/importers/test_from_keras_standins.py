"""Tests from_keras on stand-ins for layers, also of TensorFlow Addons and of earlier versions of Keras."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from test_from_keras import B, H, I, T, computed, weights

import lnrnn
from lnrnn.importers.keras_weights import convert_keras

GATED = {"activation": "tanh", "recurrent_activation": "sigmoid"}
CONFIGS = {
    "SimpleRNN": {"activation": "tanh"},
    "LSTM": GATED,
    "GRU": GATED | {"reset_after": True},
    "LayerNormLSTMCell": GATED | {"norm_epsilon": 1e-3},
    "LayerNormSimpleRNNCell": {"activation": "tanh", "layernorm_epsilon": 1e-5},
}


def cell(name, p, **config):
    """Returns a cell with this class name, weights p and this configuration."""
    cls = type(name if name.endswith("Cell") else f"{name}Cell", (), {
        "get_weights": lambda self: list(p.values()), "get_config": lambda self: CONFIGS[name] | config,
    })  # fmt: skip
    return cls()


def layer(name, p, *, go_backwards=False, time_major=None, **config):
    """Returns a recurrent layer around a cell. Only layers of tf.keras have time_major."""
    network = SimpleNamespace(
        cell=cell(name, p, **config), go_backwards=go_backwards, get_weights=lambda: list(p.values())
    )
    vars(network).update({} if time_major is None else {"time_major": time_major})
    return network


def bidirectional(forward, backward, merge_mode="concat"):
    return SimpleNamespace(
        forward_layer=forward, backward_layer=backward, merge_mode=merge_mode, get_weights=lambda: []
    )


def compare(rng, name, converted, layers, **given):
    computed(rng, name, layers, **given)(converted)


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_and_cells_compute_their_formula(rng, name):
    for full in (name, f"{name} without bias"):
        p = weights(rng, full)
        for network in (layer(name, p), cell(name, p)):
            converted = convert_keras(network)
            assert converted.arguments["batch_first"] is True
            compare(rng, full, converted, [[p]])
    first, second = weights(rng, name), weights(rng, name, H)
    compare(rng, name, convert_keras([layer(name, first), layer(name, second)]), [[first], [second]])
    stacked = SimpleNamespace(cells=[cell(name, first), cell(name, second)])
    network = SimpleNamespace(cell=stacked, get_weights=lambda: [])
    compare(rng, name, convert_keras(network), [[first], [second]])


@pytest.mark.parametrize("name", CONFIGS)
def test_only_concatenated_directions_are_converted(rng, name):
    p, q = weights(rng, name), weights(rng, name)
    forward, backward = layer(name, p), layer(name, q, go_backwards=True)
    compare(rng, name, convert_keras(bidirectional(forward, backward)), [[p, q]])
    for mode in ("sum", "mul", "ave", None):
        with pytest.raises(ValueError, match=f"merge_mode must be 'concat', as in lnrnn, got {mode!r}"):
            convert_keras(bidirectional(forward, backward, mode))


def test_go_backwards_becomes_reverse(rng):
    p, q = weights(rng, "GRU"), weights(rng, "GRU")
    ahead, back = layer("GRU", p), layer("GRU", q, go_backwards=True)
    pairs = (back, back), (ahead, ahead), (back, ahead)
    with pytest.raises(ValueError, match="go_backwards must be False except in layer 0"):
        convert_keras([ahead, layer("GRU", weights(rng, "GRU", H), go_backwards=True)])
    for wrong in (bidirectional(*pair) for pair in pairs):
        with pytest.raises(ValueError, match="go_backwards must be False"):
            convert_keras(wrong)


def test_a_bidirectional_layer_of_stacked_cells_is_refused(rng):
    p = weights(rng, "GRU")
    network = {
        reverse: SimpleNamespace(cell=SimpleNamespace(cells=[cell("GRU", p)] * 2), go_backwards=reverse)
        for reverse in (False, True)
    }
    with pytest.raises(ValueError, match="StackedRNNCells"):
        convert_keras(bidirectional(network[False], network[True]))


def test_layers_that_differ_are_refused(rng):
    p, q = weights(rng, "GRU"), weights(rng, "GRU", H)
    for stack, counts in (
        ([layer("GRU", p), bidirectional(layer("GRU", q), layer("GRU", q, go_backwards=True))], "1 .* 2"),
        ([bidirectional(layer("GRU", p), layer("GRU", p, go_backwards=True)), layer("GRU", q)], "2 .* 1"),
    ):
        with pytest.raises(ValueError, match=f"the same number of directions, got {counts}"):
            convert_keras(stack)
    other = layer("GRU", weights(rng, "GRU reset before", H), reset_after=False)
    with pytest.raises(ValueError, match="all layers must have the same reset_after"):
        convert_keras([layer("GRU", p), other])


def test_the_order_of_axes_is_that_of_the_layer(rng):
    p, q = weights(rng, "LSTM"), weights(rng, "LSTM", H)
    for time_major in (True, False, None):
        network = layer("LSTM", p, time_major=time_major)
        for source in (network, [network, layer("LSTM", q, time_major=time_major)]):
            assert convert_keras(source).arguments["batch_first"] is not bool(time_major)
        for given in (True, False):
            assert convert_keras(network, batch_first=given).arguments["batch_first"] is given
    x = rng.standard_normal((T, B, I)).astype(np.float32)
    time_first = lnrnn.from_keras(layer("LSTM", p, time_major=True))(x)[0]
    batch_first = lnrnn.from_keras(layer("LSTM", p))(x.swapaxes(0, 1))[0]
    np.testing.assert_array_equal(time_first, batch_first.swapaxes(0, 1))


def test_the_hard_sigmoid_of_a_layer_is_that_of_its_package(rng, monkeypatch):
    p = weights(rng, "LSTM")
    given = "hard_sigmoid", "keras2_hard_sigmoid"
    wanted = [lnrnn.from_keras(list(p.values()), recurrent_activation=name) for name in given]
    versions = ("keras", "3.15.1"), ("keras", "2.2.4"), ("tf_keras", "2.19.0"), ("tensorflow", "2.3.0")
    for package, version in versions:
        monkeypatch.setitem(sys.modules, package, SimpleNamespace(__version__=version))
        network = cell("LSTM", p, recurrent_activation="hard_sigmoid")
        type(network).__module__ = f"{package}.layers"
        rnn, like = lnrnn.from_keras(network), wanted[version[0] != "3"]
        assert rnn.gate_activation == "hard_sigmoid"
        np.testing.assert_array_equal(rnn.weight_hh_l0, like.weight_hh_l0)
        other = given[version[0] == "3"]
        with pytest.raises(ValueError, match=f"recurrent_activation must be the layer's .*got {other!r}"):
            lnrnn.from_keras(network, recurrent_activation=other)
    network = cell("LSTM", p, recurrent_activation="hard_sigmoid")
    with pytest.raises(ValueError, match="recurrent_activation must be given for a cell with 'hard_sigmoid'"):
        lnrnn.from_keras(network)
    rnn = lnrnn.from_keras(network, recurrent_activation="hard_sigmoid")
    np.testing.assert_array_equal(rnn.weight_hh_l0, wanted[0].weight_hh_l0)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "LayerNormLSTMCell"])
@pytest.mark.parametrize("wrong", [
    {"recurrent_activation": "softsign"}, {"recurrent_activation": "tanh"},
    {"recurrent_activation": None}, {"activation": "relu"},
    {"activation": "linear"}, {"activation": "sigmoid", "recurrent_activation": "tanh"},
])  # fmt: skip
def test_other_activations_of_gated_cells_are_refused(rng, name, wrong):
    if name == "GRU" and "recurrent_activation" not in wrong:
        wanted = {"linear": "identity"}.get(wrong["activation"], wrong["activation"])
        assert lnrnn.from_keras(layer(name, weights(rng, name), **wrong)).nonlinearity == wanted
        return
    known = "'tanh'.*" if name == "GRU" else "'tanh' "
    with pytest.raises(
        ValueError, match=f"activation must be {known}and recurrent_activation 'sigmoid'"
    ) as error:
        convert_keras(layer(name, weights(rng, name), **wrong))
    assert all(repr(value) in str(error.value) for value in (GATED | wrong).values())


@pytest.mark.parametrize("name", ["SimpleRNN", "LayerNormSimpleRNNCell"])
def test_the_activation_of_an_rnn_is_that_of_the_layer(rng, name):
    p = weights(rng, name)
    for w in ("kernel", "recurrent_kernel"):
        p[w] /= 4  # so that states stay small over nine steps of the identity
    for theirs, ours in (("relu", "relu"), ("linear", "identity"), ("sigmoid", "sigmoid"), ("tanh", "tanh")):
        compare(rng, name, convert_keras(layer(name, p, activation=theirs)), [[p]], nonlinearity=ours)
    with pytest.raises(ValueError, match="nonlinearity must be one of"):
        lnrnn.from_keras(layer(name, p, activation="selu"))


@pytest.mark.parametrize(
    ("name", "option"),
    [("LayerNormLSTMCell", "norm_epsilon"), ("LayerNormSimpleRNNCell", "layernorm_epsilon")],
)
def test_eps_is_that_of_the_layer(rng, name, option):
    p = weights(rng, name)
    for eps in (0.3, 1e-3, 1e-5):
        converted = convert_keras(layer(name, p, **{option: eps}))
        assert converted.arguments["norm"].eps == eps
        compare(rng, name, converted, [[p]], eps=eps)
    with pytest.raises(ValueError, match="eps must be the layer's 0.3, got 0.1"):
        convert_keras(layer(name, p, **{option: 0.3}), eps=0.1)


def test_arguments_that_contradict_a_layer_are_refused(rng):
    network = layer("LSTM", weights(rng, "LSTM"))
    for option in ({"kind": "GRU"}, {"eps": 1e-3}, {"nonlinearity": "relu"}, {"reset_after": True}):
        with pytest.raises(ValueError, match=f"{next(iter(option))} must be the layer's"):
            convert_keras(network, **option)
    assert convert_keras(network, kind="LSTM").cell == "LSTM"
