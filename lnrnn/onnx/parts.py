"""The recurrent parts of an ONNX file. This file imports onnx_ir only when a file is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..importers.weights import Converted
from ..rnn.models import Model
from .errors import need_packages

if TYPE_CHECKING:
    import onnx_ir


@dataclass
class Part:
    """One recurrent part of a file: a node, a stack of nodes, or nodes that compute the steps of a cell.

    Attributes
    ----------
    path : str
        The names of the node (the first of a stack) and of the nodes around it, joined by "/".
    kind : str
        The operator, such as "LSTM", or other nodes that compute it: "LSTM step", "Loop of LSTM".
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
    same : list of Part
        The other parts with the same weights, with values of their own. They have the same network.
    converted : Converted or None
        The network's class, arguments and state dict.
    x, lengths : onnx_ir.Value or None
        The input and the lengths (B,) of int32. lengths is None without them.
    h0, c0 : tuple of onnx_ir.Value or None
        The initial states, one for each layer. None stands for zeros.
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
    nodes: tuple[onnx_ir.Node, ...]
    network: Model | None = None
    reason: str = ""
    warnings: list[str] = field(default_factory=list)
    paths: tuple[str, ...] = ()
    same: list[Part] = field(default_factory=list)
    converted: Converted | None = None
    x: onnx_ir.Value | None = None
    lengths: onnx_ir.Value | None = None
    h0: tuple[onnx_ir.Value | None, ...] = ()
    c0: tuple[onnx_ir.Value | None, ...] = ()
    mask: onnx_ir.Value | None = None
    y: onnx_ir.Value | None = None
    flipped: bool = False
    h: tuple[onnx_ir.Value | None, ...] = ()
    c: tuple[onnx_ir.Value | None, ...] = ()
    axes: dict[str, str] = field(default_factory=dict)
    baked: dict[str, int] = field(default_factory=dict)
    layers: tuple[onnx_ir.Node, ...] = ()


Finder = Callable[["onnx_ir.Model", "bool | None"], list[Part]]  # (model, reset_after)


def finders() -> list[Finder]:
    """Returns the functions that find parts. Each has its own kind of nodes."""
    from .cells import find_cells
    from .plain import plain_parts

    return [plain_parts, lambda model, _: find_cells(model)]


def parts(path_or_model: Any) -> list[Part]:
    """Returns the recurrent parts of an ONNX file, those that a network can replace and the others.

    Parameters
    ----------
    path_or_model : str, path, bytes, onnx.ModelProto or onnx_ir.Model
        The model. Only a path gives access to external data, which must be in the folder of the file.

    Returns
    -------
    list of Part
        The parts in the order of the file. Nodes inside of If, Loop and Scan are included. Parts with equal
        weights are one part with several paths.

    Raises
    ------
    OnnxFileError
        A ValueError, for a file that is damaged or breaks a rule of ONNX.
    """
    need_packages()
    from .graph import read

    return found(read(path_or_model))


def found(model: onnx_ir.Model, reset_after: bool | None = None) -> list[Part]:
    """Returns the parts of a model that `read` has returned. reset_after: as in from_onnx."""
    every = _outermost([part for finder in finders() for part in finder(model, reset_after)])
    _rename(every)
    return _joined(every)


def _outermost(every: list[Part]) -> list[Part]:
    """Returns the parts without those inside of a Loop or Scan that is a part itself."""
    from .graph import parent

    taken = {id(node) for part in every if part.converted is not None for node in part.nodes}

    def is_inside(part: Part) -> bool:
        graph = part.nodes[0].graph if part.nodes else None
        while graph is not None and (node := parent(graph)) is not None:
            if id(node) in taken:
                return True
            graph = node.graph
        return False

    return [part for part in every if not is_inside(part)]


def _rename(every: list[Part]) -> None:
    """Gives parts with equal paths different ones: nodes may have equal names."""
    count = Counter(part.path for part in every)
    number: Counter[str] = Counter()
    for part in every:
        if count[part.path] > 1:
            number[part.path] += 1
            part.path += f"#{number[part.path]}"
        part.paths = (part.path,)


def _joined(every: list[Part]) -> list[Part]:
    """Returns one part for those with equal weights, and makes their networks."""
    result: list[Part] = []
    first: dict[Any, Part] = {}
    shapes = Counter(_outline(part.converted) for part in every if part.converted is not None)
    for part in every:
        if part.converted is None:
            result.append(part)
            continue
        key = _outline(part.converted)
        if shapes[key] > 1:
            key += (part.converted.digest(),)
        same = first.setdefault(key, part)
        if same is not part:
            part.network = same.network
            same.paths += part.paths
            same.same.append(part)
            continue
        if part.network is None:
            part.network = part.converted.model()
        result.append(part)
    return result


def _outline(converted: Converted) -> tuple[Any, ...]:
    arguments = tuple((name, repr(value)) for name, value in converted.arguments.items())
    return (converted.cell, repr(converted.zoneout), *arguments)
