"""Small ONNX files with states, which have the names, shapes and nodes of files that people deploy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

HEAD = '<ir_version: 8, opset_import: ["" : 17]> '
H = 4  # hidden units


def save(path: Path, text: str, weights: dict[str, tuple[int, ...]], seed: int = 0) -> Path:
    """Writes the graph of `text`, in onnx.parser's syntax, with random initializers of these shapes."""
    rng = np.random.default_rng(seed)
    model = parser.parse_model(HEAD + text)
    for name, shape in weights.items():
        array = rng.uniform(-1, 1, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def lstm(inputs: int, units: int = H, end: str = "") -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} of the weights of an LSTM node."""
    return {f"W{end}": (1, 4 * units, inputs), f"R{end}": (1, 4 * units, units), f"B{end}": (1, 8 * units)}


def silero(path: Path) -> Path:
    """Writes a file like silero_vad.onnx 6, with one state for h and c, a scalar sr, and LSTMs in nested Ifs.

    Free sizes have no names. A branch for calls without a state has an LSTM that starts at 0.
    """
    branch = """b{k} () => (float[?, 1] output{k}, float[?, ?, ?] stateN{k}) {{
        x{k} = MatMul (input, frame{k})
        x1{k} = Unsqueeze (x{k}, axis)
        h0{k} = Gather <axis = 0> (state, zero)
        c0{k} = Gather <axis = 0> (state, one)
        h1{k} = Unsqueeze (h0{k}, axis)
        c1{k} = Unsqueeze (c0{k}, axis)
        count{k} = Size (state)
        none{k} = Equal (count{k}, zero)
        h2{k}, c2{k} = If (none{k}) <
            then_branch = fresh{k} () => (float[?, ?, ?] hf{k}, float[?, ?, ?] cf{k}) {{
                yf{k}, hf{k}, cf{k} = LSTM <hidden_size = 4> (x1{k}, W, R, B)
            }},
            else_branch = kept{k} () => (float[?, ?, ?] hk{k}, float[?, ?, ?] ck{k}) {{
                yk{k}, hk{k}, ck{k} = LSTM <hidden_size = 4> (x1{k}, W, R, B, , h1{k}, c1{k})
            }}
        >
        h3{k} = Squeeze (h2{k}, axis)
        dot{k} = MatMul (h3{k}, out)
        output{k} = Sigmoid (dot{k})
        stateN{k} = Concat <axis = 0> (h2{k}, c2{k})
    }}"""
    text = f"""vad (float[?, ?] input, float[2, ?, 4] state, int64 sr)
            => (float[?, 1] output, float[?, ?, ?] stateN) {{
        axis = Constant <value = int64[1] {{0}}> ()
        zero = Constant <value = int64 {{0}}> ()
        one = Constant <value = int64 {{1}}> ()
        rate = Constant <value = int64 {{16000}}> ()
        wide = Equal (sr, rate)
        output, stateN = If (wide) <then_branch = {branch.format(k=1)}, else_branch = {branch.format(k=2)}>
    }}"""
    return save(path, text, {**lstm(3), "frame1": (8, 3), "frame2": (5, 3), "out": (H, 1)})


def policy(path: Path) -> Path:
    """Writes a policy like rsl_rl's: nn.LSTM with one step, one environment and no free size."""
    text = """policy (float[1, 3] obs, float[1, 1, 4] h_in, float[1, 1, 4] c_in)
            => (float[1, 2] actions, float[1, 1, 4] h_out, float[1, 1, 4] c_out) {
        axis = Constant <value = int64[1] {0}> ()
        x = Unsqueeze (obs, axis)
        y, h_out, c_out = LSTM <hidden_size = 4> (x, W, R, B, , h_in, c_in)
        y1 = Squeeze (h_out, axis)
        actions = MatMul (y1, out)
    }"""
    return save(path, text, {**lstm(3), "out": (H, 2)})


