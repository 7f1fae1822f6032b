"""Reads one RNN, LSTM or GRU node of ONNX, or DynamicQuantizeLSTM of ONNX Runtime, as a layer of lnrnn.

Opsets 7 to 22 are supported. If no network of lnrnn can replace a node, a ValueError names the attribute or
the input.

A DynamicQuantizeLSTM has W (D, I, 4H) and R (D, H, 4H), of int8 or uint8: w = (q - zero point) * scale. The
gates have the order of LSTM. A scale or zero point is one number for each direction, (D,), or one for each
column, (D, 4H). rnn/quantized.py says how a network stores them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx.defs
import onnx_ir

from ...errors import message
from ...importers.weights import Weights, floats, reordered, with_functions
from ...recognise.graph import ACTIVATIONS, attributes, constant, has_references, is_zero
from ...recognise.interface import DOMAINS, Array, named
from ...recognise.sizes import last_size
from ...rnn import cells, quantized

Arrays = Mapping[int, Array | None]  # by input index
# The order of gates in ONNX, and in lnrnn. ONNX's c is the gate g of lnrnn.
GATES = {"RNN": ("i", "i"), "LSTM": ("iofc", "ifco"), "GRU": ("zrh", "rzh")}
VERSIONS = (7, 14, 22)  # since_version of RNN, LSTM and GRU, in opsets 7 to 22
_SCHEMAS = [onnx.defs.get_schema(op, VERSIONS[-1]) for op in GATES]
TYPES = {name: onnx_ir.AttributeType(int(given.type.value))  # type: ignore[attr-defined]  # in onnx's stubs
         for schema in _SCHEMAS for name, given in schema.attributes.items()}  # fmt: skip
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
SCALES = {"W": (8, 9), "R": (10, 11)}  # indices of the inputs scale and zero point
LARGEST = 2.0**119  # a larger scale could make weights infinite
DEFAULTS = {"RNN": ("tanh",), "LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh")}
NONLINEARITIES = {op: name for op, name in ACTIVATIONS.items() if name in cells.NONLINEARITIES}
BY_NAME = {"affine": "identity", **{op.lower(): name for op, name in NONLINEARITIES.items()}}
# Functions with parameters: default (alpha, beta), or None if alpha must be given.
WITH_ALPHA = {"hardsigmoid": (0.2, 0.5), "affine": None, "leakyrelu": (0.01, 0.0),
              "thresholdedrelu": (1.0, 0.0), "elu": (1.0, 0.0), "scaledtanh": None}  # fmt: skip
WITH_BETA = ("hardsigmoid", "affine", "scaledtanh")


@dataclass(frozen=True)
class NodeLayer:
    """One recurrent node as one layer of a network.

    weights: by direction. reverse: the node reads from the last step. batch_first: layout is 1. kept_by_int8:
    whether to_dtype("int8") keeps 8-bit weights unchanged; None for float32 weights. x to c: inputs and
    outputs of the node, or None if the node leaves them out. h0 and c0 are also None if they are constants
    of 0.
    """

    node: onnx_ir.Node
    weights: tuple[Weights, ...]
    reverse: bool
    batch_first: bool
    kept_by_int8: bool | None
    x: onnx_ir.Value
    lengths: onnx_ir.Value | None
    h0: onnx_ir.Value | None
    c0: onnx_ir.Value | None
    y: onnx_ir.Value | None
    h: onnx_ir.Value | None
    c: onnx_ir.Value | None

    @property
    def kind(self) -> str:
        return self.weights[0].cell

    @property
    def directions(self) -> int:
        return len(self.weights)

    @property
    def hidden_size(self) -> int:
        return self.weights[0].hidden_size


def refused(node: onnx_ir.Node, name: str, expected: str, got: Any, do: str = "") -> ValueError:
    """Returns a ValueError: the node violates the operator's definition. name: the attribute or input."""
    return ValueError(message(f"node {named(node)}: {name}", expected, str(got), do))


def without_equivalent(node: onnx_ir.Node, has: str, reason: str) -> ValueError:
    """Returns a ValueError: the node is valid, but lnrnn has no equivalent. has: its attribute or input."""
    return ValueError(f"node {named(node)} has {has}, and {reason}")


