"""Runs a part of a file and its network on random inputs, and compares the outputs.

ONNX Runtime runs the part, or onnx.reference if ONNX Runtime is missing or refuses the part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir

from ..importers.checking import MARGIN, RoundingHidesDifference, compared
from ..recognise.constants import constant
from ..recognise.graph import attribute
from ..recognise.part import Part
from ..rnn.models import LSTM
from .errors import text_of
from .extraction import Unrun, extracted
from .running.file_session import open_session
from .writing.read_back import KIND

Array = np.ndarray
Run = Callable[[dict[str, Array]], dict[str, Array]]
STEPS, BATCH = 7, 3  # as in importers/probes.py
SINGLE = float(np.finfo(np.float32).eps)
MOST = 2**22  # numbers of x, or of y: a file may fix large sizes
LARGEST = 2.0**56  # of the weights before a norm: squares of their sums are less than 2^128


def prove(part: Part, model: onnx_ir.Model, reset_after: bool | None = None) -> str:
    """Returns "" if the outputs agree, or why the part could not be run.

    Raises ValueError if the outputs differ. reset_after: as in from_onnx.
    """
    if part.kind == KIND:  # read_back has compared each node
        return ""
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
    names = [value.name for value in proto.graph.output]
    try:
        session, says = open_session(proto.SerializeToString(), optimised=False), "ONNX Runtime says"
    except ImportError:
        session, says = _reference(proto, part, "onnxruntime is not installed")
    except Exception as error:  # of many types
        session, says = _reference(proto, part, f"ONNX Runtime says: {text_of(error)}")

    def run(feed: dict[str, Array]) -> dict[str, Array]:
        feed = {value.name: feed[value.name] for value in proto.graph.input}
        try:
            with np.errstate(all="ignore"):
                return dict(zip(names, session.run(names, feed), strict=True))
        except Exception as error:  # pragma: no cover - an error of the runtime, which depends on its version
            raise Unrun(f"{says}: {text_of(error)}") from None

    return run


def _reference(proto: onnx.ModelProto, part: Part, reason: str) -> tuple[Any, str]:
    """Returns the model in onnx.reference, and a text before its errors. reason: why it is needed."""
    if part.lengths is not None or any(attribute(node, "activations") for node in part.layers):
        raise Unrun(f"onnx.reference ignores sequence_lens and activations, and {reason}")
    try:
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(proto), f"{reason}; onnx.reference says"
    except Exception as error:  # pragma: no cover - as above
        raise Unrun(f"{reason}; onnx.reference says: {text_of(error)}") from None


# --- comparing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arguments:
    """Random arguments of a network. feed: the same by the names of a part's values, with the part's axes.

    x: (T, B, I). inside (T, B, 1): whether a sequence has a step. states: h and c, (layers * D, B, *).
    """

    x: Array
    lengths: Array | None
    inside: Array
    states: list[Array]
    feed: dict[str, Array]


def _compare(part: Part, run: Run, dtype: np.dtype, steps: int) -> None:
    """Raises ValueError if the outputs of the part and its network differ on one random input."""
    given = drawn(part, steps)
    got = run({name: a.astype(dtype) if a.dtype.kind == "f" else a for name, a in given.feed.items()})
    theirs = [a.astype(np.float32) for a in _of_part(part, given, got)]
    _check(part, theirs, lambda network: _of_network(part, given, network), float(np.finfo(dtype).eps))


def drawn(part: Part, steps: int, sequences: int = BATCH) -> Arguments:
    """Returns random arguments of a part that has a network. The file may fix the sizes."""
    network = part.network
    assert network is not None
    rng = np.random.default_rng(0)
    T, B = (part.baked.get(axis, size) for axis, size in (("T", steps), ("B", sequences)))
    if T * B * max(network.input_size, network.hidden_size) > MOST:
        raise Unrun(f"the file fixes sizes that are too large to try, T={T} and B={B}")
    x = rng.standard_normal((T, B, network.input_size), dtype=np.float32)
    feed = {_name(part.x): _arranged(x, "TBI", part.axes["x"])}
    lengths = None
    inside = np.ones((T, B, 1), bool)
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
    directions = 1 + network.bidirectional
    own = directions if "D" in part.axes["h"] else 1  # directions of one value
    projected = network.proj_size if isinstance(network, LSTM) else 0
    first = part.initial_states if isinstance(part.initial_states, tuple) else (part.initial_states, None)
    for values, width, fixed in (
        (part.h0, projected or network.hidden_size, first[0]), (part.c0, network.hidden_size, first[1])
    ):  # fmt: skip
        state = np.zeros((network.num_layers * directions // own, own, B, width), np.float32)
        for k, value in enumerate(values):
            if value is not None:
                drawn = rng.uniform(-0.9, 0.9, state.shape[1:]).astype(np.float32)
                if fixed is not None and constant(value, any_batch=True) is not None:
                    drawn[:] = fixed.reshape(-1, own, *fixed.shape[1:])[k]
                state[k] = known.setdefault(id(value), drawn)
                feed[_name(value)] = _arranged(state[k], "DBH", part.axes["h"])
        states.append(state.reshape(-1, B, width))
    return Arguments(x, lengths, inside, states, feed)


def _of_part(part: Part, given: Arguments, got: dict[str, Array]) -> list[Array]:
    """Returns y (T, B, D * H) and states (D, B, H) from the outputs of a part by name."""
    result = []
    if part.y is not None:
        y = _arranged(got[_name(part.y)], part.axes["y"], "TBDH").reshape(*given.x.shape[:2], -1)
        y = y[::-1] if part.flipped else y
        result.append(np.where(given.inside, y, 0) if part.mask is not None else y)
    states = [value for value in (*part.h, *part.c) if value is not None]
    return result + [_arranged(got[_name(value)], part.axes["h"], "DBH") for value in states]


def _of_network(part: Part, given: Arguments, network: Any) -> list[Array]:
    """Returns the outputs of a network that are those of the part."""
    start, first = given.states[0] if not part.c0 else tuple(given.states), network.batch_first
    y, state = network(given.x.swapaxes(0, 1) if first else given.x, start, lengths=given.lengths)
    result = [] if part.y is None else [y.swapaxes(0, 1) if first else y]
    own = 1 + network.bidirectional if "D" in part.axes["h"] else 1
    states = state if isinstance(state, tuple) else (state,)
    for values, each in zip((part.h, part.c), states, strict=False):
        by_value = each.reshape(-1, own, *each.shape[1:])
        result += [by_value[k] for k, value in enumerate(values) if value is not None]
    return result


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
