"""Random ONNX models of one DynamicQuantizeLSTM, an operator of ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from onnx_files import FLOAT, INT32, model

Array = np.ndarray
SIZES = (1, 2, 3, 5, 8, 16, 17, 33, 70)


def weights(rng: np.random.Generator, D: int, width: int, H: int) -> dict[str, Array]:
    """Returns W, R and B with their scales and zero points, which may differ by column."""
    dtype = (np.int8, np.uint8)[rng.integers(2)]
    result = {"B": rng.uniform(-0.5, 0.5, (D, 8 * H)).astype(np.float32)} if rng.random() < 0.8 else {}
    for name, n in (("W", width), ("R", H)):
        by_column, zero_by_column = rng.random() < 0.5, rng.random() < 0.5
        zero = (
            128 if dtype == np.uint8 and by_column else int(rng.integers(80, 140)) if dtype == np.uint8 else 0
        )
        low, high = (max(0, zero - 127), min(255, zero + 127)) if dtype == np.uint8 else (-127, 127)
        shape = (D, 4 * H) if by_column else (D,)
        result[name] = rng.integers(low, high + 1, (D, n, 4 * H)).astype(dtype)
        result[f"{name}_scale"] = rng.uniform(0.1, 1, shape).astype(np.float32) / np.float32(127 * n**0.5)
        result[f"{name}_zero_point"] = np.full((D, 4 * H) if zero_by_column else (D,), zero, dtype)
    return result


def drawn(seed: int) -> tuple[onnx.ModelProto, onnx.ModelProto, list[dict[str, Array]], bool]:
    """Returns a model, the model in float32, the inputs of two calls, and whether 8 bits represent them."""
    rng = np.random.default_rng(seed)
    direction = ("forward", "reverse", "bidirectional")[rng.integers(3)]
    D, width, H = 1 + (direction == "bidirectional"), *(int(rng.choice(SIZES)) for _ in range(2))
    exact, states, lengths = bool(rng.random() < 0.5), bool(rng.random() < 0.7), bool(rng.random() < 0.3)
    own, outputs = weights(rng, D, width, H), ["Y", "Y_h", "Y_c"]
    floats = {name: own[name] for name in ("B",) if name in own}
    for name in ("W", "R"):
        zero, scale = (own[f"{name}_{end}"].reshape(D, 1, -1) for end in ("zero_point", "scale"))
        floats[name] = ((own[name].astype(np.float32) - zero) * scale).swapaxes(1, 2).copy()
    first = ["X", "W", "R", "B" if "B" in own else "", "lens" if lengths else ""]
    first += ["h0", "c0"] if states else ["", ""]
    inputs = {"X": (FLOAT, ("T", "B", width))}
    inputs |= {name: (FLOAT, (D, "B", H)) for name in ("h0", "c0") if states}
    inputs |= {"lens": (INT32, ("B",))} if lengths else {}
    scales = ["W_scale", "W_zero_point", "R_scale", "R_zero_point"]
    more = {"hidden_size": H, "direction": direction}
    nodes = [
        helper.make_node("DynamicQuantizeLSTM", [*first, "", *scales], outputs, "node",
                         domain="com.microsoft", **more),
        helper.make_node("LSTM", first, outputs, "node", **more),
    ]  # fmt: skip
    protos = [
        model([node], inputs, outputs, values, more_opsets=[helper.make_opsetid("com.microsoft", 1)])
        for node, values in zip(nodes, (own, floats), strict=True)
    ]
    calls = []
    for _ in range(2):
        T, B = 1 if exact else int(rng.integers(1, 12)), int(rng.integers(1, 6))
        given = {}
        for name, (dtype, shape) in inputs.items():
            sizes = [{"T": T, "B": B}.get(n, n) for n in shape]
            if dtype == INT32:
                given[name] = rng.integers(0, T + 1, sizes).astype(np.int32)
                continue
            a = rng.integers(-127, 128, sizes) / 64
            a[..., 0] = rng.choice([-127, 127], sizes[:-1]) / 64  # the largest number has the scale 1 / 64
            given[name] = np.float32(a if exact else rng.standard_normal(sizes))
        calls.append(given)
    return protos[0], protos[1], calls, exact
