"""Runs the reader of files (pyx/file/) on mutated files of networks, under gcc's address and
undefined-behaviour sanitizers.

fuzz: reads --executions inputs. They are mutated files of every kind of network. Inputs that run new branches
are mutated further. The reader must fail with a message, or return a network with the bytes of all arrays.
control: removes one check of the reader in turn; the process must then crash.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path

import lnrnn
from compilers import CFLAGS
from networks import WITH_INNER_BIASES, network
from outcome import Missing, Wrong, done, needs
from source_copy import ROOT

SOURCES = ("json", "description", "model_file")
SANITIZERS = [
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-g1",
]
# {name: (file, a check in it, the text that replaces the check)}.
FAULTS = {
    "a character that continues behind the header": ("json.c", "(*json->at & 0xC0) != 0x80", "0"),
    "a shape that is not compared": ("description.c", "&& !memcmp(at[k]->shape", "|| !memcmp(at[k]->shape"),
    "a list that is too long": ("model_file.c", "n > (k == 1 ? LNRNN_ARRAY_DIMS : 2) || ", ""),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--executions", type=int, default=10_000_000, help="inputs of the part fuzz")


def seeds(folder: Path) -> list[str]:
    """Writes files of every kind of network. Returns their paths."""
    folder.mkdir(exist_ok=True)
    models = {name: network(2, 3, trained=2, **options) for name, options in WITH_INNER_BIASES.items()}
    for overrun in ("last", "mean", "batch"):
        norm = lnrnn.BatchNormSpec(max_steps=3, overrun=overrun, momentum=None, eps=0.25)
        models[overrun] = network(2, 3, cell="LSTM", trained=2, norm=norm)
    models["layers"] = network(
        2, 3, cell="GRU", num_layers=2, bidirectional=True, batch_first=True, bias=False
    )
    models["layers, batch"] = network(2, 3, trained=2, num_layers=2, norm="batch", nonlinearity="relu")
    models["bfloat16"] = network(2, 3).to_dtype("bfloat16")
    models["int8"], models["8 bits"] = (network(2, 3).to_dtype("int8", bits) for bits in (None, 8))
    models["zoneout"] = network(2, 3, cell="LSTM", num_layers=2, dropout=0.25)
    models["zoneout"].zoneout = 0.1, 0.5
    for k, model in enumerate(models.values()):
        model.save(folder / f"{k}.safetensors")
    old = (ROOT / "tests/data").glob("*.safetensors")
    return [str(path) for path in (*sorted(folder.glob("*.safetensors")), *sorted(old))]


def built(folder: Path, fault: tuple[str, str, str] | None = None) -> Path:
    """Compiles the fuzzer with the reader. fault: an entry of FAULTS, to plant in the reader."""
    needs("gcc")
    source = folder / "source"
    shutil.copytree(ROOT / "pyx/file", source / "file", dirs_exist_ok=True)
    if fault:
        path, right, wrong = source / "file" / fault[0], *fault[1:]
        text = path.read_text()
        if text.count(right) != 1:
            raise Wrong(f"the fault cannot be planted: {right!r} is in {fault[0]} {text.count(right)} times")
        path.write_text(text.replace(right, wrong))
    include = [f"-I{source}", f"-I{ROOT / 'include'}", f"-I{ROOT / 'pyx'}"]
    flags = [*CFLAGS, *SANITIZERS, *include]
    objects = []
    for name in SOURCES:
        objects.append(str(folder / f"{name}.o"))
        unit = str(source / "file" / f"{name}.c")
        done(["gcc", *flags, "-fsanitize-coverage=trace-pc", "-c", unit, "-o", objects[-1]])
    # It defines the table of cells. Its functions need the kernels, and the linker removes them.
    cells = [str(ROOT / "pyx/rnn/config.c"), "-c", "-o", objects[0].replace("json.o", "cells.o")]
    done(["gcc", *CFLAGS, *include, "-ffunction-sections", *cells])
    program = folder / "fuzz_reader"
    link = [
        "gcc",
        *flags,
        str(Path(__file__).with_name("fuzz_reader.c")),
        *objects,
        cells[-1],
        "-Wl,--gc-sections",
        "-lm",
        "-o",
        str(program),
    ]
    linked = subprocess.run(link, text=True, capture_output=True)
    if linked.returncode:
        missing = "cannot find" in linked.stderr
        raise (Missing("needs gcc's sanitizers") if missing else Wrong(linked.stderr[-3000:]))
    return program


def run(program: Path, executions: int, options: argparse.Namespace) -> subprocess.CompletedProcess[str]:
    failed = options.folder / "failed.safetensors"
    (options.folder / "at").write_text(f"the input: {failed}")
    command = [program, str(executions), str(options.seed), failed, *seeds(options.folder / "seeds")]
    return subprocess.run(command, text=True, capture_output=True)


def fuzz(options: argparse.Namespace) -> dict:
    executions = 20_000 if options.quick else options.executions
    ran = run(built(options.folder), executions, options)
    if ran.returncode:
        raise Wrong(f"exit {ran.returncode}: {ran.stderr[-3000:]}")
    return json.loads(ran.stdout)


def control(options: argparse.Namespace) -> dict:
    for name, fault in FAULTS.items():
        ran = run(built(options.folder, fault), 1_000_000, options)
        if ran.returncode == 0:
            raise Wrong(f"not noticed: {name}")
    return {"planted faults, all noticed": len(FAULTS)}


PARTS = {"control": control, "fuzz": fuzz}
