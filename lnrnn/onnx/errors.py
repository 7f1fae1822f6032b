"""Errors about ONNX files, and texts of other libraries' errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class OnnxFileError(ValueError):
    """Raised for an ONNX file that is damaged or breaks a rule of the format."""


class TooLargeError(OnnxFileError):
    """Raised for a model that cannot be converted in memory, because a protobuf has less than 2 GiB."""


class DisprovedError(ValueError):
    """Raised if a converted network's outputs differ from the outputs of the part of the file."""


@contextmanager
def naming(path: str) -> Iterator[None]:
    """A context whose errors of class OnnxFileError begin with the path of the file, unless it is ""."""
    try:
        yield
    except OnnxFileError as error:
        if not path or str(error).startswith(path):
            raise
        raise OnnxFileError(f"{path}: {error}") from None


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


def text_of(error: BaseException, most: int = 300) -> str:
    """Returns another library's message as one line of at most `most` characters."""
    return (" ".join(str(error).split()) or type(error).__name__)[:most]
