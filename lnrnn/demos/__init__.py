"""Demos on real data, run by ``lnrnn demo [NAME]``.

A demo is a module with ``run(*, seeds, output_dir, quick, figure, cell)``: it prints what it measured,
writes its figures to ``output_dir`` and returns nothing. It needs tqdm, and matplotlib if it draws;
``import lnrnn`` never does.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from .cells import CELLS

__all__ = ["CELLS", "DEFAULT", "DEMOS", "run"]

# name -> (module, one line for the help)
DEMOS = {
    "long-sequences": (
        "lnrnn.demos.long_sequences",
        "layer norm and batch norm in a network that hears longer speech than it was trained on",
    ),
}
DEFAULT = "long-sequences"


def run(
    name: str = DEFAULT,
    *,
    seeds: int = 5,
    output_dir: str | os.PathLike[str] = ".",
    quick: bool = False,
    figure: bool = True,
    cell: str = CELLS[0],
) -> None:
    """Runs one demo.

    name: a key of ``DEMOS``.
    seeds: how often everything is repeated, with the seeds 0, 1, ..., seeds - 1.
    output_dir: where figures go; made if it does not exist. That it can be written is found out first.
    quick: a shorter run that shows that everything works; its numbers mean little.
    figure: False draws nothing and does without matplotlib (not without tqdm).
    cell: the networks' kind, one of ``CELLS``.
    Raises ValueError for an unknown name or cell or seeds < 1, ImportError if tqdm or matplotlib is missing,
    OSError if the figure cannot be written.
    """
    if name not in DEMOS:
        raise ValueError(f"name: there is no demo {name!r}; there are: {', '.join(DEMOS)}")
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    if cell not in CELLS:
        raise ValueError(f"cell: expected one of {', '.join(CELLS)}, got {cell!r}")
    demo = importlib.import_module(DEMOS[name][0])
    demo.run(seeds=seeds, output_dir=Path(output_dir), quick=quick, figure=figure, cell=cell)
