"""Compares the reference's sLSTM with steps by hand, central differences and PyTorch's gradients."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from helpers import absolute_error, relative_error
from lnrnn import reference as ref
from reference_cells import assert_gradients

SAME = 1e-14
STATES = ("h0", "c0", "n0", "m0")
FORMS = {
    "plain": dict(norm=None, num_heads=1),
    "plain heads": dict(norm=None, num_heads=2),
    "layer": dict(num_heads=1),
    "layer heads": dict(num_heads=2),
    "layer exp": dict(num_heads=2, exp_forget=True),
}
each_form = pytest.mark.parametrize("form", FORMS)


def draw(form, rng, t=5, b=4, i=3, h=4):
    """Returns {name: x, initial states, parameters}, and lengths that include T, 0 and 1."""
    options = FORMS[form]
    values = dict(x=rng.standard_normal((t, b, i)))
    values |= {name: rng.standard_normal((b, h)) for name in STATES} | {"n0": rng.uniform(0.5, 2, (b, h))}
    values |= dict(weight_ih=2 * rng.standard_normal((4 * h, i)))
    values |= dict(weight_hh=rng.standard_normal((4 * h, h // options["num_heads"])))
    values |= dict(bias_ih=rng.standard_normal(4 * h), bias_hh=rng.standard_normal(4 * h))
    if "norm" not in options:
        values |= dict(gain_y=rng.uniform(0.5, 1.5, h), bias_y=rng.standard_normal(h))
    return values, np.array([t, 0, 1, t - 1])


def forward(form, values, **more):
    inputs = {name: a for name, a in values.items() if name in ("x", *STATES)}
    parameters = {name: a for name, a in values.items() if name not in inputs}
    return ref.slstm(parameters=parameters, **inputs, **FORMS[form] | more)


def backward(tape, gy, gstate=()):
    gx, gstart, grads = ref.slstm_backward(tape, gy, *gstate)
    return dict(x=gx, **dict(zip(STATES, gstart, strict=True)), **grads)


def test_two_steps_by_hand():
    """i is 2, then -1. In both steps sigmoid(f) is 1/2, tanh(z) is 3/5 and sigmoid(o) is 3/4."""
    p = dict(weight_ih=[[1], [0], [0], [0]], weight_hh=np.zeros((4, 1)), bias_ih=[0, 0, log(2), log(3)])
    y, (h, c, n, m), _ = ref.slstm([[[2.0]], [[-1.0]]], p, norm=None, num_heads=1)
    np.testing.assert_allclose(y[0], [[0.75 * 0.6]], rtol=1e-15)  # m = 2, i' = 1, c = tanh(z), n = 1
    i_gate = exp(-1 - (2 - log(2)))  # m' = 2 - log 2, f' = 1
    np.testing.assert_allclose(m, [[2 - log(2)]], rtol=1e-15)
    np.testing.assert_allclose(c, [[0.6 + 0.6 * i_gate]], rtol=1e-15)
    np.testing.assert_allclose(n, [[1 + i_gate]], rtol=1e-15)
    np.testing.assert_allclose(h, [[0.75 * 0.6]], rtol=1e-15)
    np.testing.assert_array_equal(y[1], h)


def test_the_norm_of_each_head_by_hand():
    """h is (a, 3 a) in one head and (3 b, b) in the other. The norm gives -1 and 1."""
    z = np.arctanh([0.2, 0.6, 0.9, 0.3])
    p = dict(weight_ih=np.r_[np.zeros(8), z, np.zeros(4)][:, None], weight_hh=np.zeros((16, 2)))
    p |= dict(gain_y=[1, 2, 3, 4], bias_y=[0, 0, 1, 0])
    y, (h, *_), _ = ref.slstm([[[1.0]]], p, num_heads=2, eps=0)
    np.testing.assert_allclose(h, [[0.1, 0.3, 0.45, 0.15]], rtol=1e-15)
    np.testing.assert_allclose(y, [[[-1, 2, 4, -4]]], rtol=1e-13)


def test_a_unit_whose_n_is_0_has_no_past(form="plain"):
    values, _ = draw(form, np.random.default_rng(1))
    values["n0"][:, 1] = 0
    y = forward(form, values)[0]
    for name in ("c0", "m0"):
        values[name][:, 1] = np.nan
    np.testing.assert_array_equal(forward(form, values)[0], y)


@pytest.mark.parametrize("exp_forget", [False, True])
def test_gates_of_100_neither_overflow_nor_make_nan(exp_forget):
    rng = np.random.default_rng(2)
    p = dict(weight_ih=np.eye(16, 16), weight_hh=np.zeros((16, 4)))
    x = rng.choice([-100.0, 0, 100], (50, 20, 16))
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y, state, tape = ref.slstm(x, p, num_heads=1, norm=None, exp_forget=exp_forget)
        gx, _, _ = ref.slstm_backward(tape, np.ones_like(y))
    assert np.isfinite(y).all() and np.isfinite(gx).all() and (np.abs(y) <= 1).all()
    assert (state[2] >= 1).all()


@each_form
@pytest.mark.parametrize("reverse, ragged", [(False, False), (True, True)])
def test_gradients(form, reverse, ragged):
    rng = np.random.default_rng(14)
    values, lengths = draw(form, rng, t=4, i=2)
    options = dict(reverse=reverse, lengths=lengths if ragged else None, eps=1e-1)
    assert_gradients(rng, lambda v: forward(form, v, **options), backward, values)


def test_longdouble_stays_longdouble(form="layer heads"):
    values, _ = draw(form, np.random.default_rng(6))
    y, state, tape = forward(form, {name: a.astype(np.longdouble) for name, a in values.items()})
    grads = backward(tape, y, state)
    assert {a.dtype for a in (y, *state, *grads.values())} == {np.dtype(np.longdouble)}
    assert 0 < absolute_error(forward(form, values)[0], y) < 10 * SAME


def test_states_of_bfloat16():
    """Each step of a sequence equals a step of the exact cell from rounded states, with rounded results."""
    form, rng = "layer heads", np.random.default_rng(7)
    values, _ = draw(form, rng)
    y, end, tape = forward(form, values, state_dtype="bfloat16")
    for state in end:
        assert not (state.astype(np.float32).view(np.uint32) & 0xFFFF).any()
    exact = values | {"x": values["x"][:1]}
    for name, got in zip(STATES, forward(form, exact, state_dtype="bfloat16")[1], strict=True):
        want = forward(form, exact)[1][STATES.index(name)]
        assert (np.abs(got - want) <= np.abs(want) * 2**-8).all(), name
    gradients = backward(tape, np.ones_like(y))
    assert all(np.isfinite(g).all() for g in gradients.values())


@each_form
def test_torchs_gradients(form):
    """Computes each step with torch's operations, separately for each head and matrix, and differentiates by
    autograd."""
    torch = pytest.importorskip("torch")
    options = dict(norm="layer", exp_forget=False) | FORMS[form]
    heads, rng = options["num_heads"], np.random.default_rng(8)
    values, _ = draw(form, rng)
    t, b, h = *values["x"].shape[:2], values["h0"].shape[1]
    leaves = {name: torch.tensor(a, requires_grad=True) for name, a in values.items()}
    hh = leaves["weight_hh"].reshape(4, heads, h // heads, h // heads)
    bias = (leaves["bias_ih"] + leaves["bias_hh"]).reshape(4, h)
    state, outputs = [leaves[name] for name in STATES], []
    for step in range(t):
        old, c, n, m = state
        recurrent = torch.einsum("gkuv,bkv->gbku", hh, old.reshape(b, heads, -1)).reshape(4, b, h)
        inputs = (leaves["x"][step] @ leaves["weight_ih"].T).reshape(b, 4, h).transpose(0, 1)
        i, f, z, o = inputs + recurrent + bias[:, None]
        kept = (f if options["exp_forget"] else torch.nn.functional.logsigmoid(f)) + m
        new = torch.maximum(i, kept)
        c = torch.exp(kept - new) * c + torch.exp(i - new) * torch.tanh(z)
        n = torch.exp(kept - new) * n + torch.exp(i - new)
        state = [torch.sigmoid(o) * c / n, c, n, new]
        outputs.append(state[0])
    y = torch.stack(outputs)
    if options["norm"]:
        y = torch.nn.functional.group_norm(
            y.reshape(t * b, h), heads, leaves["gain_y"], leaves["bias_y"], eps=1e-5
        ).reshape(t, b, h)
    gy, *gstate = (rng.standard_normal(a.shape) for a in (y, *state))
    sum((a * torch.tensor(g)).sum() for a, g in zip((y, *state), (gy, *gstate), strict=True)).backward()
    mine, end, tape = forward(form, values)
    assert absolute_error(mine, y.detach()) < 1e-12
    for got, want in zip(end, state, strict=True):
        assert absolute_error(got, want.detach()) < SAME
    for name, g in backward(tape, gy, gstate).items():
        assert relative_error(g, leaves[name].grad) < 1e-12, name
