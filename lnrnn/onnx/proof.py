"""Compares a part of a file with its network, on a random input.

ONNX Runtime runs the part, or onnx.reference if ONNX Runtime is missing or refuses the part.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir

from ..recognise.graph import attribute, constant
from ..recognise.part import WHOLE_FILE, Part
from ..recognise.probes import BATCH, STEPS
from ..recognise.proof import SINGLE, Outputs, RoundingHidesDifference, Unchecked, compare
from ..recognise.reference_network import Leaf, ReferenceNetwork
from ..rnn.settings import architecture
from .errors import text_of
from .extraction import extracted
from .runtime import open_session

Array = np.ndarray
Run = Callable[[dict[str, Array]], dict[str, Array]]
MOST = 2**22  # numbers of x, or of y: a file may fix large sizes
LARGEST = 2.0**56  # of the weights before a norm: squares of their sums are less than 2^128


def prove(part: Part, model: onnx_ir.Model, reset_after: bool | None = None) -> str:
    """Returns "" if the outputs agree, or why the part could not be run.

    Raises ValueError if the outputs differ. reset_after: as in from_onnx.
    """
    if part.kind == WHOLE_FILE:  # read_back has compared each node
        return ""
    try:
        proto, dtype = extracted(part, model, reset_after)
        run = runner(proto, part)
        try:
            _compare(part, run, dtype, STEPS)
        except RoundingHidesDifference:  # weights that magnify rounding errors do it less in one step
            _compare(part, run, dtype, 1)
    except Unchecked as error:
        return str(error)
    return ""


def runner(proto: onnx.ModelProto, part: Part) -> Run:
    """Returns a function that runs a model on arrays by name, and returns its outputs by name."""
    names, says = [value.name for value in proto.graph.output], "ONNX Runtime says"
    try:
        session = open_session(proto.SerializeToString(), optimised=False)
    except Exception as error:  # of many types
        missing = isinstance(error, ImportError)
        reason = "onnxruntime is not installed" if missing else f"ONNX Runtime says: {text_of(error)}"
        says = f"{reason}; onnx.reference says"
        if part.lengths is not None or any(attribute(node, "activations") for node in part.layers):
            raise Unchecked(f"onnx.reference ignores sequence_lens and activations, and {reason}") from None
        try:
            from onnx.reference import ReferenceEvaluator

            session = ReferenceEvaluator(proto)
        except Exception as error:  # pragma: no cover - as below
            raise Unchecked(f"{says}: {text_of(error)}") from None

    def run(feed: dict[str, Array]) -> dict[str, Array]:
        feed = {value.name: feed[value.name] for value in proto.graph.input}
        try:
            with np.errstate(all="ignore"):
                return dict(zip(names, session.run(names, feed), strict=True))
        except Exception as error:  # pragma: no cover - an error of the runtime, which depends on its version
            raise Unchecked(f"{says}: {text_of(error)}") from None

    return run


def _compare(part: Part, run: Run, dtype: np.dtype, steps: int) -> None:
    """Raises ValueError if the outputs of the part and its network differ on one random input."""
    given, feed = drawn(part, steps)
    got = run({name: a.astype(dtype) if a.dtype.kind == "f" else a for name, a in feed.items()})
    outputs = Outputs(given.x, given.states, results_of(part, given, got), given.lengths)
    converted = part.converted
    assert converted is not None
    if not all(np.isfinite(a).all() for a in (*(a for _, a in outputs.parts), *converted.state.values())):
        raise Unchecked("its weights or outputs are not finite")  # ONNX Runtime computes numbers from NaN
    most = max(float(np.abs(a).max(initial=0)) for a in converted.state.values())
    if converted.arguments["norm"] is not None and most > LARGEST:
        raise Unchecked("its weights have squares that are not finite")
    eps = max(float(np.finfo(dtype).eps), SINGLE)
    difference = compare(outputs, ReferenceNetwork.of(converted), eps, True)
    if difference:
        raise ValueError(
            f"part {part.path!r} must compute the same as its network, but on random input their outputs "
            f"differ by up to {difference[0]:.3g}, where rounding explains {difference[1]:.1g}"
        )


def drawn(part: Part, steps: int, sequences: int = BATCH) -> tuple[Outputs, dict[str, Array]]:
    """Returns random inputs of a part that has a network, without outputs, and the same by name.

    The file may fix their sizes. Those by name have the part's axes.
    """
    network = part.network
    assert network is not None
    rng = np.random.default_rng(0)
    T, B = (part.baked.get(axis, size) for axis, size in (("T", steps), ("B", sequences)))
    if T * B * max(network.input_size, network.hidden_size) > MOST:
        raise Unchecked(f"the file fixes sizes that are too large to try, T={T} and B={B}")
    x = rng.standard_normal((T, B, network.input_size), dtype=np.float32)
    feed, lengths = {part.x.name: _arranged(x, "TBI", part.axes["x"])}, None
    if part.lengths is not None or part.mask is not None:
        lengths = np.maximum(T - np.arange(B) * 2, 1).astype(np.int32)
    if part.lengths is not None and lengths is not None:
        feed[part.lengths.name] = lengths
    if part.mask is not None:
        inside = _inside(T, lengths)
        feed[part.mask.name] = inside if part.axes["mask"] == "TBI" else inside[:, :, 0]
    states = []
    known: dict[int, Array] = {}  # a value may be several states
    places, own = network.num_layers * network.num_directions, _directions(part)
    first = part.initial_states if isinstance(part.initial_states, tuple) else (part.initial_states, None)
    widths = architecture(network).state_widths
    for values, width, fixed in zip((part.h0, part.c0), widths, first, strict=False):
        state = np.zeros((places // own, own, B, width), np.float32)
        for k, value in enumerate(values):
            if value is not None:
                numbers = rng.uniform(-0.9, 0.9, state.shape[1:]).astype(np.float32)
                if fixed is not None and constant(value, any_batch=True) is not None:
                    numbers[:] = fixed.reshape(-1, own, *fixed.shape[1:])[k]
                state[k] = known.setdefault(id(value), numbers)
                feed[value.name] = _arranged(state[k], "DBH", part.axes["h"])
        states.append(state.reshape(places, B, width))
    return Outputs(x, states, [], lengths), feed


def _inside(T: int, lengths: Array | None) -> Array:
    """Returns whether a sequence has a step, (T, B, 1)."""
    return np.arange(T)[:, None, None] < np.asarray(lengths)[:, None]


def _directions(part: Part) -> int:
    """Returns the number of directions of each value of a state."""
    assert part.network is not None
    return part.network.num_directions if "D" in part.axes["h"] else 1


def results_of(part: Part, given: Outputs, got: dict[str, Array]) -> list[tuple[Leaf, Array]]:
    """Returns the outputs of a part, from those by name."""
    own = _directions(part)
    result = [(Leaf(kind, slice(k * own, k * own + own)), _arranged(got[v.name], part.axes["h"], "DBH"))
              for kind, values in enumerate((part.h, part.c))
              for k, v in enumerate(values) if v is not None]  # fmt: skip
    if part.y is not None:
        y = _arranged(got[part.y.name], part.axes["y"], "TBDH").reshape(*given.x.shape[:2], -1)
        y = y[::-1] if part.flipped else y
        y = np.where(_inside(len(y), given.lengths), y, 0) if part.mask is not None else y
        result.append((Leaf(), y))
    return result


def _arranged(array: Array, axes: str, wanted: str) -> Array:
    """Returns an array with its axes in another order. A new axis D, or T, has the length 1.

    If `axes` has no D and `wanted` has, the axis H is of all directions, and becomes H of one.
    """
    if array.ndim != len(axes):
        raise Unchecked(f"an output has {array.ndim} axes, where {len(axes)} are expected")
    array = array.squeeze(tuple(i for i, axis in enumerate(axes) if axis not in wanted))
    axes = "".join(axis for axis in axes if axis in wanted)
    array = array.transpose([axes.index(axis) for axis in wanted if axis in axes])
    return np.expand_dims(array, [i for i, axis in enumerate(wanted) if axis not in axes])
