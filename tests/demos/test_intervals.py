"""The 95 % interval of paired differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lnrnn.demos import outcomes
from lnrnn.demos.outcomes import T_QUANTILES, interval


def test_quantiles_are_those_of_the_normal_distribution_with_its_corrections():
    """Abramowitz and Stegun 26.7.5, in powers of 1 / degrees: off by < 2e-3 from the sixth on."""
    z = 1.959964
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    for degrees, quantile in list(enumerate(T_QUANTILES, 1))[5:]:
        expected = sum(term / degrees**power for power, term in enumerate(terms))
        assert quantile == pytest.approx(expected, abs=2e-3), degrees


def test_the_interval_of_five_differences():
    half = 2.776 * math.sqrt(2.5 / 5)
    assert interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0])) == pytest.approx((3 - half, 3 + half))
    assert interval(np.full(3, 0.5)) == (0.5, 0.5)


def test_one_difference_tells_nothing():
    assert interval(np.array([0.3])) is None


@pytest.mark.parametrize("seeds", [2, 3, 5, 40])
def test_it_covers_the_mean_19_times_in_20(seeds):
    rng = np.random.default_rng(0)
    found = [interval(rng.standard_normal(seeds)) for _ in range(1500)]
    assert np.mean([low < 0 < high for low, high in found]) == pytest.approx(0.95, abs=0.02)


def test_one_seed_has_no_deviation():
    assert outcomes.mean_and_deviation(np.array([0.5])) == (0.5, None)
    assert outcomes.mean_and_deviation(np.array([1.0, 3.0])) == (2.0, 2**0.5)
