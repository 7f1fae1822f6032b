"""Tests products by the CPU's bfloat16 instructions ("units"), and the plain C that emulates them.

NumPy code here follows the manuals: order of sums, roundings, and subnormal numbers. The emulation, and the
unit if the machine has it, must have the same bits.
"""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import only_int8, using_isa, using_small_caches, without_units
from networks import network, normal, same
from short_weights import flushed, to_bfloat16
from simd_definitions import fused

EMULATED = lnrnn.cpu_info()["emulated"]
UNITS = [*EMULATED, *(name for name in lnrnn.cpu_info()["available"] if f"{name}_emulated" in EMULATED)]
REAL = [name for name in UNITS if name not in EMULATED]
TINY = float(np.finfo(np.float32).tiny)


@pytest.fixture(params=UNITS)
def with_unit(request):
    """The test runs on every instruction set with a bfloat16 unit, and on every emulation."""
    with using_isa(request.param):
        yield request.param


def add_product(a, b, c):
    """Returns c + a*b of arrays that broadcast, rounded as by the CPU's bfloat16 instructions. A result is 0
    if it is below TINY when rounded to 24 bits with unlimited exponent. float32 has fewer bits there, and
    could round it up to TINY."""
    a, b, c = np.broadcast_arrays(flushed(a), flushed(b), flushed(c))
    found = fused(np.ravel(a).copy(), np.ravel(b).copy(), np.ravel(c).copy()).reshape(c.shape)
    exact = a.astype(np.float64) * b + c
    return np.where(np.abs(exact) < TINY - TINY * 2.0**-25, found * np.float32(0), flushed(found))


def filled(a, multiple):
    return np.pad(a, ((0, 0), (0, -a.shape[1] % multiple)))


def dot2_order(x, w, c):
    """Returns c (B, n) plus x (B, k) times w (n, k). Of each two inputs the function adds the product of the
    odd one first, as VDPBF16PS does."""
    x, w = filled(x, 2), filled(w, 2)
    for j in range(0, x.shape[1], 2):
        for i in (j + 1, j):
            c = add_product(x[:, i, None], w[None, :, i], c)
    return c


def tile_order(x, w, c):
    """Returns c (B, n) plus x (B, k) times w (n, k). Of each 32 inputs the function adds the even ones and
    the odd ones in separate sums, as TDPBF16PS does."""
    x, w = filled(x, 32), filled(w, 32)
    for first in range(0, x.shape[1], 32):
        sums = [np.zeros(c.shape, np.float32)] * 2
        for i in range(first, first + 32):
            sums[i % 2] = add_product(x[:, i, None], w[None, :, i], sums[i % 2])
        c = flushed(flushed(c) + flushed(sums[0] + sums[1]))
    return c


def product(x, w):
    """Returns x (B, k) times w (n, k), computed by an RNN with activation identity and h = 0."""
    rnn = lnrnn.RNN(w.shape[1], w.shape[0], nonlinearity="identity", norm=None, bias=False)
    rnn.weight_ih_l0, rnn.weight_hh_l0 = w, np.zeros((len(w), len(w)), np.float32)
    return rnn.to_dtype("bfloat16")(x[None])[0][0]


def as_the_manual_says(name, x, w):
    order = tile_order if "amx" in name else dot2_order
    with np.errstate(all="ignore"):
        return order(to_bfloat16(x), to_bfloat16(w), np.zeros((len(x), len(w)), np.float32))


@pytest.mark.parametrize("inputs", [1, 2, 5, 31, 32, 33, 66])
def test_units_add_in_the_order_of_the_manual(with_unit, rng, inputs):
    """The magnitudes of the values differ so much that each order of a sum gives other bits."""
    x = normal(rng, 3, inputs) * np.float32(2.0) ** rng.integers(-6, 7, (3, inputs)).astype(np.float32)
    w = normal(rng, 19, inputs)
    same(product(x, w), as_the_manual_says(with_unit, x, w))


