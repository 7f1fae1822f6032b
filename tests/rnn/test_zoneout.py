"""Zoneout where nothing is trained: calls, streams and calibrate take its expectation; where it is kept."""

from __future__ import annotations

import copy
import json
import pickle
from functools import partial

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import lnrnn
from helpers import absolute_error, on_every_family, several_threads, using_small_caches
from lnrnn import _core
from networks import (
    CELLS,
    VARIANTS,
    calm,
    drawn_state,
    learn,
    network,
    normal,
    parts,
    reference_forward,
    whole,
)

each_variant = pytest.mark.parametrize("variant", VARIANTS)
each_cell = pytest.mark.parametrize("cell", CELLS)
same = np.testing.assert_array_equal

# As calls without zoneout: tests/rnn/test_forward.py. Measured at most: 7.2e-7.
WHOLE = 3e-6


def rates(rnn, h=0.3, c=0.2):
    """For rnn.zoneout."""
    return (h, c) if type(rnn) is lnrnn.LSTM else h


def zoned(rnn, **which):
    rnn.zoneout = rates(rnn, **which)
    return rnn


def equal(rnn, got, want):
    for a, b in zip((got[0], *parts(rnn, got[1])), (want[0], *parts(rnn, want[1])), strict=True):
        same(a, b)


@pytest.fixture
def small_parts():
    """Calls return after every few steps and go on."""
    _core.set_part(4096)
    yield
    _core.set_part(0)


# --- the equation -------------------------------------------------------------------------------------------


@each_variant
def test_calls_take_the_expectation(variant):
    """Sizes around the widths of vectors, and as many sequences as take several groups."""
    rng = np.random.default_rng(1)
    for hidden, inputs, batch in ((15, 7, 3), (33, 5, 70), (65, 17, 2), (130, 16, 13)):
        rnn = zoned(calm(inputs, hidden, trained=20, **VARIANTS[variant]))
        x, h0 = normal(rng, 20, batch, inputs), drawn_state(rng, rnn, batch)
        lengths = rng.integers(0, 21, batch)
        y, h, _ = reference_forward(rnn, x, h0, lengths)
        for got_y, got_h in on_every_family(partial(rnn, x, h0, lengths)).values():
            assert absolute_error(got_y, y) < WHOLE
            for a, b in zip(parts(rnn, got_h), parts(rnn, h), strict=True):
                assert absolute_error(a, b) < WHOLE


def test_one_step_by_hand():
    """Where W_hh is 0 the new state h' does not depend on the old one: h1 = 0.25 h0 + 0.75 h'."""
    for cell, states in (("RNN", 1), ("GRU", 1), ("LSTM", 2)):
        rnn = network(3, 5, cell=cell, norm=None)
        rnn.weight_hh_l0 = np.zeros_like(rnn.weight_hh_l0)
        x, start = np.ones((1, 1, 3), np.float32), drawn_state(np.random.default_rng(2), rnn, 1)
        made, made_end = rnn(x, start)
        rnn.zoneout = 0.25
        y, end = rnn(x, start)
        h0 = parts(rnn, start)[0][0, 0].astype(float)
        np.testing.assert_allclose(y[0, 0], 0.25 * h0 + 0.75 * made[0, 0], rtol=0, atol=1e-7)
        for old, new, got in zip(parts(rnn, start), parts(rnn, made_end), parts(rnn, end), strict=True):
            np.testing.assert_allclose(got, 0.25 * old.astype(float) + 0.75 * new, rtol=0, atol=2e-7)
        assert len(parts(rnn, end)) == states


@pytest.mark.parametrize("kept", [(0.4, 0.0), (0.0, 0.4)])
def test_h_or_c_alone(rng, kept):
    rnn = calm(5, 33, cell="LSTM")
    rnn.zoneout = kept
    x = normal(rng, 9, 4, 5)
    y, h, _ = reference_forward(rnn, x)
    got, end = rnn(x)
    assert absolute_error(got, y) < WHOLE
    assert absolute_error(np.array(end), np.array(h)) < WHOLE
    rnn.zoneout = 0
    assert absolute_error(rnn(x)[0], y) > 1e-2


# --- the same bits ------------------------------------------------------------------------------------------


@each_variant
@pytest.mark.parametrize("hidden, batch", [(33, 70), (300, 2), (48, 1)])
def test_threads_parts_and_chunks_do_not_matter(small_parts, variant, hidden, batch):
    """With few sequences threads divide the units."""
    rng = np.random.default_rng(3)
    rnn = zoned(network(5, hidden, trained=9, **VARIANTS[variant]))
    x, h0, lengths = normal(rng, 9, batch, 5), drawn_state(rng, rnn, batch), rng.integers(0, 10, batch)
    want = rnn(x, h0, lengths, threads=1)
    _core.set_part(0)
    equal(rnn, rnn(x, h0, lengths, threads=1), want)
    for threads in (2, 3):
        equal(rnn, rnn(x, h0, lengths, threads=threads), want)
    with using_small_caches():
        equal(rnn, rnn(x, h0, lengths, threads=1), want)


