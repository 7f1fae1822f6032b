"""Tests properties that only an SLSTM has. Tests of all cells include SLSTM too."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error, on_every_family, relative_error
from lnrnn import reference as ref
from networks import (
    STARTS,
    calm,
    drawn_run,
    drawn_state,
    named_gradients,
    network,
    normal,
    reference_backward,
    reference_forward,
    same,
)

T, B, D, H = 9, 5, 3, 24


# --- the stabiliser -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("exp_forget", [False, True])
def test_gates_of_100_neither_overflow_nor_make_nan(exp_forget):
    """Tests the forward and the backward pass. x has the arguments of the gates."""
    rng = np.random.default_rng(1)
    slstm = lnrnn.SLSTM(4 * 12, 12, num_heads=3, bias=False, exp_forget=exp_forget, norm=None, seed=0)
    slstm.weight_ih_l0 = np.eye(4 * 12)
    slstm.weight_hh_l0 = np.zeros((4 * 12, 4))
    x = rng.choice(np.float32([-100, -1, 0, 1, 100]), (60, 20, 4 * 12))
    gy = normal(rng, 60, 20, 12)
    want, _, tape = ref.slstm(
        x, {n[:-3]: v for n, v in slstm.parameters().items()}, num_heads=3, norm=None, exp_forget=exp_forget
    )
    gx, _, _ = ref.slstm_backward(tape, gy)

    def both():
        y, state, tape = slstm.forward_train(x)
        return y, state, slstm.backward(tape, gy)[0]

    for y, state, got in on_every_family(both).values():
        assert absolute_error(y, want) < 2e-5 and (np.abs(y) <= 1).all()
        assert all(np.isfinite(s).all() for s in state) and (state[2] >= 1).all()
        assert absolute_error(got, gx) < 2e-5 * np.abs(gx).max()


def test_a_unit_whose_n_is_0_has_no_past(rng):
    slstm = network(D, H, cell="SLSTM")
    x, start = normal(rng, T, B, D), [np.array(s) for s in drawn_state(rng, slstm, B)]
    start[2][0, :, ::3] = 0
    y, _, tape = slstm.forward_train(x, tuple(start))
    gx, (gh, gc, gn, gm), _ = slstm.backward(tape, np.ones_like(y), tuple(start))
    for g in (gc, gn, gm):
        assert (g[0, :, ::3] == 0).all() and (g[0, :, 1::3] != 0).any()
    start[1][0, :, ::3] = np.nan
    start[3][0, :, ::3] = np.inf
    same(slstm(x, tuple(start))[0], y)


# --- gradients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"exp_forget": True}, {"norm": None}], ids=str)
def test_gradients_of_each_state_alone(options):
    """The kernels' gradient of m is that at constant c exp(m) and n exp(m), the caller's at constant c and n.
    backward converts one to the other at the first and the last step."""
    slstm = calm(D, H, cell="SLSTM", num_heads=3, **options)
    x, h0, ends, gy, _ = drawn_run(7, slstm, T, [T, 0, 3, T, 1])
    for k in range(4):
        gh = tuple(normal(np.random.default_rng(k), *s.shape) * (j == k) for j, s in enumerate(h0))
        _, _, tapes = reference_forward(slstm, x, h0, ends, training=True)
        want = named_gradients(slstm, reference_backward(slstm, tapes, 0 * gy, gh))

        def run(gh=gh):
            tape = slstm.forward_train(x, h0, ends)[2]
            return named_gradients(slstm, slstm.backward(tape, 0 * gy, gh))

        for isa, got in on_every_family(run).items():
            for name, g in got.items():
                if np.abs(want[name]).max() > 0:
                    assert relative_error(g, want[name]) < 5e-6, (isa, name, STARTS[k])


# --- states of bfloat16 -------------------------------------------------------------------------------------


def test_states_of_bfloat16_are_the_rounded_steps(rng):
    """Each step equals a step of the exact cell from the same states, with rounded results."""
    slstm = network(D, H, cell="SLSTM", norm=None, state_dtype="bfloat16")
    exact = network(D, H, cell="SLSTM", norm=None)
    x = normal(rng, T, B, D)

    def run():
        state, ys = drawn_state(np.random.default_rng(3), slstm, B), []
        for t in range(T):
            y, new = slstm(x[t : t + 1], state)
            _, unrounded = exact(x[t : t + 1], state)
            for got, want in zip(new, unrounded, strict=True):
                same(got, rounded(want))
            ys.append(y)
            state = new
        return np.concatenate(ys), state

    for y, _ in on_every_family(run).values():
        same(y, slstm(x, drawn_state(np.random.default_rng(3), slstm, B))[0])


def rounded(a):
    bits = a.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).astype(np.uint32).view(np.float32)


def test_gradients_through_states_of_bfloat16(rng):
    """The gradients ignore that states are rounded, so they agree only up to the size of the rounding."""
    slstm = calm(D, H, cell="SLSTM", num_heads=3, state_dtype="bfloat16")
    x, h0, ends, gy, gh = drawn_run(7, slstm, T, [T, 0, 3, T, 1])
    _, _, tapes = reference_forward(slstm, x, h0, ends, training=True)
    want = named_gradients(slstm, reference_backward(slstm, tapes, gy, gh))
    got = named_gradients(slstm, slstm.backward(slstm.forward_train(x, h0, ends)[2], gy, gh))
    for name, g in got.items():
        assert relative_error(g, want[name]) < 0.03, name
