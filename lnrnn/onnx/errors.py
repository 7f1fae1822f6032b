"""Errors about ONNX files."""

from __future__ import annotations


class OnnxFileError(ValueError):
    """Raised for an ONNX file that is damaged or breaks a rule of the format."""


def need_packages() -> None:
    """Raises ImportError if a package that reads ONNX files is missing."""
    try:
        import onnx_ir  # noqa: F401  # it imports onnx
    except ImportError as error:
        raise ImportError(
            f"ONNX files need the packages onnx and onnx-ir: pip install onnx onnx-ir ({error})"
        ) from None
