"""What the demos have in common: a claim is measured, a verdict follows, a figure shows the numbers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, get_args

from lnrnn.demos.packages import require
from lnrnn.demos.parallel import one_thread
from lnrnn.demos.tables import paragraph
from lnrnn.files import check_replaceable, replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Verdict = Literal["confirmed", "not confirmed", "depends"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Results = TypeVar("Results")
# What a study calls while it measures: the part that is done, 0 to 1, and a few words on what it is at.
Progress = Callable[[float, str], None]
# 20 cells at any width. What it is at comes last, so that a narrow terminal cuts that and no number.
BAR = "{percentage:3.0f}%|{bar:20}| {elapsed}<{remaining}  {desc}"


@dataclass(frozen=True)
class Report:
    """What came out.

    verdict: on the claim as it stands. number: the deciding number, with its unit, in a few words. text: the
    findings and then the tables, as `tables.lay_out` arranges them for the terminal. depends_on: with the
    verdict "depends", on what.
    """

    verdict: Verdict
    number: str
    text: str
    depends_on: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS or bool(self.depends_on) != (self.verdict == "depends"):
            raise ValueError(f"a verdict is one of {VERDICTS}, and only 'depends' says on what: {self}")

    @property
    def told(self) -> str:
        """The verdict in words."""
        return f"depends on {self.depends_on}" if self.depends_on else self.verdict


@dataclass(frozen=True)
class Study(Generic[Results]):
    """A demo that measures one claim.

    name: as on the command line; the figure's file is name with underscores, and .png.
    claim: one sentence. source: who claims it, and where.
    how: what is about to be done, for the reader of the terminal, by seeds and quick; a paragraph a line.
    measure: by seeds, quick and progress -> results. Seeds are 0, 1, ..., seeds - 1; nothing else is random.
    It runs on one thread; `lnrnn.demos.parallel.side_by_side` uses the others.
    report, draw: of results; draw on an empty figure.
    size: of the figure, in inches.
    """

    name: str
    claim: str
    source: str
    how: Callable[[int, bool], str]
    measure: Callable[[int, bool, Progress], Results]
    report: Callable[[Results], Report]
    draw: Callable[[Results, Figure], None]
    size: tuple[float, float] = (12.0, 6.0)

    @property
    def file(self) -> str:
        return self.name.replace("-", "_") + ".png"

    def run(self, *, seeds: int, output_dir: Path, quick: bool, figure: bool) -> Report:
        """Measures, prints and draws."""
        path = output_dir / self.file
        tqdm = require("tqdm").tqdm
        if figure:
            require("matplotlib", otherwise="leave the figure out: --no-figure, in Python figure=False")
            output_dir.mkdir(parents=True, exist_ok=True)
            check_replaceable(path)
        print(paragraph(f"{self.claim} ({self.source})"))
        for text in self.how(seeds, quick).splitlines():
            print(paragraph(text))
        if quick:
            print("A quick run: its numbers mean little.")
        started = time.perf_counter()
        with tqdm(total=100, smoothing=0, bar_format=BAR) as bar:

            def progress(done: float, text: str) -> None:
                bar.set_description_str(text, refresh=False)
                bar.update(round(100 * done) - bar.n)

            with one_thread():
                results = self.measure(seeds, quick, progress)
            progress(1, "done")
        report = self.report(results)
        print("\n" + paragraph(f"Verdict: {report.told}. {report.number}"))
        print(f"\n{report.text}")
        if figure:
            save_figure(path, self.size, lambda drawing: self.draw(results, drawing))
            print(f"\nFigure: {path.resolve()}")
        print(f"\nTook {time.perf_counter() - started:.0f} s.")
        return report


def save_figure(path: Path, size: tuple[float, float], draw: Callable[[Figure], None]) -> None:
    """Writes what ``draw`` puts on an empty figure of ``size`` inches as a PNG, whole or not at all."""
    # Figure and canvas by hand, not pyplot: no window system is asked for and no global state is touched.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=size, dpi=150, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06))
    FigureCanvasAgg(figure)
    draw(figure)
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    with replacing(path) as write:
        write(buffer.getvalue())
