"""What layer_norm takes and what it refuses; the layer lnrnn.LayerNorm."""

from __future__ import annotations

import re

import numpy as np
import pytest

import lnrnn
from helpers import NOT_REAL, Kind, absolute_error, bad_outs, layouts, named
from lnrnn import reference as ref

X = np.arange(12, dtype=np.float32).reshape(3, 4)
W = np.ones(4, np.float32)


# --- what is taken ------------------------------------------------------------------------------------------


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
def test_dtypes(given, result):
    x = (X % 2 if given is bool else X).astype(given)
    y = lnrnn.layer_norm(x, 4)
    assert y.dtype == result and y.dtype.isnative
    np.testing.assert_array_equal(y, lnrnn.layer_norm(x.astype(result), 4))
    gx, gweight, gbias = lnrnn.layer_norm_backward(x, x, 4, W, W)
    assert gx.dtype == result and gweight.dtype == gbias.dtype == np.result_type(result, np.float32)


def test_array_likes():
    want = lnrnn.layer_norm(X.astype(np.float64), 4, W, W)
    np.testing.assert_array_equal(lnrnn.layer_norm(X.astype(int).tolist(), [4], [1] * 4, (True,) * 4), want)
    for shape in (4, np.int64(4), (4,), [4], np.array([4])):
        np.testing.assert_array_equal(lnrnn.layer_norm(X.astype(np.float64), shape, W, W), want)


def test_weight_and_bias_are_computed_in_the_dtype_of_x():
    weight, bias = np.full(4, 1 / 3), np.full(4, 0.1)
    y = lnrnn.layer_norm(X, 4, weight, bias)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(
        y, lnrnn.layer_norm(X, 4, weight.astype(np.float32), bias.astype(np.float32))
    )


def test_arguments_are_not_changed():
    x, gy, weight, bias = X.copy(), X[::-1].copy(), W * 2, W * 3
    lnrnn.layer_norm(x, 4, weight, bias)
    lnrnn.layer_norm_backward(gy, x, 4, weight, bias)
    for now, before in ((x, X), (gy, X[::-1]), (weight, W * 2), (bias, W * 3)):
        np.testing.assert_array_equal(now, before)


def test_a_torch_tensor_goes_in():
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(
        lnrnn.layer_norm(torch.tensor(X), 4, torch.tensor(W)), lnrnn.layer_norm(X, 4, W)
    )


def test_as_torch_computes():
    """By name: the same arguments in the same order, the same numbers."""
    torch = pytest.importorskip("torch")
    x, gy, weight, bias = np.random.default_rng(0).standard_normal((4, 5, 6, 7))
    tx, tw, tb = (torch.tensor(a, requires_grad=True) for a in (x, weight[0], bias[0]))
    ty = torch.nn.functional.layer_norm(tx, (6, 7), tw, tb, 1e-3)
    ty.backward(torch.tensor(gy))
    assert absolute_error(lnrnn.layer_norm(x, (6, 7), weight[0], bias[0], 1e-3), ty.detach()) < 1e-14
    for got, t in zip(
        lnrnn.layer_norm_backward(gy, x, (6, 7), weight[0], bias[0], 1e-3), (tx, tw, tb), strict=True
    ):
        assert absolute_error(got, t.grad) < 2e-14


# --- what is refused ----------------------------------------------------------------------------------------

BAD = [
    *((TypeError, "x", dict(x=v)) for v in NOT_REAL),
    *((TypeError, "weight", dict(weight=v)) for v in NOT_REAL if v is not None),
    *((TypeError, "bias", dict(bias=v)) for v in NOT_REAL if v is not None),
    (ValueError, "x", dict(x=np.float32(1))),
    (ValueError, "x", dict(x=np.zeros((4, 3)))),
    (ValueError, "x", dict(normalized_shape=(2, 3, 4))),
    (ValueError, "x", dict(normalized_shape=3)),
    (ValueError, "x", dict(normalized_shape=(3,))),
    (ValueError, "normalized_shape", dict(normalized_shape=())),
    (ValueError, "normalized_shape", dict(normalized_shape=-1)),
    (ValueError, "normalized_shape", dict(normalized_shape=(3, -4))),
    (TypeError, "normalized_shape", dict(normalized_shape=4.0)),
    (TypeError, "normalized_shape", dict(normalized_shape=(4.0,))),
    (TypeError, "normalized_shape", dict(normalized_shape=True)),
    (TypeError, "normalized_shape", dict(normalized_shape="4")),
    (TypeError, "normalized_shape", dict(normalized_shape=None)),
    (TypeError, "normalized_shape", dict(normalized_shape=(3, (4,)))),
    (ValueError, "weight", dict(weight=np.ones(3))),
    (ValueError, "weight", dict(weight=np.ones((1, 4)))),
    (ValueError, "weight", dict(weight=1.0)),
    (ValueError, "bias", dict(bias=np.ones(5))),
    (ValueError, "bias", dict(bias=np.ones((3, 4)))),
    *((ValueError, "eps", dict(eps=v)) for v in (-1e-5, float("nan"), float("inf"), -float("inf"))),
    *((TypeError, "eps", dict(eps=v)) for v in ("1e-5", None, 1j, [1e-5, 1e-5], True, np.ones(2))),
]


