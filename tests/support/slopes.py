"""Compares gradients with differences of the loss, for tests of models that the demo and studies train."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn


def mild(cell, norm):
    """Returns the norm with a larger eps, for numeric differentiation.

    With the default eps, norms of small h and c have so much curvature that differences are inexact."""
    if cell == "lstm" and norm:
        return (lnrnn.LayerNormSpec if norm == "layer" else lnrnn.BatchNormSpec)(eps=0.1)
    return norm


def assert_slopes(model, batch, rel):
    """Asserts for each gradient of model.loss_and_gradients(*batch) that the loss's slope along the gradient
    is its length."""
    start = {name: value.copy() for name, value in model.parameters().items()}
    _, gradients = model.loss_and_gradients(*batch)
    assert gradients.keys() == start.keys()
    for name, gradient in gradients.items():
        size = np.linalg.norm(gradient)
        losses = []
        for sign in (1, -1):
            model.set_parameters({**start, name: start[name] + np.float32(sign * 1e-2 / size) * gradient})
            losses.append(model.loss_and_gradients(*batch)[0])
        assert (losses[0] - losses[1]) / 2e-2 == pytest.approx(size, rel=rel), name
