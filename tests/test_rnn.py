"""Whole sequences against the reference: every norm, activation, instruction set and odd size."""

from __future__ import annotations

import numpy as np
import pytest
from networks import NORMS, network, normal


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(0, 3, 2), (4, 0, 2), (0, 0, 2), (0, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("batch_first", [False, True])
def test_no_steps_and_no_sequences(rng, norm, shape, dtype, batch_first):
    """y is empty, and the state is h0."""
    rnn = network(2, 5, norm=norm, num_layers=2, bidirectional=True, batch_first=batch_first, trained=3)
    x = np.zeros(shape, dtype)
    batch = shape[:0] if len(shape) == 2 else (shape[0] if batch_first else shape[1],)
    h0 = normal(rng, 4, *batch, 5)
    before = rnn.state_dict()
    for y, h in (rnn(x, h0), rnn.forward_train(x, h0)[:2]):
        assert y.shape == (*shape[:-1], 10)
        np.testing.assert_array_equal(h, h0)
    y, h, tape = rnn.forward_train(x, h0)
    gh = normal(rng, *h0.shape)
    gx, gh0, grads = rnn.backward(tape, y, gh)
    assert gx.shape == x.shape
    np.testing.assert_array_equal(gh0, gh)
    assert all(not g.any() and g.shape == rnn.parameters()[name].shape for name, g in grads.items())
    for name, value in rnn.state_dict().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
