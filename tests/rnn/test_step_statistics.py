"""Tests batch norm by time step: statistics, their updates, and steps beyond the last known one."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error, on_every_family
from networks import (
    CELLS,
    calm,
    cell_of,
    drawn_state,
    each_cell,
    equal,
    equal_arrays,
    learn,
    network,
    normal,
    parts,
    reference_forward,
    same,
    sides,
)

T = 9
FIELDS = ("running_mean", "running_var", "count")
OVERRUNS = ("raise", "last", "mean", "batch")

# Tolerances of means and variances, which are sums in double of float32 products. The largest measured errors
# are 6e-7 for an RNN, 2.4e-7 for the others, and 7.6e-7 for outputs.
STATISTICS = {"RNN": 1e-6, "LSTM": 5e-7, "GRU": 5e-7, "LiGRU": 5e-7}
WHOLE = {"RNN": 3e-6, "LSTM": 2e-6, "GRU": 2e-6, "LiGRU": 2e-6}


def spec(**options):
    return lnrnn.BatchNormSpec(**options)


def mild(cell, **options):
    """Returns a BatchNormSpec. For an LSTM or GRU its eps is so large that the network amplifies differences
    little."""
    return spec(**({} if cell == "RNN" else {"eps": 0.1}) | options)


def statistics(rnn, side="", suffix="_l0"):
    """Returns the running mean, variance and count of one product (W_ih x or W_hh h) of a layer."""
    fields = *(f"{field}{side and '_'}{side}" for field in FIELDS[:2]), "count"
    return [getattr(rnn, field + suffix) for field in fields]


def as_in(rnn, tapes):
    """Compares all statistics with those of the reference's training run."""
    for suffix, tape in tapes.items():
        for side in sides(rnn):
            got, known = statistics(rnn, side, suffix), len(tape.count)
            assert [a.dtype for a in got] == [float, float, int] and not any(a.flags.writeable for a in got)
            same(got[2][:known], tape.count)
            assert not any(array[known:].any() for array in got)  # steps without sequences have no statistics
            for a, b in zip(got[:2], tape.statistics[side], strict=True):
                most = STATISTICS[cell_of(rnn)] * np.abs(b).max(initial=1)
                assert absolute_error(a[:known], b) < most, side


# --- past the last known step -------------------------------------------------------------------------------


@each_cell
@pytest.mark.parametrize("overrun", OVERRUNS)
@pytest.mark.parametrize("known, room", [(1, None), (4, 5), (4, 3 * T), (T, None)])
def test_overrun_policies_beyond_the_known_steps(cell, overrun, known, room):
    """Some sequences have more steps than there are statistics for, except with "raise". max_steps may be
    larger than the known steps."""
    rng = np.random.default_rng(7)
    norm = mild(cell, overrun=overrun, max_steps=room)
    rnn = calm(5, 33, cell=cell, norm=norm, num_layers=2, bidirectional=True, trained=known)
    assert rnn.known_steps == known and len(rnn.count_l1) == (room or known)
    x, h0 = normal(rng, T, 20, 5), drawn_state(rng, rnn, 20)
    ends = rng.integers(0, T + 1, 20) if overrun != "batch" else np.r_[[T] * 12, rng.integers(0, T, 8)]
    ends[0] = T
    if overrun == "raise":
        ends = np.minimum(ends, known)
    want_y, want_h, _ = reference_forward(rnn, x, h0, ends)
    x[np.arange(T)[:, None] >= ends] = np.nan  # "batch" must ignore padding too
    for y, h in on_every_family(lambda: rnn(x, h0, ends)).values():
        assert absolute_error(y, want_y) < WHOLE[cell]
        for got, want in zip(parts(rnn, h), parts(rnn, want_h), strict=True):
            assert absolute_error(got, want) < WHOLE[cell]


@each_cell
@pytest.mark.parametrize("room", [None, T])
def test_a_call_before_any_training_needs_overrun_batch(rng, cell, room):
    """Without known steps no statistics can be repeated or averaged. Training and calibration work with every
    policy."""
    rnn = calm(3, 17, cell=cell, norm=mild(cell, max_steps=room))
    x, h0 = normal(rng, T, 12, 3), drawn_state(rng, rnn, 12)
    for overrun in OVERRUNS[:3]:
        rnn.overrun = overrun
        with pytest.raises(lnrnn.SequenceTooLongError, match="train.*calibrate|calibrate.*train") as caught:
            rnn(x, h0, [0, 1, *[0] * 10])
        assert (caught.value.sequence, caught.value.length, caught.value.known_steps) == (1, 1, 0)
        y, h = rnn(x, h0, np.zeros(12, int))  # a call without steps needs no statistics
        equal(rnn, (y, h), (np.zeros_like(y), h0))
    rnn.overrun = "batch"
    ends = np.r_[[T] * 8, 0, 3, 5, 7]
    called, y = rnn(x, h0, ends), rnn(x)[0]
    assert rnn.known_steps == 0
    equal(rnn, rnn.forward_train(x, h0, ends)[:2], called)
    rnn.calibrate([x])
    assert absolute_error(rnn(x)[0], y) < WHOLE[cell]


