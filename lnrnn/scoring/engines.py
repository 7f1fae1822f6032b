"""Computes the row groups of `lnrnn score`: in this process, in worker processes, with Dask or with Ray.

Each engine yields one Outcome for each row group, in any order, and starts a bounded number of row groups at
a time. If a worker is killed, its row groups are computed again. If TRIES workers die at one row group, the
engine raises ChildProcessError.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

from ..packages import require
from .job import TRIES, Compute, Engine, Outcome, Outcomes, Task, lost


def outcomes(
    engine: Engine, compute: Compute, tasks: Iterable[Task], workers: int, threads: int, address: str | None
) -> Outcomes:
    """Yields compute(task.job, task.index) for every task.

    workers: the number of processes, with `threads` threads each. address: the address of a running Dask
    scheduler or Ray cluster, which then decides the number of processes. None starts a scheduler or cluster
    on this machine and ends it.
    """
    if engine == "dask":
        return on_dask(compute, tasks, workers, address)
    if engine == "ray":
        return on_ray(compute, tasks, workers, threads, address)
    if address is not None:
        raise ValueError(f"--address must be absent with the engine local, got {address!r}")
    if workers > 1:
        return on_processes(compute, tasks, workers)
    return (compute(task.job, task.index) for task in tasks)


def on_dask(compute: Compute, tasks: Iterable[Task], workers: int, address: str | None) -> Outcomes:
    distributed = require("distributed", "the engine dask", "dask")
    with _dask_client(distributed, workers, address) as client:
        futures = distributed.as_completed()
        left = iter(tasks)
        under_way: dict[str, Task] = {}

        def submit(count: int) -> None:
            for task in islice(left, count):
                future = client.submit(compute, task.job, task.index, pure=False)
                under_way[future.key] = task
                futures.add(future)

        # Submit twice as many row groups as run at a time, so that no worker waits for its next one.
        submit(2 * sum(client.nthreads().values()) if address else 2 * workers)
        for future in futures:
            task = under_way.pop(future.key)
            try:
                outcome = future.result()
            except distributed.scheduler.KilledWorker as error:
                # The scheduler counts a worker's death for all tasks of this worker, even for waiting ones.
                hint = "was there memory enough? Another row group, held by the same worker, may be the cause"
                raise lost(task, error.allowed_failures + 1, hint) from None
            future.release()
            submit(1)
            yield outcome


@contextmanager
def _dask_client(distributed: Any, workers: int, address: str | None) -> Iterator[Any]:
    """A context with a client of the scheduler at `address`, or of a new cluster on this machine."""
    dask = require("dask", "the engine dask", "dask")
    with ExitStack() as stack:
        at: Any = address
        if at is None:
            stack.enter_context(dask.config.set({"distributed.scheduler.allowed-failures": TRIES - 1}))
            cluster = distributed.LocalCluster(
                n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
            )
            at = stack.enter_context(cluster)
        yield stack.enter_context(distributed.Client(at))


def on_ray(
    compute: Compute, tasks: Iterable[Task], workers: int, threads: int, address: str | None
) -> Outcomes:
    ray = require("ray", "the engine ray", "ray")
    with _ray_started(ray, workers * threads, address):
        remote = ray.remote(num_cpus=threads, max_retries=TRIES - 1)(compute)
        at_a_time = workers if address is None else max(int(ray.cluster_resources()["CPU"]) // threads, 1)
        left = iter(tasks)
        running: dict[Any, Task] = {}

        def submit(count: int) -> None:
            for task in islice(left, count):
                running[remote.remote(task.job, task.index)] = task

        submit(2 * at_a_time)
        while running:
            (ready,), _ = ray.wait(list(running), num_returns=1)
            task = running.pop(ready)
            try:
                outcome = ray.get(ready)
            except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError):
                raise lost(task) from None
            submit(1)
            yield outcome


@contextmanager
def _ray_started(ray: Any, cpus: int, address: str | None) -> Iterator[None]:
    """A context that uses this process's connection to Ray, or a new connection or cluster until its end."""
    was_there = ray.is_initialized()
    if not was_there:
        # Only numbers and names go through the object store, so the smallest store is enough.
        own = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": 80 * 2**20}
        ray.init(address or "local", log_to_driver=False, logging_level="warning", **({} if address else own))
    try:
        yield
    finally:
        if not was_there:
            ray.shutdown()


