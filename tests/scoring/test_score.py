"""lnrnn score: what it writes, from which files, and what it refuses with one line and nothing written."""

from __future__ import annotations

import os
import re
import shutil

import numpy as np
import pytest

import lnrnn
import sequence_files
from lnrnn import cli
from lnrnn.scoring import parquet
from networks import network

pytest.importorskip("safetensors")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

D = 3
STEPS = pa.list_(pa.list_(pa.float32(), D))
NESTED = pa.list_(pa.list_(pa.float32()))


def run(capsys, *arguments):
    """Exit code, stdout, stderr."""
    code = cli.main(["score", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def files(tmp_path, rng):
    """A folder with a model and an input of 60 rows in row groups of 16, and the input as a table."""
    network(D, 5, cell="LSTM", bidirectional=True).save(tmp_path / "m.safetensors")
    lengths = rng.integers(0, 20, 60)
    table = sequence_files.write(
        tmp_path / "in.parquet", rng, lengths, D, row_group_size=16, null=(3, 17, 18)
    )
    return tmp_path, table


def paths(folder):
    return folder / "m.safetensors", folder / "in.parquet", folder / "out.parquet"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def row_groups(path):
    metadata = pq.read_metadata(path)
    return [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]


# --- what is written ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("into", ["last", "mean", "all"])
def test_what_a_scorer_gives_row_group_by_row_group(files, capsys, into):
    folder, table = files
    assert run(capsys, *paths(folder), "--column", "x", "--into", into, "--workers", 1) == (0, "", "")
    got = pq.read_table(folder / "out.parquet")
    assert got.equals(
        sequence_files.as_written(lnrnn.Scorer(folder / "m.safetensors", "x", into)(table), into)
    )
    assert got[f"x_{into}"].null_count == 3
    assert row_groups(folder / "out.parquet") == row_groups(folder / "in.parquet") == [16, 16, 16, 12]
    assert names(folder) == ["in.parquet", "m.safetensors", "out.parquet"]


@pytest.mark.parametrize("into", ["last", "all"])
def test_a_row_group_that_memory_has_no_room_for_becomes_several(files, capsys, into, monkeypatch):
    folder, table = files
    monkeypatch.setattr(parquet, "PIECE_BYTES", 800)
    assert run(capsys, *paths(folder), "--column", "x", "--into", into, "--workers", 1)[0] == 0
    assert pq.read_table(folder / "out.parquet").equals(
        sequence_files.as_written(lnrnn.Scorer(folder / "m.safetensors", "x", into)(table), into)
    )
    assert len(row_groups(folder / "out.parquet")) > 8


def test_all_columns_stay_and_the_name_may_be_another(files, capsys):
    folder, table = files
    count = table.num_rows
    table = table.append_column("text", pa.array([f"row {k}" for k in range(count)]).dictionary_encode())
    table = table.append_column("more", pa.array([{"a": [k], "b": None} for k in range(count)]))
    table = table.replace_schema_metadata({"note": "kept"})
    pq.write_table(table, folder / "in.parquet", row_group_size=25)
    assert run(capsys, *paths(folder), "--column", "x", "--name", "code", "--workers", 1) == (0, "", "")
    got = pq.read_table(folder / "out.parquet")
    assert got.schema.names == ["id", "x", "text", "more", "code"] and got.schema.metadata[b"note"] == b"kept"
    assert got.drop_columns("code").equals(table)


@pytest.mark.parametrize("kind", [NESTED, pa.large_list(pa.list_(pa.float64(), D))])
@pytest.mark.parametrize("into", ["last", "all"])
def test_other_types_of_columns(files, capsys, kind, into):
    folder, table = files
    other = pa.table({"x": pa.array(table["x"].to_pylist(), kind)})
    pq.write_table(other, folder / "in.parquet", row_group_size=25)
    assert run(capsys, *paths(folder), "--column", "x", "--into", into, "--workers", 1) == (0, "", "")
    assert pq.read_table(folder / "out.parquet").equals(
        sequence_files.as_written(lnrnn.Scorer(folder / "m.safetensors", "x", into)(other), into)
    )


@pytest.mark.parametrize("groups", [0, 1])
def test_a_file_without_rows(files, capsys, groups):
    folder, table = files
    with pq.ParquetWriter(folder / "in.parquet", table.schema) as writer:
        for _ in range(groups):
            writer.write_table(table.slice(0, 0))
    assert run(capsys, *paths(folder), "--column", "x", "--workers", 1) == (0, "", "")
    got = pq.read_table(folder / "out.parquet")
    assert got.num_rows == 0 and got.schema.names == ["id", "x", "x_last"]


def test_an_old_output_and_a_link_to_it(files, capsys):
    folder, table = files
    (folder / "real").mkdir()
    (folder / "real" / "y.parquet").write_bytes(b"old")
    (folder / "out.parquet").symlink_to(folder / "real" / "y.parquet")
    assert run(capsys, *paths(folder), "--column", "x", "--workers", 1)[0] == 0
    assert (folder / "out.parquet").is_symlink()
    assert pq.read_table(folder / "real" / "y.parquet").num_rows == table.num_rows
    assert names(folder / "real") == ["y.parquet"]


def test_the_progress_bar_counts_rows(files):
    folder, _ = files
    program = sequence_files.command("score", *paths(folder), "--column", "x", "--workers", 1)
    assert sequence_files.ended(program) == (0, "", "")  # no bar where no terminal is


# --- bad rows -----------------------------------------------------------------------------------------------


@pytest.fixture
def some_bad(files):
    """The files of `files`, where rows 20, 21 and 40 are bad."""
    folder, table = files
    rows = table["x"].to_pylist()
    rows[20] = [[1.0, 2.0, 3.0], [1.0, 2.0]]
    rows[21] = [None]
    rows[40] = [[1.0, None, 3.0]]
    pq.write_table(pa.table({"x": pa.array(rows, NESTED)}), folder / "in.parquet", row_group_size=16)
    return folder, rows


def test_a_bad_row_is_named(some_bad, capsys):
    folder, _ = some_bad
    for workers in (1, 2):
        code, out, err = run(capsys, *paths(folder), "--column", "x", "--workers", workers)
        assert code == 2 and out == "" and err.count("\n") == 1
        assert re.match(
            r"lnrnn score: error: \S+in\.parquet, row group (1, row 20, column 'x': step 1 has 2 numbers|"
            r"2, row 40, column 'x': step 0 holds a null)",
            err,
        ), err
        assert not (folder / "out.parquet").exists() and not (folder / "out.bad.parquet").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_rows_are_left_out_and_listed(some_bad, capsys, workers):
    """Also where --bad raise has ended a run before: what that has done is right."""
    folder, rows = some_bad
    assert run(capsys, *paths(folder), "--column", "x", "--workers", 1)[0] == 2
    assert names(folder / "out.parquet.parts") == ["00000000.parquet", "lock", "manifest.json"]
    code, out, err = run(capsys, *paths(folder), "--column", "x", "--bad", "skip", "--workers", workers)
    assert (code, out, err) == (0, f"3 bad rows: {folder / 'out.bad.parquet'}\n", "")
    assert pq.read_table(folder / "out.bad.parquet").to_pylist() == [
        {"row": 20, "row_group": 1, "reason": "step 1 has 2 numbers, the model takes 3"},
        {"row": 21, "row_group": 1, "reason": "step 0 is null"},
        {"row": 40, "row_group": 2, "reason": "step 0 holds a null"},
    ]
    for row in (20, 21, 40):
        rows[row] = None
    want = lnrnn.Scorer(folder / "m.safetensors", "x")(pa.table({"x": pa.array(rows, NESTED)}))
    want = sequence_files.as_written(want)
    assert (
        pq.read_table(folder / "out.parquet")["x_last"]
        .combine_chunks()
        .equals(want["x_last"].combine_chunks())
    )
    assert names(folder) == ["in.parquet", "m.safetensors", "out.bad.parquet", "out.parquet"]


def test_the_list_of_bad_rows_may_be_empty(files, capsys):
    folder, _ = files
    (folder / "out.bad.parquet").write_bytes(b"of a run before")
    assert run(capsys, *paths(folder), "--column", "x", "--bad", "skip", "--workers", 1) == (0, "", "")
    assert pq.read_table(folder / "out.bad.parquet").num_rows == 0


def test_rows_beyond_the_known_steps(files, capsys):
    folder, table = files
    network(D, 4, norm=lnrnn.BatchNormSpec(max_steps=12, overrun="raise"), trained=12).save(
        folder / "m.safetensors"
    )
    long = [k for k, row in enumerate(table["x"].to_pylist()) if row is not None and len(row) > 12]
    code, _, err = run(capsys, *paths(folder), "--column", "x", "--workers", 1)
    assert code == 2 and f"row {long[0]}, column 'x': it has " in err and "known for 12 only" in err
    assert run(capsys, *paths(folder), "--column", "x", "--workers", 1, "--bad", "skip")[0] == 0
    assert pq.read_table(folder / "out.bad.parquet")["row"].to_pylist() == long


# --- what is refused ----------------------------------------------------------------------------------------


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def save_batch(path):
    network(D, 5, norm=lnrnn.BatchNormSpec(max_steps=4, overrun="batch"), trained=4).save(path)


def save_parquet(**columns):
    def save(path):
        pq.write_table(pa.table(columns), path)

    return save


# What is done to which file, further words, and the error.
REFUSED = {
    "no model": ("m.safetensors", lambda path: path.unlink(), (), r"m\.safetensors"),
    "foreign model": ("m.safetensors", lambda path: path.write_text("hello"), (), "cannot load"),
    "overrun=batch": ("m.safetensors", save_batch, (), "overrun='batch': a row's result would depend"),
    "no input": ("in.parquet", lambda path: path.unlink(), (), r"No such file.*in\.parquet"),
    "a folder as input": ("in.parquet", lambda path: (path.unlink(), path.mkdir()), (), "Is a directory"),
    "an empty input": ("in.parquet", lambda path: path.write_bytes(b""), (), "cannot be read as Parquet"),
    "a truncated input": ("in.parquet", cut, (), r"in\.parquet cannot be read as Parquet"),
    "text as input": (
        "in.parquet",
        lambda path: path.write_text("1 2 3" * 9),
        (),
        "cannot be read as Parquet",
    ),
    "no such column": ("in.parquet", None, ("--column", "y"), "there is no column 'y'; there are 'id', 'x'"),
    "another type": ("in.parquet", None, ("--column", "id"), "column 'id' must be .*, got int64"),
    "the name is taken": ("in.parquet", None, ("--name", "id"), "there is a column 'id' already"),
    "another width": (
        "in.parquet",
        save_parquet(x=pa.array([], pa.list_(pa.list_(pa.float32(), 4)))),
        (),
        "column 'x' has 4 numbers a step, the model takes 3",
    ),
    "no workers": ("in.parquet", None, ("--workers", "0"), "workers must be an integer of at least 1"),
    "no threads": ("in.parquet", None, ("--threads", "0", "--workers", "1"), "threads must be an integer of"),
    "an address": (
        "in.parquet",
        None,
        ("--address", "tcp://a:1"),
        "--address is for the engines dask and ray",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_nothing_written(files, capsys, case):
    folder, _ = files
    name, change, words, message = REFUSED[case]
    if change is not None:
        change(folder / name)
    before = names(folder)
    code, out, err = run(capsys, *paths(folder), "--column", "x", *words)
    assert code == 2 and out == ""
    assert re.fullmatch(rf"lnrnn score: error: .*{message}.*\n", err), err
    assert names(folder) == before


def test_damage_within_the_input_is_told_by_row_group(files, capsys):
    """Nothing is written then but what was done before."""
    folder, _ = files
    data = bytearray((folder / "in.parquet").read_bytes())
    column = pq.read_metadata(folder / "in.parquet").row_group(2).column(1)
    first = column.dictionary_page_offset or column.data_page_offset
    data[first : first + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    (folder / "in.parquet").write_bytes(data)
    code, out, err = run(capsys, *paths(folder), "--column", "x", "--workers", 1)
    assert code == 2 and out == "" and err.count("\n") == 1
    assert re.search(r"in\.parquet, row group 2, cannot be read as Parquet", err), err
    assert names(folder) == ["in.parquet", "m.safetensors", "out.parquet.parts"]
    assert names(folder / "out.parquet.parts")[:2] == ["00000000.parquet", "00000001.parquet"]


@pytest.mark.parametrize("where", ["no such folder", "a folder"])
def test_an_output_that_cannot_be_written(files, capsys, where):
    folder, _ = files
    model, source, target = paths(folder)
    target = folder / "nowhere" / "out.parquet" if where == "no such folder" else folder
    code, out, err = run(capsys, model, source, target, "--column", "x", "--workers", 1)
    assert code == 2 and out == "" and str(target) in err and err.count("\n") == 1
    assert names(folder) == ["in.parquet", "m.safetensors"]


def test_the_input_is_not_written_over(files, capsys):
    folder, _ = files
    model, source, target = paths(folder)
    os.link(source, folder / "link.parquet")
    before = source.read_bytes()
    for target in (source, folder / "link.parquet"):
        code, _, err = run(capsys, model, source, target, "--column", "x", "--workers", 1)
        assert code == 2 and "would be written over while it is read" in err
    shutil.copy(source, folder / "out.bad.parquet")
    code, _, err = run(
        capsys, model, folder / "out.bad.parquet", folder / "out.parquet", "--column", "x", "--bad", "skip"
    )
    assert code == 2 and "out.bad.parquet would be written over" in err
    assert source.read_bytes() == before


def test_nan_stays_in_its_row(files, capsys):
    folder, table = files
    rows = table["x"].to_pylist()
    rows[30] = [[1.0, np.nan, 2.0], [1.0, 1.0, 1.0]]
    pq.write_table(pa.table({"x": pa.array(rows, STEPS)}), folder / "in.parquet", row_group_size=16)
    before = lnrnn.Scorer(folder / "m.safetensors", "x")(table)["x_last"].to_pylist()
    assert run(capsys, *paths(folder), "--column", "x", "--workers", 1) == (0, "", "")
    got = pq.read_table(folder / "out.parquet")["x_last"].to_pylist()
    assert np.isnan(got[30]).any()
    assert got[:30] + got[31:] == before[:30] + before[31:]
