"""Tests outputs and inputs of `lnrnn score`, and its errors, which are one line and leave no file."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
from contextlib import suppress

import pytest

import lnrnn
import sequence_files
from lnrnn import cli
from lnrnn.scoring import parquet, report
from networks import network

pytest.importorskip("safetensors")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

D = 3
STEPS = pa.list_(pa.list_(pa.float32(), D))
NESTED = pa.list_(pa.list_(pa.float32()))


def run(capsys, *arguments):
    """Runs lnrnn score. Returns exit code, stdout, stderr."""
    code = cli.main(["score", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def summary(capsys, *arguments):
    """Runs lnrnn score successfully. Returns its only line."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (0, "") and re.fullmatch(r"lnrnn score: .* s: \S+\n", err), err
    return re.sub(r"[\d.]+ s: ", "", err.removeprefix("lnrnn score: "))


@pytest.fixture
def files(tmp_path, rng):
    """Returns a folder with a model and an input of 60 rows in row groups of 16, and the input as a table."""
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


def assert_scored(folder, table, into="last"):
    """Asserts that the output is the table of a Scorer, and returns the output."""
    got, want = (
        pq.read_table(folder / "out.parquet"),
        lnrnn.Scorer(folder / "m.safetensors", "x", into)(table),
    )
    assert got.equals(sequence_files.as_written(want, into))
    return got


def row_groups(path):
    metadata = pq.read_metadata(path)
    return [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]


# --- output -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("into", ["last", "mean", "all"])
def test_the_output_has_the_scorers_results_by_row_group(files, capsys, into):
    folder, table = files
    summary(capsys, *paths(folder), "--column", "x", "--into", into, "--workers", 1)
    assert assert_scored(folder, table, into)[f"x_{into}"].null_count == 3
    assert row_groups(folder / "out.parquet") == row_groups(folder / "in.parquet") == [16, 16, 16, 12]
    assert names(folder) == ["in.parquet", "m.safetensors", "out.parquet"]


@pytest.mark.parametrize("into", ["last", "all"])
def test_a_large_row_group_is_written_in_pieces(files, capsys, into, monkeypatch):
    folder, table = files
    monkeypatch.setattr(parquet, "PIECE_BYTES", 800)
    assert run(capsys, *paths(folder), "--column", "x", "--into", into, "--workers", 1)[0] == 0
    assert_scored(folder, table, into)
    ends = itertools.accumulate(row_groups(folder / "out.parquet"))
    assert {16, 32, 48, 60} < {*ends}


def test_all_columns_stay_and_the_option_name_names_the_result(files, capsys):
    folder, table = files
    count = table.num_rows
    table = table.append_column("text", pa.array([f"row {k}" for k in range(count)]).dictionary_encode())
    table = table.append_column("more", pa.array([{"a": [k], "b": None} for k in range(count)]))
    table = table.replace_schema_metadata({"note": "kept"})
    pq.write_table(table, folder / "in.parquet", row_group_size=25)
    summary(capsys, *paths(folder), "--column", "x", "--name", "code", "--workers", 1)
    got = pq.read_table(folder / "out.parquet")
    assert got.schema.names == ["id", "x", "text", "more", "code"] and got.schema.metadata[b"note"] == b"kept"
    assert got.drop_columns("code").equals(table)


@pytest.mark.parametrize("kind", [NESTED, pa.large_list(pa.list_(pa.float64(), D))])
@pytest.mark.parametrize("into", ["last", "all"])
def test_columns_of_every_type(files, capsys, kind, into):
    folder, table = files
    other = pa.table({"x": pa.array(table["x"].to_pylist(), kind)})
    pq.write_table(other, folder / "in.parquet", row_group_size=25)
    summary(capsys, *paths(folder), "--column", "x", "--into", into, "--workers", 1)
    assert_scored(folder, other, into)


def test_an_old_output_is_replaced_even_through_a_link(files, capsys):
    folder, table = files
    (folder / "real").mkdir()
    (folder / "real" / "y.parquet").write_bytes(b"old")
    (folder / "out.parquet").symlink_to(folder / "real" / "y.parquet")
    assert run(capsys, *paths(folder), "--column", "x", "--workers", 1)[0] == 0
    assert (folder / "out.parquet").is_symlink()
    assert pq.read_table(folder / "real" / "y.parquet").num_rows == table.num_rows
    assert names(folder / "real") == ["y.parquet"]


