"""Recurrent parts of ONNX files: `from_onnx` and `parts` read them. Needs the extra onnx."""

from __future__ import annotations
