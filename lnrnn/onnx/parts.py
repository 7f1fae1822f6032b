"""`parts`: recurrent parts of an ONNX file, as RNN, LSTM and GRU nodes or as plain operators.

onnx_ir is imported only when a file is read.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..packages import require
from ..recognise.finding import find_cells
from ..recognise.graph import changes_states, constant, from_constants, is_zero, loop_around
from ..recognise.interface import PARENT
from ..recognise.part import Difference, GraphPart, OneStep, Part
from .errors import naming

if TYPE_CHECKING:
    import onnx_ir


def parts(path_or_model: Any) -> list[Part]:
    """Returns all recurrent parts of an ONNX file, also parts that no network can replace.

    Parameters
    ----------
    path_or_model : str, path, bytes, onnx.ModelProto or onnx_ir.Model
        The model. Only a path gives access to external data, which must be in the folder of the file.

    Returns
    -------
    list of Part
        The parts in the order of the file. Nodes inside of If, Loop and Scan are included. Parts with equal
        weights are listed once, with the path of the first.

    Raises
    ------
    OnnxFileError
        A ValueError, for a file that is damaged or breaks a rule of ONNX.
    """
    require("onnx_ir", "lnrnn.onnx.parts", "onnx")
    from .reading import read

    return [part.public() for part in parts_of(read(path_or_model))]


def parts_of(model: onnx_ir.Model, reset_after: bool | None = None, *, nodes: bool = True) -> list[GraphPart]:
    """Returns all recurrent parts of a model. model: from `reading.read`.

    reset_after: as in from_onnx. nodes: also return RNN, LSTM and GRU nodes as parts.
    """
    from .nodes.plain import Layers
    from .reading import SOURCE, checked_graphs
    from .writing.read_back import read_back

    with naming(model.meta.get(SOURCE, "")), np.errstate(all="ignore"):  # the numbers of a file may overflow
        own = read_back(model)
        every = [] if own is None else [own]
        if nodes or own is None:
            graphs, of_functions = checked_graphs(model)
            layers = Layers(model, reset_after)
            found = layers.parts([*graphs, *of_functions]) if nodes else []
            found = _outermost([*found, *find_cells(graphs, layers.steps)])
            if own is None or (len(found) == 1 and _has_layers(found[0], own)):
                every = found
        _rename(every)
        for part in every:
            _complete(part)
        return _joined(every)


def _complete(part: GraphPart) -> None:
    """Adds a part's initial states, and warnings where a call of the network differs from the file."""
    loop = loop_around(part.nodes[0].graph, within_if=True) if part.nodes else None
    if loop is not None and part.layers:  # recognise/finding.py adds this warning to other parts
        part.warnings.append(Difference(f"the {loop.op_type} around it is not converted"))
    if part.converted is None:
        return
    states = [v for v in (*part.h0, *part.c0) if v is not None]
    if loop is not None and changes_states(loop, part.nodes, states):
        text = f"the {loop.op_type} around it does not carry its states unchanged to the next step"
        part.warnings.append(OneStep(f"{text}, so the network computes one step only"))
    if part.flipped:
        index = ":, ::-1" if part.converted.arguments["batch_first"] else "::-1"
        text = f"its y has the steps in the reverse order of the network's: y[{index}]"
        part.warnings.append(Difference(text))
    _set_initial_states(part)


def _set_initial_states(part: GraphPart) -> None:
    """Sets `initial_states` from nonzero constants of the file, or adds a warning if they are unknown."""
    assert part.converted is not None
    given, axes = part.converted.arguments, part.axes.get("h", "")
    places, H = given["num_layers"] * (1 + given["bidirectional"]), given["hidden_size"]
    own = places // (len(part.h0) or places)
    every = ((part.h0, given.get("proj_size", H)), (part.c0, H))
    arrays, unknown, found, B = dict[Any, np.ndarray](), list[Any](), list[np.ndarray](), 1
    for v, width in ((v, width) for values, width in every for v in values if v and not is_zero(v)):
        row = constant(v, any_batch=True)
        if row is None or row.dtype.kind in "OSU":
            unknown += [v] * from_constants(v)
        elif row.size == 0 or row.any():
            a = np.array(row, np.float32, ndmin=3)
            arrays[v] = a = a.swapaxes(0, 1) if axes == "BDH" else a
            B = a.shape[1] if B == 1 else B
            fits = a.ndim == 3 and all(n in (1, m) for n, m in zip(a.shape, (own, B, width), strict=True))
            unknown += [v] * (not fits or a.size == 0)
    names = ", ".join(dict.fromkeys(repr(v.name) for v in unknown or arrays))
    if unknown:
        text = f"the file computes its initial states from constants, {names}, and network(x) starts from 0"
        part.warnings.append(Difference(f"{text}: pass them to it as h0="))
    if not arrays or unknown:
        return
    for values, width in every:
        zeros = np.zeros((own, B, width), np.float32)
        found += [np.concatenate([zeros + arrays.get(v, 0) for v in values])] if values else []
    part.initial_states = found[0] if len(found) == 1 else (found[0], found[1])
    if any(constant(v) is not None for v in arrays):
        part.baked["B"] = B
    batch = "Repeat them along axis 1 for several" if B == 1 else f"They are for a batch of {B}"
    part.warnings.append(Difference(
        f"the file starts from states that are constants other than 0, {names}, but network(x) from 0. "
        f"Call network(x, h0=part.initial_states), with part from lnrnn.onnx.parts. {batch} sequences"
    ))  # fmt: skip


def _has_layers(part: GraphPart, own: GraphPart) -> bool:
    """Returns whether a part of the graph has the same cell, layers and directions as a whole file."""
    mine, theirs = part.converted, own.converted
    if mine is None or theirs is None or part.baked.get("T") != own.baked.get("T"):
        return False
    same = (mine.arguments[name] == theirs.arguments[name] for name in ("num_layers", "bidirectional"))
    return mine.cell == theirs.cell and mine.zoneout == theirs.zoneout and all(same)


def _outermost(every: list[GraphPart]) -> list[GraphPart]:
    """Drops parts inside of a Loop or Scan that a larger part replaces."""
    replaced = {id(node) for part in every if part.converted is not None for node in part.nodes}

    def is_inside(part: GraphPart) -> bool:
        node = part.nodes[0].graph.meta[PARENT] if part.nodes else None
        while node is not None and id(node) not in replaced:
            node = node.graph.meta[PARENT]
        return node is not None

    return [part for part in every if not is_inside(part)]


def _rename(every: list[GraphPart]) -> None:
    """Makes the paths of all parts different by adding numbers, since nodes may have equal names."""
    count = Counter(part.path for part in every)
    number: Counter[str] = Counter()
    for part in every:
        if count[part.path] > 1:
            number[part.path] += 1
            part.path += f"#{number[part.path]}"
        part.paths = (part.path,)


def _joined(every: list[GraphPart]) -> list[GraphPart]:
    """Joins parts with equal weights, for example in both branches of an If, and creates their networks."""
    result: list[GraphPart] = []
    firsts: dict[Any, GraphPart] = {}
    for part in every:
        given = part.converted
        key = given and (given.cell, repr((given.zoneout, given.arguments)), given.digest())
        same = firsts.setdefault(key, part)
        if given is None or same is part:
            part.network = None if given is None else part.network or given.model()
            result.append(part)
            continue
        part.network = same.network
        same.paths += part.paths
        same.same.append(part)
    return result