@pytest.mark.parametrize("groups", [[0, 3, 0, 0, 2], [2, 0], [0], []], ids=str)
def test_empty_row_groups_and_files_have_empty_outputs(files, capsys, groups):
    folder, table = files
    with pq.ParquetWriter(folder / "in.parquet", table.schema) as writer:
        for rows in groups:
            writer.write_table(table.slice(0, rows))
    summary(capsys, *paths(folder), "--column", "x", "--workers", 1)
    assert row_groups(folder / "out.parquet") == groups
    got = pq.read_table(folder / "out.parquet")
    assert got.num_rows == sum(groups) and got.schema.names == ["id", "x", "x_last"]


# --- messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_the_last_line_is_a_summary(files, capsys, workers):
    folder, table = files
    steps = sum(len(row) for row in table["x"].to_pylist() if row is not None)
    said = summary(capsys, *paths(folder), "--column", "x", "--workers", workers)
    assert said == f"60 rows, {steps} steps, 0 bad rows, {folder / 'out.parquet'}\n"


def test_the_summary_of_one_row_has_no_plural(files, capsys):
    folder, _ = files
    pq.write_table(pa.table({"x": pa.array([[[1.0]]], NESTED)}), folder / "in.parquet")
    said = summary(capsys, *paths(folder), "--column", "x", "--bad", "skip", "--workers", 1)
    folder = folder.resolve()
    assert said == f"1 row, 0 steps, 1 bad row ({folder / 'out.bad.parquet'}), {folder / 'out.parquet'}\n"


def test_progress_is_printed_as_lines_without_a_terminal(files, capsys, monkeypatch):
    folder, _ = files
    monkeypatch.setattr(report, "EVERY", 0)
    code, _, err = run(capsys, *paths(folder), "--column", "x", "--workers", 1)
    counts = re.findall(r"^lnrnn score: (\d+) of 60 rows, \d+ s left$", err, re.M)
    assert code == 0 and counts == ["16", "32", "48", "60"] and err.count("\n") == 5


def test_a_log_that_cannot_be_written_does_not_end_the_run(files, monkeypatch):
    """The run also continues if the package of the progress bar is not installed."""
    folder, _ = files
    monkeypatch.setattr(report, "EVERY", 0)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        code = cli.main(["score", *map(str, paths(folder)), "--column", "x", "--workers", "1"])
        monkeypatch.undo()
        with suppress(OSError):
            full.close()
    assert code == 0 and (folder / "out.parquet").exists()


# --- bad rows -----------------------------------------------------------------------------------------------


@pytest.fixture
def some_bad(files):
    """Returns `files`, with the bad rows 20, 21 and 40."""
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
def test_bad_skip_omits_and_lists_bad_rows(some_bad, capsys, workers):
    """A run with --bad raise ends at the first bad row.

    The run with --bad skip continues it, and uses its complete row groups.
    """
    folder, rows = some_bad
    assert run(capsys, *paths(folder), "--column", "x", "--workers", 1)[0] == 2
    assert names(folder / "out.parquet.parts") == ["00000000.parquet", "lock", "manifest.json"]
    code, out, err = run(capsys, *paths(folder), "--column", "x", "--bad", "skip", "--workers", workers)
    assert (code, out) == (0, "") and f" 3 bad rows ({folder / 'out.bad.parquet'}), " in err
    assert pq.read_table(folder / "out.bad.parquet").to_pylist() == [
        {"row": 20, "row_group": 1, "reason": "step 1 has 2 numbers, the model takes 3"},
        {"row": 21, "row_group": 1, "reason": "step 0 is null"},
        {"row": 40, "row_group": 2, "reason": "step 0 holds a null"},
    ]
    for row in (20, 21, 40):
        rows[row] = None
    want = lnrnn.Scorer(folder / "m.safetensors", "x")(pa.table({"x": pa.array(rows, NESTED)}))
    got = pq.read_table(folder / "out.parquet")
    assert got["x_last"].to_pylist() == want["x_last"].to_pylist()
    assert names(folder) == ["in.parquet", "m.safetensors", "out.bad.parquet", "out.parquet"]


def test_without_bad_rows_the_list_is_empty(files, capsys):
    folder, _ = files
    (folder / "out.bad.parquet").write_bytes(b"of a run before")
    summary(capsys, *paths(folder), "--column", "x", "--bad", "skip", "--workers", 1)
    assert pq.read_table(folder / "out.bad.parquet").num_rows == 0


