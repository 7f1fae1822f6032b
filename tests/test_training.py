"""forward_train and backward against back-propagation through time in the reference; what a tape keeps."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from helpers import absolute_error, layouts, on_every_isa, relative_error, several_threads, using_threads
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from networks import NONLINEARITIES, NORMS, calm, network, normal, reference_backward, reference_forward

same = np.testing.assert_array_equal
each_norm = pytest.mark.parametrize("norm", NORMS)
T = 9


def flat(gradients):
    """(gx, gh0, grads) as one dict."""
    gx, gh0, grads = gradients
    return {"x": gx, "h0": gh0, **grads}


def trained(rnn, x, h0, ends, gy, gh):
    """One forward and backward run: {name: gradient}."""
    return flat(rnn.backward(rnn.forward_train(x, h0, ends)[2], gy, gh))


def true_gradients(rnn, x, h0, ends, gy, gh):
    """{name: gradient} of the reference, or None if x is not fit to compare by: see kink."""
    _, _, tapes = reference_forward(rnn, x, h0, ends, training=True)
    return flat(reference_backward(rnn, tapes, gy, gh)) if kink(rnn, tapes) > KINK else None


def kink(rnn, tapes):
    """How near any argument of relu comes to 0, where its slope jumps: in float32 it may lie on the other side."""
    nearest = np.inf
    for suffix, tape in tapes.items() if rnn.nonlinearity == "relu" else ():
        gain = getattr(rnn, "gain" + suffix, 1)
        bias = tape.options["bias"]
        for step in tape.steps:
            nearest = min(nearest, np.abs(step.ahat * gain + (0 if bias is None else bias)).min())
    return nearest


KINK = 3e-6


def nudged(rng, value):
    """Each number moved to a float32 beside it, or left."""
    value = np.asarray(value, np.float32)
    return np.nextafter(value, value + rng.integers(-1, 2, value.shape).astype(np.float32))


def amplification(rnn, x, h0, ends, gy, gh, draws=3):
    """By how much roundings of parameters, x and h0 move each gradient of the reference: {name: relative change}."""
    rng = np.random.default_rng(0)
    want, moved = true_gradients(rnn, x, h0, ends, gy, gh), {}
    for _ in range(draws):
        other = copy.deepcopy(rnn)
        for name, value in rnn.parameters().items():
            setattr(other, name, nudged(rng, value))
        found = true_gradients(other, nudged(rng, x), nudged(rng, h0), ends, gy, gh)
        for name, value in found.items():
            moved[name] = max(moved.get(name, 0), relative_error(value, want[name]))
    return moved


# --- precision ----------------------------------------------------------------------------------------------

# Relative to the largest entry of each gradient. Measured at most: 1.1e-6, and 5.4e-6 through three layers.
GRADIENT = 3e-6


@each_norm
@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
def test_every_size(norm, nonlinearity):
    cases = [(15, 7, 5), (16, 31, 13), (17, 1, 70), (31, 33, 8), (33, 97, 9), (47, 3, 33), (48, 16, 12), (49, 15, 64),
             (64, 64, 7), (65, 130, 11), (97, 17, 6), (130, 257, 31), (193, 65, 32)]
    for k, (hidden, inputs, batch) in enumerate(cases):
        rng = np.random.default_rng(k)
        rnn = calm(inputs, hidden, seed=k, norm=norm, nonlinearity=nonlinearity)
        steps = (T, 1, 5)[k % 3]
        x, gy = normal(rng, steps, batch, inputs), normal(rng, steps, batch, hidden)
        h0, gh = normal(rng, 2, 1, batch, hidden)
        ends = np.full(batch, steps)
        if k % 2 and batch > 8:                        # eight live on: statistics of fewer amplify, see below
            ends[8:] = rng.integers(0, steps + 1, batch - 8)
        while not (want := true_gradients(rnn, x, h0, ends, gy, gh)):
            x = normal(rng, *x.shape)
        for isa, got in on_every_isa(lambda: trained(rnn, x, h0, ends, gy, gh)).items():
            assert list(got) == list(want) and all(g.dtype == np.float32 for g in got.values())
            for name, g in got.items():
                assert relative_error(g, want[name]) < GRADIENT, (isa, name, hidden, inputs, batch)


@each_norm
@pytest.mark.parametrize("nonlinearity", ["tanh", "identity"])
@pytest.mark.parametrize("hidden, batch", [(1, 5), (2, 5), (2, 33), (3, 2), (17, 1), (33, 2), (64, 3)])
def test_sizes_that_amplify(norm, nonlinearity, hidden, batch):
    """Layer norm over two units is nearly a sign, batch norm over two rows too; over one, nothing depends on it. The
    gradients may then be off by what any float32 computation loses, and no more."""
    rng = np.random.default_rng(hidden)
    rnn = calm(5, hidden, seed=3, norm=norm, nonlinearity=nonlinearity)
    x, gy, (h0, gh) = normal(rng, T, batch, 5), normal(rng, T, batch, hidden), normal(rng, 2, 1, batch, hidden)
    ends = np.sort(rng.integers(0, T + 1, batch))
    args = (x, h0, ends, gy, gh)
    want, loss = true_gradients(rnn, *args), amplification(rnn, *args)
    for isa, got in on_every_isa(lambda: trained(rnn, *args)).items():
        for name, g in got.items():
            # of a gradient that is all cancellation the rest is roundings of what cancelled
            size = np.abs(want[name]).max(initial=0)
            assert absolute_error(g, want[name]) < size * (GRADIENT + 2 * loss[name]) + 8e-6, (isa, name)


@settings(max_examples=120)
@given(st.sampled_from(NORMS), st.sampled_from(NONLINEARITIES), st.integers(1, 3), st.booleans(), st.booleans(),
       st.booleans(), st.sampled_from((15, 17, 33, 48)), st.sampled_from((1, 5, 16, 33)), st.sampled_from((9, 17, 33)),
       st.sampled_from(["both", "gy", "gh"]), st.integers(0, 99))
@example("batch", "tanh", 2, True, True, True, 33, 5, 33, "both", 0)
@example(None, "sigmoid", 2, True, False, False, 17, 5, 9, "both", 0)
def test_layers_and_directions(norm, nonlinearity, layers, both, batch_first, bias, hidden, inputs, batch, given, seed):
    rng = np.random.default_rng(seed)
    rnn = calm(inputs, hidden, seed=seed, norm=norm, nonlinearity=nonlinearity, num_layers=layers, bidirectional=both,
               batch_first=batch_first, bias=bias)
    x, gy = normal(rng, T, batch, inputs), normal(rng, T, batch, hidden * (1 + both))
    h0, gh = normal(rng, 2, layers * (1 + both), batch, hidden)
    ends = rng.permutation(np.where(np.arange(batch) < 8, T, rng.integers(0, T + 1, batch)))
    want = true_gradients(rnn, x, h0, ends, 0 * gy if given == "gh" else gy, None if given == "gy" else gh)
    assume(want)
    swapped = (lambda a: a.swapaxes(0, 1)) if batch_first else np.asarray

    def compute():
        y, h, tape = rnn.forward_train(swapped(x), h0, ends)
        return flat(rnn.backward(tape, None if given == "gh" else swapped(gy), None if given == "gy" else gh))

    for isa, got in on_every_isa(compute).items():
        got["x"] = swapped(got["x"])
        for name, g in got.items():
            # A gradient can be 0 by nature, as that of a bias below batch norm: what is left are roundings.
            scale = np.abs(want[name]).max(initial=1)
            assert absolute_error(g, want[name]) < 2 * GRADIENT * scale, (isa, name)


@pytest.mark.parametrize("norm", ["layer", None])
def test_the_forward_run_is_the_call(isa, rng, norm):
    """The same bits with a tape as without."""
    for batch, hidden in ((1, 15), (13, 97), (70, 33)):
        rnn = network(7, hidden, norm=norm, num_layers=2, bidirectional=True)
        x, h0, ends = normal(rng, T, batch, 7), normal(rng, 4, batch, hidden), rng.integers(0, T + 1, batch)
        y, h, _ = rnn.forward_train(x, h0, ends)
        same(y, rnn(x, h0, ends)[0])
        same(h, rnn(x, h0, ends)[1])


@each_norm
def test_what_training_returns(isa, norm):
    """The outputs of the reference's training run; 0 past a length."""
    rng = np.random.default_rng(4)
    rnn = calm(5, 33, norm=norm, num_layers=2, bidirectional=True)
    x, h0, ends = normal(rng, T, 20, 5), normal(rng, 4, 20, 33), np.r_[[T] * 9, rng.integers(0, T, 11)]
    y, h, _ = rnn.forward_train(x, h0, ends)
    want_y, want_h, _ = reference_forward(rnn, x, h0, ends, training=True)
    assert relative_error(y, want_y) < GRADIENT and relative_error(h, want_h) < GRADIENT
    assert not y[np.arange(T)[:, None] >= ends].any()


