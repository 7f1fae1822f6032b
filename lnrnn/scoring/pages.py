"""Copies the pages of Parquet columns, and compresses them in another way, without decoding their values."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import message
from . import footer, thrift
from .arrow import pyarrow
from .footer import BYTES, CODEC
from .thrift import I32, I64, Struct

# Names of --compression, and the numbers and pyarrow's names of the codecs.
CODECS = {
    "none": (0, None), "snappy": (1, "snappy"), "gzip": (2, "gzip"), "brotli": (4, "brotli"),
    "zstd": (6, "zstd"), "lz4": (7, "lz4_raw"),
}  # fmt: skip
NAMES = {number: name for name, (number, _) in CODECS.items()}
BLOCK = 2**20  # bytes to copy at a time
HEADER = 2**12  # bytes to read for the header of a page; more if it is longer
TYPE, PLAIN_BYTES, PAGE_BYTES, CHECKSUM, DATA_V2 = 1, 2, 3, 4, 8  # PageHeader
DEFINITIONS, REPETITIONS, IS_COMPRESSED = 5, 6, 7  # DataPageHeaderV2


@dataclass(frozen=True)
class Compression:
    """The codec of an output. level: None is the codec's default. Raises ValueError for wrong arguments."""

    name: str
    level: int | None = None

    def __post_init__(self) -> None:
        codec = CODECS[self.name][1]
        if self.level is None:
            return
        if codec not in ("gzip", "brotli", "zstd"):
            expected = "left out for this codec, which has no levels"
            raise ValueError(message("--compression-level", expected, f"{self.level} for {self.name}"))
        kinds = pyarrow().Codec
        least, most = kinds.minimum_compression_level(codec), kinds.maximum_compression_level(codec)
        if not least <= self.level <= most:
            raise ValueError(message("--compression-level", f"from {least} to {most}", str(self.level)))

    def __str__(self) -> str:
        return self.name if self.level is None else f"{self.name} --compression-level {self.level}"

    def codec(self) -> Any:
        return _codec(CODECS[self.name][0], self.level)


def _codec(number: int, level: int | None = None) -> Any:
    """Returns a pyarrow.Codec, or None for no compression. Raises ValueError for one that pyarrow lacks."""
    if number not in NAMES:
        raise ValueError(f"a column has the codec number {number} of Parquet, which cannot be changed")
    name = CODECS[NAMES[number]][1]
    return None if name is None else pyarrow().Codec(name, compression_level=level)


def copy(file: Any, chunk: Struct) -> Generator[bytes, None, Struct]:
    """Yields the bytes of a ColumnMetaData's pages. Returns the ColumnMetaData."""
    at, left = footer.extent(chunk)
    file.seek(at)
    while left:
        block = file.read(min(left, BLOCK))
        if not block:
            raise ValueError("it ends within a column")
        yield block
        left -= len(block)
    return chunk


def recompress(file: Any, chunk: Struct, compression: Compression) -> Generator[bytes, None, Struct]:
    """Yields the bytes of a ColumnMetaData's pages with another compression. Returns the new ColumnMetaData.

    The first page of both has the same position.
    """
    start, length = footer.extent(chunk)
    old, new = _codec(chunk[CODEC][1]), compression.codec()
    size = plain_size = 0
    places = {}  # the new positions of pages, by their old ones
    for at, header, data in _pages(file, start, length):
        places[at] = start + size
        head, data = _changed(header, data, old, new)
        page = thrift.written(head)
        yield page + data
        size += len(page) + len(data)
        plain_size += len(page) + head[PLAIN_BYTES][1]
    result = dict(chunk)
    for field in (footer.DATA, footer.INDEX, footer.DICTIONARY):
        if field == footer.DATA or chunk.get(field, (I64, 0))[1] > 0:
            result[field] = I64, places[chunk[field][1]]
    codec = CODECS[compression.name][0]
    return {**result, CODEC: (I32, codec), BYTES: (I64, size), footer.PLAIN_BYTES: (I64, plain_size)}


def _pages(file: Any, at: int, size: int) -> Iterator[tuple[int, Struct, bytes]]:
    """Yields the position, the PageHeader and the data of each page."""
    end, known = at + size, HEADER
    while at < end:
        file.seek(at)
        data = _exactly(file, min(known, end - at))
        try:
            header, length = thrift.read(data)
        except IndexError:
            if known >= end - at:
                raise ValueError("it has a damaged header of a page") from None
            known *= 2
            continue
        file.seek(at + length)
        yield at, header, _exactly(file, header[PAGE_BYTES][1])
        at += length + header[PAGE_BYTES][1]


def _exactly(file: Any, size: int) -> bytes:
    parts = []
    while size:
        part = file.read(size)
        if not part:
            raise ValueError("it ends within a column")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _changed(header: Struct, data: bytes, old: Any, new: Any) -> tuple[Struct, bytes]:
    """Returns the header and the data of a page for another codec. None is no compression."""
    result, levels = dict(header), 0
    if DATA_V2 in header:  # the levels before the values are never compressed
        second = dict(header[DATA_V2][1])
        levels = second[DEFINITIONS][1] + second[REPETITIONS][1]
        if not second.get(IS_COMPRESSED, (thrift.TRUE, True))[1]:
            old = None
        values = header[PLAIN_BYTES][1] > levels
        second[IS_COMPRESSED] = (thrift.TRUE, True) if new and values else (thrift.FALSE, False)
        result[DATA_V2] = thrift.STRUCT, second
        old, new = (old, new) if values else (None, None)
    plain = data[levels:]
    if old is not None:
        plain = old.decompress(plain, header[PLAIN_BYTES][1] - levels, asbytes=True)
    data = data[:levels] + (plain if new is None else new.compress(plain, asbytes=True))
    result[PAGE_BYTES] = I32, len(data)
    if CHECKSUM in header:
        checksum = zlib.crc32(data)
        result[CHECKSUM] = I32, checksum - 2**32 if checksum >= 2**31 else checksum
    return result, data
