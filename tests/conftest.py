from __future__ import annotations

import numpy as np
import pytest
from helpers import available_isas, using_isa
from hypothesis import HealthCheck, settings

# No deadline: a busy machine is not a bug. Derandomised: the same suite must give the same answer twice.
settings.register_profile("lnrnn", deadline=None, derandomize=True, max_examples=50,
                          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
settings.load_profile("lnrnn")


def pytest_generate_tests(metafunc):
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", available_isas(), indirect=True)


@pytest.fixture
def isa(request):
    """The test runs once on every ISA of this machine; the ISA chosen at import is restored afterwards."""
    with using_isa(request.param) as name:
        yield name


@pytest.fixture
def rng(request):
    """Random numbers that are the same in every run and on every ISA."""
    return np.random.default_rng(len(request.function.__name__))
