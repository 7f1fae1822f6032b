"""ONNX files: `parts` lists their recurrent parts, `from_onnx` converts these, and `Model` runs whole files.

`to_onnx` writes a network, and `convert` a file that runs faster. All need the extra onnx; `Model` also needs
onnxruntime.
"""

from __future__ import annotations

from ..recognise.part import Part
from .conversion import from_onnx
from .errors import OnnxFileError
from .parts import parts
from .running.model import Model
from .running.model_stream import ModelStream
from .writing.converter import convert
from .writing.writer import to_onnx

__all__ = [
    "Model",
    "ModelStream",
    "OnnxFileError",
    "Part",
    "convert",
    "from_onnx",
    "parts",
    "to_onnx",
]
__dir__ = __all__.copy  # dir() lists public names only
