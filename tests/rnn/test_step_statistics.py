"""Batch norm by time step: whose statistics they are, how they are kept, and what happens past the last known
step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import lnrnn
from helpers import absolute_error, on_every_family
from lnrnn import reference as ref
from networks import calm, network, normal, reference_forward

same = np.testing.assert_array_equal
T = 9
FIELDS = ("running_mean", "running_var", "count")
OVERRUNS = ("raise", "last", "mean", "batch")

# Of means and variances: float32 products, summed in double precision. Measured at most: 6e-7.
STATISTICS = 1e-6


def spec(**options):
    return lnrnn.BatchNormSpec(**options)


def statistics(rnn, suffix="_l0"):
    return [np.array(getattr(rnn, field + suffix)) for field in FIELDS]


def living_statistics(rnn, x, h0, ends, y):
    """Mean, biased variance and count of W_ih x_t + W_hh h_{t-1} by a loop over one sequence after the other,
    in float64, h being the states that the network went through."""
    w_ih, w_hh = rnn.weight_ih_l0.astype(np.float64), rnn.weight_hh_l0.astype(np.float64)
    means, variances, counts = [], [], []
    for t in range(max(ends, default=0)):
        rows = []
        for b, n in enumerate(ends):
            if n > t:
                before = y[t - 1, b] if t else h0[0, b]
                rows.append(w_ih @ x[t, b].astype(np.float64) + w_hh @ before.astype(np.float64))
        mean = sum(rows) / len(rows)
        means.append(mean)
        variances.append(sum((row - mean) ** 2 for row in rows) / len(rows))
        counts.append(len(rows))
    shape = len(counts), rnn.hidden_size  # which steps may be none
    return np.reshape(means, shape), np.reshape(variances, shape), np.array(counts)


def equal_statistics(got, want):
    known = len(want[2])
    square = (want[0] ** 2 + want[1]).max(
        initial=1
    )  # a rounding is one of the values, not of their difference
    assert absolute_error(got[0][:known], want[0]) < STATISTICS * square**0.5
    assert absolute_error(got[1][:known], want[1]) < STATISTICS * square
    same(got[2][:known], want[2])
    assert not any(array[known:].any() for array in got)  # what nobody reached stays empty


# --- whose statistics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hidden, inputs, batch", [(1, 3, 5), (17, 1, 70), (33, 16, 13), (97, 5, 1), (64, 7, 200)]
)
@pytest.mark.parametrize("padding", [np.nan, 1e30])
@pytest.mark.parametrize("room", [None, T, 20])
def test_of_the_living_only(family, rng, hidden, inputs, batch, padding, room):
    x, h0 = normal(rng, T, batch, inputs), normal(rng, 1, batch, hidden)
    for ends in (
        rng.integers(0, T, batch),
        np.full(batch, T),
        np.where(np.arange(batch) == batch // 2, 7, 2),
    ):
        x[np.arange(T)[:, None] >= ends] = padding
        rnn = calm(inputs, hidden, norm=spec(max_steps=room))
        y, _, _ = rnn.forward_train(x, h0, ends)
        equal_statistics(statistics(rnn), living_statistics(rnn, x, h0, ends, y))
        assert rnn.known_steps == ends.max() and len(rnn.count_l0) == (room or ends.max())
        x = normal(rng, T, batch, inputs)


def test_of_every_layer_and_direction(family):
    """The k-th step of a sequence, from its own end if read backwards, has the k-th statistics."""
    rng = np.random.default_rng(5)
    rnn = calm(5, 33, norm="batch", num_layers=2, bidirectional=True, batch_first=True)
    x, ends = normal(rng, T, 20, 5), np.r_[[T] * 12, rng.integers(0, T, 8)]
    _, _, tapes = reference_forward(rnn, x, None, ends, training=True)
    rnn.forward_train(x.swapaxes(0, 1), None, ends)
    for suffix, tape in tapes.items():
        equal_statistics(statistics(rnn, suffix), (tape.mean, tape.var, tape.count))
    read = rnn.running_mean_l1_reverse
    assert read.shape == (T, 33) and read.dtype == np.float64 and rnn.count_l1_reverse.dtype == np.int64
    for field in FIELDS:
        with pytest.raises(ValueError, match="read-only"):
            getattr(rnn, field + "_l0")[...] = 0
        with pytest.raises(AttributeError, match=field):
            setattr(rnn, field + "_l0", np.zeros((T, 33)))


def test_a_step_that_one_sequence_reached(rng):
    """Its variance is 0: there the output is the bias, and at inference what 1 / sqrt(eps) makes of a
    difference."""
    rnn = calm(5, 33, norm="batch", nonlinearity="identity")
    y, _, _ = rnn.forward_train(normal(rng, 3, 4, 5), None, [3, 2, 2, 1])
    same(y[2, 0], rnn.bias_l0)
    same(rnn.count_l0, [4, 3, 1])
    assert not rnn.running_var_l0[2].any() and rnn.running_var_l0[1].all()


# --- how they are kept --------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(
    st.sampled_from([0.0, 0.1, 0.25, 1.0, None]),
    st.integers(1, 5),
    st.sampled_from([None, T]),
    st.integers(0, 99),
)
@example(0.1, 5, None, 0)
@example(None, 5, T, 0)
def test_momentum(momentum, batches, room, seed):
    """A step that is seen for the first time takes the batch's statistics, whatever the momentum; then the
    rule."""
    rng = np.random.default_rng(seed)
    data = [(normal(rng, T, 12, 5), rng.integers(0, T + 1, 12)) for _ in range(batches)]

    def compute():
        rnn = calm(5, 33, norm=spec(max_steps=room, momentum=momentum))
        kept = np.zeros((0, 33)), np.zeros((0, 33)), np.zeros(0, np.int64)
        for x, ends in data:
            y, _, _ = rnn.forward_train(x, None, ends)
            batch = living_statistics(rnn, x, np.zeros((1, 12, 33)), ends, y)
            kept = ref.update_step_statistics(kept, batch, momentum)
            assert rnn.known_steps == len(kept[2])
            equal_statistics(statistics(rnn), kept)

    on_every_family(compute)


def test_pooled_is_as_if_all_had_been_one_batch(rng):
    """momentum None: mean and variance of all rows of the first step, which no earlier normalisation
    touched."""
    rnn = calm(5, 33, norm=spec(momentum=None))
    parts = [normal(rng, 1, n, 5) + n for n in (1, 2, 30, 7)]
    for part in parts:
        rnn.forward_train(part)
    rows = np.concatenate(parts, 1)[0].astype(np.float64) @ rnn.weight_ih_l0.T.astype(np.float64)
    assert absolute_error(rnn.running_mean_l0[0], rows.mean(0)) < STATISTICS * np.abs(rows).max()
    assert absolute_error(rnn.running_var_l0[0], rows.var(0)) < STATISTICS * rows.var(0).max()
    same(rnn.count_l0, [40])


def test_inference_leaves_them(rng):
    rnn = network(3, 17, norm=spec(overrun="batch"), trained=4)
    before = rnn.state_dict()
    rnn(normal(rng, T, 5, 3))
    stream = rnn.stream(5)
    for row in normal(rng, T, 5, 3):
        stream(row)
    for name, value in rnn.state_dict().items():
        same(value, before[name], err_msg=name)


def test_max_steps(rng):
    """Whoever is longer is refused before anything is computed or kept; longer padding is not."""
    rnn = network(3, 17, norm=spec(max_steps=5), num_layers=2)
    rnn.forward_train(normal(rng, T, 4, 3), None, [5, 0, 5, 3])
    before = rnn.state_dict()
    assert rnn.running_mean_l1.shape == (5, 17)
    for refused in (
        lambda: rnn.forward_train(normal(rng, T, 4, 3), None, [5, 1, 6, 7]),
        lambda: rnn.calibrate([normal(rng, 5, 1, 3), (normal(rng, T, 3, 3), [1, 6, 7])]),
    ):
        with pytest.raises(lnrnn.SequenceTooLongError, match="max_steps") as caught:
            refused()
        assert (caught.value.sequence, caught.value.length, caught.value.known_steps) == (2, 6, 5)
    for name, value in rnn.state_dict().items():
        same(value, before[name], err_msg=name)


def test_room_grows_with_the_longest(rng):
    rnn = network(3, 17, norm="batch")
    assert rnn.known_steps == 0 and rnn.running_mean_l0.shape == (0, 17)
    for ends, known in (([2, 1], 2), ([0, 1], 2), ([4, 9], 9), ([0, 0], 9)):
        rnn.forward_train(normal(rng, T, 2, 3), None, ends)
        assert rnn.known_steps == known and rnn.running_var_l0.shape == (known, 17)
    same(rnn.count_l0, [5, 3, 2, 2, 1, 1, 1, 1, 1])


# --- past the last known step -------------------------------------------------------------------------------


@pytest.mark.parametrize("overrun", OVERRUNS)
@pytest.mark.parametrize("known", [1, 4, T])
def test_overrun(family, overrun, known):
    """Whole sequences, some longer than what is known; under "raise" none is."""
    rng = np.random.default_rng(7)
    rnn = calm(5, 33, norm=spec(overrun=overrun), num_layers=2, bidirectional=True, trained=known)
    x, h0 = normal(rng, T, 20, 5), normal(rng, 4, 20, 33)
    ends = rng.integers(0, T + 1, 20) if overrun != "batch" else np.r_[[T] * 12, rng.integers(0, T, 8)]
    ends[0] = T
    if overrun == "raise":
        ends = np.minimum(ends, known)
    want_y, want_h, _ = reference_forward(rnn, x, h0, ends)
    x[np.arange(T)[:, None] >= ends] = np.nan  # nor does padding count for "batch"
    y, h = rnn(x, h0, ends)
    assert absolute_error(y, want_y) < 3e-6 and absolute_error(h, want_h) < 3e-6


def test_policies_differ_past_the_known_steps_only(rng):
    rnn = network(5, 33, norm="batch", trained=4)
    x, found = normal(rng, T, 20, 5), {}
    for overrun in OVERRUNS[1:]:
        rnn.overrun = overrun
        assert rnn.overrun == overrun
        found[overrun] = rnn(x)[0]
    for a, b in (("last", "mean"), ("last", "batch"), ("mean", "batch")):
        same(found[a][:4], found[b][:4])
        assert (found[a][4:] != found[b][4:]).any(axis=(1, 2)).all()


@pytest.mark.parametrize("unbatched", [False, True])
def test_raise_says_who_and_computes_nothing(rng, unbatched):
    rnn = network(3, 17, norm="batch", num_layers=2, trained=4)
    x = normal(rng, T, 5, 3)
    ends = np.array([4, 2, 8, 0, 9])
    with pytest.raises(lnrnn.SequenceTooLongError, match=r"(?s)sequence .*\b4\b") as caught:
        rnn(x[:, 0] if unbatched else x, None, 8 if unbatched else ends)
    assert (caught.value.sequence, caught.value.length, caught.value.known_steps) == (
        0 if unbatched else 2,
        8,
        4,
    )
    assert isinstance(caught.value, ValueError)
    rnn(x, None, np.minimum(ends, 4))  # longer padding is no longer sequence


@pytest.mark.parametrize("room", [None, T])
def test_before_any_training(rng, room):
    """Nothing is known: nobody has a step to repeat or to average, only the batch itself goes on."""
    rnn = network(3, 17, norm=spec(max_steps=room))
    x, h0 = normal(rng, T, 12, 3), normal(rng, 1, 12, 17)
    for overrun in OVERRUNS[:3]:
        rnn.overrun = overrun
        with pytest.raises(lnrnn.SequenceTooLongError, match="train") as caught:
            rnn(x, h0, [0, 1, *[0] * 10])
        assert (caught.value.sequence, caught.value.length, caught.value.known_steps) == (1, 1, 0)
        y, h = rnn(x, h0, np.zeros(12, int))  # no steps need no statistics
        assert not y.any()
        same(h, h0)
    rnn.overrun = "batch"
    ends = np.r_[[T] * 8, 0, 3, 5, 7]
    y, h = rnn(x, h0, ends)
    assert rnn.known_steps == 0
    trained_y, trained_h, _ = rnn.forward_train(x, h0, ends)
    same(y, trained_y)  # training does just that
    same(h, trained_h)


@pytest.mark.parametrize("overrun", OVERRUNS)
@pytest.mark.parametrize("known", [0, 1, 4])
def test_a_stream_does_what_a_sequence_does(family, rng, overrun, known):
    """The same bits, or the same refusal at the step where it begins."""
    rnn = network(3, 33, norm=spec(overrun=overrun), num_layers=2, trained=known)
    x, stream, rows = normal(rng, T, 12, 3), rnn.stream(12), []
    serves = T if known and overrun != "raise" or overrun == "batch" else known
    for t in range(serves):
        rows.append(stream(x[t]).copy())
    if serves:
        same(rows, rnn(x[:serves])[0])
    if serves < T:
        with pytest.raises(lnrnn.SequenceTooLongError) as caught:
            stream(x[serves])
        assert (caught.value.length, caught.value.known_steps) == (serves + 1, known)
    assert (stream.step == serves).all()


# --- calibrate ----------------------------------------------------------------------------------------------


def divided(x, ends, sizes):
    """Batches of those sizes, each cut to its own longest sequence."""
    cuts = np.cumsum(sizes)[:-1]
    return [
        (part[: max(n, default=0)], n)
        for part, n in zip(np.split(x, cuts, 1), np.split(ends, cuts), strict=True)
    ]


def test_calibrate_is_exact_and_does_not_know_batches(family):
    rng = np.random.default_rng(8)
    rnn = calm(5, 33, norm="batch", num_layers=2, bidirectional=True)
    x, ends = normal(rng, T, 40, 5), np.r_[[T] * 9, rng.integers(0, T + 1, 31)]
    ends = rng.permutation(ends)
    rnn.forward_train(normal(rng, 2 * T, 50, 5) + 3)  # old statistics, of more steps: replaced
    _, _, tapes = reference_forward(rnn, x, None, ends, training=True)
    found = []
    for sizes in ([40], [1] * 40, [13, 0, 26, 1]):
        rnn.calibrate(iter(divided(x, ends, sizes)))
        assert rnn.known_steps == T
        for suffix, tape in tapes.items():
            equal_statistics(statistics(rnn, suffix), (tape.mean, tape.var, tape.count))
        found.append(rnn.state_dict())
    for name, value in found[0].items():
        same(found[1][name], value, err_msg=name)
        same(found[2][name], value, err_msg=name)
    # whoever is calibrated on the test data itself gets what training on it would compute
    y, want = rnn(x, None, ends)[0], rnn.forward_train(x, None, ends)[0]
    assert absolute_error(y, want) < 3e-6
    # another order of the sequences: the same sums in another order, in double precision
    who = rng.permutation(40)
    rnn.calibrate(divided(x[:, who], ends[who], [20, 20]))
    for name, value in rnn.state_dict().items():
        assert absolute_error(value, found[0][name]) < STATISTICS, name


def test_calibrate_takes_what_a_call_takes(rng):
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


def test_calibrate_does_not_look_past_the_longest_sequence(rng):
    x = normal(rng, 6, 4, 3)
    cut, whole = (network(3, 5, norm="batch") for _ in range(2))
    cut.calibrate([(x[:3], [3, 1, 2, 3])])
    whole.calibrate([(x, [3, 1, 2, 3])])
    for name, value in cut.state_dict().items():
        np.testing.assert_array_equal(getattr(whole, name), value)


def test_calibrate_takes_an_iterator_that_fills_one_array_again_and_again(rng):
    two = normal(rng, 2, 6, 4, 3)

    def filling():
        x = np.empty_like(two[0])
        for part in two:
            x[...] = part
            yield x

    at_once, filled = (network(3, 5, norm="batch") for _ in range(2))
    at_once.calibrate(list(two))
    filled.calibrate(filling())
    for name, value in at_once.state_dict().items():
        np.testing.assert_array_equal(getattr(filled, name), value)


def test_calibrate_on_nothing_is_refused(rng):
    rnn = network(3, 17, norm="batch", trained=4)
    before = rnn.state_dict()
    for nothing in ([], [np.zeros((0, 4, 3))], [(np.zeros((4, 2, 3)), [0, 0])]):
        with pytest.raises(ValueError, match="at least one"):
            rnn.calibrate(nothing)
    for name, value in rnn.state_dict().items():
        same(value, before[name])


# --- where they travel --------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [None, 20])
def test_in_the_state_and_in_files(rng, tmp_path, room):
    pytest.importorskip("safetensors")
    rnn = network(3, 17, norm=spec(max_steps=room), num_layers=2, bidirectional=True)
    rnn.forward_train(normal(rng, T, 6, 3), None, [9, 4, 4, 2, 7, 0])
    rnn.overrun = "mean"
    x = normal(rng, 2 * T, 5, 3)
    state, want = rnn.state_dict(), rnn(x)[0]
    rnn.save(tmp_path / "m.safetensors")
    other = lnrnn.RNN(3, 17, 2, norm=spec(max_steps=room, overrun="mean"), bidirectional=True)
    other.load_state_dict(state)
    for twin in (other, lnrnn.load(tmp_path / "m.safetensors")):
        assert twin.known_steps == T and twin.overrun == "mean"
        for name, value in twin.state_dict().items():
            same(value, state[name], err_msg=name)
            assert value.dtype == state[name].dtype
        same(twin(x)[0], want)
        same(twin.count_l1_reverse[:T], [5, 5, 4, 4, 2, 2, 2, 1, 1])


def test_counts_and_momentum_go_on_where_they_stopped(rng):
    """Two batches in one network, or the second in a network that loaded the first's state."""
    first, second = normal(rng, 4, 5, 3), normal(rng, T, 7, 3)
    for momentum in (0.3, None):
        rnn, other = (network(3, 17, norm=spec(momentum=momentum)) for _ in range(2))
        rnn.forward_train(first)
        other.load_state_dict(rnn.state_dict())
        rnn.forward_train(second)
        other.forward_train(second)
        for name, value in rnn.state_dict().items():
            same(other.state_dict()[name], value, err_msg=name)
        same(rnn.count_l0, [12] * 4 + [7] * 5)
