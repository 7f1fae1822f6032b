"""Compares the reference and its gradients with PyTorch's cells in float64."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import absolute_error, relative_error
from reference_cells import backward, draw, forward

torch = pytest.importorskip("torch")

# the reference and PyTorch compute in float64; the largest measured error is 8e-15
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


@pytest.mark.parametrize("name", ["gru reset plain", "gru reset split", "gru reset batch"])
def test_the_gru_of_cho_et_al_in_torch(rng, name):
    """Compares with a GRU in torch that applies the reset gate before the product with W_hh. Its gradients
    come from autograd."""
    v, _ = draw(name, rng, inner=name == "gru reset split")
    p = {key: leaf(value) for key, value in v.items()}
    H = v["h0"].shape[1]
    zero, one = torch.zeros(3 * H, dtype=torch.float64), torch.ones(3 * H, dtype=torch.float64)

    def normed(a, side, start):
        """Returns the gates `a`, normalised with gains and biases of `side` (ih or hh) from row `start`
        on."""
        rows = slice(start, start + a.shape[1])
        gain, bias = p.get(f"gain_{side}", one)[rows], p.get(f"bias_{side}", zero)[rows]
        if name == "gru reset split":
            return torch.nn.functional.layer_norm(a, a.shape[1:], gain, bias)
        if name == "gru reset batch":
            bias = p["bias"][rows] if side == "ih" else zero[rows]
            return torch.nn.functional.batch_norm(a, None, None, gain, bias, training=True)
        return a + bias

    def side(weight, inner, a, start, end):
        return a @ p[weight][start:end].T + p.get(inner, zero)[start:end]

    h, y = p["h0"], []
    for x in p["x"]:
        (rz, n), both = (
            [normed(side(f"weight_{s}", f"inner_bias_{s}", a, *ends), s, ends[0]) for a, ends in given]
            for s, given in (("ih", [(x, (0, 2 * H)), (x, (2 * H, 3 * H))]), ("hh", [(h, (0, 2 * H))]))
        )
        r, z = torch.sigmoid(rz + both[0]).chunk(2, 1)
        n = torch.tanh(n + normed(side("weight_hh", "inner_bias_hh", r * h, 2 * H, 3 * H), "hh", 2 * H))
        h = (1 - z) * n + z * h
        y.append(h)
    mine, (last,), tape = forward(name, v)
    gy, glast = rng.standard_normal(mine.shape), rng.standard_normal(last.shape)
    ((torch.stack(y) * torch.tensor(gy)).sum() + (h * torch.tensor(glast)).sum()).backward()
    assert absolute_error(mine, torch.stack(y).detach()) < TOLERANCE
    grads = backward(name, tape, gy, (glast,))
    assert set(grads) == set(p)
    for key, value in p.items():
        assert relative_error(grads[key], value.grad) < 10 * TOLERANCE, key
