"""Sessions of onnxruntime alone, without lnrnn's plug-in."""

from __future__ import annotations

import importlib
from typing import Any


def session_options(threads: int = 1, optimised: bool = True) -> Any:
    """Returns options of onnxruntime. optimised: whether it may change the graph and its weights."""
    onnxruntime: Any = importlib.import_module("onnxruntime")  # it has no types
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # do not print errors, which are raised anyway
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def open_session(model: str | bytes, threads: int = 1, *, optimised: bool = True) -> Any:
    """Returns an onnxruntime.InferenceSession of a path, or of the bytes of a file, on the CPU.

    Raises ImportError without onnxruntime; errors for a model have no common class.
    """
    options = session_options(threads, optimised)
    onnxruntime: Any = importlib.import_module("onnxruntime")
    # Without onnxruntime's fallback, which prints text and tries the same provider again.
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)
