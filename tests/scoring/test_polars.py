"""A Scorer reads polars frames, and other layouts after a line of polars, with equal results."""

from __future__ import annotations

import re

import numpy as np
import pytest

import lnrnn
import sequence_files
from lnrnn.scoring.sequences import INTO
from networks import network

pytest.importorskip("safetensors")
pa = pytest.importorskip("pyarrow")

D = 3
NESTED = pa.list_(pa.list_(pa.float32()))
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


def lists(cells):
    """Returns a column of results as nested lists, with None for nulls."""
    as_list = getattr(cells, "to_pylist", getattr(cells, "to_list", lambda: list(cells)))
    return [None if np.ndim(cell) == 0 else np.array(list(cell)).tolist() for cell in as_list()]


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


@pytest.mark.parametrize("layout", ["long", "columns", "flat"])
def test_other_layouts_become_a_column_of_steps(path, rows, layout):
    """The page scoring.md has these lines."""
    polars = pytest.importorskip("polars")
    text = (sequence_files.ROOT / "docs" / "scoring.md").read_text()
    line = re.search(rf"^frame = (.*)    # {layout}: .*$", text, re.M)[1]
    if layout == "long":
        cells = [(k, t, *step) for k, row in enumerate(rows[:4]) for t, step in enumerate(row.tolist())]
        frame = polars.DataFrame(cells, ["id", "time", *FEATURES], orient="row")
        frame = frame.cast(dict.fromkeys(FEATURES, polars.Float32)).sample(fraction=1, shuffle=True)
    else:
        cells = {"x": [None if row is None else row.ravel().tolist() for row in rows]}
        if layout == "columns":
            each = [[None if row is None else row[:, k].tolist() for row in rows] for k in range(D)]
            cells = dict(zip(FEATURES, each, strict=True))
        kinds = dict.fromkeys(cells, polars.List(polars.Float32))
        frame = polars.DataFrame({"id": range(5), **cells}, schema_overrides=kinds)
    got = lnrnn.Scorer(path, "x")(eval(line, {"frame": frame, "pl": polars}))
    want = dict(enumerate(lists(lnrnn.Scorer(path, "x")(nested(rows))["x_last"])))
    found = dict(zip(got["id"].to_list(), got["x_last"].to_list(), strict=True))
    assert list(found) == sorted(found) and {0, 2, 3} <= set(found)
    assert found == {k: want[k] for k in found}
    assert len(found) == (5 if layout == "flat" else 3)


def test_polars_rows_are_named(path, rows):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"x": [[[1.0, 2.0]]], "id": ["user 7"]})
    with pytest.raises(ValueError, match=r"row 0 of the 1 in this table \(id = 'user 7'\): step 0 has 2"):
        lnrnn.Scorer(path, "x", id_column="id")(frame)
    with pytest.raises(TypeError, match="pandas or polars DataFrame.*got"):
        lnrnn.Scorer(path, "x")(frame.lazy())
