"""The reference against PyTorch in float64: its layers, and autograd through loops of its functions."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import absolute_error, relative_error
from lnrnn import reference as ref

torch = pytest.importorskip("torch")
F = torch.nn.functional

# both compute in float64; 4e-15 was measured at worst
TOLERANCE = 2e-14


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def leaf(v):
    return torch.tensor(v, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(
    "shape, normalized",
    [((1, 2, 3), (1, 2, 3)), ((2, 2, 3), (2, 3)), ((1,), (1,)), ((4, 33), (33,)), ((0, 1), (1,))],
)
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_layer_norm(rng, shape, normalized, eps):
    x, g = rng.standard_normal((2, *shape))
    w, b = rng.standard_normal((2, *normalized))
    tx, tw, tb = leaf(x), leaf(w), leaf(b)
    y = F.layer_norm(tx, normalized, tw, tb, eps)
    y.backward(torch.tensor(g))
    assert absolute_error(ref.layer_norm(x, normalized, w, b, eps), y.detach()) < TOLERANCE
    for got, want in zip(ref.layer_norm_backward(g, x, normalized, w, b, eps), (tx, tw, tb)):
        assert absolute_error(got, want.grad) < TOLERANCE


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 2), (2, 3, 4, 5)])
def test_batch_norm(rng, shape, momentum, training):
    c = shape[1]
    layer = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}[len(shape)]
    layer = layer(c, eps=1e-3, momentum=momentum, dtype=torch.float64).train(training)
    w, b, mean = rng.standard_normal((3, c))
    var = rng.uniform(0.5, 2, c)
    with torch.no_grad():
        for parameter, v in (
            (layer.weight, w),
            (layer.bias, b),
            (layer.running_mean, mean),
            (layer.running_var, var),
        ):
            parameter.copy_(torch.tensor(v))
    for tracked in range(3):  # three batches, so that momentum=None counts
        x, g = rng.standard_normal((2, *shape))
        tx = leaf(x)
        layer.zero_grad()
        y = layer(tx)
        y.backward(torch.tensor(g))
        gx, gw, gb = ref.batch_norm_backward(g, x, mean, var, w, training, 1e-3)
        got, mean, var = ref.batch_norm(x, mean, var, w, b, training, momentum, 1e-3, tracked)
        assert absolute_error(got, y.detach()) < TOLERANCE
        assert absolute_error(mean, layer.running_mean) < TOLERANCE
        assert absolute_error(var, layer.running_var) < TOLERANCE
        for mine, theirs in ((gx, tx.grad), (gw, layer.weight.grad), (gb, layer.bias.grad)):
            assert relative_error(mine, theirs) < TOLERANCE


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@pytest.mark.parametrize("bias", [True, False])
def test_plain_rnn_is_torch_rnn_on_packed_sequences(rng, nonlinearity, bias):
    """Both directions: the second is the reference with reverse=True."""
    t, b, i, h = 7, 4, 3, 5
    lengths = np.array([3, 7, 1, 5])
    layer = torch.nn.RNN(i, h, nonlinearity=nonlinearity, bias=bias, bidirectional=True, dtype=torch.float64)
    x, h0 = leaf(rng.standard_normal((t, b, i))), leaf(rng.standard_normal((2, b, h)))
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    out, last = layer(packed, h0)
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(out, total_length=t)
    gy, gh = rng.standard_normal((t, b, 2 * h)), rng.standard_normal((2, b, h))
    ((y * torch.tensor(gy)).sum() + (last * torch.tensor(gh)).sum()).backward()

    gx = 0
    for d, suffix in enumerate(("", "_reverse")):
        p = {
            n: getattr(layer, f"{n}_l0{suffix}")
            for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            if hasattr(layer, f"{n}_l0{suffix}")
        }
        mine, mine_h, tape = ref.rnn(
            x.detach(),
            norm=None,
            nonlinearity=nonlinearity,
            lengths=lengths,
            h0=h0[d].detach(),
            reverse=d == 1,
            **{n: v.detach().numpy() for n, v in p.items()},
        )
        assert absolute_error(mine, y[..., d * h : (d + 1) * h].detach()) < TOLERANCE
        assert absolute_error(mine_h, last[d].detach()) < TOLERANCE
        gx_d, gh0, grads = ref.rnn_backward(tape, gy[..., d * h : (d + 1) * h], gh[d])
        gx = gx + gx_d
        assert relative_error(gh0, h0.grad[d]) < TOLERANCE
        assert set(grads) == set(p)
        for name, g in grads.items():
            assert relative_error(g, p[name].grad) < TOLERANCE, name
    assert relative_error(gx, x.grad) < TOLERANCE


@pytest.mark.parametrize("nonlinearity", list(ref.ACTIVATIONS))
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_normalised_rnn_is_autograd_through_a_loop(rng, norm, nonlinearity):
    t, b, i, h = 6, 5, 3, 4
    lengths = np.array([6, 2, 6, 0, 4])  # every step keeps two sequences: F.batch_norm refuses one
    f = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid, "identity": lambda a: a}[
        nonlinearity
    ]
    x, w, u, h0 = (leaf(rng.standard_normal(s)) for s in ((t, b, i), (h, i), (h, h), (b, h)))
    gain, bias = leaf(rng.uniform(0.5, 1.5, h)), leaf(rng.standard_normal(h))
    state, outputs = list(h0), []
    for step in range(t):
        alive = [k for k in range(b) if lengths[k] > step]
        a = torch.stack([u @ state[k] + w @ x[step, k] for k in alive])
        z = (
            F.layer_norm(a, (h,), gain, bias, 1e-4)
            if norm == "layer"
            else F.batch_norm(a, None, None, gain, bias, training=True, eps=1e-4)
        )
        row = [torch.zeros(h, dtype=torch.float64)] * b
        for k, v in zip(alive, f(z)):
            state[k] = row[k] = v
        outputs.append(torch.stack(row))
    y, last = torch.stack(outputs), torch.stack(state)
    gy, gh = rng.standard_normal((t, b, h)), rng.standard_normal((b, h))
    ((y * torch.tensor(gy)).sum() + (last * torch.tensor(gh)).sum()).backward()

    leaves = dict(weight_ih=w, weight_hh=u, gain=gain, bias=bias)
    mine, mine_h, tape = ref.rnn(
        x.detach(),
        norm=norm,
        nonlinearity=nonlinearity,
        lengths=lengths,
        eps=1e-4,
        h0=h0.detach(),
        **{n: v.detach().numpy() for n, v in leaves.items()},
    )
    assert relative_error(mine, y.detach()) < TOLERANCE
    assert relative_error(mine_h, last.detach()) < TOLERANCE
    gx, gh0, grads = ref.rnn_backward(tape, gy, gh)
    for name, got, want in (("x", gx, x), ("h0", gh0, h0), *((n, grads[n], v) for n, v in leaves.items())):
        assert relative_error(got, want.grad) < TOLERANCE, name