def is_quantized(node: onnx_ir.Node) -> bool:
    return node.domain == "com.microsoft" and node.op_type == "DynamicQuantizeLSTM"


def is_recurrent(node: onnx_ir.Node) -> bool:
    return (node.domain in DOMAINS and node.op_type in GATES) or is_quantized(node)


def read_layer(node: onnx_ir.Node, opset: int | None, reset_after: bool | None = None) -> NodeLayer:
    """Reads a node as a layer. Raises ValueError if no network can replace it.

    opset: the version of ONNX's domain. reset_after: overrides linear_before_reset of GRU nodes, or None.
    """
    if has_references(node):
        raise ValueError(f"node {named(node)}: attributes must have values, got a reference of a function")
    given, arrays, values = attributes(node), constants(node), dict(enumerate(node.inputs))
    kind = "LSTM" if is_quantized(node) else node.op_type
    _check_version(node, opset)
    _check_attributes(node, given)
    directions = DIRECTIONS[given.get("direction", "forward")]
    W, R, kept = _weights(node, arrays, kind, directions, given.get("hidden_size"))
    B = None if values.get(3) is None else _floats(node, folded(node, arrays, 3, "B"), "B")
    if B is not None and B.shape != (directions, 2 * len(R[0])):
        raise refused(node, "input B", f"of shape {(directions, 2 * len(R[0]))}", B.shape)
    H = R.shape[-1]
    has_peepholes = kind == "LSTM" and not is_zero(values.get(7))
    P = _floats(node, folded(node, arrays, 7, "P"), "P") if has_peepholes else None
    if P is not None and P.shape != (directions, 3 * H):
        raise refused(node, "input P", f"of shape {(directions, 3 * H)}", P.shape)
    functions = activations(node, given, kind, directions)
    after = kind != "GRU" or bool(given.get("linear_before_reset", 0) if reset_after is None else reset_after)
    weights = []
    for d in range(directions):
        own = {"weight_ih": W[d], "weight_hh": R[d]}
        if B is not None:
            own["bias_ih"], own["bias_hh"] = np.split(B[d], 2)
        own = {name: reordered(v, *GATES[kind]) for name, v in own.items()}
        if P is not None:
            own["peephole"] = reordered(P[d], "iof", "ifo")
        layer = Weights(kind, None, B is not None, own, reset_after=after)
        weights.append(with_functions(layer, *functions))
    _check_states(node, {"initial_h": values.get(5), "initial_c": values.get(6)}, H)
    h0, c0 = (None if is_zero(v) else v for v in (values.get(5), values.get(6)))
    x, y, h, c = values.get(0), *(_used(node, i) for i in range(3))
    if x is None:
        raise refused(node, "input X", "a value", "none")
    return NodeLayer(
        node, tuple(weights), given.get("direction") == "reverse", bool(given.get("layout", 0)), kept, x,
        values.get(4), h0, c0 if kind == "LSTM" else None, y, h, c if kind == "LSTM" else None,
    )  # fmt: skip


def _used(node: onnx_ir.Node, i: int) -> onnx_ir.Value | None:
    value = node.outputs[i] if i < len(node.outputs) else None
    return value if value is not None and value.name and (value.uses() or value.is_graph_output()) else None


# --- attributes ---------------------------------------------------------------------------------------------


def _check_version(node: onnx_ir.Node, opset: int | None) -> None:
    if is_quantized(node):
        return
    version = opset or 0
    newest = onnx.defs.onnx_opset_version()
    known = 0 < version <= newest and onnx.defs.get_schema(node.op_type, version, "").since_version
    if known not in VERSIONS:
        raise refused(node, "the opset", f"from 7 to {newest}", opset if opset else "none for ONNX's domain")


def _check_attributes(node: onnx_ir.Node, given: dict[str, Any]) -> None:
    """Raises ValueError for attributes with invalid values or without an equivalent in lnrnn."""
    for name, kind in TYPES.items():
        of_node = node.attributes.get(name)
        if of_node is not None and of_node.type != kind:
            raise refused(node, f"attribute {name}", f"of type {kind.name}", of_node.type.name)
    if given.get("direction", "forward") not in DIRECTIONS:
        raise refused(node, "attribute direction", " or ".join(DIRECTIONS), repr(given["direction"]))
    if "clip" in given:
        raise without_equivalent(node, f"clip={given['clip']:g}", "lnrnn's cells have no clip")
    if given.get("input_forget", 0) != 0:
        reason = "the gates i and f of lnrnn's cells are separate"
        raise without_equivalent(node, f"input_forget={given['input_forget']}", reason)
    if given.get("layout", 0) not in (0, 1):
        raise refused(node, "attribute layout", "0 or 1", given["layout"])


