"""`Part` describes one recurrent part of an ONNX file, or of another front's graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..importers.weights import Converted
from ..rnn.models import Model
from .graph import attribute, producer
from .interface import Node, Value, named

WHOLE_FILE = "file of to_onnx"  # a kind of part
SWAPPED = [1, 0, 2]  # the order of axes of a Transpose from (B, T, *) to (T, B, *)


class Difference(str):
    """A text of `Part.warnings` that from_onnx gives too: the network computes other values than the file."""


class OneStep(str):
    """A text of `Part.warnings` about a network of one step of a loop, which from_onnx gives by name only."""


REPEATS = Difference(
    "past its end, the y of a sequence repeats its last output; the network's y is 0 there: "
    "lengths from a mask that is true and then false"
)
KEEPS = Difference("past its end, the y of a sequence is its state; the network's y is 0 there")


@dataclass
class Part:
    """One recurrent part of a file: a node, a stack of nodes, or nodes that compute the steps of a cell.

    Attributes
    ----------
    path : str
        The names of the node (the first of a stack) and of the nodes around it, joined by "/".
    kind : str
        The operator, such as "LSTM", or other nodes that compute it: "LSTM step", "Loop of LSTM". A "file of
        to_onnx" is a whole file. Its inputs and outputs are the graph's, and x, h0, y and h are empty.
    nodes : tuple of onnx_ir.Node
        All nodes of the file that the network replaces, in the file's order.
    network : Network or None
        The network, or None with a reason.
    reason : str
        Why there is no network: the node, and the attribute or input.
    warnings : list of str
        What a user of the file should know about this part.
    paths : tuple of str
        All parts of the file with the same weights, such as those in the branches of an If. `path` is first.
    same : list of Part
        The other parts with the same weights, with values of their own. They have the same network.
    converted : Converted or None
        The network's class, arguments and state dict.
    x, lengths : onnx_ir.Value or None
        The input and the lengths (B,), integers. lengths is None without them.
    h0, c0 : tuple of onnx_ir.Value or None
        The initial states, one for each layer. None stands for zeros.
    initial_states : array, pair of arrays or None
        h0 for a call of the network, if the file starts from constants other than 0; for an LSTM (h0, c0).
        Each is (num_layers * directions, B, *). B is 1 if nodes repeat the state. States that are inputs of
        the file are 0 here. None without such constants.
    mask : onnx_ir.Value or None
        A mask that is true at the steps of a sequence and false at others, for a part without `lengths`. It
        gives lengths if each sequence has its steps first.
    y : onnx_ir.Value or None
        The outputs of all steps. None if the file does not use them.
    flipped : bool
        Whether y has the steps in the reverse order of x.
    h, c : tuple of onnx_ir.Value or None
        The last states, one for each layer. None if the file does not use them.
    axes : dict of str to str
        The axes of the values: {"x": "TBI", "y": "TDBH", "h": "DBH"}. T are steps, D directions, B sequences,
        I inputs. H are units, of y in all directions if there is no D. h stands for h0, c0, h and c.
    baked : dict of str to int
        Sizes that nodes of the part set to a number: {"T": 10}.
    layers : tuple of onnx_ir.Node
        The nodes RNN, LSTM or GRU, one for each layer. Empty for other parts.
    """

    path: str
    kind: str
    nodes: tuple[Any, ...] = field(repr=False)
    network: Model | None = None
    reason: str = ""
    warnings: list[str] = field(default_factory=list)
    paths: tuple[str, ...] = field(default=(), repr=False)
    same: list[Part] = field(default_factory=list, repr=False)
    converted: Converted | None = field(default=None, repr=False)
    x: Any = field(default=None, repr=False)
    lengths: Any = field(default=None, repr=False)
    h0: tuple[Any, ...] = field(default=(), repr=False)
    c0: tuple[Any, ...] = field(default=(), repr=False)
    initial_states: np.ndarray | tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)
    mask: Any = field(default=None, repr=False)
    y: Any = field(default=None, repr=False)
    flipped: bool = field(default=False, repr=False)
    h: tuple[Any, ...] = field(default=(), repr=False)
    c: tuple[Any, ...] = field(default=(), repr=False)
    axes: dict[str, str] = field(default_factory=dict, repr=False)
    baked: dict[str, int] = field(default_factory=dict, repr=False)
    layers: tuple[Any, ...] = field(default=(), repr=False)


def restarts(node: Node) -> str:
    """Returns the warning that a state has no input of the file."""
    return f"the state of node {named(node)} begins at 0 in each call of the file"


def is_batch_first(part: Part) -> bool:
    """Returns whether x, and y if the file uses it, have the axes (B, T, *) in the file.

    If nodes Transpose at x and y stand between, the part takes them in.
    """
    before = None if part.axes.get("x") != "TBI" else _swap(producer(part.x, "Transpose"))
    after = None if part.y is None or part.axes["y"] != "TBH" else _only_swap(part.y)
    if part.y is not None and not (after or part.axes["y"].startswith("B")):
        return part.axes.get("x") == "BTI" and part.axes["y"].startswith("B")
    if before is not None and before.graph is part.nodes[0].graph and before.inputs[0] is not None:
        own = {id(node) for node in part.nodes}
        users = before.outputs[0].consumers()
        alone = not before.outputs[0].is_graph_output() and all(id(user) in own for user in users)
        part.x, part.axes["x"] = before.inputs[0], "BTI"
        part.nodes = (*[before] * alone, *part.nodes)
    if after is not None and part.axes.get("x") == "BTI":
        part.y, part.axes["y"] = after.outputs[0], "BTH"
        part.nodes = (*part.nodes, after)
    return part.axes.get("x") == "BTI"


def _swap(node: Node | None) -> Node | None:
    """Returns a Transpose if it swaps steps and sequences."""
    order = None if node is None else attribute(node, "perm")
    return node if order is not None and list(order) == SWAPPED else None


def _only_swap(y: Value) -> Node | None:
    """Returns the Transpose that is the only user of y and swaps its steps and sequences."""
    users = [user for user in y.consumers() if user.op_type != "Shape"]
    if len(users) != 1 or y.is_graph_output() or producer(users[0].outputs[0], "Transpose") is None:
        return None
    return _swap(users[0])
