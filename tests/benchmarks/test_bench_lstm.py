"""The LN-LSTM: whole sequences over the grid, ragged batches; and the plain LSTM."""

from __future__ import annotations

from recurrent import Recurrent


class TestLSTM(Recurrent):
    cell = "lstm"
