"""How far rounding may take the model from a module that from_torch runs beside it: right modules keep far
from the limit, and what is not rounding is beyond it."""

from __future__ import annotations

import pytest

import lnrnn
from lnrnn.importers import checking

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import lnrnn.torch  # noqa: E402
from torch_cells import shaken  # noqa: E402

torch.set_num_threads(1)  # operations this small take longer on several, and much longer on a busy machine

I, H = 5, 12  # noqa: E741 - the letters of the shapes in the documentation


@pytest.fixture(autouse=True)
def the_same_numbers_every_time():
    torch.manual_seed(0)


@pytest.mark.parametrize("seed", range(5))
def test_right_modules_keep_far_from_the_limit(seed, monkeypatch):
    monkeypatch.setattr(checking, "MARGIN", checking.MARGIN / 3)
    for hidden in (12, 64):
        for drawn in (False, True):
            for module in (lnrnn.torch.LSTM(I, hidden, norm=lnrnn.LayerNormSpec("gate", "carry"), seed=seed),
                           lnrnn.torch.GRU(I, hidden, 2, bidirectional=True, seed=seed),
                           lnrnn.torch.RNN(I, hidden, seed=seed)):  # fmt: skip
                lnrnn.from_torch(shaken(module, seed) if drawn else module, check=True)


@pytest.mark.parametrize("seed", range(5))
def test_a_twenty_thousandth_is_no_rounding(seed):
    class Scaled(nn.GRU):
        def forward(self, x, h=None):
            y, h = super().forward(x, h)
            return y * (1 + 5e-5), h

    for module in (Scaled(I, H), shaken(Scaled(I, H), seed)):
        with pytest.raises(ValueError, match="forward is another.* differ"):
            lnrnn.from_torch(module)
