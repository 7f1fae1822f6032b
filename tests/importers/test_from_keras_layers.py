"""Tests from_keras on layers of Keras. Without KERAS_BACKEND the backend is JAX or PyTorch."""

from __future__ import annotations

import os
from importlib.util import find_spec

os.environ.setdefault("KERAS_BACKEND", "jax" if find_spec("jax") else "torch")

import numpy as np
import pytest

import lnrnn
import pages
from helpers import absolute_error

keras = pytest.importorskip("keras")
from keras import layers, ops  # noqa: E402

# Keras has a defect: __array__ of its variables has no argument copy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

T, B, I, H = 9, 3, 5, 6  # noqa: E741 - the letters of the shapes in the documentation
SINGLE = 3e-6  # both sides compute in float32


def layer(name, **options):
    """Returns a layer that returns the whole sequence and the last states."""
    return getattr(layers, name)(H, **options, return_sequences=True, return_state=True)


def outputs(rng, layer, x):
    """Sets random weights. Returns the outputs of Keras: y and a list of states."""
    layer(x)
    layer.set_weights([rng.uniform(-0.4, 0.4, w.shape).astype(np.float32) for w in layer.get_weights()])
    y, *states = map(ops.convert_to_numpy, layer(x))
    return y, states


def agree(model, x, y, states):
    got, ends = model(x)
    assert absolute_error(got, y) < SINGLE
    ends = ends if isinstance(ends, tuple) else (ends,)
    for k, state in enumerate(states):  # the states are h, or h and c, of each direction
        assert absolute_error(ends[k % len(ends)][k // len(ends)], state) < SINGLE


CASES = [
    *((name, options) for name in ("SimpleRNN", "LSTM", "GRU") for options in ({}, {"use_bias": False})),
    ("SimpleRNN", {"activation": "relu"}), ("SimpleRNN", {"activation": "linear"}),
    ("GRU", {"reset_after": False}), ("GRU", {"reset_after": False, "use_bias": False}),
    ("LSTM", {"recurrent_activation": "hard_sigmoid"}), ("GRU", {"recurrent_activation": "hard_sigmoid"}),
    ("GRU", {"recurrent_activation": "hard_sigmoid", "reset_after": False}),
    ("LSTM", {"dropout": 0.5, "recurrent_dropout": 0.5}), ("GRU", {"unroll": True}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), CASES)
def test_layers_and_their_arrays_have_the_results_of_keras(rng, name, options):
    """Arrays are given in the order of get_weights(), and by name."""
    x = rng.standard_normal((B, T, I)).astype(np.float32)
    trained = layer(name, **options)
    y, states = outputs(rng, trained, x)
    agree(lnrnn.from_keras(trained), x, y, states)
    extra = {"kind": name}
    if name == "GRU":
        extra["reset_after"] = options.get("reset_after", True)
    if name == "SimpleRNN":
        activation = options.get("activation", "tanh")
        extra["nonlinearity"] = "identity" if activation == "linear" else activation
    if "recurrent_activation" in options:
        extra["recurrent_activation"] = options["recurrent_activation"]
    named = {w.path: ops.convert_to_numpy(w) for w in trained.weights if "seed" not in w.path}
    for arrays in (trained.get_weights(), named):
        agree(lnrnn.from_keras(arrays, **extra), x, y, states)


@pytest.mark.parametrize("name", ["SimpleRNN", "LSTM", "GRU"])
def test_bidirectional_layers_have_the_results_of_keras(rng, name):
    x = rng.standard_normal((B, T, I)).astype(np.float32)
    trained = layers.Bidirectional(layer(name))
    y, states = outputs(rng, trained, x)
    agree(lnrnn.from_keras(trained), x, y, states)
    if name in ("LSTM", "GRU"):
        agree(lnrnn.from_keras(trained.get_weights(), bidirectional=True), x, y, states)
        agree(lnrnn.from_keras({w.path: ops.convert_to_numpy(w) for w in trained.weights}), x, y, states)


@pytest.mark.parametrize("name", ["SimpleRNN", "LSTM", "GRU"])
def test_layers_that_go_backwards(rng, name):
    """Keras returns the outputs in the order in which the layer reads x, from the end."""
    x = rng.standard_normal((B, T, I)).astype(np.float32)
    first, second = layer(name, go_backwards=True), layer(name)
    y, states = outputs(rng, first, x)
    agree(lnrnn.from_keras(first), x, y[:, ::-1], states)
    y, _ = outputs(rng, second, y)
    agree(lnrnn.from_keras([first, second]), x, y[:, ::-1], [])


def test_stacked_cells_have_the_results_of_keras(rng):
    x = rng.standard_normal((B, T, I)).astype(np.float32)
    first, second = layer("LSTM"), layer("LSTM")
    y, _ = outputs(rng, first, x)
    y, states = outputs(rng, second, y)
    model = lnrnn.from_keras([first, second])
    agree(model, x, y, [])
    np.testing.assert_allclose(model(x)[1][0][1], states[0], atol=SINGLE, rtol=0)
    stacked = layers.RNN(layers.StackedRNNCells([layers.GRUCell(H) for _ in "ab"]), return_sequences=True)
    stacked(x)
    stacked.set_weights([rng.uniform(-0.4, 0.4, w.shape).astype(np.float32) for w in stacked.get_weights()])
    agree(lnrnn.from_keras(stacked), x, ops.convert_to_numpy(stacked(x)), [])


def test_a_model_is_refused_with_its_recurrent_layers():
    some = [layers.Masking(), layers.LSTM(H, return_sequences=True), layers.Bidirectional(layers.GRU(H))]
    inputs = keras.Input((T, I))
    hint = r"; give its recurrent layers: \[model.layers\[1\], model.layers\[2\]\]$"
    for model in (keras.Sequential([*some, layers.Dense(2)]), keras.Model(inputs, some[2](some[1](inputs)))):
        with pytest.raises(ValueError, match=rf"no cell \w+ of .*{hint}"):
            lnrnn.from_keras(model)
    with pytest.raises(ValueError, match=r"no cell Dense of [\w.]+$"):
        lnrnn.from_keras(layers.Dense(2))


def test_a_layer_that_is_not_built_is_refused():
    for unbuilt in (layer("GRU"), layers.Bidirectional(layer("LSTM")), layers.SimpleRNNCell(H)):
        with pytest.raises(ValueError, match=r"must be built, got .*call it on an input, or layer\.build\("):
            lnrnn.from_keras([unbuilt])


def test_the_program_of_the_page_runs():
    pages.run_block("keras.md", "import keras")
