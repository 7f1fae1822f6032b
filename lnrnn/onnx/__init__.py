"""ONNX files: `from_onnx` and `parts` read recurrent parts, `to_onnx` writes a network. Needs the extra onnx."""

from __future__ import annotations

from .conversion import from_onnx
from .errors import OnnxFileError
from .parts import Part, parts
from .writer import to_onnx

__all__ = ["OnnxFileError", "Part", "from_onnx", "parts", "to_onnx"]
