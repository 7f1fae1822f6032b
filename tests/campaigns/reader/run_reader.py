"""Runs the fuzzers of tests/fuzz, which .clusterfuzzlite/ offers to fuzzing services.

model-file: libFuzzer reads mutated files of networks by pyx/file/, with sanitizers of addresses and of
undefined behaviour. It must accept the files themselves. onnx-file: Atheris reads mutated ONNX files by
from_onnx. frames: Atheris calls a pool of sessions with wrong frames and stored bytes. control: removes one
check of the product in turn; its fuzzer must then report a failure.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

from compilers import CFLAGS
from outcome import Missing, Wrong, needs
from source_copy import ROOT

sys.path.insert(0, str(ROOT / "tests/fuzz"))
import seeds  # noqa: E402

C, ONNX, FRAMES = seeds.WRITERS
SANITIZERS = ["-fsanitize=fuzzer-no-link,address,undefined", "-fno-sanitize-recover=undefined", "-g1"]
COPIED = (".clusterfuzzlite", "include", "pyx", "lnrnn", "tests/fuzz", "tests/support")
# {name: (fuzzer, file, a check in it, the text that replaces the check)}.
FAULTS = {
    "a character that continues behind the header": (C, "pyx/file/json.c", "(*json->at & 0xC0) != 0x80", "0"),
    "a shape that is not compared": (
        C, "pyx/file/description.c", "&& !memcmp(at[k]->shape", "|| !memcmp(at[k]->shape"
    ),
    "more ones than blocks": (C, "pyx/file/model_file.c", "others || count != t->array.shape[0]", "0"),
    "a list that is too long": (C, "pyx/file/model_file.c", "n > (k == 1 ? LNRNN_ARRAY_DIMS : 2) || ", ""),
    "an error of NumPy": (
        ONNX, "lnrnn/onnx/reading.py", "Exception as error:  # asserts", "KeyError as error:  # asserts"
    ),
    "a frame with NaN": (FRAMES, "lnrnn/sessions/frames.py", "np.flatnonzero(~np.isfinite(x).all(1))", "[]"),
}  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--executions", type=int, default=10_000_000, help="inputs of the part model-file")


def command_of(name: str, folder: Path, fault: tuple[str, ...] = ()) -> list[str | Path]:
    """Returns the command of a fuzzer, from a copy of the sources. fault: the end of a row of FAULTS."""
    source = folder / "lnrnn"
    for part in COPIED:
        shutil.copytree(ROOT / part, source / part, dirs_exist_ok=True)
    if fault:
        path, right, wrong = source / fault[0], *fault[1:]
        if (text := path.read_text()).count(right) != 1:
            raise Wrong(f"the fault cannot be planted: {right!r} is in {path} {text.count(right)} times")
        path.write_text(text.replace(right, wrong))
    if name != C:
        if not importlib.util.find_spec("atheris"):
            raise Missing("needs the package atheris")
        return [sys.executable, source / f"tests/fuzz/{name}.py"]
    needs("clang")
    service = {"SRC": folder, "OUT": folder, "CC": "clang", "CFLAGS": " ".join([*CFLAGS, *SANITIZERS]),
               "LIB_FUZZING_ENGINE": "-fsanitize=fuzzer"}  # fmt: skip
    free = os.environ | {key: str(value) for key, value in service.items()}
    ran = subprocess.run(
        ["bash", source / ".clusterfuzzlite/build.sh"], env=free, text=True, capture_output=True
    )
    if ran.returncode:
        missing = "libclang_rt" in ran.stderr
        raise (Missing("needs libclang-rt-dev") if missing else Wrong(ran.stderr[-3000:]))
    return [folder / name]


def run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    free = os.environ | {"PYTHONPATH": str(folder / "lnrnn")}
    return subprocess.run(command, text=True, capture_output=True, env=free)


def fuzzed(name: str, command: list[str | Path], options: argparse.Namespace, *limits: str):
    """Runs a fuzzer on mutations of its seeds, until it reports a failure or reaches a limit."""
    folder = options.folder
    first, kept = folder / "seeds", folder / "corpus" / name
    seeds.write(first, name)
    (folder / "at").write_text(f"the input: {folder}/failed-*")
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    flags = {"seed": options.seed % 2**31 + 1, "timeout": 60, "artifact_prefix": f"{folder}/failed-",
             "print_final_stats": 1, "max_len": 8192}  # fmt: skip
    if (words := folder / f"lnrnn/tests/fuzz/{name}.dict").exists():
        flags["dict"] = words
    words = [f"-{key}={value}" for key, value in flags.items()]
    return run([*command, *words, *limits, kept, first / name], folder)


def printed(ran: subprocess.CompletedProcess[str]) -> str:
    """Returns the output of a fuzzer. Raises Wrong if it reported a failure."""
    if ran.returncode:
        raise Wrong(f"exit {ran.returncode}: {ran.stderr[-3000:]}")
    return ran.stderr


def statistics(ran: subprocess.CompletedProcess[str]) -> dict[str, int]:
    stats = dict(re.findall(r"stat::(\w+): +(\d+)", printed(ran)))
    names = {"executions": "number_of_executed_units", "inputs kept": "new_units_added"}
    return {name: int(stats[of]) for name, of in names.items()}


def accepted(ran: subprocess.CompletedProcess[str]) -> int:
    return int(re.search("accepted: (.*)", printed(ran))[1])


def model_file(options: argparse.Namespace) -> dict[str, int]:
    command = command_of(C, options.folder)
    files = seeds.write(options.folder / "seeds", C)
    # Where allocations and frees seem to differ, a search for leaks would read a file again.
    ran = run([*command, "-detect_leaks=0", *files], options.folder)
    if (count := accepted(ran)) != len(files):
        raise Wrong(f"of {len(files)} files that save wrote, {count} are accepted")
    ran = fuzzed(C, command, options, f"-runs={5_000 if options.quick else options.executions}")
    return {"files": count, **statistics(ran), "accepted": accepted(ran)}


def python(name: str, options: argparse.Namespace) -> dict[str, int]:
    """Runs a fuzzer under Atheris, without a search for leaks, because Python never frees some objects."""
    limit = "-runs=300" if options.quick else f"-max_total_time={options.seconds:.0f}"
    return statistics(fuzzed(name, command_of(name, options.folder), options, limit, "-detect_leaks=0"))


def control(options: argparse.Namespace) -> dict[str, int]:
    for what, (name, *fault) in FAULTS.items():
        command = command_of(name, options.folder, fault)
        if fuzzed(name, command, options, f"-runs={1_000_000 if name == C else 30_000}").returncode == 0:
            raise Wrong(f"not noticed: {what}")
    return {"planted faults, all noticed": len(FAULTS)}


PARTS = {
    "control": control, "model-file": model_file,
    "onnx-file": partial(python, ONNX), "frames": partial(python, FRAMES),
}  # fmt: skip
