"""Rows have the bits of each row alone at the edges of tiles, panels and groups, for every product.

Edges meet here: more rows than a tile and outputs of one vector, a whole group of rows and several heads. The
campaign guard runs the same sizes between pages without access.
"""

from __future__ import annotations

import pytest

import lnrnn
from configurations import EDGES, TALL
from helpers import available_isas, using_isa, using_threads
from networks import drawn_state, network, normal, parts, same, taken

SETS = [*available_isas(), *lnrnn.cpu_info()["emulated"]]
DTYPES = {"float32": {}, "bfloat16": {}, "int8": {}, "int8 of 8 bits": {"activation_bits": 8}}
# Networks, and their units for each number of EDGES. An LSTM of 4 units has 16 outputs. Heads have so many
# units that a row too many reaches beyond the scratch memory.
KINDS = {
    "RNN": (dict(cell="RNN"), 1),
    "LSTM": (dict(cell="LSTM"), 1 / 4),
    "LSTM heads": (dict(cell="LSTM", num_heads=2), 2),
    "GRU heads": (dict(cell="GRU", num_heads=2), 2),
    "GRU reset heads": (dict(cell="GRU", num_heads=2, reset_after=False), 4),
}
ROWS = (0, 14, 15, 16, 47, 48, 62, 63, 64)  # the rows that are computed alone


def results(rnn, x, h0):
    """Returns y, the last states, and for float32 the gradients of x and h0. Rows are axis 1 of all."""
    if rnn.dtype != "float32":
        y, h = rnn(x, h0)
        return [y, *parts(rnn, h)]
    y, h, tape = rnn.forward_train(x, h0)
    gx, gh0, _ = rnn.backward(tape, y, h)
    return [y, *parts(rnn, h), gx, *parts(rnn, gh0)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SETS)
def test_rows_have_the_bits_of_each_row_alone(rng, name, dtype, kind):
    options, factor = KINDS[kind]
    with using_isa(name), using_threads(1):
        for n in EDGES:
            rnn = network(n, int(factor * n), norm=None, **options)
            rnn = rnn.to_dtype(dtype.split()[0], **DTYPES[dtype])
            x, h0 = normal(rng, 2, max(TALL), n), drawn_state(rng, rnn, max(TALL))
            some = {b: (slice(None), slice(b, b + 1)) for b in ROWS}
            alone = {b: results(rnn, x[at], taken(rnn, h0, at[1])) for b, at in some.items()}
            for rows in TALL:
                got = results(rnn, x[:, :rows], taken(rnn, h0, slice(rows)))
                for b in (b for b in ROWS if b < rows):
                    for mine, want in zip(got, alone[b], strict=True):
                        same(mine[some[b]], want, err_msg=f"row {b} of {rows}, {n} inputs")
