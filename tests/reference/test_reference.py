"""The reference against hand-computed cases, central differences and ONNX's vectors.

test_reference_torch.py compares it with PyTorch.
"""

from __future__ import annotations

import numpy as np
import pytest

from helpers import absolute_error, onnx_cases, relative_error
from lnrnn import reference as ref

# Five-point differences with h = 1e-4 err by h^4 / 30 of the fifth derivative (up to 1e8 where a variance
# over three units is small) and by eps / h ~ 1e-12 of a loss of size ~10. 8e-11 was measured at worst.
DIFFERENCE_TOLERANCE = 1e-9


def numeric_slope(loss, x, direction, h=1e-4):
    """d loss(x + a direction) / da at a = 0 by the five-point central difference; `loss` takes an array like
    x."""
    near, far = (loss(x + a * direction) - loss(x - a * direction) for a in (h, 2 * h))
    return (8 * near - far) / (12 * h)


def some_slopes(rng, loss, x):
    """Along four random directions of length 1, (4, *x.shape): an entry of a gradient that is wrong is seen
    along any of them. -> directions, d loss (4,)"""
    directions = rng.standard_normal((4, *x.shape))
    directions /= np.sqrt((directions**2).sum(tuple(range(1, directions.ndim)), keepdims=True))
    return directions, np.array([numeric_slope(loss, x, one) for one in directions])


def numeric_gradient(loss, x):
    """d loss / dx, entry by entry."""
    units = np.eye(x.size).reshape(x.size, *x.shape)
    return np.array([numeric_slope(loss, x, unit) for unit in units]).reshape(x.shape)


# --- by hand ------------------------------------------------------------------------------------------------


def test_layer_norm_by_hand():
    # mean 4, variance 5, and 5 + 4 = 3 squared
    y = ref.layer_norm([[1, 3, 5, 7]], 4, weight=np.array([1, 2, 3, 6]), bias=np.array([0, 0, 1, 1]), eps=4)
    np.testing.assert_allclose(y, [[-1, -2 / 3, 2, 7]], rtol=1e-15)


def test_layer_norm_backward_by_hand():
    # xhat = (-1/2, 1/2), sigma 2; g - mean(g) = (1/2, -1/2); xhat mean(g xhat) = (1/8, -1/8)
    gx, gw, gb = ref.layer_norm_backward([[1, 0]], [[0, 2]], 2, weight=np.ones(2), bias=np.zeros(2), eps=3)
    np.testing.assert_array_equal(gx, [[0.1875, -0.1875]])
    np.testing.assert_array_equal(gw, [-0.5, 0])
    np.testing.assert_array_equal(gb, [1, 0])


def test_layer_norm_over_several_axes():
    x = np.arange(8.0).reshape(2, 2, 2)
    y = ref.layer_norm(x, (2, 2), eps=0)
    np.testing.assert_allclose(y[1], np.array([[-1.5, -0.5], [0.5, 1.5]]) / np.sqrt(1.25), rtol=1e-15)


def test_batch_norm_by_hand():
    x = np.array([[0.0], [2], [4], [6]])  # mean 3, biased variance 5, unbiased 20/3
    y, mean, var = ref.batch_norm(x, np.ones(1), np.ones(1), training=True, momentum=0.5, eps=4)
    np.testing.assert_allclose(y.ravel(), [-1, -1 / 3, 1 / 3, 1], rtol=1e-15)
    np.testing.assert_allclose(mean, [2], rtol=1e-15)
    np.testing.assert_allclose(var, [23 / 6], rtol=1e-15)
    _, mean, var = ref.batch_norm(
        x, np.ones(1), np.ones(1), training=True, momentum=None, num_batches_tracked=3
    )
    np.testing.assert_allclose(mean, [1.5], rtol=1e-15)
    np.testing.assert_allclose(var, [0.75 + 0.25 * 20 / 3], rtol=1e-15)
    y, mean, _ = ref.batch_norm(x, np.array([2.0]), np.array([12.0]), np.array([8.0]), np.array([1.0]), eps=4)
    np.testing.assert_array_equal(y.ravel(), [-3, 1, 5, 9])
    np.testing.assert_array_equal(mean, [2])


