"""Tests from_torch on sLSTM modules that have the names, shapes and results of those in the package xlstm."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

HEADS, WIDTH = 4, 3
H = HEADS * WIDTH


class Cell(nn.Module):
    """An sLSTM cell. x (B, T, 4H) has the products W_ih x. Returns h (B, heads, T, H / heads) and the last
    state (4, B, H)."""

    def __init__(self, by_inputs=False, heads=HEADS):
        super().__init__()
        width, self.by_inputs = H // heads, by_inputs
        shape = (heads, width, 4 * width) if by_inputs else (heads, 4 * width, width)
        self._recurrent_kernel_ = nn.Parameter(torch.randn(shape) * 0.4)
        self._bias_ = nn.Parameter(torch.randn(4 * H) * 0.4)

    def forward(self, x, state=None):
        heads, width = len(self._recurrent_kernel_), H // len(self._recurrent_kernel_)
        if self.by_inputs:
            kernel = self._recurrent_kernel_.reshape(heads, width, 4, width).permute(0, 2, 3, 1)
            bias = self._bias_.reshape(heads, 4, width).transpose(0, 1).reshape(4, H)
        else:
            kernel = self._recurrent_kernel_.reshape(heads, 4, width, width)
            bias = self._bias_.reshape(4, H)
        h, c, n, m = x.new_zeros(4, len(x), H) if state is None else state
        ys = []
        for x_t in x.unbind(1):
            recurrent = torch.einsum("kgoi,bki->gbko", kernel, h.reshape(-1, heads, width)).flatten(2)
            i, f, z, o = x_t.reshape(-1, 4, H).transpose(0, 1) + recurrent + bias[:, None]
            kept = m + nn.functional.logsigmoid(f)
            m = i if (n == 0).all() else torch.maximum(i, kept)
            i_gate, f_gate = torch.exp(i - m).clamp(max=1), torch.exp(kept - m).clamp(max=1)
            c, n = f_gate * c + i_gate * torch.tanh(z), f_gate * n + i_gate
            h = torch.sigmoid(o) * c / n
            ys.append(h)
        y = torch.stack(ys, 1).reshape(len(x), -1, heads, width).transpose(1, 2)
        return y, torch.stack([h, c, n, m])


class Headwise(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(heads, H // heads, H // heads))

    def forward(self, x):
        heads = x.reshape(*x.shape[:-1], len(self.weight), -1)
        return torch.einsum("...hd,hod->...ho", heads, self.weight).flatten(-2)


class HeadNorm(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(H) * 0.2) if weight else None

    def forward(self, y):
        gain = None if self.weight is None else 1 + self.weight
        rows = y.transpose(1, 2).flatten(2)
        return nn.functional.group_norm(rows.flatten(0, 1), y.shape[1], gain).reshape(rows.shape)


class Layer(nn.Module):
    def __init__(self, by_inputs=False, heads=HEADS, weight=True):
        super().__init__()
        self.fgate, self.igate, self.zgate, self.ogate = (Headwise(heads) for _ in range(4))
        self.slstm_cell, self.group_norm = Cell(by_inputs, heads), HeadNorm(weight)

    def forward(self, x):
        gates = self.fgate(x), self.igate(x), self.zgate(x), self.ogate(x)
        return self.group_norm(self.slstm_cell(torch.cat(gates, -1))[0])


@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("by_inputs", [True, False])
@pytest.mark.parametrize("heads", [1, HEADS])
def test_a_layer_is_taken_and_checked(heads, by_inputs, weight):
    torch.manual_seed(heads)
    layer = Layer(by_inputs, heads, weight).eval()
    model = lnrnn.from_torch(layer, check=True)
    assert isinstance(model, lnrnn.SLSTM) and model.num_heads == heads and model.batch_first
    x = torch.randn(3, 9, H)
    want = layer(x).detach().numpy()
    assert absolute_error(model(x.numpy())[0], want) < 1e-5
    again = lnrnn.from_torch(layer.state_dict(), kind="xlstm")
    np.testing.assert_array_equal(again(x.numpy())[0], model(x.numpy())[0])


@pytest.mark.parametrize("by_inputs", [True, False])
@pytest.mark.parametrize("heads", [1, HEADS])
def test_a_cell_is_taken_with_an_identity_for_its_input(heads, by_inputs):
    torch.manual_seed(heads)
    cell = Cell(by_inputs, heads).eval()
    model = lnrnn.from_torch(cell, check=True)
    assert model.norm is None and model.input_size == 4 * H and model.num_heads == heads
    x = torch.randn(3, 9, 4 * H)
    y, state = cell(x)
    got, end = model(x.numpy())
    assert absolute_error(got, y.transpose(1, 2).flatten(2).detach().numpy()) < 1e-5
    for a, b in zip(end, state.detach().numpy(), strict=True):
        assert absolute_error(a[0], b) < 1e-5


def test_another_forward_is_found():
    class Other(Cell):
        def forward(self, x, state=None):
            y, state = super().forward(x, state)
            return 0.5 * y, state

    with pytest.raises(ValueError, match="has xlstm cell's parameters, but its forward is another"):
        lnrnn.from_torch(Other(), check=True)


def test_a_convolution_and_wrong_shapes_are_refused():
    layer = Layer()
    layer.conv1d = nn.Conv1d(H, H, 4, groups=H)
    with pytest.raises(ValueError, match="nearest to xlstm layer's, but differs: unexpected conv1d"):
        lnrnn.from_torch(layer)
    state = Cell().state_dict() | {"_recurrent_kernel_": torch.zeros(4, 5, 3)}
    with pytest.raises(ValueError, match=r"_recurrent_kernel_ must be of shape \(heads, 4d, d\)"):
        lnrnn.from_torch(state)
