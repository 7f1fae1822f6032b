"""Block-sparse weights: lnrnn.sparsify, and products with blocks in place of dense ones."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import several_threads, using_partition, using_share_of_blocks
from networks import VARIANTS, blocks_of, each_variant, named_gradients, network, normal, parts, sparse

NEVER, ALWAYS = 0, 1  # of using_share_of_blocks
# dtype and activation_bits.
TYPES = [("float32", None), ("bfloat16", None), ("int8", 14), ("int8", 8)]


def repacked(rnn):
    """Returns a copy whose next call packs its weights."""
    return rnn.to_dtype(rnn.dtype, rnn.activation_bits)


def called(rnn, share, x, **options):
    """Returns y and the last states, and the number of packed bytes."""
    other = repacked(rnn)
    with using_share_of_blocks(share):
        y, state = other(x, **options)
    return [y, *parts(rnn, state)], other.packed_bytes


def has_blocks(dtype):
    """Units for bfloat16 and AMX have only dense products."""
    unit = lnrnn.cpu_info()["units"].get(dtype)
    return unit is None or (dtype == "int8" and "amx" not in unit)


# --- products -----------------------------------------------------------------------------------------------


@each_variant
def test_blocks_have_the_numbers_of_dense_products(rng, isa, variant):
    """Zeros are equal with any sign. Each line of blocks has another length, and some have none."""
    rnn = sparse(network(20, 48, trained=3, num_layers=2, bidirectional=True, **VARIANTS[variant]), 0.3)
    for dtype, bits in TYPES:
        each = rnn.to_dtype(dtype, bits)
        for B in (1, 2, 5, 9, 19):
            x = normal(rng, 3, B, 20)
            (dense, size), (blocks, other) = called(each, NEVER, x), called(each, ALWAYS, x)
            assert (size != other) == has_blocks(dtype)
            for a, b in zip(dense, blocks, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"{dtype} {bits}, {B} sequences")


@pytest.mark.parametrize(("cell", "H"), [("LSTM", 176), ("GRU", 176), ("GRU", 184)])
def test_threads_that_divide_units_have_the_bits_of_one(rng, isa, cell, H):
    """Threads divide outputs between windows of 64 or 96. The last window of a GRU has 16, 40 or 48."""
    for dtype, bits in TYPES:
        rnn = sparse(network(24, H, cell=cell, norm=None), 0.3).to_dtype(dtype, bits)
        for B in (1, 5):
            x = normal(rng, 400 // B, B, 24)
            wanted, _ = called(rnn, ALWAYS, x, threads=1)
            for threads in (2, 3):
                with using_partition(1, threads), several_threads(threads, "units"):
                    got, _ = called(rnn, ALWAYS, x, threads=threads)
                for a, b in zip(wanted, got, strict=True):
                    np.testing.assert_array_equal(a, b, err_msg=f"{dtype}, {B} sequences, {threads} threads")


def test_training_has_the_gradients_of_dense_products(rng, family):
    """The backward pass is dense, and reads the tape of the forward pass."""
    rnn, found = sparse(network(16, 48, cell="GRU", num_layers=2), 0.3), []
    x, gy = normal(rng, 5, 7, 16), normal(rng, 5, 7, 48)
    for share in (NEVER, ALWAYS):
        other = repacked(rnn)
        with using_share_of_blocks(share):
            y, _, tape = other.forward_train(x)
        found.append([y, *named_gradients(rnn, other.backward(tape, gy)).values()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_only_sparse_weights_are_packed_as_blocks(isa):
    dense = network(32, 64, cell="LSTM")
    size = called(dense, -1, np.zeros((1, 1, 32)))[1]
    sizes = [called(lnrnn.sparsify(dense, d), -1, np.zeros((1, 1, 32)))[1] for d in (0.95, 0.3, 0.1)]
    assert sizes[0] == size and size * 0.3 < sizes[1] < size * 0.4 and size * 0.1 < sizes[2] < size * 0.2


def test_one_full_band_does_not_make_a_matrix_dense():
    """248 and 496 divide the number with which blocks are drawn."""
    for H in (248, 480, 496):
        rnn = lnrnn.sparsify(lnrnn.GRU(8, H, norm=None, seed=0), 0.1)
        rnn.weight_hh_l0 = np.where(np.arange(3 * H)[:, None] < 8, np.float32(0.1), rnn.weight_hh_l0)
        rnn(np.zeros((1, 1, 8)))
        assert rnn.packed_bytes < 0.2 * 4 * rnn.weight_hh_l0.size


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_absent_block_does_not_spread_nan_and_infinity(family, dtype):
    """A dense product multiplies them by 0, which is NaN."""
    rnn = lnrnn.RNN(8, 16, norm=None, seed=0).to_dtype(dtype)
    rnn.weight_ih_l0 = rnn.weight_ih_l0 * (np.arange(16)[:, None] < 8) * (np.arange(8) < 4)
    for value in (np.nan, np.inf):
        for at, wrong in ((2, 8), (5, 0)):
            x = np.ones((1, 1, 8), np.float32)
            x[..., at] = value
            (y, _), _ = called(rnn, ALWAYS, x)
            assert np.isfinite(y).sum() == 16 - (wrong if np.isnan(value) else 0), (value, at)
            (y, _), _ = called(rnn, NEVER, x)
            assert np.isnan(y[..., 8:]).all()


# --- sparsify -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_diagonal", [True, False])
@pytest.mark.parametrize(
    "cell, options", [("GRU", {}), ("LSTM", dict(bidirectional=True)), ("LSTM", dict(projected=True))]
)
def test_sparsify_keeps_the_largest_blocks(cell, options, keep_diagonal):
    rnn = network(12, 40, cell=cell, num_layers=2, norm="layer", **options)
    before = rnn.state_dict()
    other = lnrnn.sparsify(rnn, {"weight_hh": 0.25, "weight_ih": 0.5}, keep_diagonal=keep_diagonal)
    assert type(other) is type(rnn) and other.norm == rnn.norm
    for name, old in before.items():
        new = other.state_dict()[name]
        np.testing.assert_array_equal(old, rnn.state_dict()[name])
        if not name.startswith(("weight_ih", "weight_hh")):
            np.testing.assert_array_equal(old, new)
            continue
        diagonal = keep_diagonal and name.startswith("weight_hh") and old.shape[1] == 40
        square = np.tile(np.eye(40), (len(old) // 40, 1)) if diagonal else np.zeros_like(old)
        must = blocks_of(square).any((2, 3))
        size, kept = np.square(blocks_of(old)).sum((2, 3)), blocks_of(new).any((2, 3))
        np.testing.assert_array_equal(blocks_of(new), blocks_of(old) * kept[:, :, None, None])
        density = 0.5 if name.startswith("weight_ih") else 0.25
        assert kept.sum() == max(round(density * kept.size), must.sum()) and kept[must].all()
        assert kept.all() or size[kept & ~must].min(initial=np.inf) >= size[~kept].max()


def test_sparsify_keeps_statistics_and_dtype():
    rnn = network(4, 8, cell="LSTM", norm="batch", trained=3).to_dtype("int8", 8)
    other = lnrnn.sparsify(rnn, 0.5)
    assert (other.dtype, other.activation_bits, other.known_steps) == ("int8", 8, 3)
    assert np.mean(other.weight_ih_l0 != 0) == 0.5


def test_sparsify_keeps_at_least_one_block():
    """A block with NaN is the largest one."""
    rnn = lnrnn.RNN(8, 32, seed=0)
    rnn.weight_ih_l0 = np.where(np.arange(8 * 32).reshape(32, 8) == 77, np.nan, rnn.weight_ih_l0)
    other = lnrnn.sparsify(rnn, 1e-9)
    kept = [np.argwhere(blocks_of(w).any((2, 3))).tolist() for w in (other.weight_ih_l0, other.weight_hh_l0)]
    assert kept == [[[1, 1]], [[k // 2, k] for k in range(8)]]
