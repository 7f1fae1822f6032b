"""Converts torch state dicts and modules with known parameter names. Does not import torch."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from ..arguments import TAKES, Choice, Flag, Number, Optional, by_name
from ..errors import bad_type, real
from ..state import inner_hint
from .computed_weights import with_weight_norm
from .quantized_weights import with_unpacked_weights
from .systems import KINDS, PROJECTED, SYSTEMS, TORCH, System, UnknownCell
from .weights import Array, Converted, Weights, array, check_shapes, network, with_norm

TAKES["from_torch"] = {
    "kind": Optional(Choice(KINDS)), "eps": Optional(Number(0)), "zoneout": Optional(Number(0, below=1)),
    "batch_first": Optional(Flag()),
}  # fmt: skip

# Keys as in torch.nn: weight_ih_l0_reverse.
_SUFFIXED = re.compile(r"(?P<leaf>\w+?)_l(?P<layer>\d+)(?P<reverse>_reverse)?")
# Keys in nested modules: layers.0.directions.1.cell.weight_ih, or rnn.0.w.weight in
# speechbrain.
_NESTED = re.compile(
    r"(?:(?:(?:lstm_)?layers\.|rnn\.(?=\d+\.(?:[wu]|(?:layer_)?norm|h_init|drop_masks?(?:_te)?)\b))?"
    r"(?P<layer>\d+)\.)?(?:directions\.(?P<direction>[01])\.)?(?:cell\.)?(?P<leaf>.+)"
)
_LNRNN = re.compile(
    r"(gain|bias|gain_ih|gain_hh|gain_c|bias_c|inner_bias_ih|running_mean|running_mean_ih|count)"
    r"_l\d+(_reverse)?"
)


def convert_torch(source: Any, **arguments: Any) -> Converted:
    """Converts the argument of `from_torch`. arguments: its other arguments by name, without `check`."""
    asked = (
        dict.fromkeys((*TAKES["from_torch"], "nonlinearity", "names", "norm")) | {"prefix": ""} | arguments
    )
    asked |= by_name("from_torch", asked)
    kind, prefix, names, norm = (asked[name] for name in ("kind", "prefix", "names", "norm"))
    given = {name: asked[name] for name in ("eps", "nonlinearity", "zoneout", "batch_first")}
    state, module = source, not isinstance(source, Mapping)
    if module:
        if not callable(getattr(source, "state_dict", None)) or not callable(
            getattr(source, "modules", None)
        ):
            raise bad_type(
                "module_or_state_dict", "a torch module, or a mapping of names to tensors or arrays", source
            )
        if prefix:
            raise ValueError(f"prefix must be empty with a module, got {prefix!r}; give the submodule itself")
        state = source.state_dict()
    if names is not None:
        state = _renamed(state, names)
    if prefix:
        if not isinstance(prefix, str):
            raise bad_type("prefix", "a string", prefix)
        state = {name.removeprefix(prefix): v for name, v in state.items() if str(name).startswith(prefix)}
        if not state:
            raise ValueError(f"prefix must start a key, got {prefix!r}; the keys are {_shown(source)}")
    if not state or not all(isinstance(name, str) for name in state):
        raise ValueError(f"a state dict must have names of parameters as keys, got {_shown(state)}")
    inner = inner_hint(state)
    if inner:
        raise ValueError(f"a state dict must have arrays as values, got the keys {_shown(state)}{inner}")
    state = with_unpacked_weights(state, getattr(source, "bidirectional", False) if module else None)
    if not module:
        state = with_weight_norm(state)
    own = (
        kind == "lnrnn"
        or hasattr(source, "lnrnn_arguments")
        or (kind is None and ("peephole_l0" in state or any(map(_LNRNN.fullmatch, state))))
    )
    if norm is not None and not own and not isinstance(norm, str):
        eps = getattr(norm, "eps", None)
        if given["eps"] not in (None, eps):
            raise ValueError(f"eps must be None or norm's eps, got {given['eps']} and norm={norm}")
        given["eps"] = eps
    if module and (own or known_cells(state)):  # otherwise `_cells` raises
        given = _options(source, given)
    if own:
        return _own(source, state, norm, given)
    converted = _cells(state, kind, norm, given, None if module else prefix, source if module else None)
    rate = (
        getattr(source, "dropout", 0.0)
        if module and converted.system in (TORCH.name, PROJECTED.name)
        else 0.0
    )
    if converted.arguments["num_layers"] > 1 and isinstance(rate, (int, float)) and 0 < rate < 1:
        converted.arguments["dropout"] = float(rate)
    return converted


def _renamed(state: Mapping[str, Any], names: Any) -> dict[str, Any]:
    """Returns the state dict with renamed keys. names: {old key: new key}."""
    if not isinstance(names, Mapping) or not all(isinstance(n, str) for pair in names.items() for n in pair):
        raise bad_type("names", "a mapping of the state dict's keys to the names to read them as", names)
    for name in names:
        if name not in state:
            near = get_close_matches(name, list(map(str, state)), 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; the keys are {_shown(state)}"
            raise ValueError(f"names must have keys of the state dict, got {name!r}{hint}")
    keys: dict[str, str] = {}
    for name in state:
        new = names.get(name, name)
        if new in keys:
            raise ValueError(f"names must give different keys, got {new!r} for {keys[new]!r} and {name!r}")
        keys[new] = name
    return {new: state[name] for new, name in keys.items()}


# --- options ------------------------------------------------------------------------------------------------


def _options(module: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Returns {option: value} from a module and the arguments `given`. Raises ValueError if they disagree."""
    by_name: dict[str, set[Any]] = {name: set() for name in given}
    bare = []
    for name, part in module.named_modules():
        if hasattr(part, "normalized_shape"):
            by_name["eps"].add(getattr(part, "eps", None))
            if not hasattr(part, "eps"):
                bare.append(name)
        for option in ("nonlinearity", "zoneout", "batch_first"):
            value = getattr(part, option, None)
            if isinstance(value, (str, bool, int, float)):  # the attribute may be something else
                by_name[option].add(value)
    if bare:
        if given["eps"] is None:
            raise ValueError(
                f"eps must be given for the norms {_shown(bare)}, which have none; it is 0 in fastrnns"
            )
        by_name["eps"].discard(None)
    options = {}
    for name, values in by_name.items():
        if given[name] is not None:
            values = values | {given[name]}
        if len(values) > 1:
            every = sorted(values, key=lambda v: (v is None, v))
            raise ValueError(f"{name} must be the same in module and arguments, got {every}")
        options[name] = next(iter(values), None)
    return options


