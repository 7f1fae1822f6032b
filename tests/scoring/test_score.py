"""Tests outputs and inputs of `lnrnn score`, and its errors, which are one line and leave no file."""

from __future__ import annotations

import itertools
import os
import re
import sys
from contextlib import suppress

import pytest

import lnrnn
import sequence_files
from lnrnn import cli
from lnrnn.scoring import bulk, parquet, report
from lnrnn.scoring.scorer import GONE
from networks import network

pytest.importorskip("safetensors")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

D = 3
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
    x = sequence_files.sequences(rng, rng.integers(0, 20, 60), D, null=(3, 17, 18))
    table = pa.table({
        "id": range(60), "x": x, "user": [f"user {k}" for k in range(60)],
        "words": pa.array([None if k % 7 == 0 else f"word {k % 5}" for k in range(60)]).dictionary_encode(),
        "pair": pa.array([{"a": [k] * (k % 3), "b": {"c": None}} for k in range(60)]),
        "map": pa.array([[("k", k)] for k in range(60)], pa.map_(pa.string(), pa.int64())),
        "nothing": pa.nulls(60), "numbers": pa.array(rng.standard_normal(60)),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=16)
    return tmp_path, table


def paths(folder):
    return folder / "m.safetensors", folder / "in.parquet", folder / "out.parquet"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_scored(folder, table, into="last", keep=None):
    """Asserts that the output has the results of a Scorer, and returns the output."""
    got = pq.ParquetFile(folder / "out.parquet", page_checksum_verification=True).read()
    want = lnrnn.Scorer(folder / "m.safetensors", "x", into)(table)
    kept = [k for k, name in enumerate(want.schema.names) if not keep or name in (*keep, f"x_{into}")]
    assert got.equals(sequence_files.as_written(want, into).select(kept)), got.schema
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


def test_the_option_name_names_the_result(files, capsys):
    folder, table = files
    summary(capsys, *paths(folder), "--column", "x", "--name", "code")
    got = pq.read_table(folder / "out.parquet")
    assert got.schema.names == [*table.schema.names, "code"] and got.drop_columns("code").equals(table)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", bulk.CODECS)
def test_all_columns_get_the_compression(files, capsys, codec, version):
    folder, table = files
    old = bulk.CODECS[bulk.CODECS.index(codec) - 1]
    pq.write_table(
        table, folder / "in.parquet", row_group_size=20, compression=old, data_page_version=version,
        data_page_size=64, write_page_index=True, sorting_columns=[pq.SortingColumn(0)],
    )  # fmt: skip
    summary(capsys, *paths(folder), "--column", "x", "--compression", codec)
    assert_scored(folder, table)
    group = pq.read_metadata(folder / "out.parquet").row_group(0)
    columns = [group.column(k) for k in range(group.num_columns)]
    name = "UNCOMPRESSED" if codec == "none" else codec.upper()
    assert {each.compression for each in columns} == {name} and columns[0].statistics.min == 0
    coded = {each.path_in_schema for each in columns if each.has_dictionary_page}
    assert {"user", "words"} <= coded and not coded & {"numbers", "x.list.element.list.element"}


@pytest.mark.parametrize("keep", ["id,numbers", "map,pair", "x", "user"])
def test_other_columns_are_not_copied_and_not_decoded(files, capsys, keep):
    folder, table = files
    table = table.append_column("last", table["numbers"])
    pq.write_table(table, folder / "in.parquet", row_group_size=16)
    for group in range(4):
        sequence_files.damage(folder / "in.parquet", group, -1)
    summary(capsys, *paths(folder), "--column", "x", "--keep", keep, "--id-column", "id")
    assert_scored(folder, table, keep=keep.split(","))


def test_columns_with_equal_names_stay(files, capsys):
    folder, table = files
    table = table.append_column("id", table["user"]).append_column("id", table["numbers"])
    pq.write_table(table, folder / "in.parquet", row_group_size=20)
    summary(capsys, *paths(folder), "--column", "x")
    assert_scored(folder, table)


def test_metadata_stay_but_those_of_other_schemas(files, capsys):
    """Spark reads a schema of its own from metadata, which would not have the results."""
    folder, table = files
    spark = "org.apache.spark.sql.parquet.row.metadata"
    pq.write_table(table.replace_schema_metadata({"note": "kept", spark: "{}"}), folder / "in.parquet")
    summary(capsys, *paths(folder), "--column", "x")
    metadata = pq.read_metadata(folder / "out.parquet").metadata
    assert metadata[b"note"] == b"kept" and spark.encode() not in metadata
    assert pq.read_schema(folder / "out.parquet").metadata[b"note"] == b"kept"
    assert lnrnn.__version__ in metadata[b"lnrnn"].decode() and b'"bad rows": 0' in metadata[b"lnrnn"]


@pytest.mark.parametrize("reader", ["polars", "pandas", "Arrow's data sets"])
def test_other_readers_read_the_output(files, capsys, reader):
    folder, table = files
    pq.write_table(table.select(["id", "x"]), folder / "in.parquet", row_group_size=20)
    summary(capsys, *paths(folder), "--column", "x")
    want = lnrnn.Scorer(folder / "m.safetensors", "x")(table)["x_last"].to_pylist()
    if reader == "polars":
        got = pytest.importorskip("polars").read_parquet(folder / "out.parquet")["x_last"].to_list()
    elif reader == "pandas":
        cells = pytest.importorskip("pandas").read_parquet(folder / "out.parquet")["x_last"]
        got = [None if cell is None else cell.tolist() for cell in cells]
    else:
        chosen = pytest.importorskip("pyarrow.dataset").field("id") >= 7
        got = pq.read_table(folder / "out.parquet", filters=chosen)["x_last"].to_pylist()
    assert got == want[-len(got) :] and len(got) > 50


def test_another_file_is_replaced_only_if_asked_even_through_a_link(files, capsys):
    folder, table = files
    (folder / "real").mkdir()
    (folder / "real" / "y.parquet").write_bytes(b"old")
    (folder / "out.parquet").symlink_to(folder / "real" / "y.parquet")
    code, _, err = run(capsys, *paths(folder), "--column", "x", "--workers", 1)
    assert code == 2 and "y.parquet already: it was not written by this command; choose another" in err
    assert (folder / "real" / "y.parquet").read_bytes() == b"old"
    assert run(capsys, *paths(folder), "--column", "x", "--workers", 1, "--overwrite")[0] == 0
    assert (folder / "out.parquet").is_symlink()
    assert pq.read_table(folder / "real" / "y.parquet").num_rows == table.num_rows
    assert names(folder / "real") == ["y.parquet"]


@pytest.mark.parametrize("groups", [[0, 3, 0, 0, 2], [2, 0], [0], []], ids=str)
def test_empty_row_groups_and_files_have_outputs_without_them(files, capsys, groups):
    folder, table = files
    with pq.ParquetWriter(folder / "in.parquet", table.schema) as writer:
        for rows in groups:
            writer.write_table(table.slice(0, rows))
    summary(capsys, *paths(folder), "--column", "x", "--workers", 1)
    assert row_groups(folder / "out.parquet") == [rows for rows in groups if rows]
    got = pq.read_table(folder / "out.parquet")
    assert got.num_rows == sum(groups) and got.schema.names == [*table.schema.names, "x_last"]


# --- messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["/dev/full", None])
def test_a_log_that_cannot_be_written_does_not_end_the_run(files, monkeypatch, to):
    folder, _ = files
    monkeypatch.setattr(report, "EVERY", 0)
    full = to and open(to, "w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stderr", full)
    code = cli.main(["score", *map(str, paths(folder)), "--column", "x"])
    monkeypatch.undo()
    with suppress(OSError, AttributeError):
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


@pytest.mark.parametrize("words", [(), ("--id-column", "user", "--keep", "x")], ids=["plain", "named"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_row_is_named(some_bad, capsys, workers, words):
    folder, rows = some_bad
    table = pa.table({"x": pa.array(rows, NESTED), "user": [f"row {k}" for k in range(60)]})
    pq.write_table(table, folder / "in.parquet", row_group_size=16)
    code, out, err = run(capsys, *paths(folder), "--column", "x", "--workers", workers, *words)
    assert code == 2 and out == "" and err.count("\n") == 1
    user = r" \(user = 'row {}'\)" if words else ""
    assert re.match(
        rf"lnrnn score: error: \S+in\.parquet, row group (1, row 20{user.format(20)}, column 'x': step 1 has "
        rf"2 numbers|2, row 40{user.format(40)}, column 'x': step 0 holds a null)",
        err,
    ), err
    assert names(folder) == ["in.parquet", "m.safetensors"]


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_null_gives_bad_rows_a_null_and_a_reason(some_bad, capsys, workers):
    folder, rows = some_bad
    said = summary(capsys, *paths(folder), "--column", "x", "--bad", "null", "--workers", workers)
    assert " 3 bad rows, " in said
    reasons = {
        20: "step 1 has 2 numbers, the model takes 3", 21: "step 0 is null", 40: "step 0 holds a null",
    }  # fmt: skip
    for row in reasons:
        rows[row] = None
    want = lnrnn.Scorer(folder / "m.safetensors", "x")(pa.table({"x": pa.array(rows, NESTED)}))
    got = pq.read_table(folder / "out.parquet")
    assert got["x_last"].to_pylist() == want["x_last"].to_pylist()
    assert got["x_last_error"].to_pylist() == [reasons.get(row) for row in range(60)]
    assert names(folder) == ["in.parquet", "m.safetensors", "out.parquet"]


# --- refusals -----------------------------------------------------------------------------------------------


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


# {name of the case: (file, function that changes it, more arguments, the error)}. Errors of a Scorer stand in
# tests/arguments/scoring.txt.
MODEL, INPUT = "m.safetensors", "in.parquet"
REFUSED = {
    "no model": (MODEL, lambda path: path.unlink(), (), r"m\.safetensors"),
    "no input": (INPUT, lambda path: path.unlink(), (), r"no such file: '.*in\.parquet'"),
    "a folder as input": (INPUT, lambda path: (path.unlink(), path.mkdir()), (), "no files in '.*in.parq"),
    "a truncated input": (INPUT, cut, (), r"in\.parquet cannot be read as Parquet"),
    "the name is taken": (INPUT, None, ("--name", "id"), "there is a column 'id' already"),
    "no workers": (INPUT, None, ("--workers", "0"), "workers must be an integer of at least 1"),
    "no threads": (INPUT, None, ("--threads", "0", "--workers", "1"), "threads must be an integer of"),
    "no such kept column": (INPUT, None, ("--keep", "id,nowhere"), "there is no column 'nowhere'"),
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


@pytest.mark.parametrize("where", ["no such folder", "a folder"])
def test_an_output_that_cannot_be_written_is_refused(files, capsys, where):
    folder, _ = files
    model, source, target = paths(folder)
    target = folder / "nowhere" / "out.parquet" if where == "no such folder" else folder
    code, out, err = run(capsys, model, source, target, "--column", "x", "--workers", 1)
    assert code == 2 and out == "" and str(target) in err and err.count("\n") == 1
    assert names(folder) == ["in.parquet", "m.safetensors"]


@pytest.mark.parametrize("how", ["itself", "symlink", "hard link"])
@pytest.mark.parametrize("which", ["m.safetensors", "in.parquet"])
def test_the_model_and_the_input_are_not_overwritten(files, capsys, which, how):
    folder, _ = files
    target = folder / "z.pq"
    if how == "itself":
        (folder / which).rename(target)
    else:
        (os.symlink if how == "symlink" else os.link)(folder / which, target)
    given = [target if path.name == which and how == "itself" else path for path in paths(folder)[:2]]
    before = target.read_bytes()
    code, _, err = run(capsys, *given, target, "--column", "x", "--overwrite")
    assert code == 2 and "must be another file than the input" in err
    assert target.read_bytes() == before


@pytest.mark.parametrize("name", ["out.csv", "out.feather", "out.parquet.gz"])
def test_a_name_of_another_format_is_refused(files, capsys, name):
    folder, _ = files
    code, _, err = run(capsys, *paths(folder)[:2], folder / name, "--column", "x")
    assert code == 2 and "the output must be a Parquet file" in err and name in err
    assert names(folder) == ["in.parquet", "m.safetensors"]


@pytest.mark.parametrize("option", GONE)
def test_options_of_earlier_versions_are_refused_with_the_remedy(files, capsys, option):
    folder, _ = files
    for words in ([f"--{option}"], [f"--{option}", "a,b"]):
        with pytest.raises(SystemExit) as ended:
            run(capsys, *paths(folder), "--column", "x", *words)
        err = capsys.readouterr().err
        assert ended.value.code == 2 and re.search(
            rf"there is no --{option} any more: (make|use|name|compress) ", err
        )
    assert names(folder) == ["in.parquet", "m.safetensors"]


def test_a_folder_of_row_groups_of_an_earlier_version_stays(files, capsys):
    folder, _ = files
    (folder / "out.parquet.parts").mkdir()
    (folder / "out.parquet.parts" / "manifest.json").write_text("{}")
    code, _, err = run(capsys, *paths(folder), "--column", "x", "--overwrite")
    assert code == 2 and f"{folder / 'out.parquet.parts'} has row groups of an earlier version" in err
    assert names(folder / "out.parquet.parts") == ["manifest.json"] and not (folder / "out.parquet").exists()
