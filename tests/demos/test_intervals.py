"""The 95 % interval of paired differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lnrnn.demos.outcomes import confidence_interval, student_quantile


# As in the tables of Student's t distribution, two-sided 95 %.
@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [
        (1, 12.7062),
        (4, 2.7764),
        (9, 2.2622),
        (10, 2.2281),
        (11, 2.2010),
        (19, 2.0930),
        (30, 2.0423),
        (120, 1.9799),
    ],
)
def test_quantiles_are_those_of_the_tables(degrees, quantile):
    assert student_quantile(degrees) == pytest.approx(quantile, abs=1e-4)


def test_the_interval_of_five_differences():
    differences = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.7764 * math.sqrt(2.5 / 5)
    assert confidence_interval(differences) == pytest.approx((3 - half, 3 + half))
    assert confidence_interval(np.full(3, 0.5)) == (0.5, 0.5)


def test_one_difference_tells_nothing():
    assert confidence_interval(np.array([0.3])) == (-math.inf, math.inf)


def test_it_covers_the_mean_19_times_in_20():
    rng = np.random.default_rng(0)
    found = [confidence_interval(rng.standard_normal(5)) for _ in range(4000)]
    assert np.mean([low < 0 < high for low, high in found]) == pytest.approx(0.95, abs=0.01)
