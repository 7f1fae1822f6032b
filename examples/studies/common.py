"""Code that all studies share: intervals and verdicts, tables, runs, stored results, the command line.

A study is one file with constants to change, the functions ``tune`` and ``measure``, its clauses, tables and
figure. As a script it measures. In a page or a notebook it draws the results stored in ``results/``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

import lnrnn
from lnrnn import cli, speakers
from lnrnn.files import check_replaceable, replacing
from lnrnn.packages import require
from lnrnn.studies import FLAGS

FOLDER = Path(__file__).parent
TUNING_SEEDS = range(5)
SEEDS = range(5, 25)
QUICK_SEEDS = range(5, 7)
SIZE = (9.0, 4.2)  # of a figure, in inches
NORMS: dict[str, speakers.NormName | None] = {"no norm": None, "LN": "layer", "BN": "batch"}


# --- intervals and verdicts ---------------------------------------------------------------------------------

Verdict = Literal["confirmed", "refuted", "unclear"]


def interval(values: np.ndarray, comparisons: int = 1) -> tuple[float, float]:
    """Returns the 95 % confidence interval of the mean of values (S,), one per seed, by Student's t.

    comparisons: how many intervals hold jointly at 95 %, by Bonferroni's correction. With one value the
    interval is infinite."""
    if len(values) < 2:
        return -np.inf, np.inf
    t = require("scipy.stats", "this study", "demo").t.ppf(1 - 0.025 / comparisons, len(values) - 1)
    half = float(t * values.std(ddof=1) / len(values) ** 0.5)
    return float(values.mean()) - half, float(values.mean()) + half


@dataclass(frozen=True)
class Clause:
    """A part of a claim which says that a mean over the seeds is above a margin.

    text: the claim in a few words. values: (S,), one per seed; a difference is paired by seed. margin: the
    project's threshold. unit: for printing. "points" and "%" print values times 100, and "times" prints
    exp(value), because values and margin are then logarithms of ratios. comparisons: see `interval`."""

    text: str
    values: np.ndarray
    margin: float
    unit: str = "points"
    comparisons: int = 1

    def verdict(self, margin: float | None = None) -> Verdict:
        """Returns the verdict at ``margin``, by default at the project's margin."""
        low, high = interval(np.asarray(self.values), self.comparisons)
        threshold = self.margin if margin is None else margin
        return "confirmed" if low > threshold else "refuted" if high < threshold else "unclear"

    def row(self) -> list[str]:
        low, high = interval(np.asarray(self.values), self.comparisons)
        mean, low, high, margin = map(self._number, (float(np.mean(self.values)), low, high, self.margin))
        return [self.text, f"{mean} [{low}, {high}] {self.unit}", margin, self.verdict(), self.verdict(0.0)]

    def _number(self, value: float) -> str:
        if self.unit == "times":
            return f"{np.exp(value):.3g}"
        return f"{(100 if self.unit in ('points', '%') else 1) * value:+.3g}"


@dataclass(frozen=True)
class Check:
    """A part of a claim that follows from definitions, so it fails only if the library has a defect."""

    text: str
    holds: bool

    def row(self) -> list[str]:
        return [self.text, "checked", "", "holds" if self.holds else "does not hold", ""]


def checks(parts: dict[str, Any]) -> list[Check]:
    """Returns a Check for each text. parts: for each text, whether it holds."""
    return [Check(text, bool(holds)) for text, holds in parts.items()]


def with_interval(
    values: np.ndarray, comparisons: int = 1, style: str = "+.1f", of: Callable[[Any], Any] = float
) -> str:
    """Prints the mean of values (S,) and its interval, each as ``of`` it: "-1.2 [-2.0, -0.4]"."""
    mean, low, high = map(of, (np.mean(values), *interval(np.asarray(values), comparisons)))
    return f"{mean:{style}} [{low:{style}}, {high:{style}}]"


def points(values: np.ndarray, comparisons: int = 1) -> str:
    """Prints differences of shares, (S,), as mean and interval in points: "-1.2 [-2.0, -0.4]"."""
    return with_interval(values, comparisons, of=lambda share: 100 * share)


def plus_minus(values: np.ndarray, digits: int = 2, sign: str = "", scale: int = 1) -> str:
    """Prints ``scale`` times values (S,), one per seed, as mean and standard deviation: "12.30±0.45"."""
    deviation = f"±{scale * np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{scale * np.mean(values):{sign}.{digits}f}{deviation}"


