"""Calls liblnrnn through ctypes: networks from arrays or files, calls, streams."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

import lnrnn
from lnrnn.rnn.cells import CELLS, NONLINEARITIES

INT, SIZE, DOUBLE, P = ctypes.c_int, ctypes.c_size_t, ctypes.c_double, ctypes.c_void_p
MESSAGE = 256
DTYPES = {"float32": 0, "float64": 1, "int64": 2}
PLACEMENTS, OVERRUNS = ("joint", "split", "gate", "input", "output"), ("raise", "last", "mean", "batch")


class Description(ctypes.Structure):
    """The struct lnrnn_description."""

    _fields_ = [
        ("cell", INT), ("act", INT), ("weights", INT), ("input_size", SIZE), ("hidden_size", SIZE),
        ("num_layers", SIZE), ("bias", INT), ("batch_first", INT), ("bidirectional", INT), ("reverse", INT),
        ("reset_after", INT), ("norm", INT), ("placement", INT), ("span", INT), ("cell_norm", INT),
        ("inner_bias", INT), ("eps", DOUBLE), ("max_steps", SIZE), ("steps", SIZE), ("overrun", INT),
        ("momentum", DOUBLE), ("zoneout", DOUBLE * 2), ("dropout", DOUBLE), ("num_heads", SIZE),
        ("proj_size", SIZE), ("gate_activation", INT), ("exp_forget", INT), ("bfloat16_states", INT),
        ("peepholes", INT),
    ]  # fmt: skip


class Array(ctypes.Structure):
    """The struct lnrnn_array."""

    _fields_ = [("name", ctypes.c_char_p), ("dtype", INT), ("ndim", SIZE), ("shape", SIZE * 6), ("data", P)]


class Sequences(ctypes.Structure):
    """The struct lnrnn_sequences."""

    _fields_ = [
        ("steps", SIZE), ("sequences", SIZE), ("batch_first", INT), ("threads", INT), ("x", P),
        ("lengths", P), ("resets", P), ("h0", P), ("c0", P), ("y", P), ("hn", P), ("cn", P),
    ]  # fmt: skip


class Refused(Exception):
    """A function returned a status other than LNRNN_OK, with this message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def library(path: str | Path | None = None) -> ctypes.CDLL:
    """Loads the library that lnrnn itself has loaded, so that both share threads and settings."""
    result = ctypes.CDLL(str(path or lnrnn.get_library()))
    for name in ("inputs", "units", "layers", "directions"):
        getattr(result, f"lnrnn_network_{name}").restype = SIZE
        getattr(result, f"lnrnn_network_{name}").argtypes = [P]
    result.lnrnn_network_state_size.restype = SIZE
    result.lnrnn_network_state_size.argtypes = [P, INT]
    result.lnrnn_describe.restype = Description
    result.lnrnn_describe.argtypes = [INT, SIZE, SIZE]
    result.lnrnn_network_release.argtypes = [P]
    return result


def described(rnn: Any) -> Description:
    """Returns the description of a network of lnrnn's Python classes."""
    norm, lstm = rnn.norm, type(rnn).__name__ == "LSTM"
    weights = {"float32": 0, "bfloat16": 1, "int8": 2}[rnn.dtype]
    weights += weights == 2 and rnn.activation_bits == 8
    kinds = {type(None): 0, lnrnn.LayerNormSpec: 1, lnrnn.BatchNormSpec: 2, lnrnn.RMSNormSpec: 3}
    rates = rnn.zoneout if lstm else (rnn.zoneout, 0.0)
    structs = Description(
        [*CELLS].index(type(rnn).__name__), NONLINEARITIES.index(getattr(rnn, "nonlinearity", "tanh")),
        weights, rnn.input_size, rnn.hidden_size, rnn.num_layers, rnn.bias, rnn.batch_first,
        rnn.bidirectional, rnn.reverse, getattr(rnn, "reset_after", True), kinds[type(norm)], len(PLACEMENTS),
        zoneout=(DOUBLE * 2)(*rates), eps=getattr(norm, "eps", 0.0), num_heads=getattr(rnn, "num_heads", 1),
        proj_size=getattr(rnn, "proj_size", 0),
        gate_activation=getattr(rnn, "gate_activation", "sigmoid") == "hard_sigmoid",
    )  # fmt: skip
    if isinstance(norm, lnrnn.LayerNormSpec):
        structs.placement, structs.inner_bias = PLACEMENTS.index(norm.placement), norm.inner_bias
        structs.span, structs.cell_norm = norm.span == "all", (None, "out", "carry").index(norm.cell)
    elif norm is not None:
        structs.overrun, structs.max_steps = OVERRUNS.index(norm.overrun), norm.max_steps or 0
    structs.peepholes = getattr(rnn, "peepholes", False)
    structs.exp_forget = getattr(rnn, "exp_forget", False)
    structs.bfloat16_states = getattr(rnn, "state_dtype", "float32") == "bfloat16"
    return structs


