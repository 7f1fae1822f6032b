"""Checks a wheel. As a program, tests the installed wheel."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "support")]  # needed if this file runs as a program

from emulated import Emulated, Wine  # noqa: E402

import lnrnn  # noqa: E402
import pages  # noqa: E402
from outcome import Wrong, done  # noqa: E402
from pythons_here import environment  # noqa: E402
from source_copy import ROOT, copy_sources  # noqa: E402

LARGEST, LARGEST_WINDOWS = 1_620_000, 1_800_000  # bytes; Windows needs tables for unwinding
# Tests that need only the wheel. OF_MACHINE: tests of compiled kernels, which are the same for all Pythons.
OF_MACHINE = (
    "tests/norm/test_layer_norm.py", "tests/norm/test_norm_input.py", "tests/rnn/test_forward.py",
    "tests/rnn/test_equal_bits.py", "tests/runtime/test_teams.py",
)  # fmt: skip
# Tests of the Python module: arguments and their errors, streams, files.
OF_MODULE = ("tests/arguments/test_refusals.py", "tests/rnn/test_lanes.py", "tests/files/test_io.py")
OF_WINDOWS = ("tests/package/test_windows.py", "tests/sessions/test_pool.py")
# The few tests that run in an emulator, which is about twenty times slower.
IN_EMULATOR = ("tests/norm/test_layer_norm.py", "tests/arguments/test_refusals.py", "tests/files/test_io.py")
FOR_TESTS = ("pytest>=9", "hypothesis>=6.100", "safetensors>=0.4", "ml_dtypes>=0.4")
FOR_SCORE = ("pyarrow", "tqdm", "fsspec")


def contents(wheel: Path) -> str:
    """Checks the size, licences and bill of materials, and runs check-wheel-contents. Returns the size."""
    check_metadata(wheel)
    size, most = wheel.stat().st_size, LARGEST_WINDOWS if "-win_" in wheel.name else LARGEST
    if size > most:
        raise Wrong(f"{wheel.name} has {size} bytes, more than {most}")
    tool = Path(sys.executable).with_name("check-wheel-contents")
    done([str(tool), str(wheel)])
    return f"{size / 1e6:.3f} MB"


def check_metadata(wheel: Path) -> None:
    """Checks licences (PEP 639), and that the bill of materials (PEP 770) has the wheel's own libraries."""
    with ZipFile(wheel) as opened:
        texts = {name: opened.read(name) for name in opened.namelist()}
    (info,) = {name.partition("/")[0] for name in texts if ".dist-info/" in name}
    said = message_from_bytes(texts[f"{info}/METADATA"])
    files = said.get_all("License-File", [])
    if said["License-Expression"] != "BSD-3-Clause" or sorted(files) != ["LICENSE", "lnrnn/data/README.md"]:
        raise Wrong(f"{wheel.name} has the licence {said['License-Expression']}, with the texts {files}")
    for file in files:
        if texts.get(f"{info}/licenses/{file}") != (ROOT / file).read_bytes():
            raise Wrong(f"{wheel.name} lacks the text of {file}")
    bill = json.loads(texts[f"{info}/sboms/lnrnn.cdx.json"])
    listed = {part["name"]: part["hashes"][0]["content"] for part in bill["components"] if "hashes" in part}
    compiled = {
        name: text for name, text in texts.items() if re.search(r"\.(so|dylib|dll|pyd|npz)(\.|$)", name)
    }
    if listed != {name: hashlib.sha256(text).hexdigest() for name, text in compiled.items()}:
        raise Wrong(f"{wheel.name}: the bill of materials lists {sorted(listed)}, or other bytes of them")
    ours = bill["metadata"]["component"]
    if (ours["name"], ours["version"]) != (said["Name"], said["Version"]):
        raise Wrong(f"{wheel.name}: the bill of materials is of {ours['name']} {ours['version']}")


def program() -> str:
    blocks = (block for block in pages.blocks(ROOT / "README.md") if block.language == "python")
    return next(block.text for block in blocks if "import numpy" in block.text)


def installed(wheel: Path, python: str, folder: Path, whole: bool) -> str:
    """Installs the wheel in a new environment. pip may only add NumPy, and the README's program and OF_MODULE
    must pass. whole: OF_MACHINE runs too. Returns a summary."""
    shutil.rmtree(folder, ignore_errors=True)
    done([python, "-m", "venv", str(folder)])
    own, free = str(folder / "bin/python"), environment(folder)
    pip = [own, "-m", "pip", "--disable-pip-version-check"]
    begun = time.monotonic()
    done([*pip, "install", "--quiet", str(wheel)], env=free)
    (folder / "program.py").write_text(program())
    done([own, "program.py"], cwd=folder, env=free)
    took = time.monotonic() - begun
    names = {line.split("==")[0] for line in done([*pip, "list", "--format=freeze"], env=free).split()}
    if names - {"pip", "setuptools"} != {"lnrnn", "numpy"}:
        raise Wrong(f"pip has installed {sorted(names)}")
    info = done([str(folder / "bin/lnrnn"), "info"], cwd=folder, env=free)
    if "openmp: no\nteam: pthread" not in info:
        raise Wrong(f"a wheel must have lnrnn's own threads:\n{info}")
    done([*pip, "install", "--quiet", *FOR_TESTS], env=free)
    copy_tests(folder / "sources")
    command = [own, "-m", "pytest", "-p", "no:cacheprovider", *(OF_MACHINE if whole else ()), *OF_MODULE]
    output = done(command, cwd=folder / "sources", env=environment(folder / "sources/tests"))
    more = import_time(own, folder, free)
    return f"installed, first program after {took:.1f} s; import {more}; {output.splitlines()[-1]}"


