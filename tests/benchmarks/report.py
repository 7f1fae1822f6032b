"""The tables that end a run: for the terminal, and as Markdown."""

from __future__ import annotations

from itertools import groupby
from math import floor, log10

from neighbours import BUSY
from results import Entry, Skipped, geometric_mean, in_order

UNITS = {"read": "GB/s", "copy": "GB/s", "int8": "GOP/s"}  # of the machine's limits, by their first word
FOOTNOTE = (
    "Median over the rounds; ± half the distance between the quartiles, in % of it. Ratios compare times of "
    "the same round: 2.0x is twice lnrnn's time; [first, third quartile]. 'of limit' is the limit's time by "
    "lnrnn's. Errors are those of y against the reference in float64, relative to its largest value. "
    f"(!): other processes took {BUSY:.0%} or more of the CPUs meanwhile, so believe the row less."
)


def tables(entries: list[Entry]) -> list[Table]:
    """One table for each group and number of threads, in the order they ran."""
    found = {}
    for entry in entries:
        found.setdefault((entry.group, entry.threads), []).append(entry)
    return [Table(group, threads, rows) for (group, threads), rows in found.items()]


class Table:
    """The races of one group on one number of threads."""

    def __init__(self, group: str, threads: int, entries: list[Entry]):
        self.group, self.threads, self.entries = group, threads, entries
        self.judged = entries[0].judged
        self.variants = in_order(e.variants for e in entries)
        self.peers = in_order(e.peers for e in entries)
        self.other_work = in_order(e.other_work for e in entries)
        self.compared = [*self.variants, *self.other_work]  # each with a ratio of its own
        self.also_judged = in_order(e.outcome["also_judged"] for e in entries) if self.peers else []
        least = min(e.median(self.judged) for e in entries)
        self.unit, self.scale = ("ms", 1e3) if least >= 1e-3 else ("us", 1e6)

    @property
    def title(self) -> str:
        where = "one core" if self.threads == 1 else f"{self.threads} threads"
        what = f"{self.unit} a step" if self.entries[0].outcome["steps"] > 1 else f"{self.unit} a call"
        return f"{self.group}, {where} ({what})"

    def cells(self) -> list[list[str]]:
        """Header and rows."""
        header = ["size", *self.contenders]
        header += [f"vs {name.removeprefix('lnrnn ')}" for name in self.compared]
        header += ["vs best peer"] if self.peers else []
        header += [_best_against(name) for name in self.also_judged]
        header += ["limit", "of limit"] if self._limited else []
        return [header, *map(self._row, self.entries)]

    @property
    def contenders(self) -> list[str]:
        """In the order of their columns."""
        return [self.judged, *self.variants, *self.peers, *self.other_work]

    @property
    def _limited(self) -> bool:
        return any(e.limit is not None for e in self.entries)

    def _row(self, entry: Entry) -> list[str]:
        row = [entry.size + (" (!)" if entry.disturbed else "")]
        row += [self._time(entry, name) for name in self.contenders]
        row += [f"{entry.ratio(name)[1]:.2f}x" if name in entry.samples else "-" for name in self.compared]
        if self.peers:
            row.append(_ratio(entry, entry.best_peer) + (f" {entry.best_peer}" if entry.best_peer else ""))
            row += [_ratio(entry, entry.best_peer, name) for name in self.also_judged]
        if self._limited:
            name = entry.outcome["limit_name"]
            row += (
                ["-", "-"]
                if entry.limit is None
                else [f"{_short(entry.limit_median * self.scale)} {name}", f"{entry.of_limit:.2f}"]
            )
        return row

    def _time(self, entry: Entry, name: str) -> str:
        if name not in entry.samples:
            return "-"
        low, middle, high = entry.quartiles(name)
        return f"{_short(middle * self.scale)} ±{(high - low) / 2 / middle * 100:.0f}%"

    def errors(self) -> list[list[str]]:
        """Header and rows of how far answers are from the reference; none where the case does not tell."""
        rows = []
        for entry in self.entries:
            found = entry.outcome["errors"]
            told = [
                f"{found[name][0]:.1e} {found[name][1]:.1e}" if name in found else "-"
                for name in self.contenders
            ]
            rows += [[entry.size, *told]] if found else []
        return [["error: largest, mean", *self.contenders], *rows] if rows else []

    def means(self) -> dict[str, str]:
        """Geometric means over the rows: of the ratio to each contender and to the best peer, with the rows
        that lie farthest off, and of the limit's part."""
        found = {}
        for name in self.compared:
            ratios = {e.size: e.ratio(name)[1] for e in self.entries if name in e.samples}
            least, most = min(ratios, key=ratios.get), max(ratios, key=ratios.get)
            span = f" ({ratios[least]:.2f}x at {least} to {ratios[most]:.2f}x at {most})"
            mean = f"{geometric_mean(ratios.values()):.2f}x"
            found[f"vs {name.removeprefix('lnrnn ')}"] = mean + (span if len(ratios) > 1 else "")
        for name in self.peers:
            ratios = [e.ratio(name)[1] for e in self.entries if name in e.samples]
            found[f"vs {name}"] = f"{geometric_mean(ratios):.2f}x"
        contests = {"vs best peer": ("best_peer", None)}
        contests |= {_best_against(name): ("best_peer", name) for name in self.also_judged}
        for heading, (best, ours) in contests.items():
            ratios = {e.size: e.ratio(getattr(e, best), ours)[1] for e in self.entries if getattr(e, best)}
            if ratios:
                worst = min(ratios, key=ratios.get)
                mean = geometric_mean(ratios.values())
                found[heading] = f"{mean:.2f}x, lowest {ratios[worst]:.2f}x at {worst}"
        parts = [e.of_limit for e in self.entries if e.of_limit]
        if parts:
            found["of limit"] = f"{geometric_mean(parts):.2f}"
        return found

    def bounds(self) -> list[str]:
        """What variants of ours should take at most, and whether they do."""
        found = {}
        for entry in self.entries:
            grace = entry.outcome["grace"]
            share = grace / entry.outcome["steps"] / entry.median(self.judged)  # in times of the judged one's
            for name, most in entry.outcome["bounds"].items():
                ratio = entry.ratio(name)[1]
                found.setdefault((name, most, grace), {})[entry.size] = ratio - most - share, ratio
        lines = []
        for (name, most, grace), ratios in found.items():
            worst = max(ratios, key=ratios.get)
            beyond, ratio = ratios[worst]
            besides = f" and {grace * 1e6:.0f} us a call" if grace else ""
            verdict = "it does" if beyond <= 0 else "IT DOES NOT"
            lines.append(
                f"{name} should take at most {most:.2f}x the time of {self.judged}{besides} "
                f"({', '.join(ratios)}): {verdict}, {ratio:.2f}x at {worst}"
            )
        return lines

    def rates(self) -> list[str]:
        """Calls a second, where what a call is has a name."""
        lines = []
        for entry in self.entries:
            if what := entry.outcome["counted"]:
                rates = {
                    name: 1 / (entry.median(name) * entry.outcome["steps"])
                    for name in self.contenders
                    if name in entry.samples
                }
                said = ", ".join(f"{name} {_short(rate)}" for name, rate in rates.items())
                lines.append(f"{what} a second, {entry.size}: {said}")
        return lines

    def notes(self) -> list[str]:
        """Peers that did not race, each with the reason and the sizes that it holds for."""
        reasons = {}
        for entry in self.entries:
            for name, reason in entry.outcome["left_out"].items():
                reasons.setdefault((name, reason), []).append(entry.size)

        def where(sizes):
            return "" if len(sizes) == len(self.entries) else f" ({', '.join(sizes)})"

        return [f"left out: {name} {reason}{where(sizes)}" for (name, reason), sizes in reasons.items()]

    def summary(self) -> str:
        return "; ".join(f"{name} {value}" for name, value in self.means().items())

    def text(self) -> list[str]:
        lines = _in_columns(self.cells())
        below = [*self.rates(), *self.bounds(), *self.notes(), *_in_columns(self.errors())]
        return [self.title, *lines, f"geometric mean: {self.summary()}", *below]

    def markdown(self) -> list[str]:
        lines = _in_markdown(self.cells())
        notes = [f"\n{note}" for note in (*self.rates(), *self.bounds(), *self.notes())]
        notes += ["", *_in_markdown(errors)] if (errors := self.errors()) else []
        return [f"### {self.title}", "", *lines, "", f"Geometric mean: {self.summary()}", *notes, ""]


