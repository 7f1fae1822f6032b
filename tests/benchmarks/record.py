"""Reads and writes records. A run of the benchmarks writes them, and pages of docs/ show them.

A record is a JSON file with title, machine, kernels, date, commit, versions, limits, and one of these:

    races            an entry for each race: table, size, threads, steps, times {contender: seconds of a step
                     by round}, ours (lnrnn's contenders; the first is judged), limit, errors ...
    columns, rows    a table; `pivot` names the column whose values become columns on the page. Or the page
                     has `views`, tables of some of the columns and rows

A record with `carried_over` was copied from a page and has no raw times. Its races have one time for each
contender, and `ratio` and `of_limit` as on that page.
"""

from __future__ import annotations

import json
import re
from itertools import groupby
from math import floor, log10
from pathlib import Path

import numpy as np

from neighbours import BUSY

RESULTS = Path(__file__).parent / "results"
UNITS = {"read": "GB/s", "copy": "GB/s", "int8": "GOP/s"}  # first word of a limit's name -> its unit
FOOTNOTE = (
    "Times are medians over the rounds, ± half the distance of the quartiles in % of the median. Ratios "
    "compare times of the same round: 2.0x is twice lnrnn's time. 'of limit' is the limit's time over "
    "lnrnn's. Errors are those of y against the reference in float64, relative to its largest value. "
    f"(!): other processes used {BUSY:.0%} or more of the CPUs, so the row is less reliable."
)


class Race:
    """One race, from its entry in a record."""

    def __init__(self, facts: dict):
        self.facts = facts
        self.table, self.size, self.threads = facts["table"], facts["size"], facts["threads"]
        self.times = {name: np.array(took) for name, took in facts["times"].items()}
        self.limit = None if facts.get("limit") is None else np.array(facts["limit"])
        self.judged, *self.variants = facts["ours"]
        others = [name for name in self.times if name not in facts["ours"]]
        self.other_work = [name for name in others if name in facts["other_work"]]
        self.peers = [name for name in others if name not in self.other_work]
        self.best_peer = min(self.peers, key=self.median, default=None)

    @property
    def disturbed(self) -> bool:
        return (self.facts.get("others") or 0) >= BUSY

    @property
    def of_limit(self) -> float | None:
        """Returns the limit's time divided by lnrnn's time."""
        if self.limit is None:
            return self.facts.get("of_limit")
        return float(np.median(self.limit / self.times[self.judged]))

    def median(self, name: str) -> float:
        return float(np.median(self.times[name]))

    def ratio(self, name: str, ours: str | None = None) -> float:
        """Returns the contender's time over the time of `ours` (None: the judged one). This is the median of
        the ratios of all rounds, so that drift cancels."""
        if name == self.best_peer and ours is None and "ratio" in self.facts:
            return self.facts["ratio"]
        return float(np.median(self.times[name] / self.times[ours or self.judged]))


def geometric_mean(values) -> float:
    return float(np.exp(np.mean(np.log(list(values)))))


def _in_order(groups) -> list[str]:
    """Returns the names of several lists without repetitions, in order of first appearance."""
    return list(dict.fromkeys(name for names in groups for name in names))


