"""Builds a package for JavaScript in build/web: lnrnn.wasm, and the files of examples/web that call it.

python3 pyx/wasm.py
    Compiles all C of lnrnn with the package ziglang, without training and without threads. lnrnn.wasm exports
    the functions that lnrnn.js calls.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from build_flags import Unit, units
from objects import Objects

ROOT = Path(__file__).parents[1]
SOURCES, PACKAGE = ROOT / "examples/web", ROOT / "build/web"
COMPILER = [sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-wasi"]
# Loops are not unrolled or vectorised automatically, as in wheels.
SMALL = ["-fno-vectorize", "-fno-slp-vectorize", "-fno-unroll-loops"]
# The stack comes before all data, so an overflow ends the call. description.c relies on the memory limit.
LINK = ["-mexec-model=reactor", "-Wl,--strip-all,-z,stack-size=262144,--max-memory=2147483648"]


def sized(unit: Unit) -> Unit:
    """Returns a Unit compiled for size, unless it is a matrix product, where most of the time is spent."""
    product = unit.name in ("wasm128_product", "wasm128_int8")
    return unit if product else unit._replace(flags=[*unit.flags, "-Os"])


def main() -> None:
    os.chdir(ROOT)
    version = subprocess.run([*COMPILER, "--version"], capture_output=True, text=True, check=True).stdout
    objects = Objects([*COMPILER, *SMALL], version, Path("build/objects/wasm32"))
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        compiled = list(pool.map(lambda unit: objects.compile(*sized(unit)), units("wasm32", [])))
    called = re.findall(r"\bc\.(\w+)\(", (SOURCES / "lnrnn.js").read_text())
    exported = [f"-Wl,--export={name}" for name in sorted(set(called))]
    PACKAGE.mkdir(parents=True, exist_ok=True)
    target = PACKAGE / "lnrnn.wasm"
    subprocess.run([*COMPILER, *LINK, *exported, *compiled, "-o", str(target)], check=True)
    for name in ("lnrnn.js", "lnrnn.d.ts", "package.json"):
        shutil.copy2(SOURCES / name, PACKAGE)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
