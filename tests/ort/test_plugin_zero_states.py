"""Unrolled steps from zeros, whose products the runtime folds: the chain is one call."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

from onnx_cells import BLENDS, Writer, affine, cut, draw, layer_norm, step  # noqa: E402
from onnx_files import FLOAT, model  # noqa: E402
from plugin_runs import check, plugged  # noqa: E402

D, H, T, B = 3, 4, 4, 2
KINDS = pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "LiGRU"])
ORIGINS = pytest.mark.parametrize("origin", ["constant", "ConstantOfShape", "Expand"])


def zeros(w, origin, rows=B):
    """Adds states of 0, as a constant or as torch computes them from the shape of x."""
    if origin == "constant":
        return w.array(np.zeros((rows, H)))
    batch = w.node("Slice", w.node("Shape", "x"), w.integers(1), w.integers(2))
    shape = w.node("Concat", batch, w.integers(H), axis=0)
    return w.node("Expand", w.array(0.0), shape) if origin == "Expand" else w.node("ConstantOfShape", shape)


def unrolled(w, advance, states, steps=T, inputs=D):
    """Returns a model of all steps. advance(x, state) adds one."""
    ys = []
    for t in range(steps):
        states = advance(w.node("Gather", "x", w.array(t, np.int64), axis=0), states)
        ys.append(w.node("Unsqueeze", states[0], w.integers(0)))
    outputs = [w.node("Concat", *ys, axis=0), *states]
    return model(w.nodes, {"x": (FLOAT, ("T", "B", inputs))}, outputs, w.arrays)


def plain(w, kind, p, **how):
    return lambda x, state: step(w, kind, p, x, state[: 1 + (kind == "LSTM")], **how)


@ORIGINS
@KINDS
def test_a_chain_from_zeros_is_one_node(rng, tmp_path, kind, origin):
    for bias in (True, False):
        for own in (True, False):  # h and c have their own zeros, or the same
            w = Writer(rng)
            h = zeros(w, origin)
            state = (h, zeros(w, origin) if own else h)
            proto = unrolled(w, plain(w, kind, draw(rng, kind, D, H, bias)), state)
            of_zeros = {"Shape", "Slice", "Concat", "Expand", "ConstantOfShape"}
            check(proto, rng, tmp_path, others=of_zeros)


@pytest.mark.parametrize("product", ["Gemm", "Gemm without transB", "MatMul", "MatMul of Transpose"])
@KINDS
def test_forms_of_steps(rng, tmp_path, kind, product):
    """D is H, so that x and h may be exchanged."""
    for blended, how in zip(BLENDS, ["Split", "Split into sizes", "Slice", "Slice by Shape"], strict=True):
        for size in (D, H):
            w, p = Writer(rng), draw(rng, kind, size, H)
            advance = plain(w, kind, p, product=product, how=how, blended=blended)
            check(unrolled(w, advance, (zeros(w, "constant"),) * 2, inputs=size), rng, tmp_path)


@pytest.mark.parametrize("primitives", [False, True])
@pytest.mark.parametrize("placement", ["split", "joint", "gate"])
def test_layer_norms(rng, tmp_path, placement, primitives):
    p, w = draw(rng, "LSTM", D, H, bias=False), Writer()
    gains, biases = rng.uniform(0.5, 1.5, (9, 4 * H)), rng.uniform(-1, 1, (9, 4 * H))

    def norm(a, k, n=4 * H):
        return layer_norm(w, a, gains[k][:n], biases[k][:n], 1e-3, primitives)

    def advance(x, state):
        x_, h_ = affine(w, x, p["weight_ih"], None), affine(w, state[0], p["weight_hh"], None)
        if placement == "split":
            parts = cut(w, w.node("Add", norm(x_, 0), norm(h_, 1)), 4, H)
        elif placement == "joint":
            parts = cut(w, norm(w.node("Add", x_, h_), 0), 4, H)
        else:
            parts = [norm(a, k, H) for k, a in enumerate(cut(w, w.node("Add", x_, h_), 4, H))]
        gates = dict(zip("ifgo", parts, strict=True))
        i, f, o = (w.node("Sigmoid", gates[k]) for k in "ifo")
        c = w.node("Add", w.node("Mul", f, state[1]), w.node("Mul", i, w.node("Tanh", gates["g"])))
        return w.node("Mul", o, w.node("Tanh", norm(c, 8, H))), c

    check(unrolled(w, advance, (zeros(w, "constant"),) * 2), rng, tmp_path)


def test_numbers_of_steps_and_sequences(rng, tmp_path):
    for kind, steps in (("LSTM", 2), ("GRU", 2), ("RNN", 3), ("LSTM", 33)):
        for origin, rows, batch in (("constant", 2, 2), ("constant", 1, 3), ("ConstantOfShape", 0, 5)):
            w = Writer()
            proto = unrolled(w, plain(w, kind, draw(rng, kind, D, H)), (zeros(w, origin, rows),) * 2, steps)
            check(proto, rng, tmp_path, T=steps, B=batch)


def test_constant_states_give_the_number_of_sequences(rng, tmp_path):
    """One sequence of x serves all sequences of the states. Another number is an error, as in the runtime."""
    w = Writer()
    proto = unrolled(w, plain(w, "GRU", draw(rng, "GRU", D, H)), (zeros(w, "constant", 3),))
    check(proto, rng, tmp_path, B=1)
    with pytest.raises(Exception, match="has another number of sequences than the inputs before"):
        plugged(proto).run(None, {"x": np.zeros((T, 2, D), np.float32)})


def test_two_chains_from_zeros(rng, tmp_path):
    """The second layer reads each h of the first one."""
    w, p, q = Writer(), draw(rng, "LSTM", D, H), draw(rng, "LSTM", H, H)
    zero = zeros(w, "constant")

    def advance(x, state):
        low = step(w, "LSTM", p, x, state[2:])
        return *step(w, "LSTM", q, low[0], state[:2]), *low

    check(unrolled(w, advance, (zero,) * 4), rng, tmp_path, nodes=2)
