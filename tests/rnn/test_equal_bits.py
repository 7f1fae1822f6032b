"""With one instruction set, the results of a sequence always have the same bits.

tests/conformance tests this for all networks. Here are choices inside the kernels: rows computed together,
edges of tiles, and work that threads divide.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import lnrnn
from configurations import EDGES, TALL
from helpers import available_isas, several_threads, using_isa, using_threads
from networks import VARIANTS, drawn_state, each_cell, equal, network, normal, parts, same, taken

KNOWN = 4  # steps with statistics

# {case: (first input, second input)}. Their weights are 1, but in some units the second one has 0. With these
# inputs, statistics of a row need a second pass or double precision, or are NaN.
UNLIKE = {
    "far pivot": (0, 1e4), "far mean": (1e6, 0), "huge": (1e30, 1e30), "tiny": (1e-30, 1e-30),
    "subnormal squares": (0, 2.0**-65), "zero": (0, 0), "infinite": (np.inf, 0), "NaN": (np.nan, 0),
}  # fmt: skip


LAYER = {name: options for name, options in VARIANTS.items() if not re.search("batch|none|SLSTM", name)}


@pytest.mark.parametrize("model", LAYER)
def test_rows_computed_together_have_the_bits_of_each_alone(family, rng, model):
    """Kernels compute the statistics of several rows together, and those of a single row alone. Each size of
    a batch meets each number of units in a third of the models."""
    norm = LAYER[model].get("norm", lnrnn.LayerNormSpec())
    for k, (hidden, eps) in enumerate(((3, 1e-5), (33, 2.0**-130), (130, 1e-5)), [*LAYER].index(model)):
        rnn = network(4, hidden, **LAYER[model] | {"norm": replace(norm, eps=eps)})
        weight = normal(rng, *rnn.weight_ih_l0.shape)
        weight[:, 0], weight[:, 1] = 1, 1
        weight[: min(16, hidden // 3), 1] = 0
        rnn.weight_ih_l0 = weight
        x = normal(rng, 3, batch := (4, 16, 37)[k % 3], 4)
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int8 of 8 bits"])
@pytest.mark.parametrize(
    "name, model",
    [(name, model) for name in (*available_isas(), *lnrnn.cpu_info()["emulated"]) for model in TILED
     if name != "scalar" or model in ("RNN", "GRU heads")],  # scalar takes ten times as long
)  # fmt: skip
def test_rows_at_the_edges_of_tiles_have_the_bits_of_each_alone(rng, name, dtype, model):
    """More rows than a tile meet outputs of one vector, and a whole group of rows meets several heads. With
    each dtype, some models have half of EDGES, and the others the other half."""
    options, factor = TILED[model]
    bits = {"activation_bits": 8} if "of" in dtype else {}
    with using_isa(name), using_threads(1):
        for n in EDGES[len(dtype + model) % 2 :: 2]:
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
