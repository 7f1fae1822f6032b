"""Edits the footer of a Parquet file, FileMetaData, as structs of thrift.py.

The numbers below are the fields of https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

import base64
from typing import Any

from . import thrift
from .thrift import BINARY, I32, I64, STRUCT, List, Struct

MAGIC = b"PAR1"
SCHEMA, ROWS, ROW_GROUPS, METADATA, ORDERS = 2, 3, 4, 5, 7  # FileMetaData
TYPE, NAME, CHILDREN = 1, 4, 5  # SchemaElement
COLUMNS, SIZE, GROUP_ROWS, SORTING, OFFSET, COMPRESSED_SIZE = 1, 2, 3, 4, 5, 6  # RowGroup
IN_ANOTHER_FILE, CHUNK_OFFSET, CHUNK = 1, 2, 3  # ColumnChunk
# ColumnMetaData
ENCODINGS, CODEC, VALUES, PLAIN_BYTES, BYTES, DATA, INDEX = 2, 4, 5, 6, 7, 9, 10
DICTIONARY, STATISTICS, ENCODING_COUNTS, BLOOM, BLOOM_BYTES, SIZE_STATISTICS = 11, 12, 13, 14, 15, 16
# Metadata that describe the columns. Spark would read its own instead of the schema, and miss the results.
STALE = (b"ARROW:schema", b"org.apache.spark.sql.parquet.row.metadata")


def read(file: Any) -> bytes:
    """Returns the bytes of a file's footer. Raises ValueError for another file."""
    size = file.seek(0, 2)
    file.seek(max(size - 8, 0))
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if len(end) < 8 or end[4:] != MAGIC or length > size - 12:
        raise ValueError("it has no footer of Parquet")
    file.seek(size - 8 - length)
    footer: bytes = file.read(length)
    return footer


def parse(footer: bytes) -> Struct:
    """Returns a footer's struct. Raises ValueError for a damaged one."""
    try:
        return thrift.read(footer)[0]
    except (IndexError, ValueError) as error:
        raise ValueError(f"its footer is damaged ({error})") from None


def trees(footer: Struct) -> list[tuple[list[Struct], list[int]]]:
    """Returns the elements of the schema of each column, and the numbers of its leaves."""
    elements = footer[SCHEMA][1].values
    result, at, leaf = [], 1, 0
    while at < len(elements):
        first, first_leaf, open_elements = at, leaf, 1
        while open_elements:
            children = elements[at].get(CHILDREN, (I32, 0))[1]
            open_elements += children - 1
            leaf += TYPE in elements[at]
            at += 1
        result.append((elements[first:at], list(range(first_leaf, leaf))))
    return result


def extent(chunk: Struct) -> tuple[int, int]:
    """Returns the first byte of a ColumnMetaData's pages, and their number of bytes."""
    first, other = chunk[DATA][1], chunk.get(DICTIONARY, (I64, 0))[1]
    return min(first, other) if other > 0 else first, chunk[BYTES][1]


def moved(chunk: Struct, to: int) -> Struct:
    """Returns a ColumnMetaData for the same pages that begin at the byte `to`. Bloom filters stay behind."""
    shift = to - extent(chunk)[0]
    result = {field: value for field, value in chunk.items() if field not in (BLOOM, BLOOM_BYTES)}
    for field in (DATA, INDEX, DICTIONARY):
        if result.get(field, (I64, 0))[1] > 0 or field == DATA:
            result[field] = I64, result[field][1] + shift
    return result


def joined(chunks: list[Struct]) -> Struct:
    """Returns one ColumnMetaData for chunks that follow one another and have no dictionaries."""
    result = {
        field: value
        for field, value in chunks[0].items()
        if len(chunks) == 1 or field not in (STATISTICS, ENCODING_COUNTS, SIZE_STATISTICS)
    }
    for field in (VALUES, PLAIN_BYTES, BYTES):
        result[field] = I64, sum(chunk[field][1] for chunk in chunks)
    encodings = dict.fromkeys(each for chunk in chunks for each in chunk[ENCODINGS][1].values)
    result[ENCODINGS] = chunks[0][ENCODINGS][0], List(I32, list(encodings))
    return result


def row_group(rows: int, chunks: list[Struct], at: int) -> Struct:
    """Returns a RowGroup of ColumnMetaData. at: the first byte of its pages."""
    columns = [{CHUNK_OFFSET: (I64, 0), CHUNK: (STRUCT, chunk)} for chunk in chunks]
    return {
        COLUMNS: (thrift.LIST, List(STRUCT, columns)),
        SIZE: (I64, sum(chunk[PLAIN_BYTES][1] for chunk in chunks)),
        GROUP_ROWS: (I64, rows),
        OFFSET: (I64, at),
        COMPRESSED_SIZE: (I64, sum(chunk[BYTES][1] for chunk in chunks)),
    }


def with_columns(
    footer: Struct, keep: list[int], results: Struct, schema: Any, facts: dict[bytes, bytes]
) -> Struct:
    """Returns a footer without row groups, that has the columns `keep` and those of the footer `results`.

    schema: the pyarrow schema of all these columns. facts: more metadata.
    """
    own, added = trees(footer), trees(results)
    chosen = [own[k] for k in keep]
    root = {**footer[SCHEMA][1].values[0], CHILDREN: (I32, len(chosen) + len(added))}
    elements = [root, *(element for tree, _ in [*chosen, *added] for element in tree)]
    result = {
        **footer,
        SCHEMA: (thrift.LIST, List(STRUCT, elements)),
        ROW_GROUPS: (thrift.LIST, List(STRUCT, [])),
    }
    if ORDERS in footer:
        orders, more = footer[ORDERS][1].values, results[ORDERS][1].values
        kept = [orders[leaf] for _, leaves in chosen for leaf in leaves]
        result[ORDERS] = thrift.LIST, List(STRUCT, [*kept, *more])
    old = footer[METADATA][1].values if METADATA in footer else []
    arrow = base64.b64encode(schema.serialize().to_pybytes())
    pairs = [pair for pair in old if pair[1][1] not in (*STALE, *facts)]
    for name, value in {STALE[0]: arrow, **facts}.items():
        pairs.append({1: (BINARY, name), 2: (BINARY, value)})
    result[METADATA] = thrift.LIST, List(STRUCT, pairs)
    return result
