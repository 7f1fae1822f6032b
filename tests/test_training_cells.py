"""forward_train and backward of LSTM and GRU against back-propagation through time in the reference."""

from __future__ import annotations

import copy

import lnrnn
import numpy as np
import pytest
from helpers import absolute_error, on_every_isa, relative_error, several_threads, using_threads
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lnrnn import reference as ref
from networks import MILD, calm, network, normal, parts, reference_backward, reference_forward, sides, whole
from test_training import GRADIENT, T, nudged

same = np.testing.assert_array_equal
CELLS = ("LSTM", "GRU")
NORMS = ("layer", "batch", None)
each_cell = pytest.mark.parametrize("cell", CELLS)
each_norm = pytest.mark.parametrize("norm", NORMS)
by_row = pytest.mark.parametrize("norm", ["layer", None])  # no sequence sees another


def some_lengths(rng, norm, steps, batch):
    """0 .. steps each; under batch norm eight live on, for statistics of fewer amplify."""
    ends = rng.integers(0, steps + 1, batch)
    if norm == "batch":
        ends[:8] = steps
    return rng.permutation(ends)


def states(rnn, rng, batch):
    """One for each layer and direction, as h0 and gh are given."""
    n = rnn.num_layers * (2 if rnn.bidirectional else 1)
    return whole(rnn, [normal(rng, n, batch, rnn.hidden_size) for _ in parts(rnn, None)])


def named(rnn, gradients):
    """(gx, gh0, grads) as one dict."""
    gx, gh0, grads = gradients
    return {"x": gx, **dict(zip(("h0", "c0"), parts(rnn, gh0))), **grads}


def trained(rnn, x, h0, ends, gy, gh):
    return named(rnn, rnn.backward(rnn.forward_train(x, h0, ends)[2], gy, gh))


def true_gradients(rnn, x, h0, ends, gy, gh):
    _, _, tapes = reference_forward(rnn, x, h0, ends, training=True)
    return named(rnn, reference_backward(rnn, tapes, gy, gh))


def amplification(rnn, x, h0, ends, gy, gh, draws=3):
    """By how much roundings of all that is given move each gradient of the reference: {name: relative change}."""
    rng = np.random.default_rng(0)
    want, moved = true_gradients(rnn, x, h0, ends, gy, gh), {}
    for _ in range(draws):
        other = copy.deepcopy(rnn)
        for name, value in rnn.parameters().items():
            setattr(other, name, nudged(rng, value))
        start = whole(rnn, [nudged(rng, s) for s in parts(rnn, h0)])
        after = whole(rnn, [nudged(rng, g) for g in parts(rnn, gh)])
        for name, value in true_gradients(other, nudged(rng, x), start, ends, nudged(rng, gy), after).items():
            moved[name] = max(moved.get(name, 0), relative_error(value, want[name]))
    return moved


# --- precision ------------------------------------------------------------------------------------------------

@each_cell
@each_norm
def test_every_size(cell, norm):
    sizes = [(15, 7, 5), (16, 31, 13), (17, 4, 70), (31, 33, 8), (33, 97, 9), (47, 3, 33), (48, 16, 12), (49, 15, 64),
             (64, 64, 7), (65, 130, 11), (97, 17, 6), (130, 257, 31), (193, 65, 32)]
    for k, (hidden, inputs, batch) in enumerate(sizes):
        rng = np.random.default_rng(k)
        rnn = calm(inputs, hidden, cell=cell, seed=k, norm=norm)
        steps = (T, 1, 5)[k % 3]
        x, gy = normal(rng, steps, batch, inputs), normal(rng, steps, batch, hidden)
        ends = some_lengths(rng, norm, steps, batch) if k % 2 else np.full(batch, steps)
        args = (x, states(rnn, rng, batch), ends, gy, states(rnn, rng, batch))
        want = true_gradients(rnn, *args)
        for isa, got in on_every_isa(lambda: trained(rnn, *args)).items():
            assert list(got) == list(want) and all(g.dtype == np.float32 for g in got.values())
            for name, g in got.items():
                assert relative_error(g, want[name]) < GRADIENT, (isa, name, hidden, inputs, batch)


@each_cell
@each_norm
@pytest.mark.parametrize("hidden, inputs, batch", [(1, 5, 5), (1, 1, 70), (2, 5, 5), (3, 5, 2), (5, 5, 33), (17, 1, 70)])
def test_sizes_that_amplify(cell, norm, hidden, inputs, batch):
    """Layer norm over two units, or of W x with one input, is nearly a sign, and so is batch norm over two sequences; over
    one, nothing depends on it."""
    rng = np.random.default_rng(hidden)
    if norm == "batch" and inputs == 1:
        norm = MILD  # else next to nothing depends on the size of w, and its gradient is only what has cancelled
    rnn = calm(inputs, hidden, cell=cell, seed=3, norm=norm)
    ends = np.sort(rng.integers(0, T + 1, batch))
    x, gy = normal(rng, T, batch, inputs), normal(rng, T, batch, hidden)
    args = (x, states(rnn, rng, batch), ends, gy, states(rnn, rng, batch))
    want, loss = true_gradients(rnn, *args), amplification(rnn, *args)
    for isa, got in on_every_isa(lambda: trained(rnn, *args)).items():
        for name, g in got.items():
            size = np.abs(want[name]).max(initial=0)
            assert absolute_error(g, want[name]) < size * (GRADIENT + 2 * loss[name]) + 8e-6, (isa, name)


