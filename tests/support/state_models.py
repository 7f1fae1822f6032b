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
    return {
        f"W{end}": (1, 4 * units, inputs),
        f"R{end}": (1, 4 * units, units),
        f"B{end}": (1, 8 * units),
    }


def gru(inputs: int, units: int = H, end: str = "", directions: int = 1) -> dict[str, tuple[int, ...]]:
    return {
        f"W{end}": (directions, 3 * units, inputs),
        f"R{end}": (directions, 3 * units, units),
        f"B{end}": (directions, 6 * units),
    }


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


def silero_sequence(path: Path) -> Path:
    """Writes a file like silero_vad_16k_sequence.onnx, which reads all frames of one sequence in a call."""
    text = """vad (float[sequence_length, 8] input, float[1, 1, 4] h, float[1, 1, 4] c)
            => (float[sequence_length] speech_probs, float[1, 1, 4] hn, float[1, 1, 4] cn) {
        axis = Constant <value = int64[1] {1}> ()
        axes = Constant <value = int64[3] {1, 2, 3}> ()
        x = MatMul (input, frame)
        x1 = Unsqueeze (x, axis)
        y, hn, cn = LSTM <hidden_size = 4> (x1, W, R, B, , h, c)
        dot = MatMul (y, out)
        p = Sigmoid (dot)
        speech_probs = Squeeze (p, axes)
    }"""
    return save(path, text, {**lstm(3), "frame": (8, 3), "out": (H, 1)})


def ten(path: Path) -> Path:
    """Writes a file like ten-vad.onnx, by tf2onnx, with two LSTMs, four states, and numbered names."""
    text = """vad (float[unk_1, 3, 5] input_1, float[unk_2, 4] input_2, float[unk_3, 4] input_3,
            float[unk_4, 4] input_6, float[unk_5, 4] input_7)
            => (float[unk_6, 1, 1] output_1, float[unk_7, 4] output_2, float[unk_8, 4] output_3,
            float[unk_9, 4] output_6, float[unk_10, 4] output_7) {
        axis = Constant <value = int64[1] {0}> ()
        flat = Constant <value = int64[2] {-1, 15}> ()
        one = Constant <value = int64[3] {-1, 1, 1}> ()
        f = Reshape (input_1, flat)
        x = Unsqueeze (f, axis)
        h1 = Unsqueeze (input_2, axis)
        c1 = Unsqueeze (input_3, axis)
        y1, h1n, c1n = LSTM <hidden_size = 4, direction = "forward",
            activations = ["Sigmoid", "Tanh", "Tanh"]> (x, W1, R1, B1, , h1, c1)
        x2 = Squeeze (y1, axis)
        h2 = Unsqueeze (input_6, axis)
        c2 = Unsqueeze (input_7, axis)
        y2, h2n, c2n = LSTM <hidden_size = 4, direction = "forward",
            activations = ["Sigmoid", "Tanh", "Tanh"]> (x2, W2, R2, B2, , h2, c2)
        last = Squeeze (h2n, axis)
        dot = MatMul (last, out)
        p = Reshape (dot, one)
        output_1 = Sigmoid (p)
        output_2 = Squeeze (h1n, axis)
        output_3 = Squeeze (c1n, axis)
        output_6 = Squeeze (h2n, axis)
        output_7 = Squeeze (c2n, axis)
    }"""
    return save(path, text, {**lstm(15, end="1"), **lstm(H, end="2"), "out": (H, 1)})


def gtcrn(path: Path) -> Path:
    """Writes a file like gtcrn.onnx, with a cache of frames, and GRUs whose states are rows of caches.

    A bidirectional GRU along the frequencies starts at 0 in each call, as it should.
    """
    text = """denoise (float[1, 6, 1, 2] mix, float[2, 1, 2, 3, 6] conv_cache, float[2, 1, 6, 4] inter_cache)
            => (float[1, 6, 1, 2] enh,
            float[2, 1, 2, 3, 6] conv_cache_out, float[2, 1, 6, 4] inter_cache_out) {
        zero = Constant <value = int64 {0}> ()
        one = Constant <value = int64 {1}> ()
        axis0 = Constant <value = int64[1] {0}> ()
        axis1 = Constant <value = int64[1] {1}> ()
        axis2 = Constant <value = int64[1] {2}> ()
        end = Constant <value = int64[1] {9223372036854775807}> ()
        back = Constant <value = int64[4] {1, 6, 1, 2}> ()
        x = Transpose <perm = [0, 3, 2, 1]> (mix)
        cache0 = Gather <axis = 0> (conv_cache, zero)
        cache1 = Gather <axis = 0> (conv_cache, one)
        all0 = Concat <axis = 2> (cache0, x)
        conv0 = Conv <kernel_shape = [4, 1]> (all0, K0)
        all1 = Concat <axis = 2> (cache1, conv0)
        conv1 = Conv <kernel_shape = [4, 1]> (all1, K1)
        next0 = Slice (all0, axis1, end, axis2)
        next1 = Slice (all1, axis1, end, axis2)
        next0u = Unsqueeze (next0, axis0)
        next1u = Unsqueeze (next1, axis0)
        conv_cache_out = Concat <axis = 0> (next0u, next1u)
        rows = Squeeze (conv1, axis2)
        f = Transpose <perm = [2, 0, 1]> (rows)
        intra, intra_h = GRU
            <hidden_size = 2, direction = "bidirectional", linear_before_reset = 1> (f, Wi, Ri, Bi)
        intra_t = Transpose <perm = [2, 0, 1, 3]> (intra)
        shape = Constant <value = int64[3] {1, 6, 4}> ()
        steps = Reshape (intra_t, shape)
        h_a = Gather <axis = 0> (inter_cache, zero)
        h_b = Gather <axis = 0> (inter_cache, one)
        y_a, n_a = GRU <hidden_size = 4, linear_before_reset = 1> (steps, Wa, Ra, Ba, , h_a)
        s_a = Squeeze (y_a, axis1)
        y_b, n_b = GRU <hidden_size = 4, linear_before_reset = 1> (s_a, Wb, Rb, Bb, , h_b)
        n_au = Unsqueeze (n_a, axis0)
        n_bu = Unsqueeze (n_b, axis0)
        inter_cache_out = Concat <axis = 0> (n_au, n_bu)
        dot = MatMul (y_b, out)
        enh = Reshape (dot, back)
    }"""
    weights = {
        "K0": (2, 2, 4, 1), "K1": (2, 2, 4, 1), **gru(2, 2, "i", 2), **gru(4, 4, "a"), **gru(4, 4, "b"),
        "out": (H, 2),
    }  # fmt: skip
    return save(path, text, weights)


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
    return save(path, text, {**gru(3), "out": (H, 2)})


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


