"""``lnrnn demo NAME`` runs a study of examples/studies, which only clones and source distributions have."""

from __future__ import annotations

import ast
import difflib
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from lnrnn.errors import message
from lnrnn.speakers import CELLS

FIRST, ALL = "long-sequences", "all"
SHARED = ("common", "depth", "fisher", "help_text", "measures", "nets", "plots", "recurrent", "study_data")
WHERE = Path("examples") / "studies"
FLAGS = {
    "quick": "a short run, to test that everything works",
    "tune": "choose the settings first, with seeds 0 to 4 or some of them",
    "kept": "print and draw the stored results of the study, without measuring",
    "no-figure": "draw no figure, which needs matplotlib",
}


def folder(name: str = "") -> Path:
    """Returns the folder of the studies: of an editable install, or in the current folder.

    name: the wanted study, for the message. Raises FileNotFoundError, which says where studies are.
    """
    for root in (Path(__file__).parents[1], Path.cwd()):
        if (root / WHERE / "common.py").is_file():
            return root / WHERE
    raise FileNotFoundError(
        (f"cannot look for the study {name!r}: " if name else "")
        + "studies are not installed. Run the command in the root of a clone of lnrnn's repository, where "
        f"{WHERE.as_posix()}/ is, or of its source distribution. lnrnn demo without a name runs anywhere"
    )


def studies(name: str = "") -> dict[str, Path]:
    """Returns {name: file} of the studies, FIRST first. name: as for `folder`."""
    paths = {
        path.stem.replace("_", "-"): path
        for path in folder(name).glob("[!_.]*.py")
        if path.stem not in SHARED
    }
    return dict(sorted(paths.items(), key=lambda item: (item[0] != FIRST, item[0])))


def listing() -> str:
    """Returns a list of the short demo and the studies with titles, as text for a terminal."""
    rows = {"(no name)": "a demo of ten seconds, on long sequences (default)"}
    try:
        for name, path in studies().items():
            title = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]
            rows[name] = title + (" (also: --full)" if name == FIRST else "")
        rows[ALL] = "all studies, one after the other"
    except FileNotFoundError as error:
        rows["NAME"] = str(error)
    return "\n".join(
        textwrap.fill(text, 78, initial_indent=f"{name:16}", subsequent_indent=" " * 16)
        for name, text in rows.items()
    )


def run(name: str, words: list[str]) -> int:
    """Runs one study in a new process, with command line arguments `words`. Returns its exit code.

    Raises ValueError for an unknown name, and KeyboardInterrupt if the study was interrupted.
    """
    found = studies(name)
    name = name.replace("_", "-")
    if name not in found:
        names = [*found, ALL]
        near = [known for known in names if known.startswith(name.lower())]
        near += difflib.get_close_matches(name.lower(), names, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else ""
        raise ValueError(message("NAME", f"one of {', '.join(names)}", repr(name), hint))
    # PYTHONPATH lets the new process import the same lnrnn.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    code = subprocess.run([sys.executable, str(found[name]), *words], env=environment, check=False).returncode
    if code in (130, -signal.SIGINT):
        raise KeyboardInterrupt
    return code if code >= 0 else 128 - code


def run_all(output_dir: Path, words: list[str]) -> int:
    """Runs all studies and prints their results. Returns 0, or the exit code of the last failed study.

    words: command line arguments of each study, including output_dir unless it is the current folder.
    """
    worst, found = 0, studies()
    for place, name in enumerate(found, 1):
        print(f"--- {place} of {len(found)}: {name} ".ljust(60, "-"), flush=True)
        cells = CELLS if name == FIRST and not any(word.startswith("--cell=") for word in words) else ()
        for more in [[f"--cell={cell}"] for cell in cells] or [[]]:
            worst = run(name, [*words, *more]) or worst
    stems = [path.stem + cell for path in found.values() for cell in ("", *(f"_{cell}" for cell in CELLS))]
    for kept in (output_dir / f"{stem}.json" for stem in stems):
        try:
            clauses = json.loads(kept.read_text("utf-8"))["clauses"]
            rows = [f"  {text}\n      {number}: {verdict}" for text, number, _, verdict, _ in clauses]
        except (OSError, ValueError, LookupError, TypeError):  # no results, or another program's file
            continue
        if rows:  # a quick run has no verdicts to print
            print("\n".join([f"\n{kept.stem}", *rows]))
    return worst
