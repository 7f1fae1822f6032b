"""The results of all importers: `Weights` of one layer, and `Converted` networks, with lnrnn's names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import bad_type, message, real
from ..rnn.architecture import Architecture, suffixes, vectors
from ..rnn.cells import CELLS
from ..rnn.models import CLASSES, Model
from ..rnn.quantized import dequantized
from ..rnn.settings import made_of
from ..rnn.snapshot import Snapshot
from ..rnn.specs import LayerNormSpec, norm_spec
from ..rnn.statistics import StepStatistics

Array = np.ndarray


@dataclass(frozen=True)
class Weights:
    """The parameters and options of one layer and direction.

    cell: the name of lnrnn's class. parameters: by lnrnn's names without suffix, gates in lnrnn's order.
    nonlinearity: None for tanh in a gated cell. zoneout: a value for `Network.zoneout`. reset_after: a GRU's.
    num_heads: the number of diagonal blocks of weight_hh. gate_activation: an argument of LSTM and GRU.
    """

    cell: str
    norm: LayerNormSpec | None
    bias: bool
    parameters: dict[str, Array]
    nonlinearity: str | None = None
    zoneout: float | tuple[float, float] = 0.0
    reset_after: bool = True
    num_heads: int = 1
    gate_activation: str = "sigmoid"

    @property
    def hidden_size(self) -> int:
        of_state = self.parameters.get("weight_hr", self.parameters["weight_hh"])
        return int(of_state.shape[1]) * self.num_heads

    @property
    def proj_size(self) -> int:
        return int(self.parameters["weight_hr"].shape[0]) if "weight_hr" in self.parameters else 0

    @property
    def peepholes(self) -> bool:
        return "peephole" in self.parameters

    @property
    def input_size(self) -> int:
        return int(self.parameters["weight_ih"].shape[1])


def with_norm(weights: Weights, norm: Any, system: str) -> Weights:
    """Returns `weights` with another norm. Raises ValueError if the norm needs other parameters.

    norm "layer" keeps the norm of `weights`. system: the source's name for messages.
    """
    if isinstance(norm, str) and norm == "layer" and weights.norm is not None:
        return weights
    spec = norm_spec(norm, CELLS[weights.cell])
    if not isinstance(spec, LayerNormSpec) or weights.norm is None:
        has = "no norm" if weights.norm is None else "layer norms"
        raise ValueError(
            f"norm must fit the parameters, got {norm!r} for parameters of {system}, which has {has} inside"
        )
    wanted = set(vectors(CELLS[weights.cell], weights.hidden_size, spec, weights.bias))
    names = set(weights.parameters) - {"weight_ih", "weight_hh", "weight_hr", "peephole"}
    if wanted != names:
        differ = (("lack", wanted - names), ("also have", names - wanted))
        parts = " and ".join(f"{verb} {', '.join(sorted(some))}" for verb, some in differ if some)
        raise ValueError(
            f"norm must fit the parameters, got {spec} for parameters of {system}, which in lnrnn's names "
            f"{parts}"
        )
    return replace(weights, norm=spec)


def with_functions(weights: Weights, nonlinearity: str | None, factor: float | None) -> Weights:
    """Returns weights with a nonlinearity, and with gates hard_sigmoid = clip(factor a / 6 + 1/2).

    lnrnn's hard sigmoid has no factor, so the gates' weights are scaled, but not the candidate's (g or n).
    factor: None keeps sigmoid.
    """
    own, H, weights = weights.parameters, weights.hidden_size, replace(weights, nonlinearity=nonlinearity)
    if factor is None:
        return weights
    if factor != 1:
        rows = np.full(len(own["weight_hh"]), factor)
        rows[2 * H : 3 * H] = 1  # lnrnn's order is i, f, g, o or r, z, n
        factors = {name: factor if name == "peephole" else rows for name in own}
        own = {name: (v.T * factors[name]).T.astype(v.dtype) for name, v in own.items()}
    return replace(weights, parameters=own, gate_activation="hard_sigmoid")


@dataclass(frozen=True)
class Converted:
    """A converted network: the name of lnrnn's class, its constructor's arguments, and the state dict.

    system: the implementation that the parameters come from. zoneout: a value for `Network.zoneout`.
    last_states: the module returns the same last states as the network; speechbrain's bidirectional modules
    do not.
    """

    cell: str
    arguments: dict[str, Any]
    state: dict[str, Array]
    system: str = ""
    zoneout: float | tuple[float, float] = 0.0
    last_states: bool = True

    def model(self) -> Model:
        arguments = dict(self.arguments)
        rate = arguments.pop("dropout", 0.0)
        made = Architecture.checked(CELLS[self.cell], **arguments)
        zeros = {name: np.broadcast_to(np.float32(0), shape) for name, shape in made.shapes.items()}
        statistics = {end: StepStatistics.empty(made.sides, 0) for end in made.suffixes if made.sides}
        overrun = made.batch_norm.overrun if made.batch_norm else None
        # The constructor would draw random parameters, which takes longer than all else here.
        model = made_of(
            CLASSES[self.cell], Snapshot(made, zeros, statistics, overrun, "float32", dropout=rate)
        )
        model.load_state_dict(self.state)
        model.zoneout = self.zoneout
        return model

    def digest(self) -> bytes:
        """Returns a hash of names, dtypes, shapes and contents of the arrays."""
        result = hashlib.blake2b(digest_size=16)
        for name, value in self.state.items():
            result.update(f"{name} {value.dtype} {value.shape} ".encode())
            result.update(np.ascontiguousarray(value).data)
        return result.digest()


def network(
    layers: Sequence[Sequence[Weights]], batch_first: bool, system: str = "", reverse: bool = False
) -> Converted:
    """Joins layers[k][d], the weights of layer k and direction d, to a network. system: see Converted.

    reverse: the network's argument, for layers of one direction.
    """
    first = layers[0][0]
    directions = len(layers[0])
    for k, layer in enumerate(layers):
        if len(layer) != directions:
            counts = f"{directions} in layer 0 and {len(layer)} in layer {k}"
            raise ValueError(f"all layers must have the same number of directions, got {counts}")
        wide = first.input_size if k == 0 else directions * (first.proj_size or first.hidden_size)
        for weights in layer:
            for name in (
                "cell", "norm", "bias", "nonlinearity", "reset_after", "num_heads", "gate_activation",
                "hidden_size", "proj_size", "peepholes",
            ):  # fmt: skip
                mine, theirs = getattr(weights, name), getattr(first, name)
                if mine != theirs:
                    raise ValueError(
                        f"all layers must have the same {name}, got {theirs} in layer 0, {mine} in layer {k}"
                    )
            if weights.input_size != wide:
                raise ValueError(f"layer {k} must take {wide} inputs, got weights for {weights.input_size}")
    arguments: dict[str, Any] = {
        "input_size": first.input_size,
        "hidden_size": first.hidden_size,
        "num_layers": len(layers),
        "norm": first.norm,
        "bias": first.bias,
        "batch_first": batch_first,
        "bidirectional": directions == 2,
    }
    others = {"reverse": reverse, "nonlinearity": first.nonlinearity, "proj_size": first.proj_size,
              "peepholes": first.peepholes}  # fmt: skip
    arguments |= {name: value for name, value in others.items() if value}
    if not first.reset_after:
        arguments["reset_after"] = False
    if first.num_heads > 1 or CELLS[first.cell].parts > 1:
        arguments["num_heads"] = first.num_heads
    if first.gate_activation != "sigmoid":
        if "gate_activation" not in CELLS[first.cell].options or first.norm is not None:
            cell = f"an {first.cell} with {'a norm' if first.norm is not None else 'norm=None'}"
            raise ValueError(f"the gates of {cell} must be sigmoid, got {first.gate_activation}")
        arguments["gate_activation"] = first.gate_activation
    parts = [weights.parameters for layer in layers for weights in layer]
    ends = suffixes(len(layers), directions == 2)
    state = {name + end: v for own, end in zip(parts, ends, strict=True) for name, v in own.items()}
    return Converted(first.cell, arguments, state, system, first.zoneout)


def array(name: str, value: Any) -> Array:
    """Returns a parameter as a float64 or float32 array. name: for messages.

    A torch tensor may have any device and floating dtype, require gradients, or be quantized. torch is not
    imported. Quantized weights may also be a triple for `quantized.dequantized`.
    """
    if getattr(value, "is_quantized", False):
        value = _triple(name, value)
    value = dequantized(name, value)
    if hasattr(value, "detach"):
        if getattr(value, "is_meta", False):
            raise ValueError(f"{name} must have numbers, got a meta tensor; load the weights first")
        value = value.detach().cpu()
        if "bfloat16" in str(value.dtype):  # NumPy has no bfloat16
            value = value.float()
    return floats(name, real(name, value))


def floats(name: str, value: Array) -> Array:
    """Returns a floating-point array as float64 or float32. Raises TypeError or ValueError."""
    if value.dtype.kind != "f" and value.dtype.name != "bfloat16":
        raise bad_type(name, "an array of floating-point numbers", value)
    if value.dtype.itemsize > 4 and value.size:
        largest = np.abs(value[np.isfinite(value)]).max(initial=0)
        if largest > np.finfo(np.float32).max:
            raise ValueError(f"{name} must be in float32's range, got {largest:.3g}")
    return value.astype(np.result_type(np.float32, value.dtype) if value.dtype.kind == "f" else np.float32)


def _triple(name: str, tensor: Any) -> tuple[Array, Any, Any]:
    """Returns (q, scale, zero point) of a quantized tensor. torch's dequantize() would round differently."""
    q = tensor.detach().cpu().int_repr().numpy()
    if "per_channel" not in str(tensor.qscheme()):
        return q, tensor.q_scale(), tensor.q_zero_point()
    if tensor.q_per_channel_axis() != 0:
        axis = tensor.q_per_channel_axis()
        raise ValueError(message(f"the quantisation of {name}", "along axis 0", f"axis {axis}"))
    zeros = tensor.q_per_channel_zero_points().numpy()
    return q, tensor.q_per_channel_scales().numpy(), zeros.astype(np.int64)


