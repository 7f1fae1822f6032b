"""The list of the demos."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from .cells import CELLS
from .study import Report


@dataclass(frozen=True)
class Demo:
    """module: where it is. claim: what it measures, in one line. cells: whether it takes a cell."""

    module: str
    claim: str
    cells: bool = False


DEMOS = {
    "axes": Demo("lnrnn.demos.axes", "LN takes statistics per sample, BN per channel; only BN stores any"),
    "invariances": Demo("lnrnn.demos.invariances", "Table 1 of the LN paper: what each norm is invariant to"),
    "statistics": Demo(
        "lnrnn.demos.step_statistics",
        "BN's statistics settle, so those of the last known step can be repeated",
    ),
    "dynamics": Demo(
        "lnrnn.demos.dynamics", "LN keeps an RNN's states and gradients from exploding and vanishing"
    ),
    "initialisation": Demo(
        "lnrnn.demos.initialisation", "Normalised nets train from far more scales of weights than others"
    ),
    "batch-size": Demo("lnrnn.demos.batch_size", "LN does not mind small batches, BN does"),
    "pixels": Demo(
        "lnrnn.demos.pixels", "An LSTM reads images pixel by pixel faster and better with BN per step"
    ),
    "weight-growth": Demo(
        "lnrnn.demos.weight_growth", "As a normalised layer's weights grow its effective learning rate falls"
    ),
    "long-sequences": Demo(
        "lnrnn.demos.long_sequences",
        "BN per step fails on sequences longer than the training's; LN does not",
        cells=True,
    ),
}
DEFAULT = "long-sequences"


def run_one(
    name: str, *, seeds: int, output_dir: Path, quick: bool, figure: bool, cell: str | None = None
) -> Report:
    """One demo, its arguments checked."""
    demo = DEMOS[name]
    module = importlib.import_module(demo.module)
    report: Report
    if demo.cells:
        report = module.run(
            seeds=seeds, output_dir=output_dir, quick=quick, figure=figure, cell=cell or CELLS[0]
        )
    else:
        report = module.STUDY.run(seeds=seeds, output_dir=output_dir, quick=quick, figure=figure)
    return report