class Table:
    """A table: the races with one name and one number of threads."""

    def __init__(self, races: list[Race]):
        self.races = races
        self.judged = races[0].judged
        self.peers = _in_order(r.peers for r in races)
        variants, other_work = _in_order(r.variants for r in races), _in_order(r.other_work for r in races)
        self.compared = [*variants, *other_work]  # the table has a column of ratios for each
        self.contenders = [self.judged, *variants, *self.peers, *other_work]
        also = _in_order(r.facts.get("also_judged", []) for r in races) if self.peers else []
        self.contests = {"vs best peer": None, **{f"best peer vs {_short(name)}": name for name in also}}
        self.limited = any(r.of_limit for r in races)
        least = min(r.median(self.judged) for r in races)
        self.unit, self.scale = ("ms", 1e3) if least >= 1e-3 else ("us", 1e6)

    @property
    def title(self) -> str:
        threads = self.races[0].threads
        where = "one core" if threads == 1 else f"{threads} threads"
        timed = "step" if self.races[0].facts["steps"] > 1 else "call"
        return f"{self.races[0].table}, {where} ({self.unit} a {timed})"

    def cells(self) -> list[list[str]]:
        header = ["size", *self.contenders, *(f"vs {_short(name)}" for name in self.compared)]
        header += [*self.contests] if self.peers else []
        header += ["of limit"] if self.limited else []
        return [header, *map(self._row, self.races)]

    def _row(self, race: Race) -> list[str]:
        row = [race.size + (" (!)" if race.disturbed else "")]
        row += [self._time(race, name) for name in self.contenders]
        row += [_times(race, name) for name in self.compared]
        if self.peers:
            row += [
                f"{_times(race, race.best_peer, ours)} {race.best_peer or ''}"
                for ours in self.contests.values()
            ]
        if self.limited:
            row.append(
                f"{race.of_limit:.2f} {race.facts.get('limit_is', '')}".strip() if race.of_limit else "-"
            )
        return row

    def column(self) -> dict[str, str]:
        """Returns the table as one column of a page: each size, and the geometric means."""
        times = {
            r.size: f"{digits(r.median(self.judged) * 1e6)}, {_times(r, r.best_peer)} {r.best_peer}"
            for r in self.races
        }
        return times | {f"mean {name}": value for name, value in self.means().items()}

    def _time(self, race: Race, name: str) -> str:
        if name not in race.times:
            return "-"
        low, middle, high = np.percentile(race.times[name], [25, 50, 75])
        spread = f" ±{(high - low) / 2 / middle * 100:.0f}%" if len(race.times[name]) > 1 else ""
        return digits(middle * self.scale) + spread

    def errors(self) -> list[list[str]]:
        """Returns header and rows of the errors, or [] if the races have none."""
        rows = []
        for race in self.races:
            if errors := race.facts.get("errors"):
                pairs = (errors.get(name) for name in self.contenders)
                rows.append([race.size, *(f"{pair[0]:.1e} {pair[1]:.1e}" if pair else "-" for pair in pairs)])
        return [["error: largest, mean", *self.contenders], *rows] if rows else []

    def means(self) -> dict[str, str]:
        """Returns geometric means of ratios and `of_limit`, and the lowest ratio to the best peer."""
        means = {}
        for name in (*self.compared, *self.peers):
            ratios = [r.ratio(name) for r in self.races if name in r.times]
            means[f"vs {_short(name)}"] = f"{geometric_mean(ratios):.2f}x"
        for heading, ours in self.contests.items():
            ratios = {r.size: r.ratio(r.best_peer, ours) for r in self.races if r.best_peer}
            if ratios:
                worst = min(ratios, key=ratios.get)
                mean = geometric_mean(ratios.values())
                means[heading] = f"{mean:.2f}x, lowest {ratios[worst]:.2f}x at {worst}"
        if parts := [r.of_limit for r in self.races if r.of_limit]:
            means["of limit"] = f"{geometric_mean(parts):.2f}"
        return means

    def notes(self) -> list[str]:
        """Returns lines with targets, whether they are met, and peers that did not race."""
        lines, reasons = [], {}
        for race in self.races:
            facts = race.facts
            share = facts.get("grace", 0) / facts["steps"] / race.median(self.judged)
            for name, most in facts.get("bounds", {}).items():
                verdict = "met" if race.ratio(name) <= most + share else "NOT MET"
                grace = f" and {facts['grace'] * 1e6:.0f} us" if share else ""
                target = f"{name}, target {most:.2f}x the time of {self.judged}{grace}"
                lines.append(f"{target}, {race.size}: {verdict}, {race.ratio(name):.2f}x")
            for name, reason in facts.get("left_out", {}).items():
                reasons.setdefault((name, reason), []).append(race.size)
        for (name, reason), sizes in reasons.items():
            where = "" if len(sizes) == len(self.races) else f" ({', '.join(sizes)})"
            lines.append(f"left out: {name} {reason}{where}")
        return lines

    def text(self) -> list[str]:
        means = "; ".join(f"{name} {value}" for name, value in self.means().items())
        if all(race.disturbed for race in self.races):
            means = "none, because other processes disturbed every row: run it again on an idle machine"
        lines = [self.title, *in_columns(self.cells()), f"geometric mean: {means}"]
        return [*lines, *self.notes(), *in_columns(self.errors()), ""]


def tables(races: list[dict]) -> list[Table]:
    """Returns a Table for each name and number of threads, in the order of the races."""
    groups: dict[tuple, list[Race]] = {}
    for race in map(Race, races):
        groups.setdefault((race.table, race.threads), []).append(race)
    return [Table(group) for group in groups.values()]


