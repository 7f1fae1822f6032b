"""Exceptions for ONNX files, and helpers for messages of other libraries."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class OnnxFileError(ValueError):
    """Raised for an ONNX file that is damaged or breaks a rule of the format."""


class TooLargeError(OnnxFileError):
    """Raised for a model too large to convert in memory: a protobuf has less than 2 GiB."""


class DisprovedError(ValueError):
    """Raised if a converted network does not reproduce the outputs of its part of the file."""


@contextmanager
def naming(path: str) -> Iterator[None]:
    """A context that puts the file's path in front of the message of an OnnxFileError. path: may be ""."""
    try:
        yield
    except OnnxFileError as error:
        if not path or str(error).startswith(path):
            raise
        raise OnnxFileError(f"{path}: {error}") from None


@contextmanager
def quiet() -> Iterator[None]:
    """A context in which onnx_ir does not log. It logs broken rules of a model, and continues."""
    log = logging.getLogger("onnx_ir.serde")

    def silent(record: logging.LogRecord) -> bool:
        return False

    log.addFilter(silent)
    try:
        yield
    finally:
        log.removeFilter(silent)


def text_of(error: BaseException, most: int = 300) -> str:
    """Returns an exception's message, or else its class, as one line of at most `most` characters."""
    return (" ".join(str(error).split()) or type(error).__name__)[:most]
