"""The list of the demos."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from .cells import CELLS
from .study import Study


@dataclass(frozen=True)
class Demo:
    """module: where it is. claim: what it measures, in one line. cells: whether it takes a cell.

    The module has ``STUDY``, or, where it takes a cell, a function ``study(cell)``.
    """

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
    "characters": Demo(
        "lnrnn.demos.characters",
        "Past the training length BN can repeat its last statistics, not average them; LN stores none",
    ),
    "dynamics": Demo(
        "lnrnn.demos.dynamics", "LN keeps an RNN's states and gradients from exploding and vanishing"
    ),
    "saturation": Demo(
        "lnrnn.demos.saturation", "Norms keep sigmoid nets trainable, by less saturation and less drift"
    ),
    "initialisation": Demo(
        "lnrnn.demos.initialisation", "Normalised nets train from far more scales of weights than others"
    ),
    "batch-size": Demo("lnrnn.demos.batch_size", "LN does not mind small batches, BN does"),
    "pixels": Demo(
        "lnrnn.demos.pixels", "An LSTM reads images pixel by pixel faster and better with BN per step"
    ),
    "convolution": Demo("lnrnn.demos.convolution", "In convolutional nets LN beats no norm, and BN beats LN"),
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


def study_of(name: str, cell: str | None = None) -> Study[Any]:
    """The demo called ``name``. cell: for one that takes a cell; None is the first of CELLS."""
    demo = DEMOS[name]
    module = importlib.import_module(demo.module)
    study: Study[Any] = module.study(cell or CELLS[0]) if demo.cells else module.STUDY
    return study
