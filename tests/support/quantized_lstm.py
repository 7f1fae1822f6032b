"""Models of one DynamicQuantizeLSTM, an operator of ONNX Runtime."""

from __future__ import annotations

import platform

import numpy as np
from onnx import helper

import lnrnn
from onnx_files import FLOAT, model

D, H, INPUTS, BATCH = 2, 24, 10, 3
NAMES = ["X", "W", "R", "B", "", "h0", "c0", "", "W_scale", "W_zero_point", "R_scale", "R_zero_point"]
X, STATE = ("T", "B", INPUTS), (D, BATCH, H)


def quantized(rng, dtype=np.int8, columns=False, zero=0, largest=127):
    """Returns the weights of a node by name. largest: of the integers without the zero point.

    Many columns have only small integers, as in files. columns: each column has a scale of its own.
    """
    result = {"B": rng.uniform(-0.5, 0.5, (D, 8 * H)).astype(np.float32)}
    shape = (D, 4 * H) if columns else (D,)
    for name, n in (("W", INPUTS), ("R", H)):
        most = rng.integers(largest // 4, largest + 1, (D, 1, 4 * H))
        q = np.rint(rng.uniform(-1, 1, (D, n, 4 * H)) * most)
        q[:, 0, 0], q[:, 1, 0] = -largest - (largest == 127), largest  # the ends of int8
        result[name] = (q + zero).astype(dtype)
        result[f"{name}_scale"] = rng.uniform(0.002, 0.005, shape).astype(np.float32)
        result[f"{name}_zero_point"] = np.full(shape, zero, dtype)
    return result


def proto(own, direction="bidirectional"):
    node = helper.make_node(
        "DynamicQuantizeLSTM", NAMES, ["Y", "Y_h", "Y_c"], "node", hidden_size=H, domain="com.microsoft",
        direction=direction,
    )  # fmt: skip
    given = {"X": (FLOAT, X), "h0": (FLOAT, STATE), "c0": (FLOAT, STATE)}
    more = [helper.make_opsetid("com.microsoft", 1)]
    return model([node], given, ["Y", "Y_h", "Y_c"], own, more_opsets=more)


def feed(rng, steps=1):
    """Returns inputs that 8 bits represent exactly: multiples of 1 / 64, each row with -2 and 127 / 64."""
    result = {"X": (steps, BATCH, INPUTS), "h0": STATE, "c0": STATE}
    for name, shape in result.items():
        n = rng.integers(-128, 128, shape)
        n[..., 0], n[..., 1] = -128, 127
        result[name] = (n / 64).astype(np.float32)
    return result


# On x86 without VNNI, ONNX Runtime saturates sums of two products at 16 bits. Those of 7-bit weights fit.
VNNI = any("vnni" in isa for isa in lnrnn.cpu_info()["available"])
SIGNED = {"largest": 127 if VNNI or platform.machine() != "x86_64" else 63}
KINDS = {
    "int8": SIGNED,
    "int8 columns": SIGNED | dict(columns=True),
    "uint8": dict(dtype=np.uint8, zero=128),
    "uint8 columns": dict(dtype=np.uint8, zero=128, columns=True),
    "uint8 zero point 100": dict(dtype=np.uint8, zero=100, largest=100),
}
