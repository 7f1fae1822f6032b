"""Batch norm by time step inside LSTM and GRU: the statistics of every side, how they are kept, what is
beyond them."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error, on_every_family
from networks import calm, drawn_state, learn, network, normal, parts, reference_forward, sides

same = np.testing.assert_array_equal
each_cell = pytest.mark.parametrize("cell", ["LSTM", "GRU"])
T = 9
OVERRUNS = ("last", "mean", "batch")

# Of means and variances: float32 products, summed in double precision; and of outputs. Measured at most:
# 2.4e-7, 7.6e-7.
STATISTICS = 5e-7
WHOLE = 2e-6


def spec(**options):
    return lnrnn.BatchNormSpec(**{"eps": 0.1} | options)


def statistics(rnn, suffix="_l0"):
    """{side: (mean, var)}, count."""
    found = {
        side: tuple(getattr(rnn, f"running_{field}_{side}{suffix}") for field in ("mean", "var"))
        for side in sides(rnn)
    }
    return found, getattr(rnn, "count" + suffix)


def equal_statistics(rnn, suffix, tape):
    found, count = statistics(rnn, suffix)
    known = len(tape.count)
    same(count[:known], tape.count)
    assert not count[known:].any() and found.keys() == tape.statistics.keys()
    for side, pair in found.items():
        for got, want in zip(pair, tape.statistics[side], strict=True):
            assert got.dtype == np.float64 and not got.flags.writeable and not got[known:].any()
            assert absolute_error(got[:known], want) < STATISTICS * np.abs(want).max(initial=1), side


@each_cell
@pytest.mark.parametrize("eps", [0.1, 1e-5])
@pytest.mark.parametrize("room", [None, T + 3])
def test_calibrate_is_exact_and_does_not_know_batches(family, cell, eps, room):
    """Every side, layer and direction; the k-th step of a sequence, from its own end if read backwards, has
    the k-th statistics; padding has no part in them."""
    rng = np.random.default_rng(8)
    rnn = calm(5, 33, cell=cell, norm=spec(eps=eps, max_steps=room), num_layers=2, bidirectional=True)
    x, ends = normal(rng, T, 40, 5), rng.permutation(np.r_[[T] * 12, rng.integers(0, T + 1, 28)])
    _, _, tapes = reference_forward(rnn, x, None, ends, training=True)
    x[np.arange(T)[:, None] >= ends] = np.nan
    learn(rnn, rng, T, 50)  # old statistics: replaced
    found = []
    for sizes in ([40], [13, 0, 26, 1]):
        cuts = np.cumsum(sizes)[:-1]
        rnn.calibrate(zip(np.split(x, cuts, 1), np.split(ends, cuts), strict=True))
        assert rnn.known_steps == T
        for suffix, tape in tapes.items():
            equal_statistics(rnn, suffix, tape)
        found.append(rnn.state_dict())
    for name, value in found[0].items():
        same(found[1][name], value, err_msg=name)


@each_cell
def test_in_the_state_and_in_files(rng, tmp_path, cell):
    pytest.importorskip("safetensors")
    for room in (None, 20):
        rnn = network(3, 17, cell=cell, norm=spec(max_steps=room), num_layers=2, bidirectional=True)
        rnn.calibrate([(normal(rng, T, 6, 3), [9, 4, 4, 2, 7, 0])])
        rnn.overrun = "mean"
        state, x = rnn.state_dict(), normal(rng, 2 * T, 5, 3)
        names = {f"running_{m}_{side}_l1_reverse" for m in ("mean", "var") for side in sides(rnn)}
        names.add("count_l1_reverse")
        assert names <= state.keys() and names <= set(dir(rnn))
        wide = {"ih": len(rnn.weight_hh_l0), "hh": len(rnn.weight_hh_l0), "c": 17}
        for side in sides(rnn):
            assert state[f"running_var_{side}_l0"].shape == (room or T, wide[side])
        rnn.save(tmp_path / "m.safetensors")
        other = type(rnn)(3, 17, 2, norm=spec(max_steps=room, overrun="mean"), bidirectional=True)
        other.load_state_dict(state)
        for twin in (other, lnrnn.load(tmp_path / "m.safetensors")):
            assert twin.known_steps == T and twin.overrun == "mean"
            for name, value in twin.state_dict().items():
                same(value, state[name], err_msg=name)
            same(twin(x)[0], rnn(x)[0])


@each_cell
def test_statistics_that_cannot_be(rng, cell):
    rnn = network(3, 5, cell=cell, norm="batch", num_layers=2, trained=T)
    before = rnn.state_dict()
    for name, value, word in (
        ("running_var_hh_l1", np.full_like(before["running_var_hh_l1"], -1e-300), "running_var_hh_l1"),
        ("running_mean_ih_l0", before["running_mean_ih_l0"][:-1], "running_mean_ih_l0"),
        ("running_mean_ih_l0", before["running_mean_ih_l0"][:, :-1], "running_mean_ih_l0"),
        ("count_l1", before["count_l1"] + 1, "count_l1"),
        ("count_l0", before["count_l0"] + 0.0, "count_l0"),
        ("count_l0", before["count_l0"][:, None], "count_l0"),
    ):
        with pytest.raises((ValueError, TypeError), match=word):
            rnn.load_state_dict(before | {name: value})
        with pytest.raises(AttributeError, match=name):
            setattr(rnn, name, before[name])
    for name, value in rnn.state_dict().items():
        same(value, before[name])


@each_cell
def test_statistics_beyond_float32(rng, cell):
    """They are doubles, of any size: what overflows on the way to the kernels shows in its unit, and nothing
    warns."""
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


@each_cell
@pytest.mark.parametrize("overrun", OVERRUNS)
@pytest.mark.parametrize("known", [1, 4])
def test_past_the_known_steps(cell, overrun, known):
    """Whole sequences against the reference, and bit for bit the streams against them."""
    rng = np.random.default_rng(7)
    rnn = calm(5, 33, cell=cell, norm=spec(overrun=overrun), num_layers=2, bidirectional=True, trained=known)
    x, h0 = normal(rng, T, 20, 5), drawn_state(rng, rnn, 20)
    ends = np.r_[[T] * 12, rng.integers(0, T, 8)]
    want_y, want_h, _ = reference_forward(rnn, x, h0, ends)
    x[np.arange(T)[:, None] >= ends] = np.nan  # nor does padding count for "batch"
    for y, h in on_every_family(lambda: rnn(x, h0, ends)).values():
        assert absolute_error(y, want_y) < WHOLE
        for got, want in zip(parts(rnn, h), parts(rnn, want_h), strict=True):
            assert absolute_error(got, want) < WHOLE
    rnn = network(5, 33, cell=cell, norm=spec(overrun=overrun), num_layers=2, trained=known)
    x = normal(rng, T, 12, 5)

    def both():
        stream = rnn.stream(12)
        return np.array([np.array(stream(row)) for row in x]), rnn(x)[0]

    for streamed, whole in on_every_family(both).values():
        same(streamed, whole)


@each_cell
def test_raise_says_who_and_computes_nothing(rng, cell):
    rnn = network(3, 17, cell=cell, norm="batch", num_layers=2, trained=4)
    x, before = normal(rng, T, 5, 3), rnn.state_dict()
    with pytest.raises(lnrnn.SequenceTooLongError) as caught:
        rnn(x, None, [4, 2, 8, 0, 9])
    assert (caught.value.sequence, caught.value.length, caught.value.known_steps) == (2, 8, 4)
    stream = rnn.stream(5)
    y = [np.array(stream(row)) for row in x[:4]]
    same(y, rnn(x[:4])[0])
    kept = stream.state
    with pytest.raises(lnrnn.SequenceTooLongError):
        stream(x[4])
    for got, want in zip(parts(rnn, stream.state), parts(rnn, kept), strict=True):
        same(got, want)
    tight = network(3, 17, cell=cell, norm=spec(max_steps=4), trained=4)
    with pytest.raises(lnrnn.SequenceTooLongError, match="max_steps"):
        tight.calibrate([x])
    for name, value in rnn.state_dict().items():
        same(value, before[name])


@each_cell
def test_a_network_that_learned_nothing(rng, cell):
    """Only the batch itself can serve it, and does what calibration does."""
    rnn = calm(3, 17, cell=cell, norm=spec())
    x = normal(rng, T, 12, 3)
    for overrun in ("raise", "last", "mean"):
        rnn.overrun = overrun
        with pytest.raises(lnrnn.SequenceTooLongError, match="calibrate"):
            rnn(x)
        y, h = rnn(x, None, np.zeros(12, int))  # no steps need no statistics
        assert not y.any() and not any(s.any() for s in parts(rnn, h))
    rnn.overrun = "batch"
    y, _ = rnn(x)
    rnn.calibrate([x])
    assert absolute_error(rnn(x)[0], y) < WHOLE
