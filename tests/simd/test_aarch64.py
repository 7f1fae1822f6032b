"""Tests NEON in an emulator: a cross compiler compiles the C for aarch64, and it runs without Python."""

import os
import subprocess

import numpy as np
import pytest

import lnrnn
from compilers import GCC_AARCH64, QEMU, ROOT, emulates_aarch64, linked
from helpers import using_isa
from lnrnn import _core, reference

pytestmark = pytest.mark.skipif(not emulates_aarch64(), reason=f"needs {GCC_AARCH64} and {QEMU}")


@pytest.fixture(scope="module")
def driver():
    main = ROOT / "tests/simd/aarch64_driver.c"
    # The kernels without inlined copies compile ten times as fast. The campaign machines compiles all code.
    compiler = os.environ.get("AARCH64_CC", "").split() or [GCC_AARCH64]
    flags = () if "AARCH64_CC" in os.environ else ("-O1", "-DLNRNN_SMALL")
    name = f"aarch64-{compiler[0]}{'-small' * bool(flags)}"
    program = linked(name, compiler, "aarch64", main, flags=flags, link=("-static",))

    def run(*arguments, isa="neon", cpu="max", dtype=np.float32, **arrays):
        """Returns the output of the driver. Sends arrays in float32, but x and gy in dtype."""
        kinds = [dtype if name in ("x", "gy") or dtype == np.float64 else np.float32 for name in arrays]
        sent = b"".join(
            np.ascontiguousarray(a, kind).tobytes() for a, kind in zip(arrays.values(), kinds, strict=True)
        )
        command = [QEMU, "-cpu", cpu, str(program), isa, *map(str, arguments)]
        return subprocess.run(command, input=sent, check=True, capture_output=True).stdout

    return run


def number_of(cell):
    return ("RNN", "LSTM", "GRU").index(cell.upper())


def code_of(dtype):
    return ("float32", "bfloat16", "int8", "int8_of_8_bits").index(dtype)


CPUS = [("max", "neoni8mm"), ("cortex-a76", "neondot"), ("cortex-a53", "neon")]


@pytest.mark.parametrize("cpu, best", CPUS)
def test_the_best_set_of_each_cpu_is_chosen(driver, cpu, best):
    """The driver refuses every better set."""
    assert driver("isa", isa="best", cpu=cpu).decode().strip() == best
    better = ["neoni8mm", "neonbf16", "neondot", "neon"]
    for isa in better[: better.index(best)]:
        with pytest.raises(subprocess.CalledProcessError):
            driver("isa", isa=isa, cpu=cpu)


FUNCTIONS = {"EXP": np.exp, "TANH": np.tanh, "SIGMOID": lambda v: 1 / (1 + np.exp(-v))}


@pytest.mark.parametrize("name, function", FUNCTIONS.items())
def test_functions_within_2_ulp(driver, name, function):
    ends = [np.inf, -np.inf, np.nan, -0.0]
    x = np.concatenate([np.linspace(-110, 95, 40001), np.linspace(-1, 1, 20001), ends]).astype(np.float32)
    got = np.frombuffer(driver("map", int(_core.Function[name]), x.size, x=x), np.float32)
    with np.errstate(over="ignore"):
        wanted = function(x.astype(np.float64))
        nearest = wanted.astype(np.float32)
    finite = np.isfinite(nearest)
    assert np.array_equal(got[~finite], nearest[~finite], equal_nan=True)
    ulp = np.spacing(np.abs(nearest[finite])).astype(np.float64)
    assert (np.abs(got[finite] - wanted[finite]) / ulp).max() <= 2


# {dtype: (the driver's number for it, the tolerance of values near 1)}.
DTYPES = {"float32": (0, 2e-6), "float64": (1, 4e-15), "bfloat16": (2, 2**-7), "float16": (3, 2**-10)}


