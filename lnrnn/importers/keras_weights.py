"""Converts weights of Keras and TensorFlow Addons: layers, arrays by name, or lists of get_weights().

This file does not import Keras.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from ..arguments import TAKES, Choice, Flag, Instance, Number, Optional, by_name
from ..errors import bad_type, bad_value, message
from ..rnn.cells import NONLINEARITIES
from ..rnn.specs import LayerNormSpec
from .keras_files import stored_layers
from .weights import Array, Converted, Weights, array, check_shapes, network, reordered, with_functions

RecurrentActivation = Literal["sigmoid", "hard_sigmoid", "keras2_hard_sigmoid"]
KERAS_2: RecurrentActivation = "keras2_hard_sigmoid"
Arrays = Mapping[str, Array]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """A cell class of Keras.

    shapes: by name, in the order of get_weights(), for check_shapes; "bias" may be absent. eps: the default
    eps of its norms, or None without norms. epsilon: the key of eps in the cell's configuration.
    """

    shapes: dict[str, tuple[str, ...]]
    convert: Callable[[Arrays, Options], Weights]
    eps: float | None = None
    epsilon: str = ""

    def fits(self, names: set[str]) -> bool:
        return names | {"bias"} == set(self.shapes)


def _biases(p: Arrays) -> dict[str, Array]:
    """Returns torch's bias_ih and bias_hh from Keras' single bias. bias_hh is 0."""
    return {"bias_ih": p["bias"], "bias_hh": np.zeros_like(p["bias"])} if "bias" in p else {}


def _weights(p: Arrays) -> dict[str, Array]:
    """Returns torch's matrices (G * H, I) and (G * H, H). Keras stores them transposed."""
    return {"weight_ih": p["kernel"].T, "weight_hh": p["recurrent_kernel"].T}


def _lstm(p: Arrays, options: Options) -> Weights:
    ours = _weights(p) | _biases(p)  # Keras' order i, f, c, o is torch's i, f, g, o
    return _gated(Weights("LSTM", None, "bias" in p, ours), options)


def _gru(p: Arrays, options: Options) -> Weights:
    reset_after = options["reset_after"]
    if "bias" in p:
        shown = p["bias"].ndim == 2
        if reset_after is not None and reset_after != shown:
            raise ValueError(
                f"reset_after must be {shown} for a bias of shape {p['bias'].shape}, got {reset_after}"
            )
        reset_after = shown
    if reset_after is None:
        raise ValueError(
            "reset_after must be given for a GRU without bias, whose weights do not show its equation"
        )
    ours = {name: reordered(w, "zrn", "rzn") for name, w in _weights(p).items()}
    if "bias" in p:
        both = p["bias"] if reset_after else (p["bias"], np.zeros_like(p["bias"]))
        ours |= {
            name: reordered(b, "zrn", "rzn") for name, b in zip(("bias_ih", "bias_hh"), both, strict=True)
        }
    return _gated(Weights("GRU", None, "bias" in p, ours, reset_after=reset_after), options)


def _gated(weights: Weights, options: Options) -> Weights:
    """Returns an LSTM or GRU with the activations that `options` name."""
    factors = {"hard_sigmoid": 1.0, KERAS_2: 1.2}  # clip(0.2 a + 1/2) is clip(1.2 a / 6 + 1/2)
    f = None if options["nonlinearity"] == "tanh" else options["nonlinearity"]
    return with_functions(weights, f, factors.get(options["recurrent_activation"]))


def _nonlinearity(options: Options) -> str:
    if options["nonlinearity"] is None:
        raise ValueError(
            "nonlinearity must be given for the weights of an RNN, got None; or give the layer itself"
        )
    return str(options["nonlinearity"])


def _simple_rnn(p: Arrays, options: Options) -> Weights:
    return Weights("RNN", None, "bias" in p, _weights(p) | _biases(p), _nonlinearity(options))