def test_an_old_list_of_bad_rows_is_removed(some_bad, capsys):
    folder, rows = some_bad
    model, source, target = paths(folder)
    summary(capsys, model, source, target, "--column", "x", "--bad", "skip", "--workers", 1)
    good = folder / "good.parquet"
    pq.write_table(pa.table({"x": pa.array(rows[:20], NESTED)}), good)
    summary(capsys, model, good, target, "--column", "x", "--workers", 1)
    assert not (folder / "out.bad.parquet").exists()


@pytest.mark.parametrize("what", ["text", "the input", "an input like a list", "another table"])
def test_other_files_with_the_name_of_the_list_stay(files, capsys, what):
    folder, table = files
    model, source, target = paths(folder)
    other = folder / "out.bad.parquet"
    if what == "text":
        other.write_text("mine")
    elif "input" in what:
        if what == "an input like a list":
            columns = {name: pa.array(range(60)) for name in ("row", "row_group", "reason")}
            pq.write_table(pa.table({**columns, "x": table["x"]}), source)
        source = source.rename(other)
    else:
        pq.write_table(table, other)
    before = other.read_bytes()
    summary(capsys, model, source, target, "--column", "x", "--workers", 1)
    assert other.read_bytes() == before


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.list_(pa.int8())])
def test_bad_rows_are_named_by_a_column(some_bad, capsys, kind):
    folder, rows = some_bad
    value = {"int64": lambda k: -k, "list<item: int8>": lambda k: [k]}.get(str(kind), lambda k: f"row {k}")
    table = pa.table({"x": pa.array(rows, NESTED), "user": pa.array(map(value, range(60)), kind)})
    pq.write_table(table, folder / "in.parquet", row_group_size=16)
    words = ["--column", "x", "--id-column", "user", "--workers", 1]
    code, _, err = run(capsys, *paths(folder), *words)
    assert code == 2 and f"row group 1, row 20 (user = {value(20)!r}), column 'x': step 1 has 2 " in err
    shutil.rmtree(folder / "out.parquet.parts")
    summary(capsys, *paths(folder), *words, "--bad", "skip")
    listed = pq.read_table(folder / "out.bad.parquet")
    assert listed["row"].to_pylist() == [20, 21, 40]
    assert listed["id"].to_pylist() == [value(k) for k in (20, 21, 40)]
    assert pa.types.is_nested(listed["id"].type) or listed["id"].type == kind
    assert pq.read_table(folder / "out.parquet")["x_last"].null_count == 3 + 3


def test_rows_beyond_the_known_steps_are_bad(files, capsys):
    folder, table = files
    network(D, 4, norm=lnrnn.BatchNormSpec(max_steps=12, overrun="raise"), trained=12).save(
        folder / "m.safetensors"
    )
    long = [k for k, row in enumerate(table["x"].to_pylist()) if row is not None and len(row) > 12]
    code, _, err = run(capsys, *paths(folder), "--column", "x", "--workers", 1)
    assert code == 2 and f"row {long[0]}, column 'x': it has " in err and "known for 12 only" in err
    assert run(capsys, *paths(folder), "--column", "x", "--workers", 1, "--bad", "skip")[0] == 0
    assert pq.read_table(folder / "out.bad.parquet")["row"].to_pylist() == long


# --- refusals -----------------------------------------------------------------------------------------------


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def save_batch(path):
    network(D, 5, norm=lnrnn.BatchNormSpec(max_steps=4, overrun="batch"), trained=4).save(path)


def save_wide(path):
    pq.write_table(pa.table({"x": pa.array([], pa.list_(pa.list_(pa.float32(), 4)))}), path)


