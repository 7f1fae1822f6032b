"""Jobs side by side: their order, their threads, and what happens when one fails."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import lnrnn
from lnrnn.demos import parallel
from lnrnn.demos.parallel import Tally, one_thread, side_by_side


@pytest.fixture
def two_threads():
    threads = lnrnn.get_num_threads()
    lnrnn.set_num_threads(2)
    yield
    lnrnn.set_num_threads(threads)


def test_values_come_in_the_order_of_the_items(two_threads):
    together = threading.Barrier(2, timeout=30)  # broken unless two jobs run at a time

    def job(item):
        together.wait()
        return item**2, lnrnn.get_num_threads()

    with one_thread():
        assert side_by_side(job, range(6)) == [(item**2, 1) for item in range(6)]
    assert lnrnn.get_num_threads() == 2


def test_one_job_at_a_time_where_the_caller_allows_one_thread(two_threads):
    lnrnn.set_num_threads(1)
    at_work = []

    def job(item):
        at_work.append(item)
        assert at_work == [item]
        at_work.remove(item)

    with one_thread():
        side_by_side(job, range(50))


def test_a_job_that_fails_stops_those_not_begun(two_threads):
    begun = []

    def job(item):
        begun.append(item)
        if item == 1:
            raise ValueError("job 1")
        return threading.Event().wait(0.05)

    with pytest.raises(ValueError, match="job 1"), one_thread():
        side_by_side(job, range(100))
    assert len(begun) < 50 and lnrnn.get_num_threads() == 2


def test_a_tally_counts_what_all_threads_did(two_threads):
    told = []
    tally = Tally(lambda done, text: told.append((done, text)), 200)
    with one_thread():
        side_by_side(lambda item: tally("odd" if item % 2 else "even"), range(200))
    assert [done for done, _ in told] == [(count + 1) / 200 for count in range(200)]
    assert sorted(text for _, text in told) == ["even"] * 100 + ["odd"] * 100


def test_networks_side_by_side_are_those_one_after_the_other(two_threads):
    x = np.random.default_rng(0).standard_normal((40, 5, 7), dtype=np.float32)

    def job(seed):
        rnn = lnrnn.LSTM(7, 24, seed=seed)
        y, _, tape = rnn.forward_train(x)
        return rnn.backward(tape, y)[2]["weight_hh_l0"].tobytes()

    with one_thread():
        assert side_by_side(job, range(20)) == [job(seed) for seed in range(20)]


def test_one_thread_within_one_thread_leaves_the_jobs_theirs():
    before = lnrnn.get_num_threads()
    lnrnn.set_num_threads(2)
    try:
        with parallel.one_thread(), parallel.one_thread():
            both = threading.Barrier(2, timeout=20)  # is passed by two jobs at a time alone
            assert sorted(parallel.side_by_side(lambda _: both.wait(), range(2))) == [0, 1]
    finally:
        lnrnn.set_num_threads(before)
