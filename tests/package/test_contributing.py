"""Tests the tables and numbers of CONTRIBUTING.md.

The tables list the files that mention an existing cell, placement, nonlinearity, instruction set, importer or
study. The sentence above each table has the number of files.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the files of the repository")


# Git's patterns that exclude the files which read models of others. Importers have another table.
IMPORTERS = (
    ":!lnrnn/importers", ":!lnrnn/recognise", ":!pyx/onnxruntime", ":(exclude,glob)lnrnn/onnx/*.py",
    ":!lnrnn/onnx/nodes", ":!lnrnn/onnx/running",
)  # fmt: skip


class Counted(NamedTuple):
    """A table of CONTRIBUTING.md, which lists the files that mention an existing example."""

    sentence: str  # the start of the sentence above the table
    name: str  # the example's name, for NAME in the table
    mention: str  # a regular expression that matches the example in code
    most: int  # the largest number of files
    folders: tuple[str, ...]
    others: dict[str, str] = {}  # files and folders that may mention the example without a change: the reason
    docstrings: bool = True  # whether docstrings of Python count


TABLES = [
    Counted(
        "A placement of the norms", "gate", r"""["']gate["']|\bLNRNN_GATE\b|\bGATE = """, 10,
        ("include", "pyx", "lnrnn", *IMPORTERS),
    ),
    Counted(
        "A cell", "gru", r"(?i)(?<![a-z])gru(?![a-z])", 18,
        ("include", "pyx", "lnrnn", *IMPORTERS, "docs/api", *(f"tests/support/{name}.py" for name in
         ("c_library", "networks", "reference_cells", "torch_twins"))),
        others={
            "lnrnn/rnn/specs.py": "an option that only a GRU has",
            "pyx/file/": "options that only some cells have",
            "lnrnn/demo.py": "a demo of three cells",
            "lnrnn/speakers.py": "the same demo",
            "lnrnn/onnxruntime/": "a warning that names nodes of ONNX",
            "lnrnn/torch/": "classes of torch and of other people",
        },
        docstrings=False,
    ),
    Counted(
        "A further kind of norm", "rms", r"""["']rms["']|'rms'|LNRNN_NORM_RMS|RMSNormSpec""", 12,
        ("include", "pyx", "lnrnn", *IMPORTERS), docstrings=False,
    ),
    Counted(
        "A nonlinearity", "relu", r"(?i)(?<![a-z])relu(?![a-z])", 10,
        ("include", "pyx", "lnrnn", "docs/api", "tests/support"),
        others={
            "lnrnn/importers/": "cells of other people",
            "lnrnn/recognise/graph.py": "operators that keep 0",
            "lnrnn/recognise/operators.py": "hard sigmoids as bounds, and max(a, 0)",
            "lnrnn/reference/ligru.py": "the default of a LiGRU",
            "lnrnn/torch/": "the same default, and cells of torch",
            "pyx/onnxruntime/": "the plug-in leaves other functions to ONNX Runtime",
            "tests/support/": "models of other people, and relu's slope at 0",
        },
    ),
    Counted(
        "A set", "avxvnni", r"\bavxvnni|_avxvnni\b", 7,
        ("include", "pyx", "lnrnn", "docs/api", "docs/how_it_is_built.md", "tests/rnn", "tests/runtime",
         "tests/simd", "tests/support", "tests/campaigns"),
        others={"tests/campaigns/results/": "results of runs"},
    ),
    Counted(
        "A cell that people train in torch", "icefall", "(?i)icefall", 6,
        ("lnrnn/importers", "docs/which_cell.md", "tests/support"),
    ),
    Counted(
        "A study", "saturation", r"\bsaturation\b", 4,
        ("examples/studies/README.rst", "examples/studies/saturation.py", "examples/studies/results",
         "tests/studies"),
    ),
]  # fmt: skip
each_table = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.sentence)


def tracked(*folders: str) -> list[str]:
    command = ["git", "ls-files", "--", *folders]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def code(name: str, docstrings: bool) -> str:
    """Returns the text of a file without comments."""
    text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
    if name.endswith((".c", ".h")):
        return re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    if name.endswith((".py", ".pyi", ".pyx", ".pxi", ".pxd")):
        text = re.sub(r"(?m)^\s*#.*|  #.*", "", text)
        return text if docstrings else re.sub(r'"""(?s:.*?)"""', "", text)
    return text


def named_in(table: Counted) -> tuple[int, int, list[str]]:
    """Returns the numbers of files and new files above a table, and the files in its last column."""
    result = re.search(
        rf"{re.escape(table.sentence)} changes (\d+) files(?:, (\w+) of them new)?:\n\n((?:\|.*\n)+)",
        PAGE.read_text(encoding="utf-8"),
    )
    assert result, f"no table below {table.sentence!r}"
    cells = [row.rstrip("|").rpartition("|")[2] for row in result[3].splitlines()[2:]]
    folder, files = "", list[str]()
    for path in re.findall(r"`([^`]+)`", " ".join(cells)):
        if path.endswith("/"):
            folder = path
            continue
        path = path if "/" in path else folder + path
        files.append(path.replace("NAME", table.name))
    new = {None: 0, "one": 1, "two": 2, "three": 3}[result[2]]
    assert len(re.findall(r"\(new\)", result[3])) == new
    return int(result[1]), new, files


@each_table
def test_tables_have_the_files_that_mention_an_example(table):
    count, _, files = named_in(table)
    texts = [name for name in tracked(*table.folders) if not name.endswith((".npz", ".npy", ".png"))]
    mention = re.compile(table.mention)
    mentioning = {
        name for name in texts if mention.search(name) or mention.search(code(name, table.docstrings))
    }
    assert all(any(name.startswith(other) for name in mentioning) for other in table.others)
    others = {name for name in mentioning - {*files} if name.startswith(tuple(table.others))}
    assert sorted(files) == sorted(mentioning - others)
    assert count == len(files) <= table.most


def test_files_named_on_the_page_exist():
    paths = set(re.findall(r"`([\w./]+/[\w.]*\w)`", PAGE.read_text(encoding="utf-8")))
    known = {"/".join(name.split("/")[:k]) for name in tracked() for k in range(1, name.count("/") + 2)}
    built = {"build/docs/index.html"}
    assert not {path for path in paths - known - built if "NAME" not in path}
    assert len(paths) > 60
    for folder in (ROOT / "tests").iterdir():
        if folder.is_dir() and not folder.name.startswith(("_", ".")):
            assert re.search(rf"`(tests/)?{folder.name}[`/]", PAGE.read_text(encoding="utf-8")), folder.name
