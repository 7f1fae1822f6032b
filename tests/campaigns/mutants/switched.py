"""Writes a copy of the sources with mutants and probes. Environment variables switch them, so C is built
once.

A probe is a statement that marks a call of a function. LNRNN_FAULT is the number of the active mutant, from
1. LNRNN_REACHED is a file of marks: byte k becomes 1 when probe k runs, and byte 0 when the active mutant
runs.
"""

from __future__ import annotations

import re
from pathlib import Path

from sources import Mutant, Source

SIZE = 8192  # bytes of the file of marks, more than there are functions
# The first lines of every edited C file. They include no header, because the file's own macros must come
# before the first system header. The variables are set before other constructors run.
C_LINES = f"""\
#ifndef LNRNN_SWITCHED
#define LNRNN_SWITCHED
extern char *getenv(const char *name);
extern int atoi(const char *text);
extern int open(const char *path, int flags, ...);
extern void *mmap(void *address, unsigned long size, int protection, int flags, int file, long offset);
__attribute__((weak, visibility("hidden"))) int lnrnn_fault;
__attribute__((weak, visibility("hidden"))) unsigned char *lnrnn_marks;
__attribute__((constructor(101))) static void lnrnn_read_switches(void)
{{
    const char *const number = getenv("LNRNN_FAULT"), *const path = getenv("LNRNN_REACHED");
    lnrnn_fault = number ? atoi(number) : 0;
    if (path && !lnrnn_marks)
        lnrnn_marks = (unsigned char *)mmap(0, {SIZE}, 3, 1, open(path, 2), 0);
}}
#define LNRNN_FAULT(n) (lnrnn_fault == (n) && (!lnrnn_marks || (lnrnn_marks[0] = 1)))
#define LNRNN_REACH(k) do {{ if (lnrnn_marks) lnrnn_marks[k] = 1; }} while (0)
#endif
"""
CYTHON_LINES = f'''\
cdef extern from *:
    """
{C_LINES}    """
    bint LNRNN_FAULT(int) noexcept nogil
    void LNRNN_REACH(int) noexcept nogil

'''
CYTHON_MODULE = "pyx/_core.pyx"  # includes the other files of Cython
PYTHON_LINES = "from lnrnn._switched import LNRNN_FAULT, LNRNN_REACH\n"
PYTHON_MODULE = f"""\
import mmap
import os

_number, _path = int(os.environ.get("LNRNN_FAULT") or 0), os.environ.get("LNRNN_REACHED")
_marks = mmap.mmap(os.open(_path, os.O_RDWR), 0) if _path else bytearray({SIZE})


def LNRNN_FAULT(number):
    if number != _number:
        return False
    _marks[0] = 1
    return True


def LNRNN_REACH(number):
    _marks[number] = 1
"""
# Patterns of the text before the inserted lines: comments, which may be directives, and __future__.
START = {
    ".c": r"", ".h": r"", ".pyx": r"(?:#.*\n|\s*\n)*", ".py": r"(?s:.*?^from __future__ import [^\n]*\n)?",
}  # fmt: skip
LINES = {".c": C_LINES, ".h": C_LINES, ".pyx": CYTHON_LINES, ".py": PYTHON_LINES}
Edit = tuple[int, int, str]  # first byte, end, and the text that replaces these bytes


def probe_edits(source: Source, first: int) -> tuple[list[Edit], list[str]]:
    """Returns edits that insert a probe in each function, numbered from `first`, and the functions' names."""
    edits, names = [], []
    for place, indentation, function in source.probes():
        end = ";" if source.c else f"\n{indentation}"
        edits.append((place, place, f"LNRNN_REACH({first + len(names)}){end}"))
        names.append(f"{source.name}::{function}()")
    return edits, names


def mutant_edit(mutant: Mutant, number: int) -> Edit:
    on, was, becomes = f"LNRNN_FAULT({number})", mutant.was, mutant.becomes
    c = mutant.file.endswith((".c", ".h"))
    if not mutant.statement:
        text = f"({on} ? ({becomes}) : ({was}))" if c else f"(({becomes}) if {on} else ({was}))"
    elif c:
        text = f"{{ if ({on}) {becomes} else {was} }}"
    else:
        space = " " * mutant.column
        text = f"if {on}:\n{space}    {becomes}\n{space}else:\n{space}    {was}"
    return mutant.start, mutant.end, text


def edit(folder: Path, edits: dict[str, list[Edit]], root: Path) -> None:
    (folder / "lnrnn/_switched.py").write_text(PYTHON_MODULE)
    names = {name for name, found in edits.items() if found}
    if any(name.endswith((".pyx", ".pxi")) for name in names):
        names.add(CYTHON_MODULE)
    for name in names:
        data, kind = (root / name).read_bytes(), Path(name).suffix
        for start, end, text in sorted(edits.get(name, []), reverse=True):
            data = data[:start] + text.encode() + data[end:]
        if kind in LINES:
            at = re.match(START[kind].encode(), data, re.MULTILINE).end()
            data = data[:at] + LINES[kind].encode() + data[at:]
        (folder / name).write_bytes(data)
