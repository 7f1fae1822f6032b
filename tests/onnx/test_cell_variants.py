"""The same step in many forms: order of gates and operands, products, cuts, norms in other operators."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("onnx_ir")

import lnrnn  # noqa: E402
from lnrnn.onnx.parts import parts  # noqa: E402
from onnx_cells import (  # noqa: E402
    BLENDS,
    GATES,
    Writer,
    affine,
    blend,
    cut,
    draw,
    layer_norm,
    step,
    step_model,
    taken,
)  # fmt: skip


def alternating(ones, others):
    """Returns all pairs, with LayerNormalization or with its primitives ReduceMean ... in turn."""
    return [(a, b, (j + k) % 2 == 1) for j, a in enumerate(ones) for k, b in enumerate(others)]


PRODUCTS = ("Gemm", "Gemm without transB", "MatMul", "MatMul of Transpose", "joined")
CUTS = ("Split", "Split into sizes", "Slice", "Slice by Shape")


def check_weights(network, p, signs=None):
    """Compares a network's weights with those that the file was made of."""
    for name in ("weight_ih", "weight_hh"):
        assert np.array_equal(getattr(network, f"{name}_l0"), p[name])
    theirs = [p.get(name, np.zeros(len(p["weight_ih"]), np.float32)) for name in ("bias_ih", "bias_hh")]
    ours = [getattr(network, f"{name}_l0") if network.bias else np.zeros_like(theirs[0])
            for name in ("bias_ih", "bias_hh")]  # fmt: skip
    assert np.allclose(np.add(*ours), np.add(*theirs), atol=1e-6)


@given(
    st.sampled_from(["LSTM", "GRU", "RNN", "LiGRU"]), st.sampled_from(PRODUCTS), st.sampled_from(CUTS),
    st.booleans(), st.integers(1, 6), st.integers(2, 6), st.sampled_from(BLENDS), st.randoms(),
)  # fmt: skip
def test_a_step_in_any_form_has_its_weights(kind, product, how, bias, D, H, blended, random):
    if kind == "GRU" and product == "joined":
        product = "Gemm"
    rng = np.random.default_rng(random.randrange(2**32))
    p = draw(rng, kind, D, H, bias)
    order = random.choice(list(permutations(GATES[kind])))
    w = Writer(rng)
    f = random.choice(["Tanh", "Relu"]) if kind in ("RNN", "LiGRU") else "Tanh"
    new = step(w, kind, p, "x", ("h0", "c0"), "".join(order), product, how, blended, f)
    part = taken(step_model(w, new, D, H))
    assert part.kind == f"{kind} step" and part.x.name == "x" and part.h0[0].name == "h0"
    check_weights(part.network, p)
    if kind in ("RNN", "LiGRU"):
        assert part.network.nonlinearity == f.lower()


@pytest.mark.parametrize("bias", [True, False])
def test_biases_of_zeros_are_biases(rng, bias):
    p, w = draw(rng, "LSTM", 3, 4, bias), Writer(rng)
    p = {name: array * ("weight" in name) for name, array in p.items()}
    part = taken(step_model(w, step(w, "LSTM", p, "x", ("h0", "c0")), 3, 4))
    assert part.network.bias is bias


def test_the_reset_gate_before_the_product(rng):
    D, H = 3, 4
    p, w = draw(rng, "GRU", D, H), Writer(rng)
    parts_of = {name: dict(zip("rzn", np.split(a, 3), strict=True)) for name, a in p.items()}

    def gate(k, h):
        return w.node(
            "Add",
            affine(w, "x", parts_of["weight_ih"][k], parts_of["bias_ih"][k]),
            affine(w, h, parts_of["weight_hh"][k], None),
        )

    r, z = (w.node("Sigmoid", gate(k, "h0")) for k in "rz")
    n = w.node("Tanh", gate("n", w.node("Mul", r, "h0")))
    network = taken(step_model(w, [blend(w, z, n, "h0", "1 - z")], D, H)).network
    assert not network.reset_after
    assert np.array_equal(network.weight_hh_l0, p["weight_hh"])


