"""NEON, where a cross compiler and an emulator are installed: the C is compiled for aarch64 and run without Python."""

import shutil
import subprocess
from pathlib import Path

import lnrnn
import numpy as np
import pytest

from lnrnn import reference

ROOT = Path(__file__).parent.parent
GCC, QEMU = "aarch64-linux-gnu-gcc", "qemu-aarch64"

pytestmark = pytest.mark.skipif(
    not (shutil.which(GCC) and shutil.which(QEMU)), reason=f"needs {GCC} and {QEMU}"
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    program = tmp_path_factory.mktemp("aarch64") / "driver"
    others = sorted(p for p in (ROOT / "pyx").glob("*.c") if not p.name.startswith(("isa_", "_")))
    units = [ROOT / "pyx/isa_neon.c", ROOT / "pyx/isa_scalar.c", *others, ROOT / "tests/aarch64/driver.c"]
    sources = [str(unit) for unit in units]
    flags = ["-std=gnu11", "-O2", "-ffp-contract=off", "-fno-math-errno", "-static", f"-I{ROOT / 'include'}"]
    subprocess.run([GCC, *flags, *sources, "-lm", "-o", str(program)], check=True)

    def run(*arguments, **arrays):
        sent = b"".join(np.ascontiguousarray(a, np.float32).tobytes() for a in arrays.values())
        command = [QEMU, str(program), *map(str, arguments)]
        return subprocess.run(command, input=sent, check=True, capture_output=True).stdout

    return run


def test_the_driver_runs_neon(driver):
    assert driver("isa").strip() == b"neon"


@pytest.mark.parametrize("index, function", list(enumerate([np.exp, np.tanh, lambda v: 1 / (1 + np.exp(-v))])))
def test_functions_within_2_ulp(driver, index, function):
    x = np.concatenate([np.linspace(-110, 95, 40001), np.linspace(-1, 1, 20001), [np.inf, -np.inf, np.nan, -0.0]])
    x = x.astype(np.float32)
    got = np.frombuffer(driver("map", index, x.size, x=x), np.float32)
    with np.errstate(over="ignore"):
        wanted = function(x.astype(np.float64))
        nearest = wanted.astype(np.float32)
    finite = np.isfinite(nearest)
    assert np.array_equal(got[~finite], nearest[~finite], equal_nan=True)
    ulp = np.spacing(np.abs(nearest[finite])).astype(np.float64)
    assert (np.abs(got[finite] - wanted[finite]) / ulp).max() <= 2


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 12, 33, 130])
def test_layer_norm(driver, n):
    rng = np.random.default_rng(n)
    x, gain, bias = (rng.standard_normal(s).astype(np.float32) for s in ((5, n), n, n))
    got = np.frombuffer(driver("layer_norm", 5, n, x=x, gain=gain, bias=bias), np.float32).reshape(5, n)
    np.testing.assert_allclose(got, reference.layer_norm(x, n, gain, bias), rtol=0, atol=2e-6)


@pytest.mark.parametrize("T, B, D, H", [(1, 1, 1, 1), (7, 3, 5, 6), (6, 9, 13, 33), (5, 17, 4, 50)])
def test_rnn(driver, T, B, D, H):
    rng = np.random.default_rng(H)
    shapes = {"x": (T, B, D), "weight_ih": (H, D), "weight_hh": (H, H), "gain": H, "bias": H}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) / 2 for name, shape in shapes.items()}
    got = np.frombuffer(driver("layer", 0, T, B, D, H, 0, **arrays), np.float32).reshape(T, B, H)
    x, weight_ih, weight_hh, gain, bias = arrays.values()
    wanted = reference.rnn(x, weight_ih, weight_hh, norm="layer", gain=gain, bias=bias)[0]
    np.testing.assert_allclose(got, wanted, rtol=0, atol=5e-6)


@pytest.mark.parametrize("cell, G", [("lstm", 4), ("gru", 3)])
@pytest.mark.parametrize("T, B, D, H", [(1, 1, 1, 1), (7, 3, 5, 6), (5, 9, 13, 33)])
def test_gated_cells(driver, cell, G, T, B, D, H):
    rng, n = np.random.default_rng(H), G * H
    shapes = {"x": (T, B, D), "weight_ih": (n, D), "weight_hh": (n, H), "gain_ih": n, "bias_ih": n, "gain_hh": n, "bias_hh": n}
    if cell == "lstm":
        shapes |= {"gain_c": H, "bias_c": H}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) / 2 for name, shape in shapes.items()}
    got = np.frombuffer(driver("layer", 1 if cell == "lstm" else 2, T, B, D, H, 0, **arrays), np.float32).reshape(T, B, H)
    wanted = getattr(reference, cell)(arrays.pop("x"), arrays)[0]
    np.testing.assert_allclose(got, wanted, rtol=0, atol=5e-6)


@pytest.mark.parametrize("code, dtype", [(1, "bfloat16"), (2, "int8")])
@pytest.mark.parametrize("B", [1, 9])
def test_rnn_with_short_weights(driver, code, dtype, B):
    """One step, so that no rounding of an activation can be carried on, against this machine's kernels."""
    D, H = 13, 33
    rng = np.random.default_rng(H)
    rnn = lnrnn.RNN(D, H, seed=0)
    x = rng.standard_normal((1, B, D)).astype(np.float32)
    p = rnn.parameters()
    arrays = {"x": x, **{name: p[f"{name}_l0"] for name in ("weight_ih", "weight_hh", "gain", "bias")}}
    got = np.frombuffer(driver("layer", 0, 1, B, D, H, code, **arrays), np.float32).reshape(1, B, H)
    np.testing.assert_allclose(got, rnn.to_dtype(dtype)(x)[0], rtol=0, atol=2e-6)
