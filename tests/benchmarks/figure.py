"""The figure of one subject: every table a panel, sizes from left to right, time upwards."""

from __future__ import annotations

from math import ceil
from pathlib import Path

import numpy as np

from report import tables
from results import Entry

# One library, one colour, in every panel; our own lines are black and grey.
COLOURS = {
    "torch": "tab:orange",
    "torch.jit": "gold",
    "torch.compile": "tab:olive",
    "torch.nn": "tab:brown",
    "torch.nn plain": "tab:brown",
    "onnxruntime": "tab:blue",
    "onnxruntime bound": "tab:cyan",
    "jax": "tab:green",
    "openvino": "tab:purple",
    "openvino bf16": "tab:pink",
    "openvino int8": "tab:pink",
    "onnxruntime int8": "tab:blue",
    "torch bf16": "tab:orange",
    "torch int8": "tab:orange",
    "torch.jit bf16": "gold",
}
GREYS = ["0.35", "0.5", "0.65"]


def draw(entries: list[Entry], path: Path) -> None:
    """Writes a PNG. Raises ModuleNotFoundError where there is no matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = tables(entries)
    columns = 2 if len(found) > 1 else 1
    rows = ceil(len(found) / columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(7.5 * columns, 4.2 * rows), squeeze=False, layout="constrained"
    )
    for panel, table in zip(axes.flat, found, strict=False):
        _panel(panel, table)
    for panel in axes.flat[len(found) :]:
        panel.axis("off")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(panel, table) -> None:
    greys = dict(zip(table.variants, GREYS, strict=False))
    for name in reversed(table.contenders):  # the judged one last, on top
        ours = name == table.judged
        colour = "black" if ours else greys.get(name) or COLOURS.get(name, "tab:red")
        raced = [(k, e.quartiles(name)) for k, e in enumerate(table.entries) if name in e.samples]
        places, (low, middle, high) = [k for k, _ in raced], table.scale * np.array([q for _, q in raced]).T
        panel.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
        panel.plot(
            places,
            middle,
            marker="o" if ours else ".",
            linewidth=2 if ours else 1,
            linestyle=":" if name in greys else "-",
            color=colour,
            label=name,
        )
    limits = [(k, e.limit_median * table.scale) for k, e in enumerate(table.entries) if e.limit is not None]
    if limits:
        panel.plot(*zip(*limits, strict=True), "k--", linewidth=1, label="limit of the machine")
    panel.set_yscale("log")
    panel.set_xlim(-0.5, len(table.entries) - 0.5)
    panel.set_xticks(
        range(len(table.entries)), [e.size for e in table.entries], rotation=45, ha="right", fontsize=8
    )
    panel.set_title(table.title, fontsize=10)
    panel.set_ylabel(table.unit)
    panel.grid(axis="y", alpha=0.3)
    panel.legend(fontsize=7)
