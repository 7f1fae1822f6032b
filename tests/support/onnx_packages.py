"""Finds ONNX files of the packages silero-vad, ddddocr and piper-tts, which tests do not import.

A file is that of the installed package, or in a folder of LNRNN_ONNX_MODELS (separated as in PATH). Without
their dependencies, the packages suffice:

    pip install --no-deps --target /tmp/models silero-vad ddddocr piper-tts
    LNRNN_ONNX_MODELS=/tmp/models python -m pytest tests/onnx
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest


def path_of(name):
    """Returns the path of a file such as "silero_vad/data/silero_vad.onnx". Skips a test without it."""
    package, _, rest = name.partition("/")
    folders = [Path(p) for p in os.environ.get("LNRNN_ONNX_MODELS", "").split(os.pathsep) if p]
    spec = find_spec(package)
    folders += [Path(p).parent for p in spec.submodule_search_locations or ()] if spec else []
    path = next((p / name for p in folders if (p / name).is_file()), None)
    if path is None:
        pytest.skip(f"there is no {package} with {rest}; support/onnx_packages.py says how to install it")
    return path
