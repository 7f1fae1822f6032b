"""Memory that may not be touched or is not written, undefined behaviour, and races of threads, as compilers
and valgrind see them.

address: the suite on a build with gcc's address and undefined-behaviour sanitizers, without tests that limit
memory, preload a library or compile for another machine. Leaks are not looked for.
valgrind: every norm, function and kind of network in a few sizes under valgrind's memcheck; errors in lnrnn's
own code count. As a control, memory that nobody has written is normalised: that must be reported.
threads: tests of threads on a build with gcc's thread sanitizer and without OpenMP, whose library it does not
know. As a control, a barrier whose atomic operations order nothing: a race must be reported.
library: tests/capi/library.c, which tests liblnrnn without Python, with the address, undefined-behaviour,
leak and thread sanitizers and under valgrind. All C but the kernels is compiled for these. As a control,
floats beyond an array of the tests are written: that must be reported. Then `make install` to a path with a
space, and a program that pkg-config links.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compilers import Unit, units
from outcome import Wrong, done, needs
from source_copy import ROOT, build, copy_sources

GUARD = str(ROOT / "tests/campaigns/guard")
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"
FOLDERS = (
    "tests/norm", "tests/rnn", "tests/reference", "tests/importers", "tests/files", "tests/cli",
    "tests/demo", "tests/data", "tests/campaigns/fuzz", "tests/runtime", "tests/capi",
)  # fmt: skip
# Of those: what limits memory, of which the sanitizer reserves terabytes, counts it, or measures stacks.
NOT = (
    "tests/runtime/test_threads.py", "tests/runtime/test_result_memory.py",
    "tests/runtime/test_interrupts.py", "tests/capi/test_c_realtime.py",
)  # fmt: skip
# A process that breaks down on purpose: the sanitizer ends it with another status.
NOT_TESTS = ("tests/campaigns/fuzz/test_fuzz.py::test_what_a_fault_looks_like[crash]",)

MEMCHECK = """
import sys
sys.path[:0] = {path!r}
import numpy as np, lnrnn, run_guard
from helpers import using_threads
run_guard.QUICK = {sizes}
lnrnn._core.use_isa({isa!r})
with using_threads(1):
    count = 0
    for function, arguments in list(run_guard.cases(quick=True))[::{every}]:
        for array in function(*arguments):
            count += bool(np.isfinite(np.asarray(array, np.float64)).all())  # a branch on each result
    print(count, "arrays")
    print("CONTROL", file=sys.stderr, flush=True)
    lnrnn.layer_norm(np.empty((5, 37), np.float32), 37)
