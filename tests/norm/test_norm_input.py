"""Tests valid and invalid arguments of the norms, other axes than the last ones, and the layers
lnrnn.LayerNorm and lnrnn.BatchNorm."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import Kind, layouts, relative_error
from lnrnn import reference as ref

same = np.testing.assert_array_equal
X = np.arange(12, dtype=np.float32).reshape(3, 4)
M, V = np.arange(4, dtype=np.float32), np.arange(1, 5, dtype=np.float32)

# {function: valid arguments}. In training, batch norm updates its statistics in place.
NORMS = {
    "layer_norm": dict(normalized_shape=4, weight=V, bias=M),
    "rms_norm": dict(normalized_shape=4, weight=V),
    "batch_norm": dict(running_mean=M, running_var=V, weight=V, bias=M),
    "batch_norm training": dict(running_mean=M, running_var=V, weight=V, bias=M, training=True),
}
each_norm = pytest.mark.parametrize("norm", NORMS)
each_mode = pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])


def arguments(norm, **changes):
    own = {name: v.copy() if isinstance(v, np.ndarray) else v for name, v in NORMS[norm].items()}
    return {"x": X} | own | changes


def forward(norm, **changes):
    return getattr(lnrnn, norm.split()[0])(**arguments(norm, **changes))


def backward(norm, **changes):
    """Returns the gradients of layer or batch norm. Batch norm is in inference, unless `changes` has
    training=True."""
    given = {"gy": X} | arguments(norm, **changes)
    if norm == "layer_norm":
        return lnrnn.layer_norm_backward(**given)
    given = {name: value for name, value in given.items() if name not in ("bias", "momentum")}
    return lnrnn.batch_norm_backward(**{"training": False} | given)


def has_gradient(norm):
    return norm != "rms_norm"


# --- valid arguments ---------------------------------------------------------------------------------------


@each_norm
@pytest.mark.parametrize("given, result", [
    (np.float16, np.float16), (bool, np.float32), (np.int8, np.float32), (np.uint16, np.float32),
    (np.int32, np.float64), (np.int64, np.float64), (np.float32, np.float32), (np.float64, np.float64),
    (">f4", np.float32), (">f8", np.float64),
])  # fmt: skip
def test_results_have_the_documented_dtype(norm, given, result):
    x = (X % 2 if given is bool else X).astype(given)
    y = forward(norm, x=x)
    assert y.dtype == result and y.dtype.isnative
    same(y, forward(norm, x=x.astype(result)))
    if has_gradient(norm):
        gx, gweight, gbias = backward(norm, gy=x, x=x)
        assert gx.dtype == result and gweight.dtype == gbias.dtype == np.result_type(result, np.float32)


def test_normalized_shape_may_be_an_int_or_a_sequence():
    for shape in (4, np.int64(4), (4,), [4], np.array([4])):
        same(forward("layer_norm", normalized_shape=shape), forward("layer_norm"))


# --- other axes than the last ones --------------------------------------------------------------------------

SHAPE = (2, 5, 3, 4)
AXIS_NORMS = {
    "layer_norm": lambda x, size, w, b, **o: lnrnn.layer_norm(x, size, w, b, **o),
    "rms_norm": lambda x, size, w, b, **o: lnrnn.rms_norm(x, size, w, **o),
}
each_axis_norm = pytest.mark.parametrize("norm", AXIS_NORMS.values(), ids=AXIS_NORMS)
axes = pytest.mark.parametrize("axis", [0, 1, -2, 3, (1,), (1, 3), (3, 1), (-1, 0, 2), (3, 2, 1, 0)])


def moved(array, axis):
    axis = np.atleast_1d(axis).tolist()
    return np.moveaxis(array, axis, range(-len(axis), 0))


def drawn(rng, axis, dtype=np.float32):
    size = tuple(SHAPE[n] for n in axis) if isinstance(axis, tuple) else SHAPE[axis]
    return rng.standard_normal(SHAPE).astype(dtype), size, *rng.standard_normal((2, *np.atleast_1d(size)))


@each_axis_norm
@axes
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_axis_has_the_bits_of_these_axes_last(norm, axis, dtype, rng):
    x, *more = drawn(rng, axis, dtype)
    y = norm(x, *more, axis=axis)
    assert y.shape == x.shape and y.dtype == x.dtype and y.flags.c_contiguous
    same(moved(y, axis), norm(moved(x, axis), *more))


@each_axis_norm
def test_out_in_any_layout_or_x_itself(norm, rng):
    x, *more = drawn(rng, 1)
    want = norm(x, *more, axis=1)
    for out in (np.empty(SHAPE[::-1], np.float32).T, x):
        assert norm(x, *more, axis=1, out=out) is out
        same(out, want)


@axes
def test_gradients_with_axis_equal_those_of_these_axes_last(axis, rng):
    x, *more = drawn(rng, axis)
    gy = rng.standard_normal(SHAPE)
    gx, *sums = lnrnn.layer_norm_backward(gy, x, *more, axis=axis)
    want_gx, *want = lnrnn.layer_norm_backward(moved(gy, axis), moved(x, axis), *more)
    same(moved(gx, axis), want_gx)
    for got, right in zip(sums, want, strict=True):
        same(got, right)
    assert lnrnn.layer_norm_backward(gy, x, more[0], axis=axis)[1:] == (None, None)


@pytest.mark.parametrize("empty", [(0, 5, 3), (2, 5, 0)])
def test_empty_input_has_an_empty_result(empty):
    assert lnrnn.layer_norm(np.zeros(empty), 5, axis=1).shape == empty


# --- the layers ---------------------------------------------------------------------------------------------


def layer_norm_layer(training=False, **options):
    """Returns a layer with random parameters, and the function that computes the same."""
    layer = lnrnn.LayerNorm((4, 5), 1e-3, **options)
    randomise(layer, (4, 5))
    return layer, lambda x, **out: lnrnn.layer_norm(x, (4, 5), layer.weight, layer.bias, 1e-3, **out)


def batch_norm_layer(training=True, **options):
    layer = lnrnn.BatchNorm(4, 1e-3, **options).train(training)
    randomise(layer, 4)
    tracks = layer.track_running_stats
    running = [layer.running_mean.copy(), layer.running_var.copy()] if tracks else [None, None]
    own = training or not tracks

    def function(x, **out):
        return lnrnn.batch_norm(x, *running, layer.weight, layer.bias, own, layer.momentum, 1e-3, **out)

    function.running = running
    return layer, function


def randomise(layer, shape):
    rng = np.random.default_rng(2)
    for name, value in layer.state_dict().items():
        if value.ndim:
            setattr(layer, name, rng.uniform(0.5, 2, shape).astype(np.float32))


LAYERS = {
    "LayerNorm": (layer_norm_layer, False, {}),
    "LayerNorm, no bias": (layer_norm_layer, False, dict(bias=False)),
    "LayerNorm, no parameters": (layer_norm_layer, False, dict(elementwise_affine=False)),
    **{
        f"BatchNorm {options} {mode}": (batch_norm_layer, mode == "training", options)
        for options in ({}, dict(affine=False), dict(track_running_stats=False))
        for mode in ("training", "inference")
    },
}
each_layer = pytest.mark.parametrize("make, training, options", LAYERS.values(), ids=LAYERS)


@each_layer
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ">f4"], ids=str)
def test_a_layer_has_the_results_of_the_function(dtype, make, training, options, rng):
    """Tests contiguous and other arrays, with and without `out`, and the running statistics."""
    x = (3 * rng.standard_normal((6, 4, 5))).astype(dtype)
    for name, given in ({"plain": x, "list": x.tolist(), "subclass": x.view(Kind)} | layouts(x)).items():
        layer, function = make(training, **options)
        want = function(given)
        got = layer(given)
        assert type(got) is np.ndarray and got.dtype == want.dtype
        same(got, want, err_msg=name)
        for out in (np.zeros_like(want), np.zeros_like(want).view(Kind), *layouts(want).values()):
            if out.flags.writeable and out.dtype.isnative:
                layer, _ = make(training, **options)
                assert layer(given, out=out) is out
                same(np.asarray(out), want, err_msg=name)
        if isinstance(layer, lnrnn.BatchNorm) and layer.track_running_stats:
            same([layer.running_mean, layer.running_var], function.running, err_msg=name)
            assert layer.num_batches_tracked == training


def test_a_layer_norm_layer_begins_with_ones_and_zeros():
    layer = lnrnn.LayerNorm((3, 4), eps=0.25)
    assert layer.weight.dtype == layer.bias.dtype == np.float32
    same(layer.weight, np.ones((3, 4)))
    same(layer.bias, np.zeros((3, 4)))
    assert "(3, 4)" in repr(layer) and "0.25" in repr(layer)
    for options, names in ((dict(elementwise_affine=False), []), (dict(bias=False), ["weight"])):
        assert list(lnrnn.LayerNorm(4, **options).state_dict()) == names
        assert lnrnn.LayerNorm(4, **options).num_parameters == 4 * len(names)
    counts = [lnrnn.BatchNorm(5).num_parameters, lnrnn.RMSNorm((3, 4)).num_parameters, layer.num_parameters]
    assert counts == [10, 12, 24]


@pytest.mark.parametrize("momentum", [0.1, 0.75, None])
def test_a_batch_norm_layer_trains_and_infers(momentum):
    rng = np.random.default_rng(1)
    layer = lnrnn.BatchNorm(5, eps=1e-3, momentum=momentum)
    assert layer.training and layer.num_batches_tracked == 0
    mean, var = np.zeros(5), np.ones(5)
    same([layer.running_mean, layer.running_var], [mean, var])
    for k in range(4):
        x = (k + rng.standard_normal((6, 5, 3))).astype(np.float32)
        options = dict(training=True, momentum=momentum, eps=1e-3, num_batches_tracked=k)
        want, mean, var = ref.batch_norm(x, mean, var, **options)
        assert relative_error(layer(x), want) < 5e-7
        assert layer.num_batches_tracked == k + 1
        assert relative_error(layer.running_mean, mean) < 5e-7
        assert relative_error(layer.running_var, var) < 5e-7
    assert layer.eval() is layer and not layer.training
    layer.weight[...], layer.bias[...] = rng.standard_normal((2, 5))
    want, _, _ = ref.batch_norm(x, mean, var, layer.weight, layer.bias, eps=1e-3)
    assert relative_error(layer(x), want) < 1e-6
    assert relative_error(layer(x[:1, :, :1]), want[:1, :, :1]) < 1e-6
    assert layer.num_batches_tracked == 4
    assert layer.train() is layer and layer.training
    assert "5" in repr(layer) and str(momentum) in repr(layer)


def test_a_layer_without_running_statistics_always_uses_the_batch():
    layer = lnrnn.BatchNorm(4, track_running_stats=False, affine=False)
    assert layer.running_mean is layer.running_var is layer.weight is layer.bias is None
    assert layer.state_dict() == {}
    same(layer.eval()(X), lnrnn.batch_norm(X, None, None, training=True))


TRAINED = ("running_mean", "running_var", "num_batches_tracked")


@pytest.mark.parametrize("kind, more", [(lnrnn.LayerNorm, ()), (lnrnn.BatchNorm, TRAINED)])
def test_a_state_dict_restores_a_layer(kind, more):
    """The state is a copy."""
    a, b = kind(4), kind(4)
    if more:
        a, b = (kind(4, momentum=None) for _ in range(2))
        a(X), a(2 * X)
    a.weight[...], a.bias[...] = V, M
    state = a.state_dict()
    assert set(state) == {"weight", "bias", *more}
    b.load_state_dict(state)
    same(a(3 * X), b(3 * X))
    if more:
        assert b.num_batches_tracked == 3
        same(a.running_mean, b.running_mean)
        same(a.eval()(X), b.eval()(X))
    state["weight"][...] = 9
    same([a.weight, b.weight], [V, V])


@each_mode
@pytest.mark.parametrize("name", ["weight", "bias", "running_mean", "running_var"])
def test_a_layer_may_overwrite_its_input(name, training):
    """The output may be x, overlap x, or be the memory of a parameter."""
    x = np.random.default_rng(3).standard_normal((3, 4)).astype(np.float32)
    want = batch_norm_layer(training)[0](x)
    room = np.zeros(40, np.float32)
    for shift in (-5, -1, 0, 1, 5):
        given, out = room[10:22].reshape(3, 4), room[10 + shift : 22 + shift].reshape(3, 4)
        given[...] = x
        batch_norm_layer(training)[0](given, out=out)
        same(out, want)
    layer = batch_norm_layer(training)[0]
    out = np.zeros((3, 4), np.float32)
    out[1] = getattr(layer, name)
    setattr(layer, name, out[1])
    layer(x, out=out)
    same(out, want)
