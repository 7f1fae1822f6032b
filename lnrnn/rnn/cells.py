"""The table of recurrent cells: what tells one from another before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Nonlinearity = Literal["tanh", "relu", "sigmoid", "identity"]
NONLINEARITIES: tuple[Nonlinearity, ...] = get_args(Nonlinearity)


@dataclass(frozen=True)
class Cell:
    """A row of the table.

    name: as in this module, and of the class in models.py and in the compiled module's CellKind. gates: how
    many blocks of H rows the weights have. states: 1, h, or 2, h and the cell state c. placement: of layer
    norm in Ba et al. 2016, the default. spans: with placement "split", how many gates each norm of a side is
    over, in the order of the rows. nonlinear: whether its nonlinearity is an argument.
    """

    name: str
    gates: int
    states: int
    placement: str
    spans: tuple[int, ...]
    nonlinear: bool = False

    def __reduce__(self) -> str:
        return self.name  # a copy, pickled or not, is the one of this module: cells are compared by `is`


RNN = Cell("RNN", 1, 1, "joint", (1,), nonlinear=True)
LSTM = Cell("LSTM", 4, 2, "split", (4,))
GRU = Cell("GRU", 3, 1, "split", (2, 1))
CELLS = {cell.name: cell for cell in (RNN, LSTM, GRU)}
