"""Checks the lines of tracked text in each folder against budget.txt, and prints them. Omits data.

    python tests/lint/sizes.py [BASE]     also prints how many lines this branch adds
    python tests/lint/sizes.py --lower    lowers the numbers of budget.txt to today's lines

BASE: the commit to compare with; default: the last common commit with main.

A row of budget.txt is the name of a folder and its lines. More lines are an error. So are SLACK lines fewer,
because a row must be lowered when lines go. Only a row `name +lines reason` raises a number. A file of the
product has at most MOST_LINES lines, unless it has a row. `folder:wide` counts lines of over WIDTH columns.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUDGET = "tests/lint/budget.txt"
TEXT = {
    ".c", ".h", ".md", ".pxd", ".pxi", ".py", ".pyi", ".pyx", ".rst", ".sh", ".toml", ".txt", ".yaml", ".yml",
    ".cff", "",
}  # fmt: skip
GROUPS = {
    "product": ("include/", "lnrnn/", "pyx/"),
    "campaigns and benchmarks": ("tests/campaigns/", "tests/benchmarks/"),
    "tests and support": ("tests/",),
    "the rest": ("",),
}
SLACK, MOST_LINES, WIDTH = 100, 500, 110
PRAGMA = re.compile(r"  # (noqa|type): .*")
ROW = re.compile(r"(?P<name>\S+) +(?:(?P<lines>\d+)|\+(?P<more>\d+) +\S.*)")


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def folder(name: str) -> str:
    """Returns the folder to which a file's lines are added: one level deep, or two in lnrnn, tests,
    examples."""
    parts = Path(name).parts[:-1]
    return "/".join(parts[: 2 if parts[:1] in (("lnrnn",), ("tests",), ("examples",)) else 1]) or "."


def group(name: str) -> str:
    """Returns the first group that this folder or file belongs to."""
    return next(title for title, prefixes in GROUPS.items() if f"{name}/".startswith(prefixes))


def counted(name: str) -> bool:
    return Path(name).suffix in TEXT and not name.startswith("tests/data/") and name != BUDGET


def read(budget: str) -> tuple[dict[str, int], Counter[str]]:
    """Returns the number of each row, and the lines that further rows add to it."""
    numbers, more = dict[str, int](), Counter[str]()
    for line in budget.splitlines():
        row = ROW.fullmatch(line)
        if row and row["lines"] and row["name"] not in numbers:
            numbers[row["name"]] = int(row["lines"])
        elif row and row["more"] and row["name"] in numbers:
            more[row["name"]] += int(row["more"])
        elif line and not line.startswith("#"):
            expected = "one row `name lines`, and rows `name +lines reason` after it"
            sys.exit(f"{BUDGET}: expected {expected}, got {line!r}")
    return numbers, more


def count() -> Counter[str]:
    """Returns the lines of each folder and each long file of the product, and the wide lines of folders."""
    lines = Counter[str]()
    for name in git("ls-files").splitlines():
        if not counted(name) or not (ROOT / name).is_file():
            continue
        text = (ROOT / name).read_text().splitlines()
        lines[folder(name)] += len(text)
        if group(name) == "product" and not name.endswith(".md"):
            lines[f"{folder(name)}:wide"] += sum(len(PRAGMA.sub("", line)) > WIDTH for line in text)
            if len(text) > MOST_LINES:
                lines[name] = len(text)
    return +lines


def faults(lines: Counter[str], budget: str, old: str) -> Iterator[str]:
    """Yields a message for each name whose lines differ from its rows, or whose number has risen."""
    numbers, more = read(budget)
    before, _ = read(old)
    for name in sorted({*lines, *numbers}):
        allowed = numbers.get(name, 0) + more[name]
        has = f"{name} has {lines[name]} lines, and {allowed} are allowed"
        if lines[name] > allowed:
            yield f"{has}. Remove lines, or add a row `{name} +lines reason` to {BUDGET}"
        elif lines[name] <= allowed - SLACK or not lines[name]:
            yield f"{has}. Run `python tests/lint/sizes.py --lower`, which lowers its row"
        if numbers.get(name, 0) > before.get(name, numbers.get(name, 0)):
            row = f"`{name} +lines reason`"
            yield f"{name}: {BUDGET} raises {before[name]} to {numbers[name]}. Add a row {row}"


def lowered(lines: Counter[str], budget: str) -> str:
    """Returns the budget with the lines of today. Removes rows of names that are gone or short."""
    _, more = read(budget)
    rows = []
    for line in budget.splitlines():
        row = ROW.fullmatch(line)
        if row and row["lines"] and lines[row["name"]]:
            left = max(0, lines[row["name"]] - more[row["name"]])
            line = f"{row['name']} {min(int(row['lines']), left)}"
        if not row or lines[row["name"]]:
            rows.append(line)
    return "\n".join(rows) + "\n"


def show(lines: Counter[str], base: str) -> None:
    changes = Counter[str]()
    for row in git("diff", "--numstat", "--no-renames", base).splitlines():
        added, removed, name = row.split("\t")
        if counted(name):
            changes[folder(name)] += int(added) - int(removed)
    names = sorted(name for name in {*lines, *changes} if ":" not in name and not (ROOT / name).is_file())
    rows = [(name, lines[name], changes[name]) for name in names]
    for title in (*GROUPS, "all"):
        chosen = [name for name in names if title in ("all", group(name))]
        rows.append((title, sum(lines[name] for name in chosen), sum(changes[name] for name in chosen)))
    print(f"{'lines':>7} {'change':>7}  since {base[:12]}")
    for name, number, change in rows:
        print(f"{number:7} {f'{change:+}' if change else '':>7}  {name}")


def branch_point() -> str:
    """Returns the last common commit of HEAD and main, or HEAD in a clone without main."""
    for name in ("main", "origin/main"):
        found = subprocess.run(["git", "rev-parse", "-q", "--verify", name], cwd=ROOT, capture_output=True)
        if found.returncode == 0:
            return git("merge-base", "HEAD", name).strip()
    return "HEAD"


def main(arguments: list[str]) -> None:
    lines = count()
    budget = (ROOT / BUDGET).read_text()
    if arguments == ["--lower"]:
        (ROOT / BUDGET).write_text(lowered(lines, budget))
        return
    base = arguments[0] if arguments else branch_point()
    show(lines, base)
    known = git("ls-tree", "--name-only", base, BUDGET)
    wrong = list(faults(lines, budget, git("show", f"{base}:{BUDGET}") if known else ""))
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