@pytest.mark.parametrize("cell, hidden", [("RNN", 700), ("LSTM", 330), ("GRU", 400)])
@pytest.mark.parametrize("norm", ["layer", None])
def test_threads_that_divide_the_units(cell, hidden, norm):
    rng = np.random.default_rng(4)
    rnn = zoned(network(5, hidden, cell=cell, norm=norm))
    x, h0 = normal(rng, 12, 2, 5), drawn_state(rng, rnn, 2)
    want = rnn(x, h0, threads=1)
    with several_threads(2, "units"):
        equal(rnn, rnn(x, h0, threads=2), want)
    stream = rnn.stream(2)
    stream.state = h0
    for t in range(12):
        same(stream(x[t], threads=2), want[0][t])


@each_variant
def test_streams_are_calls(family, rng, variant):
    rnn = zoned(network(5, 33, num_layers=2, trained=9, **VARIANTS[variant]))
    x = normal(rng, 9, 4, 5)
    y, end = rnn(x)
    s = rnn.stream(4)
    for t in range(6):
        if t % 2:
            same(s(x[t]), y[t])
        else:  # lanes one by one
            same(s(x[t, [3, 1]], rows=[3, 1]), y[t, [3, 1]])
            same(s(x[t, [0, 2]], rows=[0, 2]), y[t, [0, 2]])
    same(s(x[6:]), y[6:])
    equal(rnn, (y, s.state), (y, end))


