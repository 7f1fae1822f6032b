"""lnrnn.Scorer gives each row of every kind of table and column the model's own result, bit for bit."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import lnrnn
from lnrnn.scoring import scorer as scorer_module
from lnrnn.scoring import sequences
from networks import network
from sequence_files import objects

pytest.importorskip("safetensors")
pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")

INTO = ("last", "mean", "all")
D = 3
STEPS = pa.list_(pa.list_(pa.float32(), D))
LENGTHS = (4, 0, 7, 1, 12, 5)
KINDS = ("batch", "table", "chunks", "nested", "large", "view", "double", "half", "bool")


@pytest.fixture(scope="module")
def model():
    return network(D, 5, cell="LSTM", num_layers=2, bidirectional=True)


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("scorer") / "model.safetensors"
    model.save(path)
    return path


@pytest.fixture
def rows(rng):
    return [rng.standard_normal((T, D)).astype(np.float32) for T in LENGTHS]


def expected(model, row, into):
    """Returns the result of one sequence (T, D), by a call of the model."""
    if into == "last":
        state = model(row[:, None])[1]
        h = state[0] if isinstance(state, tuple) else state
        return h[-model.num_directions :, 0].reshape(-1)
    y = model(row[:, None])[0][:, 0]
    if into == "all":
        return y
    return (y.sum(0, dtype=np.float64) / max(len(y), 1)).astype(np.float32)


def lists(rows):
    return [None if row is None else row.tolist() for row in rows]


def flat(rows):
    return {"x": np.concatenate(rows), "x_offsets": np.cumsum([0, *map(len, rows)])}


def same(got, want):
    """Compares bits, so NaN equals NaN."""
    got = np.asarray(got, np.float32)
    assert got.shape == want.shape and got.tobytes() == want.tobytes()


def same_rows(cells, model, rows, into):
    """Compares `cells`, one for each row, with results of the model. The cell of a null row is None."""
    for row, cell in zip(rows, cells, strict=True):
        assert (cell is None or cell is pd.NA) == (row is None)
        if row is not None:
            want = expected(model, row.astype(np.float32), into)
            same(np.array(list(cell), np.float32).reshape(want.shape), want)


def python(program, given=None, **environment):
    """Runs a program in a new process, with `given` pickled as stdin. Returns its output."""
    return subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(given), env=os.environ | environment,
        capture_output=True,
    )  # fmt: skip


# --- results of rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("into", INTO)
@pytest.mark.parametrize("kind", KINDS)
def test_arrow_rows_have_the_results_of_the_model(path, model, rows, into, kind):
    given = [rows[0], None, *rows[1:]]
    kinds = {
        "nested": pa.list_(pa.list_(pa.float32())),
        "large": pa.large_list(pa.large_list(pa.float32())),
        "view": pa.list_view(pa.list_(pa.float32(), D)),
        "double": pa.list_(pa.list_(pa.float64(), D)),
        "half": pa.list_(pa.list_(pa.float16(), D)),
        "bool": pa.list_(pa.list_(pa.bool_(), D)),
    }
    if kind in ("half", "bool"):
        given = [None if row is None else row.astype({"half": np.float16}.get(kind, bool)) for row in given]
    column = pa.array(lists(given), kinds.get(kind, STEPS))
    if kind == "chunks":
        column = pa.chunked_array([column.slice(0, 2), column.slice(2, 1), column.slice(3)])
    make = pa.record_batch if kind == "batch" else pa.table
    table = make({"id": pa.array(range(len(given))), "x": column})
    got = lnrnn.Scorer(path, "x", into)(table)
    assert type(got) is type(table) and got.schema.names == ["id", "x", f"x_{into}"]
    assert got.column("id").equals(table.column("id")) and got.column("x").equals(table.column("x"))
    width = pa.list_(pa.float32(), 10)
    large = {"large": pa.large_list(width)}.get(kind, pa.list_(width))
    assert got.schema.field(f"x_{into}").type == (large if into == "all" else width)
    same_rows(got.column(f"x_{into}").to_pylist(), model, given, into)


@pytest.mark.parametrize("into", INTO)
@pytest.mark.parametrize("kind", ["arrays", "lists", "arrow's objects", "ArrowDtype", "float64"])
def test_pandas_rows_have_the_results_of_the_model(path, model, rows, into, kind):
    given = [rows[0], None, *rows[1:]]
    index = [f"row {k}" for k in range(len(given))]
    column = pa.array(lists(given), STEPS)
    cells = {
        "arrays": lambda: objects([np.nan if row is None else row for row in given]),
        "float64": lambda: objects([pd.NA if row is None else row.astype(float) for row in given]),
        "lists": lambda: objects(lists(given)),
        "arrow's objects": lambda: column.to_pandas().to_numpy(),
        "ArrowDtype": lambda: pd.arrays.ArrowExtensionArray(pa.chunked_array([column])),
    }
    frame = pd.DataFrame({"x": pd.Series(cells[kind](), index=index), "id": range(len(given))}, index=index)
    before = frame.copy()
    got = lnrnn.Scorer(path, "x", into)(frame)
    assert list(frame) == ["x", "id"] and list(got) == ["x", "id", f"x_{into}"]
    assert list(got.index) == index and got["id"].equals(before["id"])
    assert isinstance(got[f"x_{into}"].dtype, pd.ArrowDtype) == (kind == "ArrowDtype")
    same_rows(got[f"x_{into}"], model, given, into)
    arrow = pa.Table.from_pandas(got[["id", f"x_{into}"]]) if into != "all" or kind == "lists" else None
    assert arrow is None or pa.types.is_nested(arrow.schema.field(f"x_{into}").type)


@pytest.mark.parametrize("into", INTO)
def test_a_dict_of_values_and_offsets_is_a_table(path, model, rows, into):
    got = lnrnn.Scorer(path, "x", into)({"id": [1, 2], **flat(rows)})
    offsets = flat(rows)["x_offsets"]
    for row, (first, end) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        cell = got[f"x_{into}"]
        same(cell[first:end] if into == "all" else cell[row], expected(model, rows[row], into))
    assert set(got) == {"id", "x", "x_offsets", f"x_{into}", *(["x_all_offsets"] if into == "all" else [])}
    assert into != "all" or np.array_equal(got["x_all_offsets"], offsets)


def test_steps_outside_of_all_rows_have_zeros(path, model, rows):
    values = np.concatenate(rows)
    got = lnrnn.Scorer(path, "x", "all")({"x": values, "x_offsets": np.array([2, 4, 11], np.uint8)})
    same(got["x_all"][2:4], expected(model, values[2:4], "all"))
    same(got["x_all"][4:11], expected(model, values[4:11], "all"))
    assert not got["x_all"][:2].any() and not got["x_all"][11:].any() and len(got["x_all"]) == len(values)


@pytest.mark.parametrize("into", INTO)
def test_a_dict_of_equally_long_rows_is_a_table(path, model, rng, into):
    x = rng.standard_normal((4, 6, D))
    cell = lnrnn.Scorer(path, "x", into)({"x": x})[f"x_{into}"]
    assert cell.shape == ((4, 6, 10) if into == "all" else (4, 10)) and cell.dtype == np.float32
    for row, got in zip(x, cell, strict=True):
        same(got, expected(model, row.astype(np.float32), into))


@pytest.mark.parametrize("into", INTO)
@pytest.mark.parametrize("kind", [list, objects, lambda rows: pa.array(lists(rows), STEPS)])
def test_a_dict_of_objects_is_a_table(path, model, rows, into, kind):
    given = [rows[0], None, *rows[1:]]
    cells = lnrnn.Scorer(path, "x", into)({"x": kind(given)})[f"x_{into}"]
    assert isinstance(cells, pa.Array) or cells.dtype == object
    same_rows(cells.to_pylist() if isinstance(cells, pa.Array) else cells, model, given, into)


def test_a_step_may_be_one_number(tmp_path, rng):
    model = network(1, 4, cell="GRU")
    model.save(tmp_path / "m.safetensors")
    scorer = lnrnn.Scorer(tmp_path / "m.safetensors", "x")
    rows = [rng.standard_normal(T).astype(np.float32) for T in LENGTHS]
    want = np.stack([expected(model, row[:, None], "last") for row in rows])
    offsets = np.cumsum([0, *LENGTHS])
    same(scorer({"x": np.concatenate(rows), "x_offsets": offsets})["x_last"], want)
    same(np.stack(scorer({"x": rows})["x_last"]), want)
    same(np.stack(scorer(pd.DataFrame({"x": rows}))["x_last"]), want)
    column = pa.array([row.tolist() for row in rows], pa.list_(pa.float32()))
    same(scorer(pa.table({"x": column}))["x_last"].to_pylist(), want)
    same(scorer({"x": np.stack([rows[4], rows[4]])})["x_last"], want[[4, 4]])


def test_an_iterator_of_tables_gives_an_iterator(path, rows):
    scorer = lnrnn.Scorer(path, "x")
    tables = [pa.table({"x": pa.array(lists(rows[:2]), STEPS)}), pd.DataFrame({"x": rows[2:]}), flat(rows)]
    got = scorer(iter(tables))
    assert iter(got) is got
    first, second, third = got
    same([*first["x_last"].to_pylist(), *second["x_last"]], third["x_last"])


@pytest.mark.parametrize("large", (False, True))
@pytest.mark.parametrize("into", INTO)
def test_results_of_an_iterator_of_arrow_tables_are_plain_lists(path, rows, into, large):
    """Spark, which alone passes iterators, has no lists of a fixed size."""
    scorer, list_of = lnrnn.Scorer(path, "x", into), pa.large_list if large else pa.list_
    column = pa.array([*lists(rows), None], list_of(STEPS.value_type))
    table = pa.table({"x": column, "id": range(len(column))})
    one = pa.list_(pa.float32())
    for given in (table, table.to_batches()[0], table[:0]):
        got, want = next(scorer(iter([given]))), scorer(given)
        assert type(got) is type(want)
        assert got.schema.names == want.schema.names
        assert got["x"].equals(want["x"]) and got["id"].equals(want["id"])
        assert got[f"x_{into}"].type == (list_of(one) if into == "all" else one)
        assert got[f"x_{into}"].to_pylist() == want[f"x_{into}"].to_pylist()


@pytest.mark.parametrize("into", INTO)
def test_tables_without_rows_have_empty_results(path, into):
    scorer = lnrnn.Scorer(path, "x", into)
    frame = pd.DataFrame({"x": pd.Series([], dtype="str"), "id": pd.Series([], dtype="int64")})
    assert list(scorer(frame)) == ["x", "id", f"x_{into}"] and len(scorer(frame)) == 0
    batch = pa.table({"x": pa.array([], STEPS)})
    assert scorer(batch).schema == scorer(pa.table({"x": pa.array([[]], STEPS)})).schema
    assert len(scorer({"x": np.zeros((0, 5, D))})[f"x_{into}"]) == 0
    nothing = pa.table({"x": pa.nulls(3)})
    assert scorer(nothing)[f"x_{into}"].null_count == 3


# --- bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("into", INTO)
@pytest.mark.parametrize("cell", ["RNN", "LSTM", "GRU"])
def test_bits_do_not_depend_on_the_division_of_a_table(tmp_path, rng, into, cell, monkeypatch):
    """Tests random divisions, and random numbers of steps that are computed at a time."""
    network(D, 9, cell=cell, bidirectional=True, batch_first=True).save(tmp_path / "m.safetensors")
    scorer = lnrnn.Scorer(tmp_path / "m.safetensors", "x", into)
    rows = [rng.standard_normal((T, D)).tolist() for T in rng.integers(0, 30, 60)]
    rows[7] = None
    table = pa.table({"x": pa.array(rows, STEPS)})
    whole = scorer(table)[f"x_{into}"].combine_chunks()
    for _ in range(5):
        cuts = [0, *sorted(rng.integers(0, len(rows) + 1, rng.integers(0, 8)).tolist()), len(rows)]
        monkeypatch.setattr(sequences, "PIECE", int(rng.integers(1, 4000)))
        parts = [scorer(table.slice(a, b - a))[f"x_{into}"] for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
        joined = pa.chunked_array([chunk for part in parts for chunk in part.chunks]).combine_chunks()
        assert joined.equals(whole)
    order = rng.permutation(len(rows))
    assert scorer(table.take(order))[f"x_{into}"].combine_chunks().equals(whole.take(order))


@pytest.mark.parametrize("into", INTO)
def test_nan_and_infinity_stay_in_their_rows(path, model, rows, into):
    ill = [row.copy() for row in rows]
    ill[2][3, 1], ill[4][0] = np.nan, np.inf
    got = lnrnn.Scorer(path, "x", into)(pa.table({"x": pa.array(lists(ill), STEPS)}))[f"x_{into}"].to_pylist()
    assert np.isnan(np.array(got[2], np.float32)).any()
    for row, cell in zip(ill, got, strict=True):
        want = expected(model, row, into)
        assert np.array_equal(np.array(cell, np.float32).reshape(want.shape), want, equal_nan=True)


def watched(monkeypatch):
    """Returns a list of the values of all later calls of Network.ragged."""
    given, ragged = [], lnrnn.Network.ragged

    def call(self, values, offsets, **options):
        given.append(values)
        return ragged(self, values, offsets, **options)

    monkeypatch.setattr(lnrnn.Network, "ragged", call)
    return given


@pytest.mark.parametrize("kind", [STEPS, pa.list_(pa.list_(pa.float32()))])
def test_values_of_arrow_are_not_copied(path, rows, kind, monkeypatch):
    column = pa.array(lists([rows[0], None, *rows[1:]]), kind)
    given = watched(monkeypatch)
    lnrnn.Scorer(path, "x")(pa.record_batch({"x": column.slice(2)}))
    memory = np.frombuffer(column.values.values.buffers()[1], np.float32)
    assert np.shares_memory(given[0], memory)


@pytest.mark.parametrize("kind", [STEPS, pa.list_(pa.list_(pa.float32()))])
def test_values_under_a_null_row_are_not_read(path, model, rows, kind):
    whole = pa.array(lists(rows[2:5]), kind)
    hidden = type(whole).from_arrays(whole.offsets, whole.values, mask=pa.array([False, True, False]))
    assert hidden.values.equals(whole.values) and hidden.null_count == 1
    got = lnrnn.Scorer(path, "x", "all")(pa.table({"x": hidden}))["x_all"].to_pylist()
    same(np.array(got[0], np.float32), expected(model, rows[2], "all"))
    same(np.array(got[2], np.float32), expected(model, rows[4], "all"))
    assert got[1] is None


@pytest.mark.parametrize("length", [0, 2])
@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, lambda each: pa.list_(each, 3)])
def test_lists_without_a_buffer_of_offsets_are_empty(path, kind, length):
    """In Arrow an empty array of lists may have no buffer of offsets.

    Such an array may also be inside rows that are all empty.
    """
    step = kind(pa.float32())
    buffers = [None] if pa.types.is_fixed_size_list(step) else [None, None]
    steps = pa.Array.from_buffers(step, 0, buffers, children=[pa.array([], pa.float32())])
    offsets = pa.py_buffer(np.zeros(length + 1, np.int32)) if length else None
    rows = pa.Array.from_buffers(pa.list_(step), length, [None, offsets], children=[steps])
    for into in INTO:
        got = lnrnn.Scorer(path, "x", into)(pa.table({"x": rows}))[f"x_{into}"]
        assert got.to_pylist() == [[] if into == "all" else [0.0] * 10] * length


# --- the object ---------------------------------------------------------------------------------------------


def test_a_scorer_has_a_small_pickle_that_works_in_another_process(path, model, rows):
    scorer = lnrnn.Scorer(path, "x", "mean")
    frame = pd.DataFrame({"x": rows})
    scorer(frame)
    kept = pickle.dumps(scorer)
    assert len(kept) < 1000
    for other in (pickle.loads(kept), copy.deepcopy(scorer)):
        assert repr(other) == repr(scorer)
        assert all(map(np.array_equal, other(frame)["x_mean"], scorer(frame)["x_mean"]))
    program = (
        "import pickle, sys, numpy as np\n"
        "scorer, rows = pickle.load(sys.stdin.buffer)\n"
        "sys.stdout.buffer.write(np.stack(scorer({'x': rows})['x_mean']).tobytes())\n"
    )
    want = np.stack([expected(model, row, "mean") for row in rows])
    assert python(program, (scorer, rows)).stdout == want.tobytes()


def test_packages_are_imported_only_when_needed(path):
    shown = "print(*({'pandas', 'pyarrow', 'dask', 'ray', 'safetensors'} & {*sys.modules}))\n"
    a_dict = f"import numpy; lnrnn.Scorer({str(path)!r}, 'x')({{'x': numpy.zeros((2, 4, 3))}})\n"
    said = python(f"import sys, lnrnn\n{shown}{a_dict}{shown}").stdout.decode()
    assert said.splitlines() == ["", ""]


def test_a_relative_path_is_resolved_when_the_scorer_is_created(path, rows, monkeypatch, tmp_path):
    monkeypatch.chdir(path.parent)
    scorer = lnrnn.Scorer(path.name, "x")
    monkeypatch.chdir(tmp_path)
    assert scorer.path == str(path)
    assert len(scorer(flat(rows))["x_last"]) == len(rows)


@pytest.mark.parametrize("called", [False, True])
def test_a_replaced_model_is_refused(tmp_path, rows, called):
    """A Scorer refuses a model that has replaced its own in the file. A new Scorer accepts it."""
    path, models = tmp_path / "m.safetensors", [network(D, 5, seed=seed) for seed in (1, 2)]
    models[0].save(path)
    file = path.read_bytes()
    first = lnrnn.Scorer(path, "x")
    if called:
        first(flat(rows))
    models[1].save(path)
    second = lnrnn.Scorer(path, "x")
    for _ in range(2):
        with pytest.raises(ValueError, match=f"m.safetensors has changed: .* was {first.sha256}, and"):
            pickle.loads(pickle.dumps(first))(flat(rows))
        same(second(flat(rows))["x_last"][0], expected(models[1], rows[0], "last"))
    path.write_bytes(file)
    same(first(flat(rows))["x_last"][0], expected(models[0], rows[0], "last"))


def test_a_model_that_is_replaced_while_it_is_read_is_refused(tmp_path, rows, monkeypatch):
    path = tmp_path / "m.safetensors"
    network(D, 5, seed=1).save(path)
    scorer = lnrnn.Scorer(path, "x")
    load = scorer_module.load

    def replaced(path):
        network(D, 5, seed=2).save(path)
        return load(path)

    monkeypatch.setattr(scorer_module, "load", replaced)
    for _ in range(2):
        with pytest.raises(ValueError, match="m.safetensors has changed: its SHA-256 was "):
            scorer(flat(rows))


def test_another_version_is_refused(path, rows, monkeypatch):
    scorer = lnrnn.Scorer(path, "x", isa="any")
    monkeypatch.setattr(lnrnn, "__version__", "9.9")
    with pytest.raises(ValueError, match=f"has lnrnn 9.9, and the Scorer is of lnrnn {scorer.version}; "):
        scorer(flat(rows))


def test_another_kernel_set_is_refused(path, rows):
    """The process that uses the Scorer compares the kernel sets, unless isa is "any"."""
    here = lnrnn.cpu_info()["isa"]
    other = next(name for name in lnrnn.cpu_info()["available"][::-1] if name != here)
    program = (
        "import pickle, sys\n"
        "scorer, table = pickle.load(sys.stdin.buffer)\n"
        "print(scorer(table)['x_last'].shape, scorer.isa)\n"
    )

    def elsewhere(isa):
        return python(program, (lnrnn.Scorer(path, "x", isa=isa), flat(rows)), LNRNN_ISA=other)

    for isa in (None, here):
        assert lnrnn.Scorer(path, "x", isa=isa).isa == here
        said = elsewhere(isa).stderr.decode()
        assert f"has the kernel set {other}, and the Scorer is for {here}, " in said
    for isa in ("any", other):
        assert elsewhere(isa).stdout.decode().split() == [f"({len(rows)},", "10)", isa]
    with pytest.raises(ValueError, match=f"has the kernel set {here}, and the Scorer is for {other}, "):
        lnrnn.Scorer(path, "x", isa=other)(flat(rows))


def test_attributes_are_fixed_and_output_names_the_result(path, rows):
    scorer = lnrnn.Scorer(path, column="x", into="last", threads=2, output="code")
    assert (scorer.column, scorer.into, scorer.threads, scorer.output) == ("x", "last", 2, "code")
    assert set(scorer(flat(rows))) == {"x", "x_offsets", "code"}
    with pytest.raises(AttributeError, match="column is set by the constructor only"):
        scorer.column = "y"
    with pytest.raises(AttributeError, match="'into_'"):
        scorer.into_ = "y"


@pytest.mark.parametrize("threads", [None, 2])
@pytest.mark.parametrize("into", INTO)
def test_threads_compute_batches_of_their_own(path, rng, into, threads, monkeypatch):
    """If there are enough batches; this changes no bit. An exception in a thread reaches the caller."""
    table = {"x": [rng.standard_normal((T, D)) for T in rng.integers(0, 30, 60)]}
    want = lnrnn.Scorer(path, "x", into)(table)[f"x_{into}"]
    real, given = sequences._result, []

    def result(*arguments):
        given.append((arguments[-1], threading.get_ident()))
        return real(*arguments)

    monkeypatch.setattr(sequences, "_result", result)
    monkeypatch.setattr(sequences, "get_num_threads", lambda: 2)
    monkeypatch.setattr(sequences, "PIECE", 1000)
    scorer = lnrnn.Scorer(path, "x", into, threads=threads)
    for least, expected, alone in ((1, 1, False), (100, threads, True)):
        monkeypatch.setattr(sequences, "ROWS", least)
        given.clear()
        got = scorer(table)[f"x_{into}"]
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
        assert len(given) > 3 and {number for number, _ in given} == {expected}
        assert alone == ({ident for _, ident in given} == {threading.get_ident()})
    monkeypatch.setattr(sequences, "ROWS", 1)
    monkeypatch.setattr(sequences, "_result", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        scorer(table)
