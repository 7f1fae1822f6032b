"""Finds copies of a matched cell step by comparing operators and constants.

Unrolled files have hundreds of equal steps. Comparing nodes is much less work than matching equations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .graph import attributes, constant, outside_of_loops, subgraphs
from .interface import DOMAINS, Node, Value

Pairs = dict[int, Value]  # id of a value in the matched step -> its counterpart in the copy


def pairs(
    new: Sequence[Value], given: Sequence[Value], of: Value, is_whole: Callable[[Value], bool]
) -> Pairs | None:
    """Returns values of the step's copy that computes `of`, by id of the original, or None if there is none.

    new, given: the step's results and inputs. of: the copy of new[0]. is_whole: whether matching takes a
    value as it is, and does not expand it into a sum. Inputs of a copy must be whole.
    """
    inputs = {id(v) for v in given}
    result, stack = {id(new[0]): of}, [(new[0], of)]
    while stack:
        mine, theirs = stack.pop()
        if id(mine) in inputs:
            if constant(mine) is not None or constant(theirs) is not None or not is_whole(theirs):
                return None
            continue
        a, b = mine.producer(), theirs.producer()
        if a is None or b is None or not _same_operator(a, b):
            return None
        if [v is mine for v in a.outputs] != [v is theirs for v in b.outputs]:
            return None
        for v, w in zip(a.inputs, b.inputs, strict=True):
            if v is None or w is None:
                if v is not w:
                    return None
                continue
            v, w = (each if id(each) in inputs else outside_of_loops(each) for each in (v, w))
            if id(v) not in inputs and constant(v) is not None:
                if not _same_constant(v, w):
                    return None
            elif id(v) not in result:
                result[id(v)] = w
                stack.append((v, w))
            elif result[id(v)] is not w:
                return None
    distinct = len({id(w) for w in result.values()}) == len(result)
    return result if distinct and all(id(v) in result for v in (*new, *given)) else None


def nodes(of: Pairs, originals: Sequence[Node]) -> list[Node] | None:
    """Returns the copies of the nodes `originals`, in this order, or None if any node has no copy."""
    found = [[of[id(v)] for v in node.outputs if id(v) in of] for node in originals]
    makers = [values[0].producer() if values else None for values in found]
    result = [node for node in makers if node is not None]
    return result if len(result) == len(originals) else None


def _same_operator(a: Node, b: Node) -> bool:
    mine, theirs = ((n.op_type, len(n.inputs), len(n.outputs), n.domain in DOMAINS) for n in (a, b))
    if mine != theirs or not mine[-1] or any(True for node in (a, b) for _ in subgraphs(node)):
        return False
    given, other = attributes(a), attributes(b)
    return given.keys() == other.keys() and all(np.array_equal(v, other[name]) for name, v in given.items())


def _same_constant(a: Value, b: Value) -> bool:
    if a is b:
        return True
    mine, theirs = constant(a), constant(b)
    if mine is None or theirs is None or mine.dtype != theirs.dtype:
        return False
    return np.array_equal(mine, theirs)
