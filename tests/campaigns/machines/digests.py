"""Runs digest.c, and compares its results."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import NamedTuple

import numpy as np

from compilers import linked
from outcome import Wrong, done

MAIN = Path(__file__).with_name("digest.c")
READ_AS = {"float32": "<f4", "float64": "<f8", "bfloat16": "<u2", "float16": "<f2"}
# The largest permitted difference between two instruction sets, relative to an array's largest value. Results
# of 16 bits may differ by one ULP. float32 adds the roundings of several steps, 1.2e-5 when measured. With
# int8 an activation may be rounded to another integer: 1.5e-4 when measured.
ONE_ULP = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
OF_FLOAT32, OF_FLOAT64, OF_INT8 = 5e-5, 1e-13, 1e-3


class Results(NamedTuple):
    lines: list[str]  # the output without the line of teams
    teams: tuple[int, int]  # (tasks, units)
    arrays: list[np.ndarray]  # the array of each line, as float64


def native_program(folder: Path, compiler: str = "gcc") -> Path:
    """Compiles the program for this machine, in a folder that several parts share. Returns its path."""
    return linked(f"native-{compiler}", [compiler], platform.machine(), MAIN, folder=folder.parent / "native")


def results(command: list[str], isa: str, threads: int, folder: Path) -> Results:
    """Returns the results of digest.c on an instruction set. All values must be finite."""
    path = folder / "values"
    *lines, last = done([*command, isa, str(threads), str(path)]).splitlines()
    values, start, arrays = path.read_bytes(), 0, []
    for line in lines:
        _, kind, count, _ = line.split()
        read = np.frombuffer(values, READ_AS[kind], int(count), start)
        start += read.nbytes
        array = (read.astype("<u4") << 16).view("<f4") if kind == "bfloat16" else read
        if not np.isfinite(array).all():
            raise Wrong(f"{isa}, {threads} threads: {line} is not finite")
        arrays.append(array.astype(np.float64))
    if start != len(values):
        raise Wrong(f"{isa}: the file has {len(values)} bytes, and the lines name {start}")
    _, tasks, units = last.split()
    return Results(lines, (int(tasks), int(units)), arrays)


def same(a: Results, b: Results, between: str) -> None:
    different = [one for one, other in zip(a.lines, b.lines, strict=True) if one != other]
    if different:
        raise Wrong(f"{between}: {len(different)} of {len(a.lines)} arrays differ, first {different[0]}")


def allowed(line: str) -> float:
    name, kind, _, _ = line.split()
    parts = name.split(".")
    if kind in ONE_ULP:
        return ONE_ULP[kind]
    if parts[:2] == ["norm", "float64"]:
        return OF_FLOAT64
    return OF_INT8 if "int8" in parts else OF_FLOAT32


def agree(a: Results, b: Results, between: str) -> float:
    """Returns the largest ratio of a difference to the permitted one. It must be at most 1."""
    largest = 0.0
    for line, other, x, y in zip(a.lines, b.lines, a.arrays, b.arrays, strict=True):
        if line.split()[:3] != other.split()[:3]:
            raise Wrong(f"{between}: {line} and {other}")
        if x.size:
            error = np.abs(x - y).max() / (np.abs(y).max() or 1) / allowed(line)
            if error > 1:
                raise Wrong(f"{between}: {line} differs by {error:.3g} times the tolerance")
            largest = max(largest, float(error))
    return largest
