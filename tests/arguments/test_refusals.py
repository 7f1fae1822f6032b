"""Runs the statements of the .txt files of this folder, which must raise the errors that follow them.

test_tables.py tests wrong types, shapes and numbers of each argument. A file has one statement a line, and
after ` -> ` its error, also that of the statements above it; ... is any text. Lines that begin with `>>> `
prepare the next ones. No network, stream, layer, session or array may change.
"""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import lnrnn
from bad_values import snapshot
from helpers import misaligned, read_only
from networks import network

NAMES = {name: getattr(lnrnn, name) for name in lnrnn.__all__}
NAMES |= dict(
    lnrnn=lnrnn, np=np, copy=copy, pickle=pickle, pytest=pytest, network=network, misaligned=misaligned,
    read_only=read_only, nan=float("nan"), inf=float("inf"),
    ones=lambda *shape, dtype=float: np.ones(shape, dtype),
    zeros=lambda *shape, dtype=float: np.zeros(shape, dtype),
)  # fmt: skip


def state(names):
    """Returns contents that a refused statement may not change."""
    found = {}
    for name, thing in names.items():
        if isinstance(thing, np.ndarray):
            found[name] = thing.tobytes()
        elif isinstance(thing, lnrnn.Network):
            found[name] = snapshot(thing), thing.dropout, thing.zoneout
        elif isinstance(thing, lnrnn.Stream):
            found[name] = [a.tobytes() for a in (*np.atleast_2d(thing.state), thing.steps_done)]
        elif isinstance(thing, (lnrnn.LayerNorm, lnrnn.BatchNorm)):
            found[name] = {key: value.tobytes() for key, value in thing.state_dict().items()}
        elif isinstance(thing, lnrnn.SessionPool):
            found[name] = sorted(thing)
    return found


@pytest.mark.parametrize("file", sorted(path.name for path in Path(__file__).parent.glob("*.txt")))
def test_each_statement_is_refused_with_its_error(file, tmp_path):
    text = re.sub("(?m)^#.*", "", (Path(__file__).parent / file).read_text())
    names, waiting, wrong = NAMES | {"folder": tmp_path}, [], []
    for line in filter(None, text.splitlines()):
        if line.startswith(">>> "):
            exec(line[4:], names)
            continue
        statement, _, error = line.partition(" -> ")
        waiting.append(statement)
        pattern = ".*".join(map(re.escape, error.split("...")))
        for statement in waiting if error else ():
            before, got = state(names), "no error"
            try:
                exec(statement, names)
            except Exception as e:
                got = f"{type(e).__name__}: {e}"
            if not re.fullmatch(pattern, got, re.DOTALL) or state(names) != before:
                wrong.append(f"{statement} -> {got}")
        waiting = [] if error else waiting
    assert not wrong and not waiting, "\n".join(wrong + waiting)
