"""from_keras on layers of Keras itself, run by the backend that KERAS_BACKEND names, or JAX, or PyTorch; and
on the cells of TensorFlow Addons, which installs no more, written anew on top of Keras' cells."""

from __future__ import annotations

import os
from importlib.util import find_spec

os.environ.setdefault("KERAS_BACKEND", "jax" if find_spec("jax") else "torch")

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error

keras = pytest.importorskip("keras")
from keras import layers, ops  # noqa: E402

# Keras' own: its variables' __array__ knows no copy argument.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

T, B, I, H = 9, 3, 5, 6  # noqa: E741 - the letters of the shapes in the documentation
SINGLE = 3e-6  # both are float32


@keras.saving.register_keras_serializable()
class LayerNormLSTMCell(layers.LSTMCell):
    def __init__(self, units, norm_epsilon=1e-3, **options):
        super().__init__(units, **options)
        self.norm_epsilon = norm_epsilon
        self.norms = [layers.LayerNormalization(epsilon=norm_epsilon) for _ in range(3)]

    def build(self, shape):
        super().build(shape)
        for norm, units in zip(self.norms, (4, 4, 1), strict=True):
            norm.build((None, units * self.units))

    def call(self, x, states, training=False):
        h, c = states
        z = self.norms[0](x @ self.kernel) + self.norms[1](h @ self.recurrent_kernel)
        i, f, g, o = ops.split(z + (self.bias if self.use_bias else 0), 4, axis=1)
        c = self.norms[2](ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g))
        h = ops.sigmoid(o) * ops.tanh(c)
        return h, [h, c]

    def get_config(self):
        return {**super().get_config(), "norm_epsilon": self.norm_epsilon}


@keras.saving.register_keras_serializable()
class LayerNormSimpleRNNCell(layers.SimpleRNNCell):
    def __init__(self, units, layernorm_epsilon=1e-5, **options):
        super().__init__(units, **options)
        self.layernorm = layers.LayerNormalization(epsilon=layernorm_epsilon, center=False)

    def build(self, shape):
        super().build(shape)
        self.layernorm.build((None, self.units))

    def call(self, x, states, training=False):
        a = self.layernorm(x @ self.kernel + states[0] @ self.recurrent_kernel)
        h = self.activation(a + (self.bias if self.use_bias else 0))
        return h, [h]

    def get_config(self):
        return {**super().get_config(), "layernorm_epsilon": self.layernorm.epsilon}


def layer(name, **options):
    """A layer that returns the whole sequence and the last states."""
    returns = {"return_sequences": True, "return_state": True}
    if name.startswith("LayerNorm"):
        return layers.RNN(globals()[name](H, **options), **returns)
    return getattr(layers, name)(H, **options, **returns)


def outputs(rng, layer, x):
    """What Keras computes, all weights drawn first: y and a list of states."""
    layer(x)
    layer.set_weights([rng.uniform(-0.4, 0.4, w.shape).astype(np.float32) for w in layer.get_weights()])
    y, *states = map(ops.convert_to_numpy, layer(x))
    return y, states


