"""Draws docs/speed_ratio.png from docs/speed_ratio.csv: how many times as long as lnrnn the others take.

python docs/speed_ratio.py. The csv has the times of the first table of docs/benchmarks.md, in microseconds a
step.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

FOLDER = Path(__file__).parent
PEERS = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "jax": "JAX", "torch.jit": "torch.jit"}
CELLS = ("RNN", "LSTM", "GRU")


def ratios() -> dict[str, dict[str, float]]:
    """By cell and peer: the geometric mean of the peer's time over lnrnn's, over the rows that have both."""
    with (FOLDER / "speed_ratio.csv").open() as file:
        rows = list(csv.DictReader(file))
    found: dict[str, dict[str, float]] = {}
    for cell in CELLS:
        of_cell = [row for row in rows if row["cell"] == cell]
        found[cell] = {}
        for peer in PEERS:
            logs = [math.log(float(row[peer]) / float(row["lnrnn"])) for row in of_cell if row[peer]]
            found[cell][peer] = math.exp(sum(logs) / len(logs))
    return found


def draw(path: Path) -> None:
    from matplotlib import pyplot as plt

    found = ratios()
    colours = dict(zip(PEERS, ("#8fb3d9", "#5c8fc2", "#f0b57a", "#b9b9b9"), strict=True))
    figure, axes = plt.subplots(figsize=(8.4, 3.6), layout="constrained")
    width = 0.2
    for place, peer in enumerate(PEERS):
        at = [cell + (place - 1.5) * width for cell in range(len(CELLS))]
        heights = [found[cell][peer] for cell in CELLS]
        bars = axes.bar(at, heights, width * 0.92, color=colours[peer], label=PEERS[peer])
        axes.bar_label(bars, [f"{height:.1f}x" for height in heights], padding=2, fontsize=10)
    axes.axhline(1, color="#b03030", linewidth=2)
    axes.text(0.5, 1.04, "lnrnn", color="#b03030", ha="center", va="bottom", fontsize=11)
    axes.set_xlim(-0.5, len(CELLS) - 0.5)
    axes.set_ylim(0, 5.2)
    axes.set_xticks(range(len(CELLS)), [f"layer-normalised {cell}" for cell in CELLS], fontsize=11)
    axes.set_ylabel("time, lnrnn's = 1")
    axes.set_title(
        "How many times as long the others take: one Zen 5 core, float32, whole sequences", fontsize=11
    )
    axes.legend(ncols=4, loc="upper right", frameon=False, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    draw(FOLDER / "speed_ratio.png")
