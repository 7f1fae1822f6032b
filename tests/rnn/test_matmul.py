"""Tests the product of packed weights and rows, computed by an RNN without norm and activation.

Tests every height and width of tiles and every path through the panels, on every instruction set. All numbers
are integers, so that sums are exact in any order.
"""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import using_caches

each_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int8 of 8 bits"])
BATCHES = (*range(1, 10), 17, 37)
# Numbers of outputs. With vectors of 1 to 16 numbers, these are from one vector to more than four panels.
WIDTHS = (*range(1, 14), 16, 24, 31, 33, 40, 48, 56, 64, 72, 80, 96, 112, 120, 128, 144, 160, 192, 208, 240)


def whole_numbers(rng, dtype, outputs, inputs, batch):
    """Returns weights (outputs, inputs) and rows (1, batch, inputs) that int8 represents exactly. int8
    divides a row by its largest value / 127 (weights), or / 8191, or with 8 bits by its range / 254 (x). To
    make this 1, rows begin with the ends, where the other factor is 0. With 8 bits, rows have other zero
    points. The last inputs may be alone in a word of memory."""
    w, x = rng.integers(-7, 8, (outputs, inputs + 3)), rng.integers(-7, 8, (1, batch, inputs + 3))
    w[:, :3], x[..., :3] = (127, 0, 0), (0, 8191, 0)
    if dtype == "int8 of 8 bits":
        x[..., 1] = np.arange(batch) * 119 % 240 + 7
        x[..., 2] = x[..., 1] - 254
    return w.astype(np.float32), x.astype(np.float32)


def product(w, dtype):
    rnn = lnrnn.RNN(w.shape[1], w.shape[0], nonlinearity="identity", norm=None, bias=False)
    rnn.weight_ih_l0 = w
    return rnn.to_dtype("int8", 8) if dtype == "int8 of 8 bits" else rnn.to_dtype(dtype)


def check(rng, dtype, outputs, inputs, batches):
    w, x = whole_numbers(rng, dtype, outputs, inputs, max(batches))
    rnn, want = product(w, dtype), x[0] @ w.T
    for batch in batches:
        np.testing.assert_array_equal(
            rnn(x[:, :batch])[0][0], want[:batch], err_msg=f"{batch} x {inputs} to {outputs}"
        )


@each_dtype
def test_every_tile_is_exact(isa, rng, dtype):
    for k, outputs in enumerate(WIDTHS):
        check(rng, dtype, outputs, (3, 8, 17)[k % 3], BATCHES)


@each_dtype
def test_weights_of_every_size_are_exact(isa, rng, dtype):
    """The weights are smaller than L1, up to a third larger, much larger, and larger than L2. For a single
    row, weights up to a third larger than L1 are used in halves. A word of memory has one float32, two
    bfloat16, four int8."""
    to_word = {"float32": 1, "bfloat16": 2}.get(dtype, 4)
    for outputs in WIDTHS[5::2]:
        padded = outputs if outputs <= 8 else -(-outputs // 16) * 16
        for words in (10_000, 12_600, 14_300, 16_000, 18_000):
            check(rng, dtype, outputs, to_word * (words // padded), (1, 2))
    for outputs, inputs in ((500, 400), (70, 2600), (193, 900)):
        for l2, reads_ahead in ((256 * 1024, False), (256 * 1024, True), (8 * 1024 * 1024, False)):
            with using_caches((32 * 1024, l2, l2), reads_ahead):
                check(rng, dtype, outputs, to_word * inputs, (1, 2, 9))


def test_panels_in_parts_are_exact(isa, rng):
    """L2 is too small for two panels, so all tiles of rows use some columns of the weights, then the next
    ones."""
    for outputs, inputs in ((64, 1001), (113, 700), (48, 257)):
        for l2 in (4 << 10, 32 << 10, 100 << 10):
            with using_caches((4096, l2, l2)):
                check(rng, "float32", outputs, inputs, (1, 2, 9, 17, 64, 70))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_read_forwards_and_backwards(isa, rng, dtype):
    """Alternate steps read W_hh backwards. Here W_hh permutes the hidden units and changes signs, so that
    states stay integers."""
    for hidden in (1, 7, 16, 31, 48, 64, 97, 104, 111, 112, 120, 128, 130, 193, 420):
        rnn = lnrnn.RNN(2, hidden, nonlinearity="identity", norm=None, bias=False)
        turn = np.eye(hidden, dtype=np.float32)[rng.permutation(hidden)] * rng.choice([-1, 1], hidden).astype(
            np.float32
        )
        w = rng.integers(-7, 8, (hidden, 2)).astype(np.float32)
        rnn.weight_hh_l0, rnn.weight_ih_l0 = turn, w
        for batch in (1, 2, 5):
            x, h = (
                rng.integers(-7, 8, (6, batch, 2)).astype(np.float32),
                np.zeros((batch, hidden), np.float32),
            )
            y = rnn.to_dtype(dtype)(x)[0]
            for t in range(6):
                h = x[t] @ w.T + h @ turn.T
                np.testing.assert_array_equal(y[t], h, err_msg=f"{hidden} units, {batch} sequences, step {t}")
