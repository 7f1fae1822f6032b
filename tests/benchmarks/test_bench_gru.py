"""The LN-GRU: whole sequences over the grid, ragged batches; and the plain GRU."""

from __future__ import annotations

from recurrent import Recurrent


class TestGRU(Recurrent):
    cell = "gru"
