"""A Scorer reads a column for each feature, flat lists and polars frames, with equal results."""

from __future__ import annotations

import re

import numpy as np
import pytest

import lnrnn
import sequence_files
from lnrnn import cli
from lnrnn.scoring.sequences import INTO
from networks import network

pytest.importorskip("safetensors")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

D = 3
NESTED, FLAT = pa.list_(pa.list_(pa.float32())), pa.list_(pa.float32())
FEATURES = ["a", "b", "c"]


@pytest.fixture
def path(tmp_path):
    network(D, 4, cell="GRU").save(tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


@pytest.fixture
def rows(rng):
    """Returns rows (T, D) as arrays, one without steps and one null."""
    rows = [rng.standard_normal((T, D)).astype(np.float32) for T in (4, 0, 7, 1)]
    return [*rows, None]


def nested(rows):
    return pa.table({"x": pa.array([None if row is None else row.tolist() for row in rows], NESTED)})


def flat(rows, kind=FLAT):
    cells = pa.array([None if row is None else row.ravel().tolist() for row in rows], kind)
    return pa.table({"x": cells})


def features(rows, kind=FLAT):
    cells = {
        name: pa.array([None if row is None else row[:, k].tolist() for row in rows], kind)
        for k, name in enumerate(FEATURES)
    }
    return pa.table(cells)


def frames(table):
    """Returns the table as each type that a Scorer takes."""
    pandas = pytest.importorskip("pandas")
    lists = {name: table[name].to_pylist() for name in table.schema.names}
    yield table
    yield table.combine_chunks().to_batches()[0]
    yield table.to_pandas()
    yield table.to_pandas(types_mapper=pandas.ArrowDtype)
    yield pandas.DataFrame(lists)
    yield lists
    yield {name: table[name].combine_chunks() for name in lists}
    yield pytest.importorskip("polars").from_arrow(table)


def lists(cells):
    """Returns a column of results as nested lists, with None for nulls."""
    as_list = getattr(cells, "to_pylist", getattr(cells, "to_list", lambda: list(cells)))
    return [None if np.ndim(cell) == 0 else np.array(list(cell)).tolist() for cell in as_list()]


@pytest.mark.parametrize("into", INTO)
@pytest.mark.parametrize("layout", ["features", "flat", "large flat"])
def test_all_layouts_have_equal_results(path, rows, into, layout):
    want = lists(lnrnn.Scorer(path, "x", into)(nested(rows))[f"x_{into}"])
    if layout == "features":
        table, scorer = features(rows), lnrnn.Scorer(path, columns=FEATURES, into=into, output="code")
    else:
        kind = pa.large_list(pa.float64()) if layout == "large flat" else FLAT
        table, scorer = flat(rows, kind), lnrnn.Scorer(path, "x", into, flat=True, output="code")
    for frame in frames(table):
        got = scorer(frame)
        assert type(got) is type(frame)
        assert lists(got["code"]) == want, type(frame)


@pytest.mark.parametrize("into", INTO)
def test_arrays_of_equal_lengths(path, rng, into):
    x = rng.standard_normal((5, 6, D)).astype(np.float32)
    want = lnrnn.Scorer(path, "x", into)({"x": x})[f"x_{into}"]
    own = {name: x[:, :, k] for k, name in enumerate(FEATURES)}
    got = lnrnn.Scorer(path, columns=FEATURES, into=into)(own)[f"y_{into}"]
    assert np.array_equal(got, want)
    got = lnrnn.Scorer(path, "x", into, flat=True)({"x": x.reshape(5, 6 * D)})[f"x_{into}"]
    assert np.array_equal(got, want)


@pytest.mark.parametrize("into", INTO)
@pytest.mark.parametrize("fixed", [False, True])
def test_polars_frames_come_back(path, rows, into, fixed):
    polars = pytest.importorskip("polars")
    table = nested(rows)
    if fixed:
        table = table.set_column(0, "x", table["x"].cast(pa.list_(pa.list_(pa.float32(), D))))
    frame = polars.from_arrow(table.append_column("id", pa.array(range(len(rows)))))
    frame = frame.with_columns(polars.Series("kind", ["a"] * len(rows), polars.Categorical))
    got = lnrnn.Scorer(path, "x", into, bad="null")(frame)
    assert isinstance(got, polars.DataFrame) and got.columns == [
        *frame.columns, f"x_{into}", f"x_{into}_error",
    ]  # fmt: skip
    assert got.select(frame.columns).equals(frame) and got[f"x_{into}_error"].null_count() == len(rows)
    each = polars.Array(polars.Float32, 4)
    assert got[f"x_{into}"].dtype == (polars.List(each) if into == "all" else each)
    want = lists(lnrnn.Scorer(path, "x", into)(nested(rows))[f"x_{into}"])
    assert got[f"x_{into}"].to_list() == want
    assert lnrnn.Scorer(path, "x", into)(frame.clear()).height == 0


def test_long_tables_are_grouped_by_polars(path, rows):
    """The page scoring.md has this recipe."""
    polars = pytest.importorskip("polars")
    cells = [(k, t, *step) for k, row in enumerate(rows[:4]) for t, step in enumerate(row.tolist())]
    frame = polars.DataFrame(cells, ["id", "time", *FEATURES], orient="row").sample(fraction=1, shuffle=True)
    text = (sequence_files.ROOT / "docs" / "scoring.md").read_text()
    recipe = re.search(r"use `(frame\.sort.*?)` of polars", text, re.S)[1]
    frame = frame.cast(dict.fromkeys(FEATURES, polars.Float32))
    got = lnrnn.Scorer(path, columns=FEATURES)(eval(recipe, {"frame": frame}))
    want = lists(lnrnn.Scorer(path, "x")(nested(rows))["x_last"])
    assert got["id"].to_list() == [0, 2, 3] and got["y_last"].to_list() == [want[0], want[2], want[3]]


def test_polars_rows_are_named(path, rows):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"x": [[[1.0, 2.0]]], "id": ["user 7"]})
    with pytest.raises(ValueError, match=r"row 0 of the 1 in this table \(id = 'user 7'\): step 0 has 2"):
        lnrnn.Scorer(path, "x", id_column="id")(frame)
    with pytest.raises(TypeError, match="pandas or polars DataFrame.*got"):
        lnrnn.Scorer(path, "x")(frame.lazy())


