"""Searches for invalid memory accesses, undefined behaviour and data races, by sanitizers and valgrind.

address: runs the suite on a build with gcc's address and undefined-behaviour sanitizers. Omits tests that
limit memory, preload a library or compile for another machine. Leaks are not reported. Control: a program
writes a byte beyond an array.

valgrind: runs every norm, function and kind of network in a few sizes under memcheck. Only errors in lnrnn's
code count. Control: a norm of uninitialised memory.

threads: runs tests of threads on a build with gcc's thread sanitizer. The build has no OpenMP, because the
sanitizer does not know it. Control: the atomic operations of a barrier are relaxed.

library: runs tests/capi/library.c, which tests liblnrnn without Python, with the address,
undefined-behaviour, leak and thread sanitizers, and under valgrind. Kernels are compiled without sanitizers.
Control: the program writes floats beyond an array. The part also tests `make install` to a path with a space,
and pkg-config.

The tools must report every control.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

from compilers import objects, units
from outcome import Wrong, done, needs
from source_copy import ROOT, build, copy_sources

SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"
FOLDERS = (
    "tests/norm", "tests/rnn", "tests/reference", "tests/importers", "tests/files", "tests/cli",
    "tests/demo", "tests/data", "tests/campaigns/fuzz", "tests/runtime", "tests/capi",
    "tests/ort",
)  # fmt: skip
# Tests that limit or count memory or measure stacks are omitted, because the sanitizer reserves terabytes.
NOT = (
    "tests/runtime/test_threads.py", "tests/runtime/test_result_memory.py",
    "tests/runtime/test_interrupts.py", "tests/capi/test_c_realtime.py",
    "tests/ort/test_plugin_memory.py",
)  # fmt: skip
# This test is omitted, because a process crashes on purpose, and the sanitizer changes its exit status.
NOT_TESTS = ("tests/campaigns/fuzz/test_fuzz.py::test_a_fault_is_reported[crash]",)

MEMCHECK = """
import sys
sys.path[:0] = {path!r}
import numpy as np, lnrnn
from configurations import DTYPES, of_network, of_norm
from helpers import using_threads
from networks import VARIANTS
lnrnn._core.use_isa({isa!r})
with using_threads(1):
    count = 0
    for n in {sizes}:
        x = np.linspace(-2, 2, n, dtype=np.float32)
        runs = [[f(x) for f in (lnrnn.exp, lnrnn.tanh, lnrnn.sigmoid)]]
        runs += [of_norm((6, n), dtype, True, True) for dtype in DTYPES]
        for k, variant in enumerate([*VARIANTS][::{every}]):
            dtype = ("float32", "bfloat16", "int8")[(k + n) % 3]
            runs.append(of_network(variant, (7, n), 1 + (n + k) % 6, dtype, 1))
        for array in (a for run in runs for a in run):
            count += bool(np.isfinite(np.asarray(array, np.float64)).all())  # a branch on each result
    print(count, "arrays")
    print("CONTROL", file=sys.stderr, flush=True)
    lnrnn.layer_norm(np.empty((5, 37), np.float32), 37)
