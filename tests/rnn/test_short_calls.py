"""Calls with little work go directly to C, with the same bits, errors and arrays as other calls."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

import lnrnn
from helpers import Kind
from lnrnn.rnn import engine, training
from networks import network, normal, run_python, same

D, H = 5, 17


def twice(array):
    """Returns the same numbers as float64, for which calls do not go directly to C."""
    return None if array is None else np.array(array, np.float64)


def test_an_array_of_a_subclass_gives_plain_arrays(rng):
    rnn, x = network(D, H), normal(rng, 4, 3, D)
    y = rnn(x.view(Kind))[0]
    assert type(y) is np.ndarray
    same(y, rnn(x)[0])


def way_of(kind, values):
    """Returns integers or booleans in another container."""
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](values)
    if kind == "every other one":
        return np.repeat(values, 2)[::2]
    if kind == "tensor":
        return pytest.importorskip("torch").tensor(values, dtype=pytest.importorskip("torch").int32)
    return np.array(values, kind)


@pytest.mark.parametrize(
    "kind",
    ["int64", "int32", "int8", "uint8", "uint32", ">i8", "<i2", "list", "tuple", "every other one", "tensor"],
)
def test_integers_of_every_kind_go_directly_to_c(rng, monkeypatch, kind):
    """Tests lengths and a stream's rows, because ONNX and TensorFlow have int32, and users write lists."""
    rnn = network(D, H, cell="GRU")
    x, lengths = normal(rng, 4, 3, D), [4, 0, 3]
    want, stepped = rnn(twice(x), None, lengths)[0], rnn.stream(5)(twice(x[0]), [4, 0, 3])

    def long_way(*_):
        raise AssertionError("the long way")

    for module in (engine, training):
        monkeypatch.setattr(module, "checked_batch", long_way)
    monkeypatch.setattr(lnrnn.Stream, "_checked", long_way)
    given = way_of(kind, lengths)
    same(rnn(x, None, given)[0], want)
    same(rnn.forward_train(x, None, given)[0], want)
    same(rnn.stream(5)(x[0], given), stepped)
    same(rnn.stream(5)(x[0], given, resets=[True, False, True]), stepped)
    same(rnn.stream(5)(x[0, 1], way_of(kind, [0]), resets=(True,)), stepped[1])


NO_MEMORY = """
import ctypes, resource, sys
import numpy as np
import lnrnn

mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
if mallinfo is None:
    sys.exit("no mallinfo2")
FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
fields = [(name, ctypes.c_size_t) for name in FIELDS]
mallinfo.restype = type("Info", (ctypes.Structure,), {"_fields_": fields})
lnrnn.set_num_threads(1)
rnn, x = lnrnn.RNN(4, 4000, norm=None, seed=1), np.zeros((1, 1, 4), np.float32)  # 64 MB of weights
with open("/proc/self/statm") as f:
    size = int(f.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (32 << 20), resource.RLIM_INFINITY))
for calls in (20, 200):
    before = mallinfo().uordblks
    for _ in range(calls):
        try:
            rnn(x)
        except MemoryError:
            continue
        sys.exit("there is memory")
assert (mallinfo().uordblks - before) / calls < 100
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif("san" in os.environ.get("LD_PRELOAD", ""), reason="sanitizers have their own allocator")
def test_a_call_without_memory_for_packed_weights_leaks_nothing():
    done = run_python(NO_MEMORY, LNRNN_TEAM=None)
    if done.stderr.strip() in ("no mallinfo2", "there is memory"):
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
