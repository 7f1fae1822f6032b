"""Writes the results of benchmarks, campaigns and a study into the pages, and draws README's two pictures
and the picture of steps.

The results are in tests/benchmarks, tests/campaigns and examples/studies. Comments mark their places:

    <!-- table recurrent_zen5 -->            all tables of a record, with machine and date, up to
    <!-- end -->
    <!-- table campaigns -->                 the results of all campaigns, up to the same mark
    1.26<!-- heldout_zen4 LSTM of limit -->  a number of a record's `figures`, or of its geometric means
    14 %<!-- long_sequences last -->         the last value of a curve in the picture of that study

`python docs/result_tables.py` does so. tests/package/test_docs.py fails for a page that is not up to date.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

# The folder comes last: in front, it would hide modules of the same names that studies import.
sys.path.append(str(Path(__file__).parents[1] / "tests" / "benchmarks"))

import numpy as np  # noqa: E402

import record  # noqa: E402

NAMES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "jax": "JAX", "torch": "torch, eager"}
COLOURS = ("#2f6fae", "#7fb77e", "#f0b57a", "#b9b9b9", "#c9a0d0")
DOCS = Path(__file__).parent
CAMPAIGNS = DOCS.parent / "tests/campaigns"
README, PICTURE = "recurrent_zen3", DOCS / "speed_ratio.png"
LATENCY, STEPS = "latency", DOCS / "latency.png"
STUDY, CLIFF = "long_sequences", DOCS / "cliff.png"
TABLE = re.compile(r"<!-- table (\w+) -->\n.*?<!-- end -->", re.DOTALL)
NUMBER = re.compile(r"[-\d][^\s<]*(?: [^\s\d<]+)?<!-- (\w+) ([^>]+?) -->")  # 1.26x, 96 % or 217 GFLOP/s
NUMERIC = re.compile(r"[-+±\d.,]+ ?(?:x|%|[kMG]B|[mu]s)?(?: ±\d+%)?|-|")


def draw(name: str, target: Path) -> None:
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
        at = np.arange(len(bars)) + (place - (len(series) - 1) / 2) * width
        heights, colour = [group[one] for group in bars.values()], COLOURS[place % len(COLOURS)]
        drawn = axes.bar(at, heights, width * 0.92, color=colour, label=NAMES.get(one, one))
        axes.bar_label(drawn, [f"{height:.1f}x" for height in heights], padding=2, fontsize=9)
    axes.axhline(1, color="#b03030", linewidth=2)
    axes.text(0.5, 1.04, "lnrnn", color="#b03030", ha="center", va="bottom", fontsize=11)
    axes.set_ylim(0, 1.25 * max(max(group.values()) for group in bars.values()))
    axes.set_xticks(range(len(bars)), [group.split(",")[0] for group in bars], fontsize=11)
    axes.set_ylabel("time over lnrnn's time (taller is slower)")
    axes.set_title(f"{found['title']}, float32: {_sizes(found)}\n{found['machine']}", fontsize=10)
    axes.legend(ncols=len(series), loc="upper right", frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, dpi=110, metadata={"Software": None})
    plt.close(figure)


def draw_latency(name: str, target: Path) -> None:
    """Draws medians of a step as bars and 99.9th percentiles as marks, for each network and its weights."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = record.load(name)
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    rows = [row for row in rows if row["FPGA mean"]]
    fpga = {row["network"]: row["FPGA mean"] for row in rows}
    series = list(dict.fromkeys((row["weights"], row["blocks"]) for row in rows))
    figure, axes = plt.subplots(figsize=(8.4, 4.2), layout="constrained")
    width, at = 0.84 / len(series), np.arange(len(fpga))
    for place, (weights, blocks) in enumerate(series):
        some = [row for row in rows if (row["weights"], row["blocks"]) == (weights, blocks)]
        x, sparse = at + (place - (len(series) - 1) / 2) * width, blocks != "all"
        look = {"color": COLOURS[place // 2 % len(COLOURS)], "hatch": "////" * sparse, "ec": "white"}
        label = weights + f", {blocks} of blocks" * sparse
        axes.bar(x, [row["p50"] for row in some], width * 0.92, label=label, **look)
        axes.plot(x, [row["p99.9"] for row in some], "_k", label=None if place else "99.9th percentile")
    published = "FPGA, bfloat16 (published mean)"
    axes.hlines([*fpga.values()], at - 0.45, at + 0.45, color="#b03030", label=published)
    axes.set_yscale("log")
    axes.set_xticks(at, fpga, fontsize=11)
    axes.set_ylabel("microseconds (bar: median)")
    axes.set_title(f"One step of LSTMs of layers x units, one core, from C\n{found['machine']}", fontsize=10)
    figure.legend(ncols=3, loc="outside lower center", frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _sizes(found: dict) -> str:
    """Returns the smallest and the largest number of sequences and hidden units of a record's races."""
    sizes = [dict(part.split("=") for part in race["size"].split()) for race in found["races"]]
    (few, many), (small, large) = ((min(n), max(n)) for n in ([int(s[key]) for s in sizes] for key in "BH"))
    return f"{few} to {many} sequences, {small} to {large} units"


def curves() -> tuple[dict[str, np.ndarray], int, int]:
    """Returns the study's numbers of right answers, (seeds, steps), of its sequences, and of known steps."""
    results = json.loads((DOCS.parent / f"examples/studies/results/{STUDY}.json").read_text())["results"]
    right = {method: np.array(numbers) for method, numbers in results["right_by_step"].items()}
    return right, results["sequences"], results["known"]


def draw_study() -> None:
    sys.path.append(str(DOCS.parent / "examples/studies"))
    from common import save_figure
    from plots import draw_cliff

    save_figure(CLIFF, (9.0, 4.2), lambda figure: draw_cliff(*curves(), figure))


def figures(name: str) -> dict[str, str]:
    """Returns a record's numbers by name: its `figures`, and the geometric means of its tables by heading."""
    if name == STUDY:
        right, sequences, _ = curves()
        return {method: f"{100 * n[:, -1].mean() / sequences:.0f} %" for method, n in right.items()}
    found = record.load(name)
    numbers = {key: str(value) for key, value in found.get("figures", {}).items()}
    if name == LATENCY:
        for row in found["rows"]:
            by = dict(zip(found["columns"], row, strict=True))
            numbers[f"{by['network']}, {by['weights']}, {by['blocks']}"] = f"{by['p50']:.2g} us"
    for table in record.tables(found.get("races", [])):
        threads = table.races[0].threads
        numbers |= {
            f"{table.races[0].table}, {threads}t, {key}": value.split(",")[0]
            for key, value in table.means().items()
        }
    return numbers


def _rows(cells: list[list[str]]) -> list[str]:
    """Returns the lines of a table in Markdown. Columns of numbers are aligned to the right."""
    head, *rows = [[cell.replace("|", r"\|") for cell in row] for row in cells]
    right = [k > 0 and all(NUMERIC.fullmatch(row[k]) for row in rows) for k in range(len(head))]
    rule = ["--:" if numeric else "---" for numeric in right]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]


def _campaigns() -> list[list[str]]:
    """Returns header and rows of the results of all campaigns."""
    questions = dict(re.findall(r"(?m)^\| \[(\w+)\].*?\| (.+?) \|", (CAMPAIGNS / "README.md").read_text()))
    rows = [["question", "command", "numbers", "date"]]
    for path in sorted((CAMPAIGNS / "results").glob("*.json")):
        result = json.loads(path.read_text())
        numbers = "; ".join(f"{name}: {value}" for name, value in result["figures"].items())
        notes = [note for note in result["notes"] if not note.startswith("Carried over")]
        carried = ", carried over" * (len(notes) < len(result["notes"]))
        _, name, *words = result["command"].split(" ", 2)
        command = f"`make campaign NAME={name}" + "".join(f' ARGS="{given}"' for given in words) + "`"
        numbers = f"{('**Failed.** ', '')[result['passed']]}{numbers}. {' '.join(notes)}".strip()
        date = f"{result['date']}{carried}; {result['cpu']}, Python {result['python']}"
        rows.append([questions.get(path.stem, path.stem), command, numbers, date])
    return rows


def table(name: str) -> str:
    """Returns the tables of a record in Markdown."""
    lines = [f"<!-- table {name} -->"]
    if name == "campaigns":
        return "\n".join([*lines, *_rows(_campaigns()), "<!-- end -->"])
    found = record.load(name)
    for caption, cells, notes in record.contents(found):
        lines += [f"**{caption}** ({record.source(found)})", *notes, "", *_rows(cells), ""]
    return "\n".join([*lines[:-1], "<!-- end -->"])


def number(name: str, key: str) -> str:
    """Returns a number of a record with its place's comment."""
    return f"{figures(name)[key]}<!-- {name} {key} -->"


def updated(page: str) -> str:
    """Returns a page with the tables and numbers of today's records."""
    page = TABLE.sub(lambda found: table(found[1]), page)
    return NUMBER.sub(lambda found: number(found[1], found[2]), page)


if __name__ == "__main__":
    draw(README, PICTURE)
    draw_latency(LATENCY, STEPS)
    draw_study()
    for path in (DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))):
        path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
