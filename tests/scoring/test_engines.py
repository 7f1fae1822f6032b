"""`lnrnn score` on Dask and Ray, and a Scorer called by Dask and joblib, give the same bits.

Dask computes in threads here, and Ray is a stand-in. tests/campaigns/engines tests real clusters.
"""

from __future__ import annotations

import functools
import os
import re
from types import SimpleNamespace

import pytest

import lnrnn
import sequence_files
from lnrnn import cli
from lnrnn.scoring import bulk, engines
from lnrnn.scoring.job import TRIES
from sequence_files import as_written

pytest.importorskip("safetensors")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pd = pytest.importorskip("pandas")

# Dask and others warn of open resources and of later versions. This does not concern lnrnn.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Returns paths of a model and of an input of 8 row groups, and the Scorer's result for the input."""
    return sequence_files.with_model(tmp_path_factory.mktemp("engines"), 8, 80, row_group_size=10)


def score(files, target, *more):
    words = ["score", files[0], files[1], target, "--column", "x", "--workers", "2", *more]
    return cli.main([*map(str, words)])


def died_at_three(error):
    """Returns a function that computes row groups, but raises `error` for row group 3, as if its process had
    died.
    """
    real = bulk.compute

    def compute(job, index):
        if index == 3:
            raise error
        return real(job, index)

    return compute


@pytest.fixture
def distributed(monkeypatch):
    """Replaces Dask's cluster by one in threads. Returns its module and the clusters' arguments."""
    distributed = pytest.importorskip("distributed")
    real, asked = distributed.LocalCluster, []

    def cluster(**options):
        import dask

        asked.append(options | {"failures": dask.config.get("distributed.scheduler.allowed-failures")})
        return real(**{**options, "processes": False})

    monkeypatch.setattr(distributed, "LocalCluster", cluster)
    return SimpleNamespace(asked=asked, module=distributed)


def test_dask_computes_row_groups(files, tmp_path, distributed):
    target = tmp_path / "out.parquet"
    assert score(files, target, "--engine", "dask") == 0
    assert pq.read_table(target).equals(as_written(files[2]))
    (asked,) = distributed.asked
    assert asked["processes"] and (asked["n_workers"], asked["threads_per_worker"]) == (2, 1)
    assert asked["failures"] == TRIES - 1


def test_dask_names_a_row_group_that_kills_its_process(files, tmp_path, distributed, monkeypatch, capsys):
    killed = distributed.module.scheduler.KilledWorker("compute", SimpleNamespace(address="tcp://a:1"), 4)
    monkeypatch.setattr(bulk, "compute", died_at_three(killed))
    assert score(files, tmp_path / "out.parquet", "--engine", "dask") == 2
    said = capsys.readouterr().err
    assert (
        "in.parquet, row group 3: the process " in said and "died 5 times (" in said and "Another row" in said
    )
    assert not (tmp_path / "out.parquet").exists()


def test_dask_maps_partitions(files):
    frames = pytest.importorskip("dask.dataframe")
    model, source, want = files
    frame, scorer = pd.read_parquet(source, dtype_backend="pyarrow"), lnrnn.Scorer(model, "x")
    given = frames.from_pandas(frame, npartitions=3)
    got = given.map_partitions(scorer, meta=scorer(frame.iloc[:0])).compute(scheduler="sync")
    assert pa.array(got["x_last"]).to_pylist() == want["x_last"].to_pylist()
    assert got["id"].tolist() == frame["id"].tolist()


class Ray:
    """A stand-in for the module ray.

    It computes a task when its result is requested, the last task first. It repeats a task whose process
    dies.
    """

    class exceptions:
        class WorkerCrashedError(Exception):
            pass

        class OutOfMemoryError(Exception):
            pass

    def __init__(self):
        self.started, self.options, self.attempts, self.most = [], None, 0, 0

    def is_initialized(self):
        return len(self.started) % 2 == 1

    def init(self, address, **options):
        self.started.append((address, options))

    def shutdown(self):
        self.started.append("ended")

    def remote(self, **options):
        self.options = options
        return lambda compute: SimpleNamespace(remote=lambda *given: functools.partial(compute, *given))

    def wait(self, running, num_returns):
        self.most = max(self.most, len(running))
        return [running[-1]], running[:-1]

    def get(self, task):
        for attempt in range(1 + self.options["max_retries"]):
            try:
                return task()
            except self.exceptions.WorkerCrashedError:
                self.attempts = attempt + 1
        raise self.exceptions.WorkerCrashedError

    def cluster_resources(self):
        return {"CPU": 6.0}


@pytest.fixture
def ray(monkeypatch):
    ray, real = Ray(), engines.require
    monkeypatch.setattr(engines, "require", lambda name, *more: ray if name == "ray" else real(name, *more))
    return ray


@pytest.mark.parametrize("address", [None, "auto"])
def test_ray_computes_row_groups(files, tmp_path, ray, address):
    words = ["--engine", "ray", "--threads", "2", *(["--address", address] if address else [])]
    assert score(files, tmp_path / "out.parquet", *words) == 0
    assert pq.read_table(tmp_path / "out.parquet").equals(as_written(files[2]))
    (at, options), end = ray.started
    assert at == (address or "local") and end == "ended"
    assert options.get("num_cpus") == (None if address else 4) and ray.options["num_cpus"] == 2
    assert ray.most == (6 if address else 4)  # twice as many as can run at a time


def test_ray_names_a_row_group_that_kills_its_process(files, tmp_path, ray, monkeypatch, capsys):
    """The message has the number of attempts that Ray has made."""
    ray.init("mine")
    monkeypatch.setattr(bulk, "compute", died_at_three(ray.exceptions.WorkerCrashedError()))
    assert score(files, tmp_path / "out.parquet", "--engine", "ray") == 2
    assert (
        f"in.parquet, row group 3: the process that computed it died {ray.attempts} times"
        in capsys.readouterr().err
    )
    assert ray.attempts == TRIES and ray.started == [("mine", {})]  # a running Ray is used, and not shut down


def test_joblib_calls_a_scorer(files):
    joblib = pytest.importorskip("joblib")
    model, source, want = files
    batches = pq.read_table(source).to_batches(max_chunksize=30)
    call = joblib.delayed(lnrnn.Scorer(model, "x"))
    got = joblib.Parallel(n_jobs=2, backend="threading")(call(batch) for batch in batches)
    assert pa.Table.from_batches(got).combine_chunks().equals(want.combine_chunks())


def test_the_code_of_the_page_runs(tmp_path, distributed, monkeypatch):
    pytest.importorskip("dask.dataframe")
    pytest.importorskip("joblib")
    client = functools.partial(distributed.module.Client, processes=False)
    monkeypatch.setattr(distributed.module, "Client", client)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(sequence_files.of_the_docs("", "In Python", "The same bits everywhere", "Dask", "joblib"), names)
    whole = names["scorer"](names["table"])
    got = pq.read_table("scored").sort_by("id")
    assert got["x_last"].to_pylist() == whole["x_last"].to_pylist()
    text = (sequence_files.ROOT / "docs" / "scoring.md").read_text()
    words = re.search(r"^\$ lnrnn (score .*)$", text, re.M)[1].split()
    assert cli.main([*words, "--workers", "1"]) == 0
    assert pq.read_table("out.parquet").equals(as_written(whole))
    assert len(os.listdir("scored")) == 10  # a file for each row group
