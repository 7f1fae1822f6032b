"""Unpacks weights of torch.ao's dynamically quantized LSTM, GRU and cells to parameters of torch.nn.

Packed weights have pickle's methods, which return their tensors. So torch is not imported here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Matches the packed weights of one layer and direction, or of a cell.
_PACKED = re.compile(r"(?P<path>.*?)(?:_all_weight_values\.(?P<n>\d+)\.param|_packed_weight_(?P<side>ih|hh))")


def with_unpacked_weights(state: Mapping[str, Any], bidirectional: bool | None) -> dict[str, Any]:
    """Returns a state dict with plain names such as weight_ih_l0 in place of packed weights.

    Values are quantized tensors, or float32 tensors for dtype torch.float16. bidirectional: None if unknown;
    then the shape of the second weight_ih decides.
    """
    result: dict[str, Any] = {}
    layers: dict[str, dict[int, dict[str, Any]]] = {}  # by path, number of the weight, name
    for name, value in state.items():
        match = _PACKED.fullmatch(name) if isinstance(name, str) else None
        if match is None or type(value).__name__ != "ScriptObject":
            result[name] = value
        elif match["side"]:
            result |= _side(match["path"], match["side"], value.__getstate__()[0])
        else:
            _, *_, packed = value.__getstate__()[0]  # packing, biases, numbers, packed weights
            input, hidden = (each.__getstate__()[0] for each in packed)
            named = _side("", "ih", input) | _side("", "hh", hidden)
            layers.setdefault(match["path"], {})[int(match["n"])] = named
    for path, numbered in layers.items():
        two = _bidirectional(numbered, path) if bidirectional is None else bidirectional
        for n, named in numbered.items():
            end = f"_l{n // 2}{'_reverse' * (n % 2)}" if two else f"_l{n}"
            result |= {path + name + end: value for name, value in named.items()}
    return result


def _side(path: str, end: str, tensors: Any) -> dict[str, Any]:
    """Returns {name: tensor} of a weight and its bias. tensors: (weight, bias or None). end: "ih" or "hh"."""
    weight, bias = tensors
    return {f"{path}weight_{end}": weight} | ({} if bias is None else {f"{path}bias_{end}": bias})


def _bidirectional(numbered: Mapping[int, Mapping[str, Any]], path: str) -> bool:
    """Returns whether the second of several packed weights is the first layer's reverse direction."""
    if 1 not in numbered or 0 not in numbered:
        return False
    inputs, hidden = numbered[0]["weight_ih"].shape[1], numbered[0]["weight_hh"].shape[1]
    if 2 in numbered:
        return bool(numbered[2]["weight_ih"].shape[1] == 2 * hidden)
    if inputs == hidden and not path:
        raise ValueError(
            "module_or_state_dict must be the module, because these packed weights may be two layers or two "
            f"directions, got a state dict of {inputs} inputs and {hidden} units"
        )
    return bool(numbered[1]["weight_ih"].shape[1] == inputs)
