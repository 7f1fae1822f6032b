"""Tests that cases of every kind pass, and that the campaign reports planted faults."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
    "wrong": ("judge.true('call', number_of(rng) < 2, 'a wrong result')", "AssertionError: a wrong result"),
    "crash": ("import ctypes; ctypes.string_at(0)", "exit -11"),
    "memory": ("judge.true('call', len(bytearray(4 << 30)) > 0, '')", "MemoryError"),
    "endless": ("while True: pass", "exit -14"),
    "warning": ("import warnings; warnings.warn('a planted warning')", "UserWarning: a planted warning"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_reported(tmp_path, name):
    """The report has the command that repeats the case. The first fault is in one of two workers."""
    code, message = FAULTS[name]
    body = f"    if rng.integers(4) == 3:\n        {code}\n    judge.true('call', True, '')\n"
    text = f"def number_of(rng):\n    return 2\n\n\ndef case(rng, judge):\n{body}"
    (tmp_path / "fuzz_faulty.py").write_text(text)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])

    def run(*words):
        command = [sys.executable, run_fuzz.RUN, "fuzz", "--seed", "3", "--seconds", "1", "--kinds", "faulty"]
        return subprocess.run(
            [*command, "--folder", tmp_path, *words], capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    done = run("--workers", "2") if name == "wrong" else run("--workers", "1", "--patience", "2")
    assert done.returncode == 1 and message in done.stdout + done.stderr
    case = re.search(r"again: .*run.py fuzz .*--case (faulty:[34]:\d+)", done.stdout)[1]
    if name == "wrong":
        assert message in run("--case", case).stderr


def test_a_network_that_the_proof_refuses_is_a_fault_unless_its_state_is_computed_from_x(monkeypatch):
    fuzz_onnx = pytest.importorskip("fuzz_onnx")
    pytest.importorskip("onnxruntime")  # which runs the parts
    cases = [case for cases in fuzz_onnx.GRAPHS for case in cases]
    refused = [
        case.model().SerializeToString()
        for case in cases
        if " step" in case.expected and "wrong" in case.expected
    ]
    for raw in refused:
        fuzz_onnx.read(judge := Judge(), raw, check=True)
        assert judge.counts == {"damaged onnx, refused": 1}
    right = next(case for case in cases if case.expected == "LSTM step").model().SerializeToString()
    monkeypatch.setattr("lnrnn.recognise.proof.compare", lambda *_: (1.0, 0.0))
    with pytest.raises(AssertionError, match="does not reproduce part"):
        fuzz_onnx.read(Judge(), right, check=True)
    assert len(refused) == 3


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