def test_activations_by_hand():
    a = np.array([-np.inf, -800, -1, 0, 1, 800, np.inf])
    np.testing.assert_allclose(
        ref.sigmoid(a), [0, 0, 1 / (1 + np.e), 0.5, np.e / (1 + np.e), 1, 1], rtol=1e-15
    )
    np.testing.assert_array_equal(ref.ACTIVATIONS["relu"][0]([-1, 0, 2]), [0, 0, 2])
    np.testing.assert_array_equal(ref.ACTIVATIONS["identity"][0]([-1, 0, 2]), [-1, 0, 2])


def test_ln_rnn_by_hand():
    # deviation 3 and eps 16 give sigma 5: step 1 normalises (-3, 3), step 2 (-3, 7) + (13, -3) = (10, 4)
    x = np.array([[[-3, 3]], [[13, -3]]])
    y, h, _ = ref.rnn(
        x,
        np.eye(2),
        np.eye(2),
        gain=np.array([5, 10]),
        bias=np.array([0, 1]),
        eps=16,
        nonlinearity="identity",
    )
    np.testing.assert_allclose(y[:, 0], [[-3, 7], [3, -5]], rtol=1e-15)
    np.testing.assert_array_equal(h, y[-1])
    y, _, _ = ref.rnn(
        x, np.eye(2), np.eye(2), gain=np.array([5, 10]), bias=np.array([0, 1]), eps=16, nonlinearity="relu"
    )
    # relu clips step 1 to (0, 7), so step 2 normalises (13, 4): deviation 4.5
    np.testing.assert_allclose(y[1, 0], [5 * 4.5 / np.sqrt(4.5**2 + 16), 0], rtol=1e-15)


def test_bn_rnn_by_hand():
    # step 1: 0 and 6 have mean 3, variance 9; step 2 is reached by one sequence: variance 0, and the bias
    # remains
    x = np.array([[[0.0], [6]], [[1], [np.nan]]])
    y, h, tape = ref.rnn(
        x,
        np.eye(1),
        3 * np.eye(1),
        norm="batch",
        gain=np.array([5]),
        bias=np.array([1]),
        eps=16,
        nonlinearity="identity",
        lengths=[2, 1],
    )
    np.testing.assert_allclose(y[..., 0], [[-2, 4], [1, 0]], rtol=1e-15)
    np.testing.assert_allclose(h[:, 0], [1, 4], rtol=1e-15)
    np.testing.assert_allclose(tape.mean[:, 0], [3, -5], rtol=1e-14)
    np.testing.assert_allclose(tape.var[:, 0], [9, 0], rtol=1e-15)
    assert tape.count.tolist() == [2, 1]


def test_plain_rnn_by_hand():
    y, h, _ = ref.rnn(
        [[[1.0]], [[2.0]]],
        [[2.0]],
        [[3.0]],
        norm=None,
        bias_ih=np.array([0.5]),
        bias_hh=np.array([0.25]),
        h0=[[1.0]],
        nonlinearity="identity",
    )
    np.testing.assert_array_equal(y[:, 0, 0], [5.75, 22])  # 2 + 3 + .75;  4 + 17.25 + .75
    np.testing.assert_array_equal(h, [[22]])


@pytest.mark.parametrize(
    "overrun, third", [("last", [0.5, 1.5]), ("mean", [3 / 10**0.5, 7 / 10**0.5]), ("batch", [-1, 1])]
)
def test_overrun_by_hand(overrun, third):
    x = np.array([[5.0, 9]] * 3)[:, :, None]
    statistics = np.array([[1.0], [3.0]]), np.array([[4.0], [16.0]])
    run = dict(
        weight_ih=np.eye(1),
        weight_hh=np.zeros((1, 1)),
        norm="batch",
        eps=0,
        nonlinearity="identity",
        statistics=statistics,
    )
    y, _, _ = ref.rnn(x, overrun=overrun, **run)
    np.testing.assert_allclose(y[..., 0], [[2, 4], [0.5, 1.5], third], rtol=1e-15)
    with pytest.raises(ValueError, match="step 2 .* 2 steps are known"):
        ref.rnn(x, overrun="raise", **run)
    y, _, _ = ref.rnn(x, overrun="raise", lengths=[2, 1], **run)
    np.testing.assert_array_equal(y[..., 0], [[2, 4], [0.5, 0], [0, 0]])


