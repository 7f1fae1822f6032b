"""to_dtype(check=): the report of the costs of short weights, and the tolerance."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from networks import network, normal


def outputs(rnn, **given):
    y, state = rnn(**given)
    return [y, *(state if isinstance(state, tuple) else [state])]


@pytest.mark.parametrize("cell, dtype", [("LSTM", "int8"), ("GRU", "bfloat16"), ("RNN", "int8")])
@pytest.mark.parametrize("threshold", [0, 0.25])
def test_the_report_has_the_differences_of_y_and_the_state(rng, cell, dtype, threshold):
    rnn = network(5, 24, cell=cell)
    given = {"x": normal(rng, 300, 9, 5), "lengths": [300, *range(250, 258)]}
    short = rnn.to_dtype(dtype, check=given, threshold=threshold)
    found, kept = short.rounding, rnn.to_dtype(dtype)
    pairs = [*zip(outputs(rnn, **given), outputs(short, **given), strict=True)]
    differences = np.abs(np.concatenate([(a.astype(float) - b).ravel() for a, b in pairs]))
    decisions = sum((a.argmax(-1) != b.argmax(-1)).sum() for a, b in pairs)
    sides = sum(((a > threshold) != (b > threshold)).sum() for a, b in pairs)
    cost = found.parts[cell]
    assert (cost.largest, cost.mean) == (differences.max(), pytest.approx(differences.mean()))
    assert (cost.decisions, cost.sides) == (decisions, sides) and sides > 0 and cost.seconds > 0
    assert found.decisions == sum(a.size // 24 for a, _ in pairs) and found.numbers == differences.size
    assert found.whole is found.result is cost and found.kept == () and found.dtype == dtype
    assert 0 < found.float32.largest < cost.largest / 50 and found.float32.mean < cost.mean / 50
    assert f"{cost.decisions} of {found.decisions}" in repr(found) and f"all {dtype} " in repr(found)
    assert all(
        np.array_equal(a, b) for a, b in zip(outputs(kept, **given), outputs(short, **given), strict=True)
    )
    assert kept.rounding is None and rnn.rounding is None and rnn.dtype == "float32"


def test_a_report_is_about_the_parameters_that_it_was_made_with(rng):
    short = network(3, 8).to_dtype("int8", 8, check=normal(rng, 9, 2, 3))
    assert short.activation_bits == 8
    for same in (copy.copy(short), copy.deepcopy(short), pickle.loads(pickle.dumps(short))):
        assert same.rounding == short.rounding is not None
    short.weight_hh_l0 = 2 * short.weight_hh_l0
    assert short.rounding is None


def test_a_tolerance_holds_or_the_weights_stay_float32(rng):
    rnn, x = network(5, 24, cell="LSTM", norm=None), normal(rng, 40, 3, 5)
    found = rnn.to_dtype("int8", check=x).rounding
    inside, outside = 1.01 * found.whole.largest, 0.99 * found.whole.largest
    held = rnn.to_dtype("int8", check=x, tolerance=inside)
    assert held.dtype == "int8" and held.rounding.kept == () and held.rounding.result.largest <= inside
    with pytest.warns(
        UserWarning, match="with int8 weights every part exceeds tolerance=.*, so all are in float32"
    ) as said:
        left = rnn.to_dtype("int8", 8, check=x, tolerance=outside)
    assert said[0].filename == __file__
    assert (left.dtype, left.activation_bits, left.rounding.kept) == ("float32", None, ("LSTM",))
    assert left.rounding.result.largest == 0 < outside < left.rounding.whole.largest
    assert np.array_equal(left(x)[0], rnn(x)[0]) and "\nfloat32: LSTM" in repr(left.rounding)
    with pytest.raises(ValueError, match="tolerance must be at least .*, the difference in float32, got"):
        rnn.to_dtype("int8", check=x, tolerance=found.float32.largest / 2)


def test_infinity_may_stay_and_nan_may_not(rng):
    rnn, x = network(3, 8, norm=None, nonlinearity="identity"), normal(rng, 1, 2, 3)
    rnn.bias_ih_l0 = np.where(np.arange(8) == 0, np.inf, rnn.bias_ih_l0)
    assert 0 < rnn.to_dtype("bfloat16", check=x).rounding.whole.mean < 1
    rnn.bias_ih_l0 = np.full(8, np.finfo(np.float32).max)
    assert rnn.to_dtype("bfloat16", check=x * 0).rounding.float32.largest == 0  # the next number is infinity
    x[0, 1] = np.nan
    expected = "check must be an input for which no output is NaN, got NaN in output 0 of 2"
    with pytest.raises(ValueError, match=expected):
        rnn.to_dtype("int8", check=x)
