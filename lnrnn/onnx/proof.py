"""Runs a part of a file and its network on random inputs, and compares the outputs.

ONNX Runtime runs the part, or onnx.reference if ONNX Runtime is missing or refuses the part.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir

from ..importers.checking import MARGIN, RoundingHidesDifference, compared
from ..rnn.models import LSTM
from .extraction import Unrun, extracted
from .graph.folding import attribute
from .part import Part

Array = np.ndarray
Run = Callable[[dict[str, Array]], dict[str, Array]]
STEPS, BATCH = 7, 3  # as in importers/probes.py
SINGLE = float(np.finfo(np.float32).eps)
LARGEST = 2.0**56  # of the weights before a norm: squares of their sums are less than 2^128


def prove(part: Part, model: onnx_ir.Model, reset_after: bool | None = None) -> str:
    """Returns "" if the outputs agree, or why the part could not be run.

    Raises ValueError if the outputs differ. reset_after: as in from_onnx.
    """
    doubt = ""
    try:
        proto, dtype = extracted(part, model, reset_after)
        run = _runner(proto, part)
        for steps in (STEPS, 1):  # weights that magnify rounding errors do it less in one step
            try:
                _compare(part, run, dtype, steps)
                return ""
            except RoundingHidesDifference as error:
                doubt = str(error).partition(";")[0]
    except Unrun as error:
        doubt = str(error)
    return doubt


# --- running ------------------------------------------------------------------------------------------------


def _runner(proto: onnx.ModelProto, part: Part) -> Run:
    """Returns a function that runs a model on arrays by name, and returns its outputs by name."""
    try:
        onnxruntime: Any = importlib.import_module("onnxruntime")  # it has no types
    except ImportError:
        return _reference(proto, part, "onnxruntime is not installed")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # the exception has the message too
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    names = [value.name for value in proto.graph.output]
    try:
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # of many types
        return _reference(proto, part, f"ONNX Runtime says: {_first_line(error)}")

    def run(feed: dict[str, Array]) -> dict[str, Array]:
        try:
            return dict(zip(names, session.run(names, feed), strict=True))
        except Exception as error:  # pragma: no cover - an error of the runtime, which depends on its version
            raise Unrun(f"ONNX Runtime says: {_first_line(error)}") from None

    return run


def _reference(proto: onnx.ModelProto, part: Part, reason: str) -> Run:
    """As _runner, with onnx.reference. reason: why it is needed."""
    if part.lengths is not None or any(attribute(node, "activations") for node in part.layers):
        raise Unrun(f"onnx.reference ignores sequence_lens and activations, and {reason}")
    try:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(proto)
    except Exception as error:  # pragma: no cover - as above
        raise Unrun(f"{reason}; onnx.reference says: {_first_line(error)}") from None
    names = [value.name for value in proto.graph.output]

    def run(feed: dict[str, Array]) -> dict[str, Array]:
        try:
            with np.errstate(all="ignore"):
                return dict(zip(names, evaluator.run(names, feed), strict=True))
        except Exception as error:  # pragma: no cover - as above
            raise Unrun(f"{reason}; onnx.reference says: {_first_line(error)}") from None

    return run


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


# --- comparing ----------------------------------------------------------------------------------------------


def _compare(part: Part, run: Run, dtype: np.dtype, steps: int) -> None:
    """Raises ValueError if the outputs of the part and its network differ on one random input.

    Axes are named as in Part.axes.
    """
    network, converted = part.network, part.converted
    assert network is not None and converted is not None
    rng = np.random.default_rng(0)
    D = 2 if network.bidirectional else 1
    layers = network.num_layers
    sizes = {"T": steps, "B": BATCH, "I": network.input_size, "H": network.hidden_size, "D": D} | part.baked
    T, B = sizes["T"], sizes["B"]
    x = rng.standard_normal((T, B, network.input_size), dtype=np.float32)
    feed = {_name(part.x): _arranged(x, "TBI", part.axes["x"])}
    lengths = None
    inside = np.ones((T, B, 1), bool)  # the steps of the sequences
    if part.lengths is not None or part.mask is not None:
        lengths = np.maximum(T - np.arange(B) * 2, 1).astype(np.int32)
        inside = np.arange(T)[:, None, None] < lengths[:, None]
    if part.lengths is not None:
        assert lengths is not None
        feed[_name(part.lengths)] = lengths
    if part.mask is not None:
        feed[_name(part.mask)] = inside if part.axes["mask"] == "TBI" else inside[:, :, 0]
    states = []
    known: dict[int, Array] = {}  # a value may be several states
    own = D if "D" in part.axes["h"] else 1  # directions of one value
    projected = network.proj_size if isinstance(network, LSTM) else 0
    for values, width in ((part.h0, projected or network.hidden_size), (part.c0, network.hidden_size)):
        state = np.zeros((layers * D // own, own, B, width), np.float32)
        for k, value in enumerate(values):
            if value is not None:
                drawn = rng.uniform(-0.9, 0.9, state.shape[1:]).astype(np.float32)
                state[k] = known.setdefault(id(value), drawn)
                feed[_name(value)] = _arranged(state[k], "DBH", part.axes["h"])
        states.append(state.reshape(layers * D, B, -1))
    floats = {name: a.astype(dtype) if a.dtype.kind == "f" else a for name, a in feed.items()}
    got = run(floats)
    theirs = []
    if part.y is not None:
        y = _arranged(got[_name(part.y)], part.axes["y"], "TBDH").reshape(T, B, -1)
        y = y[::-1] if part.flipped else y
        theirs.append(np.where(inside, y, 0) if part.mask is not None else y)
    for values in (part.h, part.c):
        theirs += [_arranged(got[_name(v)], part.axes["h"], "DBH") for v in values if v is not None]

    def outputs(of: Any) -> list[Array]:
        start = states[0] if not part.c0 else tuple(states)
        first = of.batch_first
        y, state = of(x.swapaxes(0, 1) if first else x, start, lengths=lengths)
        result = [] if part.y is None else [y.swapaxes(0, 1) if first else y]
        for values, each in zip(
            (part.h, part.c), state if isinstance(state, tuple) else (state,), strict=False
        ):
            by_layer = each.reshape(layers * D // own, own, B, -1)
            result += [by_layer[k] for k, v in enumerate(values) if v is not None]
        return result

    _check(part, [a.astype(np.float32) for a in theirs], outputs, float(np.finfo(dtype).eps))


def _check(part: Part, theirs: list[Array], outputs: Callable[[Any], list[Array]], eps: float) -> None:
    converted = part.converted
    assert converted is not None
    ours, eps = outputs(part.network), max(eps, SINGLE)
    if not all(np.isfinite(a).all() for a in (*theirs, *converted.state.values())):
        raise Unrun("its weights or outputs are not finite")  # ONNX Runtime computes numbers from NaN
    most = max(float(np.abs(a).max(initial=0)) for a in converted.state.values())
    if converted.arguments["norm"] is not None and most > LARGEST:
        raise Unrun("its weights have squares that are not finite")
    for a, b in zip(theirs, ours, strict=True):
        if a.shape != b.shape:
            raise ValueError(f"part {part.path!r} must have outputs of shape {b.shape}, got {a.shape}")
    largest = max((float(np.abs(a).max(initial=0)) for a in ours), default=0.0)
    difference = max(
        (float(np.abs(a - b).max(initial=0)) for a, b in zip(theirs, ours, strict=True)), default=0.0
    )
    limit = MARGIN * eps * max(largest, 1.0)
    if difference > limit or not limit <= 0.25 * largest:  # else the limit of `compared` is at least as large
        rng = np.random.default_rng(1)
        difference, limit = compared(
            theirs, ours, lambda: outputs(converted.disturbed(np.float32(eps), rng).model()), eps
        )
    if not difference <= limit:
        raise ValueError(
            f"part {part.path!r} must compute the same as its network, but on random input their outputs "
            f"differ by up to {difference:.3g}, where rounding explains {limit:.1g}"
        )


def _name(value: onnx_ir.Value | None) -> str:
    return (value.name if value is not None else None) or ""


def _arranged(array: Array, axes: str, wanted: str) -> Array:
    """Returns an array with its axes in another order. A new axis D, or T, has the length 1.

    If `axes` has no D and `wanted` has, the axis H is of all directions, and becomes H of one.
    """
    if array.ndim != len(axes):
        raise Unrun(f"an output has {array.ndim} axes, where {len(axes)} are expected")
    kept = [axis for axis in wanted if axis in axes]
    result = array.transpose([axes.index(axis) for axis in kept]) if len(kept) == len(axes) else None
    if result is None:  # without an axis of length 1
        gone = tuple(i for i, axis in enumerate(axes) if axis not in wanted)
        rest = "".join(axis for axis in axes if axis in wanted)
        return _arranged(array.squeeze(gone), rest, wanted)
    for i, axis in enumerate(wanted):
        if axis not in axes:
            result = np.expand_dims(result, i)
    return result
