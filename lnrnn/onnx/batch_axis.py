"""Decides whether the network of a part is batch_first, as those that torch exports with batch_first=True."""

from __future__ import annotations

import onnx_ir

from .graph.values import attribute, producer
from .part import Part

SWAPPED = [1, 0, 2]  # the order of axes of a Transpose from (B, T, *) to (T, B, *)


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


def _swap(node: onnx_ir.Node | None) -> onnx_ir.Node | None:
    """Returns a Transpose if it swaps steps and sequences."""
    order = None if node is None else attribute(node, "perm")
    return node if order is not None and list(order) == SWAPPED else None


def _only_swap(y: onnx_ir.Value) -> onnx_ir.Node | None:
    """Returns the Transpose that is the only user of y and swaps its steps and sequences."""
    users = [user for user in y.consumers() if user.op_type != "Shape"]
    if len(users) != 1 or y.is_graph_output() or producer(users[0].outputs[0], "Transpose") is None:
        return None
    return _swap(users[0])
