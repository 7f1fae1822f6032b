"""Compares the reference's cells with steps computed by hand and central differences."""

from __future__ import annotations

from functools import partial
from math import exp, sqrt, tanh

import numpy as np
import pytest

from helpers import absolute_error
from lnrnn import reference as ref
from reference_cells import CELLS, PER_STEP, assert_gradients, backward, draw, forward, mapped, statistics_of

# two computations in float64 round differently, because their products have different shapes; measured: at
# most 1.3e-15
SAME = 1e-14

each_cell = pytest.mark.parametrize("name", CELLS)


def sig(a):
    return 1 / (1 + exp(-a))


# --- by hand: one or two hidden units, numbers with simple mean and deviation -------------------------------


@pytest.mark.parametrize("cell", ["out", "carry", None])
def test_split_lstm_by_hand(cell):
    # W_ih x is (-3, -1, 1, 3), and with eps 4 its sigma is 3. W_hh h is 2 (1, 1, -1, -1): sigma sqrt(8). With
    # one hidden unit c equals its mean, so the norm of c is the bias.
    p = dict(weight_ih=[[-3], [-1], [1], [3]], weight_hh=[[1], [1], [-1], [-1]])
    p |= dict(gain_ih=[1, 3, 1, 1], bias_ih=[0, 0, 1, 0], gain_hh=[sqrt(2)] * 4, bias_hh=[0, 0, 0, 1])
    p |= dict(gain_c=[1], bias_c=[0.5])
    p = {k: np.array(v, float) for k, v in p.items()}
    y, (h, c), _ = ref.lstm([[[1.0]]], p, cell=cell, eps=4, h0=[[2.0]], c0=[[3.0]])
    raw = sig(-1 + 1) * 3 + sig(-1 + 1) * tanh(1 / 3 + 1 - 1)
    np.testing.assert_allclose(c, [[0.5 if cell == "carry" else raw]], rtol=1e-15)
    np.testing.assert_allclose(h, [[sig(1 - 1 + 1) * tanh(raw if cell is None else 0.5)]], rtol=1e-15)


def test_joint_and_gate_lstm_by_hand():
    # two hidden units: a gate's normalised pair is (-d, d) / sqrt(d^2 + eps), here d = 3, eps 16: -+3/5
    a = np.array([1, 7, 2, 8, 3, 9, 4, 10.0])  # i, f, g, o
    p = dict(weight_ih=a[:, None], weight_hh=np.zeros((8, 2)))
    y, (_, c), _ = ref.lstm([[[1.0]]], p, placement="gate", cell=None, eps=16)
    s = np.array([-0.6, 0.6])
    want_c = [sig(v) * tanh(v) for v in s]
    np.testing.assert_allclose(c[0], want_c, rtol=1e-15)
    want = [sig(v) * tanh(w) for v, w in zip(s, want_c, strict=True)]
    np.testing.assert_allclose(y[0, 0], want, rtol=1e-15)
    # all eight: mean 5.5, variance 9 + 1.25
    _, (_, c), _ = ref.lstm([[[1.0]]], p, placement="joint", cell=None, eps=6)
    s = (a - 5.5) / sqrt(16.25)
    np.testing.assert_allclose(c[0], [sig(s[0]) * tanh(s[4]), sig(s[1]) * tanh(s[5])], rtol=1e-15)


def test_gru_placements_by_hand():
    # W_ih x is (0, 6, 3), W_hh h is (1, 1, 4), and eps is 16; a norm over one hidden unit is the bias
    p = dict(weight_ih=np.array([[0.0], [6], [3]]), weight_hh=np.array([[1.0], [1], [4]]))

    def run(bias=(0, 0, 0), **options):
        biases = dict(bias=np.array(bias), bias_ih=np.array(bias), bias_hh=2 * np.array(bias))
        (h,) = ref.gru([[[1.0]]], p | biases, eps=16, h0=[[1.0]], **options)[1].ravel()
        return h

    def new_state(z, n):
        return (1 - z) * n + z

    # the norm over r and z: (-3, 3) / 5 for W_ih x, (0, 0) for W_hh h. The norm over n: the biases 1 and 2
    want = new_state(sig(0.6), tanh(1 + sig(-0.6) * 2))
    np.testing.assert_allclose(run((0, 0, 1), placement="split"), want, rtol=1e-15)
    # the norms over all gates: (-3, 3, 0) / sqrt(6 + 16) for W_ih x, (-1, -1, 2) / sqrt(2 + 16) for W_hh h
    (xr, xz, xn), (hr, hz, hn) = np.array([-3, 3, 0]) / sqrt(22), np.array([-1, -1, 2]) / sqrt(18)
    want = new_state(sig(xz + hz), tanh(xn + sig(xr + hr) * hn))
    np.testing.assert_allclose(run(placement="split", span="all"), want, rtol=1e-14)
    # the sum (1, 7, 7): (-4, 2, 2) / sqrt(8 + 16)
    ar, az, an = np.array([-4, 2, 2]) / sqrt(24)
    np.testing.assert_allclose(run(placement="joint"), new_state(sig(az), tanh(sig(ar) * an)), rtol=1e-14)
    # the norm over a gate of one unit is its bias
    np.testing.assert_allclose(run((1, 2, 3), placement="gate"), new_state(sig(2), tanh(3)), rtol=1e-15)


