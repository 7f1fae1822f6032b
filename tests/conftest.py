from __future__ import annotations

import os
import signal
import sys
import zlib
from pathlib import Path

# OpenBLAS would divide the small products of lnrnn.reference among spinning threads, which takes ten times as
# long on a busy machine. It reads the variable when NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from helpers import isa_families, tested_isas, using_isa, vector_families  # noqa: E402
from simd_units import Unit, unit_names  # noqa: E402

# Hypothesis's examples have no deadline, because a slow machine is no fault. They are derandomised, so that
# every run has the same ones.
settings.register_profile(
    "lnrnn",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("lnrnn")

# A job in the background ignores SIGINT, and so would the processes that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Files with long tests come first, so that parallel processes end at about the same time.
LONG = (
    "test_aarch64.py", "test_campaigns.py", "test_studies.py", "test_threads.py",
    "test_score_resume.py", "test_torch_operator.py", "test_torch_processes.py",
)  # fmt: skip


# Folders and files without a quick test, because they start processes or compilers, train, or wait.
NOT_QUICK = {
    "campaigns", "demo", "examples", "mutants", "studies", "test_aarch64.py",
    "test_accelerate_cells.py", "test_back_off.py", "test_c_units.py", "test_concurrent_setters.py",
    "test_docs.py", "test_engines.py", "test_import_checks.py", "test_interrupts.py",
    "test_metadata.py", "test_own_cells.py", "test_package.py",
    "test_result_memory.py", "test_runtime.py", "test_score_memory.py", "test_score_resume.py",
    "test_short_calls.py", "test_teams.py", "test_threads.py", "test_tiles.py",
    "test_torch_operator.py", "test_torch_processes.py",
}  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks the first case of each test function outside NOT_QUICK as quick (`pytest -m quick`)."""
    items.sort(key=lambda item: item.path.name not in LONG)
    seen = set()
    for item in items:
        function = item.path, item.parent.name, getattr(item, "originalname", item.name)
        if function not in seen and NOT_QUICK.isdisjoint(item.nodeid.partition("::")[0].split("/")):
            item.add_marker("quick")
        seen.add(function)


def pytest_addoption(parser):
    parser.addoption("--skipped", type=Path, metavar="FILE", help="append skipped tests and reasons to FILE")


def pytest_configure(config):
    if path := config.getoption("--skipped"):
        config.pluginmanager.register(Skips(path))


class Skips:
    """Appends each skipped test, or file of tests, and the reason to a file."""

    def __init__(self, path):
        self.path = path

    def pytest_runtest_logreport(self, report):
        if report.skipped and not hasattr(report, "wasxfail"):
            with self.path.open("a") as file:
                file.write(f"{report.nodeid}\t{report.longrepr[2]}\n")

    pytest_collectreport = pytest_runtest_logreport


def pytest_report_teststatus(report):
    """Reports a failing test immediately, on a line of its own."""
    if report.failed:
        category = "failed" if report.when == "call" else "error"
        crash = getattr(report.longrepr, "reprcrash", None)
        why = str(crash.message if crash else report.longrepr).strip().partition("\n")[0]
        return category, f"\n{category.upper()} {report.nodeid}: {why[:200]}\n", category.upper()


def pytest_generate_tests(metafunc):
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", tested_isas(), indirect=True)
    if "family" in metafunc.fixturenames:
        metafunc.parametrize("family", isa_families(), indirect=True)
    if "vectors" in metafunc.fixturenames:
        metafunc.parametrize("vectors", vector_families(), indirect=True)
    if "unit" in metafunc.fixturenames:
        metafunc.parametrize("unit", unit_names(), indirect=True, scope="session")


@pytest.fixture(autouse=True)
def seeded_torch():
    """Seeds torch, so that its numbers do not depend on earlier tests."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture
def isa(request):
    """Runs the test on every instruction set of this machine."""
    with using_isa(request.param) as name:
        yield name


@pytest.fixture
def family(request):
    """Runs the test on the instruction sets that differ in more than products of bfloat16 and int8."""
    with using_isa(request.param) as name:
        yield name


@pytest.fixture
def vectors(request):
    """Does the same as `family` without scalar, for tests of large networks."""
    with using_isa(request.param) as name:
        yield name


@pytest.fixture(scope="session")
def unit(request):
    """Returns the compiled operations of simd.h, for each instruction set that runs or is emulated here."""
    unit = Unit(request.param)
    yield unit
    unit.close()


@pytest.fixture
def rng(request):
    """Returns a generator seeded by the test's file, name and parameters, except the instruction set.

    So its numbers are the same in every run, in every process and on every instruction set.
    """
    own = request.node
    parameters = own.callspec.id.split("-") if hasattr(own, "callspec") else []
    fixtures = ("isa", "family", "vectors", "unit")
    isas = {own.callspec.params.get(name) for name in fixtures} if parameters else set()
    identity = [own.path.stem, own.originalname, *(name for name in parameters if name not in isas)]
    return np.random.default_rng(zlib.crc32("-".join(identity).encode()))
