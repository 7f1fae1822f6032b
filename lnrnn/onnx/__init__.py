"""ONNX files of recurrent networks."""

from __future__ import annotations

from .writer import to_onnx

__all__ = ["to_onnx"]
