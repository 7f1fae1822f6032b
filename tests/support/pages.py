"""Runs the blocks of code of Markdown pages in order, and compares their output with the page.

All ```python blocks of a page share one namespace. Their output must be in the comments after print(...), or
in the ```text block that follows. A ```console block has commands, `$ lnrnn ...`. If there is output below a
command, it is compared. In an expected output, `...` matches any text.

HTML comments mark exceptions:

    <!-- after: train.md -->              at the top of a page: that page runs first, in the same folder
    <!-- needs: torch, pandas -->         the next block needs these packages; without one, no block runs
    <!-- not run: why -->                 the next block does not run; at the top of a page: no block runs
    <!-- tested by: tests/... -->         the next block does not run here, because that test runs it

`python tests/support/pages.py PAGE` runs a page in a new folder, which it removes afterwards.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import sys
import tempfile
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(```+|:::+)(.*)$")
MARK = re.compile(r"<!-- (not run|tested by|needs|after): (.+) -->")


@dataclass
class Block:
    """A block of code. line: the number of its first line. language: "python", "console", or another word
    after the fence. marks: from the HTML comments above it."""

    language: str
    line: int
    text: str
    marks: dict[str, str]


def blocks(page: Path) -> list[Block]:
    """Returns all fenced blocks of a page in order, without directives of Sphinx."""
    result: list[Block] = []
    lines = page.read_text().splitlines()
    whole: dict[str, str] = {}  # marks at the top of the page, which apply to all blocks
    marks: dict[str, str] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        fence, mark = FENCE.match(line), MARK.fullmatch(line.strip())
        if mark:
            (marks if result or any(lines[i].startswith("#") for i in range(at)) else whole)[mark[1]] = mark[
                2
            ]
        elif fence:
            end = next((i for i in range(at + 1, len(lines)) if lines[i].strip() == fence[1]), None)
            assert end is not None, f"{page}:{at + 1}: a block that does not end"
            language = fence[2].strip()
            if not language.startswith("{"):
                result.append(Block(language, at + 1, "\n".join(lines[at + 1 : end]), whole | marks))
            marks = {}
            at = end
        elif line.strip():
            marks = {}
        at += 1
    return result


def commands(block: Block) -> list[tuple[str, str | None]]:
    """Returns each command of a console block with the output below it, or with None."""
    result: list[tuple[str, str | None]] = []
    for line in block.text.replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            result.append((line[2:], None))
            continue
        assert result, f"line {block.line}: commands begin with $"
        command, output = result[-1]
        result[-1] = command, line if output is None else f"{output}\n{line}"
    return result


def run(page: Path) -> str:
    """Runs a page in the current folder. Returns "", or the reason why no block runs.

    Raises the errors of the page's code, and AssertionError with the line if an output differs."""
    names: dict[str, object] = {"__name__": "__main__"}
    todo = blocks(page)
    for earlier in {block.marks["after"] for block in todo if "after" in block.marks}:
        if reason := run(page.parent / earlier):
            return reason
    for block in todo:
        for package in filter(None, re.split(", *", block.marks.get("needs", ""))):
            if importlib.util.find_spec(package) is None:
                return f"line {block.line}: {package} is not installed"
    for block, after in zip_longest(todo, todo[1:]):
        if block.marks.keys() & {"not run", "tested by"} or block.language == "text":
            continue
        if block.language == "console":
            for command, output in commands(block):
                got = command_line(shlex.split(command, comments=True))
                assert output is None or fits(got, output), f"{page}:{block.line}: {command}\n{got}"
        else:
            shown = after is not None and after.language == "text" and not after.marks.keys() - {"after"}
            _run_python(page, block, names, after.text if shown else "")
    return ""


def run_block(name: str, text: str) -> None:
    """Runs the one block with this text of a page of docs/ alone. Raises the same errors as run()."""
    page = ROOT / "docs" / name
    (block,) = (block for block in blocks(page) if text in block.text)
    _run_python(page, block, {"__name__": "__main__"}, "")


def _run_python(page: Path, block: Block, names: dict[str, object], below: str) -> None:
    """below: the expected output, if no comments of the block show it."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile("\n" * block.line + block.text, str(page), "exec", dont_inherit=True), names)
    want = "\n".join(re.findall(r"print.*?# (.*)", block.text)) or below
    got = printed.getvalue().rstrip("\n")
    assert fits(got, want), f"{page}:{block.line}: the page says\n{want}\nand the code prints\n{got}"


def fits(got: str, want: str) -> bool:
    """Returns whether the output is as expected. `...` matches any text."""
    return re.fullmatch(re.escape(want).replace(r"\.\.\.", "(?s:.*)"), got) is not None


def command_line(words: list[str]) -> str:
    """Returns the output of the command `lnrnn ...`."""
    from lnrnn import cli

    assert words[0] == "lnrnn", f"give a reason why {words[0]} is not run: <!-- not run: why -->"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            code: object = cli.main(words[1:])
        except SystemExit as end:  # for --help, --version and unknown arguments
            code = end.code
    assert code in (0, None), words
    return printed.getvalue().rstrip("\n")


def main(page: Path) -> None:
    """Runs a page in a new folder, and prints the reason why a block did not run."""
    before = os.getcwd()
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                print(run(page), end="")
            finally:
                os.chdir(before)
    except SystemExit as end:
        raise AssertionError("a block ends the program") from end


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
