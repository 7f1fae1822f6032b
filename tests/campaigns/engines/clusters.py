"""Tests that a Scorer and `lnrnn score` give the bits of one process on clusters of Dask and Ray, even if a
worker is killed.

pytest tests/campaigns/engines/clusters.py
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import numpy as np
import pytest

import lnrnn
import sequence_files
from lnrnn import cli
from lnrnn.scoring import bulk
from lnrnn.scoring.engines import on_dask
from lnrnn.scoring.job import Task
from sequence_files import as_written

pytest.importorskip("safetensors")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pd = pytest.importorskip("pandas")

# Dask and Ray warn about later versions, and leave files and sockets open.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Returns paths of a model and of an input with 16 row groups, and a Scorer's result for them."""
    return sequence_files.with_model(tmp_path_factory.mktemp("engines"), 128, 400)


def scored(files, target, *more):
    """Runs `lnrnn score`, and asserts that it gives the Scorer's results and the bytes of a local run."""
    model, source, want = files
    words = ["score", *map(str, (model, source, target)), "--column", "x"]
    assert cli.main([*words, *more]) == 0
    plain = target.with_name("plain.parquet")
    assert cli.main([*words[:3], str(plain), *words[4:], "--workers", "1"]) == 0
    assert target.read_bytes() == plain.read_bytes()
    assert sorted(path.name for path in target.parent.iterdir()) == ["out.parquet", "plain.parquet"]
    assert pq.read_table(target).equals(as_written(want))


class Killing:
    """A context manager that kills the first process id of find() as soon as a row group is complete."""

    def __init__(self, target, find):
        self.folder, self.find = target.with_name(target.name + ".parts"), find
        self.pid = None

    def __enter__(self):
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def run(self):
        until = time.monotonic() + 60
        while time.monotonic() < until and self.pid is None:
            if list(self.folder.glob("0*.parquet")) and (pids := self.find()):
                self.pid = pids[0]
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.002)

    def __exit__(self, *error):
        self.thread.join()
        assert self.pid is not None


def killing_at_3(compute):
    """Returns a function that computes row groups, and kills its process at row group 3."""

    def computes(job, index):
        if index == 3:
            open(f"{os.path.dirname(job.scratch)}.attempt-{os.getpid()}", "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return compute(job, index)

    return computes


def a_row_group_that_kills_is_named(files, target, capsys, monkeypatch, *more, tries=3):
    """Asserts that the error names the attempts and row group 3. Dask may name another of the same worker."""
    monkeypatch.setattr(bulk, "compute", killing_at_3(bulk.compute))
    words = ["score", str(files[0]), str(files[1]), str(target), "--column", "x", "--workers", "2", *more]
    assert cli.main(words) == 2
    errors = capsys.readouterr().err
    died = re.search(
        rf"error: \S+in.parquet, row group (\d+): the process .* died {tries} times \((.*)\)", errors
    )
    assert died, errors
    assert died[1] == "3" or "held by the same worker" in died[2], errors
    assert len(list(target.parent.glob("*.attempt-*"))) == tries
    assert not target.exists()


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_dask_computes_row_groups(files, cluster, tmp_path):
    address = cluster.scheduler.address
    scored(files, tmp_path / "out.parquet", "--engine", "dask", "--address", address)


def test_dask_continues_after_a_killed_worker(files, cluster, tmp_path):
    workers = list(cluster.run(os.getpid).values())
    assert len(workers) == 2
    with Killing(tmp_path / "out.parquet", lambda: workers):
        scored(files, tmp_path / "out.parquet", "--engine", "dask", "--address", cluster.scheduler.address)


def test_dask_starts_the_given_number_of_processes():
    pytest.importorskip("distributed")

    def where(job, index):
        time.sleep(0.2)
        return os.getpid()

    assert len(set(on_dask(where, [Task(None, k) for k in range(9)], 3, None))) == 3


def test_dask_names_a_row_group_that_kills(files, tmp_path, capsys, monkeypatch):
    pytest.importorskip("distributed")
    a_row_group_that_kills_is_named(files, tmp_path / "out.parquet", capsys, monkeypatch, "--engine", "dask")


def test_dask_reports_the_attempts_of_its_cluster(files, cluster, tmp_path, capsys, monkeypatch):
    """The settings of the cluster decide how many attempts there are."""
    monkeypatch.setattr(cluster.cluster.scheduler, "allowed_failures", 1)
    words = "--engine", "dask", "--address", cluster.scheduler.address
    a_row_group_that_kills_is_named(files, tmp_path / "out.parquet", capsys, monkeypatch, *words, tries=2)


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
    yield ray
    ray.shutdown()


@pytest.mark.parametrize("formats", [("pyarrow", "pandas"), ("numpy",)], ids=lambda names: names[0])
def test_ray_maps_batches(files, ray, formats):
    data = pytest.importorskip("ray.data")
    model, source, want = files
    table = pq.read_table(source)
    if "numpy" in formats:  # NumPy has no nulls
        present = np.array([row is not None for row in table["x"].to_pylist()])
        table, want = table.filter(pa.array(present)), want.filter(pa.array(present))
    given = data.from_arrow([table.slice(0, 100), table.slice(100, 30), table.slice(130)])
    for batch_format in formats:
        given = given.map_batches(
            lnrnn.Scorer(model, "x", output=batch_format),
            num_cpus=0.5,
            batch_size=48,
            batch_format=batch_format,
        )
    got = given.to_pandas().sort_values("id")
    assert got["id"].tolist() == want["id"].to_pylist()
    for batch_format in formats:
        for cell, row in zip(got[batch_format], want["x_last"].to_pylist(), strict=True):
            assert (cell is None or cell is pd.NA) == (row is None)
            assert row is None or np.array_equal(np.asarray(cell, np.float32), np.array(row, np.float32))


def test_ray_computes_row_groups(files, ray, tmp_path):
    scored(files, tmp_path / "out.parquet", "--engine", "ray", "--workers", "2")


def test_ray_names_a_row_group_that_kills(files, ray, tmp_path, capsys, monkeypatch):
    a_row_group_that_kills_is_named(files, tmp_path / "out.parquet", capsys, monkeypatch, "--engine", "ray")


def test_ray_is_started_and_ended_by_the_command(files, tmp_path):
    pytest.importorskip("ray")
    model, source, want = files
    words = ["score", model, source, tmp_path / "out.parquet", "--column", "x", "--workers", "2"]
    program = sequence_files.command(*words, "--engine", "ray")
    assert sequence_files.ended(program, 200)[0] == 0
    assert pq.read_table(tmp_path / "out.parquet").equals(as_written(want))
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]


def test_ray_continues_after_a_killed_worker(files, ray, tmp_path):
    def workers():
        children = sequence_files.descendants(os.getpid())
        return [pid for pid, text in children.items() if "ray::compute" in text]

    with Killing(tmp_path / "out.parquet", workers):
        scored(files, tmp_path / "out.parquet", "--engine", "ray", "--workers", "2")


def test_ray_runs_the_program_of_the_scoring_page(ray, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(sequence_files.of_the_docs("", "In Python"), names)
    program = sequence_files.of_the_docs("Ray")
    for name in ("in.parquet", "scored"):  # Ray's workers have another working directory
        program = program.replace(f'"{name}"', repr(str(tmp_path / name)))
    exec(program, names)
    want = lnrnn.Scorer("model.safetensors", "x")(names["table"])
    got = pq.read_table("scored").sort_by("id")
    assert got["x_last"].to_pylist() == want["x_last"].to_pylist()