def test_batch_lstm_by_hand():
    # W_ih x is (-3, 3) and W_hh h is (3, -3) in the two sequences: the norms with eps 16 divide them by 5
    p = dict(weight_ih=np.ones((4, 1)), weight_hh=np.full((4, 1), 2.0), bias=np.array([0, 0, 0, 1.0]))
    p |= dict(gain_ih=np.array([0, 0, 5, 0.0]), gain_hh=np.array([0, 0, 0, 5.0]), bias_c=np.array([0.25]))
    x, h0 = np.array([[[-3.0], [3]]]), np.array([[1.5], [-1.5]])
    y, (h, c), tape = ref.lstm(x, p, norm="batch", eps=16, h0=h0)
    raw = 0.5 * tanh(3)
    np.testing.assert_allclose(c[:, 0], [-raw, raw], rtol=1e-15)
    hat = raw / sqrt(raw**2 + 16)
    np.testing.assert_allclose(h[:, 0], [sig(4) * tanh(0.25 - hat), sig(-2) * tanh(0.25 + hat)], rtol=1e-14)
    shapes = {site: [part.shape for part in parts] for site, parts in tape.statistics.items()}
    assert shapes == {"ih": [(1, 4)] * 2, "hh": [(1, 4)] * 2, "c": [(1, 1)] * 2}
    np.testing.assert_allclose(tape.statistics["hh"], [np.zeros((1, 4)), np.full((1, 4), 9.0)])
    np.testing.assert_allclose(tape.statistics["c"][1], [[raw**2]])
    assert tape.count.tolist() == [2]


def test_split_rnn_equals_a_loop_of_its_equation():
    rng = np.random.default_rng(1)
    v, _ = draw("rnn split", rng, inner=False)
    y, _, _ = ref.rnn(**v, placement="split", eps=0.1)
    h = v["h0"]
    for t in range(len(y)):
        a = ref.layer_norm(v["x"][t] @ v["weight_ih"].T, 4, v["gain_ih"], v["bias_ih"], 0.1)
        h = np.tanh(a + ref.layer_norm(h @ v["weight_hh"].T, 4, v["gain_hh"], v["bias_hh"], 0.1))
        assert absolute_error(y[t], h) < SAME


# --- lengths, direction, statistics -------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@each_cell
def test_a_sequence_in_a_batch_equals_the_sequence_alone(name, reverse):
    """Padding, which is NaN here, and other sequences have no effect. A sequence of length 0 keeps the
    state."""
    rng = np.random.default_rng(2)
    v, lengths = draw(name, rng)
    known = {"statistics": statistics_of(name, rng, 5)} if name in PER_STEP else {}
    options = dict(reverse=reverse, **known)
    for b, n in enumerate(lengths):
        v["x"][n:, b] = np.nan
    y, state, _ = forward(name, v, lengths=lengths, **options)
    starts = [k for k in ("h0", "c0") if k in v]
    for b, n in enumerate(lengths):
        own = v | {k: v[k][b : b + 1] for k in starts} | {"x": v["x"][:n, b : b + 1]}
        alone, last, _ = forward(name, own, **options)
        assert absolute_error(y[:n, b], alone[:, 0]) < SAME
        assert not y[n:, b].any()
        for key, mine, its in zip(starts, state, last, strict=True):
            assert absolute_error(mine[b], its[0]) < SAME
            if n == 0:
                np.testing.assert_array_equal(mine[b], v[key][b])
        if n:
            np.testing.assert_array_equal(state[0][b], y[0 if reverse else n - 1, b])


@each_cell
def test_reverse_equals_forward_on_flipped_sequences(name):
    v, _ = draw(name, np.random.default_rng(3))
    y, state, _ = forward(name, v, reverse=True)
    flipped, last, _ = forward(name, v | {"x": v["x"][::-1]})
    np.testing.assert_array_equal(y, flipped[::-1])
    np.testing.assert_array_equal(state, last)


