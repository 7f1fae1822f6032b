"""Writes networks as ONNX functions. lnrnn's plug-in for ONNX Runtime computes their calls by itself.

A call has the network's settings as attributes and its parameters as inputs, so that the plug-in needs no
body. Other runtimes compute the body, which has only ONNX operators.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...rnn.architecture import Architecture
from ...rnn.cells import CELLS, GATE_ACTIVATIONS, NONLINEARITIES
from ...rnn.snapshot import Snapshot
from ...rnn.specs import PLACEMENTS, LayerNormSpec
from .builder import Graph, Value
from .networks import Form, is_plain, network_graph
from .scan_bodies import EQUATIONS

DOMAIN, VERSION = "lnrnn", 1
INLINED = "lnrnn.inlined"  # domain of functions that are inlined before the file is written
_NORMS = None, "layer", "batch", "rms"  # in the order of include/lnrnn.h, like all choices
_CELL_NORMS = None, "out", "carry"


@dataclass(frozen=True)
class Function:
    """A network as an ONNX function. inputs: parameters by name, passed after x, states and lengths."""

    proto: onnx.FunctionProto
    inputs: dict[str, np.ndarray]
    attributes: dict[str, Any]


def function(snapshot: Snapshot, form: Form, opset: int) -> Function:
    """Returns a network as a function. Its domain is INLINED if its body has RNN, LSTM or GRU nodes."""
    made, plain = snapshot.architecture, is_plain(snapshot, form)
    graph = network_graph(snapshot, form)
    body, arrays, given = graph.proto(arrays=False), graph.arrays, [v.name for v in graph.inputs]
    if plain:
        inputs = {name: a for name, a in arrays.items() if name[:2] in ("W_", "R_", "B_", "P_")}
        first, names = Graph("", graph), [*inputs]
    else:
        inputs = {name: snapshot.parameters[name] for name in made.shapes}
        first, names = _wholes(graph, made)
    computed = {*names, *(name for node in first.nodes for name in node.output)}
    constants = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))
        for name, array in arrays.items()
        if name not in computed
    ]
    attributes = {} if plain else _attributes(snapshot, form)
    proto = helper.make_function(
        INLINED if plain else DOMAIN, "", given + names,
        [v.name for v in body.output], [*constants, *first.nodes, *body.node],
        [helper.make_opsetid("", opset)], list(attributes),
    )  # fmt: skip
    digest = hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()
    proto.name = f"{made.cell.name}_{digest[:12]}"
    return Function(proto, inputs, attributes)


def _wholes(graph: Graph, made: Architecture) -> tuple[Graph, list[str]]:
    """Returns (nodes that derive the body's arrays from the parameters, names of the parameters).

    A body may read only some gates of a parameter, and block-diagonal matrices as full matrices.
    """
    g, names, gates = Graph("", graph), [], EQUATIONS[made.cell.name].gates
    for name in made.shapes:
        names.append(name)
        if made.num_heads > 1 and name.startswith("weight_hh"):
            names[-1] += "_blocks"
            N, D = made.num_heads, made.hidden_size // made.num_heads
            eye = g.array(f"heads_{N}", np.eye(N, dtype=np.float32).reshape(1, N, 1, N, 1))
            blocks = g.node("Reshape", Value(g, names[-1]), g.integers(-1, N, D, 1, D))
            g.node("Reshape", blocks * eye, g.integers(-1, N * D))
            g.nodes[-1].output[0] = name
    for name in [*graph.arrays]:
        whole, _, part = name.rpartition("_")
        if whole in made.shapes and name not in made.shapes:
            first, last = (made.hidden_size * (gates.index(part) + n) for n in (0, len(part)))
            g.node("Slice", Value(g, whole), g.integers(first), g.integers(last), g.integers(0))
            g.nodes[-1].output[0] = name
    return g, names


def _attributes(snapshot: Snapshot, form: Form) -> dict[str, Any]:
    """Returns the attributes of a function call, as numbers of include/lnrnn.h's enums."""
    made = snapshot.architecture
    norm = made.norm if isinstance(made.norm, LayerNormSpec) else None
    placements = (*PLACEMENTS, "output")
    integers = dict(
        cell=[*CELLS].index(made.cell.name), act=NONLINEARITIES.index(made.nonlinearity),
        input_size=made.input_size, hidden_size=made.hidden_size, num_layers=made.num_layers, bias=made.bias,
        bidirectional=made.bidirectional, reverse=made.reverse, reset_after=made.reset_after,
        norm=_NORMS.index(made.norm_kind) if norm else 0,
        placement=placements.index(norm.placement if norm else made.cell.placement),
        span=norm is not None and norm.span == "all", cell_norm=_CELL_NORMS.index(norm and norm.cell),
        inner_bias=norm is not None and norm.inner_bias, num_heads=made.num_heads, proj_size=made.proj_size,
        gate_activation=GATE_ACTIVATIONS.index(made.gate_activation), exp_forget=made.exp_forget,
        bfloat16_states=made.state_dtype == "bfloat16", step=form.step, lengths=form.lengths,
        **(dict(peepholes=True) if made.peepholes else {}),
    )  # fmt: skip
    rates = [*map(float, snapshot.zoneout), 0.0, 0.0][:2]
    return {n: int(v) for n, v in integers.items()} | {"eps": norm.eps if norm else 0.0, "zoneout": rates}
