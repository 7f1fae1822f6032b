"""What every importer ends in: weights with lnrnn's parameter names, put together into one network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import bad_type, real
from ..rnn.architecture import suffixes, vectors
from ..rnn.cells import CELLS
from ..rnn.models import CLASSES, Model
from ..rnn.specs import LayerNormSpec, norm_spec

Array = np.ndarray


@dataclass(frozen=True)
class Weights:
    """One layer in one direction, in lnrnn's terms.

    cell: the name of lnrnn's class. parameters: by lnrnn's names without suffix, gates in lnrnn's order.
    nonlinearity: of an RNN; None else. zoneout: as `Network.zoneout` takes it.
    """

    cell: str
    norm: LayerNormSpec | None
    bias: bool
    parameters: dict[str, Array]
    nonlinearity: str | None = None
    zoneout: float | tuple[float, float] = 0.0

    @property
    def hidden_size(self) -> int:
        return int(self.parameters["weight_hh"].shape[1])

    @property
    def input_size(self) -> int:
        return int(self.parameters["weight_ih"].shape[1])


def with_norm(weights: Weights, norm: Any, system: str) -> Weights:
    """The same parameters inside the norm that was given, where they fit it. ValueError says why they do
    not. The name "layer" says that there are layer norms, and not where: they stay."""
    if isinstance(norm, str) and norm == "layer" and weights.norm is not None:
        return weights
    spec = norm_spec(norm, CELLS[weights.cell])
    if not isinstance(spec, LayerNormSpec) or weights.norm is None:
        has = "no norm" if weights.norm is None else "layer norms"
        raise ValueError(
            f"norm={norm!r} does not fit: by their names these are parameters of {system}, "
            f"which has {has} inside"
        )
    wanted = set(vectors(CELLS[weights.cell], weights.hidden_size, spec, weights.bias))
    found = set(weights.parameters) - {"weight_ih", "weight_hh"}
    if wanted != found:
        differ = (("lack", wanted - found), ("also have", found - wanted))
        parts = " and ".join(f"{what} {', '.join(sorted(names))}" for what, names in differ if names)
        raise ValueError(
            f"norm={spec} does not fit the parameters of {system}, which in lnrnn's terms {parts}"
        )
    return replace(weights, norm=spec)


@dataclass(frozen=True)
class Converted:
    """A network before it is made: lnrnn's class by name, the arguments of its constructor, its state dict.
    system: whose parameters it was made of. zoneout: as `Network.zoneout` takes it."""

    cell: str
    arguments: dict[str, Any]
    state: dict[str, Array]
    system: str = ""
    zoneout: float | tuple[float, float] = 0.0

    def model(self) -> Model:
        model = CLASSES[self.cell](**self.arguments)
        model.load_state_dict(self.state)
        model.zoneout = self.zoneout
        return model


def network(layers: Sequence[Sequence[Weights]], batch_first: bool, system: str = "") -> Converted:
    """layers[k][d]: layer k in direction d (0, and 1 if there are two). system: whose parameters these
    were."""
    first = layers[0][0]
    directions = len(layers[0])
    for k, layer in enumerate(layers):
        wide = first.input_size if k == 0 else directions * first.hidden_size
        for weights in layer:
            for what in ("cell", "norm", "bias", "nonlinearity", "hidden_size"):
                mine, theirs = getattr(weights, what), getattr(first, what)
                if mine != theirs:
                    raise ValueError(
                        f"all layers must have the same {what}, got {theirs} and, in layer {k}, {mine}"
                    )
            if weights.input_size != wide:
                raise ValueError(
                    f"layer {k} must take {wide} inputs, its input weights take {weights.input_size}"
                )
    arguments: dict[str, Any] = {
        "input_size": first.input_size,
        "hidden_size": first.hidden_size,
        "num_layers": len(layers),
        "norm": first.norm,
        "bias": first.bias,
        "batch_first": batch_first,
        "bidirectional": directions == 2,
    }
    if first.nonlinearity is not None:
        arguments["nonlinearity"] = first.nonlinearity
    parts = [weights.parameters for layer in layers for weights in layer]
    ends = suffixes(len(layers), directions == 2)
    state = {name + end: v for own, end in zip(parts, ends, strict=True) for name, v in own.items()}
    return Converted(first.cell, arguments, state, system, first.zoneout)


def array(name: str, value: Any) -> Array:
    """A parameter as float64 or float32 NumPy: also a torch tensor on any device, of any floating dtype, with
    a gradient. Nothing of torch is imported for it."""
    if hasattr(value, "detach"):
        if getattr(value, "is_meta", False):
            raise ValueError(f"{name} is a meta tensor, without numbers: load the weights first")
        value = value.detach().cpu()
        if "bfloat16" in str(value.dtype):  # NumPy has none
            value = value.float()
    found = real(name, value)
    if found.dtype.kind not in "f" and found.dtype.name != "bfloat16":
        raise bad_type(name, "an array of floating-point numbers", found)
    if found.dtype.itemsize > 4 and found.size:
        largest = np.abs(found[np.isfinite(found)]).max(initial=0)
        if largest > np.finfo(np.float32).max:
            raise ValueError(f"{name} must be in float32's range, got {largest:.3g}")
    return found.astype(np.result_type(np.float32, found.dtype) if found.dtype.kind == "f" else np.float32)


def check_shapes(
    arrays: dict[str, Array], shapes: dict[str, tuple[str, ...]], where: str = ""
) -> dict[str, int]:
    """Compares arrays with shapes written as ("4H", "I"). A letter stands for the size where it first stands
    alone.

    -> the size of each letter. ValueError names the array (where: what comes before its name).
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
            raise ValueError(f"{where}{name} must be of shape ({written}) with {known}, got {value.shape}")
    return sizes


def reordered(value: Array, theirs: str, ours: str, axis: int = 0) -> Array:
    """The gates along an axis, from their order to ours: reordered(w, "igfo", "ifgo")."""
    parts = np.split(value, len(theirs), axis)
    return np.concatenate([parts[theirs.index(gate)] for gate in ours], axis)
