"""Tests valid and invalid arguments of the norms, other axes than the last ones, and the layers
lnrnn.LayerNorm and lnrnn.BatchNorm."""

from __future__ import annotations

import re

import numpy as np
import pytest

import lnrnn
from helpers import NOT_REAL, Kind, bad_outs, layouts, named, relative_error
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
    """Returns the gradients of layer or batch norm.

    Batch norm is in inference, unless `changes` has training=True.
    """
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


@pytest.mark.parametrize("norm", [norm for norm in NORMS if norm != "batch_norm training"])
@pytest.mark.parametrize("kind", [list, tuple])
def test_array_likes_are_accepted(norm, kind):
    arrays = {name: v for name, v in arguments(norm).items() if isinstance(v, np.ndarray)}
    given = {name: kind(v.astype(int).tolist()) for name, v in arrays.items()}
    same(forward(norm, **given), forward(norm, x=X.astype(np.float64)))


def test_statistics_at_inference_may_be_lists(rng):
    """Lists of statistics have the results of arrays of float64, forward and backward."""
    x, gy = rng.standard_normal((2, 5, 3))
    mean, var = rng.standard_normal(3), rng.random(3) + 0.1
    lists = mean.tolist(), var.tolist()
    same(lnrnn.batch_norm(x, *lists), lnrnn.batch_norm(x, mean, var))
    got, want = (
        lnrnn.batch_norm_backward(gy, x, *given, weight=np.ones(3), training=False)
        for given in (lists, (mean, var))
    )
    for g, w in zip(got, want, strict=True):
        same(g, w)


def test_normalized_shape_may_be_an_int_or_a_sequence():
    for shape in (4, np.int64(4), (4,), [4], np.array([4])):
        same(forward("layer_norm", normalized_shape=shape), forward("layer_norm"))


def test_weight_and_bias_are_computed_in_the_dtype_of_x():
    weight, bias = np.full(4, 1 / 3), np.full(4, 0.1)
    y = lnrnn.layer_norm(X, 4, weight, bias)
    assert y.dtype == np.float32
    same(y, lnrnn.layer_norm(X, 4, weight.astype(np.float32), bias.astype(np.float32)))


@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm"])
@pytest.mark.parametrize("x_dtype", [np.float32, np.float64])
@pytest.mark.parametrize("p_dtype", [np.float32, np.float64])
def test_arguments_may_be_read_only(norm, x_dtype, p_dtype):
    """All arguments may be read-only, except the running statistics in training."""
    given = {n: v.astype(p_dtype) for n, v in arguments(norm).items() if isinstance(v, np.ndarray)}
    given["x"] = X.astype(x_dtype)
    want = [forward(norm, **given), *backward(norm, **given)]
    for array in given.values():
        array.flags.writeable = False
    for got, w in zip([forward(norm, **given), *backward(norm, **given)], want, strict=True):
        same(got, w)


