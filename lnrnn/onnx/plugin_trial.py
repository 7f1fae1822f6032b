"""Times a file in ONNX Runtime, and its conversion in lnrnn's plug-in, for `lnrnn onnx FILE`."""

from __future__ import annotations

import math
import os
import re
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from timeit import timeit
from typing import Any

import numpy as np

from .. import onnxruntime as plugin
from .errors import text_of
from .runtime import open_session

SIZES = 1, 20  # sizes to try for free axes of the inputs
SECONDS = 0.05  # seconds of measuring for each size
MOST = 10**8  # elements of the largest input
_LEFT = re.compile(r"lnrnn leaves (node '.*' \(\w+\)) to the runtime: ([^\x1b\n]*)")


def tried(path: str, converted: str | bytes) -> dict[str, Any]:
    """Runs a file without and with the plug-in. Returns a dict with the keys left, calls and not_measured.

    not_measured: an error's text or "". left: nodes that run without the plug-in, with reasons. calls: a
    dict for each size of the free axes. "size" is None if the file fixes all sizes. Seconds are under
    "onnxruntime" (None if it refuses the file) and "lnrnn".
    """
    result: dict[str, Any] = {"left": [], "calls": [], "not_measured": ""}
    try:
        session, result["left"] = _opened(converted)
        sessions = {"lnrnn": session}
        with suppress(Exception):  # ONNX Runtime alone cannot run all nodes that the plug-in can
            sessions["onnxruntime"] = open_session(path)
        is_free = any(not isinstance(n, int) for each in session.get_inputs() for n in each.shape)
        for size in SIZES if is_free else (None,):
            feed = {each.name: _drawn(each, size or 1) for each in session.get_inputs()}
            seconds = dict(zip(sessions, _least([*sessions.values()], feed), strict=True))
            result["calls"].append({"size": size, "onnxruntime": None, **seconds})
    except Exception as error:  # onnxruntime raises exceptions of many types
        result["not_measured"] = text_of(error)
    return result


def _opened(converted: str | bytes) -> tuple[Any, list[str]]:
    """Returns a session with the plug-in, and "node: reason" for each node that the plug-in leaves alone.

    The reasons come from ONNX Runtime's log, which C code writes to file descriptor 2.
    """
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 1
    with tempfile.TemporaryFile() as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            session = plugin.session(converted, sess_options=options)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        log.seek(0)
        found = _LEFT.findall(log.read().decode(errors="replace"))
    return session, [*dict.fromkeys(map(": ".join, found))]


def _drawn(each: Any, size: int) -> np.ndarray:
    """Returns a random array for a session input; all 1 if it has integers, which most files accept."""
    dtype = {"float": "float32", "double": "float64"}.get(kind := each.type[7:-1], kind)
    shape = [n if isinstance(n, int) else size for n in each.shape]
    if math.prod(shape) > MOST:
        raise ValueError(f"input {each.name!r} must have at most {MOST} elements, got shape {tuple(shape)}")
    if np.dtype(dtype).kind == "f":
        return np.random.default_rng(0).uniform(-0.9, 0.9, shape).astype(dtype)
    return np.ones(shape, dtype)


def _least(sessions: Sequence[Any], feed: dict[str, np.ndarray]) -> list[float]:
    """Returns the shortest time in seconds of a call of each session. Calls alternate between sessions."""
    least, end = [math.inf] * len(sessions), time.perf_counter() + SECONDS
    while math.inf in least or time.perf_counter() < end:
        for k, session in enumerate(sessions):
            least[k] = min(least[k], timeit(partial(session.run, None, feed), number=1))
    return least
