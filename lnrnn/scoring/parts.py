"""The files of a row group that `lnrnn score` keeps until OUT is complete: its results, and its bad rows.

Both say in their metadata which row group they are of, with its counts, and their pages have checksums. One
that is damaged, or that a copy of another one has replaced, is computed again.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import parquet

KEY = "lnrnn"
Facts = dict[str, int]  # "row group", its "rows", their "steps", its "bad rows"


@dataclass
class Part:
    """A file that is written piece by piece."""

    path: str
    schema: Any
    _writer: Any = field(default=None, init=False)

    def write(self, columns: list[Any]) -> None:
        pa, pq = parquet.packages()
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self.path, self.schema, compression="none", use_dictionary=False, write_page_checksum=True
            )
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def close(self, facts: Facts) -> str | None:
        """-> the path, when all is on the disk; None if nothing was written."""
        if self._writer is None:
            return None
        self._writer.add_key_value_metadata({KEY: json.dumps(facts)})
        self._writer.close()
        with open(self.path, "rb") as file:
            os.fsync(file.fileno())
        return self.path


def facts_of(file: Any) -> Facts:
    """What a part, a ParquetFile, says of its row group. Raises KeyError or ValueError if it says nothing."""
    return dict(json.loads((file.metadata.metadata or {})[KEY.encode()]))


def is_complete(results: Path, bad: Path, index: int, rows: int) -> bool:
    """Whether the parts of a row group are there: of that one, all rows of it, and readable."""
    try:
        facts = _read(results, rows)
        if [facts["row group"], facts["rows"]] != [index, rows]:
            return False
        return not facts["bad rows"] or _read(bad, facts["bad rows"]) == facts
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return False


def _read(path: Path, rows: int) -> Facts:
    """Reads all of a part, for its checksums. Raises ValueError if it is damaged or has other rows."""
    with parquet.opened(str(path)) as file:
        for k in range(file.num_row_groups):
            with parquet.reading(str(path)):
                rows -= len(file.read_row_group(k, use_threads=False))
        if rows:
            raise ValueError(f"{path} has another number of rows")
        return facts_of(file)
