"""Reads and writes the stored sample: a patch for each mutant, which `git apply` and `patch` understand.

The first line of a patch says which test noticed the mutant. Code moves, so a patch belongs to the mutant of
today's sources that removes and adds the same lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sources import Mutant, Source

FOLDER = Path(__file__).parent / "patches"
AROUND = 3  # lines of context
NEW = "not run"


def lines_of(source: Source, mutant: Mutant) -> tuple[list[str], list[str]]:
    """Returns the lines that a mutant removes, and those that it adds."""
    data = source.bytes
    first = data.rfind(b"\n", 0, mutant.start) + 1
    last = data.find(b"\n", mutant.end)
    new = data[first : mutant.start] + mutant.becomes.encode() + data[mutant.end : last]
    return data[first:last].decode().split("\n"), new.decode().split("\n")


@dataclass
class Patch:
    path: Path
    noticed: str  # the test, NEW, or "no"
    file: str
    line: int
    text: str  # the diff, from its line ---

    @property
    def change(self) -> tuple[str, ...]:
        return tuple(row for row in self.text.splitlines()[3:] if row[0] in "-+")

    @property
    def context(self) -> set[str]:
        return {row[1:].strip() for row in self.text.splitlines()[3:] if row[0] == " "}

    def write(self) -> None:
        self.path.write_text(f"noticed: {self.noticed}\n{self.text}")


def new_patch(path: Path, source: Source, mutant: Mutant) -> Patch:
    removed, added = lines_of(source, mutant)
    lines, first = source.bytes.decode().splitlines(), mutant.line - 1
    start, end = max(0, first - AROUND), first + len(removed) + AROUND
    before, after = lines[start:first], lines[first + len(removed) : end]
    context = len(before) + len(after)
    head = (
        f"--- a/{mutant.file}\n+++ b/{mutant.file}\n@@ -{start + 1},{len(removed) + context} "
        f"+{start + 1},{len(added) + context} @@ {mutant.function}\n"
    )
    rows = [*(f" {x}" for x in before), *(f"-{x}" for x in removed), *(f"+{x}" for x in added)]
    body = "\n".join([*rows, *(f" {x}" for x in after)])
    return Patch(path, NEW, mutant.file, mutant.line, f"{head}{body}\n")


def write(drawn: Iterable[Mutant], found: dict[str, Source]) -> list[Patch]:
    FOLDER.mkdir(exist_ok=True)
    patches = []
    for number, mutant in enumerate(sorted(drawn, key=lambda m: (m.file, m.line)), 1):
        patches.append(new_patch(FOLDER / f"{number:03}.patch", found[mutant.file], mutant))
        patches[-1].write()
    return patches


def read() -> list[Patch]:
    patches = []
    for path in sorted(FOLDER.glob("*.patch")):
        first, _, text = path.read_text().partition("\n")
        _, name, place = text.splitlines()[:3]
        line = int(place.split()[1][1:].split(",")[0])
        noticed, file = first.removeprefix("noticed: "), name.removeprefix("+++ b/")
        patches.append(Patch(path, noticed, file, line, text))
    return patches


def of_today(patches: Iterable[Patch], found: dict[str, Source]) -> list[tuple[Patch, Mutant | None]]:
    """Returns the mutant of each patch, in its file or another, or None if its lines are gone."""
    same: dict[tuple[str, ...], list[Mutant]] = {}
    for source in found.values():
        for mutant in source.mutants():
            removed, added = lines_of(source, mutant)
            same.setdefault((*(f"-{x}" for x in removed), *(f"+{x}" for x in added)), []).append(mutant)

    def likeness(patch: Patch, mutant: Mutant) -> tuple[bool, int, int]:
        near = len(patch.context.intersection(mutant.near))
        return mutant.file == patch.file, near, -abs(mutant.line - patch.line)

    return [
        (patch, max(same.get(patch.change, []), key=lambda m: likeness(patch, m), default=None))
        for patch in patches
    ]
