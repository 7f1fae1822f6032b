"""The table of recurrent cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Nonlinearity = Literal["tanh", "relu", "sigmoid", "identity"]
NONLINEARITIES: tuple[Nonlinearity, ...] = get_args(Nonlinearity)
StateDtype = Literal["float32", "bfloat16"]
STATE_DTYPES: tuple[StateDtype, ...] = get_args(StateDtype)


@dataclass(frozen=True)
class Cell:
    """A row of the table.

    name: in this module, of the class in models.py, and in the compiled module's CellKind. gates: the number
    of blocks of H rows in the weights. states: 1 for h, 2 for h and the cell state c. placement: the default,
    which is that of Ba et al. 2016. spans: with placement "split", the number of gates of each norm of a
    side, in the order of the rows. nonlinear: whether the nonlinearity is an argument. parts: the arrays of
    the user's state that a row of the cell state holds, one after the other.
    """

    name: str
    gates: int
    states: int
    placement: str
    spans: tuple[int, ...]
    nonlinear: bool = False
    parts: int = 1

    @property
    def state_names(self) -> tuple[str, ...]:
        """The letters of the arrays of the user's state."""
        return ("h", "c", "n", "m")[: 1 + (self.states - 1) * self.parts]

    def __reduce__(self) -> str:
        return self.name  # copies and pickles are the object of this module: cells are compared by `is`


RNN = Cell("RNN", 1, 1, "joint", (1,), nonlinear=True)
LSTM = Cell("LSTM", 4, 2, "split", (4,))
GRU = Cell("GRU", 3, 1, "split", (2, 1))
SLSTM = Cell("SLSTM", 4, 2, "output", (4,), parts=3)
CELLS = {cell.name: cell for cell in (RNN, LSTM, GRU, SLSTM)}
