"""RMS norm, at some of layer norm's sizes."""

from __future__ import annotations

import pytest

IN_CACHE = [(1, 512), (8, 256), (64, 512), (512, 1024), (1000, 256)]


@pytest.mark.parametrize("rows, width", IN_CACHE, ids=[f"{r}x{w}" for r, w in IN_CACHE])
def test_in_cache(compete, rows, width, threads):
    compete("cases_norm.rms_norm", "rms_norm, in cache", f"{rows}x{width}", threads, rows=rows, width=width)


@pytest.mark.parametrize("out", [True, False], ids=["out", "fresh"])
def test_out_of_cache(compete, out, threads):
    size = f"65536x1024 {'out=' if out else 'fresh output'}"
    compete("cases_norm.rms_norm", "rms_norm, out of cache", size, threads, rows=65536, width=1024, out=out)
