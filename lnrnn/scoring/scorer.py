"""The function that one gives to Ray, Dask, Spark and joblib: a saved model over a column of sequences."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from typing import Any

from .. import _core
from ..errors import bad_type, choice, integer
from ..rnn.models import Model
from ..state import Closed
from . import columns
from .models import digest, loaded
from .sequences import BAD, INTO, Bad, Into, run


class Scorer(Closed):
    """Runs a saved model over the sequences in a column of a table: scorer(table) is the table with one
    column more.

    path: what save() wrote; made absolute here, loaded at the first call in each process, and never pickled:
    a Scorer is a few hundred bytes, for any number of processes and machines that see the file. column: whose
    rows are sequences (T, D), of any T. into: what each becomes,

        "last"  y at the last step of a forward direction and the first of a reverse one, which is h of
                the last layer: W = directions * H numbers
        "mean"  the mean of y over the steps: W numbers; zeros where there are no steps
        "all"   y: T times W numbers

    threads: that a call may use; None: what lnrnn.set_num_threads says. output: name of the new column,
    column + "_" + into if None; it must not be there already. id_column: whose entry a message about a row
    names, beside the row's number in its table.

    bad: what becomes of a bad row, which is one with a null inside, with steps of another width than the
    model's, or with more steps than batch norm has statistics for under overrun="raise". "raise": the call
    raises a ValueError for the first of them before anything is computed. "null": its result is null, NaN in
    arrays of numbers, and one more column, output + "_error", says why: a text, null for rows that are not
    bad. That column is there in every call.

    A Scorer keeps the SHA-256 of the model's file, lnrnn's version and the kernel set, all as they are where
    it is made: attributes `sha256`, `version` and `isa`. A call compares them with those of its process, and
    raises a ValueError that names the one that differs, for then results differ too. isa: None for the kernel
    set in use where it is made (`cpu_info()["isa"]`), the name of the one that all processes must use, or
    "any" for no such check.

    table and column, and the column of results that come of them:

        Arrow RecordBatch or Table
            list<fixed_size_list<float, D>> or list<list<float>>, also list<float> if D is 1; values are used
            without a copy if they are float32 with no nulls inside, and of one chunk
            -> fixed_size_list<float, W>; for "all" list<fixed_size_list<float, W>>
        pandas DataFrame
            the same as an ArrowDtype -> the same
            objects: arrays (T, D), or nested lists or arrays of arrays (D,), or a missing value
            -> arrays (W,); for "all" arrays (T, W), or lists of arrays (W,) if no row came as an array of two
            axes
        dict
            {"x": values (N, D), "x_offsets": (B + 1,)}, where row b is values[offsets[b]:offsets[b + 1]]
            -> (B, W); for "all" (N, W), with an entry for its offsets too
            an array (B, T, D) -> (B, W); for "all" (B, T, W)
            an Arrow array, or a list or array of objects -> as in Arrow, as in pandas

    All else in a table stays as it is, and so does the order of rows. An iterator of tables gives an iterator
    of tables, as Spark's mapInPandas and mapInArrow want it; as Spark knows no lists of a fixed size, Arrow's
    results are list<float> then, for "all" list<list<float>>. Values become float32. A null row gives a null,
    a row without steps its zero state; NaN stays in its row. A row's result does not depend, by a bit, on the
    rows around it or how a table is cut.

    Raises FileNotFoundError where it is made if there is no such file; at a call ValueError and TypeError for
    a column that is missing or of another type. A model with overrun="batch" is refused, for there a row's
    result would depend on others'.
    """

    __slots__ = (
        "path", "column", "into", "threads", "output", "bad", "id_column", "isa", "sha256", "version",
    )  # fmt: skip
    path: str
    column: str
    into: Into
    threads: int | None
    output: str
    bad: Bad
    id_column: str | None
    isa: str
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
    ) -> None:
        names = {"column": column, "output": output, "id_column": id_column, "isa": isa}
        for name, value in names.items():
            if not isinstance(value, str) and (name == "column" or value is not None):
                raise bad_type(name, "a name", value)
        self.path = os.path.abspath(os.fsdecode(os.fspath(path)))
        self.column = column
        self.into = choice("into", into, INTO)
        self.threads = None if threads is None else integer("threads", threads, 1, 1024)
        self.output = f"{column}_{self.into}" if output is None else output
        self.bad = choice("bad", bad, BAD)
        self.id_column = id_column
        self.version, own = _here()
        self.isa = own if isa is None else isa
        self.sha256 = digest(self.path)

    @property
    def _fixed(self) -> tuple[str, ...]:
        return self.__slots__

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "sha256" not in state:
            raise ValueError("this Scorer was pickled by an earlier version of lnrnn: make it anew")
        super().__setstate__(state)

    def __call__(self, table: Any) -> Any:
        if isinstance(table, Iterator):
            return (columns.in_plain_lists(self(one), self.output) for one in table)
        model = model_of(self)
        given, with_results = columns.taken(table, self, model.input_size)
        given = given.less_long(model)
        if given.bad and self.bad == "raise":
            row = min(given.bad)
            where = f"row {row} of the {len(given)} in this table{named(self, table, row)}"
            raise ValueError(
                f"column {self.column!r}, {where}: {given.bad[row]} (bad='null' gives such rows a null)"
            )
        return with_results(given, run(model, given, self.into, self.threads))

    def __repr__(self) -> str:
        options = f"{self.path!r}, column={self.column!r}, into={self.into!r}, threads={self.threads}"
        more = f"bad={self.bad!r}, id_column={self.id_column!r}, isa={self.isa!r}"
        return f"Scorer({options}, output={self.output!r}, {more})"


def _here() -> tuple[str, str]:
    """lnrnn's version, and the kernel set in use."""
    package: Any = sys.modules[__name__.partition(".")[0]]  # which imports this module
    return package.__version__, _core.isa()


def model_of(scorer: Scorer) -> Model:
    """A Scorer's model. Raises ValueError if this process would give other results than the one that made the
    Scorer: by another lnrnn, kernel set or model."""
    (version, isa), here = _here(), f"process {os.getpid()} on {platform.node()}"
    if version != scorer.version:
        raise ValueError(
            f"{here} has lnrnn {version}, and the Scorer is of lnrnn {scorer.version}: "
            "their results may differ"
        )
    if isa != scorer.isa != "any":
        raise ValueError(
            f"{here} has the kernel set {isa}, and the Scorer is for {scorer.isa}: their results differ "
            "(the environment variable LNRNN_ISA chooses a set)"
        )
    return loaded(scorer.path, scorer.sha256)


def named(scorer: Scorer, table: Any, row: int) -> str:
    """A row by its entry in the column of names, for a message; empty if the Scorer has none."""
    if scorer.id_column is None:
        return ""
    name = columns.cell(table, scorer.id_column, row)
    return f" ({scorer.id_column} = {(repr(name) if isinstance(name, str) else str(name))[:60]})"