def cell(path: Path, names: tuple[str, str, str, str]) -> Path:
    """Writes a step of an LSTM in plain operators. names: those of h and c before and after the step."""
    h, c, h_next, c_next = names
    text = f"""cell (float[B, 3] input, float[B, 4] {h}, float[B, 4] {c})
            => (float[B, 1] y, float[B, 4] {h_next}, float[B, 4] {c_next}) {{
        {CELL.format(h=h, c=c)}
        y = MatMul (hn, out)
        {h_next} = Identity (hn)
        {c_next} = Identity (cn)
    }}"""
    return save(path, text, {**CELL_WEIGHTS, "out": (H, 1)})


def loop(path: Path) -> Path:
    """Writes a Loop over the steps of a chunk, with the state as an input and an output."""
    text = """loop (float[T, B, 4] x, float[B, 4] a) => (float[B, 4] b, float[T, B, 4] y) {
        zero = Constant <value = int64 {0}> ()
        shape = Shape (x)
        steps = Gather <axis = 0> (shape, zero)
        go = Constant <value = bool {1}> ()
        b, y = Loop (steps, go, a) <body = step (int64 t, bool on, float[B, 4] h)
                => (bool on_next, float[B, 4] h_next, float[B, 4] y_t) {
            on_next = Identity (on)
            x_t = Gather <axis = 0> (x, t)
            p = MatMul (h, M)
            s = Add (p, x_t)
            h_next = Tanh (s)
            y_t = Identity (h_next)
        }>
    }"""
    return save(path, text, {"M": (4, 4)})


def scan(path: Path) -> Path:
    """Writes a Scan over the steps of a chunk, which computes a leaky sum."""
    text = """scan (float[T, 4] x, float[4] before) => (float[4] after, float[T, 4] y) {
        after, y = Scan (before, x) <num_scan_inputs = 1, body = step (float[4] s, float[4] x_t)
                => (float[4] s_next, float[4] y_t) {
            d = Mul (s, decay)
            s_next = Add (d, x_t)
            y_t = Identity (s_next)
        }>
    }"""
    return save(path, text, {"decay": (4,)})


def delay(path: Path, names: tuple[str, str] = ("pre", "post")) -> Path:
    """Writes a convolution along time that keeps its last two inputs. names: input and output of them."""
    old, new = names
    text = f"""delay (float[B, 1, S] x, float[B, 1, 2] {old}) => (float[B, 1, S] y, float[B, 1, 2] {new}) {{
        from = Constant <value = int64[1] {{-2}}> ()
        end = Constant <value = int64[1] {{9223372036854775807}}> ()
        axis = Constant <value = int64[1] {{2}}> ()
        all = Concat <axis = 2> ({old}, x)
        y = Conv <kernel_shape = [3]> (all, K)
        {new} = Slice (all, from, end, axis)
    }}"""
    return save(path, text, {"K": (1, 1, 3)})


def growing(path: Path) -> Path:
    """Writes an attention whose cache of keys grows with each call, as in transformers."""
    text = """attend (float[B, S, 4] x, float[B, P, 4] past_key)
            => (float[B, S, 4] y, float[B, Q, 4] present_key) {
        present_key = Concat <axis = 1> (past_key, x)
        t = Transpose <perm = [0, 2, 1]> (present_key)
        w = MatMul (x, t)
        y = MatMul (w, present_key)
    }"""
    return save(path, text, {})


def plain(path: Path) -> Path:
    """Writes a file without states, whose x and y have the same shape."""
    text = """plain (float[B, 4] input_1) => (float[B, 4] output_1) {
        p = MatMul (input_1, M)
        output_1 = Tanh (p)
    }"""
    return save(path, text, {"M": (4, 4)})
