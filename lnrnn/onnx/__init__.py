"""ONNX files: `to_onnx` writes a network to one."""

from __future__ import annotations

from .writer import to_onnx

__all__ = ["to_onnx"]