def _check_states(node: onnx_ir.Node, states: dict[str, onnx_ir.Value | None], hidden_size: int) -> None:
    """Raises ValueError if an initial state is known to have another size than (*, hidden_size)."""
    for name, value in states.items():
        units = None if value is None else last_size(value)
        if units not in (None, hidden_size):
            do = "torch writes such a file for proj_size with dynamo=True" * (name == "initial_c")
            expected, got = f"of {hidden_size} units, as R", f"{units}, which no runtime can run"
            raise refused(node, name, expected, got, do)


# --- arrays -------------------------------------------------------------------------------------------------


def constants(node: onnx_ir.Node) -> Arrays:
    """Returns {index: array} of the inputs that must be constant. The array is None if it is not constant."""
    return {
        i: constant(v)
        for i, v in enumerate(node.inputs)
        if i in (1, 2, 3, 7, *itertools.chain(*SCALES.values()))
    }


def folded(node: onnx_ir.Node, arrays: Arrays, i: int, name: str) -> Array:
    """Returns the array of constant input i, or raises ValueError. name: the input's name for the message."""
    result = arrays.get(i)
    if result is None:
        value = node.inputs[i] if i < len(node.inputs) else None
        got = "none" if value is None else f"{value.name!r}, which depends on inputs of the model"
        producer = None if value is None else value.producer()
        if producer is not None:
            got += f" or on an operator that is not computed here, by {named(producer)}"
        raise refused(node, f"input {name}", "a constant", got)
    return result


def _weights(
    node: onnx_ir.Node, arrays: Arrays, kind: str, directions: int, said: int | None
) -> tuple[Array, Array, bool | None]:
    """Returns W (D, G * H, I), R (D, G * H, H) and kept_by_int8. said: the attribute hidden_size, or None."""
    gates, kept = len(GATES[kind][0]), None
    given = [folded(node, arrays, i, name) for i, name in ((1, "W"), (2, "R"))]
    if is_quantized(node):
        W, R, kept = dequantized(node, arrays)
    else:
        W, R = (_floats(node, array, name) for array, name in zip(given, "WR", strict=True))
    if R.ndim != 3 or W.ndim != 3:
        raise refused(node, "W and R", "arrays with three axes", f"{W.shape} and {R.shape}")
    H, inputs = R.shape[-1], W.shape[-1]
    if not (H and inputs) or R.shape != (directions, gates * H, H) or W.shape[:2] != R.shape[:2]:
        raise refused(
            node, "W and R", f"of shape ({directions}, {gates} H, I) and ({directions}, {gates} H, H)",
            f"{W.shape} and {R.shape}",
        )  # fmt: skip
    if said not in (None, H):
        raise refused(node, "attribute hidden_size", f"{H}, as R of shape {R.shape} has", said)
    return W, R, kept


def _floats(node: onnx_ir.Node, value: Array, name: str) -> Array:
    try:
        return floats(f"input {name}", value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"node {named(node)}: {error}") from None