def percent(values: np.ndarray) -> str:
    """Prints shares, (S,), one per seed, as mean and standard deviation in percent: "95.1±0.4"."""
    return plus_minus(values, 1, scale=100)


def columns() -> int:
    """Returns the width of text: the terminal's width within limits, or a fixed width in a page."""
    return 96 if in_page() else min(max(shutil.get_terminal_size().columns, 60), 120)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns aligned columns under a ruled header: the first column to the left, the others to the right.
    A table wider than `columns` is divided into several, and each begins with the first column."""
    lines = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    parts: list[list[int]] = [[]]
    for place, width in enumerate(widths[1:], 1):
        if parts[-1] and widths[0] + sum(2 + widths[k] for k in parts[-1]) + 2 + width > columns():
            parts.append([])
        parts[-1].append(place)
    texts = []
    for part in parts:
        head, *rest = (
            line[0].ljust(widths[0]) + "".join(f"  {line[k]:>{widths[k]}}" for k in part) for line in lines
        )
        texts.append("\n".join([head.rstrip(), "-" * len(head), *(row.rstrip() for row in rest)]))
    return "\n\n".join(texts)


# --- measuring ----------------------------------------------------------------------------------------------

_jobs = 1  # set by Study.measured


def side_by_side(function: Callable[[Any], Any], items: Iterable[Any], label: str = "") -> list[Any]:
    """Returns [function(item) for item in items], computed on all cores, and shows a progress bar."""
    items = list(items)
    bar_format = "{percentage:3.0f}%|{bar:20}| {elapsed}<{remaining}  {desc}"
    with require("tqdm", "this study", "demo").tqdm(
        total=len(items), desc=label, smoothing=0, bar_format=bar_format, disable=None
    ) as bar:

        def job(item: Any) -> Any:
            value = function(item)
            bar.update()
            return value

        return speakers.side_by_side(job, items, _jobs)


def stacked(found: Sequence[Any]) -> Any:
    """Stacks the results of several seeds: dicts become one dict, other values an array (S, ...)."""
    if isinstance(found[0], dict):
        return {name: stacked([one[name] for one in found]) for name in found[0]}
    return np.array(found)


def best(settings: Sequence[Any], scores: Sequence[float]) -> Any:
    """Returns the first setting with the highest score."""
    return settings[int(np.argmax(scores))]


def tuned(
    grids: dict[Any, Sequence[Any]], score: Callable[[Any, Any, int], float], seeds: Sequence[int]
) -> dict[Any, Any]:
    """Returns for each part, a key of ``grids``, the setting of its grid with the highest score, averaged
    over seeds. score(part, setting, seed)."""
    runs = [(part, setting, seed) for part, grid in grids.items() for setting in grid for seed in seeds]
    scores = iter(side_by_side(lambda run: score(*run), runs, "settings"))
    means = {part: [np.mean([next(scores) for _ in seeds]) for _ in grid] for part, grid in grids.items()}
    return {part: best(grid, means[part]) for part, grid in grids.items()}


def by_seed(
    job: Callable[[Any, int], Any], parts: Iterable[Any], seeds: Sequence[int], label: str = "networks"
) -> dict[Any, Any]:
    """Returns for each part the results of job(part, seed), `stacked` over the seeds."""
    parts = list(parts)
    found = iter(side_by_side(lambda item: job(*item), product(parts, seeds), label))
    return {part: stacked([next(found) for _ in seeds]) for part in parts}


def refusal(call: Callable[[], object]) -> str:
    """Returns the ValueError that a call raises, as text, or "" if it raises none."""
    try:
        call()
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def save_figure(path: Path, size: tuple[float, float], draw: Callable[[Any], object]) -> None:
    """Writes a figure of ``size`` inches, drawn by ``draw``, to a PNG file, whole or not at all."""
    # pyplot is not used, because it changes global state and may need a window system.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    with replacing(path) as write:
        write(buffer.getvalue())


# --- a study ------------------------------------------------------------------------------------------------

Results = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """A study's name, which is the name of its file, and its functions.

    tune(seeds, quick): returns the settings for `measure`, as values of JSON. None if nothing is chosen.
    measure(seeds, settings, quick): returns the results, a dict of arrays, numbers, strings and such dicts.
    Arrays with an entry per seed are (S, ...). Random numbers depend on the seeds alone.
    clauses(results): returns the parts of the claim. tables(results): returns texts. draw(results, figure).
    size: of the figure in inches, at most 10 wide. options: names of variants, such as cells. `measure` and
    `tune` get a variant as `option`, and the results' file is named after it. times(quick): returns the
    result "times", which may be measured again alone."""

    name: str
    measure: Callable[..., Results]
    clauses: Callable[[Results], list[Clause | Check]]
    tables: Callable[[Results], Iterable[str]]
    draw: Callable[[Results, Any], object]
    tune: Callable[..., Any] | None = None
    size: tuple[float, float] = SIZE
    options: tuple[str, ...] = ()
    times: Callable[[bool], Results] | None = None

    def file(self, option: str | None, suffix: str = ".json") -> str:
        return self.name + ("" if option in (None, *self.options[:1]) else f"_{option}") + suffix

    def kept(self, option: str | None = None) -> dict[str, Any] | None:
        """Returns the stored run: version, isa, seeds, settings, results, clauses. None without a file."""
        return read(self.file(option))

    def results(self, option: str | None = None) -> Results:
        """Returns the stored results."""
        return dict(needed(self.file(option))["results"])

    def measured(
        self, seeds: Sequence[int], quick: bool = False, tune: bool = False, option: str | None = None
    ) -> dict[str, Any]:
        """Measures, and returns a dict like that of `kept`."""
        global _jobs
        words = {"option": option or self.options[0]} if self.options else {}
        kept, settings = None if tune else self.kept(option), None
        with speakers.one_thread() as _jobs:
            if kept is not None:
                settings = kept["settings"]
            elif self.tune is not None:
                print("Choosing the settings.", flush=True)
                settings = self.tune(QUICK_SEEDS if quick else TUNING_SEEDS, quick, **words)
            results = self.measure(list(seeds), settings, quick, **words)
            if self.times is not None:
                results["times"] = self.times(quick)
        isa = lnrnn.cpu_info()["isa"]
        found = {"lnrnn": lnrnn.__version__, "isa": isa, "quick": quick, "seeds": seeds, "settings": settings}
        return self._finished(found | {"results": results})

    def _finished(self, found: dict[str, Any]) -> dict[str, Any]:
        """Rounds results as the stored file does, so that a page shows the same digits. Adds the clauses."""
        loaded = json.loads(json.dumps(as_lists(found)))
        loaded["results"] = as_arrays(loaded["results"])
        clauses = [] if loaded["quick"] else self.clauses(loaded["results"])
        loaded["clauses"] = [clause.row() for clause in clauses]
        return dict(loaded)

    def text(self, found: dict[str, Any]) -> str:
        """Returns the tables, and the clauses with their verdicts. A quick run is too small for clauses."""
        tables = "\n\n".join(self.tables(found["results"])) + "\n"
        for text, number, margin, verdict, at_zero in found["clauses"]:
            rest = f"{number}: {verdict}" + f" (margin {margin}; at 0: {at_zero})" * bool(at_zero)
            for line, indent in ((text, ""), (rest, "    ")):
                text = textwrap.fill(line, columns(), initial_indent=indent, subsequent_indent="    ")
                tables += f"\n{text}"
        return tables

    def main(self, argv: Sequence[str] | None = None) -> None:
        """Runs the script, or prints the stored results in a page. Bad input exits with code 2."""
        if in_page():
            print(self.text(needed(self.file(None))))
            return
        words = self._parser().parse_args(argv)
        code = cli.guarded(f"{self.name}.py", lambda: self._run(words), at_once=True)
        if code:
            sys.exit(code)

    def _run(self, words: argparse.Namespace) -> None:
        require("scipy.stats", "this study", "demo")
        if not words.kept:
            require("tqdm", "this study", "demo")
        again = getattr(words, "times", False)
        if (words.kept or again) and (words.quick or words.tune or words.seeds or words.kept == again):
            what = "--times measures times alone" if again else "--kept measures nothing"
            raise ValueError(f"{what}: leave out --quick, --tune and --seeds" + ", and --kept" * again)
        if words.seeds is not None and words.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, got {words.seeds}")
        if words.output_dir.is_file():
            raise NotADirectoryError(f"--output-dir must be a folder: {words.output_dir} is a file")
        words.output_dir.mkdir(parents=True, exist_ok=True)
        option, began = getattr(words, "option", None), time.perf_counter()
        kept_at, figure_at = (words.output_dir / self.file(option, suffix) for suffix in (".json", ".png"))
        for path in (kept_at, figure_at):
            check_replaceable(path)
        if again:
            found = needed(self.file(option))
            with speakers.one_thread():
                found["results"]["times"] = self.times(False)
            found = self._finished(found)
        elif words.kept:
            found = needed(self.file(option))
            if found["lnrnn"] != lnrnn.__version__:
                print(f"Stored results, measured with lnrnn {found['lnrnn']}; this is {lnrnn.__version__}.")
        else:
            seeds = QUICK_SEEDS if words.quick else range(SEEDS[0], SEEDS[0] + (words.seeds or len(SEEDS)))
            found = self.measured(seeds, words.quick, words.tune, option)
        try:
            if not words.kept:
                write(kept_at, found)
        finally:  # If the disk is full, the terminal still shows the results.
            print(f"\n{self.text(found)}\n", flush=True)
        if words.quick:
            print("A quick run: too small to decide anything.")
        print("Nothing was measured." if words.kept else f"Results: {kept_at.resolve()}")
        if not words.no_figure:
            require("matplotlib", "the figure", "demo", "leave it out: --no-figure")
            save_figure(figure_at, self.size, lambda figure: self.draw(found["results"], figure))
            print(f"Figure: {figure_at.resolve()}")
        print(f"Took {time.perf_counter() - began:.0f} s.")

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=f"{self.name}.py", allow_abbrev=False)
        add = parser.add_argument
        if self.options:
            add("--cell", dest="option", choices=self.options, help=f"default: {self.options[0]}")
        seeds = f"number of seeds: 5, 6, 7 and so on (default: {len(SEEDS)})"
        add("--seeds", type=int, metavar="N", help=seeds)
        if self.times:
            add("--times", action="store_true", help="measure only times again, with the stored results")
        for flag, words in FLAGS.items():
            add(f"--{flag}", action="store_true", help=words)
        add("--output-dir", type=Path, default=Path("."), metavar="DIR", help="for results and figure")
        return parser


def show(name: str, draw: Callable[[Results, Any], object], size: tuple[float, float] = SIZE) -> None:
    """Draws the stored results in the page or notebook of a study. A script draws in `Study.main`."""
    if in_page() and draw.__module__ == "__main__":
        from matplotlib import pyplot

        draw(needed(f"{name}.json")["results"], pyplot.figure(figsize=size, layout="constrained"))


def in_page() -> bool:
    """Returns whether sphinx-gallery or a notebook runs the file."""
    return "sphinx_gallery" in sys.modules or "ipykernel" in sys.modules


def read(name: str) -> dict[str, Any] | None:
    """Returns a file of results/, with arrays for lists of numbers in its results. None without the file."""
    path = FOLDER / "results" / name
    if not path.exists():
        return None
    found = dict(json.loads(path.read_text("utf-8")))
    return found | {"results": as_arrays(found["results"])}


def needed(name: str) -> dict[str, Any]:
    """Reads a file of results/ as `read` does. Without the file it raises FileNotFoundError."""
    if (found := read(name)) is None:
        raise FileNotFoundError(f"results/{name} is missing: run {name.partition('.')[0]}.py")
    return found


def write(path: Path, found: dict[str, Any]) -> None:
    """Writes each entry of `results` on a line of its own, so that a diff is readable."""
    found = as_lists(found)
    entries = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in found.pop("results").items())
    head = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in found.items())
    with replacing(path) as write_to:
        write_to(f'{{\n{head},\n "results": {{\n{entries}\n }}\n}}\n'.encode())


def as_lists(value: Any) -> Any:
    """Converts arrays to lists for JSON, and rounds numbers to seven significant digits."""
    if isinstance(value, dict):
        return {str(name): as_lists(entry) for name, entry in value.items()}
    if isinstance(value, (np.ndarray, list, tuple, range)):
        return [as_lists(entry) for entry in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.7g}")
    return value.item() if isinstance(value, np.generic) else value


def as_arrays(value: Any) -> Any:
    """Converts lists of numbers to arrays, the inverse of `as_lists`."""
    if isinstance(value, dict):
        return {name: as_arrays(entry) for name, entry in value.items()}
    if isinstance(value, list) and not any(isinstance(entry, (str, dict, type(None))) for entry in value):
        return np.array(value)
    return value