def arrays_of(state: dict[str, np.ndarray]) -> Any:
    structs = (Array * len(state))()
    for one, (name, value) in zip(structs, state.items(), strict=True):
        one.name, one.dtype, one.ndim = name.encode(), DTYPES.get(value.dtype.name, 3), value.ndim
        one.shape[: value.ndim] = value.shape
        one.data = value.ctypes.data
    return structs


def checked(function: Any, *arguments: Any) -> None:
    message = ctypes.create_string_buffer(MESSAGE)
    status = function(*arguments, message)
    if status:
        raise Refused(status, message.value.decode())


def joined(state: Any) -> list[np.ndarray]:
    """Returns the arrays of a state as in C: h, or h and all others in one array."""
    return [state[0], np.concatenate(state[1:], axis=-1)] if len(state) > 2 else list(state)


class Network:
    """An lnrnn_network, made from a description and arrays or from a file. cells: the number of arrays in a
    row of c, 3 in an SLSTM (c, n, m)."""

    def __init__(
        self, c: ctypes.CDLL, source: Any, state: dict[str, np.ndarray] | None = None, cells: int = 1
    ) -> None:
        self.c, self.pointer, self.cells = c, P(), cells
        if state is None:
            path = str(source).encode()
            checked(c.lnrnn_network_open, path, ctypes.byref(self.pointer))
        else:
            arrays = arrays_of(state)
            checked(
                c.lnrnn_network_create,
                ctypes.byref(source),
                arrays,
                SIZE(len(arrays)),
                ctypes.byref(self.pointer),
            )

    def size(self, name: str) -> int:
        return int(getattr(self.c, f"lnrnn_network_{name}")(self.pointer))

    def close(self) -> None:
        self.c.lnrnn_network_release(self.pointer)
        self.pointer = P()

    def __call__(
        self, x: np.ndarray, state: Any = None, lengths: Any = None, resets: Any = None,
        batch_first: bool = False, threads: int = 0,
    ) -> tuple[np.ndarray, list[np.ndarray]]:  # fmt: skip
        """Runs the network as a Python network's call does. Returns y, and h or h and c."""
        T, B = x.shape[1::-1] if batch_first else x.shape[:2]
        lines = self.size("layers") * self.size("directions")
        widths = [*filter(None, (int(self.c.lnrnn_network_state_size(self.pointer, k)) for k in (0, 1)))]
        y = np.full((*x.shape[:2], self.size("directions") * widths[0]), np.nan, np.float32)
        end = [np.full((lines, B, width), np.nan, np.float32) for width in widths]
        start = joined(state or [])

        def data(array: Any) -> int | None:
            return None if array is None else array.ctypes.data

        s = Sequences(
            T, B, batch_first, threads, data(x), data(lengths), data(resets),
            *map(data, (start + [None, None])[:2]), data(y), *map(data, [*end, None][:2]),
        )  # fmt: skip
        checked(self.c.lnrnn_network_run, self.pointer, ctypes.byref(s), None)
        return y, end[:1] + [part for c in end[1:] for part in np.split(c, self.cells, axis=-1)]
