"""An unknown attribute of a network, stream, layer or spec is an error."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest

import lnrnn
from networks import each_cell, each_norm, network, normal, same

W = np.zeros((1, 1), np.float32)

# (constructor, unknown attribute, the nearest known attribute).
MISSPELT = [
    (lambda: lnrnn.LSTM(3, 4), "wieght_hh_l0", "weight_hh_l0"),
    (lambda: lnrnn.RNN(3, 4, 2, bidirectional=True), "weight_hh_l1_revers", "weight_hh_l1_reverse"),
    (lambda: lnrnn.RNN(3, 4), "statedict", "state_dict"),
    (lambda: lnrnn.RNN(3, 4, norm="batch"), "running_men_l0", "running_mean_l0"),
    (lambda: lnrnn.LSTM(3, 4).stream(2), "step_done", "steps_done"),
    (lambda: lnrnn.LayerNorm(3), "trainning", "training"),
    (lambda: lnrnn.BatchNorm(3), "runing_var", "running_var"),
    (lambda: lnrnn.LayerNormSpec(), "inner_bais", "inner_bias"),
]


@pytest.mark.parametrize("name, hint", [("eval", "forward_train"), ("train", "a call infers"), ("to", "CPU")])
def test_methods_of_torch_have_a_hint(name, hint):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; .*{hint}"):
        getattr(lnrnn.GRU(3, 4), name)
    with pytest.raises(AttributeError) as caught:
        getattr(lnrnn.GRU(3, 4).stream(), name)
    assert hint not in str(caught.value)


@pytest.mark.parametrize("make, name, near", MISSPELT, ids=lambda v: v if isinstance(v, str) else "")
def test_an_unknown_attribute_is_refused(make, name, near):
    """Python adds the nearest name of dir(owner) to the traceback."""
    owner = make()
    assert not hasattr(owner, name) and getattr(owner, name, 7) == 7 and near in dir(owner)
    for change in (lambda: getattr(owner, name), lambda: setattr(owner, name, W)):
        with pytest.raises(AttributeError, match=f"'{name}'$") as caught:
            change()
        frozen = isinstance(caught.value, dataclasses.FrozenInstanceError)
        assert frozen or (caught.value.name, caught.value.obj) == (name, owner)
    assert not hasattr(owner, name)
    if isinstance(owner, lnrnn.LayerNormSpec):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(owner, near, True)


@each_cell
@each_norm
def test_methods_sizes_and_properties_cannot_be_replaced(rng, cell, norm):
    rnn, x = network(3, 4, cell=cell, norm=norm, trained=5), normal(rng, 5, 2, 3)
    want = rnn(x)[0]
    methods, values = (
        "parameters state_dict forward_train",
        "known_steps dtype packed_bytes num_directions norm",
    )
    arguments = "hidden_size bias batch_first num_layers nonlinearity"
    for name in f"{methods} {values} {arguments}".split():
        with pytest.raises(AttributeError):
            setattr(rnn, name, {})
    for name in ("weight_hh_l0", "hidden_size", "stream", "overrun", "qqqq"):
        with pytest.raises(AttributeError, match=name):
            delattr(rnn, name)
    same(rnn(x)[0], want)


class WithHead(lnrnn.LSTM):
    """A user's subclass with attributes, a method, and an attribute named like a parameter."""

    scale_l0 = 1.0

    def __init__(self, classes, **options):
        self.classes = classes
        super().__init__(3, 5, **options)
        self.head = np.full((classes, 5), 0.5)
        self.scale_l0 = 2.0
        self._hidden = "yes"

    def scores(self, x):
        return self(x)[0] @ self.head.T * self.scale_l0


def test_a_subclass_may_have_attributes_of_its_own(rng):
    net, x = WithHead(2, seed=3), normal(rng, 4, 2, 3)
    want = net.scores(x)
    assert net.classes == 2 and net._hidden == "yes" and want.shape == (4, 2, 2)
    net.anything = 3
    twins = copy.copy(net), copy.deepcopy(net), pickle.loads(pickle.dumps(net)), net.to_dtype("float32")
    for twin in twins:
        assert type(twin) is WithHead and (twin.classes, twin.anything, twin._hidden) == (2, 3, "yes")
        same(twin.scores(x), want)
        twin.head = 2 * twin.head
        twin.weight_hh_l0 = 2 * twin.weight_hh_l0
    same(net.scores(x), want)
    del net.anything
    assert not hasattr(net, "anything")


def test_a_subclass_may_not_have_names_of_parameters():
    net = WithHead(2)
    for name in ("wieght_hh_l0", "weight_hh_l1", "weight_hh_l0_reverse"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            setattr(net, name, net.weight_hh_l0)
    with pytest.raises(AttributeError, match="is set by the constructor only"):
        net.hidden_size = 7


def test_a_subclass_that_reads_a_parameter_before_its_base_is_initialised():
    class Early(lnrnn.RNN):
        def __init__(self):
            self.found = self.weight_hh_l0

    with pytest.raises(AttributeError, match="'Early' object has no attribute 'weight_hh_l0'"):
        Early()


def test_subclasses_of_layers():
    class Scaled(lnrnn.LayerNorm):
        def __init__(self, n):
            self.scale = 2
            super().__init__(n)

        def __call__(self, x):
            return self.scale * super().__call__(x)

    layer, x = Scaled(4), np.arange(8.0).reshape(2, 4)
    same(layer(x), 2 * lnrnn.layer_norm(x, 4))
    same(copy.deepcopy(layer)(x), layer(x))


X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)


@pytest.mark.parametrize(
    "make, name",
    [
        *((lnrnn.LayerNorm, name) for name in ("weight", "bias")),
        *((lnrnn.BatchNorm, name) for name in ("weight", "bias", "running_mean", "running_var")),
    ],
)
def test_tensors_of_a_layer_keep_the_dtype_of_floats(make, name):
    layer = make(4)
    want = layer.eval()(X)
    for good in ([1, 2, 3, 4], np.arange(4, dtype="i1"), np.arange(4.0), np.arange(4, dtype="f2")):
        setattr(layer, name, good)
        same(getattr(layer, name), good)
        assert getattr(layer, name).dtype == (good.dtype if np.array(good).dtype.kind == "f" else np.float32)
        assert (layer(X) != want).any()


def test_a_layer_keeps_the_array_that_is_assigned():
    """As in torch.nn, two layers may share one weight array, and the caller may change it in place."""
    first, second, weight = lnrnn.LayerNorm(4), lnrnn.BatchNorm(4), np.full(4, 2.0)
    first.weight = second.weight = weight
    assert first.weight is weight and second.weight is weight
    weight[...] = 3
    same(first(X), lnrnn.layer_norm(X, 4, weight, np.zeros(4)))
    first.weight = first.bias = None
    same(first(X), lnrnn.layer_norm(X, 4))
    assert first.state_dict() == {}


@pytest.mark.parametrize("layer", [lnrnn.LayerNorm(4), lnrnn.BatchNorm(4)], ids=repr)
def test_fixed_attributes_of_a_layer_cannot_be_set(layer):
    fixed = "normalized_shape elementwise_affine num_features affine track_running_stats state_dict"
    for name in fixed.split():
        with pytest.raises(AttributeError, match=name):
            setattr(layer, name, 4)