"""

# Tests in which threads divide hidden units, sequences, rows and gradients, several threads call, or
# processes fork.
OF_THREADS = (
    "tests/runtime/test_teams.py", "tests/runtime/test_concurrent_setters.py", "tests/rnn/test_equal_bits.py",
    "tests/rnn/test_lanes.py", "tests/rnn/test_partitions.py", "tests/rnn/test_side_by_side.py",
    "tests/capi/test_c_stream.py", "tests/conformance/test_conformance.py",
)  # fmt: skip
# Omit tests that the sanitizer's own thread would disturb, or that use threads in a forked child.
NOT_THREADS = "not fork and not workers_start and not allocates"
# The program of the control: two threads divide the hidden units of a step, and wait at the barrier.
CONTROL = """
import sys
sys.path.insert(0, "tests/support")
import engine_switches, lnrnn, numpy as np
engine_switches.set_barrier_mode("together")
lnrnn.set_num_threads(2)
rnn = lnrnn.RNN(8, 1024, seed=0)
rnn(np.random.default_rng(0).standard_normal((20, 1, 8)).astype(np.float32))
assert engine_switches.teams_had()[1] == 2
"""
RACE = "WARNING: ThreadSanitizer: data race"


def in_copy(folder: Path, libraries: list[str], arguments: list[str], **more: str) -> tuple[int, str]:
    """Runs Python in the copy, with the sanitizer's libraries loaded first. Returns status and output."""
    paths = [done(["gcc", f"-print-file-name={name}"]).strip() for name in libraries]
    environment = {**os.environ, "PYTHONPATH": str(folder), "LD_PRELOAD": " ".join(paths), **more}
    command = [sys.executable, *arguments]
    ran = subprocess.run(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    print(ran.stdout[-6000:], flush=True)
    return ran.returncode, ran.stdout


def tests_of(options: argparse.Namespace, default: list[str]) -> list[str]:
    named = any(not word.startswith("-") and "tests" in word for word in options.pytest)
    return ["-m", "pytest", "-q", "-p", "no:cacheprovider", *([] if named else default), *options.pytest]


def address(options: argparse.Namespace) -> dict[str, str]:
    needs("gcc")
    folder = options.folder
    copy_sources(folder)
    build(folder, CC="gcc", CFLAGS=f"{SANITIZERS} -fno-omit-frame-pointer", LDFLAGS=SANITIZERS)
    # Tests of damaged files request too much memory. malloc must return NULL, so that Python raises
    # MemoryError.
    settings = {
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    libraries = ["libasan.so", "libstdc++.so"]  # the latter because PyTorch throws C++ exceptions
    control = "import lnrnn, ctypes, numpy as np; ctypes.memset(np.ones(2, np.uint8).ctypes.data + 2, 1, 1)"
    status, output = in_copy(folder, libraries, ["-c", control], PYTHONMALLOC="malloc", **settings)
    if not status or "heap-buffer-overflow" not in output:
        raise Wrong("a byte written beyond an array is not reported")
    # With allocator_may_return_null, a wrong request for memory would look like a lack of memory.
    large = (
        "import sys; sys.path += 'tests/support', 'tests/capi'; import test_c_realtime as t; exec(t.LARGE)"
    )
    if in_copy(folder, libraries, ["-c", large], ASAN_OPTIONS="detect_leaks=0")[0]:
        raise Wrong("the sanitizer refuses a large block")
    left_out = [f"--ignore={name}" for name in NOT if (folder / name).exists()]
    left_out += [f"--deselect={name}" for name in NOT_TESTS]
    status, output = in_copy(folder, libraries, tests_of(options, [*FOLDERS, *left_out]), **settings)
    if status:
        raise Wrong(f"pytest ends with {status}")
    return {"tests": output.splitlines()[-1]}


def errors(isa: str, sizes: tuple[int, ...], every: int) -> tuple[list[str], list[str], str]:
    """Returns memcheck's errors in lnrnn's code, its errors in the control, and the number of arrays."""
    path = [str(ROOT / "tests/support"), str(ROOT)]
    program = MEMCHECK.format(path=path, isa=isa, sizes=sizes, every=every)
    variables = {**os.environ, "PYTHONMALLOC": "malloc", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        ["valgrind", "--num-callers=12", "--error-limit=no", sys.executable, "-c", program],
        env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode:
        raise Wrong(f"under valgrind: exit {ran.returncode}\n{ran.stderr[-3000:]}")

    def ours(log: str) -> list[str]:
        reports = re.split(r"^==\d+== \n", log, flags=re.MULTILINE)
        return [report for report in reports if re.search(r"\bat 0x\S+: .*(_core|liblnrnn)\.", report)]

    cases, _, control = ran.stderr.partition("CONTROL\n")
    return ours(cases), ours(control), ran.stdout.strip()


def valgrind(options: argparse.Namespace) -> dict[str, str]:
    needs("valgrind")
    figures = {}
    sizes, every = ((3,), 6) if options.quick else ((1, 3, 16, 31, 65), 1)
    for isa in options.isa or ["scalar"]:
        reports, control, figures[isa] = errors(isa, sizes, every)
        if reports:
            raise Wrong(f"{isa}: {len(reports)} errors\n" + "\n".join(reports[:20]))
        if not control:
            raise Wrong(f"{isa}: the control is not reported")
    return figures


def threads(options: argparse.Namespace) -> dict[str, str | int]:
    needs("gcc")
    flags = {"CC": "gcc", "CFLAGS": "-fsanitize=thread", "LDFLAGS": "-fsanitize=thread", "LNRNN_OPENMP": "0"}
    settings = {"TSAN_OPTIONS": "halt_on_error=0 exitcode=66", "OPENBLAS_NUM_THREADS": "1"}
    folder = options.folder
    copy_sources(folder)
    barrier = folder / "pyx/runtime/barrier.c"
    text = barrier.read_text()
    relaxed, count = re.subn(r"__ATOMIC_(ACQ_REL|ACQUIRE|RELEASE)", "__ATOMIC_RELAXED", text)
    if not count:
        raise Wrong("the barrier has no ordered operations: the control must be changed")
    barrier.write_text(relaxed)
    build(folder, **flags)
    _, output = in_copy(folder, ["libtsan.so"], ["-c", CONTROL], **settings)
    races = output.count(RACE)
    if not races:
        raise Wrong("a barrier with relaxed operations is not reported")
    barrier.write_text(text)
    build(folder, **flags)
    tests = tests_of(options, ["-k", NOT_THREADS, *OF_THREADS])
    status, output = in_copy(folder, ["libtsan.so"], tests, **settings)
    if status or RACE in output:
        raise Wrong(f"{output.count(RACE)} races, pytest ends with {status}")
    return {"races in the control": races, "tests": output.splitlines()[-1]}


def library(options: argparse.Namespace) -> dict[str, str]:
    needs("gcc", "valgrind", "pkg-config")
    folder, figures = options.folder, {}
    of_isa = [unit for unit in units(platform.machine(), []) if unit.source.startswith("pyx/isa/")]
    others = [unit for unit in units(platform.machine(), []) if unit not in of_isa]
    kernels = objects(["gcc"], of_isa, folder / "kernels", "-g")
    files = sorted(map(str, (ROOT / "tests/data").glob("*.safetensors")))

    def ran(name: str, flags: str, linked: list[str], text: str, *before: str) -> str:
        test, program = folder / f"{name}.c", str(folder / name)
        test.write_text(text)
        words = ["gcc", "-g", "-O1", *flags.split(), f"-I{ROOT / 'include'}", str(test), *linked]
        done([*words, "-lm", "-pthread", "-o", program])
        run = subprocess.run([*before, program, *files], capture_output=True, text=True)
        return (run.stdout + run.stderr).strip() + (f" exit {run.returncode}" if run.returncode else "")

    text = (ROOT / "tests/capi/library.c").read_text()
    checker = ["valgrind", "-q", "--leak-check=full", "--error-exitcode=9"]
    for name, flags, before in (
        ("address", SANITIZERS, []), ("threads", "-fsanitize=thread", []), ("valgrind", "", checker),
    ):  # fmt: skip
        linked = [*objects(["gcc"], others, folder / f"{name}-objects", "-g", *flags.split()), *kernels]
        figures[name] = ran(name, flags, linked, text, *before)
        if figures[name] != "passed":
            raise Wrong(f"{name}: {figures[name][-3000:]}")
        if name == "address":
            short = text.replace("malloc((n + 1) * sizeof *x)", "malloc(sizeof *x)")
            if not re.search("overflow|insufficient space", ran("control", flags, linked, short)):
                raise Wrong("floats beyond an array are not reported")
    into, program = folder / "a prefix", str(folder / "installed")
    copy_sources(folder / "source")
    done(["make", "install", f"PREFIX={into}"], cwd=folder / "source")
    (plugin,) = (into / "lib").glob("liblnrnn_ort.*")
    done([sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(plugin)!r}).CreateEpFactories"])
    environment = {**os.environ, "PKG_CONFIG_PATH": str(into / "lib/pkgconfig")}
    words = shlex.split(done(["pkg-config", "--cflags", "--libs", "lnrnn"], env=environment))
    test = str(ROOT / "tests/capi/library.c")
    done(["gcc", test, *words, "-pthread", f"-Wl,-rpath,{into / 'lib'}", "-o", program])
    return figures | {"installed": done([program]).strip()}


PARTS = {"address": address, "valgrind": valgrind, "threads": threads, "library": library}
