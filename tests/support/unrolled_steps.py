"""Models of unrolled loops, and their comparison with ONNX Runtime, for tests of the plug-in."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_cells import Writer, draw, step
from onnx_files import FLOAT, model

D, H, T = 3, 4, 4
KINDS = pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
WIDTHS = pytest.mark.parametrize("width", [D, H])  # H: an h may be an x


def finished(w, outputs, width=D):
    """Returns a model. Its inputs are x, x0, x1, .. and the states that nodes read."""
    read = {name for node in w.nodes for name in node.input} - {name for n in w.nodes for name in n.output}
    inputs = {}
    for name in sorted(read - set(w.arrays)):
        states = name[0] in "hcgd"
        inputs[name] = FLOAT, ("T", "B", width) if name == "x" else ("B", H if states else width)
    return model(w.nodes, inputs, [o for o in outputs if o], w.arrays)


def chain(w, kind, parameters, xs, state=("h0", "c0")):
    """Writes steps. parameters: those of each step. Returns the names of all h, and of the last c or None."""
    hs = []
    for p, x in zip(parameters, xs, strict=True):
        state = step(w, kind, p, x, state)
        hs.append(state[0])
    return hs, state[1] if len(state) > 1 else None


def unrolled(rng, kind, T, indices=None, joined=True, width=D):
    """Returns a model with T steps of a cell. indices: of x at each step; None: each step has its own input.
    joined: whether a Concat joins the outputs."""
    w, p, state, ys = Writer(), draw(rng, kind, width, H), ("h0", "c0"), []
    for t in range(T):
        x = f"x{t}" if indices is None else w.node("Gather", "x", w.array(indices[t], np.int64), axis=0)
        state = step(w, kind, p, x, state)
        ys.append(w.node("Unsqueeze", state[0], w.integers(0)) if joined else state[0])
    return finished(w, [*([w.node("Concat", *ys, axis=0)] if joined else ys[:-1]), *state], width)


def xs_of(n):
    return [f"x{t}" for t in range(n)]