# {name of the case: (file, function that changes it, more arguments, the error)}.
MODEL, INPUT = "m.safetensors", "in.parquet"
REFUSED = {
    "no model": (MODEL, lambda path: path.unlink(), (), r"m\.safetensors"),
    "foreign model": (MODEL, lambda path: path.write_text("hello"), (), "cannot load"),
    "overrun=batch": (MODEL, save_batch, (), "overrun must be 'raise', 'last' or 'mean', got 'batch'"),
    "no input": (INPUT, lambda path: path.unlink(), (), r"no such file: '.*in\.parquet'"),
    "a folder as input": (INPUT, lambda path: (path.unlink(), path.mkdir()), (), "no files in '.*in.parq"),
    "an empty input": (INPUT, lambda path: path.write_bytes(b""), (), "cannot be read as Parquet"),
    "a truncated input": (INPUT, cut, (), r"in\.parquet cannot be read as Parquet"),
    "text as input": (INPUT, lambda path: path.write_text("1 2 3" * 9), (), "Parquet magic bytes not found"),
    "no such column": (INPUT, None, ("--column", "y"), "there is no column 'y'; the columns are 'id', 'x'"),
    "another type": (INPUT, None, ("--column", "id"), "column 'id' must be .*, got int64"),
    "the name is taken": (INPUT, None, ("--name", "id"), "there is a column 'id' already"),
    "an empty name": (INPUT, None, ("--name", ""), "output must be the name of the column"),
    "no such column of names": (INPUT, None, ("--id-column", "y"), "there is no column 'y'"),
    "another width": (INPUT, save_wide, (), "column 'x' has 4 numbers a step, the model takes 3"),
    "no workers": (INPUT, None, ("--workers", "0"), "workers must be an integer of at least 1"),
    "no threads": (INPUT, None, ("--threads", "0", "--workers", "1"), "threads must be an integer of"),
    "an address": (INPUT, None, ("--address", "tcp://a:1"), "--address must be absent with the engine local"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_runs_write_nothing(files, capsys, case):
    folder, _ = files
    name, change, words, message = REFUSED[case]
    if change is not None:
        change(folder / name)
    before = names(folder)
    code, out, err = run(capsys, *paths(folder), "--column", "x", *words)
    assert code == 2 and out == ""
    assert re.fullmatch(rf"lnrnn score: error: .*{message}.*\n", err), err
    assert names(folder) == before


def test_a_damaged_input_is_reported_by_row_group(files, capsys):
    """The row groups before the damaged one are complete."""
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
def test_an_output_that_cannot_be_written_is_refused(files, capsys, where):
    folder, _ = files
    model, source, target = paths(folder)
    target = folder / "nowhere" / "out.parquet" if where == "no such folder" else folder
    code, out, err = run(capsys, model, source, target, "--column", "x", "--workers", 1)
    assert code == 2 and out == "" and str(target) in err and err.count("\n") == 1
    assert names(folder) == ["in.parquet", "m.safetensors"]


def test_the_input_is_not_overwritten(files, capsys):
    folder, _ = files
    model, source, target = paths(folder)
    os.link(source, folder / "link.parquet")
    before = source.read_bytes()
    for target in (source, folder / "link.parquet"):
        code, _, err = run(capsys, model, source, target, "--column", "x", "--workers", 1)
        assert code == 2 and "must be another file than the input" in err
    shutil.copy(source, folder / "out.bad.parquet")
    code, _, err = run(
        capsys, model, folder / "out.bad.parquet", folder / "out.parquet", "--column", "x", "--bad", "skip"
    )
    assert code == 2 and "out.bad.parquet" in err
    assert source.read_bytes() == before


@pytest.mark.parametrize("how", ["itself", "symlink", "hard link"])
def test_the_model_is_not_overwritten(files, capsys, how):
    """Neither the output nor its list of bad rows may be the model."""
    folder, _ = files
    model, source, _ = paths(folder)
    before = model.read_bytes()
    for name, target, words in (("z.pq", "z.pq", ()), ("z.bad.parquet", "z.parquet", ("--bad", "skip"))):
        given = model
        if how == "itself":
            given = shutil.copy(model, folder / name)
        else:
            (os.symlink if how == "symlink" else os.link)(model, folder / name)
        code, _, err = run(capsys, given, source, folder / target, "--column", "x", *words)
        assert code == 2 and "must be another file than the input" in err
        assert (folder / name).read_bytes() == model.read_bytes() == before


@pytest.mark.parametrize("name", ["out.csv", "out.feather", "out.parquet.gz"])
def test_a_name_of_another_format_is_refused(files, capsys, name):
    folder, _ = files
    code, _, err = run(capsys, *paths(folder)[:2], folder / name, "--column", "x")
    assert code == 2 and "the output must be a Parquet file" in err and name in err
    assert names(folder) == ["in.parquet", "m.safetensors"]


def test_a_process_without_stderr_can_score(files, monkeypatch, capsys):
    folder, _ = files
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["score", *map(str, paths(folder)), "--column", "x", "--workers", "1"]) == 0
    assert (folder / "out.parquet").exists() and capsys.readouterr().out == ""
