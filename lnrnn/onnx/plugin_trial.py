"""Tries a part in ONNX Runtime with and without lnrnn's plug-in, and measures both, for `lnrnn onnx FILE`."""

from __future__ import annotations

import importlib
import math
import os
import re
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx_ir

from .. import onnxruntime as plugin
from ..recognise.part import Part
from ..recognise.proof import Unchecked
from .errors import text_of
from .extraction import extracted
from .proof import drawn
from .running.file_session import open_session
from .running.states import inputs
from .writing.read_back import KIND

Array = np.ndarray
STEPS = 1, 50  # of a call
SECONDS = 0.05  # for each number of steps
_LEFT = re.compile(r"lnrnn leaves node '.*' \(\w+\) to the runtime: ([^\x1b\n]*)")


def tried(part: Part, model: onnx_ir.Model) -> dict[str, Any]:
    """Returns whether the plug-in takes a part, the reasons why not, and the seconds of a call.

    The keys are taken, reason and calls. taken is None if the part could not be run. Each call has steps and
    sequences, and seconds in the plug-in (lnrnn) and without it (onnxruntime, None if that cannot run it).
    The plug-in takes no part without a network, because it uses the same networks.
    """
    taken, reason, calls = False, "", []
    if part.network is None and part.path.startswith("function "):
        reason = "onnx cannot convert its function to the file's opset, and the runtime may"
        return {"taken": None, "reason": reason, "calls": []}
    if part.network is not None:
        try:
            if part.kind == KIND:
                proto, dtype = onnx_ir.to_proto(model), np.dtype(np.float32)
            else:
                proto, dtype = extracted(part, model, unchanged=True)
            data = proto.SerializeToString()
            names, reason = _claims(data)
            taken = bool(names)
            if taken:
                calls = _calls(part, model, data, dtype)
            else:  # other nodes of the file may make it a step
                with suppress(Exception):  # of a file that cannot be run
                    whole, _ = _claims(onnx_ir.to_proto(model).SerializeToString())
                    taken = any(node.name and node.name in whole for node in part.nodes)
                reason = "" if taken else reason or "it knows no such nodes"
        except Exception as error:  # of many types
            says = "" if isinstance(error, Unchecked) else "ONNX Runtime says: "
            return {"taken": None, "reason": says + text_of(error), "calls": []}
    return {"taken": taken, "reason": reason, "calls": calls}


def _claims(data: bytes) -> tuple[set[str], str]:
    """Returns the names of a model's nodes that the plug-in takes, and why it leaves others.

    The reasons are in the runtime's log, which it writes to the standard error of C.
    """
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 1
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    with tempfile.TemporaryFile() as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            session = plugin.session(data, sess_options=options)
            claims = session.get_provider_graph_assignment_info()
            del session
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        log.seek(0)
        reasons = dict.fromkeys(_LEFT.findall(log.read().decode(errors="replace")))
    names = {node.name for each in claims if each.ep_name == plugin.ep_name() for node in each.get_nodes()}
    return names, "; ".join(reasons)


def _calls(part: Part, model: onnx_ir.Model, data: bytes, dtype: np.dtype[Any]) -> list[dict[str, Any]]:
    """Measures calls of a model with the plug-in and without."""
    sessions = {"lnrnn": open_session(data, plugin=True)}
    with suppress(Exception):  # it does not run all nodes that the plug-in runs
        sessions["onnxruntime"] = open_session(data)
    calls = []
    for steps in [part.baked["T"]] if "T" in part.baked else STEPS:
        sequences = part.baked.get("B", 1)
        feed = {
            name: array.astype(dtype) if array.dtype.kind == "f" else array
            for name, array in _feed(part, model, steps, sequences).items()
        }
        least = dict(zip(sessions, _least(list(sessions.values()), feed), strict=True))
        seconds = {name: least.get(name) for name in ("onnxruntime", "lnrnn")}
        calls.append({"steps": steps, "sequences": sequences, **seconds})
    return calls


def _feed(part: Part, model: onnx_ir.Model, steps: int, sequences: int) -> dict[str, Array]:
    """Returns random inputs by name."""
    if part.kind != KIND:
        return drawn(part, steps, sequences)[1]
    rng, sizes = np.random.default_rng(0), {"T": steps, "B": sequences}
    result = {}
    for each in inputs(model.graph):
        shape = [size if isinstance(size, int) else sizes[str(size)] for size in each.shape or ()]
        if each.name == "lengths":
            result[each.name] = np.full(shape, steps, each.dtype)
        else:
            result[each.name] = rng.uniform(-0.9, 0.9, shape).astype(each.dtype)
    return result


def _least(sessions: Sequence[Any], feed: dict[str, Array]) -> list[float]:
    """Returns the least seconds of a call of each session. The sessions alternate."""
    bound = []
    for session in sessions:  # a call with bound arrays spends the least time in Python
        binding = session.io_binding()
        for each in session.get_inputs():
            binding.bind_cpu_input(each.name, feed[each.name])
        for each in session.get_outputs():
            binding.bind_output(each.name)
        bound.append((session.run_with_iobinding, binding))
    least = [math.inf] * len(sessions)
    end = time.perf_counter() + SECONDS
    while math.inf in least or time.perf_counter() < end:
        for k, (run, binding) in enumerate(bound):
            since = time.perf_counter()
            run(binding)
            least[k] = min(least[k], time.perf_counter() - since)
    return least