"""

# Where threads divide units, sequences, rows and gradients, and where callers and forks meet.
OF_THREADS = (
    "tests/runtime/test_teams.py", "tests/runtime/test_concurrent_setters.py", "tests/rnn/test_equal_bits.py",
    "tests/rnn/test_lanes.py", "tests/rnn/test_partitions.py", "tests/rnn/test_short_calls.py",
    "tests/rnn/test_side_by_side.py", "tests/capi/test_c_stream.py",
)  # fmt: skip
# The sanitizer does not support threads that a child of a fork starts, and has a thread of its own.
NOT_THREADS = "not fork and not workers_start and not allocates"
# Units of a step divided among two threads, which meet at the barrier.
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
    """Python in the copy, with the sanitizer's libraries, which have to be the first of the process. -> the
    status, and what it prints."""
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
    # Hostile files ask for more memory than there is: that is a MemoryError, and no error of the test.
    settings = {
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    libraries = ["libasan.so", "libstdc++.so"]  # PyTorch throws exceptions of C++
    control = "import lnrnn, ctypes, numpy as np; ctypes.memset(np.ones(2, np.uint8).ctypes.data + 2, 1, 1)"
    status, said = in_copy(folder, libraries, ["-c", control], PYTHONMALLOC="malloc", **settings)
    if not status or "heap-buffer-overflow" not in said:
        raise Wrong("a byte written beyond an array is not reported")
    left_out = [f"--ignore={name}" for name in NOT if (folder / name).exists()]
    left_out += [f"--deselect={name}" for name in NOT_TESTS]
    status, said = in_copy(folder, libraries, tests_of(options, [*FOLDERS, *left_out]), **settings)
    if status:
        raise Wrong(f"pytest ends with {status}")
    return {"tests": said.splitlines()[-1]}


def errors(isa: str, sizes: tuple[int, ...], every: int) -> tuple[list[str], list[str], str]:
    """Memcheck's errors in lnrnn's code, those in the control, and the number of arrays."""
    path = [GUARD, str(ROOT / "tests/support"), str(ROOT)]
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
        found, control, figures[isa] = errors(isa, sizes, every)
        if found:
            raise Wrong(f"{isa}: {len(found)} errors\n" + "\n".join(found[:20]))
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
        raise Wrong("the barrier has no ordered operations: the control has to be written anew")
    barrier.write_text(relaxed)
    build(folder, **flags)
    _, said = in_copy(folder, ["libtsan.so"], ["-c", CONTROL], **settings)
    seen = said.count(RACE)
    if not seen:
        raise Wrong("a barrier that orders nothing is not reported: the sanitizer sees nothing here")
    barrier.write_text(text)
    build(folder, **flags)
    tests = tests_of(options, ["-k", NOT_THREADS, *OF_THREADS])
    status, said = in_copy(folder, ["libtsan.so"], tests, **settings)
    if status or RACE in said:
        raise Wrong(f"{said.count(RACE)} races, pytest ends with {status}")
    return {"races in the control": seen, "tests": said.splitlines()[-1]}


def compiled(folder: Path, chosen: list[Unit], flags: str) -> list[str]:
    """The objects of these units, with more flags."""

    def one(unit: Unit) -> str:
        target = str(folder / f"{unit.name}.o")
        words = [*unit.flags, "-g", *flags.split(), *(f"-I{ROOT / name}" for name in unit.include)]
        done(["gcc", *words, "-c", str(ROOT / unit.source), "-o", target])
        return target

    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return list(pool.map(one, chosen))


def library(options: argparse.Namespace) -> dict[str, str]:
    needs("gcc", "valgrind", "pkg-config")
    folder, figures = options.folder, {}
    of_isa = [unit for unit in units(platform.machine(), []) if unit.source.startswith("pyx/isa/")]
    others = [unit for unit in units(platform.machine(), []) if unit not in of_isa]
    kernels = compiled(folder / "kernels", of_isa, "")
    files = sorted(map(str, (ROOT / "tests/data").glob("*.safetensors")))

    def ran(name: str, flags: str, objects: list[str], text: str, *before: str) -> str:
        test, program = folder / f"{name}.c", str(folder / name)
        test.write_text(text)
        words = ["gcc", "-g", "-O1", *flags.split(), f"-I{ROOT / 'include'}", str(test), *objects]
        done([*words, "-lm", "-pthread", "-o", program])
        said = subprocess.run([*before, program, *files], capture_output=True, text=True)
        return (said.stdout + said.stderr).strip() + (f" exit {said.returncode}" if said.returncode else "")

    text = (ROOT / "tests/capi/library.c").read_text()
    checker = ["valgrind", "-q", "--leak-check=full", "--error-exitcode=9"]
    for name, flags, before in (
        ("address", SANITIZERS, []), ("threads", "-fsanitize=thread", []), ("valgrind", "", checker),
    ):  # fmt: skip
        objects = [*compiled(folder / f"{name}-objects", others, flags), *kernels]
        figures[name] = ran(name, flags, objects, text, *before)
        if figures[name] != "passed":
            raise Wrong(f"{name}: {figures[name][-3000:]}")
        if name == "address":
            short = text.replace("malloc((n + 1) * sizeof *x)", "malloc(sizeof *x)")
            if not re.search("overflow|insufficient space", ran("control", flags, objects, short)):
                raise Wrong("floats beyond an array are not reported")
    into, program = folder / "a prefix", str(folder / "installed")
    copy_sources(folder / "source")
    done(["make", "install", f"PREFIX={into}"], cwd=folder / "source")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(into / "lib/pkgconfig")}
    words = shlex.split(done(["pkg-config", "--cflags", "--libs", "lnrnn"], env=environment))
    test = str(ROOT / "tests/capi/library.c")
    done(["gcc", test, *words, "-pthread", f"-Wl,-rpath,{into / 'lib'}", "-o", program])
    return figures | {"installed": done([program]).strip()}


PARTS = {"address": address, "valgrind": valgrind, "threads": threads, "library": library}
