"""Compares the reference and its gradients with PyTorch's cells in float64."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import absolute_error, relative_error
from reference_cells import backward, forward

torch = pytest.importorskip("torch")

# both compute in float64; the largest measured error is 8e-15
TOLERANCE = 2e-14


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def leaf(v):
    return torch.tensor(v, dtype=torch.float64, requires_grad=True)


PLAIN = {
    "RNN tanh": lambda *sizes, **o: torch.nn.RNN(*sizes, nonlinearity="tanh", **o),
    "RNN relu": lambda *sizes, **o: torch.nn.RNN(*sizes, nonlinearity="relu", **o),
    "LSTM": torch.nn.LSTM,
    "GRU": torch.nn.GRU,
}


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("bias", [True, False])
def test_a_plain_cell_equals_torchs_on_packed_sequences(rng, kind, bias):
    """Torch's second direction is the reference with reverse=True."""
    t, b, i, h = 7, 4, 3, 5
    lengths = np.array([3, 7, 1, 5])
    layer = PLAIN[kind](i, h, bias=bias, bidirectional=True, dtype=torch.float64)
    name, *nonlinearity = kind.lower().split()
    options = {"nonlinearity": nonlinearity[0]} if nonlinearity else {}
    starts = ("h0", "c0") if name == "lstm" else ("h0",)
    x, *state = (leaf(rng.standard_normal(s)) for s in ((t, b, i), *[(2, b, h)] * len(starts)))
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    out, last = layer(packed, tuple(state) if len(state) == 2 else state[0])
    last = last if len(state) == 2 else (last,)
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(out, total_length=t)
    gy, *glast = (rng.standard_normal(v.shape) for v in (y, *last))
    sum((v * torch.tensor(g)).sum() for v, g in zip((y, *last), (gy, *glast), strict=True)).backward()

    gx = 0
    for d, suffix in enumerate(("_l0", "_l0_reverse")):
        p = {n.removesuffix(suffix): v for n, v in layer.named_parameters() if n.endswith(suffix)}
        leaves = p | {key: s[d] for key, s in zip(starts, state, strict=True)}
        values = {key: v.detach().numpy() for key, v in (leaves | {"x": x}).items()}
        mine, mine_last, tape = forward(f"{name} plain", values, lengths=lengths, reverse=d == 1, **options)
        half = slice(d * h, (d + 1) * h)
        assert absolute_error(mine, y[..., half].detach()) < TOLERANCE
        for got, want in zip(mine_last, last, strict=True):
            assert absolute_error(got, want[d].detach()) < TOLERANCE
        grads = backward(f"{name} plain", tape, gy[..., half], [g[d] for g in glast])
        gx = gx + grads.pop("x")
        assert set(grads) == set(leaves)
        for key, s in zip(starts, state, strict=True):
            assert relative_error(grads[key], s.grad[d]) < TOLERANCE, key
        for key, v in p.items():
            assert relative_error(grads[key], v.grad) < TOLERANCE, key
    assert relative_error(gx, x.grad) < TOLERANCE
