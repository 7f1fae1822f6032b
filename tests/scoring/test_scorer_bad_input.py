"""Errors of lnrnn.Scorer name the wrong row, column, table or argument."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from networks import network
from sequence_files import objects

pytest.importorskip("safetensors")
pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")

D = 3
STEPS = pa.list_(pa.list_(pa.float32(), D))
NESTED = pa.list_(pa.list_(pa.float32()))
GOOD = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
HINT = r"\(bad='null' gives such rows a null\)"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("scorer") / "model.safetensors"
    network(D, 4).save(path)
    return path


def arrow(kind, *rows):
    return pa.table({"x": pa.array([GOOD, *rows], kind)})


def frame(*rows):
    return pd.DataFrame({"x": objects([GOOD, *rows])})


# {name of the case: (a bad step, which follows two good ones, and the error)}.
BAD_STEPS = {
    "a null": (None, "step 2 is null"),
    "a null inside": ([1.0, None, 3.0], "step 2 holds a null"),
    "too narrow": ([1.0, 2.0], "step 2 has 2 numbers, the model takes 3"),
    "too wide": ([1.0, 2.0, 3.0, 4.0], "step 2 has 4 numbers, the model takes 3"),
}


MAKES = "nested", "fixed", "frame", "frame of arrays", "list"
# In lists of a fixed size, no step is too narrow or too wide.
CASES = [(bad, make) for bad in BAD_STEPS for make in MAKES if make != "fixed" or not bad.startswith("too")]


@pytest.mark.parametrize(("bad", "make"), CASES)
def test_a_bad_step_is_named(path, bad, make):
    step, message = BAD_STEPS[bad]
    row = [*GOOD, step]
    arrays = objects([*map(np.array, GOOD), None if step is None else np.array(step)])
    table = {
        "nested": lambda: arrow(NESTED, None, [], row, row),
        "fixed": lambda: arrow(STEPS, None, [], row, row),
        "frame": lambda: frame(None, [], row, row),
        "frame of arrays": lambda: frame(None, [], arrays, arrays),
        "list": lambda: {"x": [GOOD, None, [], row]},
    }[make]()
    with pytest.raises(ValueError, match=rf"^column 'x', row 3 of the \d in this table: {message} {HINT}$"):
        lnrnn.Scorer(path, "x")(table)


def test_the_first_of_several_bad_steps_is_named(path):
    with pytest.raises(ValueError, match=r"^column 'x', row 1 of the 3 in this table: step 0 holds a null "):
        lnrnn.Scorer(path, "x")(arrow(NESTED, [[1.0, None, 3.0], [1.0, 2.0]], [[1.0]]))


BAD_ROWS = [
    *((row, "each step must be 3 numbers, got ")
      for row in ("text", b"bytes", 5, 2.5, {"a": 1}, np.ones((2, 2, D)), np.ones(D), object())),
    *((row, r"step 0 has \d numbers, the model takes 3 ")
      for row in (np.ones((2, 4)), np.ones((5, 2)), [[1.0, 2.0]])),
    (np.ma.ones((2, 3)), "each step must be 3 numbers, got a masked"),
    ([GOOD[0], "abc"], "step 1 must be 3 numbers, got 'abc'"), ([GOOD[0], 7], r"step 1 has the shape \(\)"),
    ([GOOD[0], ["a", "b", "c"]], "step 1 must be 3 numbers, got "),
    ([np.ones((2, 3)), np.ones(3)], r"step 0 has the shape \(2, 3\)"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "message"), BAD_ROWS)
def test_a_row_that_is_no_sequence_is_named(path, row, message):
    with pytest.raises(ValueError, match=rf"^column 'x', row 1 of the 2 in this table: {message}"):
        lnrnn.Scorer(path, "x")(frame(row))


# --- bad="null", and names ---------------------------------------------------------------------------------


def bad_tables(kind):
    """Returns tables with five rows (good, null, bad, without steps, bad), and the names of the rows."""
    rows = [GOOD, None, [[1.0, None, 3.0]], [], [GOOD[0], [1.0]]]
    names = ["a", "b", "c", "d", "e"]
    if kind == "pandas":
        return pd.DataFrame({"x": objects(rows), "user": names}, index=[5, 3, 1, 9, 9])
    if kind == "list":
        return {"x": rows, "user": np.array(names)}
    column = pa.array(rows, NESTED)
    if kind == "ArrowDtype":
        return pd.DataFrame({"x": pd.array(column, pd.ArrowDtype(NESTED)), "user": names})
    if kind == "dict of Arrow":
        return {"x": column, "user": pa.array(names)}
    return {"table": pa.table, "batch": pa.record_batch}[kind]({"x": column, "user": names})


KINDS = ("table", "batch", "pandas", "ArrowDtype", "list", "dict of Arrow")


@pytest.mark.parametrize("into", ["last", "mean", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_bad_rows_become_null(path, kind, into):
    table = bad_tables(kind)
    got = lnrnn.Scorer(path, "x", into, bad="null")(table)
    assert type(got) is type(table)
    assert list(got if isinstance(got, (dict, pd.DataFrame)) else got.schema.names) == [
        "x", "user", f"x_{into}", f"x_{into}_error",
    ]  # fmt: skip
    cells, errors = (
        [None if x is pd.NA else x for x in plain(got[f"x_{into}{end}"])] for end in ("", "_error")
    )
    assert errors == [None, None, "step 0 holds a null", None, "step 1 has 1 numbers, the model takes 3"]
    assert [cell is None for cell in cells] == [False, True, True, False, True]
    want = lnrnn.Scorer(path, "x", into)({"x": [GOOD, []]})[f"x_{into}"]
    for cell, right in zip((cells[0], cells[3]), want, strict=True):
        assert np.array_equal(np.array(list(cell), np.float32), np.array(list(right), np.float32))


def two_rows(table):
    """Returns the rows that are not bad."""
    return {name: table[name][:2] for name in table} if isinstance(table, dict) else table[:2]


def plain(column):
    return column.to_pylist() if hasattr(column, "to_pylist") else list(column)


@pytest.mark.parametrize("kind", KINDS)
def test_the_column_of_errors_is_always_there(path, kind):
    got = lnrnn.Scorer(path, "x", bad="null", output="code")(two_rows(bad_tables(kind)))["code_error"]
    assert [bool(value is None or value is pd.NA) for value in plain(got)] == [True, True]
    assert kind not in ("table", "batch") or got.type == pa.string()


@pytest.mark.parametrize("into", ["last", "all"])
@pytest.mark.parametrize("flat", [True, False])
def test_bad_rows_of_arrays_become_nan(tmp_path, into, flat):
    """The bad rows have too many steps. Steps that belong to no row get zeros."""
    model = network(D, 4, norm=lnrnn.BatchNormSpec(max_steps=4), trained=4)
    model.save(tmp_path / "m.safetensors")
    x = np.random.default_rng(0).standard_normal((11, D)).astype(np.float32)
    scorer = lnrnn.Scorer(tmp_path / "m.safetensors", "x", into, bad="null")
    bad = "it has 5 steps, and statistics are known for 4 only"
    if flat:
        got = scorer({"x": x, "x_offsets": [1, 3, 8, 10]})
        cells, errors, rows = got[f"x_{into}"], [None, bad, None], [1, 3]
        right = lnrnn.Scorer(tmp_path / "m.safetensors", "x", into)({"x": x, "x_offsets": rows})[f"x_{into}"]
        good, ill, after = (slice(3), slice(3, 8), slice(8, 10)) if into == "all" else ([0], [1], [2])
        assert np.array_equal(cells[good], right[good]) and np.isfinite(cells[after]).all()
        assert np.isnan(cells[ill]).all() and not cells[10:].any()
        assert cells.shape == ((11, 4) if into == "all" else (3, 4))
    else:
        got = scorer({"x": np.stack([x[:5], x[5:10]])})
        cells, errors = got[f"x_{into}"], [bad] * 2
        assert cells.shape == ((2, 5, 4) if into == "all" else (2, 4)) and np.isnan(cells).all()
    assert cells.dtype == np.float32 and got[f"x_{into}_error"].tolist() == errors


def beyond_float32():
    """Yields tables of three rows: good, with 1e300 at step 1, with infinity."""
    x = np.ones((3, 2, D))
    x[1, 1, 2], x[2, 0, 0] = 1e300, np.inf
    around = np.full((1, D), 1e300)  # steps that belong to no row
    column = pa.array(x.tolist(), pa.list_(pa.list_(pa.float64())))
    yield "array", {"x": x}
    yield "longdouble", {"x": x.astype(np.longdouble)}
    yield "offsets", {"x": np.concatenate([around, *x, around]), "x_offsets": [1, 3, 5, 7]}
    yield "pandas", pd.DataFrame({"x": list(x)})
    yield "ArrowDtype", pd.DataFrame({"x": pd.array(column, pd.ArrowDtype(column.type))})
    yield "fixed", pa.table({"x": column.cast(pa.list_(pa.list_(pa.float64(), D)))})
    yield "polars", pa.table({"x": column})


@pytest.mark.parametrize("kind, table", list(beyond_float32()), ids=lambda v: v if isinstance(v, str) else "")
def test_a_number_beyond_float32_makes_a_row_bad_but_infinity_does_not(path, kind, table):
    if kind == "polars":
        table = pytest.importorskip("polars").from_arrow(table)
    with pytest.raises(ValueError, match="row 1 of the 3 .*: step 1 holds a number beyond float32 "):
        lnrnn.Scorer(path, "x")(table)
    got = lnrnn.Scorer(path, "x", output="y", bad="null")(table)
    errors = [None if value is pd.NA else value for value in plain(got["y_error"])]
    assert errors == [None, "step 1 holds a number beyond float32", None]
    assert np.isnan(np.array(list(plain(got["y"])[2]))).all() and np.isfinite(list(plain(got["y"])[0])).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_row_is_named_by_a_column(path, kind):
    with pytest.raises(ValueError, match=r"row 2 of the 5 in this table \(user = 'c'\): step 0 holds a null"):
        lnrnn.Scorer(path, "x", id_column="user")(bad_tables(kind))


def test_an_iterator_of_tables_gives_columns_of_errors(path):
    tables = list(lnrnn.Scorer(path, "x", bad="null")(iter([bad_tables("batch"), bad_tables("batch")])))
    for table in tables:
        assert table.schema.field("x_last").type == pa.list_(pa.float32())
        assert table["x_last"].null_count == 3 and table["x_last_error"].null_count == 3


# --- batch norm ---------------------------------------------------------------------------------------------


def batch_normed(tmp_path, overrun, trained=4):
    model = network(D, 4, norm=lnrnn.BatchNormSpec(max_steps=4, overrun=overrun), trained=trained)
    model.save(tmp_path / "m.safetensors")
    return model, lnrnn.Scorer(tmp_path / "m.safetensors", "x")


def test_a_row_beyond_the_known_steps_is_named(tmp_path):
    model, scorer = batch_normed(tmp_path, "raise")
    assert model.known_steps == 4
    rows = [None, np.ones((4, D)), np.ones((5, D)), np.ones((6, D))]
    expected_text = "row 2 of the 4 in this table: it has 5 steps, and statistics are known for 4 only"
    with pytest.raises(ValueError, match=expected_text):
        scorer({"x": rows})
    assert len(scorer({"x": rows[:2]})["x_last"]) == 2


@pytest.mark.parametrize("overrun", ["last", "mean"])
def test_steps_beyond_the_known_ones_follow_the_policy(tmp_path, overrun):
    model, scorer = batch_normed(tmp_path, overrun)
    row = np.random.default_rng(0).standard_normal((9, D)).astype(np.float32)
    got = scorer({"x": [row, GOOD]})["x_last"]
    assert np.array_equal(got[0], model(row[:, None])[1][0, 0])
    _, scorer = batch_normed(tmp_path, overrun, trained=0)
    expected_text = "row 0 of the 1 in this table: it has 2 steps, and statistics are known for 0 only"
    with pytest.raises(ValueError, match=expected_text):
        scorer({"x": [GOOD]})


@pytest.mark.parametrize("labels", [[1, 0], ["a", "b"]])
def test_a_dict_of_series_names_rows_by_index(path, labels):
    table = {"x": [GOOD, [[1.0]]], "who": pd.Series(["first", "second"], index=labels)}
    with pytest.raises(ValueError, match=r"row 1 of the 2 in this table \(who = 'second'\)"):
        lnrnn.Scorer(path, "x", id_column="who")(table)
    with pytest.raises(ValueError, match="column 'who' has 1 entries, and no row 1"):
        lnrnn.Scorer(path, "x", id_column="who")(table | {"who": ["first"]})


def test_a_pickle_of_an_earlier_version_is_refused(path):
    old = lnrnn.Scorer.__new__(lnrnn.Scorer)
    with pytest.raises(ValueError, match="earlier version"):
        old.__setstate__({"path": str(path), "column": "x"})


@pytest.mark.parametrize("bad", ["raise", "null"])
def test_on_call_gets_the_counts_of_each_table(path, bad):
    calls = []
    scorer = lnrnn.Scorer(path, "x", bad=bad, on_call=calls.append)
    scorer(arrow(NESTED, [[1.0, 2.0, 3.0]], None))
    wrong = arrow(NESTED, [[1.0, 2.0]])
    if bad == "null":
        scorer(wrong)
    else:
        with pytest.raises(ValueError, match="step 0 has 2 numbers"):
            scorer(wrong)
    assert [call[:3] for call in calls] == [(3, 0, 3), (2, 1, 2 if bad == "null" else 0)]
    assert all(0 < call.seconds < 60 for call in calls)
