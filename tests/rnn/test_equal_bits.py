"""With one instruction set, the results of a sequence always have the same bits.

They do not depend on the batch, the index in it, padding, the number of threads, the division into calls, or
streaming.

Tests of choices inside the kernels run on every instruction set. test_weight_dtypes.py and test_units.py test
sets that only add instructions for bfloat16 and int8. If there are too many combinations of sizes and models,
each size is tested with some of the models.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import lnrnn
from configurations import EDGES, TALL
from helpers import (
    available_isas,
    layouts,
    on_every_isa,
    several_threads,
    using_isa,
    using_partition,
    using_threads,
)  # fmt: skip
from networks import drawn_state, each_cell, equal, network, normal, parts, same, spec, taken

BATCHES = (*range(1, 14), 31, 32, 33, 64, 70)
HIDDEN = (1, 15, 17, 33, 48, 65, 97, 193)
T, KNOWN = 9, 4

# Networks for inference. If trained is KNOWN, batch norm has no statistics for the last steps of x.
MODELS = {
    "layer": dict(norm="layer"),
    "none": dict(norm=None),
    "batch": dict(norm="batch", trained=T),
    "batch, last": dict(norm=lnrnn.BatchNormSpec(overrun="last"), trained=KNOWN),
    "batch, mean": dict(norm=lnrnn.BatchNormSpec(overrun="mean"), trained=KNOWN),
    "LSTM": dict(cell="LSTM"),
    "LSTM none": dict(cell="LSTM", norm=None),
    "LSTM projected": dict(cell="LSTM", projected=True),
    "LSTM none projected": dict(cell="LSTM", norm=None, projected=True),
    "LSTM joint": dict(cell="LSTM", norm=spec("joint", None, inner_bias=True)),
    "LSTM gate": dict(cell="LSTM", norm=spec("gate", "carry")),
    "LSTM batch": dict(cell="LSTM", norm=lnrnn.BatchNormSpec(overrun="last"), trained=KNOWN),
    "GRU": dict(cell="GRU"),
    "GRU none": dict(cell="GRU", norm=None),
    "GRU all": dict(cell="GRU", norm=spec("split", span="all", inner_bias=True)),
    "GRU joint": dict(cell="GRU", norm=spec("joint")),
    "GRU gate": dict(cell="GRU", norm=spec("gate", inner_bias=True)),
    "GRU batch": dict(cell="GRU", norm=lnrnn.BatchNormSpec(overrun="mean"), trained=KNOWN),
    "LSTM heads": dict(cell="LSTM", num_heads=3),
    "GRU heads": dict(cell="GRU", num_heads=5, norm=spec("joint")),
    "GRU reset": dict(cell="GRU", norm=spec("split", inner_bias=True), reset_after=False),
    "GRU reset none": dict(cell="GRU", norm=None, reset_after=False),
    "GRU reset batch": dict(
        cell="GRU", norm=lnrnn.BatchNormSpec(overrun="mean"), reset_after=False, trained=KNOWN
    ),
}
each_model = pytest.mark.parametrize("model", MODELS)


DTYPES = ("float32", "bfloat16", "int8")


def made(model, inputs, hidden, k=0, **options):
    """Returns a network of MODELS.

    k selects the type of weights of an LSTM or GRU; test_weight_dtypes.py tests those of an RNN.
    """
    dtype = DTYPES[k % 3] if "cell" in MODELS[model] else "float32"
    return network(inputs, hidden, **MODELS[model], **options).to_dtype(dtype)


def drawn_lengths(rng, batch):
    """Returns lengths from 0 to T, including 0 and T in large batches."""
    ends = rng.integers(0, T + 1, batch)
    ends[: min(batch, 2)] = (T, 0)[: min(batch, 2)]
    return rng.permuted(ends)


@each_model
def test_bits_do_not_depend_on_the_batch_or_the_index_in_it(family, rng, model):
    gated, place = "cell" in MODELS[model], list(MODELS).index(model)
    every = 3 if gated else 1 if model in ("layer", "none") else 2  # all models have the same product
    sizes = HIDDEN[:-1] if gated else HIDDEN
    # `vector_families` has the reason.
    for k, hidden in enumerate(sizes[:5] if family == "scalar" else sizes):
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


# {case: (first input, second input)}. Their weights are 1, but in some units the second one has 0. With these
# inputs, statistics of a row need a second pass or double precision, or are NaN.
UNLIKE = {
    "far pivot": (0, 1e4), "far mean": (1e6, 0), "huge": (1e30, 1e30), "tiny": (1e-30, 1e-30),
    "subnormal squares": (0, 2.0**-65), "zero": (0, 0), "infinite": (np.inf, 0), "NaN": (np.nan, 0),
}  # fmt: skip


@pytest.mark.parametrize("model", [name for name in MODELS if "batch" not in name and "none" not in name])
def test_rows_computed_together_have_the_bits_of_each_alone(family, rng, model):
    """Kernels compute the statistics of several rows together, and those of a single row alone."""
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


# Networks, and their units for each number of EDGES. An LSTM of 4 units has 16 outputs. Heads have so many
# units that a row too many reaches beyond the scratch memory.
TILED = {
    "RNN": (dict(cell="RNN"), 1),
    "LSTM": (dict(cell="LSTM"), 1 / 4),
    "LSTM heads": (dict(cell="LSTM", num_heads=2), 2),
    "GRU heads": (dict(cell="GRU", num_heads=2), 2),
    "GRU reset heads": (dict(cell="GRU", num_heads=2, reset_after=False), 4),
}


def of_training(rnn, x, h0):
    """Returns y, the last states, and for float32 the gradients of x and h0. Rows are axis 1 of all."""
    if rnn.dtype != "float32":
        y, h = rnn(x, h0)
        return [y, *parts(rnn, h)]
    y, h, tape = rnn.forward_train(x, h0)
    gx, gh0, _ = rnn.backward(tape, y, h)
    return [y, *parts(rnn, h), gx, *parts(rnn, gh0)]


@pytest.mark.parametrize("model", TILED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int8 of 8 bits"])
@pytest.mark.parametrize("name", [*available_isas(), *lnrnn.cpu_info()["emulated"]])
def test_rows_at_the_edges_of_tiles_have_the_bits_of_each_alone(rng, name, dtype, model):
    """More rows than a tile meet outputs of one vector, and a whole group of rows meets several heads.

    The campaign guard runs the same sizes between pages without access."""
    options, factor = TILED[model]
    bits = {"activation_bits": 8} if "of" in dtype else {}
    with using_isa(name), using_threads(1):
        for n in EDGES:
            rnn = network(n, int(factor * n), norm=None, **options).to_dtype(dtype.split()[0], **bits)
            x, h0 = normal(rng, 2, max(TALL), n), drawn_state(rng, rnn, max(TALL))
            of_all = {rows: of_training(rnn, x[:, :rows], taken(rnn, h0, slice(rows))) for rows in TALL}
            for row in (0, 14, 15, 16, 47, 48, 62, 63, 64):
                at = slice(row, row + 1)
                alone = of_training(rnn, x[:, at], taken(rnn, h0, at))
                for rows in (rows for rows in TALL if rows > row):
                    for got, want in zip(of_all[rows], alone, strict=True):
                        same(got[:, at], want, err_msg=f"row {row} of {rows}, {n} inputs")


@each_cell
def test_few_sequences_whose_statistics_are_the_batch_s(vectors, rng, cell):
    """With overrun "batch", a step needs sums over all sequences, so the call uses one thread."""
    rnn = network(7, 193, cell=cell, norm=lnrnn.BatchNormSpec(overrun="batch"), trained=KNOWN)
    x, h0 = normal(rng, 60, 3, 7), drawn_state(rng, rnn, 3)
    assert x.shape[0] * 3 * len(rnn.weight_hh_l0) * 200 > 2**22
    with using_threads(1):
        want = rnn(x, h0)
    with several_threads(2, divide="either", had=1):
        got = rnn(x, h0)
    equal(rnn, got, want)


@pytest.mark.skipif(lnrnn.cpu_info()["team"] == "none", reason="built without threads")
def test_dividing_hidden_units_of_more_sequences_than_a_tile(vectors, rng):
    """A kernel gets pointers to the rows of 64 sequences at a time, so the test has more sequences."""
    rnn = network(7, 900)
    x, h0 = normal(rng, 3, 66, 7), drawn_state(rng, rnn, 66)
    with using_threads(1):
        want = rnn(x, h0)
    with using_partition(1, 17, True), several_threads(17, divide="units"):
        got = rnn(x, h0)
    equal(rnn, got, want)


@pytest.mark.parametrize("model, hidden", [("layer", 1200), ("none", 1200), ("LSTM", 601), ("GRU", 701)])
def test_streams_have_the_same_bits_on_several_threads(vectors, rng, model, hidden):
    """The streams have so many hidden units that even one step is faster on two threads."""
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


@pytest.mark.parametrize(
    "model", ["layer", "none", "LSTM", "LSTM joint", "LSTM gate", "GRU", "GRU none", "GRU gate"]
)
@pytest.mark.parametrize("batch, hidden", [(1, 193), (3, 64), (33, 65), (64, 17)])
def test_bits_do_not_depend_on_the_division_into_calls(vectors, rng, model, batch, hidden):
    """Each call continues from the last states of the call before.

    There are more steps than one chunk of W_ih x has.
    """
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


@settings(max_examples=100)
@given(
    st.sampled_from(available_isas()), st.sampled_from(sorted(MODELS)), st.sampled_from(HIDDEN),
    st.sampled_from(HIDDEN[:5]), st.integers(1, 3), st.booleans(), st.booleans(), st.integers(1, 40),
    st.integers(1, 4), st.integers(0, 999),
)  # fmt: skip
@example(None, "layer", 33, 15, 2, True, True, 40, 3, 0)
@example(None, "LSTM", 33, 15, 2, True, True, 40, 3, 0)
@example(None, "GRU", 33, 15, 2, True, True, 40, 3, 0)
def test_mixed_conditions_change_no_bit(
    kernels, model, hidden, inputs, layers, both, batch_first, batch, threads, seed
):
    """With any batch, order of axes, padding and threads, a sequence has the same bits as alone."""
    rng = np.random.default_rng(seed)
    options = dict(num_layers=layers, bidirectional=both, batch_first=batch_first)
    rnn = made(model, inputs, hidden, k=seed, seed=seed, **options)
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
