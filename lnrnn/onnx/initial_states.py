"""Initial states that a file sets to constants, as arrays for the calls of a network."""

from __future__ import annotations

import numpy as np
import onnx_ir

from ..errors import message
from .graph.constants import constant, is_zero
from .part import Difference, Part


def is_fixed(value: onnx_ir.Value) -> bool:
    """Returns whether a value is a constant other than 0, perhaps repeated for each sequence."""
    return constant(value, any_batch=True) is not None and not is_zero(value)


def set_initial_states(part: Part) -> None:
    """Sets `initial_states` and a warning, if the file starts the part from constants other than 0.

    Raises ValueError for constants of other shapes than the states have.
    """
    assert part.converted is not None
    fixed = {id(v): v for v in (*part.h0, *part.c0) if v is not None and is_fixed(v)}
    if not fixed:
        return
    given, axes = part.converted.arguments, part.axes["h"]
    own, H = 1 + given["bidirectional"] if "D" in axes else 1, given["hidden_size"]
    arrays = {key: np.array(constant(v, any_batch=True), np.float32, ndmin=3) for key, v in fixed.items()}
    arrays = {key: a.swapaxes(0, 1) if axes == "BDH" else a for key, a in arrays.items()}
    B = max(a.shape[1] for a in arrays.values())
    found = []
    for values, width in ((part.h0, given.get("proj_size", H)), (part.c0, H)):
        zeros = np.zeros((own, B, width), np.float32)
        try:
            states = [np.broadcast_to(arrays.get(id(v), zeros), zeros.shape) for v in values]
        except ValueError:
            got = ", ".join(f"{v.name!r} of shape {arrays[key].shape}" for key, v in fixed.items())
            raise ValueError(message("constant initial states", f"of shape {zeros.shape}", got)) from None
        found += [np.concatenate(states)] if states else []
    if any(constant(v) is not None for v in fixed.values()):
        part.baked["B"] = B
    batch = f"They are for a batch of {B} sequences only"
    if all((a == a[:, :1]).all() for a in found):
        found, batch = [a[:, :1] for a in found], "Repeat them along axis 1 for several sequences"
    part.initial_states = found[0] if len(found) == 1 else (found[0], found[1])
    names = ", ".join(dict.fromkeys(repr(v.name) for v in fixed.values()))
    part.warnings.append(Difference(
        f"the file starts from states that are constants other than 0, {names}, and network(x) from 0. "
        f"Pass it h0=part.initial_states, of the parts that lnrnn.onnx.parts returns. {batch}"
    ))  # fmt: skip
