"""Opens plain onnxruntime sessions, without lnrnn's plug-in."""

from __future__ import annotations

import importlib
from typing import Any


def session_options(threads: int = 1, optimised: bool = True) -> Any:
    """Returns onnxruntime.SessionOptions. optimised: permit graph optimizations and prepacked weights."""
    onnxruntime: Any = importlib.import_module("onnxruntime")  # onnxruntime has no type hints
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # silent: errors are raised anyway
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def open_session(model: str | bytes, threads: int = 1, *, optimised: bool = True) -> Any:
    """Returns an onnxruntime.InferenceSession on the CPU. model: a path, or the bytes of a file.

    Raises ImportError without onnxruntime. Its errors for invalid models have no common class.
    """
    options = session_options(threads, optimised)
    onnxruntime: Any = importlib.import_module("onnxruntime")
    # onnxruntime's fallback would print text and try the same provider again.
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)