def test_rows_of_features_that_differ_are_bad(path, rows):
    cells = {
        "a": [[1.0, 2.0], [1.0], None, None, [1.0, None], [1.0]],
        "b": [[1.0, 2.0], [1.0], [3.0], None, [1.0, 2.0], [1.0]],
        "c": [[1.0, 2.0], [1.0, 2.0], [3.0], None, [1.0, 2.0], [7.0]],
    }
    table = pa.table({name: pa.array(column, FLAT) for name, column in cells.items()})
    got = lnrnn.Scorer(path, columns=FEATURES, bad="null")(table)
    assert got["y_last_error"].to_pylist() == [
        None, "it has 1 steps in 'a' and 2 in 'c'", "it is null in 'a'", None, "in 'a', step 1 holds a null",
        None,
    ]  # fmt: skip
    right = [np.array([[1, 1, 1], [2, 2, 2]], np.float32), np.array([[1, 1, 7]], np.float32)]
    want = lnrnn.Scorer(path, "x")(nested(right))["x_last"].to_pylist()
    assert got["y_last"].to_pylist() == [want[0], None, None, None, None, want[1]]
    with pytest.raises(ValueError, match="columns 'a', 'b', 'c', row 1 of the 6 in this table: it has 1 ste"):
        lnrnn.Scorer(path, columns=FEATURES)(table)


def test_flat_rows_with_a_part_of_a_step_are_bad(path):
    table = pa.table({"x": pa.array([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0], None], FLAT)})
    got = lnrnn.Scorer(path, "x", flat=True, bad="null")(table)
    reason = "it has 4 numbers, which is no multiple of the model's 3"
    assert got["x_last_error"].to_pylist() == [reason, None, None]
    want = lnrnn.Scorer(path, "x")(nested([np.array([[1, 2, 3]], np.float32)]))["x_last"][0]
    assert got["x_last"].to_pylist() == [None, want.as_py(), None]


@pytest.mark.parametrize("layout", ["features", "flat"])
def test_the_command_reads_all_layouts(tmp_path, path, rows, layout, capsys):
    table, words = flat(rows), ["--column", "x", "--flat"]
    if layout == "features":
        table, words = features(rows), ["--columns", "a,b,c", "--name", "x_last"]
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=2)
    files = [str(path), str(tmp_path / "in.parquet"), str(tmp_path / "out.parquet")]
    assert cli.main(["score", *files, *words, "--workers", "1"]) == 0
    want = lnrnn.Scorer(path, "x")(nested(rows))["x_last"].to_pylist()
    got = pq.read_table(tmp_path / "out.parquet")
    assert got["x_last"].to_pylist() == want and got.drop_columns("x_last").equals(table)
    if layout == "features":
        assert cli.main(["score", *files, "--columns", "a,b", "--workers", "1"]) == 2
        assert "columns must be 3 columns, as the model takes, got 2" in capsys.readouterr().err