@pytest.mark.parametrize("known", [8, 9, 130, 300])
def test_the_mean_of_one_unit_has_numpys_bits(rng, known):
    """Large means cancel in the sum over steps, so the result shows in which order they were added."""
    rnn = learn(lnrnn.RNN(3, 1, norm=spec(overrun="mean"), nonlinearity="identity"), rng, known, 16)
    large = 1e10 * rng.standard_normal((known, 1))
    means, variance = large - large.mean() + rng.standard_normal((known, 1)), statistics(rnn)[1].mean(0)
    rnn.load_state_dict(rnn.state_dict() | {"running_mean_l0": means, "weight_hh_l0": np.zeros((1, 1))})
    y, _ = rnn(np.zeros((known + 1, 1, 3)))
    same(y[known, 0], np.float32(-means.mean(0) * (rnn.gain_l0 / np.sqrt(variance + rnn.norm.eps))))


# --- calibrate ----------------------------------------------------------------------------------------------


def divided(x, ends, sizes):
    """Returns batches of these sizes, each cut to its longest sequence."""
    cuts = np.cumsum(sizes)[:-1]
    return [
        (part[: max(n, default=0)], n)
        for part, n in zip(np.split(x, cuts, 1), np.split(ends, cuts), strict=True)
    ]


@each_cell
@pytest.mark.parametrize("eps, room", [(0.1, None), (1e-5, T + 3)])
def test_calibrate_is_exact_for_any_division_into_batches(vectors, cell, eps, room):
    """Tests every product, layer and direction. The k-th statistics are those of the k-th steps, counted from
    the end in a reverse direction. Padding has no effect."""
    rng = np.random.default_rng(8)
    norm = spec(eps=eps, max_steps=room)
    rnn = calm(5, 33, cell=cell, norm=norm, num_layers=2, bidirectional=True)
    x, ends = normal(rng, T, 40, 5), rng.permutation(np.r_[[T] * 12, rng.integers(0, T + 1, 28)])
    _, _, tapes = reference_forward(rnn, x, None, ends, training=True)
    x[np.arange(T)[:, None] >= ends] = np.nan
    learn(rnn, rng, T + 3 if room else 2 * T, 50)  # calibrate must replace these statistics of more steps
    found = []
    for sizes in ([40], [1] * 40, [13, 0, 26, 1]):
        rnn.calibrate(iter(divided(x, ends, sizes)))
        assert rnn.known_steps == T
        as_in(rnn, tapes)
        found.append(rnn.state_dict())
    equal_arrays(found[1], found[0])
    equal_arrays(found[2], found[0])
    # a network in training mode uses the statistics of its batch: calibration on test data must give the same
    # outputs
    y, want = rnn(x, None, ends)[0], rnn.forward_train(x, None, ends)[0]
    assert absolute_error(y, want) < WHOLE[cell] or (cell != "RNN" and eps != 0.1)
    # in another order of the sequences, the sums differ only by rounding errors of double
    who = rng.permutation(40)
    rnn.calibrate(divided(x[:, who], ends[who], [20, 20]))
    for name, value in rnn.state_dict().items():
        assert absolute_error(value, found[0][name]) < STATISTICS["RNN"], name


def test_calibrate_accepts_the_arguments_of_a_call(rng):
    x = normal(rng, 5, 4, 3)
    want = network(3, 17, norm="batch")
    want.calibrate([x, x])
    same(want.count_l0, [8] * 5)
    first = network(3, 17, norm=spec(max_steps=T), batch_first=True)
    first.calibrate(part.swapaxes(0, 1).tolist() for part in (x, x))
    for field in FIELDS:
        same(getattr(first, field + "_l0")[:5], getattr(want, field + "_l0"))
        assert not getattr(first, field + "_l0")[5:].any()
    alone = network(3, 17, norm="batch")
    alone.calibrate([(x[:, b], 5) for b in (0, 1, 2, 3)] * 2)
    for field in FIELDS:
        same(getattr(alone, field + "_l0"), getattr(want, field + "_l0"))


@pytest.mark.parametrize("lengths", [False, True])
def test_calibrate_accepts_an_iterator_that_reuses_one_array(rng, lengths):
    batches = [(normal(rng, 6, 4, 3), rng.integers(3, 7, 4) if lengths else np.full(4, 6)) for _ in range(3)]

    def filling():
        x, ends = np.empty((6, 4, 3), np.float32), np.empty(4, np.int64)
        for batch in batches:
            x[...], ends[...] = batch
            yield (x, ends) if lengths else x

    at_once, filled = (network(3, 5, norm="batch") for _ in range(2))
    at_once.calibrate(list(batches))
    filled.calibrate(filling())
    equal_arrays(filled.state_dict(), at_once.state_dict())


