"""Lists the kinds of cases, and runs one case."""

from __future__ import annotations

import importlib
import sys
import zlib
from pathlib import Path

import numpy as np

import lnrnn
from fuzz_judge import Judge
from helpers import available_isas
from lnrnn import _core

sys.path.append(str(Path(__file__).parents[2] / "conformance"))

# The kinds of cases, in the order in which they run. Each has a module fuzz_KIND.
TURN = (
    "norms", "streams", "networks", "norms", "networks", "training", "norms", "networks", "streams", "norms",
    "networks", "training", "networks", "onnx", "streams",
)  # fmt: skip
BLOCK = 200  # consecutive cases use one instruction set, because a switch takes as long as a case

ISAS = tuple(available_isas())  # called once, because on a virtual machine it takes as long as a case
_in_use = ""


def isa_of(number: int) -> str:
    return ISAS[number // BLOCK % len(ISAS)]


def kind_of(number: int, turn: tuple[str, ...] = TURN) -> str:
    return turn[number % len(turn)]


def run(kind: str, seed: int, number: int, judge: Judge) -> None:
    """Runs one case, which depends only on kind, seed, number and the machine's instruction sets."""
    global _in_use
    if _in_use != isa_of(number):
        _in_use = isa_of(number)
        _core.use_isa(_in_use)
    lnrnn.set_num_threads(1)
    rng = np.random.default_rng((seed, zlib.crc32(kind.encode()), number))
    importlib.import_module(f"fuzz_{kind}").case(rng, judge)
