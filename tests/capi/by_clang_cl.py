"""Compiles liblnrnn by clang-cl, links it as a DLL, and runs the example in C with it, on Windows.

python tests/capi/by_clang_cl.py FOLDER
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "pyx"))
from build_flags import Unit, units  # noqa: E402

COMPILER = ["clang-cl", "/nologo", "/D_CRT_SECURE_NO_WARNINGS"]
MODEL = ROOT / "tests/data/rnn_batch_schema1.safetensors"


def compiled(unit: Unit, folder: Path) -> str:
    target = folder / f"{unit.name}.obj"
    words = [f"/clang:{flag}" for flag in unit.flags] + [f"/I{ROOT / path}" for path in unit.include]
    subprocess.run([*COMPILER, "/c", *words, f"/Fo{target}", "--", str(ROOT / unit.source)], check=True)
    return str(target)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        objects = list(pool.map(lambda unit: compiled(unit, folder), units(platform.machine().lower(), [])))
    library, program = folder / "liblnrnn.4.dll", folder / "c_program.exe"
    subprocess.run(["lld-link", "/nologo", "/dll", f"/out:{library}", *objects], check=True)
    source, linked = str(ROOT / "examples/c_program/c_program.c"), str(library.with_suffix(".lib"))
    subprocess.run([*COMPILER, f"/I{ROOT / 'include'}", source, linked, f"/Fe{program}"], check=True)
    data = MODEL.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    width = json.loads(header["__metadata__"]["config"])["input_size"]
    given = "\n".join([" ".join(["0.5"] * width)] * 3 + [""])
    said = subprocess.run([program, MODEL], input=given, text=True, stdout=subprocess.PIPE, check=True).stdout
    assert len(said.splitlines()) == 3, said
    print(said)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
