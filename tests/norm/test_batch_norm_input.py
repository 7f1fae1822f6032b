"""What batch_norm takes and what it refuses; the layer lnrnn.BatchNorm."""

from __future__ import annotations

import re

import numpy as np
import pytest

import lnrnn
from helpers import NOT_REAL, Kind, absolute_error, bad_outs, layouts, named, relative_error
from lnrnn import reference as ref

X = np.arange(12, dtype=np.float32).reshape(3, 4)
M, V = np.arange(4, dtype=np.float32), np.arange(1, 5, dtype=np.float32)


each_mode = pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])


# --- what is taken ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "given, result",
    [
        (np.float16, np.float16),
        (bool, np.float32),
        (np.int8, np.float32),
        (np.uint16, np.float32),
        (np.int32, np.float64),
        (np.int64, np.float64),
        (np.float32, np.float32),
        (np.float64, np.float64),
        (">f4", np.float32),
        (">f8", np.float64),
    ],
)
def test_dtypes(given, result, training):
    x = (X % 2 if given is bool else X).astype(given)
    y = lnrnn.batch_norm(x, M.copy(), V.copy(), training=training)
    assert y.dtype == result and y.dtype.isnative
    np.testing.assert_array_equal(
        y, lnrnn.batch_norm(x.astype(result), M.copy(), V.copy(), training=training)
    )
    gx, gweight, gbias = lnrnn.batch_norm_backward(x, x, M, V, V, training)
    assert gx.dtype == result and gweight.dtype == gbias.dtype == np.result_type(result, np.float32)


def test_array_likes():
    want = lnrnn.batch_norm(X.astype(np.float64), M, V, V, M)
    lists = [a.astype(int).tolist() for a in (X, M, V, V, M)]
    np.testing.assert_array_equal(lnrnn.batch_norm(*lists), want)
    tuples = [tuple(v) for v in lists]
    np.testing.assert_array_equal(lnrnn.batch_norm(*tuples), want)