def copy_tests(folder: Path) -> None:
    """Copies the sources without the package, so that tests import the installed package."""
    copy_sources(folder)
    shutil.rmtree(folder / "lnrnn")


def import_time(python: str, folder: Path, free: dict[str, str]) -> str:
    """Returns the shortest of ten starts that import lnrnn, minus the shortest of ten that import NumPy."""

    def least(statement: str) -> float:
        took = []
        for _ in range(10):
            begun = time.perf_counter()
            subprocess.run([python, "-c", statement], cwd=folder, env=free, check=True)
            took.append(time.perf_counter() - begun)
        return min(took)

    return f"{1000 * (least('import lnrnn') - least('import numpy')):.0f} ms over NumPy's"


def in_emulator(wheel: Path, python: str, folder: Path) -> str:
    """Runs the README's program and IN_EMULATOR. Returns a summary."""
    machine = Emulated(folder)
    machine.install(python, str(wheel), *FOR_TESTS)
    info = machine.run(["-m", "lnrnn", "info"], folder)
    if "isa: neon" not in info or "team: pthread" not in info:
        raise Wrong(f"a wheel for aarch64 must have NEON and lnrnn's own threads:\n{info}")
    machine.run(["-c", program()], folder)
    copy_tests(folder / "sources")
    output = machine.run(["-m", "pytest", "-p", "no:cacheprovider", *IN_EMULATOR], folder / "sources")
    return f"in qemu: {output.splitlines()[-1]}"


# Writes the outputs of a session with the plug-in, as text.
PLUGIN = """
import sys, numpy as np, lnrnn.onnxruntime
given = {name: np.full(shape, 0.5, np.float32) for name, shape in
         {"x": (1, 4), "h0": (1, 1, 8), "c0": (1, 1, 8)}.items()}
outputs = lnrnn.onnxruntime.session(sys.argv[1]).run(None, given)
print(b"".join(y.tobytes() for y in outputs).hex())
"""


def same_scores(machine: Wine, folder: Path) -> None:
    """Raises Wrong unless `lnrnn score` in wine writes the results of this machine."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file, rows = folder / "rows.parquet", [[[0.5, -1.0, k] for _ in range(k)] for k in range(1, 40)]
    lnrnn.LSTM(3, 8, seed=0).save(folder / "model.safetensors")
    pq.write_table(pa.table({"x": pa.array(rows, pa.list_(pa.list_(pa.float32())))}), file)
    words = ["-m", "lnrnn", "score", "--overwrite", "--column", "x", "model.safetensors", file.name]
    machine.run([*words, "there.parquet"], folder)
    done([sys.executable, *words, "here.parquet"], cwd=folder)
    if not pq.read_table(folder / "there.parquet").equals(pq.read_table(folder / "here.parquet")):
        raise Wrong("lnrnn score has other results in wine")


def in_wine(wheel: Path, python: str, folder: Path, windows: Path, version: str) -> str:
    """Runs the README's program, the demo, OF_MACHINE, OF_MODULE and OF_WINDOWS. The plug-in in ONNX Runtime
    for Windows, the example of ctypes and `lnrnn score` must have the outputs of this machine. Returns a
    summary."""
    machine = Wine(folder, windows, version)
    machine.install(python, str(wheel), *FOR_TESTS, "onnxruntime>=1.25", *FOR_SCORE)
    info = machine.run(["-m", "lnrnn", "info"], folder)
    if "team: windows" not in info or f"isa: {lnrnn.cpu_info()['isa']}" not in info:
        raise Wrong(f"a wheel for Windows must have all of this CPU, and lnrnn's own threads:\n{info}")
    machine.run(["-c", program()], folder)
    model, example = folder / "step.onnx", str(ROOT / "examples/ctypes_program/ctypes_program.py")
    lnrnn.to_onnx(lnrnn.LSTM(4, 8, norm=None, seed=0), model, step=True)
    file = str(ROOT / "tests/data/rnn_batch_schema1.safetensors")
    there, here = str(machine.packages / "lnrnn/liblnrnn.4.dll"), lnrnn.get_library()
    for one, other in (
        (["-c", PLUGIN, str(model)],) * 2,
        ([example, there, file], [example, here, file]),
    ):
        lines = machine.run(one, folder).splitlines(), done([sys.executable, *other]).splitlines()
        if lines[1][-1] not in lines[0]:  # in wine, there are warnings too
            raise Wrong(f"{one[0]} {one[-1]} has these outputs, and others here: {lines}")
    same_scores(machine, folder)
    machine.run(["-m", "lnrnn", "demo"], folder)
    copy_tests(folder / "sources")
    command = ["-m", "pytest", "-p", "no:cacheprovider", *OF_MACHINE, *OF_MODULE, *OF_WINDOWS]
    output = machine.run(command, folder / "sources")
    return f"in wine, with ONNX Runtime's plug-in, score and demo: {output.splitlines()[-1]}"


if __name__ == "__main__":
    sys.exit(subprocess.run([sys.executable, "-m", "pytest", *OF_MACHINE, *OF_MODULE]).returncode)
