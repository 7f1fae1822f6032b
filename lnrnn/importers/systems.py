"""Known implementations of cells in torch ("systems"), each with a function that converts its parameters.

The heading above a system names the file with its equation. Comments say where lnrnn's cells differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from ..reference import block_diagonal
from ..rnn.cells import GRU, LSTM, RNN, LiGRU
from ..rnn.specs import LayerNormSpec
from .weights import Array, Weights, reordered

Arrays = Mapping[str, Array]


class UnknownCell(ValueError):
    """Raised if parameter names fit no known implementation, or several."""


@dataclass(frozen=True)
class System:
    """One implementation of a cell in another library.

    name: the argument `kind` of from_torch, and the cell's name if the kind has several cells. shapes: of all
    parameters of a cell, for check_shapes. optional: parameters that are all present or all absent. options:
    permitted arguments of from_torch. batch_first: the order of x's axes. buffers: keys of the state dict
    without effect at inference. settings: a function of the module, or None for a state dict. It returns
    options that a state dict lacks.
    """

    name: str
    shapes: dict[str, tuple[str, ...]]
    convert: Callable[[Arrays, Mapping[str, Any]], Weights]
    optional: tuple[str, ...] = ()
    options: tuple[str, ...] = ("eps",)
    batch_first: bool = False
    buffers: tuple[str, ...] = ()
    settings: Callable[[Any], dict[str, Any]] | None = None


def _norm_shapes(**norms: str) -> dict[str, tuple[str, ...]]:
    return {f"{name}.{part}": (size,) for name, size in norms.items() for part in ("weight", "bias")}


def _eps(options: Mapping[str, Any]) -> float:
    return 1e-5 if options["eps"] is None else options["eps"]


# --- torch.nn -----------------------------------------------------------------------------------------------


def _torch(p: Arrays, options: Mapping[str, Any]) -> Weights:
    rows, hidden = p["weight_hh"].shape
    cell = next((cell for cell in (RNN, LSTM, GRU, LiGRU) if rows == cell.gates * hidden), None)
    if cell is None:
        raise ValueError(
            "weight_hh must be of shape (H, H) for an RNN, (2H, H) for a LiGRU, (3H, H) for a GRU or (4H, H) "
            f"for an LSTM, got {p['weight_hh'].shape}"
        )
    nonlinearity = options["nonlinearity"]
    if not cell.nonlinear and nonlinearity is not None:
        raise ValueError(f"nonlinearity must be None for weights of {cell.name}, got {nonlinearity!r}")
    if cell.nonlinear and nonlinearity is None:
        raise ValueError(
            f"nonlinearity must be given for the state dict of {cell.name}, got None; it is 'tanh' or 'relu'"
        )
    return Weights(cell.name, None, "bias_ih" in p, dict(p), nonlinearity)


TORCH = System(
    "torch",
    {"weight_hh": ("R", "H"), "weight_ih": ("R", "I"), "bias_ih": ("R",), "bias_hh": ("R",)},
    _torch,
    optional=("bias_ih", "bias_hh"),
    options=("nonlinearity",),
)


def _projected(p: Arrays, options: Mapping[str, Any]) -> Weights:
    return Weights("LSTM", None, "bias_ih" in p, dict(p))


PROJECTED = System(
    "torch LSTM with proj_size",
    {"weight_hr": ("P", "H"), "weight_hh": ("4H", "P"), "weight_ih": ("4H", "I"), "bias_ih": ("4H",),
     "bias_hh": ("4H",)},
    _projected,
    optional=("bias_ih", "bias_hh"),
    options=(),
)  # fmt: skip

# --- benchmarks/fastrnns/custom_lstms.py of pytorch; nemo/collections/common/parts/rnn.py of NeMo -----------


def _fastrnns(p: Arrays, options: Mapping[str, Any]) -> Weights:
    ours = {"weight_ih": p["weight_ih"], "weight_hh": p["weight_hh"]}
    for theirs, side in (("layernorm_i", "ih"), ("layernorm_h", "hh"), ("layernorm_c", "c")):
        ours |= {f"gain_{side}": p[f"{theirs}.weight"], f"bias_{side}": p[f"{theirs}.bias"]}
    return Weights("LSTM", LayerNormSpec("split", "carry", _eps(options)), True, ours)


FASTRNNS = System(
    "fastrnns",
    {"weight_hh": ("4H", "H"), "weight_ih": ("4H", "I")}
    | _norm_shapes(layernorm_i="4H", layernorm_h="4H", layernorm_c="H"),
    _fastrnns,
)

# --- torchaudio/models/rnnt.py, _CustomLSTM -----------------------------------------------------------------


def _torchaudio(p: Arrays, options: Mapping[str, Any]) -> Weights:
    ours = {
        "weight_ih": p["x2g.weight"], "weight_hh": p["p2g.weight"],
        "gain": p["g_norm.weight"], "bias": p["g_norm.bias"],
        "gain_c": p["c_norm.weight"], "bias_c": p["c_norm.bias"],
    }  # fmt: skip
    return Weights("LSTM", LayerNormSpec("joint", "carry", _eps(options)), True, ours)


TORCHAUDIO = System(
    "torchaudio",
    {"p2g.weight": ("4H", "H"), "x2g.weight": ("4H", "I")} | _norm_shapes(g_norm="4H", c_norm="H"),
    _torchaudio,
)

# --- egs/librispeech/ASR/transducer/rnn.py of k2 icefall ----------------------------------------------------


def _icefall(cell: str, gates: tuple[str, ...]) -> Callable[[Arrays, Mapping[str, Any]], Weights]:
    def convert(p: Arrays, options: Mapping[str, Any]) -> Weights:
        inner = "bias_ih" in p
        ours = {
            "weight_ih": p["weight_ih"],
            "weight_hh": p["weight_hh"],
            "gain": np.concatenate([p[f"layernorm_{gate}.weight"] for gate in gates]),
            "bias": np.concatenate([p[f"layernorm_{gate}.bias"] for gate in gates]),
        }
        if inner:
            ours |= {"inner_bias_ih": p["bias_ih"], "inner_bias_hh": p["bias_hh"]}
        spec = LayerNormSpec("gate", eps=_eps(options), inner_bias=inner)
        if cell == "LSTM":
            spec = replace(spec, cell="carry")
            ours |= {"gain_c": p["layernorm_cy.weight"], "bias_c": p["layernorm_cy.bias"]}
        return Weights(cell, spec, True, ours)

    return convert


# icefall's GRU calls the update gate i; torch calls it z.
ICEFALL_LSTM = System(
    "icefall LSTM",
    {"weight_hh": ("4H", "H"), "weight_ih": ("4H", "I"), "bias_ih": ("4H",), "bias_hh": ("4H",)}
    | _norm_shapes(
        **dict.fromkeys(("layernorm_i", "layernorm_f", "layernorm_cx", "layernorm_o", "layernorm_cy"), "H")
    ),
    _icefall("LSTM", ("i", "f", "cx", "o")),
    optional=("bias_ih", "bias_hh"),
    batch_first=True,
)
ICEFALL_GRU = System(
    "icefall GRU",
    {"weight_hh": ("3H", "H"), "weight_ih": ("3H", "I"), "bias_ih": ("3H",), "bias_hh": ("3H",)}
    | _norm_shapes(**dict.fromkeys(("layernorm_r", "layernorm_i", "layernorm_n"), "H")),
    _icefall("GRU", ("r", "i", "n")),
    optional=("bias_ih", "bias_hh"),
    batch_first=True,
)

# --- frameworks/pytorch/layer_norm_{lstm,gru}.py of haste ---------------------------------------------------


def _haste_zoneout(options: Mapping[str, Any]) -> float:
    """Returns the zoneout rate of h. At inference haste has h_t = rate h_{t-1} + (1 - rate) h', c_t = c'."""
    if options["zoneout"] is None:
        raise ValueError(
            "zoneout must be given for a state dict of haste, as it acts at inference; or give the module"
        )
    rate: float = options["zoneout"]
    return rate


def _haste_lstm(p: Arrays, options: Mapping[str, Any]) -> Weights:
    zoneout = _haste_zoneout(options)
    order = ("igfo", "ifgo")
    bias = reordered(p["bias"], *order)
    ours = {
        "weight_ih": reordered(p["kernel"].T, *order),
        "weight_hh": reordered(p["recurrent_kernel"].T, *order),
        "gain_ih": reordered(p["gamma"][0], *order),
        "gain_hh": reordered(p["gamma"][1], *order),
        "bias_ih": bias,
        "bias_hh": np.zeros_like(bias),
        "gain_c": p["gamma_h"],
        "bias_c": p["beta_h"],
    }
    norm = LayerNormSpec("split", "out", _eps(options))
    return Weights("LSTM", norm, True, ours, zoneout=(zoneout, 0.0))


def _haste_gru(p: Arrays, options: Mapping[str, Any]) -> Weights:
    zoneout = _haste_zoneout(options)
    order = ("zrn", "rzn")
    ours = {
        "weight_ih": reordered(p["kernel"].T, *order),
        "weight_hh": reordered(p["recurrent_kernel"].T, *order),
        "gain_ih": reordered(p["gamma"][0], *order),
        "gain_hh": reordered(p["gamma"][1], *order),
        "bias_ih": reordered(p["bias"], *order),
        "bias_hh": reordered(p["recurrent_bias"], *order),
    }
    norm = LayerNormSpec("split", eps=_eps(options), span="all")
    return Weights("GRU", norm, True, ours, zoneout=zoneout)


HASTE_LSTM = System(
    "haste LSTM",
    {"recurrent_kernel": ("H", "4H"), "kernel": ("I", "4H"), "bias": ("4H",), "gamma": ("2", "4H"),
     "gamma_h": ("H",), "beta_h": ("H",)},
    _haste_lstm,
    options=("eps", "zoneout"),
)  # fmt: skip
HASTE_GRU = System(
    "haste GRU",
    {"recurrent_kernel": ("H", "3H"), "kernel": ("I", "3H"), "bias": ("3H",), "recurrent_bias": ("3H",),
     "gamma": ("2", "3H")},
    _haste_gru,
    options=("eps", "zoneout"),
)  # fmt: skip

# --- xlstm/blocks/slstm/ of xlstm ---------------------------------------------------------------------------


def _xlstm(kernel: Array, bias: Array) -> tuple[int, dict[str, Array]]:
    """Returns (number of heads, {name: recurrent weights or biases}).

    kernel is (heads, 4 d outputs, d inputs) with a flat bias (4, heads, d), or (heads, d inputs, 4 d outputs)
    with a flat bias (heads, 4, d).
    """
    heads, rows, columns = kernel.shape
    if rows == 4 * columns:
        blocks = kernel.reshape(heads, 4, columns, columns)
    elif columns == 4 * rows:
        blocks = kernel.reshape(heads, rows, 4, rows).transpose(0, 2, 3, 1)
        bias = bias.reshape(heads, 4, rows).transpose(1, 0, 2).ravel()
    else:
        raise ValueError(
            f"_recurrent_kernel_ must be of shape (heads, 4d, d) or (heads, d, 4d), got {kernel.shape}"
        )
    weight = blocks.transpose(1, 0, 2, 3).reshape(-1, blocks.shape[-1])
    return heads, {"weight_hh": weight, "bias_ih": bias, "bias_hh": np.zeros_like(bias)}


def _xlstm_cell(p: Arrays, options: Mapping[str, Any]) -> Weights:
    # xlstm's cell takes W x as input, so weight_ih is the identity matrix.
    heads, ours = _xlstm(p["_recurrent_kernel_"], p["_bias_"])
    ours["weight_ih"] = np.eye(len(p["_bias_"]), dtype=p["_bias_"].dtype)
    return Weights("SLSTM", None, True, ours, num_heads=heads)


def _xlstm_layer(p: Arrays, options: Mapping[str, Any]) -> Weights:
    heads, ours = _xlstm(p["slstm_cell._recurrent_kernel_"], p["slstm_cell._bias_"])
    # xlstm's fgate computes the pre-activation of gate i, and its igate that of gate f.
    sides = [p[f"{gate}gate.weight"] for gate in "fizo"]
    ours["weight_ih"] = np.concatenate([block_diagonal(w.reshape(-1, w.shape[2]), heads) for w in sides])
    hidden = len(ours["weight_ih"]) // 4
    ours["bias_y"] = np.zeros(hidden, ours["weight_ih"].dtype)
    ours["gain_y"] = 1 + p.get("group_norm.weight", ours["bias_y"])
    return Weights("SLSTM", LayerNormSpec("output", None, _eps(options)), True, ours, num_heads=heads)


_XLSTM_CELL = {"_recurrent_kernel_": ("N", "R", "C"), "_bias_": ("B",)}
XLSTM_CELL = System("xlstm cell", _XLSTM_CELL, _xlstm_cell, options=(), batch_first=True)
# xlstm's convolution has no equivalent in lnrnn. Its parameters are not listed, so that names are refused.
XLSTM_LAYER = System(
    "xlstm layer",
    {f"slstm_cell.{name}": shape for name, shape in _XLSTM_CELL.items()}
    | {f"{gate}gate.weight": ("N", "K", "K") for gate in "ifzo"}
    | {"group_norm.weight": ("H",)},
    _xlstm_layer,
    optional=("group_norm.weight",),
    batch_first=True,
)

# --- speechbrain/nnet/RNN.py --------------------------------------------------------------------------------

_LIGRU_ACTIVATIONS = {"ReLU": "relu", "Tanh": "tanh"}


def _ligru_settings(module: Any) -> dict[str, Any]:
    """Returns settings that all layers share, by name. stabilised: an SLiGRU, which also normalises U h."""
    if module is None:
        raise ValueError(
            "a state dict of speechbrain's LiGRU does not show its activation, its directions and the norm "
            "of U h: give the module"
        )
    found: dict[str, set[Any]] = {}
    for layer in (part for part in module.modules() if hasattr(part, "act") and hasattr(part, "norm")):
        act = getattr(layer.act, "__name__", type(layer.act).__name__)
        if act not in _LIGRU_ACTIVATIONS:
            raise ValueError(f"nonlinearity must be 'relu' or 'tanh' for an lnrnn.LiGRU, got {act}")
        own = {
            "nonlinearity": _LIGRU_ACTIVATIONS[act],
            "bidirectional": layer.bidirectional,
            "stabilised": hasattr(layer, "layer_norm"),
            "eps": layer.norm.eps,
        }
        for name, value in own.items():
            found.setdefault(name, set()).add(value)
    if not found:
        raise UnknownCell("the module has the names of speechbrain's LiGRU, but no attributes act and norm")
    for name, values in found.items():
        if len(values) > 1:
            raise ValueError(f"{name} must be equal in all layers, got {sorted(values)}")
    return {name: value for name, (value,) in found.items()}


def _ligru(p: Arrays, options: Mapping[str, Any]) -> Weights:
    theirs = {name: reordered(np.asarray(v, np.float64), "nz", "zn") for name, v in p.items()}
    gain, bias = theirs["norm.weight"], theirs["norm.bias"]
    ours = {"weight_ih": theirs["w.weight"], "weight_hh": theirs["u.weight"], "bias_ih": bias}
    norm: LayerNormSpec | None = None
    if "norm.running_var" in p:
        if options["stabilised"]:
            raise ValueError(
                "ff_normalization must be 'layernorm' for an SLiGRU, got 'batchnorm': lnrnn has no placement "
                "with a norm of U h alone"
            )
        scale = gain / np.sqrt(theirs["norm.running_var"] + options["eps"])
        ours["weight_ih"] = ours["weight_ih"] * scale[:, None]
        ours |= {"bias_ih": bias - scale * theirs["norm.running_mean"], "bias_hh": np.zeros_like(bias)}
    else:
        norm = LayerNormSpec("split" if options["stabilised"] else "input", eps=options["eps"])
        ours["gain_ih"] = gain
        if options["stabilised"]:
            ours["gain_hh"] = theirs.get("layer_norm.weight", np.ones_like(gain))
            ours["bias_hh"] = theirs.get("layer_norm.bias", np.zeros_like(gain))
    return Weights("LiGRU", norm, True, ours, options["nonlinearity"])


def _speechbrain(name: str, norms: dict[str, tuple[str, ...]], *counters: str) -> System:
    return System(
        name,
        {"w.weight": ("2H", "I"), "u.weight": ("2H", "H"), **norms, **_norm_shapes(layer_norm="2H")},
        _ligru,
        optional=("layer_norm.weight", "layer_norm.bias"),
        options=("eps", "nonlinearity"),
        batch_first=True,
        buffers=("h_init", "drop_masks", "drop_mask_te", *counters),
        settings=_ligru_settings,
    )


SPEECHBRAIN = _speechbrain("speechbrain", _norm_shapes(norm="2H"))
_STATISTICS = {"norm.running_mean": ("2H",), "norm.running_var": ("2H",)}
SPEECHBRAIN_BATCH = _speechbrain(
    "speechbrain with batch norm", _norm_shapes(norm="2H") | _STATISTICS, "norm.num_batches_tracked"
)

# If keys fit no system, messages name the nearest system, the first of several.
SYSTEMS = (
    TORCH, PROJECTED, FASTRNNS, TORCHAUDIO, ICEFALL_LSTM, ICEFALL_GRU, HASTE_LSTM, HASTE_GRU, SPEECHBRAIN,
    SPEECHBRAIN_BATCH, XLSTM_CELL, XLSTM_LAYER,
)  # fmt: skip
SystemName = Literal[
    "torch", "fastrnns", "nemo", "torchaudio", "icefall", "haste", "speechbrain", "xlstm", "lnrnn"
]
KINDS: tuple[SystemName, ...] = get_args(SystemName)
