"""How the columns of an output of `lnrnn score` are encoded: as those of the input, or as the user wants."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from ..errors import message
from . import parquet

# Names of --compression, and those of pyarrow's codecs.
CODECS = {"none": None, "snappy": "snappy", "gzip": "gzip", "brotli": "brotli", "zstd": "zstd", "lz4": "lz4"}
_NAMES = {"UNCOMPRESSED": "none", "LZ4_RAW": "lz4"}  # of codecs in Parquet's metadata, if not in lower case


@dataclass(frozen=True)
class Compression:
    """The codec of an output. level: None is the codec's default. Raises ValueError for wrong arguments."""

    name: str
    level: int | None = None

    def __post_init__(self) -> None:
        codec = CODECS[self.name]
        if self.level is None:
            return
        if codec not in ("gzip", "brotli", "zstd"):
            expected = "left out for this codec, which has no levels"
            raise ValueError(message("--compression-level", expected, f"{self.level} for {self.name}"))
        kinds = parquet.packages()[0].Codec
        least, most = kinds.minimum_compression_level(codec), kinds.maximum_compression_level(codec)
        if not least <= self.level <= most:
            raise ValueError(message("--compression-level", f"from {least} to {most}", str(self.level)))

    def __str__(self) -> str:
        return self.name if self.level is None else f"{self.name} --compression-level {self.level}"


def settings(
    file: Any, keep: Container[int], schema: Any, like: str, wanted: Compression | None
) -> dict[str, Any]:
    """Returns arguments of pyarrow.parquet.ParquetWriter for an output.

    file: the input. keep: the numbers of its columns that the output has. schema: that of the output, whose
    last column has the results. like: the column whose codec the results get. wanted: None keeps the codecs.

    Each column has the codec of its first row group, with dictionaries and statistics if it had some. Columns
    of floats have no dictionaries, because most of their values differ.
    """
    group = file.metadata.row_group(0) if file.metadata.num_row_groups else None
    codecs: dict[str, str] = {}
    dictionaries, statistics, at, of_results = [], [], 0, "snappy"
    for k, field in enumerate(file.schema_arrow):
        for path in _paths(field):
            chunk = None if group is None or at >= group.num_columns else group.column(at)
            at += 1
            codec = "snappy" if chunk is None else _name(chunk)
            of_results = codec if field.name == like else of_results
            if k not in keep:
                continue
            codecs[path] = codec
            if chunk is None or chunk.physical_type in ("FLOAT", "DOUBLE"):
                continue
            if any("DICTIONARY" in each for each in chunk.encodings):
                dictionaries.append(path)
            if chunk.is_stats_set:
                statistics.append(path)
    codecs |= dict.fromkeys(_paths(schema.field(len(schema.names) - 1)), of_results)
    if wanted is not None:
        codecs = dict.fromkeys(codecs, wanted.name)
    return {
        "compression": {path: codec.upper() for path, codec in codecs.items()},
        "compression_level": None if wanted is None else wanted.level,
        "use_dictionary": dictionaries, "write_statistics": statistics,
    }  # fmt: skip


def _name(chunk: Any) -> str:
    """Returns the name of a chunk's codec, or "snappy" for a codec that pyarrow does not write."""
    name = _NAMES.get(chunk.compression, chunk.compression.lower())
    return name if name in CODECS else "snappy"


def _paths(field: Any) -> list[str]:
    """Returns the paths of a column's leaves in a file that pyarrow writes."""
    pa, pq = parquet.packages()
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, pa.schema([field])):
        pass
    written = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return [written.column(k).path for k in range(len(written))]
