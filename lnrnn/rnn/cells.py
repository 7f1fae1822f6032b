"""The table of recurrent cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Nonlinearity = Literal["tanh", "relu", "sigmoid", "identity"]
NONLINEARITIES: tuple[Nonlinearity, ...] = get_args(Nonlinearity)
GateActivation = Literal["sigmoid", "hard_sigmoid"]
GATE_ACTIVATIONS: tuple[GateActivation, ...] = get_args(GateActivation)
StateDtype = Literal["float32", "bfloat16"]
STATE_DTYPES: tuple[StateDtype, ...] = get_args(StateDtype)


@dataclass(frozen=True)
class Cell:
    """A recurrent cell with H hidden units.

    name: of this module's object, of the class in models.py, and of CellKind in C. gates: weight matrices
    have H rows for each gate. states: 1 for h, 2 for h and the cell state c. placement: the default placement
    of layer norm, from the paper. spans: numbers of gates normalised together in W_ih x and W_hh h, for
    placement "split". options: constructor arguments that not all cells have. written: options that files
    always contain, even with the default value. parts: the number of user's state arrays that the cell state
    joins on its last axis (SLSTM: c, n, m).
    """

    name: str
    gates: int
    states: int
    placement: str
    spans: tuple[int, ...]
    options: tuple[str, ...]
    written: tuple[str, ...] = ()
    parts: int = 1

    @property
    def nonlinear(self) -> bool:
        """Whether `nonlinearity` is a positional argument: not for a GRU, because torch's has tanh only."""
        return "nonlinearity" in self.written

    @property
    def state_names(self) -> tuple[str, ...]:
        """The letters of the user's state arrays: h, c, n, m."""
        return ("h", "c", "n", "m")[: 1 + (self.states - 1) * self.parts]

    def __reduce__(self) -> str:
        return self.name  # copies and pickles give this module's object: cells are compared with `is`


RNN = Cell("RNN", 1, 1, "joint", (1,), ("nonlinearity",), ("nonlinearity",))
LSTM = Cell("LSTM", 4, 2, "split", (4,), ("num_heads", "proj_size", "gate_activation", "peepholes"))
GRU = Cell("GRU", 3, 1, "split", (2, 1), ("nonlinearity", "reset_after", "num_heads", "gate_activation"))
LiGRU = Cell("LiGRU", 2, 1, "input", (2,), ("nonlinearity",), ("nonlinearity",))
SLSTM = Cell("SLSTM", 4, 2, "output", (4,), ("num_heads", "exp_forget", "state_dtype"), ("num_heads",), 3)
CELLS = {cell.name: cell for cell in (RNN, LSTM, GRU, LiGRU, SLSTM)}
OPTIONS = {name for cell in CELLS.values() for name in cell.options}
