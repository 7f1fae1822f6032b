"""Converts the nodes of ONNX's own tests of RNN, LSTM and GRU, and compares the results with theirs.

The installed package onnx has tests: 1.22 has 12, and 1.23 also has 6 of reverse and bidirectional nodes.
"""

from __future__ import annotations

import importlib

import pytest

pytest.importorskip("onnx_ir")

import lnrnn  # noqa: E402
from helpers import absolute_error  # noqa: E402
from onnx_files import FLOAT, model  # noqa: E402

REFUSED = {"test_lstm_with_peepholes": "peepholes"}


def vectors():
    """Returns (name, node, inputs, outputs) of each test of the installed package."""
    result = []
    for kind in ("rnn", "lstm", "gru"):
        module = importlib.import_module(f"onnx.backend.test.case.node.{kind}")

        def expect(node, inputs, outputs, name, **_):
            result.append((name, node, inputs, outputs))

        original, module.expect = module.expect, expect
        for case in vars(module).values():
            for name in dir(case):
                if isinstance(case, type) and name.startswith("export"):
                    getattr(case, name)()
        module.expect = original
    return list({name: (name, *rest) for name, *rest in result}.values())


VECTORS = vectors()
assert len(VECTORS) >= 12 and set(REFUSED) <= {name for name, *_ in VECTORS}


@pytest.mark.parametrize(
    "name, node, inputs, outputs", VECTORS, ids=[v[0].replace("test_", "") for v in VECTORS]
)
def test_a_node_has_onnx_s_result(name, node, inputs, outputs):
    arrays = dict(zip([n for n in node.input if n], inputs, strict=True))
    x = arrays.pop("X")
    lengths, h0, c0 = (arrays.pop(n, None) for n in ("sequence_lens", "initial_h", "initial_c"))
    given = {"X": (FLOAT, x.shape), "sequence_lens": (6, None), "initial_h": (FLOAT, None),
             "initial_c": (FLOAT, None)}  # fmt: skip
    proto = model(
        [node], {n: given[n] for n in node.input if n in given}, [o for o in node.output if o], arrays, 22
    )
    if name in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[name]):
            lnrnn.from_onnx(proto)
        return
    rnn = lnrnn.from_onnx(proto)
    first = rnn.batch_first
    states = [None if s is None else (s.swapaxes(0, 1) if first else s) for s in (h0, c0)]
    start = states[0] if type(rnn) is not lnrnn.LSTM or h0 is None else tuple(states)
    y, state = rnn(x, start, lengths=lengths)
    for key, want in zip([o for o in node.output if o], outputs, strict=True):
        if key == "Y":
            D = 1 + rnn.bidirectional
            y = y.reshape(*y.shape[:2], D, -1)
            assert absolute_error(y if first else y.swapaxes(1, 2), want) < 3e-7
        else:
            h = state[key == "Y_c"] if isinstance(state, tuple) else state
            assert absolute_error(h.swapaxes(0, 1) if first else h, want) < 3e-7
