"""Tests from_torch with norm=, for cells whose norms have another placement than in the library of the
cell."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error
from importing import FOREIGN, stack
from lnrnn.rnn.settings import architecture
from lnrnn.rnn.specs import norm_spec

T, B, I, H = 6, 4, 5, 12  # noqa: E741 - the letters of the shapes in the documentation
OUT = lnrnn.LayerNormSpec("split", "out")

FITTING = [
    ("fastrnns", {}),
    ("fastrnns", {"placement": "split", "cell": "out", "eps": 0.1}),
    ("torchaudio", {"placement": "joint", "cell": "out"}),
    ("torchaudio", {"placement": "gate", "cell": "carry", "eps": 1e-3}),
    ("icefall LSTM", {"placement": "gate", "cell": "out", "inner_bias": True}),
    ("icefall LSTM without bias", {"placement": "joint", "cell": "out"}),
    ("icefall GRU", {"placement": "joint", "inner_bias": True}),
    ("haste LSTM", {"placement": "split", "cell": "carry"}),
    ("haste GRU", {"placement": "split", "eps": 0.1}),
]


@pytest.mark.parametrize(("name", "norm_options"), FITTING, ids=str)
def test_a_given_norm_overrides_that_of_the_system(rng, name, norm_options):
    options = {"zoneout": 0} if "haste" in name else {}
    _, state = stack(rng, FOREIGN[name], I, H)
    norm = lnrnn.LayerNormSpec(**norm_options)
    guessed, model = (
        lnrnn.from_torch(state, batch_first=False, **options),
        lnrnn.from_torch(state, norm=norm, batch_first=False, **options),
    )
    assert model.norm == norm_spec(norm, architecture(model).cell) != guessed.norm
    by_hand = type(model)(I, H, norm=norm)
    by_hand.load_state_dict(guessed.state_dict())
    x = rng.standard_normal((T, B, I)).astype(np.float32)
    np.testing.assert_array_equal(model(x)[0], by_hand(x)[0])
    assert absolute_error(model(x)[0], guessed(x)[0]) > 1e-3
    lnrnn.from_torch(state, norm=norm, eps=norm.eps, **options)
    with pytest.raises(ValueError, match="eps must be None or norm's eps, got 0.25"):
        lnrnn.from_torch(state, norm=norm, eps=0.25, **options)


@pytest.mark.parametrize(("name", "norm", "message"), [
    ("fastrnns", lnrnn.LayerNormSpec("joint", "carry"),
     "lack bias, gain and also have bias_hh, bias_ih, gain_hh, gain_ih"),
    ("fastrnns", lnrnn.LayerNormSpec("split", None), "also have bias_c, gain_c"),
    ("fastrnns", lnrnn.LayerNormSpec(inner_bias=True), "lack inner_bias_hh, inner_bias_ih"),
    ("icefall LSTM", lnrnn.LayerNormSpec("gate", "carry"), "also have inner_bias_hh, inner_bias_ih"),
    ("icefall GRU", lnrnn.LayerNormSpec("gate", "carry", inner_bias=True),
     "cell must be 'out' or None .* GRU"),
    ("haste GRU", lnrnn.LayerNormSpec("joint", span="all"), "span must be None"),
    ("haste LSTM", lnrnn.BatchNormSpec(), "haste LSTM, which has layer norms inside"),
    ("haste LSTM", "batch", "haste LSTM, which has layer norms inside"),
    ("torch LSTM", lnrnn.LayerNormSpec(), "torch, which has no norm inside"),
])  # fmt: skip
def test_a_norm_that_does_not_fit_is_refused_with_the_reason(rng, name, norm, message):
    _, state = stack(rng, FOREIGN[name], I, H)
    with pytest.raises(ValueError, match=message):
        lnrnn.from_torch(state, norm=norm, **({"zoneout": 0} if "haste" in name else {}))


def test_the_eps_of_norm_must_be_that_of_the_module():
    torch = pytest.importorskip("torch")
    from torch_cells import Layer, OutCell, shaken

    module = Layer(shaken(OutCell(I, H, lambda n: torch.nn.LayerNorm(n, eps=0.1))), False)
    with pytest.raises(ValueError, match=r"eps must be the same in module and arguments, got \[1e-05, 0.1\]"):
        lnrnn.from_torch(module, norm=OUT)
    assert lnrnn.from_torch(module, norm=lnrnn.LayerNormSpec("split", "out", 0.1)).norm.eps == 0.1


@pytest.mark.parametrize("name", ["fastrnns", "torchaudio", "icefall GRU", "haste LSTM"])
def test_norm_layer_keeps_the_placement_of_the_system(rng, name):
    """norm="layer" only says that there is layer norm. It does not imply lnrnn's default placement."""
    options = {"zoneout": 0} if "haste" in name else {}
    _, state = stack(rng, FOREIGN[name], I, H)
    found = lnrnn.from_torch(state, **options).norm
    assert lnrnn.from_torch(state, norm="layer", **options).norm == found
    assert lnrnn.from_torch(state, norm="auto", **options).norm == found
    with pytest.raises(
        ValueError, match=r"norm must be 'auto' or LayerNormSpec\(.*\) for this cell, got None"
    ):
        lnrnn.from_torch(state, norm=None, **options)
