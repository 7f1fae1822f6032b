"""Tests exp, tanh and sigmoid on every 4099th float, and that the campaign reports planted faults."""

from __future__ import annotations

import ctypes
from decimal import Context, Decimal, localcontext

import numpy as np
import pytest
import run_ulp as ulp

from helpers import available_isas, isa_families, using_isa, using_threads

each_function = pytest.mark.parametrize("function", ulp.FUNCTIONS)


@pytest.fixture(autouse=True)
def one_thread():
    with using_threads(1), using_isa(available_isas()[0]):
        yield


def bits(x):
    return int(np.array(x, np.float32).view(np.uint32))


@each_function
def test_limits_hold_on_every_4099th_float(function):
    swept = ulp.sweep(function, {isa: ulp.native(isa) for isa in isa_families()}, 4099)
    assert not ulp.broken(function, swept)
    v = swept.verdicts["scalar"]
    assert v.inputs + v.nans == -(-(1 << 32) // 4099)


# Inputs at which a function changes its formula, saturates, overflows or underflows. The last two have the
# largest errors, with a fused multiply-add and without.
BENDS = {
    "exp": (0, 0.34657359, 1, 88.722839, 89, -87.336544, -103.27893, -103.97208, -105, -5.86215, -71.0285),
    "tanh": (0, 2.0**-12, 0.29090909, 0.87272727, -0.87272727, 9.0108, -9.0108, 9.015, 0.296997, 0.294586),
    "sigmoid": (0, -0.34657359, -6.5, 17.32868, 16.6, -17.4, -88.72, -103.97208, 104, -14.9183, -5.89499, 30),
}


@each_function
def test_limits_hold_on_all_floats_around_the_bends(function):
    """Tests 65,536 floats around each of BENDS."""
    sets = {isa: ulp.native(isa) for isa in isa_families()}
    for x in BENDS[function]:
        first = max(0, bits(x) - 2**15)
        assert not ulp.broken(function, ulp.sweep(function, sets, first=first, last=first + 2**16)), x


@each_function
def test_nan_and_infinities_give_the_right_results(function):
    """Tests NaN of both signs with every 61st payload."""
    sets = {isa: ulp.native(isa) for isa in isa_families()}
    for sign in (0, 1 << 31):
        swept = ulp.sweep(function, sets, 61, first=sign + 0x7F800000, last=sign + (1 << 31))
        assert not ulp.broken(function, swept)
        assert all((v.inputs, v.nans) == (1, -(-(1 << 23) // 61) - 1) for v in swept.verdicts.values())


def in_decimal(function, x):
    """Returns the function of x to 60 digits."""
    with localcontext(Context(prec=60, Emin=-(10**6), Emax=10**6)):
        x = Decimal(float(x))
        if function == "exp":
            return x.exp()
        e = (-2 * abs(x) if function == "tanh" else -abs(x)).exp()
        if function == "tanh":
            return (1 - e) / (1 + e) * (1 if x >= 0 else -1)
        return (1 if x >= 0 else e) / (1 + e)


@each_function
def test_the_reference_agrees_with_60_digits(function, rng):
    """The reference's error is below the 2^-25 ULP that ulp_judge.c derives."""
    some = rng.integers(0, 1 << 32, 1500, np.uint64).astype(np.uint32).view(np.float32)
    some = some[np.abs(some) < 200]
    x = np.concatenate([some, rng.uniform(-20, 20, 500), rng.uniform(-104, 88.7, 500), BENDS[function]])
    x = x.astype(np.float32)
    x = x[x < 88.7] if function == "exp" else x
    truth, per_ulp = np.empty((2, x.size))
    nearest, tie = np.empty(x.size, np.float32), np.empty(x.size, np.uint8)
    size = ctypes.c_size_t(x.size)
    ulp.judge().judge_reference(
        int(ulp.FUNCTIONS[function]), size, *map(ulp.address, (x, truth, per_ulp, nearest, tie))
    )
    for value, got, unit in zip(x, truth, per_ulp, strict=True):
        error = abs(Decimal(float(got)) - in_decimal(function, value)) * Decimal(float(unit))
        assert error < 2.0**-25, value


def spoiled(changes):
    """Returns a function for `sweep` with wrong results for some inputs. changes: {bits of x: result}."""

    def run(function, x, y):
        ulp.native("scalar")(function, x, y)
        for at, value in changes.items():
            y[x.view(np.uint32) == at] = value

    return run


FAULTS = {
    "3 ULP": ("exp", {bits(1): np.float32(np.e) + 3 * 2.0**-22}, "ULP; LNRNN_ISA"),
    "NaN of a number": ("exp", {bits(2): np.nan}, "NaN"),
    "a number of NaN": ("sigmoid", {0x7FC00001: 1}, "NaN"),
    "too early infinite": ("exp", {bits(88.72): np.inf}, "infinite"),
    "too late infinite": ("exp", {bits(88.75): np.finfo(np.float32).max}, "infinite"),
    "sign of zero": ("tanh", {0x80000000: 0.0}, "range or have the wrong sign"),
    "below zero": ("sigmoid", {bits(-104.5): -0.0}, "range or have the wrong sign"),
    "above one": ("tanh", {bits(9.5): 1 + 2.0**-23}, "range or have the wrong sign"),
    "flushed to zero": ("tanh", {5: 0.0}, "subnormal"),
    "infinity": ("sigmoid", {bits(-np.inf): 1e-45}, "infinite inputs"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_reported(fault):
    function, changes, message = FAULTS[fault]
    first = max(0, next(iter(changes)) - 100)
    sets = {"scalar": ulp.native("scalar"), "scalar spoiled": spoiled(changes)}
    wrong = ulp.broken(function, ulp.sweep(function, sets, first=first, last=first + 1000))
    assert any("spoiled" in line and message in line for line in wrong), wrong
    assert any("scalar and scalar spoiled differ on 1 inputs" in line for line in wrong) or "NaN" in message
    assert not any(line.startswith(f"{function} on scalar:") for line in wrong)


def test_the_verdicts_of_blocks_add_up(monkeypatch):
    verdicts = {}
    for block in (1 << 16, 1000):
        monkeypatch.setattr(ulp, "BLOCK", block)
        sets = {isa: ulp.native(isa) for isa in ("scalar", available_isas()[0])}
        first = bits(7.8) - 40_000
        swept = ulp.sweep("sigmoid", sets, first=first, last=first + 60_000)
        verdicts[block] = [bytes(v) for v in swept.verdicts.values()]
    assert verdicts[1000] == verdicts[1 << 16]
