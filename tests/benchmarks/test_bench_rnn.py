"""The LN-RNN: what every cell has, and odd sizes, streams; and batch norm against layer
norm."""

from __future__ import annotations

from recurrent import GRID, Recurrent, sizes

ODD = [(1, 96), (1, 100), (1, 320), (1, 750), (8, 100), (8, 750), (3, 256), (17, 256), (48, 256)]


class TestRNN(Recurrent):
    cell = "rnn"

    @sizes(ODD)
    def test_odd(self, compete, batch, hidden, threads):
        self.race(compete, "whole", "LN-{}, odd sizes", batch, hidden, threads)

    @sizes([(b, h) for b, h in GRID if b < 64])
    def test_streamed(self, compete, batch, hidden, threads):
        self.race(compete, "streamed", "LN-{}, streamed", batch, hidden, threads)

    @sizes(GRID)
    def test_bn_by_step(self, compete, batch, hidden, threads):
        self.race(compete, "batch_norm", "BN-{}, whole sequences", batch, hidden, threads)
