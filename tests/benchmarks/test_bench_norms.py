"""Benchmarks of norms and elementwise functions: short calls, and arrays in and out of cache."""

from __future__ import annotations

import pytest

LAYER = [(r, w) for r in (8, 64, 512, 1000) for w in (64, 256, 1024)]
LAYER += [(8, 4096), (64, 512), (64, 4096), (512, 4096), (1000, 100), (1000, 750)]
LARGE = (65536, 1024)
BATCH = [(64, 512), (512, 1024), (8, 64, 14, 14)]
BATCH_LARGE = [LARGE, (32, 64, 56, 56)]  # input and output of the images have 25 MiB each

# table: (case, shapes, more arguments). Arrays larger than the caches are written to out=, or are new.
RACES = {
    "layer_norm, in cache": ("layer_norm", LAYER, {}),
    "layer_norm, one row": ("layer_norm", [(1, w) for w in (64, 100, 128, 256, 512, 750, 1024)], {}),
    "layer_norm, around the cache's size": (  # input and output have 8 to 32 MiB each
        "layer_norm",
        [(1000, 4096), (4096, 512), (8192, 512), (16384, 512)],
        {},
    ),
    "layer_norm_backward": (
        "layer_norm_backward",
        [(8, 256), (64, 512), (512, 1024), (1000, 256), LARGE],
        {},
    ),
    "rms_norm, in cache": ("rms_norm", [(1, 512), (8, 256), (64, 512), (512, 1024), (1000, 256)], {}),
    "batch_norm, inference": ("batch_norm_inference", BATCH, {}),
    "batch_norm, training": ("batch_norm_training", BATCH + BATCH_LARGE, {}),
    "batch_norm_backward": ("batch_norm_backward", BATCH + BATCH_LARGE, {}),
}
for how, out in (("out=", True), ("fresh output", False)):
    RACES |= {
        f"layer_norm, out of cache, {how}": ("layer_norm", [LARGE], {"out": out}),
        f"rms_norm, out of cache, {how}": ("rms_norm", [LARGE], {"out": out}),
        f"batch_norm, inference, large, {how}": ("batch_norm_inference", BATCH_LARGE, {"out": out}),
    }
for dtype in ("float64", "bfloat16", "float16"):
    RACES[f"layer_norm, {dtype}"] = ("layer_norm", [(64, 512), (512, 1024)], {"dtype": dtype})
for name in ("exp", "tanh", "sigmoid"):  # in the last shape, input and output have 32 MiB each
    shapes = [(1, 64), (8, 64), (8, 512), (64, 1024), (512, 1024), (16384, 512)]
    RACES[f"elementwise, {name}"] = ("elementwise", shapes, {"name": name})


def size(shape):
    return "x".join(map(str, shape))


@pytest.mark.parametrize(
    "table, shape",
    [
        pytest.param(table, shape, id=f"{table}-{size(shape)}")
        for table, (_, shapes, _) in RACES.items()
        for shape in shapes
    ],
)
def test_norm(compete, table, shape, threads):
    case, _, more = RACES[table]
    large = ", large" if shape in BATCH_LARGE and table.endswith(("backward", "training")) else ""
    compete(f"cases_norm.{case}", table + large, size(shape), threads, shape=shape, **more)
