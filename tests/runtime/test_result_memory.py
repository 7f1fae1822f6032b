"""The memory of a large result is reused after the result is freed, and the unused memory is bounded."""

from __future__ import annotations

import gc
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import lnrnn
from lnrnn import _core
from networks import run_python

try:
    from numpy._core.multiarray import get_handler_name
except ImportError:  # NumPy 1
    from numpy.core.multiarray import get_handler_name

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere results come from NumPy's own allocator"
)

MiB = 1 << 20
KEPT = 32  # LNRNN_CACHED_BLOCKS of tuning.h
ROWS = 2048  # of 1024 float32: 8 MiB


def rows(value, n=ROWS):
    return np.full((n, 1024), value, np.float32)


def shifted(x, by):
    """Returns a large result of a layer norm whose values are all `by`."""
    return lnrnn.layer_norm(x, 1024, None, np.full(1024, by, np.float32))


def unwritten(size):
    """Returns a result of this many bytes, to whose memory pages nothing was written."""
    return _core.empty_like(np.broadcast_to(np.int8(0), (size,)))


def mapped():
    """Returns the size of the process's address space in bytes."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def test_only_large_results_have_the_handler():
    x = rows(1)
    _, _, tape = lnrnn.RNN(1024, 8, seed=0).forward_train(x[:, None])
    wide, *_ = lnrnn.RNN(8, 1024, seed=0).forward_train(x[:128, None, :8])
    calls = [
        tape.x,
        wide,
        lnrnn.layer_norm(x, 1024),
        lnrnn.rms_norm(x, 1024),
        lnrnn.layer_norm_backward(x, x, 1024)[0],
        lnrnn.tanh(x),
        lnrnn.batch_norm(x, np.zeros(1024), np.ones(1024)),
        lnrnn.batch_norm_backward(x, x)[0],
    ]
    assert [get_handler_name(y) for y in calls] == ["lnrnn"] * len(calls)
    theirs = get_handler_name()
    assert theirs != "lnrnn"
    assert get_handler_name(lnrnn.layer_norm(x[:8], 1024)) == theirs
    assert get_handler_name(np.empty_like(x)) == theirs
    assert all(y.flags.owndata and y.base is None for y in calls)


def test_memory_is_reused():
    x = rows(1)
    y = shifted(x, 1)
    place = y.ctypes.data
    del y
    held = [shifted(x, 2) for _ in range(KEPT)]  # lnrnn keeps KEPT blocks, so one has the old memory
    assert place in {y.ctypes.data for y in held}


def test_a_view_keeps_its_memory():
    x = rows(1)
    view = shifted(x, 3)[5:700].T
    others = [shifted(x, by) for by in range(8)]
    assert np.all(view == 3)
    assert all(np.all(y == by) for by, y in enumerate(others))


@pytest.mark.parametrize("n", [64, 1000, ROWS + 1, 4 * ROWS])
def test_a_result_can_be_resized(n):
    y = shifted(rows(1), 4)
    y.resize((n, 1024), refcheck=False)  # NumPy changes the size of the memory, and fills it with 0
    assert np.all(y[:ROWS] == 4) and not np.any(y[ROWS:])


def test_many_threads_allocate_and_free():
    x = [rows(1, n) for n in (ROWS, ROWS, ROWS // 2 + 7, 3 * ROWS // 2)]

    def work(seed):
        rng = np.random.default_rng(seed)
        held = []
        for by in range(24):
            held.append((by + 100 * seed, shifted(x[rng.integers(4)], by + 100 * seed)))
            if len(held) > 3:
                by, y = held.pop(rng.integers(4))
                if not np.all(y == by):
                    return False
        return all(np.all(y == by) for by, y in held)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_at_most_32_blocks_are_kept():
    for y in [unwritten(16 * MiB) for _ in range(KEPT)]:
        del y  # all memory that lnrnn keeps is now in use
    gc.collect()  # so that memory of earlier tests is not freed meanwhile
    before = mapped()
    held = [unwritten(16 * MiB) for _ in range(KEPT + 8)]
    assert mapped() >= before + 8 * 16 * MiB
    held.clear()
    assert mapped() <= before + 2 * MiB * KEPT  # a result may begin up to a huge page after its block


def test_at_most_1_gib_is_kept():
    held = [unwritten(400 * MiB) for _ in range(2)]
    held.clear()
    before = mapped()  # two large blocks and small ones are kept
    held = [unwritten(400 * MiB) for _ in range(4)]
    held.clear()
    assert mapped() - before < 50 * MiB  # two of the four are kept
    y = unwritten(1040 * MiB)
    between = mapped()
    del y
    assert mapped() <= between - 1040 * MiB
    held = [unwritten(900 * MiB)]
    held.clear()  # replaces the two
    assert mapped() <= before + 150 * MiB


def test_the_younger_of_two_large_blocks_is_kept():
    older, younger = unwritten(600 * MiB), unwritten(600 * MiB)
    place, before = younger.ctypes.data, mapped()
    del older
    del younger
    between = mapped()
    assert between <= before - 600 * MiB
    again = unwritten(600 * MiB)
    assert again.ctypes.data == place and mapped() < between + 50 * MiB


def test_a_small_result_does_not_use_a_large_block():
    large = unwritten(1 << 30)
    place = large.ctypes.data
    del large  # now only this block is kept
    small = unwritten(600 * MiB)
    assert small.ctypes.data != place
    assert unwritten(900 * MiB).ctypes.data == place


def test_kept_blocks_are_marked_as_free_for_the_kernel():
    def lazily_free():
        with open("/proc/self/smaps_rollup") as f:
            return sum(int(line.split()[1]) << 10 for line in f if line.startswith("LazyFree"))

    y = shifted(rows(1, 4 * ROWS), 1)
    before = lazily_free()
    del y
    assert lazily_free() >= before + 24 * MiB  # of 32 MiB: the kernel may not mark all pages


@pytest.mark.skipif(
    not os.path.exists("/sys/kernel/mm/transparent_hugepage"), reason="this kernel has no huge pages"
)
def test_large_weights_are_in_huge_pages():
    """In another process, because malloc may reuse memory for which huge pages were requested."""
    requested = run_python("""