def _layer_norm_lstm(p: Arrays, options: Options) -> Weights:
    # The gates are LN(x W) + LN(h R) + bias. The next step reads the normalised c.
    bias = p.get("bias", 0)
    ours = _weights(p) | {
        "gain_ih": p["kernel_norm/gamma"], "bias_ih": p["kernel_norm/beta"] + bias,
        "gain_hh": p["recurrent_norm/gamma"], "bias_hh": p["recurrent_norm/beta"],
        "gain_c": p["state_norm/gamma"], "bias_c": p["state_norm/beta"],
    }  # fmt: skip
    return Weights("LSTM", LayerNormSpec("split", "carry", options["eps"]), True, ours)


def _layer_norm_simple_rnn(p: Arrays, options: Options) -> Weights:
    ours = _weights(p) | {"gain": p["layernorm/gamma"]}
    if "bias" in p:
        ours["bias"] = p["bias"]
    return Weights(
        "RNN", LayerNormSpec("joint", eps=options["eps"]), "bias" in p, ours, _nonlinearity(options)
    )


def _shapes(gates: str, **more: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return {"kernel": ("I", gates), "recurrent_kernel": ("H", gates), "bias": (gates,), **more}


_PER_SIDE = {f"{side}_norm/{part}": ("H" if side == "state" else "4H",)
             for side in ("kernel", "recurrent", "state") for part in ("gamma", "beta")}  # fmt: skip
LayerName = Literal["SimpleRNN", "LSTM", "GRU", "LayerNormLSTMCell", "LayerNormSimpleRNNCell"]
KINDS: dict[LayerName, Kind] = {
    "SimpleRNN": Kind(_shapes("H"), _simple_rnn),
    "LSTM": Kind(_shapes("4H"), _lstm),
    "GRU": Kind(_shapes("3H"), _gru),
    "LayerNormLSTMCell": Kind(_shapes("4H", **_PER_SIDE), _layer_norm_lstm, 1e-3, "norm_epsilon"),
    "LayerNormSimpleRNNCell": Kind(
        _shapes("H", **{"layernorm/gamma": ("H",)}), _layer_norm_simple_rnn, 1e-5, "layernorm_epsilon"
    ),
}
TAKES["from_keras"] = {
    "kind": Optional(Choice(tuple(KINDS))), "bidirectional": Flag(), "reset_after": Optional(Flag()),
    "eps": Optional(Number(0)), "batch_first": Optional(Flag()),
    "recurrent_activation": Optional(Choice(get_args(RecurrentActivation))),
    "layer": Optional(Instance((str, list, tuple), "a str or a list of str or None")),
}  # fmt: skip


def convert_keras(source: Any, **given: Any) -> Converted:
    """Converts the argument of `from_keras`. given: its other arguments, by name."""
    options: dict[str, Any] = dict.fromkeys(TAKES["from_keras"])
    options |= {"bidirectional": False, "nonlinearity": None} | given
    options |= by_name("from_keras", options)
    if isinstance(source, (str, os.PathLike)):
        source = stored_layers(source, options["layer"])
    elif options["layer"] is not None:
        raise bad_value("layer", "None unless a path is given", options["layer"])
    several = isinstance(source, (list, tuple)) and any(
        isinstance(part, (list, tuple, Mapping)) or hasattr(part, "get_weights") for part in source
    )
    stack = source if several else [source]
    layers: list[list[Weights]] = []
    for layer in stack:
        layers += _layer(layer, options, options["bidirectional"])
    batch_first = options["batch_first"]
    if batch_first is None:
        batch_first = not any(getattr(layer, "time_major", False) for layer in stack)
    return network(layers, batch_first, reverse=_reads_backwards(stack))


def _reads_backwards(stack: Sequence[Any]) -> bool:
    """Returns whether the layers read sequences from the last step.

    A layer with go_backwards returns outputs in reverse order, so later layers also read from the end.
    """
    first, *others = (bool(getattr(layer, "go_backwards", False)) for layer in stack)
    if any(others):
        raise ValueError(
            "go_backwards must be False except in layer 0, which sets the direction of the whole network, "
            f"got True in layer {others.index(True) + 1}"
        )
    return first


def _layer(source: Any, options: Options, bidirectional: bool) -> list[list[Weights]]:
    """Returns weights as result[layer][direction]. A source with StackedRNNCells has several layers."""
    if callable(getattr(source, "get_weights", None)):
        return _from_layer(source, options)
    if isinstance(source, Mapping):
        return [[_cell(part, options) for part in _by_direction(_leaves(source), bidirectional)]]
    if not isinstance(source, (list, tuple)):
        raise bad_type(
            "arrays_or_layer", "a Keras layer, a list of arrays or a mapping of names to arrays", source
        )
    arrays = [array(f"weights[{i}]", w) for i, w in enumerate(source)]
    if bidirectional and len(arrays) % 2:
        raise ValueError(f"the weights of two directions must be even in number, got {len(arrays)} arrays")
    half = len(arrays) // 2 if bidirectional else len(arrays)
    parts = [arrays[:half], arrays[half:]] if bidirectional else [arrays]
    return [[_cell(_named(part, options["kind"]), options) for part in parts]]


# --- layers -------------------------------------------------------------------------------------------------


def _from_layer(layer: Any, options: Options) -> list[list[Weights]]:
    if hasattr(layer, "forward_layer"):
        if layer.merge_mode != "concat":
            raise ValueError(f"merge_mode must be 'concat', as in lnrnn, got {layer.merge_mode!r}")
        forward, backward = (_cells_of(part, options, reverse) for part, reverse
                             in ((layer.forward_layer, False), (layer.backward_layer, True)))  # fmt: skip
        if len(forward) != 1 or len(backward) != 1:
            raise ValueError(
                "a Bidirectional layer must have one cell in each direction, got StackedRNNCells, which "
                "concatenates the directions only after the last cell"
            )
        return [[forward[0], backward[0]]]
    return [[cell] for cell in _cells_of(layer, options, None)]


def _cells_of(layer: Any, options: Options, reverse: bool | None) -> list[Weights]:
    """Returns the weights of a layer's cells: several for StackedRNNCells.

    reverse: whether the layer is the second of a Bidirectional; None outside of a Bidirectional.
    """
    if reverse is not None and bool(getattr(layer, "go_backwards", False)) != reverse:
        raise ValueError(
            "go_backwards must be False in the first of two directions and True in the second, got "
            f"{not reverse}"
        )
    cell = getattr(layer, "cell", layer)
    return [_from_cell(part, options) for part in getattr(cell, "cells", [cell])]


def _from_cell(cell: Any, options: Options) -> Weights:
    name = type(cell).__name__.removeprefix("CuDNN")
    kind = next((k for k in KINDS if name in (k, f"{k}Cell")), None)
    if kind is None:
        inner = [f"model.layers[{k}]" for k, each in enumerate(getattr(cell, "layers", ()))
                 if hasattr(each, "cell") or hasattr(each, "forward_layer")]  # fmt: skip
        hint = f"; give its recurrent layers: [{', '.join(inner)}]" if inner else ""
        raise ValueError(f"lnrnn knows no cell {name} of {type(cell).__module__}{hint}")
    config, weights = cell.get_config(), cell.get_weights()
    if name != type(cell).__name__:  # Keras 2's layers for CuDNN have fixed functions
        config = {"activation": "tanh", "recurrent_activation": "sigmoid", **config}
    if not weights:
        do = "call it on an input, or layer.build((None, None, input_size))"
        raise ValueError(message("a layer", "built", f"{name} without weights", do))
    own = {
        "kind": kind,
        "reset_after": config.get("reset_after"),
        "eps": config.get(KINDS[kind].epsilon),
        "nonlinearity": None,
        "recurrent_activation": None,
    }
    activation, recurrent = config.get("activation"), config.get("recurrent_activation")
    allowed = ("sigmoid",) if KINDS[kind].eps else ("sigmoid", "hard_sigmoid")
    candidate = "identity" if activation == "linear" else activation
    known = NONLINEARITIES if kind == "GRU" else ("tanh",)
    if "RNN" in kind:
        own["nonlinearity"] = candidate
    elif candidate not in known or recurrent not in allowed:
        raise ValueError(
            f"activation must be {' or '.join(map(repr, known))} and recurrent_activation "
            f"{' or '.join(map(repr, allowed))}, as in lnrnn's {kind}, got {activation!r} and {recurrent!r}"
        )
    elif kind in ("LSTM", "GRU"):
        own["recurrent_activation"] = _definition(cell, recurrent, options["recurrent_activation"])
        own["nonlinearity"] = None if candidate == "tanh" else candidate
    for option, value in own.items():
        if options[option] is not None and options[option] != value:
            raise ValueError(f"{option} must be the layer's {value!r}, got {options[option]!r}")
    arrays = [array(f"weights[{i}]", w) for i, w in enumerate(weights)]
    return _cell(_named(arrays, kind), own)


def _definition(cell: Any, recurrent: str, given: str | None) -> str:
    """Returns the name of the gates' activation: Keras 2 and Keras 3 have different hard sigmoids."""
    if recurrent == "sigmoid":
        return recurrent
    version = getattr(cell, "version", None)  # set for layers of a file
    if version is not None:
        return "hard_sigmoid" if int(version.partition(".")[0]) > 2 else KERAS_2
    for cls in type(cell).__mro__:
        package = cls.__module__.partition(".")[0]
        if package in ("keras", "tf_keras", "tensorflow"):
            new = package == "keras" and int(sys.modules[package].__version__.partition(".")[0]) > 2
            return "hard_sigmoid" if new else KERAS_2
    if given in ("hard_sigmoid", KERAS_2):
        return given
    raise ValueError(
        "recurrent_activation must be given for a cell with 'hard_sigmoid' of unknown origin: 'hard_sigmoid' "
        f"(of Keras 3) or {KERAS_2!r}, got {given!r}"
    )


# --- names --------------------------------------------------------------------------------------------------


def _named(arrays: Sequence[Array], kind: str | None) -> dict[str, Array]:
    """Returns a cell's weights by name. arrays: in the order of get_weights(). kind: None if unknown."""
    gates = arrays[1].shape[1] // max(arrays[1].shape[0], 1) if len(arrays) > 1 and arrays[1].ndim == 2 else 0
    fitting = []
    for name, k in KINDS.items():
        columns = {"H": 1, "3H": 3, "4H": 4}[k.shapes["kernel"][1]]
        if len(k.shapes) - len(arrays) in (0, 1) and (name == kind or (kind is None and columns == gates)):
            fitting.append(k)
    shapes = [w.shape for w in arrays]
    if not fitting:
        raise ValueError(f"weights must be the arrays of {kind or 'a known cell'}, got shapes {shapes}")
    if len(fitting) > 1:
        raise ValueError(
            f"kind must be given for weights of shapes {shapes}, which a SimpleRNN and a "
            "LayerNormSimpleRNNCell may have; or give names"
        )
    names = [n for n in fitting[0].shapes if n != "bias" or len(arrays) == len(fitting[0].shapes)]
    return dict(zip(names, arrays, strict=True))


def _leaves(weights: Mapping[str, Any]) -> dict[str, Array]:
    """Returns arrays with common prefixes removed: "rnn/lstm_cell/kernel:0" becomes "kernel"."""
    split = {name: str(name).removesuffix(":0").replace(".", "/").split("/") for name in weights}
    while (
        all(len(parts) > 1 for parts in split.values()) and len({parts[0] for parts in split.values()}) == 1
    ):
        split = {name: parts[1:] for name, parts in split.items()}
    return {"/".join(parts): array(str(name), weights[name]) for name, parts in split.items()}


def _by_direction(weights: dict[str, Array], bidirectional: bool) -> list[dict[str, Array]]:
    """Splits weights by direction: Keras' Bidirectional names them forward_... and backward_...."""
    ways = ("forward_", "backward_")
    if not any(name.startswith(way) for name in weights for way in ways):
        if bidirectional:
            names = ", ".join(sorted(weights))
            raise ValueError(f"names of two directions must begin with forward_ and backward_, got {names}")
        return [weights]
    stray = sorted(name for name in weights if not name.startswith(ways))
    if stray or len({name.split("_")[0] for name in weights}) == 1:
        raise ValueError(
            "names must begin with forward_ or backward_, with some of each, got "
            + ", ".join(stray or sorted(weights))
        )
    return [_leaves({name: w for name, w in weights.items() if name.startswith(way)}) for way in ways]


def _without_cudnn(p: dict[str, Array]) -> dict[str, Array]:
    """Converts weights of Keras 2's CuDNNLSTM and CuDNNGRU (reset_after=True). Returns others unchanged.

    cuDNN's two biases are stored as one vector, and each gate's matrix transposed, (H, I).
    """
    bias, kernel, recurrent = (p.get(name) for name in ("bias", "kernel", "recurrent_kernel"))
    if bias is None or kernel is None or recurrent is None or kernel.ndim != 2 or recurrent.ndim != 2:
        return p
    gates, left = divmod(kernel.shape[1], max(len(recurrent), 1))
    if gates not in (3, 4) or left or bias.shape != (2 * kernel.shape[1],):
        return p
    matrices = {
        name: np.hstack([w.reshape(w.shape[::-1]).T for w in np.hsplit(p[name], gates)])
        for name in ("kernel", "recurrent_kernel")
    }
    both = bias.reshape(2, -1)
    return p | matrices | {"bias": both if gates == 3 else both[0] + both[1]}


def _cell(weights: dict[str, Array], options: Options) -> Weights:
    weights, names = _without_cudnn(weights), set(weights)
    fitting = {k: v for k, v in KINDS.items() if v.fits(names) and options["kind"] in (None, k)}
    if "kernel" in weights and weights["kernel"].ndim == 2 and len(fitting) > 1:
        # SimpleRNN, LSTM and GRU have the same weight names, but kernels have G * H columns for G gates.
        hidden, columns = weights["recurrent_kernel"].shape[0], weights["kernel"].shape[1]
        fitting = {
            k: v for k, v in fitting.items() if {"SimpleRNN": 1, "GRU": 3, "LSTM": 4}[k] * hidden == columns
        }
    if len(fitting) != 1:
        wanted = "; ".join(
            f"{k}: {', '.join(KINDS[k].shapes)}" for k in KINDS if options["kind"] in (None, k)
        )
        raise ValueError(
            f"weights must be the arrays of a known cell, got {', '.join(sorted(names))}; known are {wanted}"
        )
    ((name, kind),) = fitting.items()
    shapes = dict(kind.shapes)
    if name == "GRU" and "bias" in weights and weights["bias"].ndim == 2:
        shapes["bias"] = ("2", "3H")
    check_shapes(
        weights, {k: v for k, v in shapes.items() if k in weights}, {k: f"{name}: {k}" for k in weights}
    )
    for option, owner in (
        ("reset_after", name == "GRU"),
        ("eps", kind.eps is not None),
        ("nonlinearity", "RNN" in name or name == "GRU"),
        ("recurrent_activation", name in ("LSTM", "GRU")),
    ):
        if options[option] is not None and not owner:
            raise ValueError(f"{option} must be None for {name}, got {options[option]!r}")
    eps = kind.eps if options["eps"] is None else options["eps"]
    return kind.convert(weights, {**options, "eps": eps})