def agree(model, x, y, states):
    got, ends = model(x)
    assert absolute_error(got, y) < SINGLE
    ends = ends if isinstance(ends, tuple) else (ends,)
    for k, state in enumerate(states):  # of every direction, h (and c)
        assert absolute_error(ends[k % len(ends)][k // len(ends)], state) < SINGLE


CASES = [(name, options)
         for name in ("SimpleRNN", "LSTM", "GRU", "LayerNormLSTMCell", "LayerNormSimpleRNNCell")
         for options in ({}, {"use_bias": False})]  # fmt: skip
CASES += [
    ("SimpleRNN", {"activation": "relu"}),
    ("SimpleRNN", {"activation": "linear"}),
    ("LayerNormSimpleRNNCell", {"activation": None}),
]
CASES += [
    ("LayerNormLSTMCell", {"norm_epsilon": 0.1}),
    ("LayerNormSimpleRNNCell", {"layernorm_epsilon": 0.1}),
]
CASES += [
    ("LSTM", {"dropout": 0.5, "recurrent_dropout": 0.5}),
    ("GRU", {"unroll": True}),
    ("LSTM", {"stateful": False}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_layers(rng, name, options):
    x = rng.standard_normal((B, T, I)).astype(np.float32)
    trained = layer(name, **options)
    y, states = outputs(rng, trained, x)
    agree(lnrnn.from_keras(trained), x, y, states)


@pytest.mark.parametrize(("name", "options"), [c for c in CASES if "LayerNorm" not in c[0]])
def test_arrays_are_in_the_order_of_get_weights(rng, name, options):
    x = rng.standard_normal((B, T, I)).astype(np.float32)
    trained = layer(name, **options)
    y, states = outputs(rng, trained, x)
    told = {"kind": name} | ({"reset_after": True} if name == "GRU" else {})
    if name == "SimpleRNN":
        told["nonlinearity"] = {"linear": "identity"}.get(
            options.get("activation"), options.get("activation", "tanh")
        )
    agree(lnrnn.from_keras(trained.get_weights(), **told), x, y, states)
    agree(
        lnrnn.from_keras(
            {w.path: ops.convert_to_numpy(w) for w in trained.weights if "seed" not in w.path}, **told
        ),
        x,
        y,
        states,
    )


@pytest.mark.parametrize("name", ["SimpleRNN", "LSTM", "GRU", "LayerNormLSTMCell"])
def test_bidirectional(rng, name):
    x = rng.standard_normal((B, T, I)).astype(np.float32)
    trained = layers.Bidirectional(layer(name))
    y, states = outputs(rng, trained, x)
    agree(lnrnn.from_keras(trained), x, y, states)
    if name in ("LSTM", "GRU"):
        agree(lnrnn.from_keras(trained.get_weights(), bidirectional=True), x, y, states)
        agree(lnrnn.from_keras({w.path: ops.convert_to_numpy(w) for w in trained.weights}), x, y, states)
    for mode in ("sum", "mul", "ave", None):
        trained.merge_mode = mode
        with pytest.raises(ValueError, match="merge_mode must be 'concat'"):
            lnrnn.from_keras(trained)


def test_stacks(rng):
    x = rng.standard_normal((B, T, I)).astype(np.float32)
    first, second = layer("LSTM"), layer("LSTM")
    y, _ = outputs(rng, first, x)
    y, states = outputs(rng, second, y)
    model = lnrnn.from_keras([first, second])
    agree(model, x, y, [])
    np.testing.assert_allclose(model(x)[1][0][1], states[0], atol=SINGLE, rtol=0)
    stacked = layers.RNN(
        layers.StackedRNNCells([layers.GRUCell(H), layers.GRUCell(H)]), return_sequences=True
    )
    stacked(x)
    stacked.set_weights([rng.uniform(-0.4, 0.4, w.shape).astype(np.float32) for w in stacked.get_weights()])
    agree(lnrnn.from_keras(stacked), x, ops.convert_to_numpy(stacked(x)), [])
    with pytest.raises(ValueError, match="StackedRNNCells"):
        both = layers.Bidirectional(
            layers.RNN(layers.StackedRNNCells([layers.GRUCell(H), layers.GRUCell(H)]))
        )
        both(x)
        lnrnn.from_keras(both)


@pytest.mark.parametrize(("name", "options", "message"), [
    ("LSTM", {"activation": "relu"}, "activation must be 'tanh'"),
    ("GRU", {"recurrent_activation": "hard_sigmoid"}, "recurrent_activation 'sigmoid'"),
    ("GRU", {"reset_after": False}, "reset_after=False multiplies"),
    ("LSTM", {"go_backwards": True}, "go_backwards"),
    ("SimpleRNN", {"activation": "selu"}, "nonlinearity must be one of"),
])  # fmt: skip
def test_other_equations_are_refused(rng, name, options, message):
    trained = layer(name, **options)
    trained(np.zeros((B, T, I), np.float32))
    with pytest.raises(ValueError, match=message):
        lnrnn.from_keras(trained)


def test_cells_of_somebody_else_are_refused():
    class Mine(layers.LSTMCell):
        pass

    cell = Mine(H)
    cell.build((None, I))
    with pytest.raises(ValueError, match="what Mine of test_from_keras_layers does"):
        lnrnn.from_keras(cell)
    dense = layers.Dense(3)
    dense.build((None, I))
    with pytest.raises(ValueError, match="Dense"):
        lnrnn.from_keras(dense)
    with pytest.raises(ValueError, match="unexpected number or shapes"):
        lnrnn.from_keras(layers.LSTMCell(H))  # never built


def test_arguments_that_a_layer_contradicts(rng):
    trained = layer("LSTM")
    trained(np.zeros((B, T, I), np.float32))
    for option in ({"kind": "GRU"}, {"eps": 1e-3}, {"nonlinearity": "relu"}):
        with pytest.raises(ValueError, match=next(iter(option))):
            lnrnn.from_keras(trained, **option)
