"""Batch norm: inference, training and backward; (N, C) in and out of cache, and images (N, C, H, W); the
layer's call."""

from __future__ import annotations

import pytest

IN_CACHE = [(64, 512), (512, 1024), (8, 64, 14, 14)]
LARGE = [(65536, 1024), (32, 64, 56, 56)]  # the images are 25 MiB each of input and output


def name(shape):
    return "x".join(map(str, shape))


def large(shape):
    return ", large" if shape in LARGE else ""


@pytest.mark.parametrize("shape", IN_CACHE, ids=name)
def test_inference(compete, shape, threads):
    compete("cases_norm.batch_norm_inference", "batch_norm, inference", name(shape), threads, shape=shape)


@pytest.mark.parametrize("shape", [(1, 64), (8, 64)], ids=name)
def test_layer(compete, shape, threads):
    group = "BatchNorm and batch_norm, short calls"
    compete("cases_norm.batch_norm_layer", group, name(shape), threads, shape=shape)


@pytest.mark.parametrize("out", [True, False], ids=["out", "fresh"])
@pytest.mark.parametrize("shape", LARGE, ids=name)
def test_inference_large(compete, shape, out, threads):
    size = f"{name(shape)} {'out=' if out else 'fresh output'}"
    group = "batch_norm, inference, large"
    compete("cases_norm.batch_norm_inference", group, size, threads, shape=shape, out=out)


@pytest.mark.parametrize("shape", IN_CACHE + LARGE, ids=name)
def test_batch_statistics(compete, shape, threads):
    group = f"batch_norm, training{large(shape)}"
    compete("cases_norm.batch_norm_training", group, name(shape), threads, shape=shape)


@pytest.mark.parametrize("shape", IN_CACHE + LARGE, ids=name)
def test_backward(compete, shape, threads):
    group = f"batch_norm_backward{large(shape)}"
    compete("cases_norm.batch_norm_backward", group, name(shape), threads, shape=shape)
