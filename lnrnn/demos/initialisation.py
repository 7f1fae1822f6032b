"""``lnrnn demo initialisation``: from which weights and at which learning rates networks still train.

Claim: batch norm "allows us to use much higher learning rates and be less careful about initialization"
(Ioffe, Szegedy, Batch Normalization, arXiv 1502.03167, abstract); layer norm too is invariant to the scale of
a weight matrix (Ba, Kiros, Hinton, Layer Normalization, arXiv 1607.06450, Table 1 and section 5.2). So
normalised networks should train from far more scales of weights and learning rates than plain ones.

Measured: scikit-learn's digits, permutation-invariant, in nets of 64-32-32-32-32-10 with ReLU: no norm, LN
and BN (running statistics, momentum 0.1) in the four hidden layers. All weights, those of the last layer too,
start at He's scale times each of SCALES; Adam runs at each of RATES, EPOCHS passes over 800 images in
batches of BATCH. A network trains if at the end it names at least REACHED of the 797 test images, at
inference. No setting is chosen, so there is nothing to choose it on, and the test images are read once. The
measure is the share of the grid, scales by rates, from which a norm trains; one share per seed.

Verdict: the differences of the shares, LN less no norm and BN less no norm, are paired over the seeds. The
claim holds for a norm whose 95 % interval lies above MARGIN. It is confirmed if it holds for both, not
confirmed if for neither; else it depends on the norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lnrnn.demos.digits import FOLDS, load_digits
from lnrnn.demos.feed_forward import FeedForward, NormName, train
from lnrnn.demos.outcomes import confidence_interval, mean_and_deviation
from lnrnn.demos.study import Progress, Report, Study
from lnrnn.demos.tables import format_percent, format_table, paragraph

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
SIZES = (64, 32, 32, 32, 32, 10)
BATCH, EPOCHS = 32, 15
REACHED = 0.9
MARGIN = 0.1
NORMS: dict[str, NormName | None] = {"no norm": None, "LN": "layer", "BN": "batch"}
PLAIN = "no norm"


@dataclass(frozen=True)
class Results:
    """accuracy: of each name in NORMS on the test images, float64 (S, scales, rates)."""

    accuracy: dict[str, np.ndarray]
    scales: tuple[float, ...]
    rates: tuple[float, ...]

    def shares(self, name: str) -> np.ndarray:
        """The share of the grid from which a norm trains, (S,)."""
        return np.asarray((self.accuracy[name] >= REACHED).mean(axis=(1, 2)))
