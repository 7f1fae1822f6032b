"""Tests exp, tanh and sigmoid in float32: errors up to 2 ULP on every instruction set, and IEEE's special
cases."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lnrnn
from helpers import several_threads, ulp_error
from lnrnn import reference as ref

FUNCTIONS = {"exp": np.exp, "tanh": np.tanh, "sigmoid": ref.sigmoid}  # in float64

each_function = pytest.mark.parametrize("name", FUNCTIONS)


def truth(name, x):
    with np.errstate(over="ignore", under="ignore"):
        return FUNCTIONS[name](x.astype(np.float64))


@cache
def sweep():
    """Returns 1.4 million floats of both signs. The floats are every 4001st from 0 to infinity, and every
    389th from 2^-9 to 16, where the functions are curved. All floats near some points are added: the bounds
    of exp's range, the saturation of tanh, and multiples of ln 2 / 2."""
    everywhere = np.arange(0, 0x7F800001, 4001, dtype=np.uint32).view(np.float32)
    first, last = np.array([2.0**-9, 16], np.float32).view(np.uint32)
    bend = np.arange(first, last, 389, dtype=np.uint32).view(np.float32)
    positive = np.concatenate([everywhere, bend])
    powers = np.arange(-151, 129)
    ends = [88.722839, 89, -87.336544, -103.27893, -103.97208, -104, -105, 104]
    saturation = [0.29090909, 0.87272727, 9.0108, 9.015, 30]
    edges = np.concatenate([powers * np.log(2), (powers + 0.5) * np.log(2), saturation, ends])
    edges = edges[edges != 0].astype(np.float32)
    edges = (edges.view(np.int32)[:, None] + np.arange(-100, 100, dtype=np.int32)).ravel().view(np.float32)
    return np.concatenate([positive, -positive, edges])


@cache
def sweep_truth(name):
    return truth(name, sweep())


@each_function
def test_within_two_ulp_on_a_dense_sweep(family, name):
    got = getattr(lnrnn, name)(sweep())
    assert got.dtype == np.float32
    with np.errstate(all="ignore"):
        assert ulp_error(got, sweep_truth(name)) <= 2
    if name == "tanh":
        assert np.nanmax(np.abs(got)) == 1
        np.testing.assert_array_equal(lnrnn.tanh(-sweep()), -got)
    else:
        assert np.nanmin(got) == 0 and not np.signbit(got[~np.isnan(got)]).any()
        assert name == "exp" or np.nanmax(got) == 1


INF = np.inf


# For denormals tanh(x) = x, and exp and sigmoid have their values at 0.
DENORMALS = np.array([1, 2, 3, 1000, 0x7FFFFF, 0x400000], np.uint32).view(np.float32).tolist()


@pytest.mark.parametrize("name, x, want", [
    ("exp", [0.0, -0.0, INF, -INF, 89, -104, 3e38, -3e38], [1, 1, INF, 0, INF, 0, INF, 0]),
    ("tanh", [0.0, -0.0, INF, -INF, 3e38, -3e38], [0.0, -0.0, 1, -1, 1, -1]),
    ("sigmoid", [0.0, -0.0, INF, -INF, 3e38, -3e38], [0.5, 0.5, 1, 0, 1, 0]),
    ("exp", DENORMALS, [1] * 6), ("tanh", DENORMALS, DENORMALS), ("sigmoid", DENORMALS, [0.5] * 6),
])  # fmt: skip
def test_special_values_follow_ieee(family, name, x, want):
    x, want = np.array(x, np.float32), np.array(want, np.float32)
    x, want = np.tile(x, 5), np.tile(want, 5)  # for whole vectors and tails
    got = getattr(lnrnn, name)(x)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@each_function
def test_nan_stays_nan_and_changes_no_other_lane(family, name):
    f = getattr(lnrnn, name)
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(f(nans)).all()
    for n in range(1, 51):
        x = np.linspace(-3, 3, n, dtype=np.float32)
        clean = f(x)
        for at in {0, n // 2, n - 1}:
            poisoned = x.copy()
            poisoned[at] = np.nan
            got = f(poisoned)
            assert np.isnan(got[at])
            np.testing.assert_array_equal(np.delete(got, at), np.delete(clean, at))


@each_function
def test_a_value_does_not_depend_on_its_index(family, name):
    """Values after the last whole vector have the same bits. Nothing is written after the end."""
    f = getattr(lnrnn, name)
    x = np.random.default_rng(0).uniform(-12, 12, 200).astype(np.float32)
    whole = f(x)
    for n in range(51):
        room = np.full(n + 16, 7, np.float32)
        f(x[n : 2 * n], out=room[3 : n + 3])
        np.testing.assert_array_equal(room[3 : n + 3], whole[n : 2 * n])
        assert (room[:3] == 7).all() and (room[n + 3 :] == 7).all()


@each_function
def test_out_may_overlap_the_input(family, name):
    f = getattr(lnrnn, name)
    room = np.random.default_rng(2).uniform(-5, 5, 120).astype(np.float32)
    for shift in (-17, -5, -1, 1, 5, 17):
        r = room.copy()
        x, out = r[20:100], r[20 + shift : 100 + shift]
        want = f(x.copy())
        f(x, out=out)
        np.testing.assert_array_equal(out, want, err_msg=f"shift {shift}")


@each_function
def test_arrays_without_axes_or_elements(name):
    f = getattr(lnrnn, name)
    one = np.array(0.25, np.float32)
    for x in (one, one.astype(np.float64), one[()], 0.25):
        y = f(x)
        assert type(y) is np.ndarray and y.shape == () and y.dtype == np.float32
        assert y == f(one.reshape(1))[0]
    out = np.zeros((), np.float32)
    assert f(one, out=out) is out and out == f(one)
    for shape in ((0,), (3, 0), (0, 3, 2)):
        x, out = np.zeros(shape, np.float32), np.ones(shape, np.float32)
        assert f(x).shape == shape and f(x, out=out) is out and f(x, out=x) is x


@each_function
def test_large_arrays_release_the_lock_and_use_threads(name):
    """From 16384 elements on other Python threads can run, from 131072 on several threads compute."""
    f = getattr(lnrnn, name)
    x = np.random.default_rng(4).uniform(-12, 12, 300_000).astype(np.float32)
    want = np.concatenate([f(part) for part in np.array_split(x, 60)])
    for n in (16383, 16384, 16385, 131071, 131072, 300_000):
        for threads in (1, 3):
            with several_threads(threads, had=threads if n >= 131072 else 1):
                np.testing.assert_array_equal(f(x[:n]), want[:n])
                room = np.full(n + 2, 7, np.float32)
                f(x[:n], out=room[1:-1])
            np.testing.assert_array_equal(room[1:-1], want[:n])
            assert room[0] == room[-1] == 7
            room[1:-1] = x[:n]
            f(room[1:-1], out=room[1:-1])
            np.testing.assert_array_equal(room[1:-1], want[:n])


@given(st.lists(st.floats(width=32), max_size=40))
def test_any_floats(values):
    x = np.array(values, np.float32)
    for name in FUNCTIONS:
        with np.errstate(all="ignore"):
            assert ulp_error(getattr(lnrnn, name)(x), truth(name, x)) <= 2
