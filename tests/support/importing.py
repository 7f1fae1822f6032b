"""Helpers for tests of importers: random parameters of foreign cells under the names of their libraries.

`assert_agrees` compares a foreign cell with lnrnn's reference and lnrnn's model after conversion.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import foreign_cells
from helpers import absolute_error
from networks import parts, reference_forward, whole

# Tolerances. EXACT is for two results in float64, with sums in another order. SINGLE is for float32.
# Over 9 steps of 12 units and 20 draws of every system, errors were at most 1.1e-14 and 6e-6, and in the
# median 6e-16 and 3e-7.
EXACT, SINGLE = 1e-13, 1e-5


@dataclass(frozen=True)
class Foreign:
    """A recurrent cell of another library.

    shapes(inputs, H): returns the shapes of its parameters. states: the number of arrays in its state.
    key(leaf, layer, direction, directions): returns the name of parameter `leaf` in a stack of layers."""

    cell: Callable
    shapes: Callable[[int, int], dict[str, tuple[int, ...]]]
    states: int
    key: Callable[[str, int, int, int], str]


def torch_key(leaf, k, d, directions):
    return f"{leaf}_l{k}" + "_reverse" * d


def stack_key(leaf, k, d, directions):
    return f"layers.{k}.directions.{d}.cell.{leaf}" if directions == 2 else f"layers.{k}.cell.{leaf}"


def list_key(leaf, k, d, directions):
    return f"{k}.{leaf}"


def _linear(gates, bias=True):
    return lambda inputs, H: (
        {"weight_ih": (gates * H, inputs), "weight_hh": (gates * H, H)}
        | ({"bias_ih": (gates * H,), "bias_hh": (gates * H,)} if bias else {})
    )


def norms(**sizes):
    return {f"{name}.{part}": (n,) for name, n in sizes.items() for part in ("weight", "bias")}


def _fastrnns(inputs, H):
    return _linear(4, False)(inputs, H) | norms(layernorm_i=4 * H, layernorm_h=4 * H, layernorm_c=H)


def _icefall_lstm(inputs, H):
    return _linear(4)(inputs, H) | norms(**{f"layernorm_{n}": H for n in ("i", "f", "cx", "cy", "o")})


def _icefall_gru(inputs, H):
    return _linear(3)(inputs, H) | norms(**{f"layernorm_{n}": H for n in "rin"})


def _without_bias(shapes):
    return lambda inputs, H: {n: s for n, s in shapes(inputs, H).items() if n not in ("bias_ih", "bias_hh")}


def _torchaudio(inputs, H):
    return {"x2g.weight": (4 * H, inputs), "p2g.weight": (4 * H, H)} | norms(c_norm=H, g_norm=4 * H)


def _haste_lstm(inputs, H):
    return {"kernel": (inputs, 4 * H), "recurrent_kernel": (H, 4 * H), "bias": (4 * H,), "gamma": (2, 4 * H),
            "gamma_h": (H,),
            "beta_h": (H,)}  # fmt: skip


def _haste_gru(inputs, H):
    return {"kernel": (inputs, 3 * H), "recurrent_kernel": (H, 3 * H), "bias": (3 * H,),
            "recurrent_bias": (3 * H,),
            "gamma": (2, 3 * H)}  # fmt: skip


FOREIGN = {
    "torch RNN": Foreign(foreign_cells.torch_rnn, _linear(1), 1, torch_key),
    "torch LSTM": Foreign(foreign_cells.torch_lstm, _linear(4), 2, torch_key),
    "torch GRU": Foreign(foreign_cells.torch_gru, _linear(3), 1, torch_key),
    "torch LSTM without bias": Foreign(foreign_cells.torch_lstm, _linear(4, False), 2, torch_key),
    "torch GRU without bias": Foreign(foreign_cells.torch_gru, _linear(3, False), 1, torch_key),
    "fastrnns": Foreign(foreign_cells.fastrnns_lstm, _fastrnns, 2, stack_key),
    "torchaudio": Foreign(foreign_cells.torchaudio_lstm, _torchaudio, 2, list_key),
    "icefall LSTM": Foreign(foreign_cells.icefall_lstm, _icefall_lstm, 2, stack_key),
    "icefall GRU": Foreign(foreign_cells.icefall_gru, _icefall_gru, 1, stack_key),
    "icefall LSTM without bias": Foreign(
        foreign_cells.icefall_lstm, _without_bias(_icefall_lstm), 2, stack_key
    ),
    "icefall GRU without bias": Foreign(foreign_cells.icefall_gru, _without_bias(_icefall_gru), 1, stack_key),
    "haste LSTM": Foreign(foreign_cells.haste_lstm, _haste_lstm, 2, list_key),
    "haste GRU": Foreign(foreign_cells.haste_gru, _haste_gru, 1, list_key),
}


def drawn(rng, shapes):
    """Returns random parameters of these shapes. Gains are near 1, and no parameter has its default value."""
    result = {}
    for name, shape in shapes.items():
        gain = "gamma" in name or ("norm" in name and name.endswith("weight"))
        result[name] = rng.uniform(0.5, 1.5, shape) if gain else rng.uniform(-0.8, 0.8, shape)
    return result


def stack(rng, foreign, inputs, H, layers=1, directions=1):
    """Returns random parameters by layer and direction, and the same as a state dict."""
    result = [
        [drawn(rng, foreign.shapes(inputs if k == 0 else directions * H, H)) for _ in range(directions)]
        for k in range(layers)
    ]
    state = {
        foreign.key(leaf, k, d, directions): value
        for k, layer in enumerate(result)
        for d, p in enumerate(layer)
        for leaf, value in p.items()
    }
    return result, state


def rnnoise_record(name, values, kind=None, magic=b"DNNw", version=0):
    """Returns an array as in a weight file of RNNoise. kind: the number of its type."""
    kind = {"f4": 0, "i4": 1, "i1": 3}[values.dtype.str[1:]] if kind is None else kind
    padded = -(-values.nbytes // 64) * 64
    head = struct.pack("<4s4i44s", magic, version, kind, values.nbytes, padded, name.encode())
    return (head + values.tobytes()).ljust(64 + padded, b"\0")


def rnnoise_file(arrays):
    """Returns a weight file of RNNoise with these arrays by name."""
    return b"".join(rnnoise_record(name, array) for name, array in arrays.items())


def initial(rng, states, layers, directions, B, H):
    """Returns random initial states by layer and direction, and the same as lnrnn's arrays."""
    parts = [rng.uniform(-0.9, 0.9, (layers * directions, B, H)) for _ in range(states)]
    nested = [
        [tuple(part[k * directions + d] for part in parts) for d in range(directions)] for k in range(layers)
    ]
    return nested, tuple(parts)


def through_reference(converted, x, states, lengths=None, training=False):
    """Runs the converted network in lnrnn's float64 reference, with its float64 parameters.

    Returns y (T, B, directions * H) and the last states for x (T, B, I)."""
    model = converted.model()
    start = whole(model, list(states))
    y, end, _ = reference_forward(model, x, start, lengths, training, own=converted.state)
    return y, tuple(parts(model, end))


def assert_agrees(converted, want, x, states):
    """Asserts that lnrnn's reference and model give `want`, a foreign cell's (y, last states)."""
    y, ends = through_reference(converted, x, states)
    assert absolute_error(y, want[0]) < EXACT
    for end, wanted in zip(ends, want[1], strict=True):
        assert absolute_error(end, wanted) < EXACT
    model = converted.model()
    y, end = model(x.swapaxes(0, 1) if model.batch_first else x, states if len(states) == 2 else states[0])
    assert absolute_error(y.swapaxes(0, 1) if model.batch_first else y, want[0]) < SINGLE
    for part, wanted in zip(end if len(states) == 2 else (end,), want[1], strict=True):
        assert absolute_error(part, wanted) < SINGLE
