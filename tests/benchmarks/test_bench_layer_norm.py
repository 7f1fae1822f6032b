"""Layer norm: in cache, one row, around the cache's size, out of cache; other types; backward; the layer's
call."""

from __future__ import annotations

import pytest

IN_CACHE = [
    (8, 64),
    (8, 256),
    (8, 1024),
    (8, 4096),
    (64, 64),
    (64, 256),
    (64, 512),
    (64, 1024),
    (64, 4096),
    (512, 64),
    (512, 256),
    (512, 1024),
    (512, 4096),
    (1000, 64),
    (1000, 100),
    (1000, 256),
    (1000, 750),
    (1000, 1024),
]
ONE_ROW = [64, 100, 128, 256, 512, 750, 1024]
AROUND_CACHE = [(1000, 4096), (4096, 512), (8192, 512), (16384, 512)]  # 8 to 32 MiB each of input and output
OUT_OF_CACHE = (65536, 1024)
TYPES = ["float64", "bfloat16", "float16"]
BACKWARD = [(8, 256), (64, 512), (512, 1024), (1000, 256), OUT_OF_CACHE]

FORWARD = "cases_norm.layer_norm"


def sizes(pairs):
    return pytest.mark.parametrize("rows, width", pairs, ids=[f"{r}x{w}" for r, w in pairs])


@sizes(IN_CACHE)
def test_in_cache(compete, rows, width, threads):
    compete(FORWARD, "layer_norm, in cache", f"{rows}x{width}", threads, rows=rows, width=width)


@pytest.mark.parametrize("width", ONE_ROW)
def test_one_row(compete, width, threads):
    compete(FORWARD, "layer_norm, one row", f"1x{width}", threads, rows=1, width=width)


@sizes([(1, 64), (8, 64)])
def test_layer(compete, rows, width, threads):
    group = "LayerNorm and layer_norm, short calls"
    compete("cases_norm.layer_norm_layer", group, f"{rows}x{width}", threads, rows=rows, width=width)


@sizes(AROUND_CACHE)
def test_around_cache(compete, rows, width, threads):
    group = "layer_norm, around the cache's size"
    compete(FORWARD, group, f"{rows}x{width}", threads, rows=rows, width=width)


@pytest.mark.parametrize("out", [True, False], ids=["out", "fresh"])
def test_out_of_cache(compete, out, threads):
    rows, width = OUT_OF_CACHE
    size = f"{rows}x{width} {'out=' if out else 'fresh output'}"
    compete(FORWARD, "layer_norm, out of cache", size, threads, rows=rows, width=width, out=out)


@pytest.mark.parametrize("dtype", TYPES)
@sizes([(64, 512), (512, 1024)])
def test_types(compete, rows, width, dtype, threads):
    size = f"{rows}x{width} {dtype}"
    compete(FORWARD, "layer_norm, other types", size, threads, rows=rows, width=width, dtype=dtype)


@sizes(BACKWARD)
def test_backward(compete, rows, width, threads):
    group = "layer_norm_backward" + (", large" if (rows, width) == OUT_OF_CACHE else "")
    compete("cases_norm.layer_norm_backward", group, f"{rows}x{width}", threads, rows=rows, width=width)
