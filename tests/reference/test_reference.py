"""Compares the reference's norms and RNN with computations by hand and central differences.

tests/norm and tests/rnn run ONNX's node tests. They also compare lnrnn with the reference."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest

import lnrnn
from lnrnn import reference as ref
from reference_cells import assert_gradients, draw


def test_layer_norm_by_hand():
    # mean 4, variance 5, 5 + eps = 9 = 3^2
    y = ref.layer_norm([[1, 3, 5, 7]], 4, weight=np.array([1, 2, 3, 6]), bias=np.array([0, 0, 1, 1]), eps=4)
    np.testing.assert_allclose(y, [[-1, -2 / 3, 2, 7]], rtol=1e-15)


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
    counted = dict(momentum=None, num_batches_tracked=3)
    _, mean, var = ref.batch_norm(x, np.ones(1), np.ones(1), training=True, **counted)
    np.testing.assert_allclose(mean, [1.5], rtol=1e-15)
    np.testing.assert_allclose(var, [0.75 + 0.25 * 20 / 3], rtol=1e-15)
    y, mean, _ = ref.batch_norm(x, np.array([2.0]), np.array([12.0]), np.array([8.0]), np.array([1.0]), eps=4)
    np.testing.assert_array_equal(y.ravel(), [-3, 1, 5, 9])
    np.testing.assert_array_equal(mean, [2])


def test_activations_by_hand():
    a = np.array([-np.inf, -800, -1, 0, 1, 800, np.inf])
    want = [0, 0, 1 / (1 + np.e), 0.5, np.e / (1 + np.e), 1, 1]
    np.testing.assert_allclose(ref.sigmoid(a), want, rtol=1e-15)
    np.testing.assert_array_equal(ref.ACTIVATIONS["relu"][0]([-1, 0, 2]), [0, 0, 2])
    np.testing.assert_array_equal(ref.ACTIVATIONS["identity"][0]([-1, 0, 2]), [-1, 0, 2])


def test_ln_rnn_by_hand():
    # a deviation of 3 and eps 16 give sigma 5; step 1 normalises (-3, 3), step 2 (-3, 7) + (13, -3) = (10, 4)
    x = np.array([[[-3, 3]], [[13, -3]]])

    def run(nonlinearity):
        gain, bias = np.array([5, 10]), np.array([0, 1])
        return ref.rnn(x, np.eye(2), np.eye(2), gain=gain, bias=bias, eps=16, nonlinearity=nonlinearity)

    y, h, _ = run("identity")
    np.testing.assert_allclose(y[:, 0], [[-3, 7], [3, -5]], rtol=1e-15)
    np.testing.assert_array_equal(h, y[-1])
    y, _, _ = run("relu")
    # relu clips step 1 to (0, 7), so step 2 normalises (13, 4): deviation 4.5
    np.testing.assert_allclose(y[1, 0], [5 * 4.5 / np.sqrt(4.5**2 + 16), 0], rtol=1e-15)


def test_bn_rnn_by_hand():
    # step 1: 0 and 6 have mean 3 and variance 9; step 2 has one sequence, so the variance is 0 and the result
    # is the bias
    x = np.array([[[0.0], [6]], [[1], [np.nan]]])
    options = dict(norm="batch", eps=16, nonlinearity="identity", lengths=[2, 1])
    y, h, tape = ref.rnn(x, np.eye(1), 3 * np.eye(1), gain=np.array([5]), bias=np.array([1]), **options)
    np.testing.assert_allclose(y[..., 0], [[-2, 4], [1, 0]], rtol=1e-15)
    np.testing.assert_allclose(h[:, 0], [1, 4], rtol=1e-15)
    np.testing.assert_allclose(tape.mean[:, 0], [3, -5], rtol=1e-14)
    np.testing.assert_allclose(tape.var[:, 0], [9, 0], rtol=1e-15)
    assert tape.count.tolist() == [2, 1]


@pytest.mark.parametrize(
    "overrun, third", [("last", [0.5, 1.5]), ("mean", [3 / 10**0.5, 7 / 10**0.5]), ("batch", [-1, 1])]
)
def test_overrun_by_hand(overrun, third):
    x = np.array([[5.0, 9]] * 3)[:, :, None]
    statistics = np.array([[1.0], [3.0]]), np.array([[4.0], [16.0]])
    run = dict(weight_ih=np.eye(1), weight_hh=np.zeros((1, 1)), norm="batch", eps=0)
    run |= dict(nonlinearity="identity", statistics=statistics)
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


def test_a_sequence_is_reversed_within_its_length():
    x = np.array([[1.0, 4.0, 6.0], [2.0, 5.0, 7.0], [3.0, 0.0, 8.0]])
    want = [[3, 5, 0], [2, 4, 0], [1, 0, 0]]
    np.testing.assert_array_equal(ref.reverse_sequences(x, np.array([3, 2, 0])), want)


def test_calibration_does_not_depend_on_the_division_into_batches():
    v, lengths = draw("rnn batch", np.random.default_rng(0))
    x, p = v["x"], {key: a for key, a in v.items() if key not in ("x", "h0")}
    mean, var, count = ref.calibrate([(x, lengths)], **p)
    apart = ref.calibrate([(x[:1, 2:3], None), (x[:, :2], lengths[:2]), (x[:, 3:], lengths[3:])], **p)
    np.testing.assert_allclose(apart[0], mean, rtol=0, atol=1e-14)
    np.testing.assert_allclose(apart[1], var, rtol=0, atol=1e-14)
    assert apart[2].tolist() == count.tolist() == [3, 2, 2, 2, 1]


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


@pytest.mark.parametrize("shape, over", [((3, 5), (5,)), ((2, 3, 4), (3, 4)), ((4,), (4,)), ((3, 1), (1,))])
def test_layer_and_rms_norm_gradients_equal_central_differences(shape, over):
    rng = np.random.default_rng(2)
    x, (w, b) = rng.standard_normal(shape), rng.standard_normal((2, *over))

    def back(tape, gy, gstate):
        return dict(zip(("x", "weight", "bias"), ref.layer_norm_backward(gy, x, over, w, b), strict=True))

    values = dict(x=x, weight=w, bias=b)
    run = lambda v: (ref.layer_norm(normalized_shape=over, **v), (), None)  # noqa: E731
    _, gy, _, _ = assert_gradients(rng, run, back, values)
    bare = ref.layer_norm_backward(gy, x, over)
    assert bare[1] is bare[2] is None
    np.testing.assert_array_equal(bare[0], ref.layer_norm_backward(gy, x, over, np.ones_like(w), b)[0])

    rms = lambda v: (ref.rms_norm(v["x"], over, v["weight"]), (), None)  # noqa: E731
    rms_back = lambda tape, gy, gstate: dict(  # noqa: E731
        zip(("x", "weight"), ref.rms_norm_backward(gy, x, over, w), strict=True)
    )
    assert_gradients(rng, rms, rms_back, dict(x=x, weight=w))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (2, 1, 2, 3)])
def test_batch_norm_gradients_equal_central_differences(shape, training):
    rng = np.random.default_rng(3)
    x, (w, b, mean) = rng.standard_normal(shape), rng.standard_normal((3, shape[1]))
    given = mean, rng.uniform(0.5, 2, shape[1])

    def run(v):
        return ref.batch_norm(v["x"], *given, v["weight"], v["bias"], training)[0], (), None

    def back(tape, gy, gstate):
        slopes = ref.batch_norm_backward(gy, x, *given, w, training)
        return dict(zip(("x", "weight", "bias"), slopes, strict=True))

    assert_gradients(rng, run, back, dict(x=x, weight=w, bias=b))
    assert ref.batch_norm_backward(x, x, *given, None, training)[1] is None


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("nonlinearity", list(ref.ACTIVATIONS))
@pytest.mark.parametrize("norm", ["layer", "batch", None])
def test_rnn_gradients_equal_central_differences(norm, nonlinearity, reverse):
    """test_reference_cells.py has the tests of tanh, lengths and given statistics."""
    rng = np.random.default_rng(4)
    shapes = dict(x=(4, 4, 2), h0=(4, 3), weight_ih=(3, 2), weight_hh=(3, 3))
    shapes |= dict(bias_ih=3, bias_hh=3) if norm is None else dict(gain=3, bias=3)
    values = {name: rng.standard_normal(shape) for name, shape in shapes.items()}

    def run(values):
        y, h, tape = ref.rnn(**values, norm=norm, nonlinearity=nonlinearity, reverse=reverse)
        return y, (h,), tape

    def back(tape, gy, gstate):
        gx, gh0, grads = ref.rnn_backward(tape, gy, *gstate)
        return dict(x=gx, h0=gh0, **grads)

    assert_gradients(rng, run, back, values)


# --- default arguments --------------------------------------------------------------------------------------


def defaults(function):
    parameters = inspect.signature(function).parameters
    return {name: p.default for name, p in parameters.items() if p.default is not p.empty}


def same_defaults(found, want, least):
    both = found.keys() & want.keys()
    assert both >= least
    assert {name: found[name] for name in both} == {name: want[name] for name in both}


@pytest.mark.parametrize("name", [n for n in ref.__all__ if inspect.isfunction(getattr(lnrnn, n, None))])
def test_functions_have_the_defaults_of_the_reference(name):
    least = {"rms_norm": {"weight", "eps"}, "sigmoid": set()}.get(name, {"weight", "eps"})
    least = least | ({"momentum", "training", "bias"} if name == "batch_norm" else set())
    same_defaults(defaults(getattr(ref, name)), defaults(getattr(lnrnn, name)), least)


@pytest.mark.parametrize("layer", ["LayerNorm", "BatchNorm"])
def test_layers_have_the_defaults_of_the_reference(layer):
    function = {"LayerNorm": ref.layer_norm, "BatchNorm": ref.batch_norm}[layer]
    same_defaults({"eps": defaults(function)["eps"]}, defaults(getattr(lnrnn, layer)), {"eps"})


@pytest.mark.parametrize("cell", ["RNN", "LSTM", "GRU"])
def test_networks_have_the_defaults_of_the_reference(cell):
    """The default placement of the norm depends on the cell. rnn.norm has this placement."""
    found = defaults(getattr(ref, cell.lower()))
    found.pop("bias", None)  # an array here, but a bool in the classes
    layer, batch = (getattr(lnrnn, cell)(1, 1, norm=norm, seed=0).norm for norm in ("layer", "batch"))
    own = {"LSTM": {"cell"}, "GRU": {"span"}, "RNN": set()}[cell]
    same_defaults(found, dataclasses.asdict(layer), {"eps", "placement"} | own)
    same_defaults(found, dataclasses.asdict(batch), {"eps", "overrun"})
    same_defaults(found, defaults(getattr(lnrnn, cell)), {"nonlinearity"} if cell == "RNN" else set())
    assert not found["reverse"] and all(
        found[name] is None for name in ("h0", "lengths", "zoneout", "states_mask")
    )
