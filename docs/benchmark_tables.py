"""Draws tables and figures of the records in tests/benchmarks/results for the site:

    ```{benchmark-table} recurrent_zen5      all tables of a record, with machine and date below
    ```{benchmark-figure} recurrent_zen5     bars: see `bars` in tests/benchmarks/record.py
    {bench}`threads_zen4 RNN of limit`       one number of a record's `figures`, or of its geometric means

`python docs/benchmark_tables.py` draws README's picture, docs/speed_ratio.png.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

# The folder comes last: in front, it would hide modules of the same names that studies import.
sys.path.append(str(Path(__file__).parents[1] / "tests" / "benchmarks"))

import record  # noqa: E402

NAMES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "jax": "JAX"}
COLOURS = ("#8fb3d9", "#5c8fc2", "#f0b57a", "#b9b9b9", "#c9a0d0")
README, PICTURE = "recurrent_zen5", Path(__file__).parent / "speed_ratio.png"


def draw(name: str, target: Any, form: str) -> None:
    """Draws the times of other libraries, divided by lnrnn's time, as bars. The line at 1 is lnrnn."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = record.load(name)
    bars = record.bars(found)
    series = list(dict.fromkeys(one for group in bars.values() for one in group))
    figure, axes = plt.subplots(figsize=(8.4, 3.6), layout="constrained")
    width = 0.8 / len(series)
    for place, one in enumerate(series):
        at = [
            k + (place - (len(series) - 1) / 2) * width
            for k, group in enumerate(bars.values())
            if one in group
        ]
        heights = [group[one] for group in bars.values() if one in group]
        drawn = axes.bar(
            at, heights, width * 0.92, color=COLOURS[place % len(COLOURS)], label=NAMES.get(one, one)
        )
        axes.bar_label(drawn, [f"{height:.1f}x" for height in heights], padding=2, fontsize=9)
    axes.axhline(1, color="#b03030", linewidth=2)
    axes.text(0.5, 1.04, "lnrnn", color="#b03030", ha="center", va="bottom", fontsize=11)
    axes.set_ylim(0, 1.25 * max(max(group.values()) for group in bars.values()))
    axes.set_xticks(range(len(bars)), [group.split(",")[0] for group in bars], fontsize=11)
    axes.set_ylabel("time, lnrnn's = 1")
    axes.set_title(f"{found['title']}: {found['machine']}, {found['date']}", fontsize=10)
    axes.legend(ncols=len(series), loc="upper right", frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(
        target, format=form, dpi=110, metadata={"Software": None} if form == "png" else {"Date": None}
    )
    plt.close(figure)


def figures(name: str) -> dict[str, str]:
    """Returns a record's numbers by name: its `figures`, and the geometric means of its tables by heading."""
    found = record.load(name)
    numbers = {key: str(value) for key, value in found.get("figures", {}).items()}
    for table in record.tables(found.get("races", [])):
        threads = table.races[0].threads
        numbers |= {
            f"{table.races[0].table}, {threads}t, {key}": value.split(",")[0]
            for key, value in table.means().items()
        }
    return numbers


def _table(cells: list[list[str]]) -> nodes.table:
    head, *rows = cells
    table, group = nodes.table(), nodes.tgroup(cols=len(head))
    table += group
    group += [nodes.colspec(colwidth=1) for _ in head]
    for kind, part in ((nodes.thead, [head]), (nodes.tbody, rows)):
        body = kind()
        for cells_of_row in part:
            row = nodes.row()
            row += [nodes.entry("", nodes.paragraph(text=cell)) for cell in cells_of_row]
            body += row
        group += body
    return table


class BenchmarkTable(Directive):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        found = record.load(self.arguments[0])
        shown: list[nodes.Node] = []
        for caption, cells, notes in record.contents(found):
            shown.append(nodes.paragraph("", "", nodes.strong(text=caption)))
            shown.append(_table(cells))
            shown += [nodes.paragraph(text=note) for note in notes]
        return [*shown, nodes.paragraph("", "", nodes.emphasis(text=record.source(found)))]


class BenchmarkFigure(Directive):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        drawn = io.StringIO()
        draw(self.arguments[0], drawn, "svg")
        svg = drawn.getvalue()
        return [nodes.raw("", svg[svg.index("<svg") :], format="html")]


def bench(name: str, raw: str, text: str, line: int, inliner: Any, *_: Any) -> tuple[list, list]:
    """Implements the role {bench}, which shows a number of a record."""
    which, _, key = text.partition(" ")
    numbers = figures(which)
    if key not in numbers:
        problem = inliner.reporter.error(f"{which} has no {key!r}, but {sorted(numbers)}", line=line)
        return [inliner.problematic(raw, raw, problem)], [problem]
    return [nodes.inline(text=numbers[key])], []


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("benchmark-table", BenchmarkTable)
    app.add_directive("benchmark-figure", BenchmarkFigure)
    app.add_role("bench", bench)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    draw(README, PICTURE, "png")
