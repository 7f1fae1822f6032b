"""Demos on real data, run by ``lnrnn demo [NAME]``: each measures a claim about layer norm or batch norm.

A demo is a Study (lnrnn.demos.study); lnrnn.demos.registry lists them. Demos need tqdm, matplotlib if they
draw, and some of them scikit-learn; ``import lnrnn`` never does.
"""

from __future__ import annotations

import os
from pathlib import Path

from .cells import CELLS
from .every import run_all
from .registry import DEFAULT, DEMOS, study_of
from .study import Report
from .tables import paragraph

__all__ = ["ALL", "CELLS", "DEFAULT", "DEMOS", "listing", "run"]

ALL = "all"


def listing() -> str:
    """The demos by name, each with its claim, for a terminal."""
    return "\n".join(paragraph(f"{name}: {demo.claim}", "  ", "      ") for name, demo in DEMOS.items())


def run(
    name: str = DEFAULT,
    *,
    seeds: int = 5,
    output_dir: str | os.PathLike[str] = ".",
    quick: bool = False,
    figure: bool = True,
    cell: str | None = None,
) -> Report:
    """Runs one demo and returns its report; or all of them, ``name="all"``, and returns the last one's.

    name: a key of ``DEMOS``, or ``ALL``.
    seeds: how often everything is repeated, with the seeds 0, 1, ..., seeds - 1.
    output_dir: where figures go; made if it does not exist. That it can be written is found out first.
    quick: a shorter run that shows that everything works; its numbers mean little.
    figure: False draws nothing and does without matplotlib (not without tqdm).
    cell: the networks' kind, one of ``CELLS``, for a demo that takes one; None is the first.
    Raises ValueError for an unknown name or cell or seeds < 1, ImportError if tqdm or matplotlib is missing,
    OSError if the figure, or what `lnrnn.demos.every` keeps of all of them, cannot be written.
    """
    if name not in DEMOS and name != ALL:
        raise ValueError(f"name: there is no demo {name!r}; there are: {', '.join([*DEMOS, ALL])}")
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    if cell is not None and cell not in CELLS:
        raise ValueError(f"cell: expected one of {', '.join(CELLS)}, got {cell!r}")
    if cell is not None and (name == ALL or not DEMOS[name].cells):
        raise ValueError(f"cell: the demo {name!r} takes none")
    if name == ALL:
        return run_all(seeds=seeds, output_dir=Path(output_dir), quick=quick, figure=figure)
    return study_of(name, cell).run(seeds=seeds, output_dir=Path(output_dir), quick=quick, figure=figure)
