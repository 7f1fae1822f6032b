"""The recurrent parts of an ONNX file, and the networks that replace them."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir

from ..rnn.models import Model


@dataclass
class Part:
    """One recurrent part of a file: a node, a stack of nodes, or nodes that compute the steps of a cell.

    Attributes
    ----------
    path : str
        The names of the node (the first of a stack) and of the nodes around it, joined by "/".
    kind : str
        The operator ("LSTM"), or what the nodes are: "LSTM step", "Loop of LSTM".
    nodes : tuple of onnx_ir.Node
        All nodes of the file that the network replaces, in the file's order.
    network : RNN, LSTM, GRU or another class of lnrnn, or None
        The network, or None with a reason.
    reason : str
        Why there is no network: the node, and the attribute or input.
    warnings : list of str
        What a user of the file should know about this part.
    paths : tuple of str
        All parts of the file with the same weights, such as those in the branches of an If. `path` is first.
    x, lengths : onnx_ir.Value or None
        The input and the lengths (B,) of int32. lengths is None without them.
    h0, c0 : tuple of onnx_ir.Value or None
        The initial states, one for each layer. None stands for zeros.
    y : onnx_ir.Value or None
        The outputs of all steps. None if the file does not use them.
    h, c : tuple of onnx_ir.Value or None
        The last states, one for each layer. None if the file does not use them.
    axes : dict of str to str
        The axes of the values: {"x": "TBI", "y": "TDBH", "h": "DBH"}. T are steps, D directions, B sequences,
        I inputs. H are units, or those of all directions if there is no D. h stands for h0, c0, h and c.
    """

    path: str
    kind: str
    nodes: tuple[onnx_ir.Node, ...]
    network: Model | None = None
    reason: str = ""
    warnings: list[str] = field(default_factory=list)
    paths: tuple[str, ...] = ()
    x: onnx_ir.Value | None = None
    lengths: onnx_ir.Value | None = None
    h0: tuple[onnx_ir.Value | None, ...] = ()
    c0: tuple[onnx_ir.Value | None, ...] = ()
    y: onnx_ir.Value | None = None
    h: tuple[onnx_ir.Value | None, ...] = ()
    c: tuple[onnx_ir.Value | None, ...] = ()
    axes: dict[str, str] = field(default_factory=dict)
