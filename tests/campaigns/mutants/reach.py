"""A plugin of pytest that records which functions of lnrnn each test calls, by marks in the file
LNRNN_REACHED.

It writes the record to LNRNN_REACH_REPORT. Calls by imports and fixtures count for all tests of a file.
"""

import json
import os
import time
from pathlib import Path

import pytest

CASES = 4  # how many cases of each parametrised test run
MARKS = Path(os.environ["LNRNN_REACHED"])
FOUND = {"shared": set(), "tests": {}, "failed": []}


def take():
    """Returns the numbers of the marks, and clears them."""
    data = MARKS.read_bytes()
    with MARKS.open("r+b") as file:  # do not replace the file, because it is mapped
        file.write(bytes(len(data)))
    return {number for number, mark in enumerate(data) if mark}


def test_of(item):
    return FOUND["tests"][item.nodeid.partition("[")[0]]


def pytest_collection_modifyitems(items):
    """Keeps a few cases of each test, because they call nearly all functions that the test calls."""
    tests = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    items.clear()
    for name, cases in tests.items():
        kept = cases[:: max(1, len(cases) // CASES)]
        FOUND["tests"][name] = {"seconds": 0, "functions": set(), "weight": len(cases) / len(kept)}
        items += kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    start = time.perf_counter()
    result = yield
    test_of(item)["seconds"] += (time.perf_counter() - start) * test_of(item)["weight"]
    FOUND["shared"] |= take()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    FOUND["shared"] |= take()
    try:
        return (yield)
    finally:
        test_of(pyfuncitem)["functions"] |= take()


def pytest_runtest_logreport(report):
    if report.failed:
        FOUND["failed"].append(report.nodeid)


def pytest_sessionfinish():
    Path(os.environ["LNRNN_REACH_REPORT"]).write_text(json.dumps(FOUND, default=sorted))
