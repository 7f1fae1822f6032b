"""``make guard``: no kernel reads or writes outside its arrays.

    python tests/campaigns/guard/sweep.py [--isa avx2] [--quick]

Every array of NumPy's gets a page before and one after it that nothing may touch, close to its end in one
pass and to its beginning in the other; a touch ends the process, and the last line of what it printed names
the case. Sizes 1 to 200 of every norm and elementwise function, dtype, instruction set and of every kind of
network with float, bfloat16 and int8 weights, forward, in streams, and backward; the results must be those
without guards, to the bit. New memory is NaN, so that what is read before it is written shows too.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import itertools
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path.insert(0, str(TESTS / "support"))
import numpy as np  # noqa: E402

import lnrnn  # noqa: E402
from configurations import digest, of_network, of_norm, rng_of  # noqa: E402
from helpers import available_isas, isa_options, using_isa, using_threads  # noqa: E402
from networks import VARIANTS  # noqa: E402

SIZES = range(1, 201)
QUICK = (1, 3, 16, 31, 65)
DTYPES = (np.float32, np.float64, np.float16)
WEIGHTS = ("float32", "bfloat16", "int8")
MODES = {"after": 1, "before": 2}

Case = tuple[Callable[..., Iterator[np.ndarray]], tuple[object, ...]]


def guard_pages(folder: Path):
    """The module, compiled in ``folder`` for this Python unless it is there."""
    path = folder / f"guard_pages{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not path.exists():
        include = [f"-I{sysconfig.get_paths()['include']}", f"-I{np.get_include()}"]
        source = Path(__file__).with_name("guard_pages.c")
        subprocess.run(["cc", "-O1", "-fPIC", "-shared", *include, str(source), "-o", str(path)], check=True)
    spec = importlib.util.spec_from_file_location("guard_pages", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_functions(n: int) -> Iterator[np.ndarray]:
    """Elementwise functions of n values, and into an array that is given."""
    x = rng_of(n).standard_normal(n).astype(np.float32)
    for function in (lnrnn.exp, lnrnn.tanh, lnrnn.sigmoid):
        yield function(x)
        out = np.empty_like(x)
        yield function(x, out=out)


def of_planes(n: int, dtype: type) -> Iterator[np.ndarray]:
    """Batch norm of planes of n values."""
    rng = rng_of(n, "planes")
    x, gy = (rng.standard_normal((3, 2, n)).astype(dtype) for _ in range(2))
    yield lnrnn.batch_norm(x, None, None, training=True)
    yield lnrnn.batch_norm(x, np.zeros(2), np.ones(2))
    yield from (g for g in lnrnn.batch_norm_backward(gy, x, None, None) if g is not None)


def cases(quick: bool) -> Iterator[Case]:
    """(function, arguments): each gives arrays."""
    for rows, dtype in itertools.product((4, 7), DTYPES):  # of 4096 bytes, which batch norm sums by four
        yield of_norm, ((rows, 4096 // np.dtype(dtype).itemsize), dtype, True, True)
    for n in QUICK if quick else SIZES:
        yield of_functions, (n,)
        for rows, dtype in itertools.product((1, 6), DTYPES):
            yield of_norm, ((rows, n), dtype, n % 3 > 0, n % 2 > 0)
        for dtype in DTYPES:
            yield of_planes, (n, dtype)
        # As hidden size and as input size, the other one and the batch following from it.
        for k, variant in enumerate(VARIANTS):
            if quick and (k + n) % 5:
                continue
            weights = WEIGHTS[(k + n) % 3]
            yield of_network, (variant, (1 + (n + 7 * k) % 40, n), 1 + (n + k) % 6, weights, 1)
            if n % 4 == k % 4:
                yield of_network, (variant, (n, 1 + (n + 7 * k) % 40), 1 + (n + k) % 6, weights, 1 + k % 2)


def main() -> int:
    parser = isa_options(__doc__)
    parser.add_argument("--quick", action="store_true", help="five sizes")
    options = parser.parse_args()
    faulthandler.enable()
    with tempfile.TemporaryDirectory() as folder:
        guard = guard_pages(Path(folder))
    wrong = 0
    for isa in options.isa or available_isas():
        count, before = 0, guard.set(0)
        with using_isa(isa), using_threads(1):
            for function, arguments in cases(options.quick):
                named = (
                    f"{isa} {function.__name__} {' '.join(getattr(a, '__name__', str(a)) for a in arguments)}"
                )
                want = digest(function(*arguments))
                for mode, number in MODES.items():
                    sys.stderr.write(f"\r{named} {mode}".ljust(100))
                    guard.set(number)
                    try:
                        got = digest(function(*arguments))
                    finally:
                        guard.set(0)
                    if got != want:
                        wrong += 1
                        print(f"\nanother result with guards {mode}: {named}")
                count += 1
        print(
            f"\n{isa}: {count} cases, {guard.set(0) - before} arrays with guards, {wrong} other results",
            flush=True,
        )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
