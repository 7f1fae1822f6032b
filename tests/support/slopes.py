"""Shared by the tests of the demos' trained models: compares gradients with differences of the loss."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn


def mild(cell, norm):
    """A norm for a model that is differentiated numerically, with a larger eps.

    If h and c of an LSTM are small, their norms bend so much that no difference is the slope.
    """
    if cell == "lstm" and norm:
        return (lnrnn.LayerNormSpec if norm == "layer" else lnrnn.BatchNormSpec)(eps=0.1)
    return norm


def assert_slopes(model, batch, rel):
    """Checks the gradients of model.loss_and_gradients(*batch): along a gradient the slope is its norm."""
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
