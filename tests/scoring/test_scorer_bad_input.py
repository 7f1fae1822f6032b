"""lnrnn.Scorer: what is wrong with a row, a column, a table or an argument is said by name."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from networks import network

pytest.importorskip("safetensors")
pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")

D = 3
STEPS = pa.list_(pa.list_(pa.float32(), D))
NESTED = pa.list_(pa.list_(pa.float32()))
GOOD = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("scorer") / "model.safetensors"
    network(D, 4).save(path)
    return path


def arrow(kind, *rows):
    return pa.table({"x": pa.array([GOOD, *rows], kind)})


def frame(*rows):
    column = np.empty(1 + len(rows), object)
    for place, row in enumerate([GOOD, *rows]):
        column[place] = row
    return pd.DataFrame({"x": column})


# What stands after two good steps, and the error for it.
BAD_STEPS = {
    "a null": (None, "step 2 is null"),
    "a null inside": ([1.0, None, 3.0], "step 2 holds a null"),
    "too narrow": ([1.0, 2.0], "step 2 has 2 numbers, the model takes 3"),
    "too wide": ([1.0, 2.0, 3.0, 4.0], "step 2 has 4 numbers, the model takes 3"),
}


# Lists of a fixed size have no step of another width.
@pytest.mark.parametrize(
    "bad, make",
    [
        (bad, make)
        for bad in BAD_STEPS
        for make in ("nested", "fixed", "frame", "frame of arrays", "list")
        if make != "fixed" or not bad.startswith("too")
    ],
)
def test_a_bad_step_is_named(path, bad, make):
    step, message = BAD_STEPS[bad]
    row = [*GOOD, step]
    arrays = np.empty(3, object)
    arrays[:] = [np.array(GOOD[0]), np.array(GOOD[1]), None]
    arrays[2] = step if step is None else np.array(step)
    table = {
        "nested": lambda: arrow(NESTED, None, [], row, row),
        "fixed": lambda: arrow(STEPS, None, [], row, row),
        "frame": lambda: frame(None, [], row, row),
        "frame of arrays": lambda: frame(None, [], arrays, arrays),
        "list": lambda: {"x": [GOOD, None, [], row]},
    }[make]()
    with pytest.raises(ValueError, match=rf"^column 'x', row 3: {message}$"):
        lnrnn.Scorer(path, "x")(table)


def test_the_first_of_several_bad_steps_is_named(path):
    with pytest.raises(ValueError, match=r"^column 'x', row 1: step 0 holds a null$"):
        lnrnn.Scorer(path, "x")(arrow(NESTED, [[1.0, None, 3.0], [1.0, 2.0]], [[1.0]]))


@pytest.mark.parametrize(
    "row", ["text", b"bytes", 5, 2.5, {"a": 1}, np.ones((2, 2, D)), np.ones(D), object()]
)
def test_a_row_that_is_no_sequence_of_steps(path, row):
    with pytest.raises(ValueError, match=r"^column 'x', row 1: expected steps of 3 numbers each, got "):
        lnrnn.Scorer(path, "x")(frame(row))


@pytest.mark.parametrize("row", [np.ones((2, 4)), np.ones((5, 2)), [[1.0, 2.0]]])
def test_rows_of_another_width(path, row):
    with pytest.raises(ValueError, match=r"^column 'x', row 1: step 0 has \d numbers, the model takes 3$"):
        lnrnn.Scorer(path, "x")(frame(row))


@pytest.mark.parametrize(
    "row, message",
    [
        ([GOOD[0], "abc"], "step 1 is 'abc'"),
        ([GOOD[0], 7], r"step 1 has the shape \(\)"),
        ([GOOD[0], ["a", "b", "c"]], "step 1 is "),
        ([np.ones((2, 3)), np.ones(3)], r"step 0 has the shape \(2, 3\)"),
    ],
)
def test_steps_that_are_none(path, row, message):
    with pytest.raises(ValueError, match=rf"^column 'x', row 1: {message}"):
        lnrnn.Scorer(path, "x")(frame(row))


@pytest.mark.parametrize(
    "kind, error, message",
    [
        (pa.list_(pa.list_(pa.float32(), 4)), ValueError, "has 4 numbers a step, the model takes 3"),
        (pa.list_(pa.float32()), TypeError, "must be .*, got list<item: float>"),
        (pa.string(), TypeError, "must be .*list<list<float>>, got string"),
        (pa.list_(pa.list_(pa.string())), TypeError, "must be .*, got list<item: list<item: string>>"),
        (pa.list_(pa.list_(pa.list_(pa.float32()))), TypeError, "must be "),
        (pa.float32(), TypeError, "must be "),
    ],
)
def test_arrow_columns_of_another_type(path, kind, error, message):
    with pytest.raises(error, match=rf"^column 'x' {message}"):
        lnrnn.Scorer(path, "x")(pa.table({"x": pa.array([], kind)}))


@pytest.mark.parametrize(
    "table, error, message",
    [
        ({"x": np.ones((2, D)), "x_offsets": [0, 3]}, ValueError, "'x_offsets' must be between 0 and the 2"),
        ({"x": np.ones((2, D)), "x_offsets": [-1, 2]}, ValueError, "'x_offsets' must be between 0 and the 2"),
        ({"x": np.ones((2, D)), "x_offsets": [0, 2, 1]}, ValueError, "must not fall, and does after row 1"),
        ({"x": np.ones((2, D)), "x_offsets": []}, TypeError, "an array of integers"),
        ({"x": np.ones((2, D)), "x_offsets": np.zeros(0, int)}, ValueError, r"of shape \(B \+ 1,\)"),
        ({"x": np.ones((2, D)), "x_offsets": [0.0, 2.0]}, TypeError, "an array of integers"),
        ({"x": np.ones((2, 4)), "x_offsets": [0, 2]}, ValueError, r"'x' must be of shape \(N, 3\)"),
        ({"x": ["a"], "x_offsets": [0, 1]}, TypeError, "column 'x' must be an array of real numbers"),
        (
            {"x": np.ones((2, D))},
            ValueError,
            r"'x' must be of shape \(B, T, 3\), or with an array 'x_offsets'",
        ),
        ({"x": np.ones((2, 5, 4))}, ValueError, r"'x' must be of shape \(B, T, 3\)"),
        ({"x": "text"}, TypeError, "column 'x' must be an array of real numbers"),
        ({"y": 1}, ValueError, "there is no column 'x'; there are 'y'"),
        ({}, ValueError, "there is no column 'x'; there are none"),
        ({"x": [GOOD], "x_last": 1}, ValueError, "there is a column 'x_last' already"),
        (pd.DataFrame({"y": [1]}), ValueError, "there is no column 'x'; there are 'y'"),
        (pd.DataFrame([[1, 2]], columns=["x", "x"]), ValueError, "there are 2 columns 'x'"),
        (pd.DataFrame({"x": [GOOD], "x_last": [1]}), ValueError, "there is a column 'x_last' already"),
        (pa.table({"y": [1]}), ValueError, "there is no column 'x'; there are 'y'"),
        (pa.table([[1], [2]], names=["x", "x"]), ValueError, "there are 2 columns 'x'"),
        (np.ones((2, D)), TypeError, "expected a dict of arrays, .*, got an array of shape"),
        ([GOOD], TypeError, "expected a dict of arrays"),
        (None, TypeError, "expected a dict of arrays"),
    ],
)
def test_bad_tables(path, table, error, message):
    with pytest.raises(error, match=message):
        lnrnn.Scorer(path, "x")(table)


def test_offsets_of_all_steps_need_a_name_of_their_own(path):
    table = {"x": np.ones((2, D)), "x_offsets": [0, 2], "x_all_offsets": 1}
    with pytest.raises(ValueError, match="there is a column 'x_all_offsets' already"):
        lnrnn.Scorer(path, "x", "all")(table)


@pytest.mark.parametrize(
    "options, error, message",
    [
        (dict(column=3), TypeError, "column must be a name, got 3"),
        (dict(column=None), TypeError, "column must be a name"),
        (dict(into="first"), ValueError, "into must be one of 'last', 'mean', 'all', got 'first'"),
        (dict(threads=0), ValueError, "threads must be an integer of at least 1"),
        (dict(threads=1.5), TypeError, "threads must be an integer"),
        (dict(output=3), TypeError, "output must be a name"),
    ],
)
def test_bad_options(path, options, error, message):
    with pytest.raises(error, match=message):
        lnrnn.Scorer(path, **{"column": "x", **options})


def test_paths_that_are_none(tmp_path):
    with pytest.raises(TypeError):
        lnrnn.Scorer(3, "x")
    with pytest.raises(FileNotFoundError, match="nothing.safetensors"):
        lnrnn.Scorer(tmp_path / "nothing.safetensors", "x")({"x": [GOOD]})
    (tmp_path / "text").write_text("to whom it may concern")
    with pytest.raises(ValueError, match="cannot load"):
        lnrnn.Scorer(tmp_path / "text", "x")({"x": [GOOD]})


# --- batch norm ---------------------------------------------------------------------------------------------


def batch_normed(tmp_path, overrun, trained=4):
    model = network(D, 4, norm=lnrnn.BatchNormSpec(max_steps=4, overrun=overrun), trained=trained)
    model.save(tmp_path / "m.safetensors")
    return model, lnrnn.Scorer(tmp_path / "m.safetensors", "x")


def test_a_batch_that_is_its_own_statistics_is_refused(tmp_path):
    _, scorer = batch_normed(tmp_path, "batch")
    with pytest.raises(ValueError, match="overrun='batch': a row's result would depend"):
        scorer({"x": [GOOD]})


def test_a_row_beyond_the_known_steps_is_named(tmp_path):
    model, scorer = batch_normed(tmp_path, "raise")
    assert model.known_steps == 4
    rows = [None, np.ones((4, D)), np.ones((5, D)), np.ones((6, D))]
    with pytest.raises(ValueError, match="row 2: it has 5 steps, and statistics are known for 4 only"):
        scorer({"x": rows})
    assert len(scorer({"x": rows[:2]})["x_last"]) == 2


@pytest.mark.parametrize("overrun", ["last", "mean"])
def test_steps_beyond_the_known_ones(tmp_path, overrun):
    model, scorer = batch_normed(tmp_path, overrun)
    row = np.random.default_rng(0).standard_normal((9, D)).astype(np.float32)
    got = scorer({"x": [row, GOOD]})["x_last"]
    assert np.array_equal(got[0], model(row[:, None])[1][0, 0])
    _, scorer = batch_normed(tmp_path, overrun, trained=0)
    with pytest.raises(ValueError, match="row 0: it has 2 steps, and statistics are known for 0 only"):
        scorer({"x": [GOOD]})