def test_step_statistics_update_by_hand():
    old = np.array([[1.0]]), np.array([[4.0]]), np.array([2])
    batch = np.array([[5.0], [7.0]]), np.array([[8.0], [9.0]]), np.array([2, 1])
    mean, var, count = ref.update_step_statistics(old, batch, momentum=0.25)
    np.testing.assert_array_equal(mean, [[2], [7]])
    np.testing.assert_array_equal(var, [[5], [9]])
    assert count.tolist() == [4, 1]
    mean, var, _ = ref.update_step_statistics(old, batch, momentum=None)
    np.testing.assert_array_equal(mean, [[3], [7]])
    np.testing.assert_array_equal(var, [[10], [9]])  # (4 + 8) / 2 within, 2^2 between


# --- properties ---------------------------------------------------------------------------------------------


def case(norm, seed=0, t=5, b=4, i=3, h=6, dtype=np.float64):
    """Random x and parameters of one RNN layer, and lengths that include T and 0."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype)

    p = dict(weight_ih=normal(h, i), weight_hh=normal(h, h))
    p |= (
        dict(bias_ih=normal(h), bias_hh=normal(h))
        if norm is None
        else dict(gain=1 + normal(h) / 4, bias=normal(h))
    )
    return normal(t, b, i), p, normal(b, h), np.array([t, 0, 2, t - 1])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("norm", ["layer", None, "given"])
def test_a_sequence_in_a_batch_is_the_sequence_alone(norm, reverse):
    """Rows, padding (NaN here) and lengths do not touch each other where the batch gives no statistics."""
    x, p, h0, lengths = case(norm)
    options = dict(norm="batch" if norm == "given" else norm, reverse=reverse, **p)
    if norm == "given":
        options["statistics"] = np.linspace(-1, 1, 30).reshape(5, 6), np.linspace(0.5, 2, 30).reshape(5, 6)
    for b, n in enumerate(lengths):
        x[n:, b] = np.nan
    y, h, _ = ref.rnn(x, h0=h0, lengths=lengths, **options)
    for b, n in enumerate(lengths):
        alone, last, _ = ref.rnn(x[:n, b : b + 1], h0=h0[b : b + 1], **options)
        assert absolute_error(y[:n, b], alone[:, 0]) < 1e-14
        assert absolute_error(h[b], last[0]) < 1e-14
        assert not y[n:, b].any()
        if n:
            np.testing.assert_array_equal(h[b], y[0 if reverse else n - 1, b])
        else:
            np.testing.assert_array_equal(h[b], h0[b])


def test_a_sequence_is_turned_round_within_its_own_length():
    x = np.array([[1.0, 4.0, 6.0], [2.0, 5.0, 7.0], [3.0, 0.0, 8.0]])
    want = [[3, 5, 0], [2, 4, 0], [1, 0, 0]]
    np.testing.assert_array_equal(ref.reverse_sequences(x, np.array([3, 2, 0])), want)


def test_reverse_is_forward_on_flipped_sequences():
    x, p, h0, _ = case("layer")
    y, h, _ = ref.rnn(x, h0=h0, reverse=True, **p)
    flipped, last, _ = ref.rnn(x[::-1], h0=h0, **p)
    np.testing.assert_array_equal(y, flipped[::-1])
    np.testing.assert_array_equal(h, last)


def test_step_statistics_are_those_of_a_loop_over_the_living():
    x, p, h0, lengths = case("batch")
    x[lengths[2] :, 2] = np.nan
    y, _, tape = ref.rnn(x, h0=h0, lengths=lengths, norm="batch", **p)
    assert len(tape.mean) == len(tape.var) == len(tape.count) == 5
    for t in range(5):
        rows = [
            p["weight_hh"] @ (y[t - 1, b] if t else h0[b]) + p["weight_ih"] @ x[t, b]
            for b in range(4)
            if lengths[b] > t
        ]
        assert tape.count[t] == len(rows)
        mean = sum(rows) / len(rows)
        np.testing.assert_allclose(tape.mean[t], mean, rtol=0, atol=1e-14)
        np.testing.assert_allclose(
            tape.var[t], sum((r - mean) ** 2 for r in rows) / len(rows), rtol=0, atol=1e-14
        )


def test_inference_with_the_statistics_of_training_is_training():
    x, p, h0, lengths = case("batch")
    y, h, tape = ref.rnn(x, h0=h0, lengths=lengths, norm="batch", **p)
    again, last, used = ref.rnn(
        x, h0=h0, lengths=lengths, norm="batch", statistics=(tape.mean, tape.var), **p
    )
    np.testing.assert_allclose(again, y, rtol=0, atol=1e-14)
    np.testing.assert_allclose(last, h, rtol=0, atol=1e-14)
    assert len(used.count) == 0


def test_calibration_does_not_depend_on_the_batches():
    x, p, _, lengths = case("batch")
    mean, var, count = ref.calibrate([(x, lengths)], **p)
    apart = ref.calibrate([(x[:2, 2:3], None), (x[:, :2], lengths[:2]), (x[:, 3:], lengths[3:])], **p)
    np.testing.assert_allclose(apart[0], mean, rtol=0, atol=1e-14)
    np.testing.assert_allclose(apart[1], var, rtol=0, atol=1e-14)
    assert apart[2].tolist() == count.tolist() == [3, 3, 2, 2, 1]


def test_cumulative_statistics_are_those_of_all_sequences():
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((10, 3))
    old = np.zeros((0, 3)), np.zeros((0, 3)), np.zeros(0, np.int64)
    for part in (rows[:4], rows[4:5], rows[5:]):
        batch = part.mean(0)[None], part.var(0)[None], np.array([len(part)])
        old = ref.update_step_statistics(old, batch, momentum=None)
    np.testing.assert_allclose(old[0][0], rows.mean(0), rtol=0, atol=1e-15)
    np.testing.assert_allclose(old[1][0], rows.var(0), rtol=0, atol=1e-15)
    assert old[2].tolist() == [10]


# --- central differences ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape, normalized", [((3, 5), (5,)), ((2, 3, 4), (3, 4)), ((4,), (4,)), ((3, 1), (1,))]
)
def test_layer_norm_gradients(shape, normalized):
    rng = np.random.default_rng(2)
    x, c = rng.standard_normal((2, *shape))
    w, b = rng.standard_normal((2, *normalized))
    gx, gw, gb = ref.layer_norm_backward(c, x, normalized, w, b)
    for got, name, at in ((gx, "x", x), (gw, "weight", w), (gb, "bias", b)):

        def loss(v, name=name):
            a = dict(x=x, weight=w, bias=b) | {name: v}
            return (c * ref.layer_norm(normalized_shape=normalized, **a)).sum()

        assert absolute_error(got, numeric_gradient(loss, at)) < DIFFERENCE_TOLERANCE
    bare, none_w, none_b = ref.layer_norm_backward(c, x, normalized)
    assert none_w is none_b is None
    np.testing.assert_array_equal(bare, ref.layer_norm_backward(c, x, normalized, np.ones_like(w), b)[0])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (2, 1, 2, 3)])
def test_batch_norm_gradients(shape, training):
    rng = np.random.default_rng(3)
    x, c = rng.standard_normal((2, *shape))
    w, b, mean = rng.standard_normal((3, shape[1]))
    var = rng.uniform(0.5, 2, shape[1])
    gx, gw, gb = ref.batch_norm_backward(c, x, mean, var, w, training)
    for got, name, at in ((gx, "x", x), (gw, "weight", w), (gb, "bias", b)):

        def loss(v, name=name):
            a = dict(x=x, weight=w, bias=b) | {name: v}
            return (c * ref.batch_norm(running_mean=mean, running_var=var, training=training, **a)[0]).sum()

        assert absolute_error(got, numeric_gradient(loss, at)) < DIFFERENCE_TOLERANCE
    assert ref.batch_norm_backward(c, x, mean, var, None, training)[1] is None


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("nonlinearity", list(ref.ACTIVATIONS))
@pytest.mark.parametrize("norm", ["layer", "batch", "given", "overrun", None])
def test_rnn_gradients(norm, nonlinearity, reverse, ragged):
    x, p, h0, lengths = case(norm, seed=4, t=4, b=4, i=2, h=3)
    options = dict(
        norm="batch" if norm in ("given", "overrun") else norm,
        nonlinearity=nonlinearity,
        reverse=reverse,
        lengths=lengths if ragged else None,
    )
    known = {"given": 4, "overrun": 2}.get(norm)
    if known:
        rng = np.random.default_rng(5)
        options |= dict(
            statistics=(rng.standard_normal((known, 3)), rng.uniform(0.5, 2, (known, 3))), overrun="batch"
        )
    rng = np.random.default_rng(6)
    cy, ch = rng.standard_normal((4, 4, 3)), rng.standard_normal((4, 3))

    def loss(values):
        y, h, _ = ref.rnn(**values, **options)
        return (cy * y).sum() + (ch * h).sum()

    values = dict(x=x, h0=h0, **p)
    _, _, tape = ref.rnn(**values, **options)
    gx, gh0, grads = ref.rnn_backward(tape, cy, ch)
    assert set(grads) == set(p)
    for name, got in dict(x=gx, h0=gh0, **grads).items():
        directions, slopes = some_slopes(rng, lambda v, name=name: loss(values | {name: v}), values[name])
        assert relative_error((directions * got).sum(tuple(range(1, directions.ndim))), slopes) < (
            DIFFERENCE_TOLERANCE
        ), name
    # gh defaults to zero, and gradients of y past a length have no effect
    if ragged:
        poisoned = np.where(np.arange(4)[:, None, None] < lengths[:, None], cy, np.nan)
        np.testing.assert_array_equal(ref.rnn_backward(tape, poisoned, ch)[0], gx)
    np.testing.assert_array_equal(
        ref.rnn_backward(tape, cy)[0], ref.rnn_backward(tape, cy, np.zeros((4, 3)))[0]
    )


# --- ONNX node tests (float32 results of a NumPy implementation) --------------------------------------------


def ids(cases):
    return [c["name"].removeprefix("test_") for c in cases]


LN_CASES, BN_CASES, RNN_CASES = (onnx_cases(op) for op in ("LayerNormalization", "BatchNormalization", "RNN"))


@pytest.mark.parametrize("case", LN_CASES, ids=ids(LN_CASES))
def test_onnx_layer_norm(case):
    x, w, b = case["inputs"].values()
    axis = case["attributes"].get("axis", -1) % x.ndim
    y = ref.layer_norm(x, x.shape[axis:], w, b, case["attributes"].get("epsilon", 1e-5))
    assert absolute_error(y, case["outputs"]["Y"]) < 2e-6  # 8.3e-7 was measured: their results are float32


@pytest.mark.parametrize("case", BN_CASES, ids=ids(BN_CASES))
def test_onnx_batch_norm(case):
    """ONNX's momentum weighs the old value, and its running variance takes the biased batch variance."""
    x, w, b, mean, var = case["inputs"].values()
    a = case["attributes"]
    training = bool(a.get("training_mode", 0))
    y, new_mean, new_var = ref.batch_norm(
        x, mean, var, w, b, training, 1 - a.get("momentum", 0.9), a.get("epsilon", 1e-5)
    )
    assert absolute_error(y, case["outputs"]["y"]) < 2e-6
    if training:
        n = x.size // x.shape[1]
        new_var -= 0.1 * (n / (n - 1) - 1) * x.astype(np.float64).var((0, 2, 3))
        assert absolute_error(new_mean, case["outputs"]["output_mean"]) < 2e-7
        assert absolute_error(new_var, case["outputs"]["output_var"]) < 2e-7


@pytest.mark.parametrize("case", RNN_CASES, ids=ids(RNN_CASES))
def test_onnx_rnn(case):
    x, w, r = (case["inputs"][k] for k in "XWR")
    b = case["inputs"].get("B", np.zeros((1, 2 * r.shape[-1])))[0]
    batch_first = case["attributes"].get("layout", 0) == 1
    y, h, _ = ref.rnn(
        x.swapaxes(0, 1) if batch_first else x,
        w[0],
        r[0],
        norm=None,
        bias_ih=b[: r.shape[-1]],
        bias_hh=b[r.shape[-1] :],
    )
    want = case["outputs"]["Y_h"]
    assert absolute_error(h[:, None] if batch_first else h[None], want) < 2e-7
    if "Y" in case["outputs"]:
        assert absolute_error(y.swapaxes(0, 1)[:, :, None], case["outputs"]["Y"]) < 2e-7
