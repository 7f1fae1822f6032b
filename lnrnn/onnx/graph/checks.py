"""Checks nodes with ONNX's own schemas, so that other files may rely on their inputs and attributes."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx.defs
import onnx_ir

from ..cells.patterns import OPERATORS
from ..errors import OnnxFileError
from .folding import named

# The operators that steps, and nodes around them, consist of.
CHECKED = frozenset((
    "Add", "Cast", "Concat", "ConcatFromSequence", "Div", "Expand", "Gather", "Gemm", "Greater",
    "Identity", "LayerNormalization", "Less", "Loop", "MatMul", "Mul", "Neg", "Not", "Pow", "Range",
    "ReduceMean", "Reshape", "ReverseSequence", "Scan", "SequenceAt", "SequenceConstruct",
    "SequenceEmpty", "SequenceInsert", "SequenceLength", "Shape", "Slice", "Split", "SplitToSequence",
    "Sqrt", "Squeeze", "Sub", "Sum", "Transpose", "Unsqueeze", "Where", *OPERATORS.values(),
))  # fmt: skip


def check_nodes(graph: onnx_ir.Graph, opset: int | None) -> None:
    """Raises OnnxFileError for a node with inputs, outputs or attributes that its operator does not have."""
    version = min(max(opset or 1, 1), onnx.defs.onnx_opset_version())
    for node in graph:
        if node.domain in ("", "ai.onnx") and node.op_type in CHECKED:
            wrong = _wrong(node, version)
            if wrong:
                raise OnnxFileError(f"node {named(node)} must follow ONNX's rules, got {wrong}")


def _wrong(node: onnx_ir.Node, opset: int) -> str:
    """Returns the rule that a node breaks, or ""."""
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return f"an operator that opset {opset} does not have"
    optional = onnx.defs.OpSchema.FormalParameterOption.Single
    if not schema.min_input <= len(node.inputs) <= schema.max_input:
        return f"{len(node.inputs)} inputs"
    if not schema.min_output <= len(node.outputs) <= schema.max_output:
        return f"{len(node.outputs)} outputs"
    for k, formal in enumerate(schema.inputs[: len(node.inputs)]):
        if node.inputs[k] is None and formal.option == optional:
            return f"no input {formal.name!r}"
    for name, attribute in schema.attributes.items():
        given = node.attributes.get(name)
        if given is None:
            if attribute.required:
                return f"no attribute {name!r}"
        elif given.is_ref() or int(given.type) != int(attribute.type.value):  # type: ignore[attr-defined]
            return f"an attribute {name!r} of another type"
    return _wrong_values({name: node.attributes.get(name) for name in schema.attributes}, node)


def _wrong_values(attributes: Mapping[str, onnx_ir.Attr | None], node: onnx_ir.Node) -> str:
    """Returns axes or directions that a node cannot have, or "". attributes: those of the operator."""
    order = attributes.get("perm")
    if order is not None and sorted(order.value) != list(range(len(order.value))):
        return f"perm {list(order.value)[:10]}"
    data = node.inputs[0] if node.inputs else None
    if (
        order is not None
        and data is not None
        and data.shape is not None
        and len(data.shape) != len(order.value)
    ):
        return f"perm {list(order.value)[:10]} for {len(data.shape)} axes"
    axis = attributes.get("axis")
    if axis is not None and not -100 <= axis.value <= 100:
        return f"axis {axis.value}"
    for name in ("scan_input_directions", "scan_output_directions"):
        given = attributes.get(name)
        if given is not None and not {*given.value} <= {0, 1}:
            return f"{name} {list(given.value)[:10]}"
    return ""
