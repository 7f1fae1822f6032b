"""Finds the recurrent cells of a file that are written in plain operators."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir

from ..graph.checks import check_nodes
from ..graph.folding import DOMAINS
from ..graph.reading import graphs, loop_around, node_path, opset_of
from ..graph.values import attribute, number_nodes, outside_of_loops
from ..part import Difference, Part
from .bodies import Unfit
from .joining import joined
from .loops import whole_loop
from .matching import Step, steps
from .node_steps import node_steps
from .operators import new_terms
from .recurrences import Layer, Recurrence, linked
from .single_steps import one_step
from .terms import Terms
from .unrolled import chains, unrolled


def find_cells(model: onnx_ir.Model, reset_after: bool | None = None) -> list[Part]:
    """Returns the parts of a model whose nodes compute one or more steps of a cell.

    The model must come from `read`. The parts are single steps, steps that follow each other, and nodes Loop
    and Scan whose body is a step. reset_after: as in from_onnx.
    """
    found: list[Recurrence | Part] = []
    terms, of_both = new_terms(), new_terms(joined=True)
    opset = opset_of(model)
    for path, graph in graphs(model):
        if path.startswith("function "):  # its constants are arguments
            continue
        check_nodes(graph, opset)
        number_nodes(graph)
        groups = _largest(list(steps(graph, terms, of_both)))
        loop = loop_around(graph)
        if loop is not None:
            every = [*groups, *node_steps(path, graph, opset, reset_after)]
            found += _in_body(path, loop, graph, groups, every, terms)
        elif groups:
            found += _in_graph(path, groups, terms)
    recurrences = joined([each for each in found if isinstance(each, Recurrence)])
    return [each.finished() for each in recurrences] + [each for each in found if isinstance(each, Part)]


def _in_body(
    path: str, node: onnx_ir.Node, body: onnx_ir.Graph, groups: list[list[Step]], every: list[list[Step]],
    terms: Terms,
) -> list[Recurrence | Part]:  # fmt: skip
    """Returns the Loop or Scan as a part, or else the steps in its body. every: with those that are nodes."""
    if not every:
        return []
    carried = [[step for step in group if _is_carried(step, body)] for group in every]
    try:
        return [whole_loop(path.rpartition("/")[0], node, [group for group in carried if group], terms)]
    except Unfit as reason:
        found = _in_graph(path, groups, terms)
        for each in found:
            part = each.part if isinstance(each, Recurrence) else each
            text = f"the {node.op_type} around it is not a part of it: {reason}"
            part.warnings.append(Difference(text))
        return found


def _is_carried(step: Step, body: onnx_ir.Graph) -> bool:
    inputs = {id(v) for v in body.inputs}
    return bool(step.old) and all(id(v) in inputs for v in step.old)


def _largest(groups: Sequence[Sequence[Step]]) -> list[list[Step]]:
    """Returns the groups without those whose steps are a piece of another step."""
    sizes: dict[int, int] = {}
    for group in groups:
        for step in group:
            for node in step.nodes:
                sizes[id(node)] = max(sizes.get(id(node), 0), len(step.nodes))
    kept = [
        [step for step in group if sizes[id(step.new[0].producer())] <= len(step.nodes)] for group in groups
    ]
    return [group for group in kept if group]


def _in_graph(path: str, groups: list[list[Step]], terms: Terms) -> list[Recurrence | Part]:
    """Returns the parts of the steps in one graph, apart from Loops."""
    found = chains(groups, terms)
    layers = [Layer(tuple(chain), chain[-1].weights()) for chain in found if len(chain) > 1]
    done: set[int] = set()
    reasons: dict[int, str] = {}  # why steps that follow each other are no part, by their new h
    result: list[Recurrence | Part] = []
    for stack in _stacks(layers):
        whole = unrolled(node_path(path, _first(stack)), stack, terms)
        if isinstance(whole, str):
            text = f"it is one of {len(stack[0].steps)} steps in a row that are no part together: {whole}"
            reasons |= {id(h): text for layer in stack for h in layer.h}
        else:
            result.append(whole)
            done.update(id(node) for node in whole.part.nodes)
    for group in groups:
        if id(group[0].new[0].producer()) not in done:
            single = one_step(path, group)
            if single is not None:
                part = single.part if isinstance(single, Recurrence) else single
                part.warnings += [Difference(reasons[id(v)]) for v in group[0].new if id(v) in reasons]
                result.append(single)
    return result


def _first(layers: Sequence[Layer]) -> onnx_ir.Node:
    return layers[0].steps[0].nodes[0]


def _stacks(layers: Sequence[Layer]) -> list[list[Layer]]:
    """Returns layers whose x is the h of the layer before."""
    return linked(layers, lambda layer: next((k for k in layers if _same(k.x, layer.h)), None))


def _same(a: Sequence[onnx_ir.Value], b: Sequence[onnx_ir.Value]) -> bool:
    return len(a) == len(b) and all(outside_of_loops(v) is w for v, w in zip(a, b, strict=True))


def unknown_loops(model: onnx_ir.Model, parts: Sequence[Part]) -> list[str]:
    """Returns a text for each Loop or Scan with a state that is no part, and has none inside."""
    every = [each for part in parts for each in (part, *part.same)]
    taken = {id(node) for part in every for node in part.nodes}
    paths = [path for part in parts for path in part.paths]
    result = []
    for path, graph in graphs(model):
        for node in graph:
            if node.op_type not in ("Loop", "Scan") or node.domain not in DOMAINS or id(node) in taken:
                continue
            before = 2 if node.op_type == "Loop" else attribute(node, "num_scan_inputs", 0)
            inside = f"{node_path(path, node)}/"
            if len(node.inputs) > before and not any(each.startswith(inside) for each in paths):
                result.append(f"{inside[:-1]!r} ({node.op_type}): its body is no step of a cell of lnrnn")
    return result
