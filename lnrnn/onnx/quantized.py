"""Weights of DynamicQuantizeLSTM, an operator of ONNX Runtime in the domain com.microsoft.

W is (D, I, 4H) and R (D, H, 4H), of int8 or uint8. A scale and a zero point are one number for each
direction, (D,), or for each column, (D, 4H).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir

from .constants import constant
from .folding import named

Array = np.ndarray
SCALES = {"W": (8, 9), "R": (10, 11)}  # inputs with the scale and the zero point


def is_quantized(node: onnx_ir.Node) -> bool:
    return node.domain == "com.microsoft" and node.op_type == "DynamicQuantizeLSTM"


def dequantized(weights: list[Array], node: onnx_ir.Node) -> list[Array]:
    """Returns W and R as float32, of shape (D, 4H, I) and (D, 4H, H)."""
    result = []
    for (name, (i, j)), w in zip(SCALES.items(), weights, strict=True):
        scale, zero = _per_column(node, i, w), _per_column(node, j, w)
        if w.dtype.kind not in "iu" or w.dtype.itemsize != 1 or scale.dtype != np.float32:
            raise ValueError(f"{named(node)}: {name} must be int8 or uint8, got {w.dtype}")
        result.append(((w.astype(np.float32) - zero.astype(np.float32)) * scale).swapaxes(1, 2))
    return result


def _per_column(node: onnx_ir.Node, i: int, weights: Any) -> Array:
    """Returns input i, a scale or zero point, of shape (D, 1, 1) or (D, 1, 4H)."""
    value = constant(node.inputs[i] if i < len(node.inputs) else None)
    D, _, columns = weights.shape if weights.ndim == 3 else (0, 0, 0)
    if value is None or value.shape not in ((D,), (D, columns)):
        got = "no constant" if value is None else f"shape {value.shape}"
        raise ValueError(f"{named(node)}: input {i} must be of shape {(D,)} or {(D, columns)}, got {got}")
    return value.reshape(D, 1, -1)
