"""A model with modules of torch.nn, and pairs of an accelerated and an ordinary module. Needs torch."""

from __future__ import annotations

import copy

import torch
from torch import nn

from helpers import absolute_error
from lnrnn.torch import accelerate

T, B, I, H = 7, 4, 5, 12  # noqa: E741 - the letters of the shapes in the documentation
SINGLE = 5e-6  # tolerance of float32 against float32


def pair(name, **options):
    """Returns an accelerated module of torch.nn, and an ordinary copy."""
    plain = getattr(nn, name)(I, H, **options)
    module = copy.deepcopy(plain)
    assert accelerate(module).replaced
    return module, plain


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    return [t for part in parts if part is not None for t in flat(part)]


def assert_same(got, want, tolerance=SINGLE):
    got, want = flat(got), flat(want)
    assert [t.shape for t in got] == [t.shape for t in want]
    assert [t.dtype for t in got] == [t.dtype for t in want]
    for a, b in zip(got, want, strict=True):
        assert absolute_error(a.detach().numpy(), b.detach().numpy()) < tolerance


def state(module, *batch):
    """Returns random initial states of a module, for a batch of this shape."""
    lines, widths = module.num_layers * (1 + module.bidirectional), (module.proj_size or H, H)
    widths = widths[: 1 + isinstance(module, nn.LSTM)]
    parts = tuple(torch.randn(lines, *batch, width) for width in widths)
    return parts if len(parts) == 2 else parts[0]


class Tagger(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.words = nn.Embedding(20, I)
        self.encoder = nn.ModuleDict({"rnn": nn.LSTM(I, H, batch_first=True, **options)})
        self.stack = nn.ModuleList([nn.GRU(H, H), nn.RNN(H, H, nonlinearity="relu")])
        self.out = nn.Linear(H, 3)

    def forward(self, words):
        x = self.encoder["rnn"](self.words(words))[0].transpose(0, 1)
        for layer in self.stack:
            x, _ = layer(x)
        return self.out(x)