def load(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def save(record: dict, path: Path) -> None:
    """Writes a key, race or row per line, so that a diff of two files is readable."""
    lines = []
    for key, value in record.items():
        shown = json.dumps(value)
        if key in ("races", "rows"):
            shown = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        lines.append(f" {json.dumps(key)}: {shown}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def source(record: dict) -> str:
    """Returns the line below a table: machine, kernels, date, versions."""
    parts = [
        record["machine"],
        *([f"kernels {record['kernels']}"] if record["kernels"] else []),
        record["date"],
    ]
    parts += [f"{name} {version}" for name, version in record["versions"].items() if version]
    parts += [f"commit {record['commit']}"] if record["commit"] else []
    return ", ".join(parts) + (", no raw times kept" if record.get("carried_over") else "")


def _side_by_side(threads: int, group: list[Table]) -> tuple[str, list[list[str]], list[str]]:
    """Returns a table of a page, with a column for each cell: times, the best peer, and means."""
    names = [table.races[0].table.partition(", ") for table in group]
    where = "one core" if threads == 1 else f"{threads} threads"
    columns = [table.column() for table in group]
    order = sorted(_in_order(columns), key=_numbers)
    rows = [[row, *(own.get(row, "-") for own in columns)] for row in order]
    caption = f"{names[0][2]}, {where} (lnrnn's us a step, the best peer's time divided by it)".capitalize()
    return (
        caption,
        [["size", *(name for name, *_ in names)], *rows],
        [n for table in group for n in table.notes()],
    )


def _numbers(row: str) -> list[int]:
    """Returns the numbers of a size, such as "B=8 H=256", by which rows are ordered. Means come last."""
    return [2**62] if row.startswith("mean ") else [int(n) for n in re.findall(r"\d+", row)]


def contents(record: dict) -> list[tuple[str, list[list[str]], list[str]]]:
    """Returns the tables of a record: [(caption, header and rows, lines below)]."""
    if "races" in record:
        shown_tables = []
        for threads, group in groupby(tables(record["races"]), key=lambda table: table.races[0].threads):
            shown_tables.append(_side_by_side(threads, list(group)))
        return shown_tables
    header, rows = record["columns"], record["rows"]
    if views := record.get("views"):
        return [(view["title"], _view(view, header, rows), []) for view in views]
    if pivot := record.get("pivot"):
        at = header.index(pivot)
        wide = sorted({row[at] for row in rows})
        rows = sorted(rows, key=lambda row: [[r[0] for r in rows].index(row[0]), *row[1:at]])
        shown: dict[tuple, dict] = {}
        for row in rows:
            shown.setdefault(tuple(row[:at]), {})[row[at]] = ", ".join(map(str, row[at + 1 :]))
        rows = [[*key, *(cells.get(value, "-") for value in wide)] for key, cells in shown.items()]
        caption = f"{record['title']} ({', '.join(header[at + 1 :])})"
        header = [*header[:at], *(f"{pivot} = {value}" for value in wide)]
    else:
        caption = record["title"] + (f" ({record['unit']})" if "unit" in record else "")
    return [(caption, [list(header), *([str(cell) for cell in row] for row in rows)], [])]


def _view(view: dict, header: list[str], rows: list[list]) -> list[list[str]]:
    """Returns a table of some columns and rows. It marks a row as Table does."""
    cells = [[*view["columns"]]]
    for row in (dict(zip(header, row, strict=True)) for row in rows):
        if all(row[name] in values for name, values in view["where"].items()):
            first, *rest = (row.get(name) for name in view["columns"])
            mark = " (!)" if (row["others"] or 0) >= BUSY else ""
            numbers = (digits(v) if isinstance(v, float) else "-" if v is None else str(v) for v in rest)
            cells.append([f"{first}{mark}", *numbers])
    return cells


def bars(record: dict) -> dict[str, dict[str, float]]:
    """Returns {group: {series: height}} for a record's bar chart. Heights are geometric means.

    Races on one thread give the peer's time over lnrnn's, for each table and peer. A table with a pivot gives
    the column `against best`, for each value of the first column and of the pivot."""
    if "races" in record:
        return {
            table.races[0].table: {
                peer: geometric_mean(
                    r.median(peer) / r.median(r.judged) for r in table.races if peer in r.times
                )
                for peer in table.peers
            }
            for table in tables([race for race in record["races"] if race["threads"] == 1])
            if table.peers
        }
    at, height = (record["columns"].index(name) for name in (record["pivot"], "against best"))
    heights: dict[str, dict[str, list[float]]] = {}
    for row in record["rows"]:
        heights.setdefault(row[0], {}).setdefault(f"{record['pivot']} = {row[at]}", []).append(row[height])
    return {group: {name: geometric_mean(v) for name, v in bars.items()} for group, bars in heights.items()}


def terminal(records: list[dict], skipped: dict[tuple[str, str], list[str]]) -> list[str]:
    """Returns the lines at the end of a run. skipped: {(table, reason): sizes}."""
    lines = []
    for record in records[:1]:
        lines.append(source(record))
        for threads, limits in record["limits"].items():
            rates = (
                f"{name} {rate / 1e9:.0f} {UNITS.get(name.split()[0], 'GFLOP/s')}"
                for name, rate in limits.items()
            )
            lines += [f"limits, {threads} thread{'s' * (int(threads) > 1)}: {', '.join(rates)}", ""]
    for record in records:
        if "races" in record:
            lines += [line for table in tables(record["races"]) for line in table.text()]
        else:
            lines += [
                line for title, cells, _ in contents(record) for line in (title, *in_columns(cells), "")
            ]
    lines += [f"not run: {table}, {', '.join(sizes)}: {reason}" for (table, reason), sizes in skipped.items()]
    return [*lines, FOOTNOTE]


def by_subject(races: list[dict]) -> dict[str, list[dict]]:
    chosen = sorted(races, key=lambda race: race["subject"])
    return {subject: list(group) for subject, group in groupby(chosen, key=lambda race: race["subject"])}


def in_columns(cells: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]) for first, *rest in cells]


def digits(value: float) -> str:
    """Returns a number with three significant digits and without exponent."""
    return f"{value:.{max(0, 2 - floor(log10(value)))}f}" if value > 0 else "0"


def _short(name: str) -> str:
    return name.removeprefix("lnrnn ")


def _times(race: Race, name: str | None, ours: str | None = None) -> str:
    return f"{race.ratio(name, ours):.2f}x" if name in race.times else "-"
