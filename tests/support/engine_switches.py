"""Switches of the engine that only tests and benchmarks use.

They are C functions of liblnrnn. The headers in pyx/ say what each one does.
"""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int
from typing import Any

import lnrnn

library = ctypes.CDLL(lnrnn.get_library())


def function(name: str, result: Any, *arguments: Any) -> Any:
    """The C function lnrnn_NAME with these types."""
    found = getattr(library, f"lnrnn_{name}")
    found.restype, found.argtypes = result, arguments
    return found


# --- networks: rnn/network.h, rnn/wavefront.h ---------------------------------------------------------------

NETWORK_WAYS = ("fastest", "in turn", "side by side")
_set_network_way = function("set_network_way", None, c_int)
set_part = function("set_part", None, c_double)


def set_network_way(way: str) -> None:
    _set_network_way(NETWORK_WAYS.index(way))
