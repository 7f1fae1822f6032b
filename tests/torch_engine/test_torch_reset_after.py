"""Tests lnrnn.torch.GRU(reset_after=False): both engines, in training and in evaluation."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn

torch = pytest.importorskip("torch")

import lnrnn.torch  # noqa: E402
from torch_twins import LENGTHS, Batch, Layer, T, called, compare, inputs, states_of, tensors, twin  # noqa: E402

NORMS = [None, Layer("split"), Layer("split", inner_bias=True, eps=0.1), Batch(eps=0.1)]


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_reset_before_the_product(rng, norm):
    module = twin("GRU", norm, steps=T, num_layers=2, reset_after=False, num_heads=3)
    served = lnrnn.from_torch(module)
    assert served.reset_after is False and "reset_after=False" in repr(module)
    x, state = tensors(*inputs(rng, module), torch.float32)
    for lengths in (None, LENGTHS):
        want = served(x, state, lengths)
        with torch.no_grad():
            y, end = module(x, state, lengths)
            np.testing.assert_array_equal(y, want[0])
            np.testing.assert_array_equal(states_of(end)[0], states_of(want[1])[0])
            module.engine = "torch"
            compare(module(x, state, lengths), want, 1e-5)
            module.engine = None


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_gradients_of_both_engines(rng, norm):
    module = twin("GRU", norm, reset_after=False).train()
    x, state = tensors(*inputs(rng, module), torch.float32)
    results = []
    for engine in ("lnrnn", "torch"):
        module.engine = engine
        results.append(called(module, x, state, LENGTHS, module.parameters()))
    for a, b in zip(*([*values, *gradients] for values, gradients in results), strict=True):
        assert (a - b).abs().max() < 2e-4 * max(1, b.abs().max())
