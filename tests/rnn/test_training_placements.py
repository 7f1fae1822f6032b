"""backward of every norm and placement of every cell has the results of the reference.

Tests batches of every size, several chunks of steps, calls in parts, threads, grad_x=False and out=.
"""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest

from helpers import (
    in_parts_of,
    on_every_family,
    relative_error,
    several_threads,
    using_threads,
)
from networks import (
    WITH_INNER_BIASES,
    calm,
    drawn_run,
    equal,
    equal_arrays,
    named_gradients,
    parts,
    same,
    taken,
    trained,
    true_gradients,
)

# FEW has the variant with the most norms for each kind of cell in backward_steps.c, and one with batch norm.
FEW = ["RNN batch", "RNN split inner", "LSTM none", "LSTM gate carry inner", "LSTM split out", "GRU batch"]
FEW += ["GRU gate inner", "GRU split all inner", "GRU joint"]
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


@pytest.mark.parametrize("batch", BATCHES)
@a_few
def test_batches_of_every_size_equal_the_reference(variant, batch):
    """Batch norm over one or two sequences is not tested, because the gradients then consist of rounding
    errors.
    """
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


@a_few
def test_threads_change_no_bit_of_a_gradient(variant):
    hidden = 193 if variant["cell"] == "RNN" else 97
    rnn = calm(33, hidden, num_layers=2, **variant)
    ends = np.random.default_rng(0).integers(4, 10, 100)
    x, h0, ends, gy, gh = drawn_run(1, rnn, ends.max(), ends)
    assert ends.sum() * len(rnn.weight_hh_l0) * (33 + hidden) > 3 * 2**22  # enough work for four threads
    with using_threads(1):
        *run, tape = rnn.forward_train(x, h0, ends)
        want = named_gradients(rnn, rnn.backward(tape, gy, gh))
    for threads in (2, 4):
        with using_threads(threads):
            *again, other = rnn.forward_train(x, h0, ends)
        equal(rnn, again, run)
        with several_threads(threads):
            found = named_gradients(rnn, rnn.backward(tape, gy, gh))
        with several_threads(5 - threads):
            crossed = named_gradients(rnn, rnn.backward(other, gy, gh))
        equal_arrays(found, want)
        equal_arrays(crossed, want)


@pytest.mark.parametrize("ends", [[260, 100, 90], [5] * 70 + [2] * 30], ids=["long", "wide"])
@a_few
def test_calls_in_parts_change_no_bit_of_a_gradient(variant, ends):
    """A part is one step of a group, some steps, or the whole call."""
    rnn = calm(7, 17, **variant)
    x, *rest = drawn_run(2, rnn, max(ends), ends)
    tape = rnn.forward_train(x, *rest[:2])[2]

    def compute():
        total = {name: np.ones_like(p) for name, p in rnn.parameters().items()}
        rnn.backward(tape, *rest[2:], out=total)
        return [*named_gradients(rnn, rnn.backward(tape, *rest[2:])).values(), *total.values()]

    with using_threads(1), in_parts_of(1e18):
        want = compute()
    for threads in (1, 2):
        for size in (1, 1e6):
            with using_threads(threads), in_parts_of(size):
                for got, array in zip(compute(), want, strict=True):
                    same(got, array, err_msg=f"{threads} threads, parts of {size}")


@a_few
def test_grad_x_false_changes_no_other_gradient(variant):
    for options in (dict(), dict(num_layers=2), dict(num_layers=2, bidirectional=True)):
        rnn = calm(7, 17, **variant, **options)
        x, h0, ends, gy, gh = drawn_run(4, rnn, 9, [9, 8, 9, 2, 9, 9, 9, 9, 9, 9, 0])
        tape = rnn.forward_train(x, h0, ends)[2]
        want = named_gradients(rnn, rnn.backward(tape, gy, gh))
        got = named_gradients(rnn, rnn.backward(tape, gy, gh, grad_x=False))
        assert list(got) == list(want) and got.pop("x") is None
        for name, g in got.items():
            same(g, want[name], err_msg=name)
        # a new network, whose transposed weights are not packed yet, gives the same gradients
        fresh = calm(7, 17, **variant, **options)
        other = named_gradients(fresh, fresh.backward(fresh.forward_train(x, h0, ends)[2], gy, gh, False))
        assert other["x"] is None
        for name, g in got.items():
            same(g, other[name], err_msg=name)


