"""The table of recurrent cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Nonlinearity = Literal["tanh", "relu", "sigmoid", "identity"]
NONLINEARITIES: tuple[Nonlinearity, ...] = get_args(Nonlinearity)


@dataclass(frozen=True)
class Cell:
    """A row of the table.

    name: in this module, of the class in models.py, and in the compiled module's CellKind. gates: the number
    of blocks of H rows in the weights. states: 1 for h, 2 for h and the cell state c. placement: the default,
    which is that of Ba et al. 2016. spans: with placement "split", the number of gates of each norm of a
    side, in the order of the rows. nonlinear, headed, projected: whether nonlinearity, num_heads and
    proj_size are arguments.
    """

    name: str
    gates: int
    states: int
    placement: str
    spans: tuple[int, ...]
    nonlinear: bool = False
    headed: bool = False
    projected: bool = False

    def __reduce__(self) -> str:
        return self.name  # copies and pickles are the object of this module: cells are compared by `is`


RNN = Cell("RNN", 1, 1, "joint", (1,), nonlinear=True)
LSTM = Cell("LSTM", 4, 2, "split", (4,), headed=True, projected=True)
GRU = Cell("GRU", 3, 1, "split", (2, 1), headed=True)
LiGRU = Cell("LiGRU", 2, 1, "input", (2,), nonlinear=True)
CELLS = {cell.name: cell for cell in (RNN, LSTM, GRU, LiGRU)}