def check_shapes(
    arrays: dict[str, Array], shapes: dict[str, tuple[str, ...]], named: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Checks arrays against symbolic shapes such as ("4H", "I"). Returns the size of each letter.

    A letter's size comes from the first axis named by this letter alone. named: the arrays' names in
    messages, or None.
    """
    sizes: dict[str, int] = {}
    for name, dims in shapes.items():
        if name in arrays and arrays[name].ndim == len(dims):
            for dim, size in zip(dims, arrays[name].shape, strict=True):
                if dim.isalpha():
                    sizes.setdefault(dim, size)
    for name, value in arrays.items():
        dims = shapes[name]
        wanted = tuple(int(d) if d.isdigit() else int(d[:-1] or 1) * sizes.get(d[-1], 0) for d in dims)
        if value.shape != wanted or 0 in wanted:
            written = ", ".join(dims)
            known = ", ".join(f"{letter} = {size}" for letter, size in sizes.items())
            name = (named or {}).get(name, name)
            raise ValueError(f"{name} must be of shape ({written}) with {known}, got {value.shape}")
    return sizes


def reordered(value: Array, theirs: str, ours: str, axis: int = 0) -> Array:
    """Reorders the gates along an axis: reordered(w, "igfo", "ifgo") swaps the second and third block."""
    parts = np.split(value, len(theirs), axis)
    return np.concatenate([parts[theirs.index(gate)] for gate in ours], axis)
