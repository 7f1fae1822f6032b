"""Reads a file that to_onnx wrote back as one network, even if the recogniser could not find it.

The file's metadata name the network, but may be wrong. So `read_back` compares all nodes, edges and
numbers with the graph that to_onnx writes for this network.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir
from onnx_ir.serde import SerdeError, serialize_node, serialize_value

from ...importers.weights import Converted
from ...recognise.graph import constant, same_bits
from ...recognise.part import WHOLE_FILE, GraphPart
from ...rnn.architecture import Architecture
from ...rnn.file_format import architecture_of
from ...rnn.snapshot import Snapshot
from ...rnn.specs import zoneout_rates
from ...rnn.statistics import StepStatistics
from ..errors import quiet
from .networks import Form, is_plain, network_graph
from .scan_bodies import EQUATIONS

Array = np.ndarray
KEY = "lnrnn.network"  # key in the file's metadata
MOST_TEXT = 10_000  # characters of this metadata entry
DAMAGED = (KeyError, TypeError, ValueError, OverflowError, RecursionError, AttributeError, SerdeError)


def claim(snapshot: Snapshot, form: Form) -> str:
    """Returns the metadata text of a file: JSON with the network's configuration, zoneout and Form."""
    made = snapshot.architecture
    overrun = snapshot.overrun and ("raise" if snapshot.overrun == "raise" else "last")
    config = made.configuration("float32", overrun)
    if made.batch_norm:
        config["norm"]["max_steps"] = None
    return json.dumps({"network": config, "zoneout": snapshot.zoneout, "form": vars(form)}, sort_keys=True)


def read_back(model: onnx_ir.Model) -> GraphPart | None:
    """Returns a whole file of to_onnx as one part. None for other files, and for RNN, LSTM and GRU nodes."""
    text = model.metadata_props.get(KEY, "")
    if not 0 < len(text) <= MOST_TEXT:
        return None
    try:
        found = json.loads(text)
        form = Form(**found["form"])
        made = architecture_of(found["network"])
        rates = _zoneout(found["zoneout"])
        snapshot = _snapshot(made, _arrays(model), found["network"], zoneout_rates(rates, made.cell))
        if is_plain(snapshot, form) or not _writes(snapshot, form, model):
            return None
    except DAMAGED:
        return None
    converted = Converted(made.cell.name, dict(made.arguments), dict(snapshot.state()), "ONNX", rates)
    baked = {"T": 1} if form.step else {}
    name, nodes = model.graph.name or made.cell.name, tuple(model.graph)
    return GraphPart(name, WHOLE_FILE, nodes=nodes, converted=converted, baked=baked)


def _zoneout(rates: list[float]) -> Any:
    """Returns the rates of a snapshot as the argument zoneout: a float, or a tuple for several states."""
    return tuple(rates) if len(rates) > 1 else rates[0] if rates else 0.0


def _writes(snapshot: Snapshot, form: Form, model: onnx_ir.Model) -> bool:
    """Returns whether `network_graph` builds exactly the model's graph, with the same initializers."""
    from ..reading import opset_of

    theirs, stored = model.graph, model.graph.initializers
    with quiet(), np.errstate(all="ignore"):
        ours = network_graph(snapshot, form, opset_of(model) or 0)
        written: Any = onnx_ir.from_proto(ours.proto(arrays=False))
        same = _nodes(written, written.inputs[: len(ours.inputs)]) == _nodes(theirs, theirs.inputs)
        same = same and {*ours.arrays} == {*stored}
        pairs = [(constant(stored[name]), array) for name, array in ours.arrays.items()] if same else []
        return same and all(a is not None and same_bits(a, array) for a, array in pairs)


def _nodes(graph: onnx_ir.Graph, inputs: Sequence[onnx_ir.Value]) -> list[bytes]:
    """Returns a graph's inputs, outputs and nodes as serialized bytes, for a comparison."""
    written: list[Any] = [serialize_value(v) for v in (*inputs, *graph.outputs)]
    written += [serialize_node(node) for node in graph]
    return [each.SerializeToString(deterministic=True) for each in written]


def _arrays(model: onnx_ir.Model) -> dict[str, Array]:
    found = {name: constant(value) for name, value in model.graph.initializers.items()}
    return {name: a for name, a in found.items() if a is not None and a.dtype == np.float32}