import numpy, lnrnn
def requested():
    size = total = 0
    for line in open("/proc/self/smaps"):
        size = int(line.split()[1]) << 10 if line.startswith("Size:") else size
        total += size * (line.startswith("VmFlags:") and " hg" in line)
    return total
rnn, before = lnrnn.LSTM(512, 512), requested()
rnn(numpy.zeros((1, 1, 512), numpy.float32))
print(requested() - before - rnn.packed_bytes)
""")
    assert int(requested.stdout) >= 0, requested.stderr


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_parent_and_child_have_their_own_memory():
    x = rows(1)
    shifted(x, 1)
    kept = shifted(x, 5)
    child = os.fork()
    if not child:
        y = shifted(x, 6)
        os._exit(0 if np.all(y == 6) and np.all(kept == 5) else 1)
    y = shifted(x, 7)
    assert os.waitpid(child, 0)[1] == 0
    assert np.all(y == 7) and np.all(kept == 5)


def test_a_result_without_memory_is_a_memory_error():
    with pytest.raises(MemoryError):
        unwritten(1 << 60)
    assert get_handler_name() != "lnrnn"


class TooLarge:
    def __array__(self, dtype=None, copy=None):
        raise MemoryError("no room")


def test_an_argument_without_memory_is_a_memory_error():
    rnn = lnrnn.RNN(3, 5, seed=0)
    for call in (
        lambda: lnrnn.layer_norm(TooLarge(), 3),
        lambda: rnn(TooLarge()),
        lambda: rnn(np.zeros((4, 2, 3)), lengths=TooLarge()),
        lambda: setattr(rnn, "weight_hh_l0", TooLarge()),
        lambda: rnn.stream()(TooLarge()),
    ):
        with pytest.raises(MemoryError, match="no room"):
            call()
