"""lnrnn.Scorer: a saved model as a function of tables, for Ray, Dask, Spark and joblib."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .. import _core
from ..arguments import TAKES, THREADS, Choice, Flag, Instance, Optional, check
from ..counts import Counts, OnCall
from ..errors import bad_type, bad_value, message
from ..io import load
from ..rnn.models import Model
from ..state import Closed
from . import columns
from .sequences import BAD, INTO, Bad, Into, Sequences, run

KEPT = 4  # the largest number of models in memory at a time
_TEXT = Instance(str, "a string")
TAKES["Scorer"] = {
    "column": Optional(_TEXT), "into": Choice(INTO), "output": Optional(_TEXT), "bad": Choice(BAD),
    "id_column": Optional(_TEXT), "isa": Optional(_TEXT), "flat": Flag(),
    "on_call": Optional(Instance(Callable, "a function")), "threads": THREADS,
}  # fmt: skip

_LOADED: dict[tuple[object, ...], tuple[str, Model]] = {}  # the SHA-256 and the model of each file
_LOCK = threading.Lock()
if hasattr(os, "register_at_fork"):
    # A fork waits until the lock is free, because a lock that another thread holds stays locked in the child.
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


def loaded(path: str, sha256: str) -> Model:
    """Returns the model that `save` wrote to path, from memory if this process has loaded the file before.

    Raises the errors of lnrnn.load, and ValueError if the file's SHA-256 is not `sha256`. Also raises
    ValueError for overrun="batch", because the result of a row would then depend on other rows.
    """
    with _LOCK:
        if not os.path.isfile(path):
            return load(path)  # raises an error with the reason
        key = path, *_identity(path)
        kept = _LOADED.pop(key, None)
        actual = kept[0] if kept else digest(path)
        if actual == sha256:
            model = kept[1] if kept else _checked(path)
            if key != (path, *_identity(path)):  # the file was replaced while it was read
                actual = digest(path)
        if actual != sha256:
            raise ValueError(f"{path} has changed: its SHA-256 was {sha256}, and is {actual}")
        _LOADED[key] = actual, model
        while len(_LOADED) > KEPT:
            del _LOADED[next(iter(_LOADED))]
        return model


def _checked(path: str) -> Model:
    model = load(path)
    if model.overrun == "batch":
        raise ValueError(
            f"overrun must be 'raise', 'last' or 'mean', got 'batch' in {path}, which makes the result of a "
            "row depend on other rows; set model.overrun and save the model again"
        )
    return model


def digest(path: str) -> str:
    """Returns the SHA-256 of a file, in hexadecimal. Raises the errors of lnrnn.load if there is no file."""
    if not os.path.isfile(path):
        load(path)
    hashed = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            hashed.update(block)
    return hashed.hexdigest()


def _identity(path: str) -> tuple[int, ...]:
    """Returns numbers that change if the file is written, or if another file gets its name."""
    stat = os.stat(path)
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


class Scorer(Closed):
    """Runs a saved model over the sequences in a column of a table.

    `scorer(table)` returns the table with a column of results. A pickle of a Scorer has a few hundred bytes,
    and names the model's file. Each process loads the model from this file at its first call.

    Parameters
    ----------
    path : str or os.PathLike
        The file that save() wrote. It is stored as an absolute path.
    column : str, optional
        The column of sequences. Each row of it is a sequence (T, D), with its own T.
    into : {"last", "mean", "all"}
        The result of a row. W is the width of y. "last": (W,), the last layer's h, in a reverse direction
        at step 0. "mean": (W,), the mean of y over the steps, zeros without steps. "all": y (T, W).
    threads : int or None
        The number of threads that a call may use, 1 to 1024. None: the number of lnrnn.set_num_threads.
    output : str, optional
        The name of the column of results, which the table must not have yet. Default: column + "_" + into,
        or "y_" + into with `columns`.
    bad : {"raise", "null"}
        The treatment of bad rows. A row is bad if it has a null inside, or a step that has not D numbers.
        Under overrun="raise" it is also bad if batch norm has no statistics for one of its steps. "raise":
        the call raises a ValueError about the first bad row, before it computes anything. "null": the result
        of a bad row is null, or NaN in arrays of numbers. Each call then adds another column,
        output + "_error", with the reason as a string for bad rows, and null for other rows.
    id_column : str, optional
        The column with the names of rows. Messages about a row have its entry in this column and its number.
    isa : str, optional
        The kernel set (for example "avx2") that all processes must use, or "any". Default: the set in use in
        this process, `cpu_info()["isa"]`.
    columns : sequence of str, optional
        D columns instead of `column`, one for each feature. Each row of them is a list of T numbers.
    flat : bool
        Whether a row of `column` is one list of T * D numbers, step by step.
    on_call : callable, optional
        Gets the `Counts` of each table, for monitoring. Pickle must find it by its name if a Scorer is sent
        to other processes.

    Attributes
    ----------
    sha256, version, isa : str
        The SHA-256 of the model's file, lnrnn's version and the kernel set. A call raises a ValueError if one
        of the three differs in its process, because results may then differ.

    Raises
    ------
    FileNotFoundError
        From the constructor, if there is no such file.
    ValueError, TypeError
        From the constructor, for a wrong argument. From a call, for a column that is missing or of another
        type, and for a model with overrun="batch", because the result of a row would depend on other rows.

    Notes
    -----
    The possible types of the column in each type of table, with the type of the results after ->:

        Arrow RecordBatch or Table
            list<fixed_size_list<float, D>> or list<list<float>>, for D = 1 also list<float>
            -> fixed_size_list<float, W>; for "all" list<fixed_size_list<float, W>>
        polars DataFrame
            List(Array(Float32, D)) or List(List(Float32)) -> Array(Float32, W); for "all" a List of these
        pandas DataFrame
            an ArrowDtype of these lists -> an ArrowDtype, as above
            objects: arrays (T, D), nested lists, arrays of arrays (D,), or a missing value
            -> arrays (W,); for "all" arrays (T, W), or lists of arrays (W,) if no row has two axes
        dict
            {"x": values (N, D), "x_offsets": (B + 1,)}, where row b is values[offsets[b]:offsets[b + 1]]
            -> (B, W); for "all" (N, W), and its offsets
            an array (B, T, D) -> (B, W); for "all" (B, T, W)
            an Arrow array -> as for a RecordBatch
            a list or array of objects -> as for a DataFrame of objects

    Values become float32. Arrow's float32 values without nulls, in one chunk, are not copied. Other columns
    and the order of rows do not change. The result of a null row is null, and the result of a row without
    steps is 0. A NaN has no effect on other rows. The bits of a result do not depend on other rows, or on how
    a table is divided.

    For an iterator of tables, a call returns an iterator of tables, as Spark's mapInPandas and mapInArrow
    need. Spark has no lists of a fixed size, so Arrow's results are then list<float>, for "all"
    list<list<float>>.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import lnrnn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.safetensors")
    ...     lnrnn.GRU(3, 4, seed=0).save(path)
    ...     scorer = lnrnn.Scorer(path, column="x")
    ...     table = scorer({"x": np.zeros((2, 5, 3), np.float32)})
    >>> table["x_last"].shape
    (2, 4)
    """

    __slots__ = (
        "path", "column", "columns", "flat", "into", "threads", "output", "bad", "id_column", "isa",
        "on_call", "sha256", "version",
    )  # fmt: skip
    path: str
    column: str | None
    columns: tuple[str, ...]
    flat: bool
    into: Into
    threads: int | None
    output: str
    bad: Bad
    id_column: str | None
    isa: str
    on_call: OnCall | None
    sha256: str
    version: str

    def __init__(
        self,
        path: str | os.PathLike[str],
        column: str | None = None,
        into: Into = "last",
        threads: int | None = 1,
        *,
        output: str | None = None,
        bad: Bad = "raise",
        id_column: str | None = None,
        isa: str | None = None,
        columns: Iterable[str] | None = None,
        flat: bool = False,
        on_call: OnCall | None = None,
    ) -> None:
        if column is None and columns is None:
            raise bad_type("column", "a string", column)
        column, self.into, output, self.bad, self.id_column, isa, self.flat, *more = check("Scorer", locals())
        self.on_call, self.threads = more
        self.path = os.path.abspath(os.fsdecode(os.fspath(path)))
        self.column, self.columns = column, _names(column, columns)
        if self.flat and columns is not None:
            raise ValueError(message("flat", "False with columns=", "True", "each row has one number a step"))
        self.output = f"{'y' if column is None else column}_{self.into}" if output is None else output
        if not self.output:
            raise bad_value("output", "the name of the column of results", output)
        self.version, own = _here()
        self.isa = own if isa is None else isa
        self.sha256 = digest(self.path)

    @property
    def where(self) -> str:
        """The names of the columns, for messages."""
        return ("columns " if self.column is None else "column ") + ", ".join(map(repr, self.columns))

    @property
    def _fixed(self) -> tuple[str, ...]:
        return self.__slots__

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "sha256" not in state:
            raise ValueError("an earlier version of lnrnn pickled this Scorer; create a new Scorer")
        super().__setstate__(state)

    def __call__(self, table: Any) -> Any:
        if isinstance(table, Iterator):
            return (columns.in_plain_lists(self(one), self.output) for one in table)
        begin = time.perf_counter()
        model = model_of(self)
        given, with_results = columns.sequences_of(table, self, model.input_size)
        given = given.less_long(model)
        if given.bad and self.bad == "raise":
            self._called(given, 0, begin)
            row = min(given.bad)
            where = f"row {row} of the {len(given)} in this table{named(self, table, row)}"
            raise ValueError(f"{self.where}, {where}: {given.bad[row]} (bad='null' gives such rows a null)")
        result = with_results(given, run(model, given, self.into, self.threads))
        self._called(given, len(given.values), begin)
        return result

    def _called(self, given: Sequences, steps: int, begin: float) -> None:
        if self.on_call is not None:
            self.on_call(Counts(len(given), len(given.bad), steps, time.perf_counter() - begin))

    def __repr__(self) -> str:
        own = f"columns={list(self.columns)!r}" if self.column is None else f"column={self.column!r}"
        own += ", flat=True" if self.flat else ""
        options = f"{self.path!r}, {own}, into={self.into!r}, threads={self.threads}"
        more = f"bad={self.bad!r}, id_column={self.id_column!r}, isa={self.isa!r}"
        return f"Scorer({options}, output={self.output!r}, {more})"


def _names(column: str | None, columns: Iterable[str] | None) -> tuple[str, ...]:
    """Returns the names of the columns of sequences."""
    if columns is None:
        assert column is not None
        return (column,)
    if column is not None:
        raise ValueError(message("column", "left out with columns=", repr(column)))
    expected = "different strings, a column for each feature"
    names = () if isinstance(columns, (str, bytes)) or not isinstance(columns, Iterable) else tuple(columns)
    if not names or not all(isinstance(name, str) for name in names):
        raise bad_type("columns", expected, columns)
    if len(set(names)) < len(names):
        raise bad_value("columns", expected, list(names))
    return names


def _here() -> tuple[str, str]:
    package: Any = sys.modules[__name__.partition(".")[0]]  # which imports this module
    return package.__version__, _core.isa()


def model_of(scorer: Scorer) -> Model:
    """Returns a Scorer's model. Raises ValueError if this process has another lnrnn, kernel set or file."""
    (version, isa), here = _here(), f"process {os.getpid()} on {platform.node()}"
    if version != scorer.version:
        raise ValueError(
            f"{here} has lnrnn {version}, and the Scorer is of lnrnn {scorer.version}; results may differ"
        )
    if isa != scorer.isa != "any":
        raise ValueError(
            f"{here} has the kernel set {isa}, and the Scorer is for {scorer.isa}, which has other results; "
            "the environment variable LNRNN_ISA chooses a set"
        )
    return loaded(scorer.path, scorer.sha256)


def named(scorer: Scorer, table: Any, row: int) -> str:
    """Returns the row's entry in the id_column, for a message; empty without an id_column."""
    if scorer.id_column is None:
        return ""
    return called(scorer, columns.cell(table, scorer.id_column, row))


def called(scorer: Scorer, name: object) -> str:
    """Returns a row's name in the id_column, for a message."""
    return f" ({scorer.id_column} = {(repr(name) if isinstance(name, str) else str(name))[:60]})"
