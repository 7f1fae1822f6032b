"""Helpers for tests of `lnrnn score`: Parquet files of sequences, and the command as a process."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

import lnrnn
from networks import network

ROOT = Path(lnrnn.__file__).parents[1]


def sequences(rng, lengths, width, null=()):
    """Returns a random column list<fixed_size_list<float, width>> of these lengths. null: the indices of null
    rows."""
    import pyarrow as pa

    offsets = np.cumsum([0, *lengths])
    values = rng.standard_normal(offsets[-1] * width, np.float32)
    steps = pa.FixedSizeListArray.from_arrays(pa.array(values), width)
    nulls = np.isin(np.arange(len(lengths)), null)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), steps, mask=pa.array(nulls))


def write(path, rng, lengths, width, *, row_group_size, null=(), names="x"):
    """Writes a file with the column id and columns of sequences. Returns its table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"id": range(len(lengths))} | {k: sequences(rng, lengths, width, null) for k in names})
    pq.write_table(table, path, row_group_size=row_group_size)
    return table


def with_model(folder, units, rows, *, row_group_size=25):
    """Writes an LSTM for 3 features, and an input for it. Returns both paths, and a Scorer's result.

    Rows 7 and 8 of the input are null."""
    model, source, rng = folder / "m.safetensors", folder / "in.parquet", np.random.default_rng(0)
    network(3, units, cell="LSTM").save(model)
    table = write(source, rng, rng.integers(0, 60, rows), 3, row_group_size=row_group_size, null=(7, 8))
    return model, source, lnrnn.Scorer(model, "x")(table)


def objects(rows):
    """Returns an array of objects, one for each row."""
    column = np.empty(len(rows), object)
    for place, row in enumerate(rows):
        column[place] = row
    return column


def damage(path, group, column):
    """Damages the pages of a column of a row group."""
    import pyarrow.parquet as pq

    data, metadata = bytearray(path.read_bytes()), pq.read_metadata(path)
    found = metadata.row_group(group).column(column % metadata.num_columns)
    first = found.dictionary_page_offset or found.data_page_offset
    data[first : first + found.total_compressed_size] = b"\xff" * found.total_compressed_size
    path.write_bytes(data)


def as_written(table, into="last"):
    """Converts a Scorer's table to the types of `lnrnn score`, whose results are lists of any size."""
    import pyarrow as pa

    place = table.schema.names.index(f"x_{into}")
    own, kind = table.column(place), pa.list_(pa.float32())
    if into == "all":
        kind = pa.large_list(kind) if pa.types.is_large_list(own.type) else pa.list_(kind)
    cells = pa.array(own.to_pylist(), kind)
    return table.set_column(place, f"x_{into}", cells)


def command(*arguments):
    own = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-m", "lnrnn", *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(own)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process, timeout=120):
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def descendants(pid):
    """Returns {pid: command} of all descendants of a process. Linux only."""
    parents, words = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            words[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended
            continue
        parents[int(entry.name)] = int(fields[1])

    def below(child):
        while child in parents:
            child = parents[child]
            if child == pid:
                return True
        return False

    return {child: text for child, text in words.items() if below(child)}


def of_the_docs(*headings):
    """Returns the Python code below these headings of docs/scoring.md. "" is the text above them."""
    text = (ROOT / "docs" / "scoring.md").read_text()
    names = ["", *re.findall(r"^##+ (.+)$", text, re.M)]
    parts = dict(zip(names, re.split(r"^##+ .+$", text, flags=re.M), strict=True))
    blocks = [re.findall(r"```python\n(.*?)```", parts[each], re.S) for each in headings]
    return "\n".join(itertools.chain(*blocks))
