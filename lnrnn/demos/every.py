"""``lnrnn demo all``: every demo, one after the other, and one table of what came out."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lnrnn
from lnrnn.files import check_replaceable, replacing

from .cells import CELLS
from .registry import DEMOS, study_of
from .study import Report
from .tables import columns, paragraph

FILE = "demos.json"


@dataclass(frozen=True)
class Conditions:
    """What a demo that has been run need not be run again for."""

    version: str
    seeds: int
    quick: bool
    figure: bool


def parts() -> dict[str, tuple[str, str | None]]:
    """All that is run, by the name of the study: (demo, cell), every cell of a demo that takes one."""
    pairs = [(name, cell) for name, demo in DEMOS.items() for cell in (CELLS if demo.cells else (None,))]
    return {study_of(*pair).name: pair for pair in pairs}


def run_all(*, seeds: int, output_dir: Path, quick: bool, figure: bool) -> Report:
    """Runs every demo that FILE in ``output_dir`` does not have the report of, under the same conditions:
    an interrupted run goes on. Returns the last report."""
    conditions = asdict(Conditions(lnrnn.__version__, seeds, quick, figure))
    output_dir.mkdir(parents=True, exist_ok=True)
    check_replaceable(output_dir / FILE)
    known = _read(output_dir / FILE, conditions)
    todo = parts()
    for place, (name, pair) in enumerate(todo.items(), 1):
        print(f"--- {place} of {len(todo)}: {name} ".ljust(columns(), "-"))
        if name in known:
            print(f"known from an earlier run: {output_dir / FILE}\n")
            continue
        report = study_of(*pair).run(seeds=seeds, output_dir=output_dir, quick=quick, figure=figure)
        known[name] = asdict(report)
        with replacing(output_dir / FILE) as write:
            write(json.dumps({"conditions": conditions, "reports": known}, indent=1).encode())
        print()
    reports = {name: Report(**known[name]) for name in todo}
    print(summary(reports))
    return reports[name]


def _read(path: Path, conditions: dict[str, Any]) -> dict[str, Any]:
    try:
        saved = json.loads(path.read_bytes())
        return dict(saved["reports"]) if saved["conditions"] == conditions else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def summary(reports: dict[str, Report]) -> str:
    """Claim, verdict and deciding number of each demo, for a terminal."""
    lines = []
    for name, (demo, _) in parts().items():
        report = reports[name]
        lines.append(paragraph(f"{name}: {DEMOS[demo].claim}"))
        lines.append(paragraph(f"{report.told}. {report.number}", "    ", "    "))
    return "\n".join(lines)