# --- files and copies ---------------------------------------------------------------------------------------


def test_training_continues_from_loaded_statistics(rng):
    """A copy of the network continues after the first of two batches."""
    first, second = normal(rng, 4, 5, 3), normal(rng, T, 7, 3)
    for momentum in (0.3, None):
        rnn, other = (network(3, 17, norm=spec(momentum=momentum)) for _ in range(2))
        rnn.forward_train(first)
        other.load_state_dict(rnn.state_dict())
        rnn.forward_train(second)
        other.forward_train(second)
        equal_arrays(other.state_dict(), rnn.state_dict())
        same(rnn.count_l0, [12] * 4 + [7] * 5)


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_statistics_beyond_float32(rng, cell):
    """Statistics are doubles and may exceed float32. The overflow in the kernels affects only one hidden
    unit, and causes no warning."""
    rnn = network(3, 5, cell=cell, norm=lnrnn.BatchNormSpec(overrun="mean", eps=1e-30), trained=2)
    x, state = normal(rng, 1, 4, 3), rnn.state_dict()
    for name, value in (
        ("running_mean_ih_l0", 1.7e308),
        ("running_var_ih_l0", 0.0),
        ("running_mean_hh_l0", -1e50),
    ):
        other = state[name].copy()
        other[:, 1] = value
        rnn.load_state_dict(state | {name: other})
        y = rnn(x)[0]
        assert y.shape == (1, 4, 5) and not np.isnan(np.delete(y, 1, 2)).any()


# --- max_steps beyond the known steps, and the limit of counts ----------------------------------------------


T, KNOWN = 9, 4
MOST = 2**53


@pytest.mark.parametrize("cell, overrun", [*zip(CELLS, OVERRUNS, strict=True)])
def test_the_twin_with_max_steps_beyond_the_known_steps(cell, overrun):
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    found = []
    for room in (None, 3 * T):
        norm = lnrnn.BatchNormSpec(room, overrun)
        module = getattr(lnrnn.torch, cell)(3, 17, norm=norm, seed=0, dtype=torch.float64)
        module(torch.randn(KNOWN, 16, 3, dtype=torch.float64, generator=generator.manual_seed(1)))
        assert module.eval().known_steps == KNOWN and len(module.count_l0) == (room or KNOWN)
        x = torch.randn(T, 8, 3, dtype=torch.float64, generator=generator.manual_seed(2))
        if overrun == "raise":
            with pytest.raises(lnrnn.SequenceTooLongError) as caught:
                module(x)
            assert caught.value.known_steps == KNOWN
            x = x[:KNOWN]
        with torch.no_grad():
            found.append(module(x)[0].numpy())
    same(*found)  # max_steps changes no bit
    assert absolute_error(lnrnn.from_torch(module)(x)[0], found[-1]) < 1e-5


# --- counts -------------------------------------------------------------------------------------------------


def with_counts(count, **options):
    rnn = network(3, 5, num_layers=2, trained=T, norm=lnrnn.BatchNormSpec(**options))
    state = rnn.state_dict()
    rnn.load_state_dict(state | {name: np.full(T, count) for name in ("count_l0", "count_l1")})
    return rnn


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("before, after", [(MOST, MOST), (MOST - 6, MOST), (MOST - 7, MOST - 1)])
def test_counting_ends_at_the_bound(rng, tmp_path, before, after, momentum):
    """At the largest count, the state can still be saved and loaded. Statistics stay finite, but new batches
    do not change them."""
    pytest.importorskip("safetensors")
    rnn = with_counts(before, momentum=momentum)
    rnn.forward_train(normal(rng, T, 6, 3))
    same(rnn.count_l0, [after] * T)
    same(rnn.count_l1, [after] * T)
    rnn.save(tmp_path / "m.safetensors")
    x = normal(rng, T, 2, 3)
    same(lnrnn.load(tmp_path / "m.safetensors")(x)[0], rnn(x)[0])
    assert np.isfinite(rnn(x)[0]).all()


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_layer_stops_counting_at_the_bound(rng, momentum):
    layer = lnrnn.BatchNorm(3, momentum=momentum)
    layer.num_batches_tracked = MOST - 1
    for _ in range(3):
        layer(normal(rng, 8, 3))
        assert layer.num_batches_tracked == MOST
    layer.load_state_dict(layer.state_dict())
    assert np.isfinite(layer.eval()(normal(rng, 8, 3))).all()


def test_the_counts_of_a_twin_end_at_the_bound():
    torch = pytest.importorskip("torch")
    module = lnrnn.torch.GRU(3, 5, norm="batch", seed=0)
    module(torch.randn(T, 6, 3))
    with torch.no_grad():
        module.count_l0.fill_(2**63 - 1)  # torch's load_state_dict would accept it
    module(torch.randn(T, 6, 3))
    assert (module.count_l0 == MOST).all()
    lnrnn.from_torch(module)