@each_cell
def test_two_halves_equal_the_whole(name):
    """A cell has no memory except its state. The default of the initial state is zeros."""
    rng = np.random.default_rng(4)
    v, _ = draw(name, rng)
    known = {"statistics": statistics_of(name, rng, 5)} if name in PER_STEP else {}
    rest = {"statistics": mapped(known["statistics"], lambda s: s[2:])} if known else {}
    starts = [k for k in ("h0", "c0") if k in v]
    y, state, _ = forward(name, v | {k: np.zeros_like(v[k]) for k in starts}, **known)
    without = {k: a for k, a in v.items() if k not in starts}
    first, middle, _ = forward(name, without | {"x": v["x"][:2]}, **known)
    second, last, _ = forward(name, v | dict(zip(starts, middle, strict=True)) | {"x": v["x"][2:]}, **rest)
    assert absolute_error(np.concatenate([first, second]), y) < SAME
    assert absolute_error(last, state) < SAME


@each_cell
def test_absent_parameters_are_gain_one_and_bias_zero(name):
    v, _ = draw(name, np.random.default_rng(5))
    neutral = {
        k: np.ones_like(a) if k.startswith("gain") else np.zeros_like(a) if "bias" in k else a
        for k, a in v.items()
    }
    bare = {k: a for k, a in v.items() if "bias" not in k and "gain" not in k}
    np.testing.assert_array_equal(forward(name, neutral)[0], forward(name, bare)[0])


@each_cell
def test_longdouble_input_is_computed_in_longdouble(name):
    v, _ = draw(name, np.random.default_rng(6))
    y, state, tape = forward(name, {k: a.astype(np.longdouble) for k, a in v.items()})
    grads = backward(name, tape, y, state)
    assert {a.dtype for a in (y, *state, *grads.values())} == {np.dtype(np.longdouble)}
    assert 0 < absolute_error(forward(name, v)[0], y) < SAME


@pytest.mark.parametrize("name", PER_STEP)
def test_step_statistics_equal_those_of_a_loop_over_active_sequences(name):
    """The loop runs the active sequences up to each step, and computes the inputs of each norm from their
    outputs and states."""
    v, lengths = draw(name, np.random.default_rng(7))
    lengths[1] = 3
    v["x"][lengths[2] :, 2] = np.nan
    tape = forward(name, v, lengths=lengths)[2]
    assert tape.count.tolist() == [4, 3, 3, 2, 1]
    for t in range(5):
        alive = lengths > t
        x_ = v["x"][t, alive] @ v["weight_ih"].T + v["inner_bias_ih"]
        before = forward(name, v, lengths=np.minimum(lengths, t))[1][0][alive]
        h_ = before @ v["weight_hh"].T + v["inner_bias_hh"]
        if "reset" in name:
            r, n = tape.steps[t].kept[0], slice(2 * before.shape[1], None)
            h_[:, n] = (r * before) @ v["weight_hh"][n].T + v["inner_bias_hh"][n]
        inputs = {"": x_ + h_} if name.startswith("rnn") else {"ih": x_, "hh": h_}
        if name.startswith("ligru"):
            del inputs["hh"]
        if name.startswith("lstm"):
            inputs["c"] = forward(name, v, lengths=np.minimum(lengths, t + 1))[1][1][alive]
        assert set(tape.statistics) == set(inputs)
        for site, a in inputs.items():
            mean, var = tape.statistics[site]
            assert absolute_error(mean[t], a.mean(0)) < SAME
            assert absolute_error(var[t], a.var(0)) < SAME


@pytest.mark.parametrize("name", PER_STEP)
def test_inference_with_the_statistics_of_training_equals_training(name):
    v, lengths = draw(name, np.random.default_rng(8))
    y, state, tape = forward(name, v, lengths=lengths)
    learnt = tape.statistics.get("", tape.statistics)
    again, last, used = forward(name, v, lengths=lengths, statistics=learnt)
    assert absolute_error(again, y) < SAME
    assert absolute_error(last, state) < SAME
    assert used.count.size == 0


