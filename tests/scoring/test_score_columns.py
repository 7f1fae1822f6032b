"""Tests which columns `lnrnn score` copies, and how it compresses them."""

from __future__ import annotations

import pytest

import lnrnn
import sequence_files
from lnrnn import cli
from lnrnn.scoring import parquet
from networks import network

pytest.importorskip("safetensors")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

D = 3
CODECS = ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]


@pytest.fixture
def files(tmp_path, rng):
    """Returns a model, an output, and a table with columns of many kinds."""
    network(D, 4, cell="GRU").save(tmp_path / "m.safetensors")
    table = pa.table({
        "id": [f"user {k}" for k in range(50)],
        "x": sequence_files.sequences(rng, rng.integers(0, 9, 50), D, null=(3, 44)),
        "words": pa.array([None if k % 7 == 0 else f"word {k % 5}" for k in range(50)]).dictionary_encode(),
        "pair": pa.array([{"a": [k] * (k % 3), "b": {"c": None}} for k in range(50)]),
        "map": pa.array([[("k", k)] for k in range(50)], pa.map_(pa.string(), pa.int64())),
        "nothing": pa.nulls(50),
        "yes": pa.array([k % 2 == 0 for k in range(50)]),
        "time": pa.array(range(50), pa.timestamp("ns")),
        "numbers": pa.array(rng.standard_normal(50)),
    })  # fmt: skip
    return tmp_path / "m.safetensors", tmp_path / "in.parquet", tmp_path / "out.parquet", table


def score(files, *words):
    return cli.main(["score", *map(str, [*files[:3], "--column", "x", "--workers", "1", *words])])


def codecs(path):
    """Returns the codecs of each column, by the path of its leaves."""
    found, metadata = {}, pq.read_metadata(path)
    for k in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            each = metadata.row_group(k).column(column)
            found.setdefault(each.path_in_schema.split(".")[0], set()).add(each.compression.lower())
    return found


def read(path):
    """Returns the table, after it has verified the checksums of pages."""
    return pq.ParquetFile(path, page_checksum_verification=True).read()


def assert_scored(files, keep=None):
    model, _, output, table = files
    want = sequence_files.as_written(lnrnn.Scorer(model, "x")(table))
    kept = [name for name in table.schema.names if keep is None or name in keep]
    got = read(output)
    assert got.equals(want.select([*kept, "x_last"])), got.schema


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", CODECS)
def test_columns_keep_their_compression(files, codec, version):
    """Each column keeps its codec. The results have the codec of the sequences."""
    model, source, output, table = files
    mixed = {name: codec for name in table.schema.names} | {"id": "gzip"}
    known = {column: mixed[column.split(".")[0]] for column in leaves(table)}
    pq.write_table(
        table, source, row_group_size=20, compression=known, data_page_version=version, data_page_size=64,
        write_page_index=True, write_page_checksum=True, sorting_columns=[pq.SortingColumn(8)],
    )  # fmt: skip
    assert score(files) == 0
    assert_scored(files)
    name = {"none": "uncompressed"}.get(codec, codec)
    assert codecs(output) == {**dict.fromkeys([*table.schema.names, "x_last"], {name}), "id": {"gzip"}}
    group = pq.read_metadata(output).row_group(0)
    assert group.column(0).statistics.min == "user 0"
    coded = {c.path_in_schema for c in map(group.column, range(group.num_columns)) if c.has_dictionary_page}
    assert {"id", "words"} <= coded and not coded & {"numbers", "x.list.element.list.element"}


def leaves(table):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    schema = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return [schema.column(k).path for k in range(len(schema))]


@pytest.mark.parametrize("old, new", [*zip(CODECS, CODECS[1:] + CODECS[:1], strict=True)])
def test_the_compression_may_change(files, old, new):
    model, source, output, table = files
    pq.write_table(table, source, row_group_size=20, compression=old)
    assert score(files, "--compression", new) == 0
    assert_scored(files)
    name = {"none": "uncompressed"}.get(new, new)
    assert codecs(output) == dict.fromkeys([*table.schema.names, "x_last"], {name})


def test_a_level_of_compression(files):
    model, source, output, table = files
    text = pa.array([f"{k * 7919 % 1000} and {k * k % 977}" for k in range(20_000)])
    table = pa.table({"x": pa.nulls(20_000, table["x"].type), "text": text})
    pq.write_table(table, source, compression="none", use_dictionary=False)
    sizes = []
    for level in ("1", "19"):
        assert score(files, "--compression", "zstd", "--compression-level", level) == 0
        assert read(output)["text"].equals(table["text"])
        sizes.append(output.stat().st_size)
    assert sizes[1] < 0.9 * sizes[0] < 0.5 * source.stat().st_size


