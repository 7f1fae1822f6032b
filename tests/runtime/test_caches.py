"""The sizes of the machine's caches decide how results are computed, but change no bit."""

import platform
from pathlib import Path

import pytest

import lnrnn
from configurations import configurations, digest, of_network
from helpers import using_caches, using_threads

KIB, MIB = 2**10, 2**20
CPUS = Path("/sys/devices/system/cpu")
# With the smallest caches, weights are prefetched, chunks have one step, and all outputs are written by
# non-temporal stores. With the largest caches, none of this happens. The caches in the middle are those of
# a small CPU.
SIZES = [(KIB, 4 * KIB, 4 * KIB), (32 * KIB, 256 * KIB, 2 * MIB), (4 * MIB, 128 * MIB, 2048 * MIB)]
# The arguments of a large network, whose units two threads divide, have a hidden size of at least 400.
LARGE = [each for each in configurations() if each[0] is of_network and each[1][1][1] >= 400]
SMALL = [each for each in configurations() if each not in LARGE][::31]


def test_cpu_info_has_cache_sizes():
    caches = lnrnn.cpu_info()["caches"]
    assert list(caches) == ["l1", "l2", "l3"]
    assert 8 * KIB <= caches["l1"] <= caches["l2"] <= caches["l3"]


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not list(CPUS.glob("cpu*/cache/index*/size")), reason="no such files"
)
def test_cache_sizes_are_those_of_linux():
    """The sizes equal those of the data caches of at least one core; cores may differ."""
    known: dict[str, set[int]] = {"1": set(), "2": set(), "3": set()}
    for cache in CPUS.glob("cpu*/cache/index*"):
        level, kind, size = ((cache / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction" and level in known:
            known[level].add(int(size.removesuffix("K")) * KIB)
    for found, sizes in zip(lnrnn.cpu_info()["caches"].values(), known.values(), strict=True):
        assert not sizes or found in sizes


@pytest.mark.parametrize("threads, chosen", [(1, SMALL), (2, LARGE)], ids=["small", "large"])
def test_no_result_depends_on_cache_sizes(vectors, threads, chosen):
    assert chosen
    with using_threads(threads):
        for function, arguments in chosen:
            found = set()
            for sizes in SIZES:
                with using_caches(sizes):
                    found.add(digest(function(*arguments)))
            assert len(found) == 1, (function.__name__, arguments)
