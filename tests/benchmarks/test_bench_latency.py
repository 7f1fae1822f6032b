"""Percentiles of single steps, from C and from Python, of an FPGA vendor's LSTMs and of RTNeural's layers."""

from __future__ import annotations

import pytest

# Layers and units of https://vollo.myrtle.ai/25.1.2/benchmark-lstm.html.
STACKED = [(2, 128), (3, 256), (3, 480), (6, 320), (3, 960)]
# Inputs and units in RTNeural's own benchmark, bench/templated_bench.hpp.
SINGLE = [(4, 4), (8, 8), (16, 16), (1, 24)]
SIZES = [("layers x units", "LSTM", layers, units, units) for layers, units in STACKED]
SIZES += [("inputs to units", cell, 1, *size) for cell in ("LSTM", "GRU") for size in SINGLE]


@pytest.mark.parametrize("kind, cell, layers, inputs, hidden", SIZES)
def test_step(measure, kind, cell, layers, inputs, hidden):
    measure("latency.step", kind=kind, cell=cell, layers=layers, inputs=inputs, hidden=hidden)