def dequantized(node: onnx_ir.Node, arrays: Arrays) -> tuple[Array, Array, bool]:
    """Returns float32 arrays W (D, 4H, I) and R (D, 4H, H), and whether int8 keeps all weights unchanged.

    arrays: the result of `constants`.
    """
    result, kept = list[Array](), True
    for i, (name, places) in enumerate(SCALES.items(), 1):
        q = folded(node, arrays, i, name)
        if q.dtype not in (np.int8, np.uint8) or q.ndim != 3:
            got = f"{q.ndim} axes of {q.dtype}"
            raise ValueError(f"node {named(node)}: {name} must have 3 axes of int8 or uint8, got {got}")
        D, inputs, columns = q.shape
        given = []
        for place, what, dtype in zip(
            places, ("scale", "zero_point"), (np.dtype(np.float32), q.dtype), strict=True
        ):
            value = arrays.get(place)
            if value is None or value.shape not in ((D,), (D, columns)) or value.dtype != dtype:
                got = "no constant" if value is None else f"shape {value.shape} of {value.dtype}"
                wanted = f"a constant of shape {(D,)} or {(D, columns)} of {dtype}"
                raise refused(node, f"{name}_{what}", wanted, got)
            given.append(value.reshape(D, 1, -1))
        scale, zero = given
        if not ((scale >= 0) & (scale <= LARGEST)).all():
            wrong = scale[~((scale >= 0) & (scale <= LARGEST))].flat[0]
            raise refused(node, f"{name}_scale", "numbers from 0 to 2^119", wrong)
        integers = q.astype(np.int16) - zero
        kept = kept and quantized.kept_by_int8(integers, inputs)
        result.append((integers.astype(np.float32) * scale).swapaxes(1, 2))
    return result[0], result[1], kept


# --- activations --------------------------------------------------------------------------------------------


def activations(
    node: onnx_ir.Node, given: dict[str, Any], kind: str, directions: int
) -> tuple[str | None, float | None]:
    """Returns (nonlinearity, factor). factor: of the gates' pre-activations for hard sigmoids, else None.

    The nonlinearity is None for a gated cell with tanh.

    Raises ValueError for functions that networks do not have.
    """
    own = given.get("activations")
    names = tuple(str(name).lower() for name in own or DEFAULTS[kind] * directions)
    each = len(DEFAULTS[kind])
    if len(names) != each * directions:
        raise ValueError(
            f"node {named(node)}: attribute activations must have {each * directions} names, got {len(names)}"
        )
    shown = ", ".join(own or ())
    of = [(name, *_parameters(node, given, names, i)) for i, name in enumerate(names)]
    if of[:each] * directions != of:
        raise without_equivalent(node, f"activations {shown}", "both directions of a network have the same")
    name, alpha, beta = of[0]
    candidate, *rates = of[each - 1]  # LSTM: the function of the new c
    if kind != "LSTM" and not (candidate in BY_NAME and (candidate != "affine" or rates == [1, 0])):
        known = f"lnrnn's cells have {', '.join(NONLINEARITIES)}, or Affine with alpha 1 and beta 0"
    elif kind == "RNN":
        return BY_NAME[name], None
    elif kind == "LSTM" and any(other != "tanh" for other, _, _ in of[1:each]):
        known = "an LSTM has Tanh for its candidate and its output"
    elif name == "sigmoid" or (name == "hardsigmoid" and alpha > 0 and beta == 0.5):
        nonlinearity = None if candidate == "tanh" else BY_NAME[candidate]
        return nonlinearity, None if name == "sigmoid" else 6 * alpha  # clip(alpha a + 1/2)
    else:
        known = "lnrnn's cells have Sigmoid, or HardSigmoid with beta 0.5, for the gates"
    numbers = f" with alpha {alpha:g} and beta {beta:g}" if (alpha, beta) != (0, 0) else ""
    raise without_equivalent(node, f"activations {shown}{numbers}", known)


def _parameters(
    node: onnx_ir.Node, given: dict[str, Any], names: tuple[str, ...], i: int
) -> tuple[float, float]:
    """Returns (alpha, beta) of activation i. The attributes have a number for each function that takes one.

    Some exporters write a number for every function. Lists of other lengths raise ValueError.
    """
    defaults = WITH_ALPHA.get(names[i], (0.0, 0.0))
    result = []
    for k, (attr, users) in enumerate((("activation_alpha", WITH_ALPHA), ("activation_beta", WITH_BETA))):
        if names[i] not in users:
            result.append(0.0)
            continue
        values = [float(np.float32(v)) for v in given.get(attr) or ()]
        using = [j for j, name in enumerate(names) if name in users]
        if len(values) == len(using):
            result.append(values[using.index(i)])
        elif len(values) == len(names):
            result.append(values[i])
        elif not values and defaults is not None:
            result.append(float(np.float32(defaults[k])))
        else:
            raise ValueError(
                f"node {named(node)}: attribute {attr} must have {len(using)} numbers, one for each function "
                f"that takes {attr.removeprefix('activation_')}, got {len(values)}"
            )
    return result[0], result[1]
