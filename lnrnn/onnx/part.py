"""`Part` describes one recurrent part of an ONNX file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..importers.weights import Converted
from ..rnn.models import Model

if TYPE_CHECKING:
    import onnx_ir


class Difference(str):
    """A text of `Part.warnings` that from_onnx gives too: the network computes other values than the file."""


class OneStep(str):
    """A text of `Part.warnings` about a network of one step of a loop, which from_onnx gives by name only."""


@dataclass
class Part:
    """One recurrent part of a file: a node, a stack of nodes, or nodes that compute the steps of a cell.

    Attributes
    ----------
    path : str
        The names of the node (the first of a stack) and of the nodes around it, joined by "/".
    kind : str
        The operator, such as "LSTM", or other nodes that compute it: "LSTM step", "Loop of LSTM". A "file of
        to_onnx" is a whole file. Its inputs and outputs are those of the graph, and x, h0, y and h are empty.
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
        The input and the lengths (B,) of int32. lengths is None without them.
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
        I inputs. H are units, or those of all directions if there is no D. h stands for h0, c0, h and c.
    baked : dict of str to int
        Sizes that nodes of the part set to a number: {"T": 10}.
    layers : tuple of onnx_ir.Node
        The nodes RNN, LSTM or GRU, one for each layer. Empty for other parts.
    """

    path: str
    kind: str
    nodes: tuple[onnx_ir.Node, ...] = field(repr=False)
    network: Model | None = None
    reason: str = ""
    warnings: list[str] = field(default_factory=list)
    paths: tuple[str, ...] = field(default=(), repr=False)
    same: list[Part] = field(default_factory=list, repr=False)
    converted: Converted | None = field(default=None, repr=False)
    x: onnx_ir.Value | None = field(default=None, repr=False)
    lengths: onnx_ir.Value | None = field(default=None, repr=False)
    h0: tuple[onnx_ir.Value | None, ...] = field(default=(), repr=False)
    c0: tuple[onnx_ir.Value | None, ...] = field(default=(), repr=False)
    initial_states: np.ndarray | tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)
    mask: onnx_ir.Value | None = field(default=None, repr=False)
    y: onnx_ir.Value | None = field(default=None, repr=False)
    flipped: bool = field(default=False, repr=False)
    h: tuple[onnx_ir.Value | None, ...] = field(default=(), repr=False)
    c: tuple[onnx_ir.Value | None, ...] = field(default=(), repr=False)
    axes: dict[str, str] = field(default_factory=dict, repr=False)
    baked: dict[str, int] = field(default_factory=dict, repr=False)
    layers: tuple[onnx_ir.Node, ...] = field(default=(), repr=False)