def _in_columns(cells: list[list[str]]) -> list[str]:
    """Header and rows as lines for a terminal."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]) for first, *rest in cells]


def _in_markdown(cells: list[list[str]]) -> list[str]:
    head, *rows = cells
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def about(workers: dict[int, dict], processor: str) -> list[str]:
    """The machine and the versions; workers: {threads: what each worker said of itself}."""
    if not workers:
        return []
    first = next(iter(workers.values()))
    versions = [f"{name} {version or 'not installed'}" for name, version in first["versions"].items()]
    lines = [f"{processor}; {', '.join(versions)}; ISA {first['isa']}"]
    for threads, worker in workers.items():
        rates = [
            f"{name} {rate / 1e9:.0f} {UNITS.get(name.split()[0], 'GFLOP/s')}"
            for name, rate in worker["limits"].items()
        ]
        lines.append(f"limits, {threads} thread{'s' * (threads > 1)}: {', '.join(rates)}")
    return lines


def not_run(skipped: list[Skipped]) -> list[str]:
    """One line for all sizes of a group that could not run for one reason."""
    sizes = {}
    for one in skipped:
        sizes.setdefault((one.group, one.reason), {})[one.size] = None
    return [f"not run: {group}, {', '.join(found)}: {reason}" for (group, reason), found in sizes.items()]


def terminal(
    entries: list[Entry], workers: dict[int, dict], processor: str, skipped: list[Skipped]
) -> list[str]:
    lines = [*about(workers, processor), ""]
    found = tables(entries)
    for table in found:
        lines += [*table.text(), ""]
    lines += ["geometric means"] + [f"  {table.title}: {table.summary()}" for table in found]
    return [*lines, *not_run(skipped), "", FOOTNOTE]


def markdown(
    entries: list[Entry], workers: dict[int, dict], processor: str, skipped: list[Skipped]
) -> dict[str, str]:
    """{subject: the text of its file}."""
    files = {}
    for subject, chosen in groupby(sorted(entries, key=lambda e: e.subject), key=lambda e: e.subject):
        lines = [f"## {subject}", "", *(f"{line}\n" for line in about(workers, processor))]
        for table in tables(list(chosen)):
            lines += table.markdown()
        lines += [f"{line}\n" for line in (*not_run([s for s in skipped if s.subject == subject]), FOOTNOTE)]
        files[subject] = "\n".join(lines)
    return files


def _best_against(ours: str) -> str:
    """The heading of the best peer's ratio to another than the judged one."""
    return f"best peer vs {ours.removeprefix('lnrnn ')}"


def _ratio(entry: Entry, name: str | None, ours: str | None = None) -> str:
    if name not in entry.samples:
        return "-"
    low, middle, high = entry.ratio(name, ours)
    return f"{middle:.2f}x [{low:.2f}, {high:.2f}]"


def _short(value: float) -> str:
    """Three significant digits, no exponent."""
    return f"{value:.{max(0, 2 - floor(log10(value)))}f}" if value > 0 else "0"
