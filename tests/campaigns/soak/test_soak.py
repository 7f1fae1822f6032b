"""Tests that the campaign soak reports planted faults."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from run_soak import ENVIRONMENT

from networks import run_python

START = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import argparse, pathlib, run_soak, numpy as np, lnrnn
"""

# {fault: (code that changes lnrnn, (steps, calls), part of the message)}
FAULTS = {
    "a leak of 2 KB a call": (
        "kept = []; old = lnrnn.layer_norm\n"
        "lnrnn.layer_norm = lambda *a, **k: kept.append(bytes(2000)) or old(*a, **k)",
        (0, 30_000),
        "more are resident",
    ),
    "a result of too few digits": (
        "old = lnrnn.rms_norm\nlnrnn.rms_norm = lambda *a, **k: old(*a, **k) * (1 + 2e-3)",
        (0, 6000),
        "times the tolerance",
    ),
    "a network that changes by itself": (
        "nets = run_soak.constant_networks(); run_soak.constant_networks = lambda: nets\n"
        "old = run_soak.fuzz_cases.run\n"
        "def change(*a):\n    old(*a); nets['RNN'].weight_hh_l0 = nets['RNN'].weight_hh_l0 * 1.0001\n"
        "run_soak.fuzz_cases.run = change",
        (0, 1000),
        "other bits",
    ),
    "a stream that loses a bit of its state": (
        "old = lnrnn.LSTM.stream\n"
        "class Lossy:\n"
        "    def __init__(self, s): self.__dict__['s'] = s\n"
        "    def __getattr__(self, name): return getattr(self.s, name)\n"
        "    def __setattr__(self, name, value): setattr(self.s, name, value)\n"
        "    def __call__(self, x, out=None):\n"
        "        if self.s.steps_done == 4000: h, c = self.s.state; self.s.state = np.nextafter(h, 2), c\n"
        "        return self.s(x, out=out)\n"
        "lnrnn.LSTM.stream = lambda self, n=1: Lossy(old(self, n))",
        (6000, 0),
        "steps 4000 to 5000: not the whole sequence's bits",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_reported(fault, tmp_path):
    change, (steps, calls), message = FAULTS[fault]
    if "leak" in fault and not sys.platform.startswith("linux"):
        pytest.skip("memory is measured on Linux only")
    more = f"seed=0, kinds='norms', cases=60, quick=False, folder=pathlib.Path({str(tmp_path)!r})"
    part = "streams" if steps else "calls"
    run = f"run_soak.PARTS[{part!r}](argparse.Namespace({steps=}, {calls=}, {more}))"
    done = run_python(f"{START}{change}\n{run}", **ENVIRONMENT)
    assert done.returncode and message in done.stderr, done.stdout + done.stderr
