"""Weights of DynamicQuantizeLSTM, an operator of ONNX Runtime in the domain com.microsoft.

W is (D, I, 4H) and R (D, H, 4H), of int8 or uint8: w = (q - zero point) * scale. The gates have the order of
LSTM. A scale or zero point is one number for each direction, (D,), or for each column, (D, 4H).

rnn/quantized.py says how a network keeps them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir

from ...rnn import quantized
from ..graph.constants import constant
from ..graph.folding import named, refused

Array = np.ndarray
SCALES = {"W": (8, 9), "R": (10, 11)}  # inputs with the scale and the zero point
LARGEST = 2.0**119  # scales above it could make infinite weights


def is_quantized(node: onnx_ir.Node) -> bool:
    return node.domain == "com.microsoft" and node.op_type == "DynamicQuantizeLSTM"


def dequantized(weights: list[Array], node: onnx_ir.Node) -> list[Array]:
    """Returns W and R as float32, of shape (D, 4H, I) and (D, 4H, H)."""
    result = []
    for name, q in zip(SCALES, weights, strict=True):
        integers = _integers(node, name, q)
        scale = _per_column(node, name, "scale", q, np.dtype(np.float32))
        if not ((scale >= 0) & (scale <= LARGEST)).all():
            raise refused(node, f"{name}_scale", "numbers from 0 to 2^119", "others")
        result.append((integers.astype(np.float32) * scale).swapaxes(1, 2))
    return result


def kept_by_int8(weights: list[Array], node: onnx_ir.Node) -> bool:
    """Returns whether to_dtype("int8") keeps all weights. If not, it rounds those of some outputs again."""
    return all(
        quantized.kept_by_int8(_integers(node, name, q), q.shape[1])
        for name, q in zip(SCALES, weights, strict=True)
    )


def _integers(node: onnx_ir.Node, name: str, q: Array) -> Array:
    """Returns q minus its zero point, int16."""
    if q.dtype not in (np.int8, np.uint8) or q.ndim != 3:
        got = f"{q.ndim} axes of {q.dtype}"
        raise ValueError(f"node {named(node)}: {name} must have 3 axes of int8 or uint8, got {got}")
    result: Array = q.astype(np.int16) - _per_column(node, name, "zero_point", q, q.dtype)
    return result


def _per_column(node: onnx_ir.Node, name: str, kind: str, q: Array, dtype: np.dtype) -> Array:
    """Returns the scale or zero point of W or R, of shape (D, 1, 1) or (D, 1, 4H)."""
    i = SCALES[name][kind == "zero_point"]
    value = constant(node.inputs[i] if i < len(node.inputs) else None)
    D, _, columns = q.shape
    if value is None or value.shape not in ((D,), (D, columns)) or value.dtype != dtype:
        got = "no constant" if value is None else f"shape {value.shape} of {value.dtype}"
        wanted = f"a constant of shape {(D,)} or {(D, columns)} of {dtype}"
        raise refused(node, f"{name}_{kind}", wanted, got)
    result: Array = value.reshape(D, 1, -1)
    return result
