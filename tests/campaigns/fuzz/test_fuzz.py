"""Tests that cases of every kind pass, and that the campaign reports planted faults."""

from __future__ import annotations

import os
import re
import tempfile

import numpy as np
import pytest

import fuzz_cases
import run_fuzz
from fuzz_judge import Judge

KINDS = sorted(set(fuzz_cases.TURN))


@pytest.fixture(autouse=True)
def restored(tmp_path, monkeypatch):
    """Writes files to the test's folder, and restores threads and instruction set after the test."""
    from lnrnn import _core, cpu_info, set_num_threads

    before = cpu_info()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(fuzz_cases, "_in_use", "")
    yield
    _core.use_isa(before["isa"])
    set_num_threads(before["num_threads"])


@pytest.mark.parametrize("kind", KINDS)
def test_cases_of_every_kind_pass(kind):
    """Each kind runs on every instruction set."""
    judge = Judge()
    for number in range(0, fuzz_cases.BLOCK * len(fuzz_cases.ISAS), fuzz_cases.BLOCK // 4):
        fuzz_cases.run(kind, 0, number, judge)
    assert judge.counts.total() > 50


def test_a_case_does_not_depend_on_earlier_cases():
    counts = []
    for others in (0, 3):
        judge = Judge()
        for number in range(others):
            fuzz_cases.run("norms", 1, number, Judge())
        fuzz_cases.run("networks", 5, 7, judge)
        counts.append((judge.counts, judge.nearest))
    assert counts[0] == counts[1] and counts[0][0]


# {fault: (body of a case, part of the report)}
FAULTS = {
    "wrong": ("judge.true('call', number_of(rng) < 2, 'a wrong result')", "a wrong result"),
    "crash": ("import ctypes; ctypes.string_at(0)", "status -11"),
    "exit": ("import os; os._exit(1)", "status 1"),
    "memory": ("judge.true('call', len(bytearray(4 << 30)) > 0, '')", "MemoryError"),
    "endless": ("while True: pass", "status -9"),
    "warning": ("import warnings; warnings.warn('a planted warning')", "a planted warning"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_reported(tmp_path, monkeypatch, name):
    """The report has the command that runs the case again. The other cases run too."""
    code, message = FAULTS[name]
    body = f"    if rng.integers(4) == 3:\n        {code}\n    judge.true('call', True, '')\n"
    text = f"def number_of(rng):\n    return 2\n\n\ndef case(rng, judge):\n{body}"
    (tmp_path / "fuzz_faulty.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    if name == "endless":
        monkeypatch.setattr(run_fuzz, "HANG", 3)
    run = run_fuzz.Campaign(3, 1.0, 1, ("faulty",), str(tmp_path))
    run.run()
    assert run.failures and message in run.failures[0] and run.counts["call"] > 0
    kind, seed, number = re.search(r"run.py fuzz --case (\S+)", run.failures[0])[1].split(":")
    assert (kind, seed) == ("faulty", "3")
    if name == "wrong":
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(AssertionError, match=message):
            fuzz_cases.run(kind, int(seed), int(number), Judge())


def test_the_judge_notices_one_bit():
    judge, one = Judge(), np.ones(3, np.float32)
    judge.same("call", one, one.copy(), "")
    for other in (np.nextafter(one, 2), one.astype(float), one[:2], np.array([1, np.nan, 1], np.float32)):
        with pytest.raises(AssertionError):
            judge.same("call", one, other, "")
    zero = np.zeros(3, np.float32)
    with pytest.raises(AssertionError):
        judge.same("call", zero, -zero, "")
    with pytest.raises(AssertionError):
        judge.near("call", one, one + 1e-6, 1e-7, "")
    judge.near("call", one, one.astype(float) + 1e-8, 1e-7, "")
    assert judge.counts["call"] == 8 and judge.nearest["call"] > 0.09
