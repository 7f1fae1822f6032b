"""Tests `lnrnn score --long`: rows of the input are steps, and rows with one id are a sequence."""

from __future__ import annotations

import re

import numpy as np
import pytest

import lnrnn
from lnrnn import cli
from lnrnn.scoring.sequences import INTO
from networks import network

pytest.importorskip("safetensors")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FEATURES = ["a", "b", "c"]
IDS = {
    "integers": (lambda k: k * 7, pa.int64()),
    "strings": ("user {}".format, pa.string()),
    "categories": ("user {}".format, pa.dictionary(pa.int32(), pa.string())),
    "views": ("user {}".format, pa.string_view()),
    "days": (lambda k: k, pa.date32()),
}


@pytest.fixture
def folder(tmp_path):
    network(3, 4, cell="GRU").save(tmp_path / "m.safetensors")
    return tmp_path


@pytest.fixture
def sequences(rng):
    """Returns nine sequences (T, 3)."""
    return [rng.standard_normal((T, 3)).astype(np.float32) for T in (4, 1, 7, 1, 12, 2, 2, 30, 1)]


def steps(sequences, kind="integers"):
    """Returns a table with a row for each step."""
    name, id_type = IDS[kind]
    values = np.concatenate(sequences)
    own = [k for k, each in enumerate(sequences) for _ in each]
    times = [t for each in sequences for t in range(len(each))]
    cells = pa.array([name(k) for k in own], getattr(id_type, "value_type", id_type))
    columns = {"id": cells.dictionary_encode() if kind == "categories" else cells, "time": times}
    return pa.table(columns | {each: values[:, k] for k, each in enumerate(FEATURES)})


def scored(folder, sequences, into="last", kind="integers"):
    """Returns the output of the Scorer for a row of lists for each sequence."""
    name, id_type = IDS[kind]
    lists = {each: [row[:, k].tolist() for row in sequences] for k, each in enumerate(FEATURES)}
    results = lnrnn.Scorer(folder / "m.safetensors", columns=FEATURES, into=into)(
        pa.table({each: pa.array(cells, pa.list_(pa.float32())) for each, cells in lists.items()})
    )[f"y_{into}"]
    ids = pa.array([name(k) for k in range(len(sequences))], getattr(id_type, "value_type", id_type))
    return ids.to_pylist(), results.to_pylist()


def score(folder, *words, source="in.parquet", output="out.parquet", long="id,time"):
    given = ["score", folder / "m.safetensors", folder / source, folder / output]
    layout = ["--columns", "a,b,c", "--long", long, "--workers", "1"]
    return cli.main([*map(str, given), *layout, *words])


def read(path, into="last"):
    table = pq.ParquetFile(path).read()
    assert table.schema.names == ["id", f"y_{into}"]
    return table["id"].to_pylist(), table[f"y_{into}"].to_pylist()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("into", INTO)
