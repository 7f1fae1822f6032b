"""Errors about ONNX files, and texts of other libraries' errors."""

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


def text_of(error: BaseException) -> str:
    """Returns another library's message as one line of at most 300 characters."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]
