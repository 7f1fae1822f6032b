"""lnrnn.Scorer: a saved model as a function of tables, for Ray, Dask, Spark and joblib."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from .. import _core
from ..arguments import TAKES, THREADS, Choice, Instance, Optional, check
from ..counts import Counts, OnCall
from ..errors import bad_value, message
from ..io import load
from ..rnn.models import Model
from ..state import Closed
from . import columns
from .sequences import BAD, INTO, Bad, Into, Sequences, run

KEPT = 4  # models in memory at the same time, at most
_TEXT = Instance(str, "a string")
TAKES["Scorer"] = {
    "column": _TEXT, "into": Choice(INTO), "output": Optional(_TEXT), "bad": Choice(BAD),
    "id_column": Optional(_TEXT), "isa": Optional(_TEXT),
    "on_call": Optional(Instance(Callable, "a function")), "threads": THREADS,
}  # fmt: skip
_ONE_COLUMN = "make one column of lists of steps, as docs/scoring.md shows under Other layouts"
_CLUSTER = "use lnrnn.Scorer in Dask's map_partitions or Ray's map_batches, as docs/scoring.md shows"
# Arguments and options of earlier versions, with remedies.
GONE = {
    "columns": _ONE_COLUMN, "flat": _ONE_COLUMN, "long": _ONE_COLUMN, "engine": _CLUSTER, "address": _CLUSTER,
    "only-results": "name a column that identifies rows with --keep",
    "compression-level": "compress the output again with pyarrow.parquet",
}  # fmt: skip

_LOADED: dict[tuple[object, ...], tuple[str, Model]] = {}  # file and its identity -> (SHA-256, model)
_LOCK = threading.Lock()
if hasattr(os, "register_at_fork"):
    # A fork waits for the lock: if another thread held it, it would stay locked in the child.
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


def loaded(path: str, sha256: str) -> Model:
    """Returns the model in a file, from memory if this process has loaded the file before.

    Raises the errors of lnrnn.load, and ValueError if the file's SHA-256 is not `sha256`. Also raises
    ValueError for overrun="batch", because a row's result would depend on other rows.
    """
    with _LOCK:
        if not os.path.isfile(path):
            return load(path)  # load raises the error
        key = path, *_identity(path)
        kept = _LOADED.pop(key, None)
        actual = kept[0] if kept else digest(path)
        if actual == sha256:
            model = kept[1] if kept else load(path)
            if model.overrun == "batch":
                expected, do = "'raise', 'last' or 'mean'", "set model.overrun and save the model again"
                got = f"'batch' in {path}, which makes the result of a row depend on other rows"
                raise ValueError(message("overrun", expected, got, do))
            if key != (path, *_identity(path)):  # the file was replaced while being read
                actual = digest(path)
        if actual != sha256:
            raise ValueError(f"{path} has changed: its SHA-256 was {sha256}, and is {actual}")
        _LOADED[key] = actual, model
        while len(_LOADED) > KEPT:
            del _LOADED[next(iter(_LOADED))]
        return model


def digest(path: str) -> str:
    """Returns the SHA-256 of a file in hexadecimal. Raises the errors of lnrnn.load if there is no file."""
    if not os.path.isfile(path):
        load(path)
    hashed = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            hashed.update(block)
    return hashed.hexdigest()


def _identity(path: str) -> tuple[int, ...]:
    """Returns device, inode, size and time of a file: they change if it is written or replaced."""
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
    column : str
        The column of sequences. Each row of this column is a sequence (T, D), with its own T.
    into : {"last", "mean", "all"}
        The result of a row. W is the width of y. "last": (W,), the last layer's h, in a reverse direction
        at step 0. "mean": (W,), the mean of y over the steps, zeros without steps. "all": y (T, W).
    threads : int or None
        The number of threads that a call may use, 1 to 1024. None: the number of lnrnn.set_num_threads.
    output : str, optional
        The name of the column of results, which the table must not have yet. Default: column + "_" + into.
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
        "path", "column", "into", "threads", "output", "bad", "id_column", "isa", "on_call", "sha256",
        "version",
    )  # fmt: skip
    path: str
    column: str
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
        column: str,
        into: Into = "last",
        threads: int | None = 1,
        *,
        output: str | None = None,
        bad: Bad = "raise",
        id_column: str | None = None,
        isa: str | None = None,
        on_call: OnCall | None = None,
        **gone: NoReturn,
    ) -> None:
        for name in gone:
            raise TypeError(f"Scorer() has no argument {name!r}: {GONE.get(name, 'see help(lnrnn.Scorer)')}")
        self.column, self.into, output, self.bad, self.id_column, isa, *more = check("Scorer", locals())
        self.on_call, self.threads = more
        self.path = os.path.abspath(os.fsdecode(os.fspath(path)))
        self.output = f"{column}_{self.into}" if output is None else output
        if not self.output:
            raise bad_value("output", "the name of the column of results", output)
        self.version, own = _here()
        self.isa = own if isa is None else isa
        self.sha256 = digest(self.path)

    @property
    def _fixed(self) -> tuple[str, ...]:
        return self.__slots__

    def __setstate__(self, state: dict[str, Any]) -> None:
        if set(state) != set(self.__slots__):
            raise ValueError("an earlier version of lnrnn pickled this Scorer; create a new Scorer")
        super().__setstate__(state)

    def __call__(self, table: Any) -> Any:
        """Score a table, or an iterator of tables. Errors are as in `Scorer`.

        Parameters
        ----------
        table : pyarrow.RecordBatch, pyarrow.Table, polars.DataFrame, pandas.DataFrame or dict
            The class's notes have the types of the column. The table does not change.

        Returns
        -------
        table
            A table of the same type with a column of results, or an iterator of tables.
        """
        if isinstance(table, Iterator):
            return (columns.in_plain_lists(self(one), self.output) for one in table)
        begin = time.perf_counter()
        model = model_of(self)
        given, with_results = columns.sequences_of(table, self, model.input_size)
        given = given.less_long(model)
        if given.bad and self.bad == "raise":
            self._called(given, 0, begin)
            row = min(given.bad)
            where = f"column {self.column!r}, row {row} of the {len(given)} in this table"
            do = "(bad='null' gives such rows a null)"
            raise ValueError(f"{where}{named(self, table, row)}: {given.bad[row]} {do}")
        result = with_results(given, run(model, given, self.into, self.threads))
        self._called(given, len(given.values), begin)
        return result

    def _called(self, given: Sequences, steps: int, begin: float) -> None:
        if self.on_call is not None:
            self.on_call(Counts(len(given), len(given.bad), steps, time.perf_counter() - begin))

    def __repr__(self) -> str:
        options = f"{self.path!r}, column={self.column!r}, into={self.into!r}, threads={self.threads}"
        more = f"bad={self.bad!r}, id_column={self.id_column!r}, isa={self.isa!r}"
        return f"Scorer({options}, output={self.output!r}, {more})"


def _here() -> tuple[str, str]:
    package: Any = sys.modules[__name__.partition(".")[0]]  # it imports this module
    return package.__version__, _core.isa()


def model_of(scorer: Scorer) -> Model:
    """Returns a Scorer's model. Raises ValueError if lnrnn, the instruction set or the file differs."""
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
    """Returns " (column = value)" of a row's id_column for a message, or "" without an id_column."""
    if scorer.id_column is None:
        return ""
    name = columns.cell(table, scorer.id_column, row)
    return f" ({scorer.id_column} = {(repr(name) if isinstance(name, str) else str(name))[:60]})"