def dtype_of(name):
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("n", [1, 3, 4, 33, 130])
def test_layer_norm_equals_the_reference(driver, name, n):
    (code, error), dtype = DTYPES[name], dtype_of(name)
    rng = np.random.default_rng(n)
    x, gain, bias = (rng.standard_normal(s).astype(np.float32) for s in ((5, n), n, n))
    x = x.astype(dtype)
    got = driver("layer_norm", code, 5, n, dtype=dtype, x=x, gain=gain, bias=bias)
    got = np.frombuffer(got, dtype).reshape(5, n)
    wanted = reference.layer_norm(x.astype(np.float64), n, gain, bias)
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=error, atol=error)


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("rows, n", [(1, 1), (5, 3), (9, 33), (70, 130)])
def test_layer_norm_backward_equals_the_reference(driver, name, rows, n):
    (code, error), dtype = DTYPES[name], dtype_of(name)
    rng = np.random.default_rng(n)
    gy, x, gain = (rng.standard_normal(s).astype(dtype) for s in ((rows, n), (rows, n), n))
    got = driver("layer_norm_backward", code, rows, n, dtype=dtype, gy=gy, x=x, gain=gain)
    cut = rows * n * dtype.itemsize
    sums = np.frombuffer(got[cut:]).reshape(2, n)
    given = gy.astype(np.float64), x.astype(np.float64), n, gain, np.zeros(n)
    gx, ggain, gbias = reference.layer_norm_backward(*given)
    np.testing.assert_allclose(np.frombuffer(got[:cut], dtype).reshape(rows, n), gx, rtol=0, atol=20 * error)
    np.testing.assert_allclose(sums, [ggain, gbias], rtol=0, atol=error * rows)


SITES = {"RNN": [""], "LSTM": ["_ih", "_hh", "_c"], "GRU": ["_ih", "_hh"]}