# --- names --------------------------------------------------------------------------------------------------


def _shown(names: Any) -> str:
    names = sorted(map(str, names))
    return (
        ", ".join(n[:80] for n in names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
        or "none"
    )


def submodule(path: str) -> str:
    """Returns an expression for a submodule: "cells.0" becomes "model.cells[0]"."""
    return "model" + "".join(f"[{n}]" if n.isdigit() else f".{n}" for n in path.split("."))


def _place(name: str) -> tuple[int, int, str]:
    """Splits a parameter's key into (layer, direction, name within the cell)."""
    match = _SUFFIXED.fullmatch(name)
    if match:
        return int(match["layer"]), int(bool(match["reverse"])), match["leaf"]
    match = _NESTED.fullmatch(name)
    if match is None:
        raise ValueError(f"a state dict must have names of parameters as keys, got {name[:80]!r}")
    return int(match["layer"] or 0), int(match["direction"] or 0), match["leaf"]


def _differences(system: System, leaves: set[str]) -> tuple[list[str], list[str]]:
    """Returns (parameters of the system missing in `leaves`, names in `leaves` that the system does not
    know)."""
    required = set(system.shapes)
    if not leaves & set(system.optional):
        required -= set(system.optional)
    return sorted(required - leaves), sorted(leaves - set(system.shapes) - set(system.buffers))


def known_cells(names: Collection[str]) -> bool:
    """Returns whether exactly one System has these parameter names."""
    try:
        leaves = {_place(name)[2] for name in names}
    except ValueError:
        return False
    return len([s for s in SYSTEMS if not any(_differences(s, leaves))]) == 1


def _system(names: Collection[str], kind: str | None, prefix: str | None) -> System:
    """Returns the only system with these parameter names. Raises ValueError if there is none.

    prefix: the text removed from the start of a state dict's keys, or None for a module.
    """
    kind = "fastrnns" if kind == "nemo" else kind
    systems = [s for s in SYSTEMS if kind in (None, s.name.split()[0])]
    leaves = {_place(name)[2] for name in names}
    fitting = [s for s in systems if not any(_differences(s, leaves))]
    if len(fitting) == 1:
        return fitting[0]
    inner = _parts(names, systems)
    shown = [submodule(part[:-1]) if prefix is None else f"prefix={prefix + part!r}" for part in inner]
    hint = f"; from_torch can convert a part of it: give {' or '.join(shown)}" if inner else ""
    error: type[ValueError] = ValueError if inner else UnknownCell
    source, other = ("module" if prefix is None else "state dict"), ""
    if prefix is not None and not inner:
        other = (
            "; for a cell of your own give the module, which can be run, or names= if only names differ "
            "(a matrix for both x and h cannot be split: its shape does not show which columns are for x)"
        )
    near = min(systems, key=lambda s: sum(map(len, _differences(s, leaves))))
    missing, unexpected = _differences(near, leaves)
    if not leaves & set(near.shapes):
        raise error(f"no known cell has the parameter names {_shown(leaves)}{hint}{other}")
    differences = {"missing": missing, "unexpected": unexpected}
    parts = [f"{what} {_shown(names)}" for what, names in differences.items() if names]
    raise error(f"the {source} is nearest to {near.name}'s, but differs: {'; '.join(parts)}{hint}{other}")


def _parts(names: Collection[str], systems: list[System]) -> list[str]:
    """Returns the shortest key prefix of each known cell, or network of such cells."""
    result: list[str] = []
    for prefix in sorted({name[: dot.end()] for name in names for dot in re.finditer(r"\.", name)}, key=len):
        own = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        if prefix.startswith(tuple(result)) or not all(own):
            continue
        leaves = {_place(name)[2] for name in own}
        if any(map(_LNRNN.fullmatch, own)) or any(not any(_differences(s, leaves)) for s in systems):
            result.append(prefix)
    return sorted(result)


def _cells(
    state: Mapping[str, Any], kind: str | None, norm: Any, options: dict[str, Any], prefix: str | None,
    module: Any,
) -> Converted:  # fmt: skip
    parts: dict[tuple[int, int], dict[str, str]] = {}  # {(layer, direction): {name within the cell: key}}
    for name in state:
        layer, direction, leaf = _place(name)
        known = parts.setdefault((layer, direction), {})
        if leaf in known:
            raise ValueError(f"keys must name different parameters, got {known[leaf]} and {name} for {leaf}")
        known[leaf] = name
    system = _system(state, kind, prefix)
    leaves = [leaf for leaf in system.shapes if any(leaf in part for part in parts.values())]
    directions = 1 + max(direction for _, direction in parts)
    layers = 1 + max(layer for layer, _ in parts)
    if layers > len(state):
        raise ValueError(
            f"a state dict must have parameters of all layers, got layer {layers - 1} but only {len(state)} "
            f"keys: {_shown(state)}"
        )
    places = [(k, d) for k in range(layers) for d in range(directions)]
    missing = [f"{leaf} of layer {k}" + f", direction {d}" * (directions > 1)
               for k, d in places for leaf in leaves if leaf not in parts.get((k, d), {})]  # fmt: skip
    if missing:
        raise ValueError(f"the state dict ({system.name}) is incomplete: missing {_shown(missing)}")
    for name in ("eps", "nonlinearity", "zoneout"):
        if (
            options[name] is not None
            and name not in system.options
            and not (name == "eps" and norm is not None)
        ):
            raise ValueError(f"{name} must be None for a cell of {system.name}, got {options[name]!r}")
    for name, value in ({} if system.settings is None else system.settings(module)).items():
        if options.get(name) not in (None, value):
            raise ValueError(f"{name} must be the module's {value!r}, got {options[name]!r}")
        options[name] = value
    cells: list[Weights] = []
    for place in places:
        keys = {leaf: key for leaf, key in parts[place].items() if leaf not in system.buffers}
        arrays: dict[str, Array] = {leaf: array(key, state[key]) for leaf, key in keys.items()}
        check_shapes(arrays, system.shapes, keys)
        cell = system.convert(arrays, options)
        cells.append(cell if norm is None else with_norm(cell, norm, system.name))
    batch_first = system.batch_first if options["batch_first"] is None else options["batch_first"]
    stack = [cells[k * directions : (k + 1) * directions] for k in range(layers)]
    if options.get("bidirectional"):  # directions share weights
        stack = [layer * 2 for layer in stack]
        return replace(network(stack, batch_first, system.name), last_states=False)
    return network(stack, batch_first, system.name)


# --- lnrnn's own names --------------------------------------------------------------------------------------


def _own(source: Any, state: Mapping[str, Any], norm: Any, options: dict[str, Any]) -> Converted:
    """Converts a module of lnrnn.torch, or a state dict with lnrnn's names. load_state_dict checks shapes."""
    for name in ("eps", "zoneout"):
        if options[name] is not None and isinstance(source, Mapping):
            raise ValueError(f"{name} must be None for lnrnn's own parameters, got {options[name]!r}")
    arrays = {}
    for name, value in state.items():
        if name.startswith("count"):
            arrays[name] = real(name, value.cpu() if hasattr(value, "cpu") else value)
        else:
            arrays[name] = array(name, value)
    if hasattr(source, "lnrnn_arguments"):
        if norm is not None:
            raise ValueError(f"norm must be 'auto' with a module, which has its own, got {norm!r}")
        cell, arguments = source.lnrnn_arguments()
        return Converted(cell, arguments, arrays, "lnrnn")
    if norm is None and any(map(_LNRNN.fullmatch, state)):
        raise ValueError(
            "norm must be given for a state dict with norms, because it does not show their places and eps; "
            "or give the module; the keys are " + _shown(state)
        )
    system = PROJECTED if "weight_hr_l0" in arrays else TORCH
    weights = [leaf for leaf in system.shapes if leaf.startswith("weight")]
    plain = {leaf: arrays.get(f"{leaf}_l0", np.empty(0)) for leaf in weights}
    check_shapes(plain, {leaf: system.shapes[leaf] for leaf in plain})
    like = system.convert(plain, options)
    arguments = {
        "input_size": like.input_size,
        "hidden_size": like.hidden_size,
        "num_layers": 1 + max(_place(name)[0] for name in state),
        "norm": norm,
        "bias": any(name.startswith("bias") for name in state),
        "batch_first": bool(options["batch_first"]),
        "bidirectional": any(name.endswith("_reverse") for name in state),
    }
    others = {"nonlinearity": like.nonlinearity, "proj_size": like.proj_size,
              "peepholes": "peephole_l0" in arrays}  # fmt: skip
    arguments |= {name: value for name, value in others.items() if value}
    return Converted(like.cell, arguments, arrays, "lnrnn")
