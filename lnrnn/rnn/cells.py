"""What tells one recurrent cell from another before anything is computed: gates, states, where norms may stand."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """name: also the compiled module's, in CellKind. gates: how many blocks of H rows the weights have. states: h,
    or h and c. placement: of layer norm in Ba et al. 2016, the default; placements: all that the cell has."""

    name: str
    gates: int
    states: int
    placement: str
    placements: tuple[str, ...] = ("joint", "split", "gate")

    def __reduce__(self) -> str:
        return self.name  # a copy, pickled or not, is the one of this module: cells are compared by `is`


RNN = Cell("RNN", 1, 1, "joint")
LSTM = Cell("LSTM", 4, 2, "split")
GRU = Cell("GRU", 3, 1, "split")