@pytest.mark.parametrize("cell, G", [("RNN", 1), ("LSTM", 4), ("GRU", 3)])
@pytest.mark.parametrize("T, B, D, H", [(1, 1, 1, 1), (7, 3, 5, 6), (5, 9, 13, 33), (5, 17, 4, 50)])
def test_cells_equal_the_reference(driver, cell, G, T, B, D, H):
    rng, n = np.random.default_rng(H), G * H
    shapes = {"x": (T, B, D), "weight_ih": (n, D), "weight_hh": (n, H)}
    for site in SITES[cell]:
        shapes |= {f"{kind}{site}": H if site == "_c" else n for kind in ("gain", "bias")}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) / 2 for name, shape in shapes.items()}
    got = driver("layer", number_of(cell), T, B, D, H, code_of("float32"), **arrays)
    got = np.frombuffer(got, np.float32).reshape(T, B, H)
    x = arrays.pop("x")
    if cell == "RNN":
        wanted = reference.rnn(x, norm="layer", **arrays)[0]
    else:
        wanted = getattr(reference, cell.lower())(x, arrays)[0]
    np.testing.assert_allclose(got, wanted, rtol=0, atol=5e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("B", [1, 9])
def test_rnn_with_narrow_weights_equals_this_machine(driver, dtype, B):
    """Compares one step with this machine's kernels, so that roundings of activations do not accumulate."""
    D, H = 13, 33
    rng = np.random.default_rng(H)
    rnn = lnrnn.RNN(D, H, seed=0)
    x = rng.standard_normal((1, B, D)).astype(np.float32)
    p = rnn.parameters()
    arrays = {"x": x, **{name: p[f"{name}_l0"] for name in ("weight_ih", "weight_hh", "gain", "bias")}}
    got = driver("layer", number_of("RNN"), 1, B, D, H, code_of(dtype), **arrays)
    got = np.frombuffer(got, np.float32).reshape(1, B, H)
    with using_isa("scalar"):  # bfloat16 products of "scalar" do not round rows
        np.testing.assert_allclose(got, rnn.to_dtype(dtype)(x)[0], rtol=0, atol=2e-6)


def parameters_of(cell, D, H):
    """Returns a network, and the arrays that the driver reads, without x."""
    rnn = getattr(lnrnn, cell)(D, H, seed=1)
    rng = np.random.default_rng(2)
    for name, value in rnn.parameters().items():
        if name.startswith(("gain", "bias")):
            setattr(rnn, name, rng.uniform(0.5, 1.5, value.shape))
    own = rnn.parameters()
    sites = [f"{kind}{site}" for site in SITES[cell] for kind in ("gain", "bias")]
    names = ["weight_ih", "weight_hh", *sites]
    return rnn, {name: own[f"{name}_l0"] for name in names}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("cell", ["RNN", "LSTM", "GRU"])
def test_a_sequence_has_the_same_bits_in_any_batch(driver, cell, dtype):
    T, D, H = 6, 13, 50
    code = code_of(dtype)
    _, arrays = parameters_of(cell, D, H)
    x = np.random.default_rng(3).standard_normal((T, 17, D)).astype(np.float32)

    def run(who):
        got = driver("layer", number_of(cell), T, len(who), D, H, code, x=x[:, who], **arrays)
        return np.frombuffer(got, np.float32).reshape(T, -1, H)

    whole = run(range(17))
    for who in ([0], [16], [3, 5], [*range(9)]):
        np.testing.assert_array_equal(run(who), whole[:, who])


@pytest.mark.parametrize("cell", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("B, D, H", [(1, 1, 1), (9, 13, 50), (17, 4, 33)])
def test_bfdot_and_bfmmla_have_the_bits_of_their_emulation(driver, cell, B, D, H):
    """A sequence has the same bits in any batch, and other bits than in float32."""
    rnn, arrays = parameters_of(cell, D, H)
    x = np.random.default_rng(3).standard_normal((6, B, D)).astype(np.float32)

    def run(isa, who):
        sizes = (6, len(who), D, H, code_of("bfloat16"))
        got = driver("layer", number_of(cell), *sizes, isa=isa, x=x[:, who], **arrays)
        return np.frombuffer(got, np.float32).reshape(6, -1, H)

    whole = run("neonbf16", range(B))
    np.testing.assert_array_equal(whole, run("neonbf16_emulated", range(B)))
    np.testing.assert_array_equal(whole, run("neoni8mm", range(B)))
    for who in ([B - 1], range(min(B, 2)), range(min(B, 5)), range(B // 2)):
        if len(who):
            np.testing.assert_array_equal(whole[:, who], run("neonbf16", who))
    difference = np.abs(whole - run("neon", range(B))).max()
    assert difference < 0.2 and (difference > 1e-5 or D == 1)


def test_bfmmla_has_the_bits_of_bfdot_for_extreme_values(driver):
    """Sums are subnormal, overflow, or are NaN, in a single row and in several rows."""
    T, B, D, H = 1, 8, 11, 29
    _, arrays = parameters_of("RNN", D, H)
    rng = np.random.default_rng(4)
    for low, high in ((-75, -55), (50, 66), (-149, 128)):
        x, w = (rng.standard_normal((n, D)) * 2.0 ** rng.integers(low, high, (n, 1)) for n in (B, H))
        x[3, 2] = np.inf if high == 128 else x[3, 2]
        sent = {"x": x.astype(np.float32), **arrays, "weight_ih": w.astype(np.float32)}

        def run(isa, who, sent=sent):
            sizes = (T, len(who), D, H, code_of("bfloat16"))
            got = driver("layer", number_of("RNN"), *sizes, isa=isa, **{**sent, "x": sent["x"][who]})
            return np.frombuffer(got, np.uint32).reshape(len(who), H)

        whole = run("neonbf16", range(B))
        np.testing.assert_array_equal(whole, run("neonbf16_emulated", range(B)))
        np.testing.assert_array_equal(whole, np.concatenate([run("neonbf16", [i]) for i in range(B)]))


@pytest.mark.parametrize("dtype", ["int8", "int8_of_8_bits"])
@pytest.mark.parametrize("D, H", [(1, 1), (13, 50), (37, 96)])
def test_int8_has_the_same_bits_on_every_unit(driver, dtype, D, H):
    """Sums of integers are exact. The test includes the largest activations times the largest weights."""
    _, arrays = parameters_of("RNN", D, H)
    arrays["weight_ih"] = arrays["weight_ih"].copy()
    arrays["weight_ih"][0], arrays["weight_ih"][-1] = 0.5, -0.5
    x = np.random.default_rng(5).standard_normal((3, 17, D)).astype(np.float32)
    x[0, 3], x[0, 4] = 2, -2

    def run(isa, B):
        sizes = (3, B, D, H, code_of(dtype))
        return driver("layer", number_of("RNN"), *sizes, isa=isa, x=x[:, :B], **arrays)

    for B in (1, 2, 5, 8, 17):
        want = run("neon", B)
        assert run("neondot", B) == want and run("neoni8mm", B) == want, B


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("cell", ["RNN", "LSTM", "GRU"])
def test_plain_c_has_the_bits_of_this_machine(driver, cell, dtype):
    """IEEE operations in the same order have equal results, whatever the compiler and architecture."""
    T, B, D, H = 6, 9, 13, 50
    code = code_of(dtype)
    rnn, arrays = parameters_of(cell, D, H)
    x = np.random.default_rng(3).standard_normal((T, B, D)).astype(np.float32)
    sizes = number_of(cell), T, B, D, H, code
    got, other = (driver("layer", *sizes, isa=isa, x=x, **arrays) for isa in ("scalar", "neon"))
    with using_isa("scalar"):
        wanted = rnn.to_dtype(dtype)(x)[0]
    assert got == wanted.tobytes() and got != other
