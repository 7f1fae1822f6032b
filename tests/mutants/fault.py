"""A fault: a change of the sources that a test should notice, and how all of them are put into one copy.

Each is switched on by its number in the environment variable LNRNN_FAULT, so that C is built once for all of
them. In what a fault puts in the place of the original, the word FAULT stands for "it is this one's turn": an
expression of C, of Cython without the interpreter's lock, or of Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# The first lines of every C file that has a fault. No header is included: what the file itself defines must
# come before the first of the system's. The number is read before any other constructor runs.
C_LINES = """\
#ifndef LNRNN_FAULT
#define LNRNN_FAULT
extern char *getenv(const char *name);
extern int atoi(const char *text);
__attribute__((weak, visibility("hidden"))) int lnrnn_fault;
__attribute__((constructor(101))) static void lnrnn_read_fault(void)
{
    const char *const number = getenv("LNRNN_FAULT");
    lnrnn_fault = number ? atoi(number) : 0;
}
#endif
"""
CYTHON_LINES = f'''\
cdef extern from *:
    """
{C_LINES}    """
    int lnrnn_fault

'''
PYTHON_LINE = "import os as _os; _FAULT = int(_os.environ.get('LNRNN_FAULT') or 0)\n"
CYTHON_MODULE = "pyx/_core.pyx"  # which includes the others


@dataclass(frozen=True)
class Fault:
    """One fault.

    name: what is wrong, in words. file: in the repository. was: text that stands in it exactly once. becomes:
    what stands in its place. tests: arguments of pytest for the tests that should notice, the others come
    after. isa: the instruction set to run them on, if not the best of the machine. equivalent: why no test
    can notice, if none can.
    """

    name: str
    file: str
    was: str
    becomes: str
    tests: str
    isa: str | None = None
    equivalent: str | None = None


def _start_of_python(text: str) -> int:
    """Where a Python module's own statements begin: after its docstring and imports from the future."""
    found = re.search(r"^from __future__ import .*\n", text, re.MULTILINE)
    return found.end() if found else 0


def _start_of_cython(text: str) -> int:
    """After the comments at the beginning, which may be directives."""
    found = re.match(r"(?:#.*\n|\s*\n)*", text)
    return found.end() if found else 0


def apply(faults: list[Fault], folder: Path) -> None:
    """Puts all faults into the files of folder. Raises ValueError if one does not apply to the text as it
    is, naming it."""
    files: dict[str, list[tuple[int, int, str]]] = {}
    for number, fault in enumerate(faults, 1):
        path = folder / fault.file
        count = path.read_text().count(fault.was) if path.exists() else 0
        if count != 1:
            raise ValueError(f"{fault.name!r}: its text stands {count} times in {fault.file}, not once")
        switch = {".py": "_FAULT"}.get(path.suffix, "lnrnn_fault")
        if not re.search(r"\bFAULT\b", fault.becomes):
            raise ValueError(f"{fault.name!r}: nothing switches it on")
        text = re.sub(r"\bFAULT\b", f"({switch} == {number})", fault.becomes)
        start = path.read_text().index(fault.was)
        files.setdefault(fault.file, []).append((start, start + len(fault.was), text))
    if any(Path(name).suffix in (".pyx", ".pxi") for name in files):
        files.setdefault(CYTHON_MODULE, [])
    for name, changes in files.items():
        path = folder / name
        text = path.read_text()
        changes.sort(reverse=True)
        for (start, _, _), (_, end, _) in zip(changes, changes[1:], strict=False):
            if end > start:
                raise ValueError(
                    f"two faults of {name} change the same text, near {text[start : start + 60]!r}"
                )
        for start, end, new in changes:
            text = text[:start] + new + text[end:]
        if path.suffix in (".c", ".h"):
            text = C_LINES + text
        elif name == CYTHON_MODULE:
            at = _start_of_cython(text)
            text = text[:at] + CYTHON_LINES + text[at:]
        elif path.suffix == ".py":
            at = _start_of_python(text)
            text = text[:at] + PYTHON_LINE + text[at:]
        path.write_text(text)
