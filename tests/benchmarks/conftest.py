"""The benchmarks' harness: options, the fixture `compete`, the tables and figures at the end. See
README.md."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import report  # noqa: E402
from race import QUICK, Pace  # noqa: E402
from results import Entry, Skipped  # noqa: E402
from worker import Worker  # noqa: E402


def pytest_addoption(parser):
    group = parser.getgroup("lnrnn benchmarks")
    group.addoption("--bench-threads", default="1,2", help="numbers of threads to race on (default 1,2)")
    group.addoption(
        "--bench-cpus",
        default=None,
        help="CPUs to use, most wanted first (default: those allowed, from the last to the "
        "first, where the system's own work often is)",
    )
    group.addoption(
        "--bench-wait",
        type=float,
        default=Pace.patience,
        metavar="SECONDS",
        help="how long to wait for calm before a disturbed race is run again",
    )
    group.addoption("--bench-quick", action="store_true", help="few short rounds: to try it, not to measure")
    group.addoption("--bench-results", default="benchmarks-results", help="folder of the tables and figures")


def pytest_configure(config):
    config.stash[SUITE] = Suite(config)


def pytest_generate_tests(metafunc):
    if "threads" in metafunc.fixturenames:
        counts = [int(n) for n in metafunc.config.getoption("bench_threads").split(",")]
        metafunc.parametrize("threads", counts, ids=[f"{n}t" for n in counts])


def pytest_collection_modifyitems(items):
    for item in items:
        if "compete" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.benchmark(timer=race_clock))
            # A race that fails leaves no times behind; its failure says enough.
            item.add_marker(pytest.mark.filterwarnings("ignore:Benchmark fixture was not used"))


class Suite:
    """What lasts for the whole run: the workers by number of threads, the entries, what was not run."""

    def __init__(self, config):
        chosen = config.getoption("bench_cpus")
        allowed = sorted(os.sched_getaffinity(0), reverse=True)
        self.cpus = [int(c) for c in chosen.split(",")] if chosen else allowed
        patience = config.getoption("bench_wait")
        self.pace = QUICK if config.getoption("bench_quick") else Pace(patience=patience)
        self.folder = Path(config.rootpath, config.getoption("bench_results"))
        self.workers: dict[int, Worker] = {}
        self.about: dict[int, dict] = {}
        self.entries: list[Entry] = []
        self.skipped: list[Skipped] = []

    def worker(self, threads: int) -> Worker:
        worker = self.workers.get(threads)
        if worker is None or not worker.alive:
            try:
                worker = self.workers[threads] = Worker(threads, self.cpus[:threads])
            except RuntimeError as error:
                pytest.exit(str(error), returncode=pytest.ExitCode.INTERNAL_ERROR)
            self.about[threads] = worker.about
        return worker


SUITE = pytest.StashKey[Suite]()

_now = 0.0


def race_clock() -> float:
    """The clock that pytest-benchmark reads. It stands still but for `_replay`, which moves it by a measured
    time: so the samples of a race, taken in another process, become a benchmark's statistics."""
    return _now


def _replay(samples):
    global _now
    _now += next(samples)


@pytest.fixture
def compete(request, benchmark):
    """compete(case, group, size, threads, **arguments): races a case of cases_*.py in the worker of that
    many threads, and books the result under the table `group`, row `size`."""
    suite = request.config.stash[SUITE]
    subject = request.node.path.stem.removeprefix("test_bench_")

    def run(case, group, size, threads, **arguments):
        if threads > len(suite.cpus):
            outcome = {"unavailable": f"{threads} threads need as many CPUs, and there are {len(suite.cpus)}"}
        else:
            outcome = suite.worker(threads).run(case, arguments, suite.pace)
        if "unavailable" in outcome:
            suite.skipped.append(Skipped(subject, group, size, outcome["unavailable"]))
            pytest.skip(outcome["unavailable"])
        if "failed" in outcome:
            pytest.fail(outcome["failed"], pytrace=False)
        entry = Entry(subject, group, size, threads, outcome)
        suite.entries.append(entry)
        benchmark.group = f"{group}, {threads}t"
        benchmark.extra_info.update(entry.facts())
        samples = outcome["samples"][entry.judged]
        benchmark.pedantic(_replay, args=(iter(samples),), rounds=len(samples))

    return run


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config, benchmarks, output_json):
    output_json["workers"] = config.stash[SUITE].about


def pytest_sessionfinish(session):
    for worker in session.config.stash[SUITE].workers.values():
        worker.stop()


def pytest_terminal_summary(terminalreporter, config):
    suite = config.stash[SUITE]
    if suite.entries:
        terminalreporter.section("lnrnn against its peers and the machine")
        for line in report.terminal(suite.entries, suite.about, _processor(), suite.skipped):
            terminalreporter.write_line(line)
        terminalreporter.write_line(_write_files(suite))
    elif suite.skipped:
        terminalreporter.section("benchmarks that could not run")
        terminalreporter.write_line("\n".join(report.not_run(suite.skipped)))


def _write_files(suite: Suite) -> str:
    """Writes a Markdown table and a figure for each subject; says what it wrote."""
    suite.folder.mkdir(parents=True, exist_ok=True)
    said = ""
    for subject, text in report.markdown(suite.entries, suite.about, _processor(), suite.skipped).items():
        (suite.folder / f"{subject}.md").write_text(text, encoding="utf-8")
        try:
            import figure

            figure.draw([e for e in suite.entries if e.subject == subject], suite.folder / f"{subject}.png")
        except ModuleNotFoundError as missing:
            said = f"; no figures: {missing.name} is not installed"
    return f"tables and figures are in {suite.folder}{said}"


def _processor() -> str:
    """The CPU's name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return (names or [platform.processor() or platform.machine()])[0]
