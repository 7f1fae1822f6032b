"""ONNX models for fuzz_onnx.py: cells in plain operators, 8-bit nodes, and files of to_onnx."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

import lnrnn
import onnx_cells
import onnx_loops
from fuzz_draw import chance, network, pick
from onnx_files import FLOAT, model

KINDS = ("LSTM", "GRU", "RNN", "LiGRU")
PRODUCTS = ("Gemm", "Gemm without transB", "MatMul", "MatMul of Transpose", "joined")
CUTS = ("Split", "Split into sizes", "Slice", "Slice by Shape")
MOST_BYTES = 20_000  # a larger model takes most of the time of all


def some_cells(rng) -> onnx.ModelProto:
    """Returns a model of one of all forms."""
    while True:
        proto = pick(rng, (one_step, normed_step, unrolled, scan, loop, keras, quantized, written))(rng)
        if proto is not None and proto.ByteSize() <= MOST_BYTES:
            return proto


def sizes(rng) -> tuple[int, int]:
    return int(rng.integers(1, 4)), int(rng.integers(1, 5))


def one_step(rng, most=1):
    kind, (D, H) = pick(rng, KINDS), sizes(rng)
    w, x, new = onnx_cells.Writer(rng), "x", []
    product = pick(rng, PRODUCTS if kind != "GRU" else PRODUCTS[:-1])
    new = onnx_cells.step(w, kind, onnx_cells.draw(rng, kind, D, H, chance(rng, 0.7)), x, ("h0", "c0"),
                          None, product, pick(rng, CUTS), pick(rng, onnx_cells.BLENDS))  # fmt: skip
    return onnx_cells.step_model(w, new, D, H)


def normed_step(rng):
    """An LSTM with layer norms of both sides, or of their sum."""
    D, H = sizes(rng)
    p, w = onnx_cells.draw(rng, "LSTM", D, H), onnx_cells.Writer(rng)
    gain, primitives = rng.uniform(0.5, 1.5, 4 * H), chance(rng, 0.5)
    a = onnx_cells.affine(w, "x", p["weight_ih"], None)
    b = onnx_cells.affine(w, "h0", p["weight_hh"], None)
    if chance(rng, 0.5):
        a = w.node("Add", a, b)
        a = onnx_cells.layer_norm(w, a, gain, p["bias_ih"], primitives=primitives)
    else:
        a, b = (onnx_cells.layer_norm(w, v, gain, p["bias_ih"], primitives=primitives) for v in (a, b))
        a = w.node("Add", a, b)
    gates = dict(zip("ifgo", onnx_cells.cut(w, a, 4, H, pick(rng, CUTS)), strict=True))
    return onnx_cells.step_model(w, onnx_cells.lstm(w, gates, "c0"), D, H)


def unrolled(rng):
    kind, (D, H), T = pick(rng, KINDS), sizes(rng), int(rng.integers(2, 4))
    p, w = onnx_cells.draw(rng, kind, D, H), onnx_cells.Writer(rng)
    states, ys = ("h0", "c0"), []
    for t in range(T):
        x = w.node("Gather", "x", w.array(t, np.int64), axis=0)
        states = onnx_cells.step(w, kind, p, x, states)
        ys.append(w.node("Unsqueeze", states[0], w.integers(0)))
    y = w.node("Concat", *ys, axis=0)
    proto = onnx_cells.step_model(w, [y, *states], D, H)
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, (T, "B", D)))
    return proto


def scan(rng):
    back, axes = tuple(rng.integers(0, 2, 2)), tuple(rng.integers(0, 2, 2))
    return onnx_loops.scan(rng, pick(rng, KINDS), back, axes, layers=int(rng.integers(1, 3)))


def loop(rng):
    kind = pick(rng, KINDS)
    return onnx_loops.loop(
        rng, kind, index=pick(rng, ("t", "T - 1 - t")), trip=pick(rng, ("shape", 5)),
        join=pick(rng, ("sequence", "front of sequence", "scan output")),
        rnn_node=kind in ("LSTM", "GRU") and chance(rng, 0.4),
    )  # fmt: skip


def keras(rng):
    options = {name: chance(rng, 0.5) for name in ("zeros", "where", "backwards")}
    return onnx_loops.keras_loop(rng, pick(rng, KINDS), **options)[0]


def quantized(rng):
    D, (width, H) = int(rng.integers(1, 3)), sizes(rng)
    shape = (D, 4 * H) if chance(rng, 0.5) else (D,)
    own = {"B": rng.uniform(-0.5, 0.5, (D, 8 * H)).astype(np.float32)}
    dtype = pick(rng, (np.int8, np.uint8))
    for name, n in (("W", width), ("R", H)):
        own[name] = rng.integers(0, 128, (D, n, 4 * H)).astype(dtype)
        own[f"{name}_scale"] = rng.uniform(0.002, 0.005, shape).astype(np.float32)
        own[f"{name}_zero_point"] = rng.integers(0, 9, shape).astype(dtype)
    node = helper.make_node(
        "DynamicQuantizeLSTM",
        ["X", "W", "R", "B", "", "h0", "c0", "", "W_scale", "W_zero_point", "R_scale", "R_zero_point"],
        ["Y", "Y_h", "Y_c"], "node", hidden_size=H, domain="com.microsoft",
        direction="forward" if D == 1 else "bidirectional",
    )  # fmt: skip
    given = {"X": (FLOAT, ("T", "B", width)), "h0": (FLOAT, (D, "B", H)), "c0": (FLOAT, (D, "B", H))}
    return model(
        [node], given, ["Y", "Y_h", "Y_c"], own, more_opsets=[helper.make_opsetid("com.microsoft", 1)]
    )


def written(rng):
    """A file of to_onnx, or None for a network that it refuses or that is large."""
    rnn = network(rng, known=3, most_layers=2)
    if rnn.input_size * rnn.hidden_size > 40 or rnn.hidden_size > 12:
        return None
    options = {name: chance(rng, 0.4) for name in ("step", "lengths", "resets")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            lnrnn.to_onnx(rnn, path, **options)
        except ValueError:
            return None
        return onnx.load(str(path))
