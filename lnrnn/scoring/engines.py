"""Where row groups are computed: in this process, in processes of its own, by Dask or by Ray.

Each engine gives an outcome for every row group, in any order, and has few of them under way at a time. A
worker that is killed costs the row groups that it was at, which are computed again; one whose workers die
TRIES times raises ChildProcessError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ..packages import require
from .job import TRIES, Compute, Engine, Job, Outcomes, lost
from .processes import on_processes


def outcomes(
    engine: Engine, compute: Compute, job: Job, indices: Iterable[int], workers: int, address: str | None
) -> Outcomes:
    """compute(job, index) for every index.

    workers: how many processes, each with job.threads threads. address: of a Dask scheduler or Ray cluster
    that runs already, which then says how many there are; None: one is started on this machine, and ended.
    """
    if engine == "dask":
        return on_dask(compute, job, indices, workers, address)
    if engine == "ray":
        return on_ray(compute, job, indices, workers, address)
    if address is not None:
        raise ValueError("--address is for the engines dask and ray")
    if workers > 1:
        return on_processes(compute, job, indices, workers)
    return (compute(job, k) for k in indices)


def on_dask(
    compute: Compute, job: Job, indices: Iterable[int], workers: int, address: str | None
) -> Outcomes:
    distributed = require("distributed", "the engine dask", "dask")
    with _dask_client(distributed, workers, address) as client:
        found = distributed.as_completed()
        numbers = iter(indices)
        under_way: dict[str, int] = {}

        def submit(count: int) -> None:
            for _, index in zip(range(count), numbers, strict=False):
                future = client.submit(compute, job, index, pure=False)
                under_way[future.key] = index
                found.add(future)

        # Twice as many as are computed at a time: a worker that is ready need not wait for the next.
        submit(2 * sum(client.nthreads().values()) if address else 2 * workers)
        for future in found:
            index = under_way.pop(future.key)
            try:
                outcome = future.result()
            except distributed.scheduler.KilledWorker as error:
                # The scheduler counts a death for every task that its worker held, also for waiting ones.
                hint = "was there memory enough? Another row group, held by the same worker, may be the cause"
                raise lost(index, error.allowed_failures + 1, hint) from None
            future.release()
            submit(1)
            yield outcome


@contextmanager
def _dask_client(distributed: Any, workers: int, address: str | None) -> Iterator[Any]:
    """The client of that scheduler, or of a cluster on this machine, which ends with it."""
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


def on_ray(compute: Compute, job: Job, indices: Iterable[int], workers: int, address: str | None) -> Outcomes:
    ray = require("ray", "the engine ray", "ray")
    with _ray_started(ray, workers * job.threads, address):
        task = ray.remote(num_cpus=job.threads, max_retries=TRIES - 1)(compute)
        at_a_time = workers if address is None else max(int(ray.cluster_resources()["CPU"]) // job.threads, 1)
        numbers = iter(indices)
        running = {task.remote(job, k): k for _, k in zip(range(2 * at_a_time), numbers, strict=False)}
        while running:
            (ready,), _ = ray.wait(list(running), num_returns=1)
            index = running.pop(ready)
            try:
                outcome = ray.get(ready)
            except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError):
                raise lost(index) from None
            running |= {task.remote(job, k): k for _, k in zip(range(1), numbers, strict=False)}
            yield outcome


@contextmanager
def _ray_started(ray: Any, cpus: int, address: str | None) -> Iterator[None]:
    """A Ray of this process's own, unless it has one."""
    was_there = ray.is_initialized()
    if not was_there:
        # Only numbers and names go through the object store: the least it can be.
        own = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": 80 * 2**20}
        ray.init(address or "local", log_to_driver=False, logging_level="warning", **({} if address else own))
    try:
        yield
    finally:
        if not was_there:
            ray.shutdown()
