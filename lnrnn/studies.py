"""``lnrnn demo NAME``: runs a study of examples/studies, which a clone and a source distribution have."""

from __future__ import annotations

import ast
import difflib
import json
import subprocess
import sys
from pathlib import Path

import lnrnn

FIRST = "long-sequences"
SHARED = ("common", "nets", "plots")
WHERE = Path("examples") / "studies"


def folder() -> Path:
    """Where the studies are: beside the package of an editable install, else below the current folder. Raises
    FileNotFoundError, which says where to get them."""
    for root in (Path(lnrnn.__file__).parents[1], Path.cwd()):
        if (root / WHERE / "common.py").is_file():
            return root / WHERE
    raise FileNotFoundError(
        f"the studies are not part of the installed package: they are in {WHERE.as_posix()}/ of lnrnn's "
        "repository and source distribution. Run the command in that folder's root; lnrnn demo alone needs "
        "nothing"
    )


def studies() -> dict[str, Path]:
    """The studies by name, FIRST first."""
    paths = {
        path.stem.replace("_", "-"): path for path in folder().glob("[!_]*.py") if path.stem not in SHARED
    }
    return dict(sorted(paths.items(), key=lambda item: (item[0] != FIRST, item[0])))


def listing() -> str:
    """For a terminal: the short demo, and the studies with the titles of their pages."""
    rows = {"(no name)": "the demo of ten seconds: what happens past the training length (default)"}
    try:
        for name, path in studies().items():
            title = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
            rows[name] = f"{title}{' (also: --full)' if name == FIRST else ''}"
    except FileNotFoundError as error:
        rows["NAME"] = str(error)
    return "\n".join(f"  {name:16}  {title}" for name, title in rows.items())


def run(name: str, arguments: list[str]) -> int:
    """Runs one study in a process of its own; returns its exit code. Raises ValueError for no such study."""
    found = studies()
    name = name.replace("_", "-")
    if name not in found:
        near = difflib.get_close_matches(name, found, 1, 0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no study {name!r}{hint} There are: {', '.join(found)}")
    return subprocess.run([sys.executable, str(found[name]), *arguments], check=False).returncode


def run_all(output_dir: Path, arguments: list[str]) -> int:
    """Runs every study, and prints what came out of all. Goes on after one that fails, and returns its code.

    Results in output_dir of the same version, instruction set, seeds and extent are not measured again, so
    that an interrupted run goes on.
    """
    worst, found = 0, studies()
    for place, name in enumerate(found, 1):
        print(f"--- {place} of {len(found)}: {name} ".ljust(80, "-"), flush=True)
        code = run(name, [*arguments, "--output-dir", str(output_dir), "--resume"])
        worst = worst or code
    for name, path in found.items():
        kept = output_dir / f"{path.stem}.json"
        if kept.exists():
            print(f"\n{name}")
            for text, number, _, verdict, _ in json.loads(kept.read_text())["clauses"]:
                print(f"  {text}: {number}: {verdict}")
    return worst
