"""`to_onnx` writes a network to an ONNX file."""

from __future__ import annotations

import os
import sys
from typing import Any

from ...arguments import TAKES, Flag, Instance, Integer, check
from ...errors import bad_value, message
from ...files import replacing
from ...packages import require
from ...rnn.network import Network
from ...rnn.settings import snapshot
from ...rnn.snapshot import Snapshot
from . import IR_VERSION, LAYER_NORM, OPSETS

TAKES["to_onnx"] = {
    "rnn": Instance(Network, "a network, such as lnrnn.LSTM(3, 4)"), "opset": Integer(*OPSETS),
    "step": Flag(), "states": Flag(), "lengths": Flag(), "resets": Flag(),
}  # fmt: skip
MOST_BYTES = 2**31 - 2**20  # of all arrays; a protobuf has less than 2 GiB


def to_onnx(
    rnn: Network[Any],
    path: str | os.PathLike[str],
    *,
    opset: int = 17,
    step: bool = False,
    states: bool = True,
    lengths: bool = False,
    resets: bool = False,
) -> None:
    """Write a network to an ONNX file, which ONNX Runtime and OpenVINO run.

    The numbers of steps T and of sequences B stay free. Inputs and outputs have the names of a call. The
    input x and the output y have the axes of a call, (T, B, *) or with batch_first (B, T, *).

    Parameters
    ----------
    rnn : Network
        The network. All cells, norms, layers and directions can be written, and zoneout.
    path : str or path-like
        The file, which is written whole or not at all.
    opset : int
        The version of ONNX's operators, 13 to 28. Layer norm needs 17. From 23 on, RMS norm is one node.
    step : bool
        Whether the file computes one step, as a stream does: x is (B, D) and y (B, P). With batch norm the
        number of steps that each sequence has had is an input step0 and an output step, int64 (B,).
    states : bool
        Whether the initial states are inputs: h0, and c0 of an LSTM, c0, n0 and m0 of an SLSTM. Otherwise
        they are 0. The last states h, c, n and m are outputs in either case.
    lengths : bool
        Whether the lengths of the sequences are an input, int32 (B,), 0 to T. A Scan does not check them.
    resets : bool
        Whether the steps before which the state is set to 0 are an input, bool (T, B), or (B,) with step.

    Raises
    ------
    ImportError
        Without the package onnx.
    ValueError, TypeError
        For a wrong argument. A file has no overrun "batch", no batch norm without statistics, and at most 2
        GiB. One step has no lengths, and the network only one direction, which is not reversed.
    OSError
        If path cannot be written. An old file is then unchanged.

    Notes
    -----
    A layer of RNN, LSTM or GRU with norm=None is a node RNN, LSTM or GRU. With zoneout, proj_size or resets,
    and for all other cells and norms, a layer and direction is a Scan, whose body is one step. With step, the
    body stands in the graph itself. Initializers have the names of parameters. Batch norm is stored as two
    tables, with a row for each step: scale, shift. The same network gives the same bytes.

    With overrun "raise", a step without statistics is a row beyond the tables. ONNX Runtime then raises an
    error. OpenVINO does not: all states and outputs of the sequence are NaN from there on.

    A network of dtype "bfloat16" or "int8" is written as float32, with the rounded weights. The file is as
    large as that of a float32 network, and its products do not round x and h. The network's products round
    them with int8, and on some CPUs with bfloat16, so its results differ more from the file's.
    Block-diagonal weights of num_heads are whole matrices with zeros.

    Runtimes compute in another order than lnrnn, and results differ by rounding. docs/onnx.md has measured
    differences, and the files that a runtime refuses or computes wrongly.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import lnrnn
    >>> import onnx.reference
    >>> rnn = lnrnn.GRU(3, 4, seed=0)
    >>> x, h0 = np.ones((5, 2, 3), np.float32), np.zeros((1, 2, 4), np.float32)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lnrnn.to_onnx(rnn, f"{folder}/model.onnx")
    ...     y, h = onnx.reference.ReferenceEvaluator(f"{folder}/model.onnx").run(None, {"x": x, "h0": h0})
    >>> bool(np.abs(y - rnn(x)[0]).max() < 1e-5)
    True
    """
    rnn, opset, *flags = check("to_onnx", locals())
    now, options = snapshot(rnn), dict(zip(("step", "states", "lengths", "resets"), flags, strict=True))
    _check(now, opset, **options)
    helper = require("onnx", "to_onnx", "onnx").helper
    from .networks import Form, network_graph
    from .read_back import KEY, claim

    form = Form(**options)
    graph = network_graph(now, form, opset)
    size = sum(array.nbytes for array in graph.arrays.values())
    if size > MOST_BYTES:
        raise ValueError(message("rnn", f"at most {MOST_BYTES} bytes in an ONNX file", str(size)))
    model = helper.make_model(
        graph.proto(), opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION,
        producer_name="lnrnn", producer_version=_version(),
    )  # fmt: skip
    helper.set_model_props(model, {KEY: claim(now, form)})
    with replacing(path) as write:
        write(model.SerializeToString(deterministic=True))


def _version() -> str:
    package: Any = sys.modules[__name__.partition(".")[0]]  # which imports this module
    version: str = package.__version__
    return version


def _check(now: Snapshot, opset: int, step: bool, states: bool, lengths: bool, resets: bool) -> None:
    """Raises ValueError for a network that a file cannot have."""
    made = now.architecture
    if step:
        for name in ("bidirectional", "reverse"):
            if getattr(made, name):
                raise bad_value(name, "False for a file of one step", True)
        if lengths:
            raise bad_value("lengths", "False for a file of one step", True, "leave out sequences that ended")
        if not states:
            raise bad_value("states", "True for a file of one step", False)
    if made.norm_kind == "layer" and opset < LAYER_NORM:
        raise bad_value("opset", f"at least {LAYER_NORM} for layer norm", opset)
    if made.sides and now.overrun == "batch":
        do = "statistics of the batch that a file runs on cannot be written: set rnn.overrun"
        raise bad_value("overrun", "'raise', 'last' or 'mean' in a file", now.overrun, do)
    if made.sides and not all(statistics.known for statistics in now.statistics.values()):
        raise bad_value("known_steps", "at least 1", 0, "train, calibrate, or load statistics first")
