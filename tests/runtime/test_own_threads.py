"""threads= of a call, and num_threads, which is its caller's alone."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import lnrnn
from helpers import several_threads, using_threads
from networks import network, normal


def test_it_holds_inside_and_nests():
    with using_threads(3):
        with lnrnn.num_threads(2):
            assert lnrnn.get_num_threads() == 2
            with lnrnn.num_threads(5):
                assert lnrnn.get_num_threads() == 5
                lnrnn.set_num_threads(4)
                assert lnrnn.get_num_threads() == 5
            assert lnrnn.get_num_threads() == 2
        assert lnrnn.get_num_threads() == 4
        with pytest.raises(KeyError), lnrnn.num_threads(2):
            raise KeyError
        assert lnrnn.get_num_threads() == 4


def test_it_is_the_caller_s_alone():
    """Another thread, and another task of one thread, see nothing of it."""
    seen = {}
    with using_threads(3), lnrnn.num_threads(2):
        thread = threading.Thread(target=lambda: seen.update(thread=lnrnn.get_num_threads()))
        thread.start()
        thread.join()

        async def own(n, turns):
            with lnrnn.num_threads(n):
                for _ in range(turns):
                    await asyncio.sleep(0)
                    assert lnrnn.get_num_threads() == n

        async def both():
            await asyncio.gather(own(1, 5), own(4, 7))
            return lnrnn.get_num_threads()

        assert asyncio.run(both()) == 2
    assert seen == {"thread": 3}


@pytest.mark.parametrize(
    "error, n", [(ValueError, 0), (ValueError, 1025), (TypeError, 2.0), (TypeError, None), (TypeError, True)]
)
def test_wrong_numbers_are_refused(error, n):
    with pytest.raises(error, match="n must be"), lnrnn.num_threads(n):
        pass
    rnn = network(3, 5)
    if n is not None:
        for call in (
            lambda: rnn(np.zeros((2, 3)), threads=n),
            lambda: rnn.stream()(np.zeros(3, np.float32), threads=n),
            lambda: rnn.ragged(np.zeros((2, 3)), [0, 2], threads=n),
        ):
            with pytest.raises(error, match="threads must be"):
                call()


# (threads of the process, of num_threads, of the call) -> those that work
ORDER = [(1, None, 2, 2), (2, None, 1, 1), (1, 2, None, 2), (2, 1, None, 1), (1, 1, 2, 2), (2, 2, 1, 1)]


@pytest.mark.parametrize("everybody, own, call, had", ORDER)
def test_the_nearest_one_counts(rng, everybody, own, call, had):
    rnn = network(8, 200, num_layers=2)
    x = normal(rng, 10, 140, 8)
    flat = np.ascontiguousarray(x.swapaxes(0, 1)).reshape(-1, 8)
    stream = rnn.stream(140)
    calls = {
        "call": lambda: rnn(x, threads=call)[0],
        "ragged": lambda: rnn.ragged(flat, np.arange(0, len(flat) + 1, 10), threads=call)[0],
        "step": lambda: stream(x[0], threads=call),
        "chunk": lambda: stream(x, threads=call),
    }
    for name, one in calls.items():
        with several_threads(everybody, "either", had=had):
            if own is None:
                one()
            else:
                with lnrnn.num_threads(own):
                    one()
        assert name


def test_norms_go_by_it(rng):
    x = normal(rng, 3000, 200)
    with several_threads(1, had=2), lnrnn.num_threads(2):
        want = lnrnn.layer_norm(x, 200)
    with using_threads(2), lnrnn.num_threads(1):
        np.testing.assert_array_equal(lnrnn.layer_norm(x, 200), want)
