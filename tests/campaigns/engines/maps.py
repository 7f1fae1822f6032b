"""Tests a Scorer in Dask's map_partitions and Ray's map_batches, with two worker processes.

One of them may be killed or differ. tests/scoring has bad rows and the guards of a Scorer.

pytest tests/campaigns/engines/maps.py
"""

from __future__ import annotations

import os
import signal
import sys

import pytest

import lnrnn
import sequence_files

pytest.importorskip("safetensors")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

# Dask and Ray warn about later versions, and leave files and sockets open.
pytestmark = pytest.mark.filterwarnings("ignore")

OWN, *OTHERS = lnrnn.cpu_info()["available"]
KERNELS = f"has the kernel set {OTHERS[-1]}, and the Scorer is for {OWN}"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Returns paths of a model and of an input of 16 row groups, and the results by id."""
    model, source, got = sequence_files.with_model(tmp_path_factory.mktemp("maps"), 64, 400)
    return model, source, dict(zip(got["id"].to_pylist(), got["x_last"].to_pylist(), strict=True))


class KillsOnce:
    """Calls a scorer. The first process that gets row 40 is killed."""

    def __init__(self, scorer, mark):
        self.scorer, self.mark = scorer, str(mark)

    def __call__(self, table):
        ids = table["id"]
        if 40 in getattr(ids, "tolist", ids.to_pylist if hasattr(ids, "to_pylist") else None)():
            try:
                open(self.mark, "x").close()
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.scorer(table)


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed")
    with distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        client.wait_for_workers(2)
        yield client


def dask_results(scorer, source, meta=None, **how):
    frame = pytest.importorskip("dask.dataframe").read_parquet(source, dtype_backend="pyarrow", **how)
    meta = (meta or scorer)(frame._meta)
    got = pa.Table.from_pandas(frame.map_partitions(scorer, meta=meta).compute(), preserve_index=False)
    return frame.npartitions, got


def by_id(table, column="x_last"):
    return dict(zip(table["id"].to_pylist(), table[column].to_pylist(), strict=True))


@pytest.mark.parametrize("split, count", [(True, 16), (5, 4), (False, 1)])
def test_dask_has_equal_bits_for_any_partitions(files, client, split, count):
    model, source, want = files
    partitions, got = dask_results(lnrnn.Scorer(model, "x"), source, split_row_groups=split)
    assert partitions == count and by_id(got) == want


def test_dask_replaces_a_killed_worker(files, client, tmp_path):
    model, source, want = files
    scorer = lnrnn.Scorer(model, "x")
    dying = KillsOnce(scorer, tmp_path / "killed")
    _, got = dask_results(dying, source, meta=scorer, split_row_groups=True)
    assert (tmp_path / "killed").exists() and by_id(got) == want
    client.wait_for_workers(2)


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
    ray.init("local", num_cpus=8, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
    yield ray
    ray.shutdown()


class Actor:
    """A class for ActorPoolStrategy, whose actors share a Scorer of the caller."""

    def __init__(self, scorer):
        self.scorer = scorer

    def __call__(self, batch):
        return self.scorer(batch)


def ray_results(ray, scorer, source, rows=37, actors=True, **options):
    data = ray.data.read_parquet(str(source), override_num_blocks=8)
    if actors:
        own = {
            "fn_constructor_args": (scorer,),
            "compute": ray.data.ActorPoolStrategy(size=2),
        }
    else:
        own = {"compute": ray.data.TaskPoolStrategy(size=2)}
    data = data.map_batches(
        Actor if actors else scorer, batch_size=rows, batch_format="pyarrow", **own, **options
    )
    return pa.concat_tables(ray.get(data.to_arrow_refs()), promote_options="permissive")


@pytest.mark.parametrize("actors", [True, False])
@pytest.mark.parametrize("rows", [1, 37, 400])
def test_ray_has_equal_bits_for_any_batches(files, ray, rows, actors):
    model, source, want = files
    assert by_id(ray_results(ray, lnrnn.Scorer(model, "x"), source, rows, actors)) == want


def test_ray_replaces_a_killed_actor(files, ray, tmp_path):
    model, source, want = files
    dying = KillsOnce(lnrnn.Scorer(model, "x"), tmp_path / "killed")
    assert by_id(ray_results(ray, dying, source)) == want and (tmp_path / "killed").exists()


def test_ray_refuses_actors_that_differ(files, ray):
    model, source, _ = files
    scorer = lnrnn.Scorer(model, "x")
    with pytest.raises(Exception, match=KERNELS):
        ray_results(ray, scorer, source, runtime_env={"env_vars": {"LNRNN_ISA": OTHERS[-1]}})
    object.__setattr__(scorer, "version", "0.0.1")
    with pytest.raises(Exception, match=r"and the Scorer is of lnrnn 0.0.1"):
        ray_results(ray, scorer, source)


def test_ray_maps_batches_of_every_format(files, ray):
    model, source, want = files
    data = ray.data.read_parquet(str(source), override_num_blocks=8)
    for batch_format in ("pyarrow", "pandas"):
        scorer = lnrnn.Scorer(model, "x", output=batch_format)
        data = data.map_batches(scorer, batch_size=48, batch_format=batch_format)
    for row in data.take_all():
        for batch_format in ("pyarrow", "pandas"):
            cell = row[batch_format]
            assert (None if cell is None else list(cell)) == want[row["id"]]


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