@settings(max_examples=80)
@given(st.sampled_from(CELLS), st.sampled_from(NORMS), st.integers(1, 3), st.booleans(), st.booleans(), st.booleans(),
       st.sampled_from((15, 17, 33, 48)), st.sampled_from((4, 5, 16, 33)), st.sampled_from((1, 9, 33, 67)),
       st.sampled_from(["both", "gy", "gh"]), st.integers(0, 99))
@example("LSTM", "layer", 2, True, True, True, 33, 5, 67, "both", 0)
@example("GRU", "layer", 2, True, False, False, 17, 5, 9, "both", 0)
@example("LSTM", "batch", 2, True, True, False, 17, 5, 67, "both", 0)
@example("GRU", "batch", 2, True, False, True, 33, 5, 67, "both", 0)
def test_layers_and_directions(cell, norm, layers, both, batch_first, bias, hidden, inputs, batch, given, seed):
    rng = np.random.default_rng(seed)
    rnn = calm(inputs, hidden, cell=cell, seed=seed, norm=norm, num_layers=layers, bidirectional=both,
               batch_first=batch_first, bias=bias)
    x, gy = normal(rng, T, batch, inputs), normal(rng, T, batch, hidden * (1 + both))
    h0, gh, ends = states(rnn, rng, batch), states(rnn, rng, batch), some_lengths(rng, norm, T, batch)
    want = true_gradients(rnn, x, h0, ends, 0 * gy if given == "gh" else gy, None if given == "gy" else gh)
    swapped = (lambda a: a.swapaxes(0, 1)) if batch_first else np.asarray

    def compute():
        _, _, tape = rnn.forward_train(swapped(x), h0, ends)
        return named(rnn, rnn.backward(tape, None if given == "gh" else swapped(gy), None if given == "gy" else gh))

    for isa, got in on_every_isa(compute).items():
        got["x"] = swapped(got["x"])
        for name, g in got.items():
            scale = np.abs(want[name]).max(initial=1)
            assert absolute_error(g, want[name]) < 2 * GRADIENT * scale, (isa, name)


# --- the statistics of batch norm ---------------------------------------------------------------------------------

# Relative to the largest number of its kind. Measured at most: 6e-7.
STATISTICS = 2e-6


@each_cell
@pytest.mark.parametrize("momentum, room", [(0.1, None), (0.25, T), (None, None)])
def test_training_runs_as_the_reference_and_keeps_its_statistics(cell, momentum, room):
    """What a batch gives and what is kept over three, with more sequences than a tile has rows, and with one."""
    rng = np.random.default_rng(3)
    data = [(normal(rng, T, batch, 5), some_lengths(rng, "batch", steps, batch)) for steps, batch in ((5, 70), (T, 12), (3, 1))]

    def compute():
        rnn = calm(5, 17, cell=cell, norm=lnrnn.BatchNormSpec(room, momentum=momentum), num_layers=2, bidirectional=True)
        kept = {}
        for x, ends in data:
            h0 = states(rnn, np.random.default_rng(4), len(ends))
            y, end, _ = rnn.forward_train(x, h0, ends)
            want_y, want_end, tapes = reference_forward(rnn, x, h0, ends, training=True)
            assert relative_error(y, want_y) < GRADIENT and not y[np.arange(T)[:, None] >= ends].any()
            for got, want in zip(parts(rnn, end), parts(rnn, want_end)):
                assert relative_error(got, want) < GRADIENT
            for suffix, tape in tapes.items():
                for side in sides(rnn):
                    mean, var = tape.statistics[side]
                    old = kept.get((side, suffix), (np.zeros((0, mean.shape[1])),) * 2 + (np.zeros(0, np.int64),))
                    new = kept[side, suffix] = ref.update_step_statistics(old, (mean, var, tape.count), momentum)
                    known = len(new[2])
                    assert rnn.known_steps == known
                    same(getattr(rnn, f"count{suffix}"), np.r_[new[2], [0] * (room - known if room else 0)])
                    for name, value in zip(("running_mean", "running_var"), new):
                        got = getattr(rnn, f"{name}_{side}{suffix}")
                        assert relative_error(got[:known], value) < STATISTICS, (name, side, suffix)
                        assert len(got) == (room or known) and not got[known:].any()

    on_every_isa(compute)


