"""Runs the reader of files (pyx/file/) on mutated files of networks, by clang's libFuzzer and sanitizers of
addresses and of undefined behaviour.

fuzz: reads --executions inputs, which are mutated files of every kind of network. The reader must fail with a
message, or return a network with the bytes of all arrays. It must accept the files themselves. control:
removes one check of the reader in turn; the process must then crash.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from pathlib import Path

import lnrnn
from compilers import CFLAGS
from networks import WITH_INNER_BIASES, network, sparse
from outcome import Missing, Wrong, done, needs
from source_copy import ROOT

SOURCES = ("json", "description", "configuration", "model_file")
SANITIZERS = ["-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined", "-g1"]
# Text that libFuzzer inserts.
WORDS = r"""
null true false { } [ ] \" , : \\\" \\u0000 \\ud83d\\ude00 \xc3\xa9 \xf0\x9f\x98\x80 \xff -1 0 1 3 8 14 64
4294967296 9223372036854775807 9223372036854775808 1e308 1e-5 -0.0 0.5 1e999 RNN LSTM GRU layer batch split
joint gate out carry all raise last mean tanh relu sigmoid identity float32 bfloat16 int8 F32 F64 I64 BF16
dtype shape data_offsets __metadata__ format schema config lnrnn kind placement cell span inner_bias eps
max_steps overrun momentum zoneout dropout activation_bits nonlinearity input_size hidden_size num_layers
bias batch_first bidirectional num_heads reverse reset_after norm weight_ih_l0 weight_hh_l0 count_l0
running_var_l0 _reverse _l1 .blocks .mask BOOL 2
"""
# {name: (file, a check in it, the text that replaces the check)}.
FAULTS = {
    "a character that continues behind the header": ("json.c", "(*json->at & 0xC0) != 0x80", "0"),
    "a shape that is not compared": ("description.c", "&& !memcmp(at[k]->shape", "|| !memcmp(at[k]->shape"),
    "more ones than blocks": ("model_file.c", "others || count != t->array.shape[0]", "0"),
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
    models["blocks"] = sparse(network(8, 16, norm=None), 0.3)
    models["zoneout"] = network(2, 3, cell="LSTM", num_layers=2, dropout=0.25)
    models["zoneout"].zoneout = 0.1, 0.5
    for k, model in enumerate(models.values()):
        model.save(folder / f"{k}.safetensors")
    old = (ROOT / "tests/data").glob("*.safetensors")
    return [str(path) for path in (*sorted(folder.glob("*.safetensors")), *sorted(old))]


def built(folder: Path, fault: tuple[str, str, str] | None = None) -> Path:
    """Compiles the fuzzer with the reader. fault: an entry of FAULTS, to plant in the reader."""
    needs("clang")
    source = folder / "source"
    shutil.copytree(ROOT / "pyx/file", source / "file", dirs_exist_ok=True)
    if fault:
        path, right, wrong = source / "file" / fault[0], *fault[1:]
        text = path.read_text()
        if text.count(right) != 1:
            raise Wrong(f"the fault cannot be planted: {right!r} is in {fault[0]} {text.count(right)} times")
        path.write_text(text.replace(right, wrong))
    # config.c defines the table of cells. Its functions need the kernels, and the linker removes them.
    cells, program = str(folder / "cells.o"), folder / "fuzz_reader"
    clang = ["clang", *CFLAGS, f"-I{source}", f"-I{ROOT / 'include'}", f"-I{ROOT / 'pyx'}"]
    done([*clang, "-ffunction-sections", str(ROOT / "pyx/rnn/config.c"), "-c", "-o", cells])
    files = [Path(__file__).with_name("fuzz_reader.c"), *(source / f"file/{name}.c" for name in SOURCES)]
    linked = subprocess.run(
        [*clang, *SANITIZERS, *files, cells, "-Wl,--gc-sections", "-lm", "-o", program],
        text=True, capture_output=True,
    )  # fmt: skip
    if linked.returncode:
        missing = "libclang_rt" in linked.stderr
        raise (Missing("needs libclang-rt-dev") if missing else Wrong(linked.stderr[-3000:]))
    return program


def run(program: Path, executions: int, options: argparse.Namespace) -> subprocess.CompletedProcess[str]:
    """Runs the fuzzer on mutated files, or if executions is 0, on the files themselves."""
    folder, files = options.folder, seeds(options.folder / "seeds")
    if not executions:
        # Where allocations and frees seem to differ, a search for leaks would read a file again.
        return subprocess.run([program, "-detect_leaks=0", *files], text=True, capture_output=True)
    (folder / "at").write_text(f"the input: {folder}/failed-*")
    shutil.rmtree(folder / "corpus", ignore_errors=True)
    (folder / "corpus").mkdir()
    (folder / "words").write_text("\n".join(f'"{word}"' for word in WORDS.split()))
    flags = {"runs": executions, "seed": options.seed % 2**31 + 1, "dict": folder / "words", "timeout": 60,
             "artifact_prefix": f"{folder}/failed-", "print_final_stats": 1, "max_len": 8192}  # fmt: skip
    words = [f"-{name}={value}" for name, value in flags.items()]
    command = [program, *words, folder / "corpus", folder / "seeds", ROOT / "tests/data"]
    return subprocess.run(command, text=True, capture_output=True)


def fuzz(options: argparse.Namespace) -> dict[str, int]:
    program, figures = built(options.folder), dict[str, int]()
    for executions in (0, 5_000 if options.quick else options.executions):
        ran = run(program, executions, options)
        if ran.returncode:
            raise Wrong(f"exit {ran.returncode}: {ran.stderr[-3000:]}")
        accepted = int(re.search("accepted: (.*)", ran.stderr)[1])
        figures["accepted" if executions else "files at first"] = accepted
    if figures["files at first"] != (files := len(seeds(options.folder / "seeds"))):
        raise Wrong(f"of {files} files that save wrote, {figures['files at first']} are accepted")
    stats = dict(re.findall(r"stat::(\w+): +(\d+)", ran.stderr))
    return figures | {
        "executions": int(stats["number_of_executed_units"]),
        "inputs kept": int(stats["new_units_added"]),
    }


def control(options: argparse.Namespace) -> dict[str, int]:
    for name, fault in FAULTS.items():
        ran = run(built(options.folder, fault), 1_000_000, options)
        if ran.returncode == 0:
            raise Wrong(f"not noticed: {name}")
    return {"planted faults, all noticed": len(FAULTS)}


PARTS = {"control": control, "fuzz": fuzz}
