"""lnrnn.wasm in Node: its networks have the bits of the set sse2, and the tests of its package pass."""

from __future__ import annotations

import base64
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from cases import is_full
from test_conformance import VARIANTS, compare, each_variant, some_settings

from c_library import joined
from compilers import ROOT, runs_wasm
from helpers import using_isa
from networks import only_forward


@pytest.fixture(scope="module")
def package():
    if not runs_wasm():
        pytest.skip("needs the package ziglang, and Node")
    subprocess.run([sys.executable, str(ROOT / "pyx/wasm.py")], check=True)


def test_the_tests_of_the_package_pass(package):
    """Node 20 also takes the folder, in which Node 24 finds no tests, and says that all pass."""
    tests = ROOT / "examples/web/lnrnn.test.mjs"
    ran = subprocess.run(["node", "--test", str(tests)], capture_output=True, text=True)
    passed = re.search(r"^\S+ pass (\d+)$", ran.stdout, re.M)
    assert ran.returncode == 0 and int(passed[1]) == tests.read_text().count('\ntest("'), ran.stdout[-5000:]


def sent(array):
    return None if array is None else base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


@pytest.fixture(scope="module")
def node(package):
    program = str(ROOT / "tests/conformance/web.mjs")
    with subprocess.Popen(["node", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:

        def ask(case, **options):
            with tempfile.TemporaryDirectory() as folder:
                case.rnn.save(Path(folder, "m"))
                model = Path(folder, "m").read_bytes()
            start = [None, None] if case.start is None else [*joined(case.start), None]
            arrays = dict(model=np.frombuffer(model, np.uint8), x=case.x, h=start[0], c=start[1])
            request = {name: sent(array) for name, array in arrays.items()} | options
            run.stdin.write(json.dumps(request | dict(sequences=case.x.shape[1])) + "\n")
            run.stdin.flush()
            answer = json.loads(run.stdout.readline())
            return {
                k: text and np.frombuffer(base64.b64decode(text), np.float32) for k, text in answer.items()
            }

        yield ask
        run.stdin.close()


def called(node, case):
    resets = None if case.resets is None else sent(case.resets.astype(np.uint8))
    got = node(case, lengths=case.lengths.tolist(), resets=resets)
    lines, batch = case.rnn.num_layers * case.rnn.num_directions, case.x.shape[1]
    ends = [got[k].reshape(lines, batch, -1) for k in "hc" if got[k] is not None]
    if len(case.states) > 2:
        ends = [ends[0], *np.split(ends[1], len(case.states) - 1, axis=2)]
    return got["y"].reshape(case.blank().shape), ends


def streamed(node, case):
    return node(case, stream=True)["y"].reshape(case.blank().shape), None


def is_called(case):
    return case.x.size > 0 and case.x.shape[1] < 70


def is_streamed(case):
    return is_called(case) and only_forward(case.rnn) and case.start is None and is_full(case)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs sse2, which adds in the same order")
@each_variant
def test_networks_have_the_bits_of_sse2(node, variant):
    """WASM_EVERY=1: with every setting of test_conformance.py, and not every sixth."""
    every = int(os.environ.get("WASM_EVERY", "6"))
    with using_isa("sse2"):
        for face, takes in ((called, is_called), (streamed, is_streamed)):
            for setting in some_settings(list(VARIANTS).index(variant), every, variant, takes):
                compare(lambda case, face=face: face(node, case), variant, setting)
