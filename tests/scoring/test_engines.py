"""A Scorer called by Dask and joblib gives the same bits.

Dask computes in threads here. tests/campaigns/engines tests real clusters.
"""

from __future__ import annotations

import functools
import os
import re

import pytest

import lnrnn
import sequence_files
from lnrnn import cli
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


def test_dask_maps_partitions(files):
    frames = pytest.importorskip("dask.dataframe")
    model, source, want = files
    frame, scorer = pd.read_parquet(source, dtype_backend="pyarrow"), lnrnn.Scorer(model, "x")
    given = frames.from_pandas(frame, npartitions=3)
    got = given.map_partitions(scorer, meta=scorer(frame.iloc[:0])).compute(scheduler="sync")
    assert pa.array(got["x_last"]).to_pylist() == want["x_last"].to_pylist()
    assert got["id"].tolist() == frame["id"].tolist()


def test_joblib_calls_a_scorer(files):
    joblib = pytest.importorskip("joblib")
    model, source, want = files
    batches = pq.read_table(source).to_batches(max_chunksize=30)
    call = joblib.delayed(lnrnn.Scorer(model, "x"))
    got = joblib.Parallel(n_jobs=2, backend="threading")(call(batch) for batch in batches)
    assert pa.Table.from_batches(got).combine_chunks().equals(want.combine_chunks())


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    pytest.importorskip("dask.dataframe")
    pytest.importorskip("joblib")
    distributed = pytest.importorskip("distributed")
    local = functools.partialmethod(distributed.Client.__init__, processes=False)
    monkeypatch.setattr(distributed.Client, "__init__", local)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(sequence_files.of_the_docs("", "In Python", "Equal results everywhere", "Dask", "joblib"), names)
    whole = names["scorer"](names["table"])
    got = pq.read_table("scored").sort_by("id")
    assert got["x_last"].to_pylist() == whole["x_last"].to_pylist()
    text = (sequence_files.ROOT / "docs" / "scoring.md").read_text()
    words = re.search(r"^\$ lnrnn (score .*)$", text, re.M)[1].split()
    assert cli.main([*words, "--workers", "1"]) == 0
    assert pq.read_table("out.parquet").equals(as_written(whole))
    assert len(os.listdir("scored")) == 10  # a file for each row group