@pytest.mark.parametrize(
    "placement, cell, primitives", alternating(("split", "joint", "gate"), (None, "out", "carry"))
)
def test_an_lstm_with_norms(rng, placement, cell, primitives):
    D, H, eps = 3, 4, 1e-3
    p = draw(rng, "LSTM", D, H, bias=False)
    gains = {k: rng.uniform(0.5, 1.5, n).astype(np.float32) for k, n in dict(ih=16, hh=16, c=4).items()}
    biases = {k: rng.uniform(-1, 1, g.size).astype(np.float32) for k, g in gains.items()}
    w = Writer(rng)
    x_, h_ = affine(w, "x", p["weight_ih"], None), affine(w, "h0", p["weight_hh"], None)

    def norm(a, side, at=slice(None)):
        return layer_norm(w, a, gains[side][at], biases[side][at], eps, primitives)

    order = "gofi"
    if placement == "split":
        parts_of = cut(w, w.node("Add", norm(x_, "ih"), norm(h_, "hh")), 4, H)
    elif placement == "joint":
        parts_of = cut(w, norm(w.node("Add", x_, h_), "ih"), 4, H)
    else:
        each = cut(w, w.node("Add", x_, h_), 4, H)
        parts_of = [norm(a, "ih", slice(k * H, (k + 1) * H)) for k, a in enumerate(each)]
    gates = dict(zip(order, parts_of, strict=True))
    i, f, o = (w.node("Sigmoid", gates[k]) for k in "ifo")
    c = w.node("Add", w.node("Mul", f, "c0"), w.node("Mul", i, w.node("Tanh", gates["g"])))
    seen = norm(c, "c") if cell else c
    h = w.node("Mul", o, w.node("Tanh", seen))
    proto = step_model(w, [h, seen if cell == "carry" else c], D, H)
    network = taken(proto).network
    assert network.norm == lnrnn.LayerNormSpec(placement, cell, eps)
    at = [order.index(k) for k in "ifgo"]

    def ours(a):
        return np.concatenate([np.split(a, 4)[k] for k in at])

    assert np.array_equal(network.weight_ih_l0, ours(p["weight_ih"]))
    name = "gain_ih_l0" if placement == "split" else "gain_l0"
    assert np.array_equal(getattr(network, name), ours(gains["ih"]))
    if placement == "split":
        assert np.array_equal(network.gain_hh_l0, ours(gains["hh"]))
        total = ours(biases["ih"]) + ours(biases["hh"])
        assert np.allclose(network.bias_ih_l0 + network.bias_hh_l0, total, atol=1e-6)
        if not primitives:
            assert np.array_equal(network.bias_hh_l0, ours(biases["hh"]))
    if cell:
        assert np.array_equal(network.gain_c_l0, gains["c"])
        assert np.array_equal(network.bias_c_l0, biases["c"])


@pytest.mark.parametrize("form, blended, primitives", alternating(("split", "all", "joint", "gate"), BLENDS))
def test_a_gru_with_norms(rng, form, blended, primitives):
    D, H = 3, 4
    p, w = draw(rng, "GRU", D, H), Writer(rng)
    x_ = affine(w, "x", p["weight_ih"], p["bias_ih"])
    h_ = affine(w, "h0", p["weight_hh"], p["bias_hh"])

    def norm(a, n):
        gain, bias = rng.uniform(0.5, 1.5, n).astype(np.float32), rng.uniform(-1, 1, n).astype(np.float32)
        return layer_norm(w, a, gain, bias, 1e-5, primitives)

    def both(a):
        """LN over r and z, and over n."""
        rz, n = w.node("Split", a, w.integers(2 * H, H), n=2, axis=-1)
        return [*cut(w, norm(rz, 2 * H), 2, H), norm(n, H)]

    if form == "joint":
        r, z, n = cut(w, norm(w.node("Add", x_, h_), 3 * H), 3, H)
        r, n = w.node("Sigmoid", r), n
        n = w.node("Tanh", w.node("Mul", r, n))
    elif form == "gate":
        x, h = cut(w, x_, 3, H), cut(w, h_, 3, H)
        r, z = (norm(w.node("Add", x[k], h[k]), H) for k in (0, 1))
        n = w.node("Tanh", norm(w.node("Add", x[2], w.node("Mul", w.node("Sigmoid", r), h[2])), H))
    else:
        x, h = ((both if form == "split" else lambda a: cut(w, norm(a, 3 * H), 3, H))(a) for a in (x_, h_))
        r, z = (w.node("Add", x[k], h[k]) for k in (0, 1))
        n = w.node("Tanh", w.node("Add", x[2], w.node("Mul", w.node("Sigmoid", r), h[2])))
    proto = step_model(w, [blend(w, w.node("Sigmoid", z), n, "h0", blended)], D, H)
    norm_of = taken(proto).network.norm
    assert (norm_of.placement, norm_of.span) == (("split", "all") if form == "all" else (form, None))
    assert norm_of.inner_bias


@pytest.mark.parametrize("f", ["Tanh", "Relu", "Sigmoid"])
@pytest.mark.parametrize("placement", ["joint", "split"])
def test_an_rnn_with_norms(rng, placement, f):
    D, H = 3, 4
    p, w = draw(rng, "RNN", D, H, bias=False), Writer(rng)
    x_, h_ = affine(w, "x", p["weight_ih"], None), affine(w, "h0", p["weight_hh"], None)
    gain = rng.uniform(0.5, 1.5, H).astype(np.float32)
    if placement == "joint":
        a = layer_norm(w, w.node("Add", x_, h_), gain, None)
    else:
        a = w.node("Add", layer_norm(w, x_, gain, gain), layer_norm(w, h_, gain, None))
    network = taken(step_model(w, [w.node(f, a)], D, H)).network
    assert network.norm == lnrnn.LayerNormSpec(placement, None) and network.nonlinearity == f.lower()


@pytest.mark.parametrize("kind", ["RNN", "LSTM"])
def test_a_state_that_resets_set_to_0_is_h(rng, kind, tmp_path):
    """x and h have the same size, and only h is a state of the Scan."""
    rnn = (lnrnn.RNN if kind == "RNN" else lnrnn.LSTM)(3, 3, seed=1, norm=None)
    lnrnn.to_onnx(rnn, tmp_path / "m.onnx", resets=True)
    (part,) = parts(tmp_path / "m.onnx")
    check_weights(part.network, {name[:-3]: a for name, a in rnn.state_dict().items()})
