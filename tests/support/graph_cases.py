"""Reads the graphs of tests/cases, which are ONNX's text language with cells, literals and edits.

Empty lines separate blocks, and # begins a comment. A block is one of these:

- `cell NAME(inputs) => (outputs)` and its nodes, in cells.txt. Graphs call it as an operator. Its values have
  the name of the call's first result before them: `h, c = LSTMCell(x, h0, c0)` has a value h_o.
- `graph NAME`, the graph, its expected results, and its cases, which may have further blocks.

A case is a line or more of edits of the last graph. Its end has the expected result, and a part of the
message: `EDIT; EDIT | GRU step: is read outside`. The edits are:

    ~ OLD -> NEW    replaces a text that occurs once
    - NODE          removes a line
    + NODE          adds a line in the place of the last one removed, or at the end of the graph
    < TYPE NAME     adds an input
    > NAME          adds an output; also `> TYPE NAME`

` for $ in A B` at the end of the edits makes a case of each word; $1 and $2 are its parts between commas.

A graph has `repeat N`, lines, `end`: the lines for each step @, @+ being the next one. Numbers are inputs of
nodes: `Gather(x, 0)`, `Unsqueeze(h, [0])`, `Mul(n, 0.5)`. Arrays without numbers get random ones that depend
on the names of the case and the array. W_again is equal to W, and W_but_one except for its last number.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

FOLDER = Path(__file__).parents[1] / "cases"
NODE = re.compile(r"(?P<results>[\w, ]+) = (?P<op>[\w.]+)(?P<attributes><[^()]*>)?\((?P<inputs>.*)\)")
HEAD = re.compile(r"cell (\w+)\((.*)\) => \((.*)\)")
NUMBER = re.compile(r"\[?-?[\d.][\d.e, -]*\]?")
COPY = re.compile(r"\b(\w+?)_(again|but_one)\b")
HEADER = '<ir_version: 8, opset_import: ["": 17, "custom": 1]>'
Cells = dict[str, tuple[list[str], list[str]]]  # names of inputs and outputs, and nodes


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    expected: str

    def model(self) -> onnx.ModelProto:
        """Returns the model, with numbers in all arrays."""
        model = parser.parse_model(f"{HEADER}\nmain {self.text}")
        _fill(model.graph, self.name)
        arrays = {a.name: a for a in model.graph.initializer}
        for name, how in sorted(set(COPY.findall(self.text))):
            array = numpy_helper.to_array(arrays[name]).copy()
            array.flat[-1] += 0.25 * (how == "but_one")
            model.graph.initializer.append(numpy_helper.from_array(array, f"{name}_{how}"))
        return model


def _fill(graph: onnx.GraphProto, case: str) -> None:
    """Makes initializers of the declared values that no node computes, and names the nodes."""
    results = {name for node in graph.node for name in node.output}
    for value in graph.value_info:
        if value.name in results:
            continue
        rng = np.random.default_rng(zlib.crc32(f"{case} {value.name}".encode()))
        of = value.type.tensor_type
        array = rng.uniform(-0.7, 0.7, [d.dim_value for d in of.shape.dim])
        array = array.astype(helper.tensor_dtype_to_np_dtype(of.elem_type))
        graph.initializer.append(numpy_helper.from_array(array, value.name))
    del graph.value_info[:]
    for node in graph.node:
        node.name = node.output[0] if node.output else node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _fill(attribute.g, case)


def read(path: Path) -> list[Case]:
    """Returns the cases of a file."""
    cells, graph, name, cases = _cells(), [], "", []
    for block in _blocks(path):
        own: list[str] = []
        if block[0].startswith("graph "):
            end = block.index("}") + 1
            name, graph, block = block[0][6:], _expanded(block[1:end], cells), block[end:]  # noqa: PLW2901
        for line in block:
            text, _, expected = re.split(r"( ?\| |$)", line, maxsplit=1)
            own += text.split("; ") if text else []
            if expected:
                cases += _variants(name, graph, own, expected, cells)
                own = []
        assert not own, f"{own} has no expected result"
    return cases


def _cells() -> Cells:
    blocks = _blocks(FOLDER / "cells.txt")
    heads = [HEAD.fullmatch(block[0]) for block in blocks]
    return {head[1]: (_names(f"{head[2]}, {head[3]}"), b[1:]) for head, b in zip(heads, blocks, strict=True)}


def _blocks(path: Path) -> list[list[str]]:
    blocks = (block.splitlines() for block in path.read_text().split("\n\n"))
    kept = ([line for line in block if line and not line.startswith("#")] for block in blocks)
    return [block for block in kept if block]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _expanded(lines: list[str], cells: Cells) -> list[str]:
    """Returns the lines without `repeat` and calls of cells."""

    def steps(match: re.Match[str]) -> str:
        return "".join(match[2].replace("@+", str(t + 1)).replace("@", str(t)) for t in range(int(match[1])))

    text = re.sub(r"repeat (\d+)\n(.*?)end\n", steps, "\n".join(lines), flags=re.S)
    result = []
    for line in text.splitlines():
        node = NODE.fullmatch(line)
        if node is None or node["op"] not in cells:
            result.append(line)
            continue
        formal, nodes = cells[node["op"]]
        results = _names(node["results"])
        local = [name for each in nodes for name in _names(each.partition(" = ")[0])]
        names = {each: f"{results[0]}_{each}" for each in local}
        names |= dict(zip(formal, _names(node["inputs"]) + results, strict=True))
        body = [re.sub(r"\b[a-z]\w*", lambda m: names.get(m[0], m[0]), each) for each in nodes]  # noqa: B023
        result += _expanded(body, cells)
    return result


def _variants(base: str, graph: list[str], edits: list[str], expected: str, cells: Cells) -> Iterator[Case]:
    """Yields a case for each word of `for $ in`, or the only one."""
    *_, words = edits[-1].partition(" for $ in ") if edits else [""]
    edits = [edit.partition(" for $ in ")[0] for edit in edits]
    for word in words.split() or [""]:
        parts = {f"${k}": part for k, part in enumerate(word.split(","), 1)} | {"$": word}
        *own, result = (re.sub(r"\$\d?", lambda m: parts[m[0]], text) for text in [*edits, expected])  # noqa: B023
        text = "\n".join(_with_constants(_edited(graph, own, cells)))
        yield Case(": ".join([base, *own]), f"{text}\n", result)


def _edited(graph: list[str], edits: list[str], cells: Cells) -> list[str]:
    """Returns a graph after the edits of a case."""
    lines, at = list(graph), None
    head = next(k for k, line in enumerate(lines) if line.startswith("("))
    for edit in edits:
        kind, text = edit[:2], edit[2:]
        if kind == "+ ":
            at = lines.index("}") if at is None else at
            added = _expanded([text], cells)
            lines[at:at] = added
            at += len(added)
            continue
        old, _, new = text.partition(" -> ")
        places = [k for k, line in enumerate(lines) if (old in line if kind == "~ " else text == line)]
        if kind == "< ":
            lines[head] = f"({text}, {lines[head][1:]}"
        elif kind == "> ":
            lines[head] = lines[head].replace("=> (", f"=> ({text if ' ' in text else f'float[] {text}'}, ")
        else:
            assert kind in ("~ ", "- ") and len(places) == 1, f"{edit!r} fits {len(places)} lines"
            (at,) = places
            assert lines[at].count(old) == 1, f"{edit!r} fits {lines[at]!r} more than once"
            lines[at : at + 1] = [lines[at].replace(old, new)] if kind == "~ " else []
        at = at if kind == "- " else None
    return lines


def _with_constants(lines: list[str]) -> list[str]:
    """Returns the lines with nodes Constant for numbers that are inputs of nodes."""
    result = []
    for line in lines:
        node = NODE.fullmatch(line)
        inputs = [] if node is None else [i.strip() for i in re.split(r",(?![^\[]*\])", node["inputs"])]
        for k, each in enumerate(inputs):
            if NUMBER.fullmatch(each):
                inputs[k] = f"n{len(result)}"
                kind = ("float" if "." in each else "int") + "s" * each.startswith("[")
                result.append(f"{inputs[k]} = Constant<value_{kind}={each}>()")
        if node is not None:
            line = f"{node['results']} = {node['op']}{node['attributes'] or ''}({', '.join(inputs)})"
        result.append(line)
    return result