# The tolerance if gradients are added to `out`. The largest measured error is 1.8e-6.
ADDED = 4e-6


@a_few
def test_out_adds_gradients_to_its_values(family, variant):
    """Sums over micro-batches equal the gradients of the whole batch.

    A call computes no chunk of steps, one, or several.
    """
    rnn = calm(7, 33, **variant, num_layers=2, bidirectional=True)
    total, sums = None, {}
    for seed, ends in enumerate(([9] * 11, [40] * 10, [0] * 10, [2, 1, 1] * 3)):
        x, h0, ends, gy, gh = drawn_run(seed, rnn, 40, ends)
        tape = rnn.forward_train(x, h0, ends)[2]
        alone = named_gradients(rnn, rnn.backward(tape, gy, gh))
        for name in rnn.parameters():
            sums[name] = sums.get(name, 0) + alone[name].astype(float)
        gx, gh0, found = rnn.backward(tape, gy, gh, out=total)
        assert total is None or found is total
        total = found
        same(gx, alone["x"])
        for name, g in zip(("h0", "c0"), parts(rnn, gh0), strict=False):
            same(g, alone[name])
        for name, g in total.items():
            assert relative_error(g, sums[name]) < ADDED, name
    before = {name: g.copy() for name, g in total.items()}
    rnn.backward(tape, 0 * gy, None, out=total)
    for name, g in total.items():
        same(g, before[name])


@a_few
def test_out_of_zeros_has_the_bits_of_new_arrays(variant):
    """The dict `out` may have its entries in any order."""
    rnn = calm(7, 17, **variant, num_layers=2)
    x, h0, ends, gy, gh = drawn_run(5, rnn, 40, [40, 9, 17, 40, 40, 40, 40, 40, 40, 40, 40, 3])
    tape = rnn.forward_train(x, h0, ends)[2]
    _, _, want = rnn.backward(tape, gy, gh)
    flat = np.zeros(sum(g.size for g in want.values()) + 3, np.float32)  # adjacent, not aligned to vectors
    out, at = {}, 3
    for name, g in reversed(want.items()):
        out[name] = flat[at : at + g.size].reshape(g.shape)
        at += g.size
    arrays = dict(out)
    gx, _, grads = rnn.backward(tape, gy, gh, False, out=out)
    assert gx is None and grads is out and list(out) == list(reversed(want))
    for name, g in want.items():
        assert out[name] is arrays[name]
        same(out[name], g)
    assert not flat[:3].any()


def test_out_may_share_memory_with_gy_and_gh(rng):
    """`backward` reads gy and gh before it writes to `out`."""
    rnn = calm(7, 16, num_layers=2)
    for shared in ("gy", "gh"):
        x, h0, ends, gy, gh = drawn_run(6, rnn, 60, [60] * 16)
        tape = rnn.forward_train(x, h0, ends)[2]
        ones = {name: np.ones_like(p) for name, p in rnn.parameters().items()}
        place = (gy if shared == "gy" else gh).reshape(-1)[:256].reshape(16, 16)
        want = rnn.backward(tape, gy.copy(), gh.copy(), out=copy.deepcopy(ones | {"weight_hh_l1": place}))
        got = rnn.backward(tape, gy, gh, out=ones | {"weight_hh_l1": place})
        for name, g in named_gradients(rnn, want).items():
            same(named_gradients(rnn, got)[name], g, err_msg=f"{name}, with {shared}")