def on_processes(compute: Compute, tasks: Iterable[Task], workers: int) -> Outcomes:
    """Yields compute(task.job, task.index) for every task, from worker processes on this machine.

    If a worker dies, a new one computes its row groups. Each worker has its own pipes, because workers that
    share a lock or a queue (ProcessPoolExecutor) may block when one of them is killed.
    """
    more, died = iter(tasks), Counter[Task]()
    left = deque(islice(more, 2 * workers))
    working: dict[Connection, _Worker] = {}
    try:
        while left or any(worker.given for worker in working.values()):
            for _ in range(min(workers - len(working), len(left))):
                worker = _Worker(compute)
                working[worker.outcomes] = worker
            for worker in working.values():
                # Each worker has a second, waiting row group, except near the end, to balance the load.
                while left and len(worker.given) < (2 if len(left) > workers else 1):
                    worker.give(left.popleft())
                    left.extend(islice(more, 1))
            for connection in wait(list(working)):
                worker = working[connection]  # type: ignore[index]
                try:
                    outcome = worker.take()
                except EOFError:
                    del working[worker.outcomes]
                    worker.end()
                    left.extendleft(worker.given[::-1])
                    at_work = worker.given[:1]
                    died.update(at_work)
                    if at_work and died[at_work[0]] == TRIES:
                        raise lost(at_work[0]) from None
                else:
                    yield outcome
    finally:
        for worker in working.values():
            worker.end()


class _Worker:
    """A worker process. outcomes: the pipe for its results. given: its tasks; it computes the first one."""

    def __init__(self, compute: Compute) -> None:
        context = multiprocessing.get_context("spawn")  # fork would copy locks that other threads hold
        tasks, self.tasks = context.Pipe(duplex=False)
        self.outcomes, outcomes = context.Pipe(duplex=False)
        self.given: list[Task] = []
        self.process = context.Process(target=_work, args=(compute, tasks, outcomes), daemon=True)
        with tasks, outcomes:  # close the worker's ends of the pipes in this process
            self.process.start()

    def give(self, task: Task) -> None:
        self.given.append(task)
        with suppress(OSError):  # the worker is dead: `take` raises EOFError
            self.tasks.send(task)

    def take(self) -> Outcome:
        """Returns the next outcome. Raises EOFError if the worker is dead, or the exception of `compute`."""
        try:
            received: tuple[Outcome | None, Exception | None, str] = self.outcomes.recv()
        except OSError:  # pragma: no cover - it died while it sent
            raise EOFError from None
        outcome, error, where = received
        if error is not None:
            raise error from RuntimeError(f"in a worker:\n{where}")
        assert outcome is not None
        self.given.pop(0)
        return outcome

    def end(self) -> None:
        """Kills the worker. The journal removes the worker's unfinished files."""
        self.process.kill()
        self.process.join()
        self.tasks.close()
        self.outcomes.close()


def _work(compute: Compute, tasks: Connection, outcomes: Connection) -> None:
    """Runs the loop of a worker: computes the row groups that it receives, in this order.

    The worker ends when the other end of the pipe `tasks` is closed, which happens if the parent ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the parent ends the workers
    waiting = SimpleQueue[Task]()

    def receive() -> None:
        with suppress(EOFError, OSError):
            while True:
                waiting.put(tasks.recv())
        os._exit(1)

    threading.Thread(target=receive, daemon=True).start()
    while True:
        try:
            task = waiting.get()
            outcome = compute(task.job, task.index)
        except Exception as error:  # pragma: no cover - in a process that is killed, and writes no counts
            outcomes.send((None, error, traceback.format_exc()))
        else:
            outcomes.send((outcome, None, ""))
