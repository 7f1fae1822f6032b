"""`parts`: the recurrent parts of an ONNX file, from the folders nodes and cells.

This file imports onnx_ir only when a file is read.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..importers.weights import Converted
from ..packages import require
from .errors import naming
from .part import Difference, Part

if TYPE_CHECKING:
    import onnx_ir


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
    require("onnx_ir", "lnrnn.onnx.parts", "onnx")
    from .graph.reading import read

    return parts_of(read(path_or_model))


def parts_of(model: onnx_ir.Model, reset_after: bool | None = None) -> list[Part]:
    """Returns the parts of a model that `read` has returned. reset_after: as in from_onnx."""
    from .cells.finding import find_cells
    from .graph.reading import PATH
    from .nodes.plain import plain_parts
    from .writing.read_back import read_back

    with naming(model.meta.get(PATH, "")), np.errstate(all="ignore"):  # the numbers of a file may be anything
        every = _outermost([*plain_parts(model, reset_after), *find_cells(model, reset_after)])
        own = read_back(model)
        if own is not None and not (len(every) == 1 and _has_layers(every[0], own)):
            every = [own]
        _rename(every)
        for part in every:
            _complete(part)
        return _joined(every)


def _complete(part: Part) -> None:
    """Adds the initial states of a part, and warnings about differences between its calls and the file."""
    from .graph.reading import loop_outside
    from .initial_states import set_initial_states

    loop = loop_outside(part.nodes[0].graph) if part.layers else None
    if loop is not None:  # cells/finding.py says it for steps in plain operators, with the reason
        part.warnings.append(Difference(f"the {loop.op_type} around it is not a part of it"))
    if part.converted is None:
        return
    if part.flipped:
        index = ":, ::-1" if part.converted.arguments["batch_first"] else "::-1"
        text = f"its y has the steps in the reverse order of the network's: y[{index}]"
        part.warnings.append(Difference(text))
    try:
        set_initial_states(part)
    except ValueError as error:
        part.converted, part.reason = None, str(error)


def _has_layers(part: Part, own: Part) -> bool:
    """Returns whether a part has the same layers as a whole file."""
    mine, theirs = part.converted, own.converted
    if mine is None or theirs is None or part.baked.get("T") != own.baked.get("T"):
        return False
    same = (mine.arguments[name] == theirs.arguments[name] for name in ("num_layers", "bidirectional"))
    return mine.cell == theirs.cell and mine.zoneout == theirs.zoneout and all(same)


def _outermost(every: list[Part]) -> list[Part]:
    """Returns the parts without those inside of a Loop or Scan that is a part itself."""
    from .graph.reading import parent

    replaced = {id(node) for part in every if part.converted is not None for node in part.nodes}

    def is_inside(part: Part) -> bool:
        graph = part.nodes[0].graph if part.nodes else None
        while graph is not None and (node := parent(graph)) is not None:
            if id(node) in replaced:
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
