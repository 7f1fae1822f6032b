"""Adds options, the fixture `compete`, tables and records to pytest. README.md describes the benchmarks."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import record  # noqa: E402
from race import QUICK, Pace  # noqa: E402
from worker import Worker  # noqa: E402


def pytest_addoption(parser):
    group = parser.getgroup("lnrnn benchmarks")
    group.addoption("--bench-threads", default="1,2", help="numbers of threads (default 1,2)")
    cpus = "CPUs in order of preference (default: last one first, because the system often uses the first)"
    group.addoption("--bench-cpus", default=None, help=cpus)
    wait = "seconds to wait for idle CPUs before a disturbed race is repeated"
    group.addoption("--bench-wait", type=float, default=Pace.patience, metavar="SECONDS", help=wait)
    group.addoption("--bench-quick", action="store_true", help="few short rounds: a trial, no measurement")
    group.addoption("--bench-results", default="benchmarks-results", help="the folder of the records")


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
            # A race that fails does not use the fixture `benchmark`.
            item.add_marker(pytest.mark.filterwarnings("ignore:Benchmark fixture was not used"))


class Suite:
    """The state of a run: workers by number of threads, races, and races that could not run."""

    def __init__(self, config):
        chosen = config.getoption("bench_cpus")
        allowed = sorted(os.sched_getaffinity(0), reverse=True)
        self.cpus = [int(c) for c in chosen.split(",")] if chosen else allowed
        patience = config.getoption("bench_wait")
        self.pace = QUICK if config.getoption("bench_quick") else Pace(patience=patience)
        self.folder = Path(config.rootpath, config.getoption("bench_results"))
        self.workers: dict[int, Worker] = {}
        self.about: dict[int, dict] = {}
        self.races: list[dict] = []
        self.tables: dict[str, dict] = {}
        self.skipped: dict[tuple[str, str], list[str]] = {}

    def worker(self, threads: int) -> Worker:
        worker = self.workers.get(threads)
        if worker is None or not worker.alive:
            try:
                worker = self.workers[threads] = Worker(threads, self.cpus[:threads])
            except RuntimeError as error:
                pytest.exit(str(error), returncode=pytest.ExitCode.INTERNAL_ERROR)
            self.about[threads] = worker.about
        return worker

    def records(self) -> list[dict]:
        about = next(iter(self.about.values()), {"versions": {}, "isa": None})
        head = {
            "machine": processor(),
            "kernels": about["isa"],
            "date": time.strftime("%Y-%m-%d"),
            "commit": commit(),
            "versions": about["versions"],
            "limits": {str(threads): one["limits"] for threads, one in self.about.items()},
        }
        parts = {subject: {"races": races} for subject, races in record.by_subject(self.races).items()}
        return [{"title": title, **head, **part} for title, part in (parts | self.tables).items()]


SUITE = pytest.StashKey[Suite]()

_now = 0.0


def race_clock() -> float:
    """Returns the time of pytest-benchmark's clock. Only `_replay` advances it, by times that a worker has
    measured, so that pytest-benchmark reports the times of another process."""
    return _now


def _replay(samples):
    global _now
    _now += next(samples)


@pytest.fixture
def compete(request, benchmark):
    """compete(case, table, size, threads, **arguments) races a case of cases_*.py in a worker. It adds the
    result to the record, and to extra_info in pytest-benchmark's JSON."""
    suite = request.config.stash[SUITE]
    subject = request.node.path.stem.removeprefix("test_bench_")

    def run(case, table, size, threads, **arguments):
        if threads > len(suite.cpus):
            outcome = {"unavailable": f"{threads} threads need as many CPUs; there are {len(suite.cpus)}"}
        else:
            outcome = suite.worker(threads).run(case, arguments, suite.pace)
        if "unavailable" in outcome:
            suite.skipped.setdefault((table, outcome["unavailable"]), []).append(size)
            pytest.skip(outcome["unavailable"])
        if "failed" in outcome:
            pytest.fail(outcome["failed"], pytrace=False)
        facts = {"subject": subject, "table": table, "size": size, "threads": threads, **outcome}
        suite.races.append(facts)
        benchmark.group = f"{table}, {threads}t"
        benchmark.extra_info.update(facts)
        samples = [took * facts["steps"] for took in facts["times"][facts["ours"][0]]]
        benchmark.pedantic(_replay, args=(iter(samples),), rounds=len(samples))

    return run


@pytest.fixture
def measure(request):
    """measure(function, **arguments) calls "module.function" of this folder in a worker with one thread. It
    adds the rows of the result to the record. cpu: another CPU or None; quick: --bench-quick."""
    suite = request.config.stash[SUITE]
    subject = request.node.path.stem.removeprefix("test_bench_")

    def run(function, **arguments):
        arguments |= {"cpu": next(iter(suite.cpus[1:]), None), "quick": suite.pace is QUICK}
        outcome = suite.worker(1).run(function, arguments, suite.pace)
        if "failed" in outcome:
            pytest.fail(outcome["failed"], pytrace=False)
        suite.tables.setdefault(subject, {**outcome, "rows": []})["rows"] += outcome["rows"]

    return run


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config, benchmarks, output_json):
    output_json["workers"] = config.stash[SUITE].about


def pytest_sessionfinish(session):
    for worker in session.config.stash[SUITE].workers.values():
        worker.stop()


def pytest_terminal_summary(terminalreporter, config):
    suite = config.stash[SUITE]
    if not suite.races and not suite.skipped and not suite.tables:
        return
    terminalreporter.section("lnrnn against its peers and the machine")
    records = suite.records()
    terminalreporter.write_line("\n".join(record.terminal(records, suite.skipped)))
    suite.folder.mkdir(parents=True, exist_ok=True)
    for one in records:
        record.save(one, suite.folder / f"{one['title']}.json")
    terminalreporter.write_line(f"records are in {suite.folder}")


def processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return (names or [platform.processor() or platform.machine()])[0]


def commit() -> str | None:
    """Returns the commit of this folder, with a + if files differ from it, or None without git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or None
