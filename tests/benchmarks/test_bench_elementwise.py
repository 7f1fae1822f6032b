"""exp, tanh and sigmoid: where the call is all, in cache, out of cache."""

from __future__ import annotations

import pytest

SHAPES = [
    (1, 64),
    (8, 64),
    (8, 512),
    (64, 1024),
    (512, 1024),
    (16384, 512),
]  # the last: 32 MiB each of input and output


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid"])
def test_elementwise(compete, name, shape, threads):
    size = "x".join(map(str, shape))
    compete("cases_norm.elementwise", f"elementwise, {name}", size, threads, name=name, shape=shape)