@pytest.mark.parametrize("name", ["running_mean", "running_var"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_read_only_statistics_are_refused_in_training(name, dtype):
    statistics = {"running_mean": M.astype(dtype), "running_var": V.astype(dtype)}
    statistics[name].flags.writeable = False
    with pytest.raises(ValueError, match=f"{name} must be writeable"):
        lnrnn.batch_norm(X.astype(dtype), training=True, **statistics)
    same(statistics["running_mean"], M)
    same(statistics["running_var"], V)


# --- invalid arguments -------------------------------------------------------------------------------------

ARRAYS = [v for v in NOT_REAL if v is not None]
STATISTICS = ("running_mean", "running_var")


def wrong(error, name, values):
    return [(error, name, value) for value in values]


NUMBERS = [float("nan"), float("inf"), -float("inf")]
OF_ALL = [
    *wrong(TypeError, "x", NOT_REAL), *wrong(TypeError, "weight", ARRAYS),
    *wrong(ValueError, "weight", [np.ones(3), np.ones((1, 4)), np.ones((4, 1)), 1.0]),
    *wrong(ValueError, "x", [np.float32(1)]), *wrong(ValueError, "eps", [-1e-5, *NUMBERS]),
    *wrong(TypeError, "eps", ["1e-5", 1j, [1e-5, 1e-5], True, np.ones(2)]),
]  # fmt: skip
OF_BIAS = [
    *wrong(TypeError, "bias", ARRAYS),
    *wrong(ValueError, "bias", [np.ones(5), np.ones((3, 4)), np.ones(3, np.float32), np.ones(())]),
    *wrong(TypeError, "eps", [None]),
]
OF_LAYER_NORM = [
    *wrong(ValueError, "x", [np.zeros((4, 3))]),
    *((ValueError, "x", {"normalized_shape": shape}) for shape in ((2, 3, 4), 3, (3,))),
    *wrong(ValueError, "normalized_shape", [(), -1, (3, -4)]),
    *wrong(TypeError, "normalized_shape", [4.0, (4.0,), True, "4", None, (3, (4,))]),
]
OF_BATCH_NORM = [
    *wrong(ValueError, "x", [np.zeros(4)]),
    *(
        case
        for name in STATISTICS
        for case in wrong(ValueError, name, [V[:3], V[:, None], np.ones((), "f4")])
    ),
    *wrong(ValueError, "momentum", [-0.1, 1.1, *NUMBERS[:2]]),
    *wrong(TypeError, "momentum", ["0.1", 1j, [1, 2], True]),
    *wrong(TypeError, "training", [1, 0, "yes", None]),
]
OF_INFERENCE = [case for name in STATISTICS for case in (
    *wrong(TypeError, name, ARRAYS), (ValueError, name, None),
)]  # fmt: skip
OF_TRAINING = [  # statistics are updated in place
    *(case for name in STATISTICS for case in wrong(TypeError, name, [*ARRAYS, [0.0] * 4, np.zeros(4, int)])),
    *((ValueError, name, np.broadcast_to(np.float32(1), 4)) for name in STATISTICS),
]
BAD = {
    "layer_norm": OF_ALL + OF_BIAS + OF_LAYER_NORM,
    "rms_norm": OF_ALL + OF_LAYER_NORM,
    "batch_norm": OF_ALL + OF_BIAS + OF_BATCH_NORM + OF_INFERENCE,
    "batch_norm training": OF_ALL + OF_BIAS + OF_BATCH_NORM + OF_TRAINING,
}


@pytest.mark.parametrize(
    "norm, error, name, value",
    [(norm, *case) for norm, cases in BAD.items() for case in cases],
    ids=lambda v: str(v)[:50],
)
def test_a_bad_argument_is_refused_by_name(norm, error, name, value):
    """A refused call writes nothing.

    If `value` is a dict, it replaces several arguments, and the error names x.
    """
    change = value if name == "x" and isinstance(value, dict) and value else {name: value}
    out = np.full(X.shape, 7, np.float32)
    given = arguments(norm, **change, out=out)
    with pytest.raises(error, match=named(name)) as caught:
        getattr(lnrnn, norm.split()[0])(**given)
    assert len(str(caught.value)) < 300
    assert (out == 7).all()
    for key in set(STATISTICS) & NORMS[norm].keys() - change.keys():
        same(given[key], NORMS[norm][key])
    ignored = ("bias", "momentum", *(STATISTICS if norm.endswith("training") else ()))
    if has_gradient(norm) and (name not in ignored or norm == "layer_norm"):
        with pytest.raises((TypeError, ValueError), match=named(name)):
            backward(norm, **change)


@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm"])
@pytest.mark.parametrize(
    "error, name, gy",
    wrong(TypeError, "gy", NOT_REAL) + wrong(ValueError, "gy", [X[:2], X[0], X.T, X[None], 1.0]),
    ids=lambda v: str(v)[:50],
)
def test_bad_gradient_is_refused(norm, error, name, gy):
    with pytest.raises(error, match=named(name)):
        backward(norm, gy=gy)


@each_norm
@pytest.mark.parametrize("error, out", bad_outs(X), ids=lambda v: str(v)[:50])
def test_bad_out_is_refused_and_changes_no_statistics(norm, error, out):
    given = arguments(norm, out=out)
    with pytest.raises(error, match=named("out")):
        getattr(lnrnn, norm.split()[0])(**given)
    for name in set(STATISTICS) & given.keys():
        same(given[name], NORMS[norm][name])
    if norm != "rms_norm":
        layer = lnrnn.LayerNorm(4) if norm == "layer_norm" else lnrnn.BatchNorm(4).train(norm != "batch_norm")
        before = layer.state_dict()
        with pytest.raises(error, match=named("out")):
            layer(X, out=out)
        for name, value in layer.state_dict().items():
            same(value, before[name])


@pytest.mark.parametrize("shape", [(1, 4), (1, 4, 1), (1, 1, 1, 1), (0, 4), (2, 4, 0)])
def test_one_value_per_channel_is_refused_in_training_as_in_torch(shape):
    x, p = np.zeros(shape, np.float32), np.ones(shape[1], np.float32)
    for call in (
        lambda: lnrnn.batch_norm(x, None, None, training=True),
        lambda: lnrnn.batch_norm_backward(x, x),
        lambda: lnrnn.BatchNorm(shape[1])(x),
    ):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            call()
    assert not lnrnn.batch_norm(x, p * 0, p).any()


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_parameter_with_transposed_axes_is_refused(name):
    said = rf"^{name} must be of shape \(3, 4\), got an array of shape \(4, 3\)"
    with pytest.raises(ValueError, match=said):
        lnrnn.layer_norm(np.ones((2, 3, 4)), (3, 4), **{name: np.ones((4, 3), np.float32)})


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


@pytest.mark.parametrize(("size", "axis", "error", "name"), [
    (5, 4, ValueError, "axis"), (5, -5, ValueError, "axis"),
    (5, True, TypeError, "axis"), (5, 1.0, TypeError, "axis"),
    (5, (1, 2), ValueError, "axis"), (5, (), ValueError, "axis"), ((5, 5), (1, -3), ValueError, "axis"),
    (4, 1, ValueError, "x"), ((3, 5), (1, 2), ValueError, "x"),
])  # fmt: skip
def test_a_wrong_axis_is_refused_by_name(size, axis, error, name, rng):
    x = rng.standard_normal(SHAPE)
    for call in (lnrnn.layer_norm, lnrnn.rms_norm, lambda *a, **k: lnrnn.layer_norm_backward(x, *a, **k)):
        with pytest.raises(error, match=named(name)):
            call(x, size, axis=axis)


def test_out_of_another_shape_is_refused():
    out = np.full((2, 3, 4, 5), 7.0)
    with pytest.raises(ValueError, match=named("out")):
        lnrnn.layer_norm(np.ones(SHAPE), 5, axis=1, out=out)
    assert (out == 7).all()


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
    same(lnrnn.LayerNorm(4)(X), lnrnn.layer_norm(X, 4))


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
    want = lnrnn.batch_norm(X, None, None, training=True)
    same(layer(X), want)
    same(layer.eval()(X), want)


def test_a_layer_without_parameters():
    layer = lnrnn.LayerNorm(4, elementwise_affine=False)
    assert layer.weight is layer.bias is None and layer.state_dict() == {}
    layer = lnrnn.LayerNorm(4, bias=False)
    assert layer.bias is None and list(layer.state_dict()) == ["weight"]


TRAINED = ("running_mean", "running_var", "num_batches_tracked")


@pytest.mark.parametrize("kind, more", [(lnrnn.LayerNorm, ()), (lnrnn.BatchNorm, TRAINED)])
def test_a_state_dict_restores_a_layer(kind, more):
    """The state is a copy. Loading a wrong state changes nothing."""
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
    for change, name in (
        ({"bias": None}, "bias"), ({"gain": V}, "gain"), ({"bias": np.ones(5)}, "bias"),
        ({"weight": ["a"] * 4}, "weight"), *[({n: None}, n) for n in more],
    ):  # fmt: skip
        wrong = {key: value for key, value in (state | change).items() if value is not None}
        before = b.state_dict()
        with pytest.raises((ValueError, TypeError), match=named(name)):
            b.load_state_dict(wrong)
        for key, value in b.state_dict().items():
            same(value, before[key])


def test_a_failed_call_of_a_layer_does_not_count():
    layer = lnrnn.BatchNorm(4)
    for x in (np.zeros((1, 4)), np.zeros((3, 5)), np.zeros(4), "a"):
        with pytest.raises((ValueError, TypeError), match=named("x")):
            layer(x)
    assert layer.num_batches_tracked == 0 and not layer.running_mean.any()


PLAIN, ODD = np.ones((3, 5), np.float32), np.ones((3, 10), np.float32)[:, ::2]


@each_mode
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracks", [True, False])
@pytest.mark.parametrize("x, message", [
    (PLAIN, "of shape (3, 4), got an array of shape (3, 5) and dtype float32"),
    (ODD, "of shape (3, 4), got an array of shape (3, 5) and dtype float32"),
    (PLAIN.tolist(), "of shape (3, 4), got an array of shape (3, 5) and dtype float64"),
    (np.ones((3, 1, 4)), "of shape (3, 4, 4), got an array of shape (3, 1, 4) and dtype float64"),
    (np.ones((0, 3), "f4"), "of shape (0, 4), got an array of shape (0, 3) and dtype float32"),
    (np.ones(4, "f4"), "of rank 2 or more, (N, C, *), got an array of shape (4,) and dtype float32"),
    (np.ones((), "f4"), "of rank 2 or more, (N, C, *), got an array of shape () and dtype float32"),
], ids=lambda v: str(np.shape(v)))  # fmt: skip
def test_a_layer_refuses_another_number_of_channels(x, message, tracks, affine, training):
    """The layer may have parameters or not. No output and no statistics change."""
    layer, _ = batch_norm_layer(training, affine=affine, track_running_stats=tracks)
    before, out = layer.state_dict(), np.full(np.shape(x), 7, np.float32)
    for options in ({}, dict(out=out)):
        with pytest.raises(ValueError, match=f"^{re.escape(f'x must be {message}')}$"):
            layer(x, **options)
    assert (out == 7).all()
    for name, value in layer.state_dict().items():
        same(value, before[name])


def test_a_layer_refuses_the_arguments_that_the_function_refuses():
    layer = lnrnn.LayerNorm(4)
    for x in (*NOT_REAL, X.T, np.zeros(3, np.float32), np.float32(1)):
        with pytest.raises((TypeError, ValueError)) as said:
            lnrnn.layer_norm(x, (4,), V, V)
        with pytest.raises(said.type, match=f"^{re.escape(str(said.value))}$"):
            layer(x)


@pytest.mark.parametrize("kind", [lnrnn.LayerNorm, lnrnn.BatchNorm, lambda n: lnrnn.BatchNorm(n).eval()])
def test_a_layer_whose_weight_was_reshaped_in_place(kind):
    """The layer does not notice the change, so the function checks the shape."""
    layer = kind(4)
    layer.weight.shape = 2, 2
    with pytest.raises(ValueError, match=r"^weight must be of shape \(4,\), got an array of shape \(2, 2\)"):
        layer(X)
    assert not getattr(layer, "num_batches_tracked", 0)


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


def test_a_subclass_of_a_layer_may_override_attributes():
    """Calls use the values that the subclass's properties return."""

    def subclass(kind, name, value):
        return type("Own", (kind,), {name: property(lambda self: value, lambda self, other: None)})(4)

    x = X * X
    same(subclass(lnrnn.LayerNorm, "eps", 0.5)(X), lnrnn.layer_norm(X, 4, eps=0.5))
    same(subclass(lnrnn.BatchNorm, "training", False)(x), lnrnn.BatchNorm(4).eval()(x))
    same(subclass(lnrnn.BatchNorm, "eps", 0.5)(x), lnrnn.BatchNorm(4, eps=0.5)(x))
    same(subclass(lnrnn.BatchNorm, "eps", 0.5).eval()(x), lnrnn.BatchNorm(4, eps=0.5).eval()(x))
    quick, plain = subclass(lnrnn.BatchNorm, "momentum", 1.0), lnrnn.BatchNorm(4, momentum=1.0)
    same(quick(x), plain(x))
    same(quick.running_var, plain.running_var)

    class OfTheBatch(lnrnn.BatchNorm):
        track_running_stats = property(lambda self: self.tracks, lambda self, value: self.track(value))

        def track(self, value):
            self.tracks = value

    layer = OfTheBatch(4).eval()
    layer.track(False)
    same(layer(x), lnrnn.batch_norm(x, None, None, training=True))


OPTIONS = {
    lnrnn.LayerNorm: (dict(normalized_shape=4), [
        *wrong(ValueError, "normalized_shape", [-1]), *wrong(TypeError, "normalized_shape", [1.5]),
        *wrong(TypeError, "elementwise_affine", [1]), *wrong(TypeError, "bias", [None]),
    ]),
    lnrnn.BatchNorm: (dict(num_features=4), [
        *wrong(ValueError, "num_features", [-1]), *wrong(TypeError, "num_features", [2.0]),
        *wrong(ValueError, "momentum", [float("nan"), 2]), *wrong(TypeError, "momentum", ["a"]),
        *wrong(TypeError, "affine", [1]), *wrong(TypeError, "track_running_stats", [None]),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_bad_argument_of_a_layer_is_refused(kind):
    right, cases = OPTIONS[kind]
    of_eps = [*wrong(ValueError, "eps", [-1, float("nan")]), *wrong(TypeError, "eps", ["a"])]
    for error, name, value in cases + of_eps:
        with pytest.raises(error, match=named(name)):
            kind(**(right | {name: value}))