@pytest.mark.parametrize("name", PER_STEP)
def test_overrun_policies_beyond_the_known_steps(name):
    """Statistics are known for two steps. In later steps, "last" repeats the last statistics, "mean" their
    average, as if these were known."""
    rng = np.random.default_rng(9)
    v, lengths = draw(name, rng)
    known = statistics_of(name, rng, 2)
    for overrun, row in (("last", lambda s: s[-1:]), ("mean", lambda s: s.mean(0, keepdims=True))):
        padded = mapped(known, lambda s, row=row: np.concatenate([s, np.repeat(row(s), 3, axis=0)]))
        want = forward(name, v, lengths=lengths, statistics=padded)[0]
        got = forward(name, v, lengths=lengths, statistics=known, overrun=overrun)[0]
        np.testing.assert_array_equal(got, want)
    y, state, tape = forward(name, v, statistics=known, overrun="batch")
    assert tape.count.tolist() == [4, 4, 4]
    starts = [k for k in ("h0", "c0") if k in v]
    middle = forward(name, v | {"x": v["x"][:2]}, statistics=known)[1]
    rest, last, _ = forward(name, v | dict(zip(starts, middle, strict=True)) | {"x": v["x"][2:]})
    assert absolute_error(rest, y[2:]) < SAME
    assert absolute_error(last, state) < SAME
    with pytest.raises(ValueError, match="step 4 .* 2 steps are known"):
        forward(name, v, lengths=lengths, statistics=known)
    forward(name, v, lengths=np.minimum(lengths, 2), statistics=known)


@pytest.mark.parametrize("name", ["lstm batch", "gru batch"])
def test_calibration_does_not_depend_on_the_division_into_batches(name):
    v, lengths = draw(name, np.random.default_rng(10))
    x, cell = v.pop("x"), getattr(ref, CELLS[name][0])
    parameters = {k: a for k, a in v.items() if k not in ("h0", "c0")}
    whole, count = ref.calibrate([(x, lengths)], parameters, cell=cell)
    parts = [(x[:1, 2:3], None), (x[:, :2], lengths[:2]), (x[:, 3:], lengths[3:])]
    apart, again = ref.calibrate(parts, parameters, cell=cell)
    assert again.tolist() == count.tolist() == [3, 2, 2, 2, 1]
    _, _, tape = cell(x, parameters, norm="batch", lengths=lengths)
    for site, (mean, var) in whole.items():
        np.testing.assert_array_equal(tape.statistics[site], (mean, var))
        assert absolute_error(apart[site], (mean, var)) < SAME


# --- central differences ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse, ragged", [(False, False), (True, True)])
@pytest.mark.parametrize("name", [*CELLS, *(f"{n} {how}" for n in PER_STEP for how in ("given", "overrun"))])
def test_gradients_equal_central_differences(name, reverse, ragged):
    name, _, kind = name.partition(" batch ")
    name += " batch" if kind else ""
    rng = np.random.default_rng(14)
    v, lengths = draw(name, rng, t=4, i=2, h=3)
    # eps is large, because a small one would amplify nearly equal sequences too much for central differences
    options = dict(reverse=reverse, lengths=lengths if ragged else None, eps=1e-2)
    if kind:
        steps = {"given": 4, "overrun": 2}[kind]
        options |= dict(statistics=statistics_of(name, rng, steps, h=3), overrun="batch")
    run, back = lambda values: forward(name, values, **options), partial(backward, name)
    tape, gy, gstate, grads = assert_gradients(rng, run, back, v)
    # the default of the last state's gradients is zero, and gradients of y past a length have no effect
    nothing = [np.zeros_like(s) for s in gstate]
    for key, g in backward(name, tape, gy).items():
        np.testing.assert_array_equal(g, backward(name, tape, gy, nothing)[key])
    if ragged:
        poisoned = np.where(np.arange(4)[:, None, None] < lengths[:, None], gy, np.nan)
        for key, g in backward(name, tape, poisoned, gstate).items():
            np.testing.assert_array_equal(g, grads[key])


@pytest.mark.parametrize("name", [name for name in CELLS if not name.endswith("plain")])
def test_gradients_without_inner_biases_equal_those_with_zeros(name):
    rng = np.random.default_rng(15)
    v, lengths = draw(name, rng, inner=False)
    zeros = {f"inner_bias_{side}": np.zeros(len(v[f"weight_{side}"])) for side in ("ih", "hh")}
    y, state, tape = forward(name, v, lengths=lengths)
    _, _, other = forward(name, v | zeros, lengths=lengths)
    gy, gstate = rng.standard_normal(y.shape), [rng.standard_normal(s.shape) for s in state]
    got, want = backward(name, tape, gy, gstate), backward(name, other, gy, gstate)
    assert set(got) == set(v) and set(want) == set(v | zeros)
    for key, g in got.items():
        np.testing.assert_array_equal(g, want[key], err_msg=key)
