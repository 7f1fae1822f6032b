"""The report of ``lnrnn onnx FILE``: the recurrent parts of a file, their networks, and the file's states."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from ..onnxruntime import register
from ..packages import require
from ..recognise.part import GraphPart
from .errors import OnnxFileError
from .parts import parts_of
from .running.states import Tensor, find_states, inputs, outputs, shown

WIDTH = 80  # columns of the text
_HEAD = ("input", "output", "shape", "dtype", "lane axis")


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the report of a file as a JSON-serializable dict. Raises OnnxFileError for a damaged file."""
    require("onnx_ir", "lnrnn onnx", "onnx")
    from .plugin_trial import tried
    from .reading import opset_of, read
    from .running.states import unknown_recurrences
    from .writing.converter import in_memory

    model = read(path)
    parts = parts_of(model)
    result: dict[str, Any] = {
        "file": os.fspath(path),
        "opset": opset_of(model),
        "producer": " ".join(str(each) for each in (model.producer_name, model.producer_version) if each),
        "parts": [describe_part(part) for part in parts],
        "left": [],
        "calls": [],
        "not_measured": "",
        "loops": unknown_recurrences(model, parts),
        "states": [],
        "unclear": "",
    }
    try:
        converted, reasons = in_memory(path)
    except OnnxFileError as error:
        converted, reasons = None, {name: str(error) for part in parts for name in part.paths}
    for part, described in zip(parts, result["parts"], strict=True):
        described["stays"] = {name: reasons.get(name, "") for name in part.paths}
    try:
        if parts:
            register()
            result |= tried(os.fspath(path), converted or os.fspath(path))
    except ImportError as error:
        result["not_measured"] = str(error)
    try:
        states = find_states(model)
    except OnnxFileError:
        raise
    except ValueError as error:  # ambiguous states
        states, result["unclear"] = [], str(error)
    for state in states:
        result["states"].append(
            {
                "input": state.input,
                "output": state.output,
                "shape": state.shape,
                "dtype": str(state.dtype),
                "lane_axis": state.lane_axis,
            }
        )
    ends = {name for state in states for name in (state.input, state.output)}
    result["inputs"] = [_tensor(each) for each in inputs(model.graph) if each.name not in ends]
    result["outputs"] = [_tensor(each) for each in outputs(model.graph) if each.name not in ends]
    return result


def describe_part(part: GraphPart) -> dict[str, Any]:
    return {
        "path": part.path,
        "same_weights": list(part.paths[1:]),
        "kind": part.kind,
        "nodes": len(part.nodes),
        "network": None if part.network is None else repr(part.network),
        "reason": part.reason,
        "warnings": list(part.warnings),
        "stays": {},
    }


def _tensor(each: Tensor) -> dict[str, Any]:
    return {"name": each.name, "shape": each.shape, "dtype": None if each.dtype is None else str(each.dtype)}


# --- text ---------------------------------------------------------------------------------------------------


def text(report: dict[str, Any]) -> str:
    """Returns the report of `describe` as text of at most WIDTH columns."""
    origin = f"opset {report['opset']}" + (f", written by {report['producer']}" if report["producer"] else "")
    lines = _wrapped(f"{report['file']}: {origin}", 0)
    parts = report["parts"]
    taken = sum(part["network"] is not None for part in parts)
    lines += ["", _summary(len(parts), taken)]
    for number, part in enumerate(parts, 1):
        lines += _part_lines(number, part)
    for loop in report["loops"]:
        lines += _wrapped(f"no part: {loop}", 9, first=5)
    lines += [""] * bool(report["left"] or report["calls"])
    for node in report["left"]:
        lines += _wrapped(f"The plug-in for ONNX Runtime leaves {node}", 4, first=0)
    for call in report["calls"]:
        alone = "not run" if call["onnxruntime"] is None else _time(call["onnxruntime"])
        speed = f"{alone} in ONNX Runtime, {_time(call['lnrnn'])} with the plug-in"
        axes = f", free axes {call['size']}" if call["size"] else ""
        lines += _wrapped(f"Estimate{axes}: {speed}", 4, first=0)
    if report["not_measured"]:
        lines += ["", *_wrapped(f"Plug-in for ONNX Runtime: not tried. {report['not_measured']}", 4, first=0)]
    states = report["states"]
    if report["unclear"]:
        lines += ["", "States of lnrnn.onnx.Model: unclear"]
        lines += _wrapped(report["unclear"], 4)
    else:
        lines += ["", f"States: {len(states)}"]
        lines += _table([_HEAD] * bool(states) + [_state_row(state) for state in states])
    for name in ("inputs", "outputs"):
        rows = [(each["name"], shown(each["shape"]), each["dtype"] or "not numbers") for each in report[name]]
        title = f"Other {name}" if states else name.capitalize()
        lines += ["", f"{title}: {len(rows)}", *_table(rows)]
    return "\n".join(line.rstrip() for line in lines)


def _summary(count: int, taken: int) -> str:
    """Returns the heading of the parts, e.g. "3 recurrent parts, 2 converted"."""
    if not count:
        return "No recurrent part"
    converted = "converted" if taken == count else f"{taken or 'none'} converted"
    return (
        f"{count} recurrent part{'s' * (count > 1)}, {converted if count > 1 or taken else 'not converted'}"
    )


def _state_row(state: dict[str, Any]) -> tuple[str, ...]:
    axis = "none" if state["lane_axis"] is None else str(state["lane_axis"])
    return state["input"], state["output"], shown(state["shape"]), state["dtype"], axis


def _part_lines(number: int, part: dict[str, Any]) -> list[str]:
    nodes = f"{part['nodes']} node" + "s" * (part["nodes"] != 1)
    network = part["network"] or "no network"
    lines = _wrapped(f"{number:3}. {part['kind']}, {nodes}: {network}", 5, first=0)
    lines += _wrapped(part["path"], 9, first=5)
    for path in part["same_weights"]:
        lines += _wrapped(f"same weights: {path}", 9, first=5)
    if part["network"] is None:
        lines += _wrapped(f"reason: {part['reason'] or 'unknown'}", 9, first=5)
    for warning in part["warnings"]:
        lines += _wrapped(f"warning: {warning}", 9, first=5)
    for reason in dict.fromkeys(part["stays"].values()):
        does = f"stays as it is: {reason}" if reason else "is replaced"
        lines += _wrapped(f"converted: {does}", 9, first=5)
    return lines


def _time(seconds: float) -> str:
    """Returns a time with two or three digits: "12 us", "3.4 ms"."""
    amount, name = (seconds * 1e6, "us") if seconds < 999.5e-6 else (seconds * 1e3, "ms")
    return f"{amount:.0f} {name}" if amount >= 99.5 else f"{amount:.2g} {name}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns lines: rows as aligned columns if they fit into WIDTH, otherwise each row wrapped alone."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if 4 + sum(widths) + 2 * (len(widths) - 1) <= WIDTH:
        return [
            "    " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        ]
    return [line for row in rows for line in _wrapped("  ".join(row), 8, first=4)]


def _wrapped(line: str, indent: int, first: int | None = None) -> list[str]:
    """Wraps a line to WIDTH columns. indent: spaces before each line; first: before the first line.

    Lines break at spaces, and after slashes of paths.
    """
    before = " " * (indent if first is None else first)
    wrapper = textwrap.TextWrapper(WIDTH, before, " " * indent, break_on_hyphens=False)
    wrapper.wordsep_simple_re = re.compile(r"(\s+|(?<=/))")
    return wrapper.wrap(printable(line))


def printable(line: str) -> str:
    """Returns a text without terminal control characters, which a file's names may contain."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
