"""Runs ONNX models in ONNX Runtime alone and with lnrnn's plug-in."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime", minversion="1.25")

import lnrnn.onnx  # noqa: E402
import lnrnn.onnxruntime  # noqa: E402

KINDS = "RNN", "LSTM", "GRU"
NEAR = 1e-5


def version():
    """Returns the runtime's version, such as (1, 32)."""
    return tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])


def data_of(model):
    return model if isinstance(model, (str, bytes)) else model.SerializeToString()


def options(severity=3):
    result = onnxruntime.SessionOptions()
    result.intra_op_num_threads = result.inter_op_num_threads = 1
    result.log_severity_level = severity
    return result


def alone(model):
    """Returns a session of the runtime's own kernels."""
    return onnxruntime.InferenceSession(data_of(model), options(), providers=["CPUExecutionProvider"])


def plugged(model, **arguments):
    """Returns a session with the plug-in."""
    arguments.setdefault("sess_options", options())
    return lnrnn.onnxruntime.session(data_of(model), **arguments)


def feed(rng, kind, T=7, B=3, I=3, H=4, D=1, lengths=None, states=False, layout=0):  # noqa: E741
    """Returns inputs for a model of onnx_files.recurrent."""
    result = {"X": rng.standard_normal((B, T, I) if layout else (T, B, I)).astype(np.float32)}
    if lengths is not None:
        result["lens"] = np.array(lengths, np.int32)
    shape = (B, D, H) if layout else (D, B, H)
    for name in ("h0", "c0")[: (1 + (kind == "LSTM")) * states]:
        result[name] = rng.standard_normal(shape).astype(np.float32)
    return result


def profiled(model, given, tmp_path, **arguments):
    """Runs a model with the plug-in and profiling. Returns its outputs, the names of nodes that ran in the
    plug-in, and the operators of the runtime's nodes."""
    chosen = options()
    chosen.enable_profiling = True
    chosen.profile_file_prefix = str(tmp_path / "profile")
    session = plugged(model, sess_options=chosen, **arguments)
    outputs = session.run(None, given)
    return outputs, *ran(session)


def ran(session):
    """Ends profiling. Returns the names of nodes in the plug-in, and the operators in the runtime."""
    ours, theirs = set(), set()
    for event in json.loads(Path(session.end_profiling()).read_text()):
        of = event.get("args", {})
        if of.get("provider") == lnrnn.onnxruntime.ep_name():
            ours.add(event["name"])
        elif "op_name" in of:
            theirs.add(of["op_name"])
    return ours, theirs


def claimed(model, given, tmp_path, **arguments):
    """Runs a model with the plug-in. Returns its outputs, and the number of nodes that ran in the plug-in."""
    outputs, ours, _ = profiled(model, given, tmp_path, **arguments)
    return outputs, len(ours)


def computed(model, given, tmp_path, nodes=1, limit=NEAR):
    """Asserts that the plug-in runs so many nodes of a model, and that the results are the runtime's own."""
    outputs, count = claimed(model, given, tmp_path)
    assert count == nodes
    agree(outputs, alone(model).run(None, given), limit if nodes else 0)


def called(rnn, **form):
    """Returns the model of to_onnx in which a call of a function computes the network."""
    import onnx

    with TemporaryDirectory() as folder:
        path, out = (str(Path(folder, name)) for name in ("scans.onnx", "call.onnx"))
        lnrnn.to_onnx(rnn, path, **form)
        lnrnn.onnx.convert(path, out)
        result = onnx.load(out)
    assert [node.domain for node in result.graph.node].count("lnrnn") == 1
    return result


def left(model, capfd, **arguments):
    """Returns the lines of the log that name the nodes that the plug-in leaves to the runtime."""
    capfd.readouterr()
    plugged(model, sess_options=options(severity=1), **arguments)
    return [line for line in capfd.readouterr().err.splitlines() if "lnrnn leaves" in line]


def agree(ours, theirs, limit=NEAR):
    """limit: of the differences, relative to the largest number of an output if it is above 1.

    That number sets the size of the roundings of int8."""
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        assert our.shape == their.shape
        assert float(np.abs(our - their).max(initial=0)) <= limit * float(np.abs(their).max(initial=1))


def draw_inputs(session, rng, **sizes):
    """Returns random inputs for a session. sizes: of the axes T and B, if not 5 and 2. An axis without a name
    has the size of its input. Integers are 1 to 4."""
    sizes = {"B": 2, "T": 5} | sizes
    result = {}
    for each in session.get_inputs():
        shape = [sizes.get(each.name if n is None else n, 2 if n is None else n) for n in each.shape]
        a = rng.standard_normal(shape).astype(np.float32)
        a = rng.integers(1, 5, shape, np.int32) if "int" in each.type else a
        result[each.name] = np.asarray(a > 0) if "bool" in each.type else a
    return result
