"""`Part` and `GraphPart`: one recurrent part of an ONNX file or of a traced module."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ..importers.weights import Converted
from ..rnn.models import Model
from .graph import attribute, producer
from .interface import Node, Value, named

WHOLE_FILE = "file of to_onnx"  # Part.kind of a file that to_onnx wrote
SWAPPED = [1, 0, 2]  # perm of a Transpose between (B, T, *) and (T, B, *)


class Difference(str):
    """An item of `Part.warnings`: the network's values differ from the file's. from_onnx warns of it."""


class OneStep(str):
    """An item of `Part.warnings`: the part is one step of a loop. from_onnx(name=...) warns of it."""


REPEATS = Difference(
    "past its end, the y of a sequence repeats its last output; the network's y is 0 there. Give lengths=, "
    "the number of true values of the mask, which must come first"
)
KEEPS = Difference("past its end, the y of a sequence is its state; the network's y is 0 there")
READS_INSIDE = "reads an inner value of the step, but a network returns only y and its states"


@dataclass
class Part:
    """One recurrent part of a file: a node, a stack of nodes, or nodes that compute the steps of a cell.

    Attributes
    ----------
    path : str
        The names of the node (the first of a stack) and of the nodes around it, joined by "/".
    kind : str
        The operator, such as "LSTM", or other nodes that compute it: "LSTM step", "Loop of LSTM". A "file of
        to_onnx" is a whole file.
    network : Network or None
        The network, or None with a reason.
    reason : str
        Why there is no network: the node, and the attribute or input.
    warnings : list of str
        What a user of the file should know about this part.
    initial_states : array, pair of arrays or None
        h0 for a call of the network, if the file starts from constants other than 0; for an LSTM (h0, c0).
        Each is (num_layers * directions, B, *). B is 1 if nodes repeat the state. States that are inputs of
        the file are 0 here. None without such constants.
    flipped : bool
        Whether the file's y has the steps in the reverse order of x.
    """

    path: str
    kind: str
    network: Model | None = None
    reason: str = ""
    warnings: list[str] = field(default_factory=list)
    initial_states: np.ndarray | tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)
    flipped: bool = field(default=False, repr=False)


@dataclass(repr=False)
class GraphPart(Part):
    """A part with its nodes and values in the graph. Tuples of values have one for each layer.

    nodes: all nodes that the network replaces, in the file's order. paths: all parts of the file with the
    same weights, such as those in the branches of an If. `path` is first. same: the other parts with the same
    weights, with values of their own, and the same network. converted: the network's class, arguments and
    state dict.

    x, lengths: the input and the lengths (B,), integers, or None. h0, c0: the initial states; None stands for
    zeros. mask: a mask that is true at the steps of a sequence and false at others, for a part without
    `lengths`. It gives lengths if each sequence has its steps first. y: the outputs of all steps. h, c: the
    last states. y, h and c are None if the file does not use them. A "file of to_onnx" has none of these.

    axes: the axes of the values: {"x": "TBI", "y": "TDBH", "h": "DBH"}. T are steps, D directions, B
    sequences, I inputs. H are units, of y in all directions if there is no D. h stands for h0, c0, h and c.
    baked: sizes that nodes of the part set to a number: {"T": 10}. layers: the nodes RNN, LSTM or GRU; empty
    for other parts.
    """

    nodes: tuple[Any, ...] = ()
    paths: tuple[str, ...] = ()
    same: list[GraphPart] = field(default_factory=list)
    converted: Converted | None = None
    x: Any = None
    lengths: Any = None
    h0: tuple[Any, ...] = ()
    c0: tuple[Any, ...] = ()
    mask: Any = None
    y: Any = None
    h: tuple[Any, ...] = ()
    c: tuple[Any, ...] = ()
    axes: dict[str, str] = field(default_factory=dict)
    baked: dict[str, int] = field(default_factory=dict)
    layers: tuple[Any, ...] = ()

    def public(self) -> Part:
        """Returns a plain Part, without nodes and values of the graph."""
        return Part(**{each.name: getattr(self, each.name) for each in fields(Part)})


def restarts(node: Node) -> str:
    """Returns the text of a warning: a state starts at 0 in each call, since no input of the file sets it."""
    return f"the state of node {named(node)} begins at 0 in each call of the file"


def is_batch_first(part: GraphPart) -> bool:
    """Returns whether x, and y if the file uses it, have the axes (B, T, *) in the file.

    Transposes of x and y are absorbed into the part: its x, y, axes and nodes are changed.
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
    """Returns the node if it is a Transpose between (B, T, *) and (T, B, *), else None."""
    order = None if node is None else attribute(node, "perm")
    return node if order is not None and list(order) == SWAPPED else None


def _only_swap(y: Value) -> Node | None:
    """Returns the Transpose between (T, B, H) and (B, T, H) if it is the only user of y, else None."""
    users = [user for user in y.consumers() if user.op_type != "Shape"]
    if len(users) != 1 or y.is_graph_output() or producer(users[0].outputs[0], "Transpose") is None:
        return None
    return _swap(users[0])