@each_cell
def test_a_tape_keeps_the_statistics_of_its_batch(isa, rng, cell):
    rnn = network(3, 17, cell=cell, norm="batch", num_layers=2)
    x, gy, ends = normal(rng, T, 9, 3), normal(rng, T, 9, 17), np.array([9, 9, 9, 9, 9, 4, 7, 1, 0])
    h0, gh = states(rnn, rng, 9), states(rnn, rng, 9)
    want = trained(rnn, x, h0, ends, gy, gh)
    _, _, tape = rnn.forward_train(x, h0, ends)
    rnn.forward_train(normal(rng, 20, 30, 3))
    rnn.calibrate([normal(rng, T, 30, 3)])
    rnn.overrun = "last"
    rnn(normal(rng, 20, 30, 3))
    for _ in range(2):
        for name, g in named(rnn, rnn.backward(tape, gy, gh)).items():
            same(g, want[name], err_msg=name)


# --- what does not change a bit -----------------------------------------------------------------------------------


@each_cell
@by_row
def test_the_forward_run_is_the_call(isa, rng, cell, norm):
    for batch, hidden in ((1, 15), (13, 97), (70, 33)):
        rnn = network(7, hidden, cell=cell, norm=norm, num_layers=2, bidirectional=True)
        x, h0, ends = normal(rng, T, batch, 7), states(rnn, rng, batch), rng.integers(0, T + 1, batch)
        y, h, _ = rnn.forward_train(x, h0, ends)
        called, end = rnn(x, h0, ends)
        same(y, called)
        same(parts(rnn, h), parts(rnn, end))


@each_cell
@each_norm
def test_threads(isa, rng, cell, norm):
    """Whoever computes, and whoever had computed the tape."""
    rnn = network(65, 97, cell=cell, norm=norm, num_layers=2)
    x, gy, ends = normal(rng, T, 100, 65), normal(rng, T, 100, 97), rng.integers(T // 2, T + 1, 100)
    h0, gh = states(rnn, rng, 100), states(rnn, rng, 100)
    assert ends.sum() * 3 * 97 * (65 + 97) > 3 * 2**22     # worth four threads
    with using_threads(1):
        _, _, tape = rnn.forward_train(x, h0, ends)
        want = named(rnn, rnn.backward(tape, gy, gh))
    for threads in (2, 4):
        with several_threads(threads, had=1 if norm == "batch" else None):  # whose steps need all sequences
            _, _, other = rnn.forward_train(x, h0, ends)
        with several_threads(threads):
            found = named(rnn, rnn.backward(tape, gy, gh))
        with using_threads(1):
            crossed = named(rnn, rnn.backward(other, gy, gh))
        for name, g in want.items():
            same(found[name], g, err_msg=f"{name}, {threads} threads")
            same(crossed[name], g, err_msg=f"{name}, tape of {threads} threads")


@each_cell
@each_norm
def test_padding(isa, rng, cell, norm):
    """What x and gy hold past a length is not read; gx is 0 there; an empty sequence hands gh on."""
    rnn = network(3, 17, cell=cell, norm=norm, num_layers=2, bidirectional=True)
    x, gy, ends = normal(rng, T, 12, 3), normal(rng, T, 12, 34), np.array([9, 0, 9, 9, 2, 9, 7, 1, 0, 5, 6, 8])
    h0, gh, past = states(rnn, rng, 12), states(rnn, rng, 12), np.arange(T)[:, None] >= ends
    want = trained(rnn, x, h0, ends, gy, gh)
    assert not want["x"][past].any()
    for name, g in zip(("h0", "c0"), parts(rnn, gh)):
        same(want[name][:, ends == 0], g[:, ends == 0])
    x[past], gy[past] = np.nan, np.inf
    for name, g in trained(rnn, x, h0, ends, gy, gh).items():
        same(g, want[name], err_msg=name)


@each_cell
@by_row
def test_a_nan_reaches_its_own_sequence_and_the_parameters(isa, rng, cell, norm):
    rnn = network(3, 17, cell=cell, norm=norm, num_layers=2)
    x, gy = normal(rng, T, 40, 3), normal(rng, T, 40, 17)
    clean = trained(rnn, x, None, None, gy, None)
    x[4, 6, 1] = np.nan
    got = trained(rnn, x, None, None, gy, None)
    for name in ("x", "h0", "c0")[: 1 + len(parts(rnn, None))]:
        same(np.delete(got[name], 6, 1), np.delete(clean[name], 6, 1))
        assert np.isnan(got[name][:, 6]).all()
    assert np.isnan(got["weight_hh_l1"]).all()


@each_cell
@each_norm
@pytest.mark.parametrize("steps, batch", [(0, 3), (4, 0), (0, 0), (4, 3)])
def test_nothing_to_learn_from(isa, rng, cell, norm, steps, batch):
    """No steps, no sequences, no lengths: the state's gradient goes through and the parameters have none."""
    rnn = network(3, 17, cell=cell, norm=norm, bidirectional=True)
    gh = states(rnn, rng, batch)
    got = trained(rnn, normal(rng, steps, batch, 3), states(rnn, rng, batch), np.zeros(batch, int),
                  normal(rng, steps, batch, 34), gh)
    for name, g in zip(("h0", "c0"), parts(rnn, gh)):
        same(got.pop(name), g)
    assert not any(g.any() for g in got.values())