@pytest.mark.parametrize("error, name, wrong", BAD, ids=lambda v: str(v)[:50])
def test_bad_input_is_refused_by_name(error, name, wrong):
    with pytest.raises(error, match=named(name)) as caught:
        lnrnn.layer_norm(**(dict(x=X, normalized_shape=4, weight=W, bias=W) | wrong))
    assert len(str(caught.value)) < 300
    with pytest.raises(error, match=named(name)):
        lnrnn.layer_norm_backward(**(dict(gy=X, x=X, normalized_shape=4, weight=W, bias=W) | wrong))


@pytest.mark.parametrize(
    "error, gy",
    [
        *((TypeError, v) for v in NOT_REAL),
        (ValueError, X[:2]),
        (ValueError, X[0]),
        (ValueError, X.T),
        (ValueError, X[None]),
        (ValueError, 1.0),
    ],
    ids=lambda v: str(v)[:50],
)
def test_bad_gradient_is_refused(error, gy):
    with pytest.raises(error, match=named("gy")):
        lnrnn.layer_norm_backward(gy, X, 4, W, W)


@pytest.mark.parametrize("error, out", bad_outs(X), ids=lambda v: str(v)[:50])
def test_bad_out_is_refused(error, out):
    with pytest.raises(error, match=named("out")):
        lnrnn.layer_norm(X, 4, out=out)


def test_out_is_not_touched_when_something_is_wrong():
    for _, _, wrong in BAD:
        out = np.full((3, 4), 7, np.float32)
        with pytest.raises((TypeError, ValueError)):
            lnrnn.layer_norm(**(dict(x=X, normalized_shape=4, weight=W, bias=W, out=out) | wrong))
        assert (out == 7).all()


# --- the layer ----------------------------------------------------------------------------------------------


def test_layer():
    layer = lnrnn.LayerNorm((3, 4), eps=0.25)
    assert layer.weight.dtype == layer.bias.dtype == np.float32
    np.testing.assert_array_equal(layer.weight, np.ones((3, 4)))
    np.testing.assert_array_equal(layer.bias, np.zeros((3, 4)))
    x = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(layer(x), lnrnn.layer_norm(x, (3, 4), eps=0.25))
    layer.weight[...], layer.bias[...] = X, X[::-1]
    assert absolute_error(layer(x), ref.layer_norm(x, (3, 4), X, X[::-1], 0.25)) < 1e-5  # of values up to 30
    out = np.empty_like(x)
    assert layer(x, out=out) is out
    assert "(3, 4)" in repr(layer) and "0.25" in repr(layer)


@pytest.mark.parametrize("options", [{}, dict(bias=False), dict(elementwise_affine=False)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ">f4"], ids=str)
@pytest.mark.parametrize("shape", [5, (5,), (4, 5)], ids=str)
def test_layer_computes_what_the_function_does(dtype, options, shape, rng):
    """Of plain arrays and of all others, into outputs of every kind."""
    x = (3 * rng.standard_normal((6, 4, 5))).astype(dtype)
    layer = lnrnn.LayerNorm(shape, 1e-3, **options)
    for name, value in layer.state_dict().items():
        setattr(layer, name, rng.standard_normal(value.shape).astype(np.float32))
    for name, given in ({"plain": x, "list": x.tolist(), "subclass": x.view(Kind)} | layouts(x)).items():
        want = lnrnn.layer_norm(given, shape, layer.weight, layer.bias, 1e-3)
        got = layer(given)
        assert type(got) is np.ndarray and got.dtype == want.dtype
        np.testing.assert_array_equal(got, want, err_msg=name)
        for out in (np.zeros_like(want), np.zeros_like(want).view(Kind), *layouts(want).values()):
            if out.flags.writeable and out.dtype.isnative:
                assert layer(given, out=out) is out
                np.testing.assert_array_equal(np.asarray(out), want, err_msg=name)


