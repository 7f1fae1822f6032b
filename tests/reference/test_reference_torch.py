"""The reference against PyTorch in float64: its layers, and autograd through loops of its functions."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import absolute_error, relative_error
from reference_cells import CELLS, LAYER, PER_STEP, backward, draw, forward

torch = pytest.importorskip("torch")
F = torch.nn.functional

# both compute in float64; 8e-15 was measured at worst
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
def test_plain_cell_is_torchs_on_packed_sequences(rng, kind, bias):
    """Both directions: the second is the reference with reverse=True."""
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


# --- the cells once more, in torch --------------------------------------------------------------------------


def layer(a, p, end, first=0):
    """Layer norm over the units of `a`; gain and bias with that end to their names, from unit `first` on."""
    part = slice(first, first + a.shape[-1])
    return F.layer_norm(a, a.shape[-1:], p["gain" + end][part], p["bias" + end][part], EPS)


def per_gate(a, p, n):
    h = a.shape[-1] // n
    return torch.cat([layer(a[:, k * h : (k + 1) * h], p, "", k * h) for k in range(n)], dim=-1)


def batch(a, gain, bias=None):
    return F.batch_norm(a, None, None, gain, bias, training=True, eps=EPS)


EPS = 1e-2


def pre_activations(kind, p, x, h, n):
    """RNN and LSTM: what the activations of the n gates are taken of."""
    if "plain" in kind:
        return x + p["bias_ih"] + h + p["bias_hh"]
    if "split" in kind:
        return layer(x, p, "_ih") + layer(h, p, "_hh")
    if kind == "rnn batch":
        return batch(x + h, p["gain"], p["bias"])
    if "batch" in kind:
        return batch(x, p["gain_ih"]) + batch(h, p["gain_hh"]) + p["bias"]
    return per_gate(x + h, p, n) if "gate" in kind else layer(x + h, p, "")


def rnn_step(kind, p, x, h, state):
    return (torch.tanh(pre_activations(kind, p, x, h, 1)),)


def lstm_step(kind, p, x, h, state):
    i, f, g, o = pre_activations(kind, p, x, h, 4).chunk(4, dim=-1)
    c = seen = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    if "gain_c" in p:
        seen = batch(c, p["gain_c"], p["bias_c"]) if "batch" in kind else layer(c, p, "_c")
    return o.sigmoid() * seen.tanh(), seen if "carry" in kind else c


def gru_step(kind, p, x, h, state):
    hidden = state[0].shape[-1]
    (x_rz, x_n), (h_rz, h_n) = (a.split([2 * hidden, hidden], dim=-1) for a in (x, h))
    if "plain" in kind:
        sides = [(x + p["bias_ih"]), (h + p["bias_hh"])]
    elif "batch" in kind:
        sides = [batch(x, p["gain_ih"], p["bias"]), batch(h, p["gain_hh"])]
    elif "all" in kind:
        sides = [layer(x, p, "_ih"), layer(h, p, "_hh")]
    elif "split" in kind:
        sides = [
            torch.cat([layer(a, p, end), layer(b, p, end, 2 * hidden)], dim=-1)
            for a, b, end in ((x_rz, x_n, "_ih"), (h_rz, h_n, "_hh"))
        ]
    if "joint" in kind:
        r, z, n = layer(x + h, p, "").chunk(3, dim=-1)
        r, z = r.sigmoid(), z.sigmoid()
        n = torch.tanh(r * n)
    elif "gate" in kind:
        r, z = per_gate(x_rz + h_rz, p, 2).sigmoid().chunk(2, dim=-1)
        n = layer(x_n + r * h_n, p, "", 2 * hidden).tanh()
    else:
        r, z = (sides[0] + sides[1])[:, : 2 * hidden].sigmoid().chunk(2, dim=-1)
        n = torch.tanh(sides[0][:, 2 * hidden :] + r * sides[1][:, 2 * hidden :])
    return ((1 - z) * n + z * state[0],)


STEPS = {"rnn": rnn_step, "lstm": lstm_step, "gru": gru_step}


def unrolled(kind, p, x, state, lengths, reverse):
    """y and the last state: the sequences alive at a step are stacked, and each gets its own rows back."""
    steps, sequences, hidden = *x.shape[:2], state[0].shape[-1]
    states = [[part[k] for part in state] for k in range(sequences)]
    rows = {}
    for t in range(steps):
        alive = [k for k in range(sequences) if lengths[k] > t]
        at = {k: lengths[k] - 1 - t if reverse else t for k in alive}
        old = [torch.stack([states[k][part] for k in alive]) for part in range(len(state))]
        x_ = torch.stack([x[at[k], k] for k in alive]) @ p["weight_ih"].T + p.get("inner_bias_ih", 0)
        h_ = old[0] @ p["weight_hh"].T + p.get("inner_bias_hh", 0)
        new = STEPS[CELLS[kind][0]](kind, p, x_, h_, old)
        for row, k in enumerate(alive):
            states[k] = [part[row] for part in new]
            rows[at[k], k] = new[0][row]
    zero = torch.zeros(hidden, dtype=torch.float64)
    y = torch.stack([torch.stack([rows.get((t, k), zero) for k in range(sequences)]) for t in range(steps)])
    return y, [torch.stack([s[part] for s in states]) for part in range(len(state))]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("kind", [*LAYER, *PER_STEP])
def test_every_cell_is_autograd_through_a_loop(rng, kind, inner, reverse):
    """Forward and back: every placement, norm of c and span; batch norm with the statistics of the batch."""
    # under batch norm every step keeps several sequences: F.batch_norm refuses one, and two that happen to be
    # alike magnify roundings
    lengths = [4, 2, 4, 0, 3, 4, 4, 4] if kind in PER_STEP else [4, 0, 1, 4, 3]
    values, _ = draw(kind, rng, t=4, b=len(lengths), inner=inner)
    leaves = {key: leaf(v) for key, v in values.items()}
    starts = [key for key in ("h0", "c0") if key in values]
    p = {key: v for key, v in leaves.items() if key not in ("x", *starts)}
    y, last = unrolled(kind, p, leaves["x"], [leaves[key] for key in starts], lengths, reverse)
    gy, *glast = (rng.standard_normal(v.shape) for v in (y, *last))
    sum((v * torch.tensor(g)).sum() for v, g in zip((y, *last), (gy, *glast), strict=True)).backward()

    mine, mine_last, tape = forward(kind, values, lengths=lengths, reverse=reverse, eps=EPS)
    assert relative_error(mine, y.detach()) < TOLERANCE
    for got, want in zip(mine_last, last, strict=True):
        assert relative_error(got, want.detach()) < TOLERANCE
    grads = backward(kind, tape, gy, glast)
    assert set(grads) == set(leaves)
    for key, v in leaves.items():
        # batch norm takes off what an inner bias adds: its gradient is rounding errors
        nothing = kind in PER_STEP and key.startswith("inner_bias")
        error = absolute_error if nothing else relative_error
        assert error(grads[key], v.grad) < TOLERANCE, key
