"""Prints the lines of tracked text in each folder, and how many this branch adds. Omits data and results.

    python tests/lint/sizes.py [BASE]

BASE: the commit to compare with; default: the last common commit with main.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = {
    ".c", ".h", ".md", ".pxd", ".pxi", ".py", ".pyi", ".pyx", ".rst", ".sh", ".toml", ".txt", ".yaml", ".yml",
    ".cff", "",
}  # fmt: skip
PRODUCT = ("include", "lnrnn", "pyx")


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def folder(name: str) -> str:
    """Returns the folder to which a file's lines are added: one level deep, or two in lnrnn, tests,
    examples."""
    parts = Path(name).parts[:-1]
    return "/".join(parts[: 2 if parts[:1] in (("lnrnn",), ("tests",), ("examples",)) else 1]) or "."


def counted(name: str) -> bool:
    return Path(name).suffix in TEXT and not name.startswith("tests/data/")


def main(base: str) -> None:
    lines, changes = Counter[str](), Counter[str]()
    for name in git("ls-files").splitlines():
        if counted(name) and (ROOT / name).is_file():
            lines[folder(name)] += len((ROOT / name).read_text().splitlines())
    for row in git("diff", "--numstat", "--no-renames", base).splitlines():
        added, removed, name = row.split("\t")
        if counted(name):
            changes[folder(name)] += int(added) - int(removed)
    product = {name for name in {*lines, *changes} if name.split("/")[0] in PRODUCT}
    rows = [(name, lines[name], changes[name]) for name in sorted({*lines, *changes})]
    for title, chosen in (("product", product), ("all", {*lines, *changes})):
        rows.append((title, sum(lines[name] for name in chosen), sum(changes[name] for name in chosen)))
    print(f"{'lines':>7} {'change':>7}  since {base[:12]}")
    for name, count, change in rows:
        print(f"{count:7} {change:+7}  {name}" if change else f"{count:7} {'':7}  {name}")


def branch_point() -> str:
    """Returns the last common commit of HEAD and main, or HEAD in a clone without main."""
    for name in ("main", "origin/main"):
        if (
            subprocess.run(
                ["git", "rev-parse", "-q", "--verify", name], cwd=ROOT, capture_output=True
            ).returncode
            == 0
        ):
            return git("merge-base", "HEAD", name).strip()
    return "HEAD"


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else branch_point())