@pytest.mark.parametrize("error, out", bad_outs(X), ids=lambda v: str(v)[:50])
def test_layer_refuses_a_bad_out(error, out):
    with pytest.raises(error, match=named("out")):
        lnrnn.LayerNorm(4)(X, out=out)


def test_layer_refuses_what_the_function_does():
    """In the same words."""
    layer = lnrnn.LayerNorm(4)
    for x in (*NOT_REAL, X.T, np.zeros(3, np.float32), np.float32(1)):
        with pytest.raises((TypeError, ValueError)) as said:
            lnrnn.layer_norm(x, (4,), W, W)
        with pytest.raises(said.type, match=f"^{re.escape(str(said.value))}$"):
            layer(x)
    layer.weight.shape = 2, 2  # in place, behind the layer's back
    with pytest.raises(ValueError, match=r"^weight must be of shape \(4,\), got an array of shape \(2, 2\)"):
        layer(X)


def test_layer_computes_with_the_attributes_of_its_class():
    """A subclass may answer for them itself."""

    class Coarse(lnrnn.LayerNorm):
        eps = property(lambda self: 0.5, lambda self, value: None)

    np.testing.assert_array_equal(Coarse(4)(X), lnrnn.layer_norm(X, 4, eps=0.5))


def test_layer_without_parameters():
    assert lnrnn.LayerNorm(4, elementwise_affine=False).weight is None
    assert lnrnn.LayerNorm(4, elementwise_affine=False).bias is None
    assert lnrnn.LayerNorm(4, elementwise_affine=False).state_dict() == {}
    no_bias = lnrnn.LayerNorm(4, bias=False)
    assert no_bias.bias is None and list(no_bias.state_dict()) == ["weight"]
    np.testing.assert_array_equal(no_bias(X), lnrnn.layer_norm(X, 4))


def test_layer_state_travels():
    a, b = lnrnn.LayerNorm(4), lnrnn.LayerNorm(4)
    a.weight[...], a.bias[...] = 2, 3
    state = a.state_dict()
    b.load_state_dict(state)
    np.testing.assert_array_equal(a(X), b(X))
    state["weight"][...] = 9  # a copy: neither layer sees it
    assert (a.weight == 2).all() and (b.weight == 2).all()
    for wrong, name in (
        ({"weight": W}, "bias"),
        ({"weight": W, "bias": W, "gain": W}, "gain"),
        ({"weight": W, "bias": np.ones(5)}, "bias"),
        ({"weight": ["a"] * 4, "bias": W}, "weight"),
    ):
        with pytest.raises((ValueError, TypeError), match=named(name)):
            b.load_state_dict(wrong)
        assert (b.weight == 2).all() and (b.bias == 3).all()


@pytest.mark.parametrize(
    "error, name, wrong",
    [
        (ValueError, "normalized_shape", dict(normalized_shape=-1)),
        (TypeError, "normalized_shape", dict(normalized_shape=1.5)),
        (ValueError, "eps", dict(eps=-1)),
        (ValueError, "eps", dict(eps=float("nan"))),
        (TypeError, "eps", dict(eps="a")),
        (TypeError, "elementwise_affine", dict(elementwise_affine=1)),
        (TypeError, "bias", dict(bias=None)),
    ],
)
def test_bad_layer_is_refused(error, name, wrong):
    with pytest.raises(error, match=named(name)):
        lnrnn.LayerNorm(**(dict(normalized_shape=4) | wrong))


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_parameter_whose_axes_are_turned(name):
    """As many values, in another shape."""
    x = np.ones((2, 3, 4), np.float32)
    with pytest.raises(
        ValueError, match=rf"^{name} must be of shape \(3, 4\), got an array of shape \(4, 3\)"
    ):
        lnrnn.layer_norm(x, (3, 4), **{name: np.ones((4, 3), np.float32)})
