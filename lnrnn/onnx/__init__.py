"""Recurrent parts of ONNX files: `from_onnx` converts them, and `parts` lists them. Needs the extra onnx."""

from __future__ import annotations

from .conversion import from_onnx
from .errors import OnnxFileError
from .parts import Part, parts

__all__ = ["OnnxFileError", "Part", "from_onnx", "parts"]