def test_rows_with_an_id_are_a_sequence(folder, sequences, into, size):
    """A sequence may cross row groups."""
    pq.write_table(steps(sequences), folder / "in.parquet", row_group_size=size, compression="zstd")
    assert score(folder, "--into", into) == 0
    assert read(folder / "out.parquet", into) == scored(folder, sequences, into)
    metadata = pq.read_metadata(folder / "out.parquet")
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert metadata.num_row_groups == -(-sum(map(len, sequences)) // size)


@pytest.mark.parametrize("kind", IDS)
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_ids_keep_their_type(folder, sequences, kind, compression):
    pq.write_table(steps(sequences, kind), folder / "in.parquet", row_group_size=5)
    assert score(folder, *(["--compression", compression] if compression else [])) == 0
    assert read(folder / "out.parquet") == scored(folder, sequences, kind=kind)


def test_rows_are_sorted_by_time_only_if_asked(folder, sequences, rng):
    """Equal times keep their order."""
    table = steps(sequences)
    shuffled = table.take(rng.permutation(len(table)))
    pq.write_table(shuffled, folder / "in.parquet")
    assert score(folder) == 0
    ids, results = read(folder / "out.parquet")
    assert dict(zip(ids, results, strict=True)) == dict(zip(*scored(folder, sequences), strict=True))
    assert ids == list(dict.fromkeys(shuffled["id"].to_pylist()))
    for equal, long in (
        (shuffled, "id"),
        (shuffled.set_column(1, "time", pa.nulls(60, pa.int8()).fill_null(0)), "id,time"),
    ):
        pq.write_table(equal, folder / "in.parquet")
        assert score(folder, long=long) == 0
        kept = [
            np.stack([shuffled[f].to_numpy()[shuffled["id"].to_numpy() == k] for f in FEATURES], 1)
            for k in ids
        ]
        assert read(folder / "out.parquet")[1] == scored(folder, kept)[1]


def test_all_workers_have_equal_bytes_and_runs_continue(folder, sequences, monkeypatch):
    from lnrnn.scoring import bulk

    pq.write_table(steps(sequences), folder / "in.parquet", row_group_size=7)
    assert score(folder) == 0 and score(folder, "--workers", "2", output="two.parquet") == 0
    real = bulk.compute

    def compute(job, index):
        if index == 4:
            raise KeyboardInterrupt
        return real(job, index)

    with monkeypatch.context() as patch:
        patch.setattr(bulk, "compute", compute)
        assert score(folder, output="three.parquet") == 130
    assert score(folder, output="three.parquet", long="id") == 2  # another order of steps
    assert score(folder, output="three.parquet") == 0
    assert len({(folder / f"{name}.parquet").read_bytes() for name in ("out", "two", "three")}) == 1


def test_files_have_their_own_ids(folder, sequences, capsys):
    table = steps(sequences)
    for name, part in (("day=1/a", table[:24]), ("day=2/a", table[24:]), ("day=3/empty", table[:0])):
        path = folder / "in" / f"{name}.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(part, path, row_group_size=4)
    assert score(folder, source="in", output="out") == 2
    assert re.search(
        r"day=2/a.parquet, row group 0: id = 28 is also in row group 5 of .*day=1/a.parquet; rows",
        capsys.readouterr().err,
    )
    assert score(folder, "--bad", "skip", source="in", output="out") == 1
    pq.write_table(table[25:], folder / "in" / "day=2" / "a.parquet", row_group_size=4)
    pq.write_table(table[:25], folder / "in" / "day=1" / "a.parquet", row_group_size=4)
    assert score(folder, source="in", output="out") == 0
    ids, results = zip(*(read(path) for path in sorted((folder / "out").rglob("*.parquet"))), strict=True)
    assert (sum(ids, []), sum(results, [])) == scored(folder, sequences)
    assert score(folder, source="in", output="out") == 0  # complete files are read again for their ids


def test_an_id_of_another_file_is_refused_in_each_row_group(folder, sequences, capsys):
    table = steps(sequences)
    (folder / "in").mkdir()
    pq.write_table(table[:4], folder / "in" / "a.parquet")
    pq.write_table(pa.concat_tables([table[4:5], table[:1]]), folder / "in" / "b.parquet", row_group_size=1)
    assert score(folder, source="in", output="out") == 2
    assert "b.parquet, row group 1: id = 0 is also in row group 0 of" in capsys.readouterr().err


@pytest.mark.parametrize("missing", [None, np.nan])
def test_bad_sequences_are_named_by_id(folder, sequences, capsys, missing):
    table = steps(sequences)
    table = table.set_column(1, "time", table["time"].cast(pa.float64()))
    rows = table.to_pylist()
    rows[3]["b"] = None  # of sequence 0
    rows[20]["time"] = missing  # of 4, whose rows are 13 to 24
    pq.write_table(pa.Table.from_pylist(rows, table.schema), folder / "in.parquet", row_group_size=7)
    assert score(folder) == 2
    assert "in.parquet, row group 0, row 0 (id = 0), columns 'a', 'b', 'c': in 'b', step 3 holds a null" in (
        capsys.readouterr().err
    )
    assert score(folder, "--bad", "skip") == 0
    ids, results = scored(folder, sequences)
    assert read(folder / "out.parquet") == (
        ids,
        [None if k in (0, 4) else each for k, each in enumerate(results)],
    )
    listed = pq.read_table(folder / "out.bad.parquet").to_pylist()
    assert [(each["row"], each["row_group"], each["id"]) for each in listed] == [(0, 0, 0), (4, 1, 28)]
    assert listed[1]["reason"] == "a step has no 'time'"


def scattered(table):
    return table.take([*range(10, 60), *range(10)])


def without_id(table):
    return table.set_column(0, "id", pa.array([None, *table["id"].to_pylist()[1:]]))


@pytest.mark.parametrize(
    "change, words, message",
    [
        (scattered, [], r"id = 14 is also in row group 0 of .*in.parquet; .* sort the rows by 'id'"),
        (without_id, [], "row group 0: column 'id' has 1 nulls"),
        (lambda table: table.drop_columns("id"), [], "be one column 'id'; the columns are 'time', 'a'"),
        (lambda table: table.drop_columns("c"), [], "there must be one column 'c'"),
        (lambda table: table.rename_columns(["id", "id", *FEATURES]), [], "must be one column 'id'"),
        (lambda table: table.set_column(0, "id", table["a"]), [], "column 'id' must be of integers or"),
        (
            lambda table: table.set_column(2, "a", [["x"] * len(table)]), [],
            "column 'a' must be .*list<float>, got list<.*string",
        ),
        (None, ["--columns", "a,b"], "columns must be 3 columns"),
        (None, ["--columns", "id,a,b"], "--long must be given with --columns, the features without ID"),
        (None, ["--long", "id,time,a"], "--long must be ID or ID,TIME"),
        (None, ["--long", "id,id"], "--long must be ID or ID,TIME"),
        (None, ["--keep", "a"], "--keep must be left out with --long"),
        (None, ["--only-results"], "--only-results must be left out with --long"),
        (None, ["--id-column", "a"], "--id-column must be left out with --long"),
    ],
)  # fmt: skip
def test_wrong_tables_and_options_are_refused(folder, sequences, capsys, change, words, message):
    table = steps(sequences)
    pq.write_table(table if change is None else change(table), folder / "in.parquet", row_group_size=5)
    assert score(folder, *words) == 2
    err = capsys.readouterr().err
    assert re.search(f"error: .*{message}", err) and err.count("\n") == 1, err
    assert sorted(path.name for path in folder.iterdir()) == ["in.parquet", "m.safetensors"]
