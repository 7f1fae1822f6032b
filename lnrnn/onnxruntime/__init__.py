"""A plug-in for ONNX Runtime: its sessions compute recurrent nodes with lnrnn, in any language.

The plug-in is a shared library, an execution provider in ONNX Runtime's terms. Programs in all languages can
register it by its path. It needs ONNX Runtime 1.24 or later, in Python 1.25, which must be installed
separately. The plug-in takes nodes RNN, LSTM and GRU with constant float32 weights, and DynamicQuantizeLSTM
of ONNX Runtime, whose int8 weights it keeps. It takes functions of `lnrnn.onnx.convert` too. Nodes within If,
Loop and Scan need ONNX Runtime 1.25. The runtime computes all other nodes. Its log says once, at level INFO,
which recurrent nodes the plug-in leaves to it, and why.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..arguments import TAKES, THREADS, Choice, Instance, Optional, by_name
from ..errors import bad_type, bad_value, message
from ..recognise.patterns import OPERATORS
from ..rounding import options_of_check
from .checking import checked

__all__ = ["ep_name", "library_path", "register", "session"]
__dir__ = __all__.copy  # dir() lists public names only

_PROVIDER = "LnrnnExecutionProvider"
TAKES["onnxruntime.session"] = {
    "path": Instance((str, bytes, os.PathLike), "a path, or a file's contents as bytes"),
    "dtype": Optional(Choice(("float32", "bfloat16", "int8"))), "threads": THREADS.of,
}  # fmt: skip
_OLDEST = 1, 25  # older versions accept library providers only in options
_SESSION_ARGUMENTS = (
    "sess_options", "providers", "provider_options", "enable_fallback", "disabled_optimizers",
    "read_config_from_model",
)  # fmt: skip
_FUNCTIONS = frozenset(OPERATORS.values())
_ENDS = _FUNCTIONS | {  # operators that the sums of a cell never contain
    "BatchNormalization", "Conv", "ConvTranspose", "Erf", "Exp", "GRU", "If", "LSTM", "MaxPool", "PRelu",
    "RNN", "Shape", "Softmax",
}  # fmt: skip
_NO_CPU, _RECORDS = "session.disable_cpu_ep_fallback", "session.record_ep_graph_assignment_info"
_registering = threading.Lock()


def library_path() -> str:
    """Return the path of the plug-in, a shared library without Python, for programs in any language.

    Notes
    -----
    Pass it to ONNX Runtime's ``RegisterExecutionProviderLibrary``. The library loads liblnrnn from its own
    folder, so copy both files.

    Examples
    --------
    >>> from pathlib import Path
    >>> import lnrnn.onnxruntime
    >>> Path(lnrnn.onnxruntime.library_path()).is_file()
    True
    """
    return str(next(Path(__file__).parents[1].glob("liblnrnn_ort.*")))


def ep_name() -> str:
    """Return the name of the plug-in's execution provider.

    Examples
    --------
    >>> import lnrnn.onnxruntime
    >>> lnrnn.onnxruntime.ep_name()
    'LnrnnExecutionProvider'
    """
    return _PROVIDER


def register() -> None:
    """Register the plug-in in this process's ONNX Runtime. Later calls do nothing.

    Raises
    ------
    ImportError
        If onnxruntime is not installed or is older than 1.25.

    Examples
    --------
    >>> import lnrnn.onnxruntime
    >>> lnrnn.onnxruntime.register()  # doctest: +SKIP
    """
    _register()


def session(
    path: Any, *, dtype: str | None = None, check: Any = None, tolerance: float | None = None,
    threshold: float = 0.0, threads: int = 1, **session_arguments: Any,
) -> Any:  # fmt: skip
    """Open an ONNX file in ONNX Runtime, with the recurrent nodes computed by lnrnn.

    With the packages onnx and onnx_ir, the file is converted first, as by `lnrnn.onnx.convert`. A file of
    more than 2 GiB is not converted, with a UserWarning.

    Parameters
    ----------
    path : str, path-like or bytes
        The file, or its contents.
    dtype : {"float32", "bfloat16", "int8"}, optional
        The form of the recurrent weights, as in `lnrnn.LSTM.to_dtype`. The default is "float32".
        DynamicQuantizeLSTM keeps its int8 weights. With "int8", its inputs and states have 14 bits, else 8.
    check : mapping of str to array_like, optional
        The inputs of a call, like the model's own. The session's attribute `rounding`, a
        `lnrnn.rounding.Rounding`, then is a report of time and outputs with this dtype, node by node.
    tolerance : float, optional
        With `check`: the largest difference of an output from float32 that is permitted. The fewest nodes
        keep float32 weights, chosen by their own differences. A UserWarning says if all do.
    threshold : float
        With `check`: the report counts how many outputs change from one side of it to the other.
    threads : int
        The largest number of threads of each recurrent node, 1 to 1024. Without `sess_options`, the
        runtime's own nodes use as many.
    **session_arguments
        More arguments of ``onnxruntime.InferenceSession``. `sess_options` are not changed, but with `check`
        get one more entry. `providers` are used after the plug-in; the default is
        ``["CPUExecutionProvider"]``. `provider_options`, and options with providers of their own, are not
        accepted.

    Returns
    -------
    onnxruntime.InferenceSession

    Raises
    ------
    ImportError
        If onnxruntime is not installed or is older than 1.25.
    ValueError, TypeError
        If an argument is wrong. For outputs on `check` that are NaN, or are not finite in another dtype, and
        for a tolerance that the float32 outputs with and without the plug-in exceed.

    Examples
    --------
    >>> import lnrnn.onnxruntime
    >>> session = lnrnn.onnxruntime.session("model.onnx", dtype="int8")  # doctest: +SKIP
    >>> y, h = session.run(None, {"x": x})  # doctest: +SKIP
    """
    path, dtype, threads = by_name("onnxruntime.session", locals()).values()
    of_check = options_of_check(check, tolerance, threshold)
    file = path if isinstance(path, bytes) else os.fsdecode(path)
    for name in session_arguments:
        if name not in _SESSION_ARGUMENTS:  # onnxruntime ignores unknown arguments
            raise TypeError(f"session() got an unexpected keyword argument {name!r}")
    if (given := session_arguments.pop("provider_options", None)) is not None:
        raise bad_value("provider_options", "left out", given, "write (name, options) in providers")
    others = session_arguments.pop("providers", None)
    if isinstance(others, (str, bytes)):
        raise bad_type("providers", "a list of names", others)
    runtime = _register()
    options = session_arguments.pop("sess_options", None)
    if options is None:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
    elif options.has_providers():  # onnxruntime would ignore `providers`
        got = "options with providers"
        raise ValueError(message("sess_options", "options without providers", got, "name them in providers"))
    # onnxruntime copies the options. It would warn of nodes on a provider that is not listed.
    if others is None:
        others = [] if _entry(options, _NO_CPU) == "1" else ["CPUExecutionProvider"]
    log = str(options.log_severity_level)
    own = {"dtype": dtype or "float32", "threads": str(threads), "log_severity_level": log, "advice": "0"}
    # By default, onnxruntime would fall back to a session without the plug-in.
    session_arguments.setdefault("enable_fallback", 0)
    plain = functools.partial(runtime.InferenceSession, file, options, others, **session_arguments)
    contents = [_converted(file)]

    def opened(kept: Sequence[str] = ()) -> Any:
        """Returns a session. kept: names of nodes that keep float32 weights."""
        names = {"float32_nodes": "".join(f"{name}\n" for name in kept)} if kept else {}
        providers = [(_PROVIDER, own | names), *others]
        if contents[0] is not file:
            try:
                return runtime.InferenceSession(contents[0], options, providers, **session_arguments)
            except Exception as error:  # onnxruntime's errors have no common class
                text = f"onnxruntime refuses the converted file, so the file runs as it is: {error}"
                warnings.warn(text, stacklevel=3)
                contents[0] = file
        return runtime.InferenceSession(file, options, providers, **session_arguments)

    if check is None:
        return opened()
    if _entry(options, _RECORDS) != "1":
        options.add_session_config_entry(_RECORDS, "1")
    return checked(opened, _PROVIDER, own["dtype"], plain, check, of_check)


def _converted(file: str | bytes) -> str | bytes:
    """Returns the bytes of a file whose cells became nodes for the plug-in, or `file` if it has no cells."""
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnx_ir")):
        _say_what_is_missing()
        return file
    try:
        if not _may_have_cells(file if isinstance(file, bytes) else Path(file).read_bytes()):
            return file
    except Exception:  # opening the file as it is names the fault
        return file
    from ..onnx.errors import OnnxFileError, TooLargeError
    from ..onnx.writing.converter import in_memory

    try:
        return in_memory(file, quick=True)[0] or file
    except TooLargeError as error:
        warnings.warn(f"the file runs without lnrnn's functions: {error}", stacklevel=3)
        return file
    except (OnnxFileError, OSError):  # onnxruntime may read the file, or says why not
        return file


def _may_have_cells(data: bytes) -> bool:
    """Returns whether a file may contain a cell in plain operators. This avoids importing the recogniser.

    A cell has a function of a sum of two products, with x and h, or of one product with x and h joined. Loops
    and Scans may contain recurrent nodes.
    """
    import onnx

    model = onnx.ModelProto.FromString(data)
    own = [function for function in model.functions if function.domain != "lnrnn"]  # else: converted
    bodies, calls = [model.graph, *own], {function.name for function in own}
    joined, products, sums = set[str](), set[str](), set[str]()
    while bodies:
        for node in bodies.pop().node:
            op = node.op_type
            if op in ("Loop", "Scan") or (op in _FUNCTIONS and node.input[0] in sums):
                return True
            passes, of_products = op not in _ENDS, len(products.intersection(node.input))
            is_product, adds = op in ("Gemm", "MatMul"), op in ("Add", "Sum") and of_products > 1
            if is_product:  # x and h are joined, or another product replaces the bias
                adds, passes = node.input[0] in joined or (op == "Gemm" and node.input[-1] in products), False
            if op in calls or adds or (passes and not sums.isdisjoint(node.input)):
                sums.update(node.output)
            if op in calls or is_product or (passes and of_products):
                products.update(node.output)
            if op == "Concat":
                joined.update(node.output)
            bodies += [graph for each in node.attribute for graph in (each.g, *each.graphs)]
    return False


@functools.cache  # cached: warns once
def _say_what_is_missing() -> None:
    text = "without the packages onnx and onnx_ir, the plug-in takes nodes RNN, LSTM and GRU alone"
    warnings.warn(f"{text}: pip install onnx onnx-ir", stacklevel=4)


def _entry(options: Any, name: str) -> Any:
    try:
        return options.get_session_config_entry(name)
    except RuntimeError:  # there is no such entry
        return None


def _register() -> Any:
    """Registers the plug-in in onnxruntime. Returns the module onnxruntime."""
    wanted = ".".join(map(str, _OLDEST))
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ImportError(
            f"lnrnn.onnxruntime needs onnxruntime {wanted} or later: pip install onnxruntime ({error})"
        ) from error
    if tuple(int(part) for part in runtime.__version__.split(".")[:2]) < _OLDEST:
        raise ImportError(
            f"lnrnn.onnxruntime needs onnxruntime {wanted} or later, got {runtime.__version__}: "
            "pip install -U onnxruntime"
        )
    with _registering:
        if all(device.ep_name != _PROVIDER for device in runtime.get_ep_devices()):
            runtime.register_execution_provider_library("lnrnn", library_path())
    return runtime