@pytest.mark.parametrize(
    "words, keep",
    [
        (["--keep", "id,numbers"], ["id", "numbers"]),
        (["--keep", "map,pair"], ["pair", "map"]),
        (["--keep", "x"], ["x"]),
        (["--only-results"], []),
        (["--only-results", "--id-column", "id"], ["id"]),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_columns_that_are_not_kept_are_left_out(files, words, keep, compression):
    pq.write_table(files[3], files[1], row_group_size=20, sorting_columns=[pq.SortingColumn(0)])
    assert score(files, *words, *(["--compression", compression] if compression else [])) == 0
    assert_scored(files, keep)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_columns_with_equal_names_stay(files, compression):
    model, source, output, table = files
    files = *files[:3], table.append_column("id", pa.array(range(50))).append_column("id", table["numbers"])
    pq.write_table(files[3], source, row_group_size=20)
    assert score(files, *(["--compression", compression] if compression else [])) == 0
    assert read(output).equals(sequence_files.as_written(lnrnn.Scorer(model, "x")(files[3])))


def test_columns_that_are_not_kept_are_not_decoded(files):
    """The pages of another column are damaged."""
    model, source, output, table = files
    pq.write_table(table, source, row_group_size=20, compression="zstd")
    data, metadata = bytearray(source.read_bytes()), pq.read_metadata(source)
    for k in range(metadata.num_row_groups):
        column = metadata.row_group(k).column(metadata.num_columns - 1)
        first = column.dictionary_page_offset or column.data_page_offset
        data[first : first + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    source.write_bytes(data)
    assert score(files, "--keep", "id,x") == 0
    assert_scored(files, ["id", "x"])


@pytest.mark.parametrize("held, times", [(2**30, 1), (4_000_000, 1.8), (0, 2)], ids=str)
def test_columns_are_read_once_if_decoded_rows_may_wait(files, rng, monkeypatch, held, times):
    """Files of decoded rows may have `held` bytes: space for all row groups, for the small one, for none."""
    fsspec = pytest.importorskip("fsspec")
    model, source, output, _ = files
    sequence_files.write(source, rng, [3000] * 50, D, row_group_size=40)
    assert score(files) == 0
    want, size, count = output.read_bytes(), source.stat().st_size, 0
    fsspec.filesystem("memory").pipe("/in.parquet", source.read_bytes())
    memory_file = type(fsspec.filesystem("memory").open("/in.parquet"))

    def read(file, number=-1, real=memory_file.read):
        nonlocal count
        count += len(data := real(file, number))
        return data

    monkeypatch.setattr(memory_file, "read", read)
    monkeypatch.setattr(parquet, "HELD_BYTES", held)
    assert score((model, "memory://in.parquet", output)) == 0
    assert pq.read_table(output).equals(pq.read_table(pa.BufferReader(want)))
    assert times < count / size < times + 0.15  # each open reads 64 kB


def test_metadata_stay_but_those_of_other_schemas(files):
    """Spark reads a schema of its own from metadata, which would not have the results."""
    model, source, output, table = files
    spark = "org.apache.spark.sql.parquet.row.metadata"
    pq.write_table(table.replace_schema_metadata({"note": "kept", spark: "{}"}), source)
    assert score(files) == 0
    metadata = pq.read_metadata(output).metadata
    assert metadata[b"note"] == b"kept" and spark.encode() not in metadata
    assert pq.read_schema(output).metadata[b"note"] == b"kept"
    assert lnrnn.__version__ in metadata[b"lnrnn"].decode() and b'"rows": 50' in metadata[b"lnrnn"]


@pytest.mark.parametrize("reader", ["polars", "pandas", "Arrow's data sets"])
def test_other_readers_read_the_output(files, reader):
    model, source, output, table = files
    table = table.drop_columns(["map", "nothing", "pair"])
    pq.write_table(table, source, row_group_size=20, compression="zstd")
    assert score(files) == 0
    want = sequence_files.as_written(lnrnn.Scorer(model, "x")(table))["x_last"].to_pylist()
    if reader == "polars":
        frame = pytest.importorskip("polars").read_parquet(output)
        assert frame["x_last"].to_list() == want and frame["id"].to_list() == table["id"].to_pylist()
    elif reader == "pandas":
        frame = pytest.importorskip("pandas").read_parquet(output)
        cells = [None if cell is None else cell.tolist() for cell in frame["x_last"]]
        assert cells == want and frame["id"].tolist() == table["id"].to_pylist()
    else:
        chosen = pytest.importorskip("pyarrow.dataset").field("id") == "user 7"
        assert pq.read_table(output, filters=chosen)["x_last"].to_pylist() == want[7:8]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--keep", "nowhere"], "there is no column 'nowhere'"),
        (["--compression-level", "3"], "--compression-level must be left out without --compression"),
        (["--compression", "snappy", "--compression-level", "3"], "for this codec, which has no levels"),
        (["--compression", "zstd", "--compression-level", "99"], "--compression-level must be from "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_are_refused(files, capsys, words, message):
    pq.write_table(files[3], files[1])
    assert score(files, *words) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1 and not files[2].exists()


def test_a_damaged_page_of_a_kept_column_is_named(files, capsys):
    model, source, output, table = files
    pq.write_table(table, source, row_group_size=20, compression="zstd")
    column = pq.read_metadata(source).row_group(1).column(0)
    data, first = bytearray(source.read_bytes()), column.dictionary_page_offset
    data[first : first + 40] = b"\xff" * 40
    source.write_bytes(data)
    assert score(files) == 2
    err = capsys.readouterr().err
    assert "in.parquet, row group 1, cannot be read as Parquet: " in err and not output.exists()
