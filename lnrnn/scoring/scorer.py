"""The function that one gives to Ray, Dask, Spark and joblib: a saved model over a column of sequences."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from ..errors import bad_type, choice, integer
from ..state import Closed
from . import columns
from .models import loaded
from .sequences import INTO, Into, run


class Scorer(Closed):
    """Runs a saved model over the sequences in a column of a table: scorer(table) is the table with one
    column more.

    path: what save() wrote; made absolute here, read at the first call in each process, and never pickled: a
    Scorer is a few hundred bytes, for any number of processes and machines that see the file. It must not be
    replaced while they run. column: whose rows are sequences (T, D), of any T. into: what each becomes,

        "last"  y at the last step of a forward direction and the first of a reverse one, which is h of
                the last layer: W = directions * H numbers
        "mean"  the mean of y over the steps: W numbers; zeros where there are no steps
        "all"   y: T times W numbers

    threads: that a call may use; None: what lnrnn.set_num_threads says. output: name of the new column,
    column + "_" + into if None; it must not be there already.

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

    A call raises ValueError or TypeError, which names column and row, before anything is computed: for a row
    with a null inside, with steps of another width than the model's, or with more steps than batch norm has
    statistics for under overrun="raise". A model with overrun="batch" is refused, for there a row's result
    would depend on others'.
    """

    __slots__ = ("path", "column", "into", "threads", "output")
    path: str
    column: str
    into: Into
    threads: int | None
    output: str

    def __init__(
        self,
        path: str | os.PathLike[str],
        column: str,
        into: Into = "last",
        threads: int | None = 1,
        *,
        output: str | None = None,
    ) -> None:
        for name, value in (("column", column), ("output", output)):
            if not isinstance(value, str) and (name == "column" or value is not None):
                raise bad_type(name, "a name", value)
        self.path = os.path.abspath(os.fsdecode(os.fspath(path)))
        self.column = column
        self.into = choice("into", into, INTO)
        self.threads = None if threads is None else integer("threads", threads, 1, 1024)
        self.output = f"{column}_{self.into}" if output is None else output

    @property
    def _fixed(self) -> tuple[str, ...]:
        return self.__slots__

    def __call__(self, table: Any) -> Any:
        if isinstance(table, Iterator):
            return (columns.in_plain_lists(self(one), self.output) for one in table)
        model = loaded(self.path)
        given, with_results = columns.taken(table, self.column, self.output, self.into, model.input_size)
        given = given.less_long(model)
        if given.bad:
            row = min(given.bad)
            raise ValueError(f"column {self.column!r}, row {row}: {given.bad[row]}")
        return with_results(run(model, given, self.into, self.threads))

    def __repr__(self) -> str:
        options = f"{self.path!r}, column={self.column!r}, into={self.into!r}, threads={self.threads}"
        return f"Scorer({options}, output={self.output!r})"
