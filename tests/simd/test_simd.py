"""Compares each operation of include/lnrnn/simd/simd.h with NumPy, on each instruction set."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from compilers import ROOT
from simd_definitions import (
    F32,
    F64,
    FROM,
    TO,
    U16,
    U32,
    any_bits,
    around_short_floats,
    assert_bits,
    assert_values,
    from_bf16,
    from_f16,
    fused,
    operands,
    special,
    to_bf16,
    to_f16,
)
from simd_units import END

DTYPES = {"v32": F32, "v64": F64}

each_type = pytest.mark.parametrize("v", DTYPES)

# Operations with one IEEE rounding.
EXACT = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
# {operation that returns one of its arguments: its definition}
CHOSEN = {"min": lambda a, b: np.where(a < b, a, b), "max": lambda a, b: np.where(a > b, a, b)}
SHORT = ("bf16", "f16")


@pytest.fixture(autouse=True)
def quiet():
    """Silences warnings, because overflow, NaN and division by 0 are tested on purpose."""
    with np.errstate(all="ignore"):
        yield


# --- arithmetic ---------------------------------------------------------------------------------------------


@each_type
@pytest.mark.parametrize("name", EXACT)
def test_arithmetic_rounds_once(unit, rng, v, name):
    a, b = operands(rng, DTYPES[v], 2)
    assert_values(unit.map(f"{v}_{name}", a, b), EXACT[name](a, b))


def test_sqrt_is_correctly_rounded(unit, rng):
    (x,) = operands(rng, F32, 1)
    assert_values(unit.map("v32_sqrt", x), np.sqrt(x))


@each_type
def test_fma_rounds_once_or_twice_as_listed(unit, rng, v):
    """fma has two roundings on the instruction sets that simd.h lists."""
    a, b, c = operands(rng, DTYPES[v], 3, random=400)
    ulp = np.finfo(DTYPES[v]).eps
    long = 1 + ulp * rng.integers(1, 100, 200).astype(DTYPES[v])  # their squares need twice the digits
    a = np.concatenate([a, long])
    b = np.concatenate([b, a[-200:]])
    c = np.concatenate([c, -(a[-200:] * b[-200:])])
    one, two = fused(a, b, c), a * b + c
    assert (one[-200:] != two[-200:]).any()
    assert_values(unit.map(f"{v}_fma", a, b, c), two if unit.isa in ("sse2", "wasm128", "scalar") else one)


@pytest.mark.parametrize("name", CHOSEN)
def test_min_and_max_return_b_for_nan_and_zeros(unit, rng, name):
    """If either argument is NaN, and for zeros of different signs, the result is b."""
    a, b = operands(rng, F32, 2)
    assert_bits(unit.map(f"v32_{name}", a, b), CHOSEN[name](a, b))


@each_type
def test_sum_is_within_its_roundings_and_fixed(unit, rng, v):
    dtype, lanes = DTYPES[v], unit.lanes[v]

    def sums(x):
        return np.frombuffer(unit.run(f"{v}_sum", x, count=len(x)), dtype)

    whole = rng.integers(-(2**18), 2**18, (500, lanes)).astype(dtype)
    np.testing.assert_array_equal(sums(whole), whole.sum(1))
    single = np.eye(lanes, dtype=dtype)
    for value in (dtype(1.1), np.inf, -np.inf, np.nan, np.finfo(dtype).smallest_subnormal):
        got = sums(np.where(single == 1, value, dtype(0)))
        np.testing.assert_array_equal(got, np.full(lanes, value, dtype))
    any_ = rng.standard_normal((500, lanes)).astype(dtype)
    exact = any_.astype(np.longdouble).sum(1)
    got = sums(any_)
    # The error is lanes - 1 roundings of at most half an ULP of a partial sum, which the sum of magnitudes
    # bounds.
    most = (lanes - 1) * np.finfo(dtype).eps / 2 * np.abs(any_).sum(1) * (1 + 1e-6)
    assert (np.abs(got - exact) <= most).all()
    assert_bits(sums(any_), got)
    assert_bits(sums(np.concatenate([whole, any_]))[500:], got)


def test_sums_have_the_bits_of_sum(unit, rng):
    """Element i of the result is the sum of vector i."""
    lanes = unit.lanes["v32"]
    for rows in (
        rng.standard_normal((200 * lanes, lanes)).astype(F32),
        special(F32)[rng.integers(0, len(special(F32)), (200 * lanes, lanes))],
    ):
        want = np.frombuffer(unit.run("v32_sum", rows, count=len(rows)), F32)
        got = np.frombuffer(unit.run("v32_sums", rows, count=200), F32)
        np.testing.assert_array_equal(got, want)


@each_type
def test_zero_and_set1(unit, rng, v):
    lanes = unit.lanes[v]
    assert_bits(np.frombuffer(unit.run(f"{v}_zero"), DTYPES[v]), np.zeros(lanes, DTYPES[v]))
    x = np.concatenate([special(DTYPES[v]), any_bits(rng, 100, DTYPES[v])])
    assert_bits(np.frombuffer(unit.run(f"{v}_set1", x, count=len(x)), DTYPES[v]), np.repeat(x, lanes))


@each_type
def test_keep_n_sets_the_other_lanes_to_zero(unit, rng, v):
    """Elements from n on become +0, even if they are NaN."""
    some = rng.standard_normal(unit.lanes[v]).astype(DTYPES[v])
    for x in (some, np.full_like(some, -np.nan)):
        for n in range(unit.lanes[v] + 1):
            want = np.where(np.arange(len(x)) < n, x, DTYPES[v](0))
            assert_bits(np.frombuffer(unit.run(f"{v}_keep_n", x, n=n), DTYPES[v]), want)


# --- only floats --------------------------------------------------------------------------------------------


def test_round(unit, rng):
    below = F32(2**22)
    whole = np.concatenate([np.arange(300), 2 ** np.arange(23) - 1, rng.integers(0, 2**22 - 1, 2000)])
    whole = whole.astype(F32)
    half = whole + F32(0.5)
    x = np.concatenate([whole, half, np.nextafter(half, F32(0)), np.nextafter(half, below), special(F32)])
    x = np.concatenate([x[np.abs(x) < below], rng.uniform(-300, 300, 2000).astype(F32)])
    x = np.concatenate([x, -x])
    np.testing.assert_array_equal(unit.map("v32_round", x), np.rint(x))  # the sign of 0 is unspecified


def test_scale_rounds_once(unit, rng):
    """Subnormal results are rounded once too."""
    n = np.tile(np.arange(-252, 255), 20)
    few = np.repeat([1, 0.5, -2, np.nextafter(F32(2), F32(0))], 507)
    v = np.concatenate([few, rng.uniform(0.5, 2, 16 * 507)]).astype(F32)
    v[len(v) // 2 :] *= -1
    assert_bits(unit.map("v32_scale", v, n.astype(F32)), np.ldexp(v.astype(F64), n).astype(F32))
    assert np.isnan(unit.map("v32_scale", np.full(507, np.nan, F32), n[:507].astype(F32))).all()


def test_lookup16_reads_the_last_four_bits(unit, rng):
    """The argument may be any float, also NaN."""
    lanes = unit.lanes["v32"]
    table, v = any_bits(rng, 16 * 400, F32), np.resize(any_bits(rng, 1601, F32), 400 * lanes)
    got = np.frombuffer(unit.run("v32_lookup16", v, table, count=400), F32)
    want = table.reshape(400, 16)[np.arange(400)[:, None], v.view(U32).reshape(400, lanes) & U32(15)]
    assert_bits(got, want.ravel())


def test_abs_and_copysign(unit, rng):
    v, s = operands(rng, F32, 2)
    assert_bits(unit.map("v32_abs", v), (v.view(U32) & U32(0x7FFFFFFF)).view(F32))
    want = (v.view(U32) & U32(0x7FFFFFFF)) | (s.view(U32) & U32(0x80000000))
    assert_bits(unit.map("v32_copysign", v, s), want.view(F32))


def test_select_lt(unit, rng):
    a, b = operands(rng, F32, 2)
    x, y = any_bits(rng, len(a), F32), any_bits(rng, len(a), F32)
    x[::7], y[::5] = np.nan, -0.0
    assert_bits(unit.map("v32_select_lt", a, b, x, y), np.where(a < b, x, y))


def test_loaded_changes_nothing(unit, rng):
    x = any_bits(rng, 160, F32)
    assert_bits(unit.map("LNRNN_LOADED", x), x)


# --- 16 bits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SHORT)
@pytest.mark.parametrize("spelling", ["v32_from_{}", "{}_to_float"])
def test_conversion_from_16_bits_is_exact(unit, kind, spelling):
    h = np.arange(2**16, dtype=U16)
    assert_values(unit.map(spelling.format(kind), h, dtype=F32), FROM[kind](h))


@pytest.mark.parametrize("kind", SHORT)
@pytest.mark.parametrize("spelling", ["v32_to_{}", "float_to_{}"])
def test_conversion_to_16_bits_rounds_to_nearest_even(unit, rng, kind, spelling):
    """Values beyond the largest become infinity, subnormal numbers are kept, and NaN stays NaN."""
    x = around_short_floats(rng, kind)
    got = unit.map(spelling.format(kind), x, dtype=U16)
    np.testing.assert_array_equal(np.isnan(FROM[kind](got)), np.isnan(x))
    assert_bits(got[~np.isnan(x)], TO[kind](x)[~np.isnan(x)])


def test_bits_of_floats(unit, rng):
    x = np.concatenate([special(F32), any_bits(rng, 1000, F32)])
    assert unit.run("float_bits", x, count=len(x)) == x.tobytes()
    assert unit.run("bits_float", x.view(U32), count=len(x)) == x.tobytes()
    assert_bits(unit.map("v32_of_bits", x.view(U32), dtype=F32), x)


def test_bf16_pair(unit, rng):
    w = rng.integers(0, 2**32, 50 * unit.lanes["v32"], U32)
    got = np.frombuffer(unit.run("v32_bf16_pair", w, count=50), F32).reshape(50, 2, -1)
    assert_bits(got[:, 0].ravel(), (w << 16).view(F32))
    assert_bits(got[:, 1].ravel(), (w & U32(0xFFFF0000)).view(F32))


def test_set4(unit, rng):
    x = any_bits(rng, 200, F32)
    got = np.frombuffer(unit.run("v32_set4", x, count=50), F32)
    assert_bits(got, np.repeat(x, unit.lanes["v32"]))


# --- integers -----------------------------------------------------------------------------------------------


def test_vi32_zero(unit):
    assert unit.run("vi32_zero") == bytes(4 * unit.lanes["vi32"])


def test_dot4_is_exact(unit, rng):
    """Tests the largest sums of either sign, because two products of 127 and -128 just fit into 16 bits."""
    few = list(itertools.product([0, 1, 127], repeat=4))
    a = np.array(few + rng.integers(0, 128, (1000, 4)).tolist(), np.uint8)
    lanes = unit.lanes["vi32"]
    extreme = np.array(list(itertools.product([-128, 0, 127], repeat=4)), np.int8)
    for weights in (extreme, rng.integers(-128, 128, (200, 4)).astype(np.int8)):
        w = weights[rng.integers(0, len(weights), (len(a), lanes))]
        w[: len(extreme)] = extreme[: len(extreme), None]
        v = rng.integers(-(2**30), 2**30, (len(a), lanes)).astype(np.int32)
        got = np.frombuffer(unit.run("vi32_dot4", v, a, w, count=len(a)), np.int32).reshape(v.shape)
        np.testing.assert_array_equal(got, v + (a[:, None].astype(np.int32) * w).sum(-1))
    alike = np.array([127, -128], np.int8)[:, None, None].repeat(lanes, 1).repeat(4, 2)
    zero, all_127 = np.zeros((2, lanes), np.int32), np.full((2, 4), 127, np.uint8)
    got = np.frombuffer(unit.run("vi32_dot4", zero, all_127, alike, count=2), np.int32)
    np.testing.assert_array_equal(got.reshape(2, lanes), [[4 * 127 * 127] * lanes, [-4 * 127 * 128] * lanes])


def integers(rng, n):
    """Returns 32-bit integers, some of them halfway between two floats."""
    halfway = [2**k + 2 ** (k - 24) * odd for k in range(24, 31) for odd in (1, 3, 5)]
    ends = [0, 1, 2**24 + 1, 2**24 + 3, 2**31 - 1, 2**31 - 64, 2**31 - 65]
    x = np.array([*halfway, *ends], np.int32)
    return np.concatenate([x, -x, [-(2**31)], rng.integers(-(2**31), 2**31, n)]).astype(np.int32)


def test_to_v32_returns_the_nearest_floats(unit, rng):
    x = integers(rng, 2000)
    assert_bits(unit.map("vi32_to_v32", x, dtype=F32), x.astype(F32))


def test_to_vi32_returns_the_nearest_integers(unit, rng):
    """Ties go to even. A NaN may become any number, but does not change other elements."""
    x = nearest_integers(rng, 2**22 - 1)
    np.testing.assert_array_equal(unit.map("v32_to_vi32", x, dtype=np.int32), np.rint(x).astype(np.int32))
    y = x.copy()
    y[:: unit.lanes["v32"]] = np.nan
    got = unit.map("v32_to_vi32", y, dtype=np.int32)
    np.testing.assert_array_equal(got[~np.isnan(y)], np.rint(y[~np.isnan(y)]).astype(np.int32))


def test_vi32_load_and_store(unit, rng):
    lanes = unit.lanes["vi32"]
    x = rng.integers(-(2**31), 2**31, lanes).astype(np.int32)
    for place in (END, *range(0, 4 * lanes + 4, 4)):
        for name in ("vi32_load", "vi32_store"):
            assert unit.run(name, x, place=place) == x.tobytes()


# --- rows of activations as integers ------------------------------------------------------------------------


def offset(unit):
    """Returns S8_OFFSET of the instruction set, the number that is added to 8-bit activations in memory."""
    return int(np.frombuffer(unit.run("S8_OFFSET"), np.int32)[0])


def test_dot4_s8_is_exact(unit, rng):
    """Tests the largest sums of either sign, with the offset of the instruction set."""
    lanes, add = unit.lanes["vi32"], offset(unit)
    extreme = np.array(list(itertools.product([-127, 0, 127], repeat=4)), np.int8)
    some = rng.integers(-127, 128, (1000, 4)).astype(np.int8)
    n = np.concatenate([extreme, some])
    low = np.where(extreme == -127, np.int8(-128), extreme)
    for weights in (low, rng.integers(-128, 128, (200, 4)).astype(np.int8)):
        w = weights[rng.integers(0, len(weights), (len(n), lanes))]
        w[: len(extreme)] = low[::-1, None]
        w[0], w[1] = low[0], -n[1]
        v = rng.integers(-(2**30), 2**30, (len(n), lanes)).astype(np.int32)
        a = (n.astype(np.int32) + add).astype(np.uint8)
        got = np.frombuffer(unit.run("vi32_dot4_s8", v, a, w, count=len(n)), np.int32).reshape(v.shape)
        factors = (n.astype(np.int32) + add)[:, None]
        np.testing.assert_array_equal(got, v + (factors * w).sum(-1))


def nearest_integers(rng, most):
    """Returns floats from -most to most: integers, halves (ties), and floats next to halves."""
    whole = np.concatenate([rng.integers(-most, most + 1, 2000), np.arange(-260, 261), [-most, most]])
    whole = np.unique(whole)
    whole = whole[np.abs(whole) <= most].astype(F32)
    half = whole[np.abs(whole) < most] + F32(0.5)
    near = [np.nextafter(half, F32(0)), np.nextafter(half, F32(np.inf))]
    return np.concatenate([whole, half, *near, np.array([-0.0, 1e-45, -1e-45], F32)])


def padded(unit, x):
    return np.append(x, np.zeros(-len(x) % (4 * unit.lanes["v32"]), x.dtype))


@pytest.mark.parametrize("at_a_time", [1, 4])
@pytest.mark.parametrize("bits", [14, 8])
def test_stores_of_integers_write_only_their_bytes(unit, rng, bits, at_a_time):
    """Ties go to even. A NaN may become any bytes, but does not change other bytes."""
    lanes, name = at_a_time * unit.lanes["v32"], f"v32_store{'4' if at_a_time == 4 else ''}_s{bits}"
    x = padded(unit, nearest_integers(rng, 2 ** (bits - 1) - 1))
    n = np.rint(x).astype(np.int32).reshape(-1, 1, lanes)
    want = np.concatenate([n + 8192 >> 7, n + 8192 & 127], 1) if bits == 14 else n + offset(unit)
    want = want.astype(np.uint8)
    for place in (0, 64, END):
        got = np.frombuffer(unit.run(name, x, count=len(x) // lanes, place=place), np.uint8)
        np.testing.assert_array_equal(got.reshape(want.shape), want)
        for k in range(lanes):
            y = x[:lanes].copy()
            y[k] = np.nan
            got = np.frombuffer(unit.run(name, y, place=place), np.uint8).reshape(want.shape[1:])
            np.testing.assert_array_equal(np.delete(got, k, 1), np.delete(want[0], k, 1))


def test_larger(unit, rng):
    """The arguments have no sign bit. NaN is larger than infinity, and infinity is larger than any number."""
    lanes, (a, b) = unit.lanes["v32"], (np.abs(x) for x in operands(rng, F32, 2))
    assert_bits(unit.map("v32_larger", a, b), np.maximum(a.view(U32), b.view(U32)).view(F32))
    rows = np.resize(rng.permutation(a), (300, lanes))
    got = np.frombuffer(unit.run("v32_largest", rows, count=300), F32)
    assert_bits(got, rows.view(U32).max(1).view(F32))
    for k in range(lanes):
        row = np.ones(lanes, F32)
        row[k] = 2
        assert np.frombuffer(unit.run("v32_largest", row), F32) == 2


# --- memory -------------------------------------------------------------------------------------------------

# Loads and stores: (pattern of the name, type of the vector, type in memory, conversions by load and by
# store).
ARRAYS = {
    "v32": ("v32_{}", F32, F32, lambda m: m, lambda v: v),
    "v64": ("v64_{}", F64, F64, lambda m: m, lambda v: v),
    "v16": ("v16_{}", U16, U16, lambda m: m, lambda v: v),
    "bf16": ("v32_{}_bf16", F32, U16, from_bf16, to_bf16),
    "f16": ("v32_{}_f16", F32, U16, from_f16, to_f16),
}
each_array = pytest.mark.parametrize("array", ARRAYS)


def drawn(rng, dtype, n):
    if dtype == U16:
        return rng.integers(0, 0x7C00, n, U16)  # finite as bfloat16 and as float16
    return rng.standard_normal(n).astype(dtype)


def array_of(unit, array):
    """Returns a function that names operations, the number of lanes, the rest of ARRAYS[array], and places.
    Places of operands are the end of a page, and offsets."""
    spelling, vector, memory, load, store = ARRAYS[array]
    lanes = unit.lanes[spelling[:3]]
    places = [END, *(np.dtype(memory).itemsize * k for k in range(lanes + 1))]
    return spelling.format, lanes, vector, memory, load, store, places


@each_array
def test_load_n_reads_only_n_elements(unit, rng, array):
    """The page before and the page after may not be read."""
    name, lanes, vector, memory, load, _, places = array_of(unit, array)
    for place in places:
        x = drawn(rng, memory, lanes)
        assert_bits(np.frombuffer(unit.run(name("load"), x, place=place), vector), load(x))
        for n in range(lanes + 1):
            x = drawn(rng, memory, n)
            want = np.concatenate([load(x), np.zeros(lanes - n, vector)])
            assert_bits(np.frombuffer(unit.run(name("load_n"), x, n=n, place=place), vector), want)


@each_array
def test_store_n_writes_only_n_elements(unit, rng, array):
    """The page after may not be written, not even with its old bytes."""
    name, lanes, vector, memory, _, store, places = array_of(unit, array)
    for place in places:
        x = drawn(rng, vector, lanes)
        assert_bits(np.frombuffer(unit.run(name("store"), x, place=place), memory), store(x))
        for n in range(lanes + 1):
            got = unit.run(name("store_n"), x, n=n, place=place)
            assert_bits(np.frombuffer(got, memory), store(x)[:n])


@each_array
def test_stream(unit, rng, array):
    name, lanes, vector, memory, _, store, _ = array_of(unit, array)
    for place in (END, 0, lanes * np.dtype(memory).itemsize):
        x = drawn(rng, vector, lanes)
        assert_bits(np.frombuffer(unit.run(name("stream"), x, place=place), memory), store(x))


def test_stream_end_and_prefetch(unit):
    """A prefetch of an address that may not be read has no effect."""
    assert unit.run("stream_end") == b""
    for place in (END, 0):
        for name in ("v32_prefetch", "v32_prefetch_l2"):
            assert unit.run(name, np.zeros(unit.lanes["v32"], F32), place=place) == b""


# --- completeness -------------------------------------------------------------------------------------------

OPERATORS = {f"{v}_{name}" for v in DTYPES for name in EXACT}
HEADERS = ROOT / "include/lnrnn/simd"
OTHERS = {"simd.h", "half.h", "vmath.h", "units.h", "wide.h"}  # tests/rnn/test_blocks.py tests wide.h
BACKENDS = sorted({path.name for path in HEADERS.glob("*.h")} - OTHERS)


def header(name):
    return (HEADERS / name).read_text()


def functions(name):
    """Returns the functions that a header or its macros define, except those of one instruction set."""
    found = re.findall(r"^ *LNRNN_(?:INLINE|OUTLINE) [^#(;]*?([\w#]+)\(", header(name), re.MULTILINE)
    each = {function.replace("##t", kind) for function in found for kind in SHORT}
    through_stack = re.findall(r"^LNRNN_THROUGH_STACK\(\w+, (\w+)", header(name), re.MULTILINE)
    each |= {f"{v}_{move}" for v in through_stack for move in ("load_n", "store_n")}
    return {function for function in each if not function.endswith("_mask_n")}


def test_every_backend_has_every_operation(unit):
    """operations.c has a request for each of them."""
    wanted = set(unit.operations) - OPERATORS - {"LNRNN_LOADED", "S8_OFFSET"}
    for name in BACKENDS:
        assert functions(name) | functions("simd.h") | functions("half.h") == wanted, name


def test_every_operation_is_listed():
    listed = set(re.findall(r"\w+", header("simd.h").partition("*/")[0]))
    for name in functions(BACKENDS[0]) | functions("simd.h"):
        own = name.partition("_")[2].replace("_f16", "_bf16")  # simd.h says "the same with f16"
        assert own in listed or name in listed, name