def test_statistics_at_inference_come_as_lists_too(rng):
    """In all their digits, forwards and back."""
    x, gy = rng.standard_normal((2, 5, 3))
    mean, var = rng.standard_normal(3), rng.random(3) + 0.1
    lists = mean.tolist(), var.tolist()
    np.testing.assert_array_equal(lnrnn.batch_norm(x, *lists), lnrnn.batch_norm(x, mean, var))
    found, want = (
        lnrnn.batch_norm_backward(gy, x, *given, weight=np.ones(3), training=False)
        for given in (lists, (mean, var))
    )
    for got, expected in zip(found, want, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("x_dtype", [np.float32, np.float64])
@pytest.mark.parametrize("p_dtype", [np.float32, np.float64])
def test_read_only_arguments(x_dtype, p_dtype):
    """In inference everything may be read-only; nothing is changed."""
    x, m, v = X.astype(x_dtype), M.astype(p_dtype), V.astype(p_dtype)
    want = lnrnn.batch_norm(x, m, v, v, m)
    gradients = lnrnn.batch_norm_backward(x, x, m, v, v, False)
    for a in (x, m, v):
        a.flags.writeable = False
    np.testing.assert_array_equal(lnrnn.batch_norm(x, m, v, v, m), want)
    for got, g in zip(lnrnn.batch_norm_backward(x, x, m, v, v, False), gradients, strict=True):
        np.testing.assert_array_equal(got, g)


@pytest.mark.parametrize("name", ["running_mean", "running_var"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_read_only_statistics_are_not_trained(name, dtype):
    statistics = {"running_mean": np.zeros(X.shape[1], dtype), "running_var": np.ones(X.shape[1], dtype)}
    statistics[name].flags.writeable = False
    before = {key: value.copy() for key, value in statistics.items()}
    with pytest.raises(ValueError, match=f"{name} must be writeable"):
        lnrnn.batch_norm(X.astype(dtype), training=True, **statistics)
    for key, value in statistics.items():
        np.testing.assert_array_equal(value, before[key])


def test_as_torch_computes():
    """By name: the same arguments in the same order, the same numbers; running statistics in place."""
    torch = pytest.importorskip("torch")
    x, gy = np.random.default_rng(0).standard_normal((2, 5, 4, 7))
    for training in (True, False):
        a = [M.astype(float), V.astype(float), V.astype(float), M.astype(float)]
        t = [torch.tensor(v) for v in a]
        tx = torch.tensor(x, requires_grad=True)
        t[2].requires_grad_(), t[3].requires_grad_()
        ty = torch.nn.functional.batch_norm(tx, *t, training, 0.3, 1e-3)
        ty.backward(torch.tensor(gy))
        gradients = lnrnn.batch_norm_backward(gy, x, a[0], a[1], a[2], training, 1e-3)
        assert absolute_error(lnrnn.batch_norm(x, *a, training, 0.3, 1e-3), ty.detach()) < 1e-14
        for mine, theirs in zip(a, t, strict=True):
            assert absolute_error(mine, theirs.detach()) < 1e-14
        for got, leaf in zip(gradients, (tx, t[2], t[3]), strict=True):
            assert absolute_error(got, leaf.grad) < 2e-14


# --- what is refused ----------------------------------------------------------------------------------------

BAD = [
    *((TypeError, "x", dict(x=v)) for v in NOT_REAL),
    *((TypeError, name, {name: v}) for name in ("weight", "bias") for v in NOT_REAL if v is not None),
    *((ValueError, "x", dict(x=v)) for v in (np.float32(1), np.zeros(4))),
    *(
        (ValueError, name, {name: v})
        for name in ("running_mean", "running_var", "weight", "bias")
        for v in (np.ones(3, np.float32), np.ones((4, 1), np.float32), np.ones((), np.float32))
    ),
    *((ValueError, "eps", dict(eps=v)) for v in (-1e-5, float("nan"), float("inf"))),
    *((TypeError, "eps", dict(eps=v)) for v in ("1e-5", None, 1j, [1, 2], True)),
    *((ValueError, "momentum", dict(momentum=v)) for v in (-0.1, 1.1, float("nan"), float("inf"))),
    *((TypeError, "momentum", dict(momentum=v)) for v in ("0.1", 1j, [1, 2], True)),
    *((TypeError, "training", dict(training=v)) for v in (1, 0, "yes", None)),
]
BAD_INFERENCE = [
    (TypeError if v is not None else ValueError, name, {name: v})
    for name in ("running_mean", "running_var")
    for v in NOT_REAL
]
BAD_TRAINING = [
    *(
        (TypeError, name, {name: v})
        for name in ("running_mean", "running_var")
        for v in (*(n for n in NOT_REAL if n is not None), [0.0] * 4, np.zeros(4, int))
    ),  # updated in place
    *(
        (ValueError, name, {name: np.broadcast_to(np.float32(1), 4)})
        for name in ("running_mean", "running_var")
    ),
    *((ValueError, "x", dict(x=np.zeros(s, np.float32))) for s in ((1, 4), (1, 4, 1), (0, 4), (2, 4, 0))),
]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("error, name, wrong", BAD, ids=lambda v: str(v)[:50])
def test_bad_input_is_refused_by_name(error, name, wrong, training):
    a = dict(x=X, running_mean=M.copy(), running_var=V.copy(), weight=V, bias=M, training=training) | wrong
    out = np.full(X.shape, 7, np.float32)
    with pytest.raises(error, match=named(name)) as caught:
        lnrnn.batch_norm(**a, out=out)
    assert len(str(caught.value)) < 300
    assert (out == 7).all()
    if "running_mean" not in wrong:
        np.testing.assert_array_equal(a["running_mean"], M)
    if name in ("x", "weight", "eps", "training"):
        del a["bias"]
        with pytest.raises(error, match=named(name)):
            lnrnn.batch_norm_backward(gy=X, **a)


@pytest.mark.parametrize("error, name, wrong", BAD_INFERENCE, ids=lambda v: str(v)[:50])
def test_bad_statistics_are_refused_in_inference(error, name, wrong):
    a = dict(x=X, running_mean=M, running_var=V) | wrong
    with pytest.raises(error, match=named(name)):
        lnrnn.batch_norm(**a)
    with pytest.raises((ValueError, TypeError), match=named(name)):
        lnrnn.batch_norm_backward(gy=X, training=False, **a)


@pytest.mark.parametrize("error, name, wrong", BAD_TRAINING, ids=lambda v: str(v)[:50])
def test_bad_input_is_refused_in_training(error, name, wrong):
    with pytest.raises(error, match=named(name)):
        lnrnn.batch_norm(**(dict(x=X, running_mean=M.copy(), running_var=V.copy(), training=True) | wrong))


@pytest.mark.parametrize("shape", [(1, 4), (1, 4, 1), (1, 1, 1, 1)])
def test_one_value_per_channel_is_refused_in_training_as_in_torch(shape):
    x = np.zeros(shape, np.float32)
    for call in (
        lambda: lnrnn.batch_norm(x, None, None, training=True),
        lambda: lnrnn.batch_norm_backward(x, x),
        lambda: lnrnn.BatchNorm(shape[1])(x),
    ):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            call()
    p = np.ones(shape[1], np.float32)
    assert not lnrnn.batch_norm(x, p * 0, p).any()


@pytest.mark.parametrize("error, out", bad_outs(X), ids=lambda v: str(v)[:50])
@pytest.mark.parametrize("training", [True, False])
def test_bad_out_is_refused_and_changes_no_statistics(error, out, training):
    mean, var = M.copy(), V.copy()
    with pytest.raises(error, match=named("out")):
        lnrnn.batch_norm(X, mean, var, training=training, out=out)
    np.testing.assert_array_equal(mean, M)
    np.testing.assert_array_equal(var, V)


@pytest.mark.parametrize(
    "error, gy",
    [
        *((TypeError, v) for v in NOT_REAL),
        (ValueError, X[:2]),
        (ValueError, X[0]),
        (ValueError, X.T),
        (ValueError, 1.0),
    ],
    ids=lambda v: str(v)[:50],
)
def test_bad_gradient_is_refused(error, gy):
    with pytest.raises(error, match=named("gy")):
        lnrnn.batch_norm_backward(gy, X)


# --- the layer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.1, 0.75, None])
def test_layer_trains_and_infers(momentum):
    rng = np.random.default_rng(1)
    layer = lnrnn.BatchNorm(5, eps=1e-3, momentum=momentum)
    assert layer.training and layer.num_batches_tracked == 0
    assert (layer.running_mean == 0).all() and (layer.running_var == 1).all()
    mean, var = np.zeros(5), np.ones(5)
    for k in range(4):
        x = (k + rng.standard_normal((6, 5, 3))).astype(np.float32)
        want, mean, var = ref.batch_norm(
            x, mean, var, training=True, momentum=momentum, eps=1e-3, num_batches_tracked=k
        )
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


def test_layer_without_running_statistics_uses_the_batch_in_inference_too():
    layer = lnrnn.BatchNorm(4, track_running_stats=False, affine=False)
    assert layer.running_mean is layer.running_var is layer.weight is layer.bias is None
    assert layer.state_dict() == {}
    want = lnrnn.batch_norm(X, None, None, training=True)
    np.testing.assert_array_equal(layer(X), want)
    np.testing.assert_array_equal(layer.eval()(X), want)


def test_layer_state_travels():
    a, b = lnrnn.BatchNorm(4, momentum=None), lnrnn.BatchNorm(4, momentum=None)
    a(X), a(2 * X)
    state = a.state_dict()
    assert set(state) == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    b.load_state_dict(state)
    for layer in (a, b):
        layer(3 * X)
    assert b.num_batches_tracked == 3
    np.testing.assert_array_equal(a.running_mean, b.running_mean)
    np.testing.assert_array_equal(a.eval()(X), b.eval()(X))
    for change, name in (
        ({"running_var": None}, "running_var"),
        ({"extra": X}, "extra"),
        ({"bias": X}, "bias"),
    ):
        wrong = {k: v for k, v in (state | change).items() if v is not None}
        before = b.state_dict()
        with pytest.raises(ValueError, match=named(name)):
            b.load_state_dict(wrong)
        for k, v in b.state_dict().items():
            np.testing.assert_array_equal(v, before[k])


def test_layer_that_fails_has_not_counted():
    layer = lnrnn.BatchNorm(4)
    for x in (np.zeros((1, 4)), np.zeros((3, 5)), np.zeros(4), "a"):
        with pytest.raises((ValueError, TypeError), match=named("x")):
            layer(x)
    assert layer.num_batches_tracked == 0 and not layer.running_mean.any()


def with_parameters(momentum=0.1, **options):
    """A layer of 4 channels whose parameters and statistics are no ones and zeros."""
    rng = np.random.default_rng(2)
    layer = lnrnn.BatchNorm(4, 1e-3, momentum, **options)
    for name, value in layer.state_dict().items():
        if value.ndim:
            setattr(layer, name, rng.uniform(0.5, 2, 4).astype(np.float32))
    return layer


@each_mode
@pytest.mark.parametrize("options", [{}, dict(affine=False), dict(track_running_stats=False)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ">f4"], ids=str)
def test_layer_computes_what_the_function_does(dtype, options, training, rng):
    """Of plain arrays and of all others, into outputs of every kind; running statistics too."""
    x = (3 * rng.standard_normal((6, 4, 5))).astype(dtype)

    def function(x, layer, **out):
        tracks = layer.track_running_stats
        running = [layer.running_mean.copy(), layer.running_var.copy()] if tracks else [None, None]
        own = training or not tracks
        y = lnrnn.batch_norm(x, *running, layer.weight, layer.bias, own, 0.1, layer.eps, **out)
        return y, running if tracks else []

    for name, given in ({"plain": x, "list": x.tolist(), "subclass": x.view(Kind)} | layouts(x)).items():
        layer = with_parameters(**options).train(training)
        want, running = function(given, layer)
        got = layer(given)
        assert type(got) is np.ndarray and got.dtype == want.dtype
        np.testing.assert_array_equal(got, want, err_msg=name)
        for out in (np.zeros_like(want), np.zeros_like(want).view(Kind), *layouts(want).values()):
            if out.flags.writeable and out.dtype.isnative:
                layer = with_parameters(**options).train(training)
                assert layer(given, out=out) is out
                np.testing.assert_array_equal(np.asarray(out), want, err_msg=name)
        if layer.track_running_stats:
            np.testing.assert_array_equal([layer.running_mean, layer.running_var], running, err_msg=name)
            assert layer.num_batches_tracked == training


PLAIN, ODD = np.ones((3, 5), np.float32), np.ones((3, 10), np.float32)[:, ::2]


@each_mode
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracks", [True, False])
@pytest.mark.parametrize(
    "x, message",
    [
        (PLAIN, "of shape (3, 4), got an array of shape (3, 5) and dtype float32"),
        (ODD, "of shape (3, 4), got an array of shape (3, 5) and dtype float32"),
        (PLAIN.tolist(), "of shape (3, 4), got an array of shape (3, 5) and dtype float64"),
        (np.ones((3, 1, 4)), "of shape (3, 4, 4), got an array of shape (3, 1, 4) and dtype float64"),
        (np.ones((0, 3), "f4"), "of shape (0, 4), got an array of shape (0, 3) and dtype float32"),
        (np.ones(4, "f4"), "of rank 2 or more, (N, C, *), got an array of shape (4,) and dtype float32"),
        (np.ones((), "f4"), "of rank 2 or more, (N, C, *), got an array of shape () and dtype float32"),
    ],
    ids=lambda v: str(np.shape(v)),
)
def test_layer_takes_its_own_number_of_channels(x, message, tracks, affine, training):
    """Whether or not it has anything of that size to compute with; nothing is written, nothing learnt."""
    layer = with_parameters(affine=affine, track_running_stats=tracks).train(training)
    before, out = layer.state_dict(), np.full(np.shape(x), 7, np.float32)
    for options in ({}, dict(out=out)):
        with pytest.raises(ValueError, match=f"^{re.escape(f'x must be {message}')}$"):
            layer(x, **options)
    assert (out == 7).all()
    for name, value in layer.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


@each_mode
@pytest.mark.parametrize("error, out", bad_outs(X), ids=lambda v: str(v)[:50])
def test_layer_refuses_a_bad_out_and_learns_nothing(error, out, training):
    layer = with_parameters().train(training)
    before = layer.state_dict()
    with pytest.raises(error, match=named("out")):
        layer(X, out=out)
    for name, value in layer.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


@each_mode
@pytest.mark.parametrize("name", ["weight", "bias", "running_mean", "running_var"])
def test_layer_may_write_over_what_it_reads(name, training):
    """As the function: the output may be x, overlap it, or hold a parameter."""
    x = np.random.default_rng(3).standard_normal((3, 4)).astype(np.float32)
    want = with_parameters().train(training)(x)
    room = np.zeros(40, np.float32)
    for shift in (-5, -1, 0, 1, 5):
        given, out = room[10:22].reshape(3, 4), room[10 + shift : 22 + shift].reshape(3, 4)
        given[...] = x
        with_parameters().train(training)(given, out=out)
        np.testing.assert_array_equal(out, want)
    layer = with_parameters().train(training)
    out = np.zeros((3, 4), np.float32)
    out[1] = getattr(layer, name)
    setattr(layer, name, out[1])
    layer(x, out=out)
    np.testing.assert_array_equal(out, want)


@each_mode
def test_layer_whose_weight_has_got_another_shape(training):
    """In place, behind the layer's back: the function checks it."""
    layer = lnrnn.BatchNorm(4).train(training)
    layer.weight.shape = 2, 2
    with pytest.raises(ValueError, match=r"^weight must be of shape \(4,\), got an array of shape \(2, 2\)"):
        layer(X)
    assert layer.num_batches_tracked == 0


def test_layer_computes_with_the_attributes_of_its_class():
    """A subclass may answer for them itself."""

    class Frozen(lnrnn.BatchNorm):
        training = property(lambda self: False, lambda self, value: None)

    class Coarse(lnrnn.BatchNorm):
        eps = property(lambda self: 0.5, lambda self, value: None)

    class Quick(lnrnn.BatchNorm):
        momentum = property(lambda self: 1.0, lambda self, value: None)

    class OfTheBatch(lnrnn.BatchNorm):
        track_running_stats = property(lambda self: self.tracks, lambda self, value: self.track(value))

        def track(self, value):
            self.tracks = value

    x = X * X
    np.testing.assert_array_equal(Frozen(4)(x), lnrnn.BatchNorm(4).eval()(x))
    np.testing.assert_array_equal(Coarse(4).eval()(x), lnrnn.BatchNorm(4, eps=0.5).eval()(x))
    np.testing.assert_array_equal(Coarse(4)(x), lnrnn.BatchNorm(4, eps=0.5)(x))
    quick, plain = Quick(4), lnrnn.BatchNorm(4, momentum=1.0)
    np.testing.assert_array_equal(quick(x), plain(x))
    np.testing.assert_array_equal(quick.running_var, plain.running_var)
    layer = OfTheBatch(4).eval()
    layer.track(False)
    np.testing.assert_array_equal(layer(x), lnrnn.batch_norm(x, None, None, training=True))


@pytest.mark.parametrize(
    "error, name, wrong",
    [
        (ValueError, "num_features", dict(num_features=-1)),
        (TypeError, "num_features", dict(num_features=2.0)),
        (ValueError, "eps", dict(eps=-1)),
        (TypeError, "eps", dict(eps="a")),
        (ValueError, "momentum", dict(momentum=float("nan"))),
        (ValueError, "momentum", dict(momentum=2)),
        (TypeError, "momentum", dict(momentum="a")),
        (TypeError, "affine", dict(affine=1)),
        (TypeError, "track_running_stats", dict(track_running_stats=None)),
    ],
)
def test_bad_layer_is_refused(error, name, wrong):
    with pytest.raises(error, match=named(name)):
        lnrnn.BatchNorm(**(dict(num_features=4) | wrong))