def _snapshot(
    made: Architecture, arrays: Mapping[str, Array], config: Mapping[str, Any], zoneout: tuple[float, ...]
) -> Snapshot:
    """Returns the Snapshot of a file's arrays. Raises ValueError or KeyError if they do not fit."""
    parameters: dict[str, Array] = {}
    statistics: dict[str, StepStatistics] = {}
    for suffix in made.suffixes:
        own = {n.removesuffix(suffix): s for n, s in made.shapes.items() if n.endswith(suffix)}
        vectors: dict[str, Array] = {}
        if made.batch_norm:
            vectors, statistics[suffix] = _unfolded(made, arrays, suffix)
        for name, shape in own.items():
            whole = vectors[name] if name in vectors else _whole(made, arrays, name, suffix, 0)
            if name == "weight_hh" and whole.shape != shape:
                whole = _blocks(whole, made.num_heads)
            if whole.shape != shape:
                raise ValueError(name)
            with np.errstate(all="ignore"):
                parameters[name + suffix] = np.array(whole, np.float32)
    parameters = {name: parameters[name] for name in made.shapes}
    overrun = config["norm"]["overrun"] if made.batch_norm else None
    return Snapshot(made, parameters, statistics, overrun, "float32", zoneout)


def _whole(made: Architecture, arrays: Mapping[str, Array], name: str, suffix: str, axis: int) -> Array:
    """Returns array `name`, joined along `axis` if the file has it as parts for single gates."""
    if name + suffix in arrays:
        return arrays[name + suffix]
    gates, start = EQUATIONS[made.cell.name].gates, f"{name}{suffix}_"
    parts = {key.removeprefix(start): a for key, a in arrays.items() if key.startswith(start)}
    order = [each for each in sorted(parts, key=gates.find) if each in gates]
    if "".join(order) != gates:
        raise KeyError(name + suffix)
    return np.concatenate([parts[each] for each in order], axis)


def _blocks(w: Array, num_heads: int) -> Array:
    """Returns the diagonal blocks (rows, H / num_heads) of a matrix that `block_diagonal` built."""
    if num_heads == 1:
        return w
    H = w.shape[1]
    if w.ndim != 2 or w.shape[0] % H or H % num_heads:
        raise ValueError("weight_hh")
    D = H // num_heads
    by_head = w.reshape(-1, num_heads, D, num_heads, D)
    blocks = np.stack([by_head[:, k, :, k] for k in range(num_heads)], 1)
    return blocks.reshape(w.shape[0], D)


# --- batch norm ---------------------------------------------------------------------------------------------


def _unfolded(
    made: Architecture, arrays: Mapping[str, Array], suffix: str
) -> tuple[dict[str, Array], StepStatistics]:
    """Returns (gains and biases by name, statistics) that have these scale and shift tables of a file."""
    assert made.batch_norm is not None
    vectors: dict[str, Array] = {}
    found: dict[str, Array] = {}
    steps = 0
    for side, names in made.sites.items():
        end = side and f"_{side}"
        scale, shift = (_whole(made, arrays, f"{name}{end}", suffix, 1) for name in ("scale", "shift"))
        steps = len(scale)
        gain, mean, var = _unfolded_site(scale.astype(float), shift.astype(float), made.batch_norm.eps)
        vectors[names["gain"]] = gain
        if "bias" in names:
            vectors[names["bias"]] = np.where(gain == 0, shift[0], 0)
        found |= {names["mean"]: mean, names["variance"]: var}
    return vectors, StepStatistics(found | {"count": np.ones(steps, np.int64)})


def _unfolded_site(scale: Array, shift: Array, eps: float) -> tuple[Array, Array, Array]:
    """Returns gain, mean and variance such that scale = gain / sqrt(variance + eps), shift = -mean * scale.

    The variance is at least 1. Where the scale is 0, the gain is 0 too.
    """
    room = 2.0 ** math.ceil(math.log2(1 + eps))
    zero = scale == 0
    divisor = np.where(zero, 1.0, scale)
    with np.errstate(all="ignore"):  # the file's numbers may overflow
        gain = np.copysign(np.abs(scale).max(0, initial=0) * room, scale[0])
        var = np.where(zero, 1.0, (gain / divisor) ** 2 - eps)
        return gain, np.where(zero, 0.0, -shift / divisor), var
