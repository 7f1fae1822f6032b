"""The benchmarks that every recurrent cell has: test_bench_rnn.py, test_bench_lstm.py, test_bench_gru.py."""

from __future__ import annotations

import pytest

STEPS = 100
BATCHES, HIDDENS = [1, 8, 64], [128, 256, 512, 1024]
GRID = [(b, h) for b in BATCHES for h in HIDDENS]


def sizes(pairs):
    return pytest.mark.parametrize("batch, hidden", pairs, ids=[f"B{b}-H{h}" for b, h in pairs])


class Recurrent:
    cell: str  # in CELLS of cases_rnn.py

    def race(self, compete, case, group, batch, hidden, threads, **more):
        """group: the table's name, {} for the cell's."""
        size = {"batch": batch, "hidden": hidden, "steps": STEPS}
        compete(
            f"cases_rnn.{case}",
            group.format(self.cell.upper()),
            f"B={batch} H={hidden}",
            threads,
            cell=self.cell,
            **{**size, **more},
        )

    @sizes(GRID)
    def test_whole(self, compete, batch, hidden, threads):
        self.race(compete, "whole", "LN-{}, whole sequences", batch, hidden, threads)

    @sizes(GRID)
    def test_plain(self, compete, batch, hidden, threads):
        self.race(compete, "plain", "plain {}, whole sequences", batch, hidden, threads)

    @sizes([(64, 256), (64, 512)])
    def test_ragged(self, compete, batch, hidden, threads):
        self.race(compete, "ragged", "LN-{}, lengths uniform in 1..T", batch, hidden, threads)

    @pytest.mark.parametrize(
        "batch, hidden, steps", [(1, 512, 10 * STEPS), (64, 256, STEPS)], ids=["B1-H512", "B64-H256"]
    )
    def test_neighbour(self, compete, batch, hidden, steps, threads):
        """Calls of some scheduler's time slices."""
        self.race(compete, "neighbour", "LN-{}, beside a busy process", batch, hidden, threads, steps=steps)
