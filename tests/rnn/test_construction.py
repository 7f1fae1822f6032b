"""Making a network: its numbers, its memory, and sizes that are refused before any is taken."""

from __future__ import annotations

import json
import os
import tracemalloc

import numpy as np
import pytest

import lnrnn
from networks import CELLS, network, said


def peak(make):
    """What `make` gives, and how many bytes were in use at most while it ran."""
    tracemalloc.start()
    try:
        made = make()
        return made, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("norm", ["layer", "batch", None])
def test_the_numbers_of_a_seed(cell, norm):
    """All that is drawn comes from one generator, in the order of the parameters, uniform in +-1/sqrt(H)."""
    rnn = getattr(lnrnn, cell)(301, 149, 2, norm=norm, bidirectional=True, seed=7)
    rng = np.random.default_rng(7)
    for name, value in rnn.parameters().items():
        if name.startswith("weight") or norm is None:
            want = rng.uniform(-(149**-0.5), 149**-0.5, value.shape).astype(np.float32)
            np.testing.assert_array_equal(value, want, err_msg=name)


@pytest.mark.parametrize("cell", CELLS)
def test_making_takes_the_memory_of_the_weights(cell):
    rnn, most = peak(lambda: getattr(lnrnn, cell)(1024, 1024, seed=0))
    weights = sum(value.nbytes for value in rnn.parameters().values())
    assert weights <= most < 1.1 * weights


@pytest.mark.parametrize(
    "cell, inputs, hidden",
    [("RNN", 2**20, 2**20), ("LSTM", 2**19, 2**19), ("LSTM", 2**20, 2**18), ("GRU", 2**10, 605_395)],
)
def test_the_largest_weights(cell, inputs, hidden):
    """2**40 elements are allowed, one unit more is not, and it is said before memory is taken. (A norm that
    is none is looked at after the sizes, so no matrix is made here.)"""
    gates = {"RNN": 1, "LSTM": 4, "GRU": 3}[cell]
    made = getattr(lnrnn, cell)
    assert gates * hidden * max(inputs, hidden) <= 2**40 < gates * (hidden + 1) * max(inputs, hidden + 1)
    with pytest.raises(ValueError, match="norm must be"):
        made(inputs, hidden, norm="none of these")
    for norm in ("none of these", "layer", "batch", None):
        with pytest.raises(ValueError, match=r"^hidden_size must be .*2\*\*40 elements"):
            made(inputs, hidden + 1, norm=norm)
    with pytest.raises(ValueError, match=r"2\*\*40 elements"):
        made(2**31 - 1, 2**31 - 1)


@pytest.mark.parametrize("known", [0, 3])
@pytest.mark.parametrize("room", [4, 10**6, 2**31 - 1])
def test_a_file_that_claims_more_steps_than_it_has(tmp_path, known, room):
    """max_steps of the configuration is compared with the tensors before statistics of that length are
    made."""
    pytest.importorskip("safetensors")
    path = tmp_path / "m.safetensors"
    network(3, 5, norm="batch", trained=known).save(path)
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    config = json.loads(header["__metadata__"]["config"])
    config["norm"]["max_steps"] = room
    header["__metadata__"]["config"] = json.dumps(config)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size :])

    def load():
        want = rf"'count_l0' is \({known},\) I64, its configuration says \({room},\) I64"
        with pytest.raises(ValueError, match=want):
            lnrnn.load(path)

    assert peak(load)[1] < 300_000


FORKS = """
import os, sys, threading, warnings, lnrnn
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
lnrnn.RNN(1, 1, norm=None)
sys.setswitchinterval(1e-5)
def make():
    while True:
        lnrnn.RNN(1, 1, norm=None)
for _ in range(3):
    threading.Thread(target=make, daemon=True).start()
for _ in range(40):
    child = os.fork()
    if not child:
        lnrnn.RNN(1, 1, norm=None)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print("all made", flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_makes_models_whatever_the_parent_s_threads_were_making():
    """A lock that another thread holds at the fork would stay locked in the child."""
    assert said(FORKS) == "all made"
