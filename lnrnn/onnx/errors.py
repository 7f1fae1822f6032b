"""Errors about ONNX files."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class OnnxFileError(ValueError):
    """Raised for an ONNX file that is damaged or breaks a rule of the format."""


@contextmanager
def quiet() -> Iterator[None]:
    """A context in which onnx_ir does not log: it logs rules that a model breaks, and goes on."""
    log = logging.getLogger("onnx_ir.serde")

    def silent(record: logging.LogRecord) -> bool:
        return False

    log.addFilter(silent)
    try:
        yield
    finally:
        log.removeFilter(silent)


def need_packages() -> None:
    """Raises ImportError if a package that reads ONNX files is missing."""
    try:
        import onnx_ir  # noqa: F401  # it imports onnx
    except ImportError as error:
        raise ImportError(
            f"ONNX files need the packages onnx and onnx-ir: pip install onnx onnx-ir ({error})"
        ) from None
