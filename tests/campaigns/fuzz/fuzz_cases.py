"""The kinds of cases, and one case by its name: what a worker runs, and what a reproducer runs again."""

from __future__ import annotations

import importlib
import zlib

import numpy as np

import lnrnn
from fuzz_judge import Judge
from helpers import available_isas
from lnrnn import _core

# Kinds in the turn in which a worker takes them; a kind is the module fuzz_KIND.
SMALL = (
    "norms", "streams", "networks", "norms", "streams", "refusals", "norms", "training", "streams", "files",
    "norms", "networks", "streams", "npy", "lanes", "lanes",
)  # fmt: skip
TURN = (*SMALL * 5, "layers", "layers", "threads")
BLOCK = 200  # so many cases run on one instruction set: to switch takes as long as a case


ISAS = tuple(available_isas())  # to ask for them takes as long as a case, on a virtual machine
_in_use = ""


def isa_of(number: int) -> str:
    return ISAS[number // BLOCK % len(ISAS)]


def kind_of(number: int, turn: tuple[str, ...] = TURN) -> str:
    return turn[number % len(turn)]


def run(kind: str, seed: int, number: int, judge: Judge) -> None:
    """One case. Kind, seed, number and the instruction sets of the machine say what it is, nothing else."""
    global _in_use
    if _in_use != isa_of(number):
        _in_use = isa_of(number)
        _core.use_isa(_in_use)
    lnrnn.set_num_threads(1)
    rng = np.random.default_rng((seed, zlib.crc32(kind.encode()), number))
    importlib.import_module(f"fuzz_{kind}").case(rng, judge)
