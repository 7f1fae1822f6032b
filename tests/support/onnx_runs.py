"""Runs ONNX models in ONNX Runtime, and networks of lnrnn on the inputs of a part, for tests."""

from __future__ import annotations

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime")


def session(source):
    """Returns an InferenceSession of a path or of the bytes of a file, with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run(proto, feed):
    """Returns the outputs of a model by name."""
    opened = session(proto if isinstance(proto, (str, bytes)) else proto.SerializeToString())
    names = [value.name for value in opened.get_outputs()]
    return dict(zip(names, opened.run(names, feed), strict=True))


def outputs(rnn, x, h0=None, c0=None, lengths=None):
    """Returns Y (T, D, B, H), Y_h and Y_c of a network of one layer, as a node with layout 0 has them."""
    states = None if h0 is None else h0 if c0 is None else (h0, c0)
    y, state = rnn(x.swapaxes(0, 1) if rnn.batch_first else x, states, lengths=lengths)
    y = y.swapaxes(0, 1) if rnn.batch_first else y
    y = y.reshape(*y.shape[:2], 1 + rnn.bidirectional, -1).swapaxes(1, 2)
    state = state if isinstance(state, tuple) else (state,)
    return dict(zip(("Y", "Y_h", "Y_c"), (y, *state), strict=False))


def agree(ours, theirs, limit=1e-6):
    for name, want in theirs.items():
        assert ours[name].shape == want.shape
        difference = float(np.abs(ours[name] - want).max(initial=0))
        assert difference <= limit, f"{name} differs by {difference}"
