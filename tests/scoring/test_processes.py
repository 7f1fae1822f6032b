"""The processes of `lnrnn score --workers` compute every row group once, even if processes die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from lnrnn.scoring.engines import on_processes
from lnrnn.scoring.job import Task

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills processes")


class Folder(str):
    """Stands in for a Job."""

    input = "in.parquet"


def tasks(folder, indices):
    return [Task(Folder(folder), index) for index in indices]


def square(folder, index):
    return index, index * index


def note_and_wait(folder, index):
    """Writes the id of its process to a file in the folder. If the index is odd, the function takes a
    second."""
    part = Path(folder) / f"{index}.part"
    part.write_text(str(os.getpid()))
    part.rename(Path(folder) / f"{index}.pid")
    time.sleep(index % 2)
    return index, None


def refuse_three(folder, index):
    if index == 3:
        raise LookupError("no such thing")
    return index, None


def kill_who_is_idle(folder, index):
    """The task with index 1 waits until the task 0 is done. Then it kills the process that computed task
    0.
    """
    done = Path(folder) / "0.pid"
    if index == 0:
        note_and_wait(folder, index)
    while not done.exists():
        time.sleep(0.01)
    if index == 1:
        time.sleep(0.2)
        os.kill(int(done.read_text()), signal.SIGKILL)
        time.sleep(0.2)
    return index, None


def die_once(folder, index):
    """The process of every third index dies once, immediately or after some milliseconds."""
    try:
        (Path(folder) / f"{index}.first").touch(exist_ok=False)
    except FileExistsError:
        return index, None
    if index % 3 == 0:
        time.sleep(index / 1000)
        os.kill(os.getpid(), signal.SIGKILL)
    return index, None


def die_in_turn(folder, index):
    """The process of index 0 dies twice, and then that of index 1 once."""
    times = len(list(Path(folder).glob(f"{index}.*")))
    if times < 2 - index:
        (Path(folder) / f"{index}.{times}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return index, None


def die_at_three(folder, index):
    if index == 3:
        if len(list(Path(folder).glob("attempt-*"))) > 5:
            raise LookupError("it is computed for ever")
        Path(folder, f"attempt-{os.getpid()}").touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGKILL)
    return index, None


@pytest.fixture(autouse=True)
def children():
    """Returns a function that lists the child processes of this test. At the end there must be none."""
    before = set(multiprocessing.active_children())

    def own():
        return {child.pid for child in set(multiprocessing.active_children()) - before}

    yield own
    assert not own()


@pytest.mark.parametrize("count, workers", [(0, 2), (3, 3), (9, 2)])
def test_every_index_is_computed_once(tmp_path, count, workers):
    got = sorted(on_processes(square, tasks(tmp_path, range(count)), workers))
    assert got == [(k, k * k) for k in range(count)]


def test_an_exception_of_a_worker_is_raised_in_the_caller(tmp_path):
    with pytest.raises(LookupError, match="no such thing") as raised:
        list(on_processes(refuse_three, tasks(tmp_path, range(9)), 2))
    assert "in refuse_three" in str(raised.value.__cause__)


def test_closing_the_iterator_ends_the_processes(tmp_path, children):
    with closing(on_processes(note_and_wait, tasks(tmp_path, range(1, 100)), 2)) as result:
        next(result)
        at_work = {int(path.read_text()) for path in tmp_path.glob("*.pid")}
        assert children() >= at_work
    assert not children()


def test_an_idle_process_may_die(tmp_path):
    assert sorted(on_processes(kill_who_is_idle, tasks(tmp_path, range(2)), 3)) == [(0, None), (1, None)]


def test_an_index_that_kills_every_process_is_named(tmp_path):
    done, message = [], r"^in.parquet, row group 3: the process .* died 3 times \(was there memory"
    with pytest.raises(ChildProcessError, match=message):
        for index, _ in on_processes(die_at_three, tasks(tmp_path, range(12)), 2):
            done.append(index)
    assert len(list(tmp_path.glob("attempt-*"))) == 3
    assert {0, 1, 2} <= set(done) and 3 not in done


@pytest.mark.parametrize("workers", [3])
def test_processes_that_die_are_replaced(tmp_path, workers):
    assert sorted(on_processes(die_once, tasks(tmp_path, range(8)), workers)) == [(k, None) for k in range(8)]


def test_a_death_counts_only_for_the_index_in_work(tmp_path):
    """If a process dies, its death does not count for the index that it would have computed next."""
    assert sorted(on_processes(die_in_turn, tasks(tmp_path, range(3)), 1)) == [(k, None) for k in range(3)]
