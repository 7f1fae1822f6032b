"""`lnrnn score` after a kill keeps complete outputs. Equal tables give equal bytes."""

from __future__ import annotations

import re
import signal
import time

import pytest

import sequence_files
from lnrnn import cli
from networks import network

pytest.importorskip("safetensors")
pq = pytest.importorskip("pyarrow.parquet")

D = 3


@pytest.fixture
def folder(tmp_path, rng):
    """Returns a folder with a model and a folder `in` of three files, each with 60 rows in 6 row groups."""
    network(D, 5, cell="GRU").save(tmp_path / "m.safetensors")
    (tmp_path / "in").mkdir()
    for name in "abc":
        path = tmp_path / "in" / f"{name}.parquet"
        sequence_files.write(path, rng, rng.integers(0, 9, 60), D, row_group_size=10, null=(7, 8))
    return tmp_path


def words(folder, *more, into="out"):
    given = (folder / "m.safetensors", folder / "in", folder / into)
    return ["score", *map(str, given), "--column", "x", *map(str, more)]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_by_a_signal_goes_on(folder, rng, how):
    """The large files take some tenths of a second each."""
    network(D, 256, cell="LSTM").save(folder / "m.safetensors")
    for name in "def":
        path = folder / "in" / f"{name}.parquet"
        sequence_files.write(path, rng, rng.integers(0, 80, 900), D, row_group_size=50)
    program = sequence_files.command(*words(folder, "--workers", 1))
    while not (folder / "out" / "c.parquet").exists():
        assert program.poll() is None
        time.sleep(0.002)
    program.send_signal(how)
    code, _, said = sequence_files.ended(program)
    left = list((folder / "out").glob(".*"))
    kept = len(list((folder / "out").iterdir())) - len(left)
    assert 3 <= kept < 6
    if how == signal.SIGINT:
        assert code == 130 and not left
        assert re.fullmatch(rf"lnrnn score: interrupted after {kept} of 6 files; .*\n", said)
    for path in left:  # a killed run leaves the file that it wrote
        path.unlink()
    code, _, said = sequence_files.ended(sequence_files.command(*words(folder)))
    assert code == 0 and f"6 files ({kept} kept from an earlier run), 2880 rows, " in said
    assert cli.main(words(folder, "--workers", 2, into="whole")) == 0
    assert contents(folder / "out") == contents(folder / "whole")


@pytest.mark.parametrize("workers, threads", [(1, 1), (2, 1), (4, 2)])
def test_equal_tables_give_equal_bytes(folder, workers, threads):
    """Also in files of another age, and with any number of workers and threads."""
    assert cli.main(words(folder, "--workers", 1, into="first")) == 0
    for path in (folder / "in").iterdir():
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    assert cli.main(words(folder, "--workers", workers, "--threads", threads)) == 0
    assert contents(folder / "out") == contents(folder / "first")


@pytest.mark.parametrize("size", [400, 3000])
def test_a_file_that_cannot_grow_is_named_and_the_next_run_continues(folder, capsys, size):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert cli.main(words(folder, "--into", "all", into="whole")) == 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        assert cli.main(words(folder, "--into", "all")) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = capsys.readouterr().err.splitlines()[-1]
    assert "file too large" in said and str(folder / "out") in said, said
    assert not contents(folder / "out")
    assert cli.main(words(folder, "--into", "all")) == 0
    assert contents(folder / "out") == contents(folder / "whole")


def test_the_footer_of_many_row_groups_is_read_twice(tmp_path, rng, monkeypatch):
    """It is read for the facts of the output and for the rows, and not for each row group."""
    network(D, 5, cell="GRU").save(tmp_path / "m.safetensors")
    sequence_files.write(tmp_path / "in", rng, [3] * 300, D, row_group_size=1)
    real, opened = pq.ParquetFile, []
    monkeypatch.setattr(pq, "ParquetFile", lambda *args, **more: opened.append(1) or real(*args, **more))
    assert cli.main(words(tmp_path)) == 0
    assert pq.read_metadata(tmp_path / "out").num_row_groups == 300 and len(opened) == 2