@each_norm
def test_threads(isa, rng, norm):
    """The same bits, whoever computes, and whoever had computed the tape."""
    rnn = network(65, 193, norm=norm, num_layers=2)
    x, gy = normal(rng, T, 100, 65), normal(rng, T, 100, 193)
    (h0, gh), ends = normal(rng, 2, 2, 100, 193), rng.integers(T // 2, T + 1, 100)
    assert ends.sum() * 193 * (65 + 193) > 3 * 2**22    # worth four threads
    with using_threads(1):
        y, h, tape = rnn.forward_train(x, h0, ends)
        want = flat(rnn.backward(tape, gy, gh))
    for threads in (2, 4):
        with several_threads(threads, had=1 if norm == "batch" else None):  # whose steps need all sequences
            got_y, got_h, other = rnn.forward_train(x, h0, ends)
        same(got_y, y)
        same(got_h, h)
        with several_threads(threads):
            found = flat(rnn.backward(tape, gy, gh))
        with several_threads(5 - threads):
            crossed = flat(rnn.backward(other, gy, gh))
        for name, g in want.items():
            same(found[name], g, err_msg=f"{name}, {threads} threads")
            same(crossed[name], g, err_msg=f"{name}, tape of {threads} threads")


# --- what a tape keeps ----------------------------------------------------------------------------------------


@each_norm
def test_nothing_that_happens_later_disturbs_a_tape(isa, rng, norm):
    rnn = network(3, 17, norm=norm, num_layers=2, bidirectional=True)
    x, gy = normal(rng, T, 9, 3), normal(rng, T, 9, 34)
    (h0, gh), ends = normal(rng, 2, 4, 9, 17), np.array([9, 9, 9, 9, 9, 4, 7, 1, 0])
    want = trained(rnn, x, h0, ends, gy, gh)
    arrays = x.copy(), h0.copy(), ends.copy()
    y, h, tape = rnn.forward_train(*arrays)
    for array in (*arrays, y, h):
        array[...] = 1                                  # the caller goes on with what is the caller's
    for name, value in rnn.parameters().items():
        setattr(rnn, name, value + 1)                   # an optimizer's step
    rnn(x)
    rnn.forward_train(normal(rng, 20, 30, 3))           # the next batch
    if norm == "batch":
        rnn.calibrate([normal(rng, T, 30, 3)])
        rnn.overrun = "last"
    for _ in range(2):                                  # and a tape can be read again
        for name, g in flat(rnn.backward(tape, gy, gh)).items():
            same(g, want[name], err_msg=name)
    moved = trained(rnn, x, h0, ends, gy, gh)
    assert any((moved[name] != g).any() for name, g in want.items())


@each_norm
def test_gradients_that_are_not_given(rng, norm):
    rnn = network(3, 17, norm=norm, num_layers=2)
    x, h0, gy, gh = normal(rng, T, 9, 3), normal(rng, 2, 9, 17), normal(rng, T, 9, 17), normal(rng, 2, 9, 17)
    _, _, tape = rnn.forward_train(x, h0)
    for given, meant in (((None,), (0 * gy, 0 * gh)), ((None, gh), (0 * gy, gh)), ((gy,), (gy, 0 * gh))):
        want = flat(rnn.backward(tape, *meant))
        for name, g in flat(rnn.backward(tape, *given)).items():
            same(g, want[name], err_msg=name)
            assert g.any() == any(m.any() for m in meant)


@each_norm
def test_padding(isa, rng, norm):
    """What x and gy hold past a length is not read; gx is 0 there; an empty sequence hands gh on."""
    rnn = network(3, 17, norm=norm, num_layers=2, bidirectional=True)
    x, gy = normal(rng, T, 12, 3), normal(rng, T, 12, 34)
    (h0, gh), ends = normal(rng, 2, 4, 12, 17), np.array([9, 0, 9, 9, 2, 9, 7, 1, 0, 5, 6, 8])
    past = np.arange(T)[:, None] >= ends
    want = trained(rnn, x, h0, ends, gy, gh)
    assert not want["x"][past].any()
    same(want["h0"][:, ends == 0], gh[:, ends == 0])
    x[past], gy[past] = np.nan, np.inf
    for name, g in trained(rnn, x, h0, ends, gy, gh).items():
        same(g, want[name], err_msg=name)


@pytest.mark.parametrize("norm", ["layer", None])
def test_a_nan_reaches_its_own_sequence_and_the_parameters(isa, rng, norm):
    rnn = network(3, 17, norm=norm, num_layers=2)
    x, gy = normal(rng, T, 40, 3), normal(rng, T, 40, 17)
    clean = trained(rnn, x, None, None, gy, None)
    x[4, 6, 1] = np.nan
    got = trained(rnn, x, None, None, gy, None)
    for name in ("x", "h0"):
        same(np.delete(got[name], 6, 1), np.delete(clean[name], 6, 1))
        assert np.isnan(got[name][:, 6]).all()
    assert np.isnan(got["weight_hh_l1"]).all()


@each_norm
def test_one_sequence_without_a_batch_axis(rng, norm):
    rnn = network(3, 17, norm=norm, num_layers=2)
    x, gy, h0, gh = normal(rng, T, 3), normal(rng, T, 17), normal(rng, 2, 17), normal(rng, 2, 17)
    want = trained(rnn, x[:, None], h0[:, None], [7], gy[:, None], gh[:, None])
    y, h, tape = rnn.forward_train(x, h0, 7)
    assert y.shape == (T, 17) and h.shape == (2, 17)
    for name, g in flat(rnn.backward(tape, gy, gh)).items():
        same(g, want[name][:, 0] if name in ("x", "h0") else want[name], err_msg=name)


@pytest.mark.parametrize("batch_first", [False, True])
def test_arrays_of_every_kind(rng, batch_first):
    rnn = network(3, 17, batch_first=batch_first)
    x, gy = (rng.integers(-3, 4, (5, 5, n)).astype(np.float32) for n in (3, 17))
    h0, gh = rng.integers(-3, 4, (2, 1, 5, 17)).astype(np.float32)
    want = trained(rnn, x, h0, None, gy, gh)
    kinds = {"list": np.ndarray.tolist, **{d: lambda a, d=d: a.astype(d) for d in ("f8", "f2", "i1")},
             **{name: lambda a, name=name: layouts(a).get(name, a) for name in layouts(gh)}}
    for kind, made in kinds.items():
        for name, g in trained(rnn, made(x), made(h0), None, made(gy), made(gh)).items():
            same(g, want[name], err_msg=f"{kind}: {name}")
