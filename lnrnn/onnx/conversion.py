"""`from_onnx` converts the recurrent parts of an ONNX file to networks. It checks each by running both."""

from __future__ import annotations

import re
import warnings
from typing import Any

from ..arguments import TAKES, Flag, Instance, Optional
from ..arguments import check as checked
from ..packages import require
from ..recognise.part import Difference, GraphPart, OneStep
from .parts import parts_of

TAKES["from_onnx"] = {
    "name": Optional(Instance(str, "a str or None")), "check": Flag(), "reset_after": Optional(Flag()),
}  # fmt: skip


def from_onnx(
    path_or_model: Any, name: str | None = None, check: bool = True, *, reset_after: bool | None = None
) -> Any:
    """Converts the recurrent parts of an ONNX file to networks, for inference.

    The parts are nodes RNN, LSTM and GRU of opsets 7 to 22, and DynamicQuantizeLSTM of ONNX Runtime. They may
    be in If, Loop, Scan and functions. Nodes that follow each other through Transpose, Reshape and Squeeze
    are the layers of one network. Weights may be constants, or computed from constants by Slice, Concat and
    other operators that move numbers, Cast and DequantizeLinear. Other parts are steps of an RNN, LSTM, GRU
    or LiGRU in plain operators, also with layer norm. They may be alone, in a Loop or Scan, or unrolled.
    Whole files of `to_onnx` are parts too.

    Parameters
    ----------
    path_or_model : str, path, bytes, onnx.ModelProto or onnx_ir.Model
        The model. Only a path gives access to external data, which must be in the folder of the file.
    name : str, optional
        The path of one part, as `lnrnn.onnx.parts` lists them, or the name of its first node. A step in a
        Loop or Scan that changes its states between steps has a network only with `name`.
    check : bool
        Whether to run each part of the file and its network on random inputs. ONNX Runtime runs the part, or
        onnx.reference if ONNX Runtime is missing. It permits the difference that `from_torch` permits. A
        UserWarning names a part that neither can run.
    reset_after : bool, optional
        Replaces linear_before_reset of all GRU nodes. True repairs files that torch's exporter wrote with
        dynamo=True between November 2025 and June 2026: their GRUs lack linear_before_reset=1.

    Returns
    -------
    RNN, LSTM or GRU, or a dict of them
        The network if the file has one part, or with `name`. Otherwise {path: network} of all parts that have
        a network. A UserWarning says why the others have none, or what a network computes otherwise than the
        file: other initial states, y in another order, or one step of a loop. batch_first is True if x and y
        of the file have the axes (B, T, *), by nodes with layout=1 or between nodes Transpose, as torch
        exports batch_first=True.

    Raises
    ------
    ValueError
        For a file without a part that a network can replace, and for a part `name` that has no network; the
        message names the node and the attribute. For a network whose outputs differ from its part's.
        OnnxFileError, a ValueError, for a file that is damaged or breaks a rule of ONNX.
    TypeError
        For arguments of other types.
    ImportError
        Without the packages onnx and onnx_ir.

    Notes
    -----
    A node HardSigmoid becomes gate_activation="hard_sigmoid" with other weights for its gates. All weights
    become float32, and to_dtype("int8") keeps the values of 8-bit weights. A network has no initial states;
    pass those of the file to its calls. `initial_states` of a Part has those that are constant.

    Examples
    --------
    >>> import numpy as np
    >>> import onnx.helper
    >>> import lnrnn
    >>> rng = np.random.default_rng(0)
    >>> weights = {"W": rng.normal(size=(1, 16, 3)), "R": rng.normal(size=(1, 16, 4))}
    >>> node = onnx.helper.make_node("LSTM", ["x", "W", "R"], ["y"], "lstm", hidden_size=4)
    >>> graph = onnx.helper.make_graph(
    ...     [node], "example",
    ...     [onnx.helper.make_tensor_value_info("x", 1, ("T", "B", 3))],
    ...     [onnx.helper.make_tensor_value_info("y", 1, ("T", 1, "B", 4))],
    ...     [onnx.numpy_helper.from_array(w.astype(np.float32), key) for key, w in weights.items()],
    ... )
    >>> lstm = lnrnn.from_onnx(onnx.helper.make_model(graph))
    >>> y, (h, c) = lstm(np.zeros((5, 2, 3)))
    >>> y.shape
    (5, 2, 4)
    """
    name, check, reset_after = checked("from_onnx", locals())
    require("onnx_ir", "from_onnx", "onnx")
    from .reading import read

    model = read(path_or_model)
    every = parts_of(model, reset_after)
    if not every:
        found = "nodes RNN, LSTM and GRU, and steps of these cells and of LiGRU in plain operators"
        text = f"the file has no recurrent part. lnrnn finds {found}, alone, in a Loop or Scan, or unrolled"
        from .running.states import unknown_recurrences

        others = unknown_recurrences(model, every)
        raise ValueError(text + f". It does not know {'; '.join(others)}" * bool(others))
    chosen = every if name is None else [_named(every, name)]
    reasons = {part.path: part.reason for part in chosen if part.network is None}
    for part in every if name is None else ():
        for text in (text for text in part.warnings if isinstance(text, OneStep)):
            reasons[part.path] = f"{text}; name={part.path!r} converts it"
    with_network = [part for part in chosen if part.path not in reasons]
    if not with_network:
        count = "no part" if len(chosen) == 1 else f"none of the {len(chosen)} parts"
        raise ValueError(f"{count} can be converted: {'; '.join(reasons.values())}")
    for path, reason in reasons.items():
        _warn(f"part {path!r} has no network: {reason}")
    for part in with_network:
        if check:
            from .proof import prove

            doubt = prove(part, model, reset_after)
            if doubt:
                _warn(f"part {part.path!r} could not be checked: {doubt}; check=False skips the check")
        every_text = [(text, each.path) for each in (part, *part.same) for text in each.warnings]
        for text, path in dict(every_text[::-1]).items():  # of parts with equal texts, name the first
            if isinstance(text, Difference):
                _warn(f"part {path!r}: {text}")
    if len(every) == 1 or name is not None:
        return with_network[0].network
    return {part.path: part.network for part in with_network}


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=3)


def _named(every: list[GraphPart], name: str) -> GraphPart:
    """Returns the part with this path, or whose first node has this name. Raises ValueError otherwise."""
    for part in every:
        if name in part.paths:
            return part
    own = re.compile(rf"{re.escape(name)}|.+/{re.escape(name)}(__\d+)+")  # inlined functions add numbers
    by_node = [part for part in every if any(
        p.nodes and own.fullmatch(p.nodes[0].name or "") for p in (part, *part.same)
    )]  # fmt: skip
    if len(by_node) == 1:
        return by_node[0]
    paths = ", ".join(repr(path) for part in every[:20] for path in part.paths[:20])
    raise ValueError(f"name must be the path of a part, got {name!r}; the paths are {paths}")
