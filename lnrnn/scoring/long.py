"""Reads files whose rows are steps: the columns of an id, a time and the features."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import message
from ..packages import require
from . import parquet
from .inputs import Input, InputError


@dataclass(frozen=True)
class Long:
    """The columns of a step that are no features. time: None keeps the order of rows.

    counts: how many sequences begin in each row group.
    """

    id: str
    time: str | None = None
    counts: tuple[int, ...] = ()

    def schema(self, source: Any, features: tuple[str, ...]) -> Any:
        """Returns the schema of the sequences: their id, and a list for each feature. source: the input's.

        Raises InputError for a column that is absent or has another type.
        """
        pa, _ = parquet.packages()
        types = pa.types
        for name in (self.id, *features, *([] if self.time is None else [self.time])):
            if source.names.count(name) != 1:
                known = ", ".join(map(repr, source.names[:20]))
                raise InputError(f"there must be one column {name!r}; the columns are {known}")
        id_type = _plain(source.field(self.id).type)
        if types.is_floating(id_type) or types.is_nested(id_type) or types.is_null(id_type):
            raise InputError(message(f"column {self.id!r}", "of integers or strings", str(id_type)))
        if self.time is not None and types.is_nested(_plain(source.field(self.time).type)):
            own = str(source.field(self.time).type)
            raise InputError(message(f"column {self.time!r}", "of times or numbers", own))
        lists = [pa.field(name, pa.list_(_plain(source.field(name).type))) for name in features]
        return pa.schema([pa.field(self.id, id_type), *lists])

    def batch(
        self, file: Any, source: Input, index: int, features: tuple[str, ...]
    ) -> tuple[Any, list[int]] | None:
        """Returns the sequences that begin in a row group, and the numbers of those that lack a time.

        Their rows may continue in the next row groups. Sequences are in order of their first rows. Returns
        None if no sequence begins there.
        """
        pa, _ = parquet.packages()
        pc = _compute()
        names = list(dict.fromkeys([self.id, *([] if self.time is None else [self.time]), *features]))
        ids = own = self.ids(file, source, index)
        if index:
            own = own.filter(pc.invert(pc.is_in(own, self.ids(file, source, index - 1))))
        begun, tables = pc.unique(own), []
        while len(own):
            wanted = pc.is_in(ids, own)
            own = pc.unique(ids.filter(wanted))
            if len(own):
                rows = pc.max(pc.indices_nonzero(wanted)).as_py() + 1
                tables.append(_first(file, source, index, names, rows).filter(wanted.slice(0, rows)))
            index += 1
            if index == file.num_row_groups:
                break
            ids = self.ids(file, source, index)
        if not tables:
            return None
        table = pa.concat_tables(tables)
        places = pc.index_in(table[self.id], begun).combine_chunks()
        times = {} if self.time is None else {"time": table[self.time]}
        keys = {"place": places} | times
        order = pc.sort_indices(pa.table(keys), [(key, "ascending") for key in keys])  # stable
        lengths = pc.value_counts(places.take(order)).field("counts")
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
        cells = [table[name].take(order).combine_chunks() for name in features]
        lists = [pa.ListArray.from_arrays(offsets, cell) for cell in cells]
        untimed: list[int] = []
        if self.time is not None:
            none = pc.is_null(times["time"], nan_is_null=True)
            untimed = pc.unique(places.filter(none)).to_pylist()
        schema = self.schema(file.schema_arrow, features)
        return pa.RecordBatch.from_arrays([begun, *lists], schema=schema), untimed

    def ids(self, file: Any, source: Input, index: int) -> Any:
        """Returns an Array with the id of each row of a row group. Raises InputError for a null."""
        with parquet.reading(source, f", row group {index},"):
            column = file.read_row_group(index, columns=[self.id], use_threads=False)[self.id]
        if column.null_count:
            raise InputError(f"{source}, row group {index}: column {self.id!r} has {column.null_count} nulls")
        return column.cast(_plain(column.type)).combine_chunks()


@dataclass
class Known:
    """The ids of all files, with the file and the last row group of each."""

    last: dict[Any, tuple[str, int]] = field(default_factory=dict)

    def counted(self, long: Long, file: Any, source: Input) -> Long:
        """Returns `long` with the counts of a file.

        Raises InputError for an id of another file, or of row groups that do not follow each other.
        """
        pc = _compute()
        counts = []
        for k in range(file.num_row_groups):
            begun = 0
            for name in pc.unique(long.ids(file, source, k)).to_pylist():
                where = self.last.get(name)
                if where is None:
                    begun += 1
                elif where != (str(source), k - 1):
                    raise InputError(
                        f"{source}, row group {k}: {long.id} = {name!r} is also in row group {where[1]} of "
                        f"{where[0]}; rows of an id must be in one file, and in row groups that follow each "
                        f"other: sort the rows by {long.id!r}"
                    )
                self.last[name] = str(source), k
            counts.append(begun)
        return Long(long.id, long.time, tuple(counts))


def _compute() -> Any:
    return require("pyarrow.compute", "lnrnn score", "score")


def _plain(kind: Any) -> Any:
    """Returns the type of a dictionary's or view's values, which more functions of pyarrow support."""
    pa, _ = parquet.packages()
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


def _first(file: Any, source: Input, index: int, names: list[str], rows: int) -> Any:
    """Returns the first rows of a row group as a Table. Later rows are not decoded."""
    pa, _ = parquet.packages()
    read: list[Any] = []
    batches = parquet.batches(file, source, index, rows, names)
    while (left := rows - sum(map(len, read))) > 0:
        read.append(next(batches)[:left])
    table = pa.Table.from_batches(read)
    return table.cast(pa.schema([(each.name, _plain(each.type)) for each in table.schema]))
