"""Bit for bit: on one instruction set a sequence gets what it gets, whatever the batch around it, its place
in it, padding, the number of threads, the cutting into pieces, or a call per step. No test here has a
tolerance.

What the kernels decide runs on every instruction set but those that only add units for shorter weights, which
test_weight_dtypes.py and test_units.py have; sizes and models take turns where each was seen with the other's
neighbours."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import lnrnn
from helpers import (
    available_isas,
    layouts,
    on_every_isa,
    several_threads,
    using_isa,
    using_partition,
    using_threads,
)
from networks import CELLS, NORMS, drawn_state, network, normal, parts, spec, taken

BATCHES = (*range(1, 14), 31, 32, 33, 64, 70)
HIDDEN = (1, 15, 17, 33, 48, 65, 97, 193)
T, KNOWN = 9, 4

# What a network may be at inference; the last three under batch norm, with and without steps that nobody
# knows.
MODELS = {
    "layer": dict(norm="layer"),
    "none": dict(norm=None),
    "batch": dict(norm="batch", trained=T),
    "batch, last": dict(norm=lnrnn.BatchNormSpec(overrun="last"), trained=KNOWN),
    "batch, mean": dict(norm=lnrnn.BatchNormSpec(overrun="mean"), trained=KNOWN),
    "LSTM": dict(cell="LSTM"),
    "LSTM none": dict(cell="LSTM", norm=None),
    "LSTM joint": dict(cell="LSTM", norm=spec("joint", None, inner_bias=True)),
    "LSTM gate": dict(cell="LSTM", norm=spec("gate", "carry")),
    "LSTM batch": dict(cell="LSTM", norm=lnrnn.BatchNormSpec(overrun="last"), trained=KNOWN),
    "GRU": dict(cell="GRU"),
    "GRU none": dict(cell="GRU", norm=None),
    "GRU all": dict(cell="GRU", norm=spec("split", span="all", inner_bias=True)),
    "GRU joint": dict(cell="GRU", norm=spec("joint")),
    "GRU gate": dict(cell="GRU", norm=spec("gate", inner_bias=True)),
    "GRU batch": dict(cell="GRU", norm=lnrnn.BatchNormSpec(overrun="mean"), trained=KNOWN),
}
each_model = pytest.mark.parametrize("model", MODELS)
same = np.testing.assert_array_equal


DTYPES = ("float32", "bfloat16", "int8")


def made(model, inputs, hidden, k=0, **options):
    """Such a network. LSTM and GRU take turns with the types of weights; an RNN's are in
    test_weight_dtypes.py."""
    dtype = DTYPES[k % 3] if "cell" in MODELS[model] else "float32"
    return network(inputs, hidden, **MODELS[model], **options).to_dtype(dtype)


def equal(rnn, got, want, message=""):
    """The same y and the same states."""
    for a, b in zip((got[0], *parts(rnn, got[1])), (want[0], *parts(rnn, want[1])), strict=True):
        same(a, b, err_msg=message)


def drawn_lengths(rng, batch):
    """0 .. T, with both among them where there is room."""
    ends = rng.integers(0, T + 1, batch)
    ends[: min(batch, 2)] = (T, 0)[: min(batch, 2)]
    return rng.permuted(ends)


@each_model
def test_any_batch_any_place(family, rng, model):
    gated, place = "cell" in MODELS[model], list(MODELS).index(model)
    every = 3 if gated else 1 if model in ("layer", "none") else 2  # all have the same product
    for k, hidden in enumerate(HIDDEN[:-1] if gated else HIDDEN):
        with_lengths = k % 3 > 0
        inputs = HIDDEN[(3 * k + 2) % len(HIDDEN)]
        activation = {} if gated else {"nonlinearity": ("tanh", "identity")[k % 2]}
        rnn = made(model, inputs, hidden, k=k, seed=k, **activation)
        x, h0 = normal(rng, T, 70, inputs), drawn_state(rng, rnn, 70)
        ends = drawn_lengths(rng, 70) if with_lengths else np.full(70, T)
        y, h = rnn(x, h0, ends)
        for batch in BATCHES[(k + place) % every :: every]:
            who = rng.permutation(70)[:batch]
            got = rnn(x[:, who], taken(rnn, h0, who), ends[who] if with_lengths else None)
            message = f"{batch} of 70, {hidden} units, {inputs} inputs, {rnn.dtype}"
            equal(rnn, got, (y[:, who], taken(rnn, h, who)), message)


# What stands beside ordinary rows, by an input that all units share and one that most of them share: the
# statistics of such a row take a second pass or double precision, or are no numbers.
UNLIKE = {
    "far pivot": (0, 1e4), "far mean": (1e6, 0), "huge": (1e30, 1e30), "tiny": (1e-30, 1e-30),
    "subnormal squares": (0, 2.0**-65), "zero": (0, 0), "infinite": (np.inf, 0), "NaN": (np.nan, 0),
}  # fmt: skip


@pytest.mark.parametrize("model", [name for name in MODELS if "batch" not in name and "none" not in name])
def test_rows_beside_others(family, rng, model):
    """The statistics of several rows are found together, of a row alone by themselves."""
    norm = MODELS[model].get("norm", "layer")
    norm = lnrnn.LayerNormSpec() if norm == "layer" else norm
    for hidden, eps in ((3, 1e-5), (33, 2.0**-130), (130, 1e-5)):
        rnn = network(4, hidden, **MODELS[model] | {"norm": replace(norm, eps=eps)})
        weight = normal(rng, *rnn.weight_ih_l0.shape)
        weight[:, 0], weight[:, 1] = 1, 1
        weight[: min(16, hidden // 3), 1] = 0
        rnn.weight_ih_l0 = weight
        for batch in (4, 16, 37):
            x = normal(rng, 3, batch, 4)
            x[..., :2] = 0
            for place, values in zip(range(1, batch, 3), 2 * list(UNLIKE.values()), strict=False):
                x[:, place, :2] = values
                x[:, place, 2:] *= min(1, abs(np.nan_to_num(values[0] or values[1], nan=1)))
            y, h = rnn(x)
            for place in range(batch):
                of_one = (y[:, place : place + 1], taken(rnn, h, [place]))
                equal(rnn, rnn(x[:, place : place + 1]), of_one, f"row {place} of {batch}, {hidden} units")


@each_model
def test_every_place_among_strangers(family, rng, model):
    """One sequence moves through a batch of others, which change as well."""
    rnn = made(model, 5, 33)
    x, h0 = normal(rng, T, 5), drawn_state(rng, rnn, 1)
    for n in (T, 3):
        want = rnn(x[:, None], h0, [n])
        for place in range(33):
            crowd, states = 100 * normal(rng, T, 33, 5), drawn_state(rng, rnn, 33)
            crowd[:, place] = x
            for of_all, own in zip(parts(rnn, states), parts(rnn, h0), strict=True):
                of_all[:, place] = own[:, 0]
            ends = rng.integers(0, T + 1, 33)
            ends[place] = n
            y, h = rnn(crowd, states, ends)
            equal(rnn, (y[:, [place]], taken(rnn, h, [place])), want, f"place {place}")


@each_model
@pytest.mark.parametrize("padding", [np.nan, np.inf, 1e30])
def test_padding(family, rng, model, padding):
    """What lies past a length is not read, and its amount does not matter."""
    rnn = made(model, 3, 33, num_layers=2, bidirectional=True)
    x, h0 = normal(rng, T, 13, 3), drawn_state(rng, rnn, 13)
    ends = drawn_lengths(rng, 13)
    y, h = rnn(x, h0, ends)
    for more in (0, 1, 40):
        wide = np.concatenate([x, np.full((more, 13, 3), padding, np.float32)])
        wide[np.arange(T + more)[:, None] >= ends] = padding
        got_y, got_h = rnn(wide, h0, ends)
        equal(rnn, (got_y[:T], got_h), (y, h))
        assert not got_y[T:].any()
    for b, n in enumerate(ends):  # and none at all
        equal(rnn, rnn(x[:n, b : b + 1], taken(rnn, h0, [b])), (y[:n, b : b + 1], taken(rnn, h, [b])))


# What threads shall divide (test_partitions.py has grids of both), inputs, units, sequences, steps. Four
# million multiply-adds are worth a second thread, these are worth four: first of many sequences, then of few,
# for more steps than are projected at once.
BUSY = (
    ("tasks", 65, 193, 70, 9),
    ("tasks", 1, 255, 33, 12),
    ("units", 65, 193, 1, 400),
    ("units", 7, 150, 3, 300),
    ("units", 33, 145, 7, 150),
)
SHARED = ("batch, last", "LSTM", "LSTM gate", "GRU", "GRU gate")


def busy(rng, model, case):
    """(network, x, h0, lengths) for one of BUSY."""
    _, inputs, hidden, batch, steps = case
    rnn = made(model, inputs, hidden, k=hidden)
    if "cell" in MODELS[model]:
        steps = max(9, steps // 3)  # as much work
    ends = rng.integers(2 * steps // 3, steps + 1, batch)
    ends[0] = steps
    assert ends.sum() * len(rnn.weight_hh_l0) * (inputs + hidden) > 3 * 2**22
    return rnn, normal(rng, steps, batch, inputs), drawn_state(rng, rnn, batch), ends


@pytest.mark.parametrize(
    "model, case",
    [
        *(("layer", case) for case in BUSY),
        *((model, BUSY[k % 2]) for k, model in enumerate(SHARED)),
        *((model, BUSY[2 + k % 3]) for k, model in enumerate(SHARED)),
    ],
    ids=lambda p: p if isinstance(p, str) else "-".join(map(str, p)),
)
def test_threads(family, rng, model, case):
    rnn, x, h0, ends = busy(rng, model, case)
    with several_threads(1):
        want = rnn(x, h0, ends)
    for threads in (
        (2, 3, 4) if model == "layer" else (3,)
    ):  # on two cores the last two lose one sooner or later
        grid = (1, threads) if case[0] == "units" else (threads, 1)
        with using_partition(*grid), several_threads(threads, divide=case[0]):
            got = rnn(x, h0, ends)
        equal(rnn, got, want, f"{threads} threads")


@pytest.mark.skipif(lnrnn.cpu_info()["team"] == "none", reason="built without threads")
@pytest.mark.parametrize("barrier", ["slow", "staggered"])
@pytest.mark.parametrize("model", ["layer", "LSTM", "GRU gate"])
def test_threads_out_of_step(family, rng, model, barrier):
    """Threads that divide the units. slow: one has lost its core, and the first goes on alone, from the
    middle. staggered: now this one and now the other is slow from one barrier to the next."""
    rnn, x, h0, ends = busy(rng, model, BUSY[3])
    with using_threads(1):
        want = rnn(x, h0, ends)
    for threads in (2, 3) if barrier == "slow" else (2,):
        with using_partition(1, threads), several_threads(threads, divide="units"):
            lnrnn._core.set_barrier_mode(barrier)
            got = rnn(x, h0, ends)
        equal(rnn, got, want, f"{threads} threads")


@pytest.mark.parametrize("cell", CELLS)
def test_few_sequences_whose_statistics_are_the_batch_s(family, rng, cell):
    """A step needs the sums of all sequences: threads do not divide its units."""
    rnn = network(7, 193, cell=cell, norm=lnrnn.BatchNormSpec(overrun="batch"), trained=KNOWN)
    x, h0 = normal(rng, 60, 3, 7), drawn_state(rng, rnn, 3)
    assert x.shape[0] * 3 * len(rnn.weight_hh_l0) * 200 > 2**22
    with using_threads(1):
        want = rnn(x, h0)
    with several_threads(2, divide="either", had=1):
        got = rnn(x, h0)
    equal(rnn, got, want)


@pytest.mark.skipif(lnrnn.cpu_info()["team"] == "none", reason="built without threads")
def test_units_of_more_sequences_than_a_tile(family, rng):
    """Of a tile of 64 the pointers to rows are gathered."""
    rnn = network(7, 900)
    x, h0 = normal(rng, 3, 66, 7), drawn_state(rng, rnn, 66)
    with using_threads(1):
        want = rnn(x, h0)
    with using_partition(1, 17, True), several_threads(17, divide="units"):
        got = rnn(x, h0)
    equal(rnn, got, want)


@pytest.mark.parametrize("model, hidden", [("layer", 1200), ("none", 1200), ("LSTM", 601), ("GRU", 701)])
def test_threads_within_a_step(family, rng, model, hidden):
    """Streams so wide that a step alone is worth two threads."""
    rnn = made(model, 7, hidden)
    x = normal(rng, 4, 3, 7)
    assert 3 * len(rnn.weight_hh_l0) * (7 + hidden) > 2**22
    with using_threads(1):
        y, h = rnn(x)
    with several_threads(2, divide="units"):
        stream = rnn.stream(3)
        for t in range(4):
            same(stream(x[t]), y[t], err_msg=f"step {t}")
        equal(rnn, (y, stream.state), (y, h))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("norm", NORMS)
def test_threads_through_layers_and_directions(rng, cell, norm):
    rnn = network(65, 193, cell=cell, norm=norm, num_layers=2, bidirectional=True, trained=T)
    x, ends = normal(rng, T, 70, 65), drawn_lengths(rng, 70)
    with using_threads(1):
        want = rnn(x, None, ends)
    for threads in (2, 3, 4):
        with several_threads(threads):
            got = rnn(x, None, ends)
        equal(rnn, got, want)


@pytest.mark.parametrize(
    "model", ["layer", "none", "LSTM", "LSTM joint", "LSTM gate", "GRU", "GRU none", "GRU gate"]
)
@pytest.mark.parametrize("batch, hidden", [(1, 193), (3, 64), (33, 65), (64, 17)])
def test_one_call_or_several(family, rng, model, batch, hidden):
    """A sequence in pieces, each from where the last one ended. All its steps are more than are projected at
    once."""
    rnn = made(model, 5, hidden, k=batch % 4, num_layers=2)
    steps = max(24, 60_000 // (batch * len(rnn.weight_hh_l0)))
    x, h0 = normal(rng, steps, batch, 5), drawn_state(rng, rnn, batch)
    y, h = rnn(x, h0)
    for cuts in ((1,), (2, steps // 2), (steps // 2 + 7, steps // 2 + 8, steps - 1)):
        pieces, state = [], h0
        for part in np.split(x, cuts):
            piece, state = rnn(part, state)
            pieces.append(piece)
        equal(rnn, (np.concatenate(pieces), state), (y, h))


@each_model
def test_a_call_per_step(family, rng, model):
    """Streams in another company than the whole sequences: alone, in pairs, in dozens, whatever threads are
    allowed."""
    place = list(MODELS).index(model)
    rnn = made(model, 7, (15, 65, 130)[place % 3], k=place // 3, num_layers=2)
    x, h0 = normal(rng, T, 70, 7), drawn_state(rng, rnn, 70)
    ends = np.full(70, T)
    ends[::3] = rng.integers(0, T, 24)
    y, h = rnn(x, h0, ends)
    for batch in (1, 2, 12, 33, 70):
        who = rng.permutation(70)[:batch]
        stream = rnn.stream(batch)
        stream.state = taken(rnn, h0, who)
        for t in range(T):
            with using_threads(1 + t % 4):
                row = stream(x[t, who])
            alive = ends[who] > t
            same(row[alive], y[t, who[alive]], err_msg=f"step {t}, {batch} streams")
            ending = ends[who] == t + 1
            equal(rnn, (0, taken(rnn, stream.state, ending)), (0, taken(rnn, h, who[ending])))


@settings(max_examples=200)
@given(
    st.sampled_from(available_isas()),
    st.sampled_from(sorted(MODELS)),
    st.sampled_from(HIDDEN),
    st.sampled_from(HIDDEN[:5]),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 4),
    st.integers(0, 999),
)
@example(None, "layer", 33, 15, 2, True, True, 40, 3, 0)
@example(None, "LSTM", 33, 15, 2, True, True, 40, 3, 0)
@example(None, "GRU", 33, 15, 2, True, True, 40, 3, 0)
def test_all_of_it_at_once(kernels, model, hidden, inputs, layers, both, batch_first, batch, threads, seed):
    """In any company, memory order, amount of padding and number of threads: what the sequence gets alone."""
    rng = np.random.default_rng(seed)
    rnn = made(
        model,
        inputs,
        hidden,
        k=seed,
        seed=seed,
        num_layers=layers,
        bidirectional=both,
        batch_first=batch_first,
    )
    more = int(rng.integers(0, 5))
    x = normal(rng, T + more, batch, inputs)
    h0, ends = drawn_state(rng, rnn, batch), drawn_lengths(rng, batch)
    x[np.arange(T + more)[:, None] >= ends] = np.nan
    who = int(rng.integers(batch))
    name = rng.choice(sorted(layouts(x)))

    def compute():
        caller = layouts(x.swapaxes(0, 1).copy() if batch_first else x).get(name, x)
        with using_threads(threads):
            y, h = rnn(caller, h0, ends)
        alone = x[: ends[who], who : who + 1]
        with using_threads(1):
            want = rnn(alone.swapaxes(0, 1) if batch_first else alone, taken(rnn, h0, [who]))
        got = y[who : who + 1, : ends[who]] if batch_first else y[: ends[who], who : who + 1]
        equal(rnn, (got, taken(rnn, h, [who])), want)

    if kernels:
        with using_isa(kernels):
            compute()
    else:
        on_every_isa(compute)
