"""backward of every norm and placement of every cell has the results of the reference.

Tests batches of every size, several chunks of steps, calls in parts, threads, grad_x=False and out=.
"""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest

from helpers import on_every_family, relative_error
from networks import (
    WITH_INNER_BIASES,
    calm,
    drawn_run,
    named_gradients,
    parts,
    same,
    taken,
    trained,
    true_gradients,
)

# FEW has the variant with the most norms for each kind of cell in backward_steps.c, and one with batch norm.
FEW = ["RNN batch", "RNN split inner", "LSTM none", "LSTM gate carry inner", "LSTM split out", "GRU batch"]
FEW += ["GRU gate inner", "GRU split all inner", "GRU joint", "LSTM gate carry peepholes inner"]
a_few = pytest.mark.parametrize("variant", [WITH_INNER_BIASES[name] for name in FEW], ids=FEW)


# The tolerance, relative to the largest entry of each gradient. The largest measured error is 1.3e-6.
GRADIENT = 3e-6


def close(got, want, note="", allowed=GRADIENT):
    assert set(got) == set(want)
    for name, g in got.items():
        assert g.dtype == np.float32
        assert relative_error(g, want[name]) < allowed, (name, note)


# {case: lengths of the batch}. The backward pass has chunks ("rounds") of 256 rows or of one step. It
# multiplies 128 rows at a time, in tiles of 64 rows, and adds 4 or 8 rows at a time.
BATCHES = {
    "one row": [9],
    "two": [3, 9],
    "three": [9, 2, 3],
    "five": [9, 9, 1, 9, 4],
    "a tile": [5] * 64,
    "a tile and one": [5] * 64 + [2],
    "half of them for one step": [6] * 20 + [1] * 45,
    "more than a round in a step": [3] * 250 + [2] * 6 + [1],
    "much more": [2] * 260 + [1] * 270,
    "a row for many rounds": [600],
    "three for many rounds": [300, 299, 257],
    "very different": [700, 1, 2, 0, 90, 1, 1, 340, 3],
    "one step": [1] * 5,
    "one step of all but a round": [1] * 255,
    "a round to the row": [4] * 64,
    "two rounds and one row": [171, 171, 171],
    "most of them empty": [0, 0, 4, 0, 0, 0, 0, 3, 0, 0, 0, 0],
}


@pytest.mark.parametrize(
    "batch, name", [(b, v) for k, b in enumerate(BATCHES) for i, v in enumerate(FEW) if (k + i) % 3 == 0]
)
def test_batches_of_every_size_equal_the_reference(name, batch):
    """Each batch meets a third of the variants. Batch norm over one or two sequences is not tested, because
    the gradients then consist of rounding errors."""
    variant = WITH_INNER_BIASES[name]
    ends = BATCHES[batch]
    if "batch" in str(variant.get("norm")).lower():
        ends = ends + [max(ends)] * 8
    rnn = calm(7, 17, **variant, bidirectional=max(ends) < 100)
    args = drawn_run(len(ends), rnn, max(ends), ends)
    want = true_gradients(rnn, *args)
    for family, got in on_every_family(partial(trained, rnn, *args), large=sum(ends) > 300).items():
        close(got, want, (family, batch))


@pytest.mark.parametrize("variant", [WITH_INNER_BIASES[name] for name in FEW if "batch" not in name])
def test_gradients_of_a_batch_are_those_of_its_sequences(family, variant):
    """Gradients of x and h0 have the bits of each sequence alone. Those of parameters are added."""
    rnn = calm(7, 17, **variant)
    x, h0, ends, gy, gh = drawn_run(3, rnn, 5, [5, 4, 5, 1, 0, 2, 5, 5, 3])
    want, found = trained(rnn, x, h0, ends, gy, gh), {}
    for k, end in enumerate(ends):
        only = slice(k, k + 1)
        one = trained(rnn, x[:, only], taken(rnn, h0, only), ends[only], gy[:, only], taken(rnn, gh, only))
        for name, g in one.items():
            if name in ("x", "h0", "c0"):
                same(g[:, 0], want[name][:, k], err_msg=f"{name} of a sequence of {end} steps")
            else:
                found[name] = found.get(name, 0) + g.astype(float)
    for name, g in found.items():
        assert relative_error(want[name], g) < 1e-6, name


# The tolerance if gradients are added to `out`. The largest measured error is 1.8e-6.
ADDED = 4e-6


@a_few
def test_out_adds_gradients_to_its_values(vectors, variant):
    """Sums over micro-batches equal the gradients of the whole batch. A call computes no chunk of steps, one,
    or several."""
    rnn = calm(7, 33, **variant, num_layers=2, bidirectional=True)
    total, sums = None, {}
    for seed, ends in enumerate(([9] * 11, [40] * 10, [0] * 10, [2, 1, 1] * 3)):
        x, h0, ends, gy, gh = drawn_run(seed, rnn, 40, ends)
        tape = rnn.forward_train(x, h0, ends)[2]
        alone = named_gradients(rnn, rnn.backward(tape, gy, gh))
        for name in rnn.parameters():
            sums[name] = sums.get(name, 0) + alone[name].astype(float)
        gx, gh0, found = rnn.backward(tape, gy, gh, add_to=total)
        assert total is None or found is total
        total = found
        same(gx, alone["x"])
        for name, g in zip(("h0", "c0"), parts(rnn, gh0), strict=False):
            same(g, alone[name])
        for name, g in total.items():
            assert relative_error(g, sums[name]) < ADDED, name
    before = {name: g.copy() for name, g in total.items()}
    rnn.backward(tape, 0 * gy, None, add_to=total)
    for name, g in total.items():
        same(g, before[name])


def test_out_may_share_memory_with_gy_and_gh(rng):
    """`backward` reads gy and gh before it writes to `out`."""
    rnn = calm(7, 16, num_layers=2)
    for shared in ("gy", "gh"):
        x, h0, ends, gy, gh = drawn_run(6, rnn, 60, [60] * 16)
        tape = rnn.forward_train(x, h0, ends)[2]
        ones = {name: np.ones_like(p) for name, p in rnn.parameters().items()}
        place = (gy if shared == "gy" else gh).reshape(-1)[:256].reshape(16, 16)
        want = rnn.backward(tape, gy.copy(), gh.copy(), add_to=copy.deepcopy(ones | {"weight_hh_l1": place}))
        got = rnn.backward(tape, gy, gh, add_to=ones | {"weight_hh_l1": place})
        for name, g in named_gradients(rnn, want).items():
            same(named_gradients(rnn, got)[name], g, err_msg=f"{name}, with {shared}")