def decoder_joint(path: Path) -> Path:
    """Writes a file like NeMo's decoder_joint, with two LSTMs, whose states are layers of two inputs."""
    layer = """
        low{k} = Constant <value = int64[1] {{{k}}}> ()
        high{k} = Constant <value = int64[1] {{{n}}}> ()
        h{k} = Slice (input_states_1, low{k}, high{k}, axis)
        c{k} = Slice (input_states_2, low{k}, high{k}, axis)
        y{k}, hn{k}, cn{k} = LSTM <hidden_size = 4> (x{k}, W{k}, R{k}, B{k}, , h{k}, c{k})
        x{n} = Squeeze (y{k}, one)"""
    text = f"""joint (float[B, 3, 1] encoder_outputs, int32[B, U] targets, int32[B] target_length,
            float[2, B, 4] input_states_1, float[2, B, 4] input_states_2)
            => (float[B, U, 5] outputs, int32[B] prednet_lengths,
            float[2, B, 4] output_states_1, float[2, B, 4] output_states_2) {{
        axis = Constant <value = int64[1] {{0}}> ()
        one = Constant <value = int64[1] {{1}}> ()
        rows = Gather (table, targets)
        x0 = Transpose <perm = [1, 0, 2]> (rows)
        {layer.format(k=0, n=1)}
        {layer.format(k=1, n=2)}
        g = Transpose <perm = [1, 0, 2]> (x2)
        e = Transpose <perm = [0, 2, 1]> (encoder_outputs)
        ep = MatMul (e, enc)
        gp = MatMul (g, pred)
        outputs = Add (ep, gp)
        prednet_lengths = Identity (target_length)
        output_states_1 = Concat <axis = 0> (hn0, hn1)
        output_states_2 = Concat <axis = 0> (cn0, cn1)
    }}"""
    weights = {"table": (7, 3), **lstm(3, end="0"), **lstm(H, end="1"), "enc": (3, 5), "pred": (H, 5)}
    return save(path, text, weights)


def deep_filter(path: Path) -> Path:
    """Writes a file like a decoder of DeepFilterNet, with a GRU whose state starts at 0 in each call."""
    text = """df (float[B, S, 3] emb) => (float[B, S, 2] coefs) {
        axis = Constant <value = int64[1] {1}> ()
        x = Transpose <perm = [1, 0, 2]> (emb)
        y, h = GRU <hidden_size = 4, linear_before_reset = 1> (x, W, R, B)
        y1 = Squeeze (y, axis)
        y2 = Transpose <perm = [1, 0, 2]> (y1)
        coefs = MatMul (y2, out)
    }"""
    return save(path, text, {"W": (1, 12, 3), "R": (1, 12, H), "B": (1, 24), "out": (H, 2)})


CELL = """
        gx = Gemm <transB = 1> (input, Wi, bi)
        gh = Gemm <transB = 1> ({h}, Wh, bh)
        g = Add (gx, gh)
        i, f, z, o = Split <axis = 1> (g)
        si = Sigmoid (i)
        sf = Sigmoid (f)
        tz = Tanh (z)
        so = Sigmoid (o)
        fc = Mul (sf, {c})
        iz = Mul (si, tz)
        cn = Add (fc, iz)
        tc = Tanh (cn)
        hn = Mul (so, tc)"""
CELL_WEIGHTS = {"Wi": (16, 3), "Wh": (16, 4), "bi": (16,), "bh": (16,)}


def ifless(path: Path) -> Path:
    """Writes a file like silero_vad_op18_ifless.onnx: an LSTM's step in plain operators, one state."""
    text = f"""vad (float[batch, 3] input, float[2, batch, 4] state)
            => (float[batch, 1] output, float[2, batch, 4] stateN) {{
        zero = Constant <value = int64 {{0}}> ()
        one = Constant <value = int64 {{1}}> ()
        axis = Constant <value = int64[1] {{0}}> ()
        h = Gather <axis = 0> (state, zero)
        c = Gather <axis = 0> (state, one)
        {CELL.format(h="h", c="c")}
        dot = MatMul (hn, out)
        output = Sigmoid (dot)
        hu = Unsqueeze (hn, axis)
        cu = Unsqueeze (cn, axis)
        stateN = Concat <axis = 0> (hu, cu)
    }}"""
    return save(path, text, {**CELL_WEIGHTS, "out": (H, 1)})


def plain(path: Path) -> Path:
    """Writes a file without states, whose x and y have the same shape."""
    text = """plain (float[B, 4] input_1) => (float[B, 4] output_1) {
        p = MatMul (input_1, M)
        output_1 = Tanh (p)
    }"""
    return save(path, text, {"M": (4, 4)})
