"""Finds the recurrent cells of a file that are written in plain operators."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir

from .bodies import Unfit
from .graph import graphs, node_path, parent
from .loops import whole_loop
from .matching import Step, steps
from .node_steps import node_steps
from .operators import new_terms
from .parts import Part
from .recurrences import Layer
from .single_steps import one_step
from .terms import Terms
from .unrolled import chains, unrolled
from .values import outside_of_loops


def find_cells(model: onnx_ir.Model) -> list[Part]:
    """Returns the parts of a model whose nodes compute one or more steps of a cell.

    The model must come from `read`. The parts are single steps, steps that follow each other, and nodes Loop
    and Scan whose body is a step.
    """
    result: list[Part] = []
    terms = new_terms()
    opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx"))
    for path, graph in graphs(model):
        if path.startswith("function "):  # its constants are arguments
            continue
        groups = _largest(list(steps(graph, terms)))
        node = parent(graph)
        in_loop = node is not None and node.op_type in ("Loop", "Scan")
        nodes = list(node_steps(path, graph, opset)) if in_loop else []
        if node is not None and in_loop and (groups or nodes):
            carried = [[step for step in group if _is_carried(step, graph)] for group in (*groups, *nodes)]
            try:
                result.append(whole_loop(path.rpartition("/")[0], node, [g for g in carried if g], terms))
                continue
            except Unfit as reason:
                found = _in_graph(path, groups, terms)
                for part in found:
                    part.warnings.append(f"the {node.op_type} around it is not a part of it: {reason}")
                result += found
        elif groups:
            result += _in_graph(path, groups, terms)
    return result


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


def _in_graph(path: str, groups: list[list[Step]], terms: Terms) -> list[Part]:
    """Returns the parts of the steps in one graph, apart from Loops."""
    found = chains(groups, terms)
    layers = [Layer(tuple(chain), chain[-1].weights()) for chain in found if len(chain) > 1]
    done: set[int] = set()
    result = []
    for stack in _stacks(layers):
        whole = unrolled(node_path(path, _first(stack)), stack, terms)
        if isinstance(whole, str):
            continue
        result.append(whole)
        done.update(id(node) for node in whole.nodes)
    for group in groups:
        if id(group[0].new[0].producer()) not in done:
            single = one_step(path, group)
            if single is not None:
                result.append(single)
    return result


def _first(layers: Sequence[Layer]) -> onnx_ir.Node:
    return layers[0].steps[0].nodes[0]


def _stacks(layers: Sequence[Layer]) -> list[list[Layer]]:
    """Returns layers whose x is the h of the layer before."""
    above = {id(layer): next((k for k in layers if _same(k.x, layer.h)), None) for layer in layers}
    upper = {id(k) for k in above.values() if k is not None}
    result = []
    for layer in layers:
        if id(layer) not in upper:
            stack = [layer]
            while (higher := above[id(stack[-1])]) is not None:
                stack.append(higher)
            result.append(stack)
    return result


def _same(a: Sequence[onnx_ir.Value], b: Sequence[onnx_ir.Value]) -> bool:
    return len(a) == len(b) and all(outside_of_loops(v) is w for v, w in zip(a, b, strict=True))
