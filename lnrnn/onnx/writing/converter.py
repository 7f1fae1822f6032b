"""`convert` rewrites an ONNX file: its recurrent parts become nodes or functions that run faster."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...arguments import TAKES, Flag, Instance, check
from ...files import check_apart, check_replaceable, replacing
from ...packages import require
from .writer import MOST_BYTES

TAKES["onnx.convert"] = {"path": Instance((str, os.PathLike), "a path"), "functions": Flag()}


def convert(
    path: str | os.PathLike[str], out: str | os.PathLike[str], *, functions: bool = True
) -> dict[str, str]:
    """Write an ONNX file anew, with recurrent parts in operators as nodes that compute them faster.

    An RNN, LSTM or GRU in plain operators, also in a Loop or Scan or unrolled, becomes nodes of ONNX. All
    runtimes run these faster. Other cells, such as those with layer norm, become calls of
    functions. The file has these functions, so any runtime can run them. The plug-in of `lnrnn.onnxruntime`
    computes them with lnrnn.

    Parameters
    ----------
    path : str or path-like
        The file. External data must be in its folder.
    out : str or path-like
        The new file. It appears only when it is complete. If `path` has external data, or if the file would
        be too large, it gets external data in the file `out` + ".data".
    functions : bool
        Whether to write functions. Without them, OpenVINO can run the file too. Then parts that ONNX has no
        node for stay as they are. So do parts with lengths, because OpenVINO ignores lengths at nodes.

    Returns
    -------
    dict of str to str
        For the path of each part, as `lnrnn.onnx.parts` lists them, "" or why the part stays as it is.

    Raises
    ------
    ValueError, TypeError
        For a wrong argument. `out` must not be `path`. OnnxFileError, a ValueError, for a file that is
        damaged, breaks a rule of ONNX or changes during the conversion.
    OSError
        If a file cannot be read or written. An old file is then unchanged.
    ImportError
        Without the packages onnx and onnx_ir.

    Notes
    -----
    Each part is replaced only after it and its network have been run on the same random inputs, as
    `from_onnx` does. Outputs of the new and the old file differ by rounding alone. A file in which nothing is
    replaced is copied, so converting twice gives the same bytes.

    ONNX Runtime's nodes refuse lengths beyond T, and states without a row for each sequence. Without a step
    or a sequence, they can end the process. The new file has no training information of the old one, and no
    sparse initializers, which nodes must not read.

    Examples
    --------
    >>> import lnrnn.onnx
    >>> lnrnn.onnx.convert("model.onnx", "faster.onnx")  # doctest: +SKIP
    {'encoder/Scan': ''}
    """
    path, functions = check("onnx.convert", {"path": path, "functions": functions})
    require("onnx_ir", "lnrnn.onnx.convert", "onnx")
    from .replacement import FILES, changed

    check_apart(out, path)
    check_replaceable(out)
    model, reasons = changed(path, functions)
    if len(model.meta[FILES]) > 1 or _size(model) > MOST_BYTES:
        for each in (out, f"{os.fspath(out)}.data"):
            check_apart(each, *model.meta[FILES])
        _write_external(model, Path(out))
    else:
        data = Path(path).read_bytes() if all(reasons.values()) else _data(model)
        _check_unchanged(model)
        with replacing(out) as write:
            write(data)
    return reasons


def _check_unchanged(model: Any) -> None:
    """Raises OnnxFileError if the model's files have changed since they were read."""
    from ..errors import OnnxFileError
    from .replacement import FILES, state_of

    for path, state in model.meta[FILES].items():
        if state_of(path) != state:
            raise OnnxFileError(f"{path!r} changed during the conversion; convert it again")


def in_memory(source: Any, quick: bool = False) -> tuple[bytes | None, dict[str, str]]:
    """Converts a file in memory. Returns (bytes of the new file, or None if nothing is replaced; reasons).

    reasons: as `convert` returns them. quick: as in `changed`. Raises TooLargeError.
    """
    from ..errors import TooLargeError
    from .replacement import changed

    model, reasons = changed(source, quick=quick)
    if all(reasons.values()):
        return None, reasons
    if (size := _size(model)) > MOST_BYTES:
        text = f"a model must have at most {MOST_BYTES} bytes to be converted in memory, got {size}"
        raise TooLargeError(f"{text}; convert the file: lnrnn onnx FILE -o OUT")
    _load(model)
    return _data(model), reasons


def _size(model: Any) -> int:
    """Returns the bytes of a model's initializers and external data, as if written into one file."""
    from ..reading import external_tensors

    own = (value.const_value for value in model.graph.initializers.values())
    every = {id(tensor): tensor for tensor in (*external_tensors(model), *own) if tensor is not None}
    return sum(tensor.nbytes for tensor in every.values())


def _load(model: Any) -> None:
    """Replaces external tensors by memory-mapped arrays."""
    import onnx_ir

    from ..reading import graphs

    for _, graph in graphs(model):
        for value in graph.initializers.values():
            if isinstance(value.const_value, onnx_ir.ExternalTensor):
                value.const_value = onnx_ir.tensor(value.const_value.numpy(), name=value.name)
        for node in graph:
            for name, each in [*node.attributes.items()]:
                if isinstance(each.value, onnx_ir.ExternalTensor):
                    node.attributes[name] = onnx_ir.AttrTensor(name, onnx_ir.tensor(each.value.numpy()))


@contextmanager
def _writing() -> Iterator[None]:
    """A context that raises OnnxFileError if onnx_ir cannot write a model, e.g. for invalid UTF-8."""
    from ..errors import OnnxFileError, text_of

    try:
        yield
    except OSError:
        raise
    except Exception as error:  # onnx_ir raises exceptions of many types
        raise OnnxFileError(f"onnx_ir cannot write the model: {text_of(error.__cause__ or error)}") from None


def _data(model: Any) -> bytes:
    import onnx_ir

    with _writing():
        data: bytes = onnx_ir.to_proto(model).SerializeToString(deterministic=True)
    return data


def _write_external(model: Any, out: Path) -> None:
    """Writes a model to `out`, and its external data to `out`.data."""
    import onnx_ir

    data = f"{out.name}.data"
    _load(model)
    with tempfile.TemporaryDirectory(prefix=".lnrnn-", dir=out.parent) as folder:
        with _writing():
            onnx_ir.save(model, Path(folder, out.name), external_data=data)
        _check_unchanged(model)
        os.replace(Path(folder, data), out.parent / data)
        os.replace(Path(folder, out.name), out)