@each_variant
def test_ragged_resets_and_directions(rng, variant):
    """A sequence that is reset gives what its parts give: nothing of the state before is kept."""
    rnn = zoned(network(5, 17, bidirectional=True, trained=9, **VARIANTS[variant]))
    x, lengths = normal(rng, 9, 3, 5), np.array([9, 4, 0])
    y, end = rnn(x, lengths=lengths)
    values = np.concatenate([x[:n, b] for b, n in enumerate(lengths)])
    ragged, ragged_end = rnn.ragged(values, [0, 9, 13, 13])
    same(ragged, np.concatenate([y[:n, b] for b, n in enumerate(lengths)]))
    equal(rnn, (y, ragged_end), (y, end))
    resets = np.zeros((9, 3), bool)
    resets[5] = True
    y, _ = rnn(x, resets=resets)
    same(y[:5], rnn(x[:5])[0])
    same(y[5:], rnn(x[5:])[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@each_cell
def test_other_weights(rng, cell, dtype):
    rnn = zoned(calm(5, 33, cell=cell)).to_dtype(dtype)
    assert rnn.zoneout == rates(rnn)
    x = normal(rng, 9, 3, 5)
    y, _ = rnn(x)
    s = rnn.stream(3)
    for t in range(9):
        same(s(x[t]), y[t])
    assert 1e-6 < absolute_error(y, reference_forward(rnn, x)[0]) < 0.05


@each_variant
def test_none_is_no_change(rng, variant):
    rnn = network(5, 17, trained=9, **VARIANTS[variant])
    x = normal(rng, 9, 3, 5)
    want, print_before = rnn(x), rnn.stream().get_state().fingerprint
    zoned(rnn)
    assert (rnn(x)[0] != want[0]).any()
    rnn.zoneout = 0
    equal(rnn, rnn(x), want)
    assert rnn.stream().get_state().fingerprint == print_before


def test_nan_stays_in_its_sequence_and_infinity_where_it_is(rng):
    rnn = zoned(network(5, 17, cell="RNN", nonlinearity="relu", norm=None))
    x = normal(rng, 9, 3, 5)
    want = rnn(x)[0]
    x[4, 1] = np.nan
    y = rnn(x)[0]
    same(y[:, [0, 2]], want[:, [0, 2]])
    assert np.isnan(y[4:, 1]).all() and not np.isnan(y[:4]).any()


# --- batch norm ---------------------------------------------------------------------------------------------


@each_cell
def test_calibrate_takes_the_expectation(rng, cell):
    """The statistics are of a network as calls have it: a call with them is the call that gave them."""
    rnn = zoned(calm(5, 17, cell=cell, norm=lnrnn.BatchNormSpec(overrun="batch")))
    x = normal(rng, 9, 40, 5)
    before, _ = rnn(x)  # with the batch's own
    rnn.calibrate([x])
    assert absolute_error(rnn(x)[0], before) < WHOLE
    assert absolute_error(rnn(x)[0], reference_forward(rnn, x)[0]) < WHOLE


# --- where it is kept ---------------------------------------------------------------------------------------


@each_cell
def test_copies_and_files(rng, tmp_path, cell):
    rnn = zoned(network(5, 17, cell=cell))
    x = normal(rng, 9, 3, 5)
    want = rnn(x)
    rnn.save(tmp_path / "m.safetensors")
    loaded = lnrnn.load(tmp_path / "m.safetensors")
    for other in (copy.copy(rnn), copy.deepcopy(rnn), pickle.loads(pickle.dumps(rnn)), loaded):
        assert other.zoneout == rnn.zoneout and f"zoneout={rnn.zoneout}" in repr(other)
        equal(rnn, other(x), want)
        other.zoneout = 0
        assert "zoneout" not in repr(other)
    equal(rnn, rnn(x), want)


@each_cell
def test_a_stream_keeps_the_zoneout_it_was_made_with(rng, cell):
    rnn = zoned(network(5, 17, cell=cell))
    x, s = normal(rng, 1, 5), rnn.stream()
    y, state = s(x), s.get_state()
    rnn.zoneout = 0
    s.reset()
    same(s(x), y)
    with pytest.raises(ValueError, match="another network"):
        rnn.stream().set_state(None, state)
    same(pickle.loads(pickle.dumps(rnn.stream()))(x), rnn.stream()(x))


def configuration(path):
    with safetensors.safe_open(path, "numpy") as file:
        return json.loads(file.metadata()["config"])


def test_a_file_names_it_only_where_there_is_some(tmp_path):
    path, rnn = tmp_path / "m.safetensors", lnrnn.LSTM(3, 4)
    rnn.save(path)
    assert "zoneout" not in configuration(path)
    rnn.zoneout = 0.1, 0.5
    rnn.save(path)
    assert configuration(path)["zoneout"] == [0.1, 0.5]


@pytest.mark.parametrize("value", [1.0, -0.1, "much", [0.1], [0.1, 0.2, 0.3], {}, None, [0.1, 2]])
def test_files_with_another_zoneout_are_refused(tmp_path, value):
    path, rnn = tmp_path / "m.safetensors", lnrnn.LSTM(3, 4)
    rnn.save(path)
    config = json.dumps(configuration(path) | {"zoneout": value})
    metadata = {"format": "lnrnn", "schema": "1", "config": config}
    path.write_bytes(safetensors.numpy.save(rnn.state_dict(), metadata))
    with pytest.raises(ValueError, match="cannot load .*zoneout"):
        lnrnn.load(path)


# --- what may be set ----------------------------------------------------------------------------------------


def test_what_is_set_is_what_is_there():
    for cell in CELLS:
        rnn = getattr(lnrnn, cell)(3, 4)
        pair = cell == "LSTM"
        assert rnn.zoneout == ((0.0, 0.0) if pair else 0.0)
        for value in (0.25, np.float32(0.25), np.array(0.25)):
            rnn.zoneout = value
            assert rnn.zoneout == ((0.25, 0.25) if pair else 0.25)
            assert {type(r) for r in np.atleast_1d(rnn.zoneout).tolist()} == {float}
    rnn = lnrnn.LSTM(3, 4)
    for value in ((0, 0.5), [0, 0.5]):
        rnn.zoneout = value
        assert rnn.zoneout == (0.0, 0.5)


@pytest.mark.parametrize(
    "error, value",
    [
        (ValueError, 1),
        (ValueError, 1.5),
        (ValueError, -1e-9),
        (ValueError, np.nan),
        (ValueError, np.inf),
        (TypeError, "0.1"),
        (TypeError, True),
        (TypeError, None),
        (TypeError, 0.1j),
        (TypeError, np.zeros(2, bool)),
    ],
)
@each_cell
def test_wrong_rates_are_refused(cell, error, value):
    rnn = getattr(lnrnn, cell)(3, 4)
    rnn.zoneout = 0.5
    for given in [value] + [(0.1, value), (value, 0.1)] * (cell == "LSTM"):
        with pytest.raises(error, match="^zoneout"):
            rnn.zoneout = given
    assert rnn.zoneout == (0.5 if cell != "LSTM" else (0.5, 0.5))


def test_pairs_belong_to_a_cell_state():
    for cell in ("RNN", "GRU"):
        with pytest.raises(TypeError, match=f"zoneout must be a number, for {cell}"):
            getattr(lnrnn, cell)(3, 4).zoneout = 0.1, 0.1
    for wrong in ((), (0.1,), (0.1, 0.1, 0.1)):
        with pytest.raises(TypeError, match="zoneout must be a number, or a pair of them"):
            lnrnn.LSTM(3, 4).zoneout = wrong


def test_a_network_with_statistics_keeps_them(rng):
    """To set zoneout is to make another version of the network, and no other change."""
    rnn = learn(lnrnn.GRU(3, 4, norm="batch"), rng, 5, 8)
    state = rnn.state_dict()
    rnn.zoneout = 0.5
    assert rnn.known_steps == 5
    for name, value in rnn.state_dict().items():
        same(value, state[name])
    assert whole(rnn, parts(rnn, rnn.zoneout)) == 0.5