@pytest.mark.parametrize("exponents", [(-70, -55), (55, 66), (-149, 128)], ids=["subnormal", "large", "any"])
def test_subnormal_and_infinite_products_follow_the_manual(with_unit, rng, exponents):
    """Subnormal products and sums become 0. Those that overflow become infinity."""
    low, high = exponents
    size = [np.float32(2.0) ** rng.integers(low, high, (n, 4)).astype(np.float32) for n in (17, 40)]
    x, w = normal(rng, 17, 4) * size[0], normal(rng, 40, 4) * size[1]
    want = as_the_manual_says(with_unit, x, w)
    found = product(x, w)
    same(found, want)
    if exponents[0] == -70:
        assert (np.abs(found[found != 0]) >= np.finfo(np.float32).tiny).all() and (found == 0).any()


@pytest.mark.parametrize(
    "below, want", [(2.0**-150, 0), (1.5 * 2.0**-151, 0), (2.0**-151, TINY), (2.0**-160, TINY)]
)
def test_a_result_just_below_the_smallest_normal_number_is_zero(with_unit, below, want):
    """The unit rounds TINY - below to 24 bits with unlimited exponent. If this is less than TINY, the result
    is 0."""
    x, w = np.zeros((1, 4), np.float32), np.zeros((2, 4), np.float32)
    x[0, ::2] = 2.0**-63, 2.0**-75
    w[:, 0] = 2.0**-63, -(2.0**-63)
    w[:, 2] = -below * 2.0**75, below * 2.0**75
    same(product(x, w), [[want, -want]])
    same(as_the_manual_says(with_unit, x, w), [[want, -want]])


def test_units_propagate_nan_and_infinity(with_unit, rng):
    x, w = normal(rng, 20, 37), normal(rng, 18, 37)
    x[3, 4], x[5, 36], w[7, 2], w[9, 30] = np.nan, np.inf, np.nan, -np.inf
    found = product(x, w)
    bad = np.zeros(found.shape, bool)
    bad[[3, 5]] = bad[:, [7, 9]] = True
    same(~np.isfinite(found), bad)
    same(np.isnan(found[3]), True)


@pytest.mark.parametrize("name", REAL)
def test_the_unit_has_the_bits_of_its_emulation(rng, name):
    """Tests weights and rows of arbitrary bits, then whole networks."""
    x, w = (rng.integers(0, 2**32, (n, 66), np.uint32).view(np.float32) for n in (40, 100))
    x[:30], w[:70] = normal(rng, 30, 66), normal(rng, 70, 66)
    one_pair_x, one_pair_w = x[:, :2].copy(), w[:, :2].copy()
    rnns = [network(33, 49, cell=cell, norm=norm).to_dtype("bfloat16")
            for cell in ("RNN", "LSTM", "GRU") for norm in ("layer", None)]  # fmt: skip
    sequences, found = normal(rng, 7, 37, 33), []
    for each in (name, f"{name}_emulated"):
        with using_isa(each):
            found.append(
                [product(x, w), product(one_pair_x, one_pair_w), *(rnn(sequences)[0] for rnn in rnns)]
            )
    for a, b in zip(*found, strict=True):
        same(a, b)


@pytest.mark.parametrize("name", [*UNITS, *only_int8()])
@pytest.mark.parametrize("bits", [14, 8])
@pytest.mark.parametrize("hidden, inputs", [(1, 1), (48, 33), (65, 3), (200, 97), (130, 256)])
def test_int8_has_the_bits_of_every_other_set(rng, name, hidden, inputs, bits):
    """Sums of integers are exact, for one row or many, in AMX tiles or vectors. Rows of NaN, of 0, and of the
    largest activations are tested too: with the largest weights, sums of 16 bits would saturate."""
    rnn = network(inputs, hidden)
    weights = rnn.weight_ih_l0.copy()
    weights[0], weights[-1] = 0.5, -0.5
    rnn.weight_ih_l0 = weights
    rnn = rnn.to_dtype("int8", activation_bits=bits)
    x = normal(rng, 4, 70, inputs)
    x[2, 3], x[1, 5], x[0, 6], x[0, 7] = np.nan, 0, 2, -2
    with using_isa(without_units(name)):
        want = rnn(x)[0]
    with using_isa(name):
        for batch in (*range(1, 18), 31, 33, 40, 48, 49, 64, 65):
            who = rng.permutation(70)[:batch]
            same(rnn(x[:, who])[0], want[:, who])
        with using_small_caches():
            same(rnn(x)[0], want)
