"""Cells of other projects, rewritten in plain torch, with the signatures that users write. Needs torch."""

from __future__ import annotations

from collections import namedtuple

import torch
from torch import nn


def shaken(module, seed=0):
    """Gives the module random parameters, so that none has its default value. Returns the module."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            gain = ("norm" in name and name.endswith("weight")) or "gamma" in name
            p.uniform_(*((0.5, 1.5) if gain else (-0.8, 0.8)), generator=generator)
    return module.eval()


class Bare(nn.Module):
    """A layer norm without attribute eps, in elementary operations, as in fastrnns."""

    def __init__(self, size):
        super().__init__()
        self.normalized_shape = (size,)
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, v):
        return (v - v.mean(-1, keepdim=True)) / v.std(
            -1, keepdim=True, unbiased=False
        ) * self.weight + self.bias


class LayerNormLSTMCell(nn.Module):
    """The LSTM cell of fastrnns and NeMo."""

    def __init__(self, inputs, hidden, norm=nn.LayerNorm):
        super().__init__()
        self.hidden = hidden
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden, inputs))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden, hidden))
        self.layernorm_i, self.layernorm_h, self.layernorm_c = (
            norm(4 * hidden),
            norm(4 * hidden),
            norm(hidden),
        )

    def forward(self, x, h, c):
        gates = self.layernorm_i(x @ self.weight_ih.t()) + self.layernorm_h(h @ self.weight_hh.t())
        i, f, g, o = gates.chunk(4, 1)
        c = self.layernorm_c(torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g))
        return torch.sigmoid(o) * torch.tanh(c), c


class Sequence(nn.Module):
    """All steps of a cell with two states. Its script has a loop."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor):
        ys: list[torch.Tensor] = []
        for t in range(x.size(0)):
            h, c = self.cell(x[t], h, c)
            ys.append(h)
        return torch.stack(ys), h, c


class Layer(nn.Module):
    def __init__(self, cell, reverse: bool):
        super().__init__()
        self.cell, self.reverse = cell, reverse

    def forward(self, x):
        h = c = torch.zeros(x.size(1), self.cell.hidden)
        ys = []
        for t in range(x.size(0)):
            h, c = self.cell(x[x.size(0) - 1 - t if self.reverse else t], h, c)
            ys.append(h)
        if self.reverse:
            ys.reverse()
        return torch.stack(ys)


class Both(nn.Module):
    def __init__(self, *cells):
        super().__init__()
        self.directions = nn.ModuleList([Layer(cell, d == 1) for d, cell in enumerate(cells)])

    def forward(self, x):
        return torch.cat([d(x) for d in self.directions], -1)


class Stack(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class CustomLSTM(nn.Module):
    """torchaudio's _CustomLSTM."""

    def __init__(self, inputs, hidden, layer_norm, eps=1e-5):
        super().__init__()
        self.x2g = nn.Linear(inputs, 4 * hidden, bias=not layer_norm)
        self.p2g = nn.Linear(hidden, 4 * hidden, bias=False)
        self.c_norm = nn.LayerNorm(hidden, eps) if layer_norm else nn.Identity()
        self.g_norm = nn.LayerNorm(4 * hidden, eps) if layer_norm else nn.Identity()

    def forward(self, x):
        h = c = torch.zeros(x.size(1), self.p2g.in_features)
        result = []
        for x_t in self.x2g(x):
            i, f, g, o = self.g_norm(x_t + self.p2g(h)).chunk(4, 1)
            c = self.c_norm(f.sigmoid() * c + i.sigmoid() * g.tanh())
            h = o.sigmoid() * c.tanh()
            result.append(h)
        return torch.stack(result)


class GateGRUCell(nn.Module):
    """icefall's LayerNormGRUCell."""

    def __init__(self, inputs, hidden, bias):
        super().__init__()
        self.hidden = hidden
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden, inputs))
        self.weight_hh = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(3 * hidden)) if bias else None
        self.bias_hh = nn.Parameter(torch.empty(3 * hidden)) if bias else None
        self.layernorm_r, self.layernorm_i, self.layernorm_n = (nn.LayerNorm(hidden) for _ in range(3))

    def forward(self, x, h, c):
        xr, xi, xn = nn.functional.linear(x, self.weight_ih, self.bias_ih).chunk(3, 1)
        hr, hi, hn = nn.functional.linear(h, self.weight_hh, self.bias_hh).chunk(3, 1)
        r, i = torch.sigmoid(self.layernorm_r(xr + hr)), torch.sigmoid(self.layernorm_i(xi + hi))
        n = torch.tanh(self.layernorm_n(xn + r * hn))
        return n + i * (h - n), c


class HasteGRU(nn.Module):
    """A module with the parameters and options of haste's LayerNormGRU."""

    def __init__(self, inputs, hidden, batch_first=False, zoneout=0.0):
        super().__init__()
        self.batch_first, self.zoneout = batch_first, zoneout
        self.kernel = nn.Parameter(torch.empty(inputs, 3 * hidden))
        self.recurrent_kernel = nn.Parameter(torch.empty(hidden, 3 * hidden))
        self.bias, self.recurrent_bias = (nn.Parameter(torch.empty(3 * hidden)) for _ in range(2))
        self.gamma = nn.Parameter(torch.ones(2, 3 * hidden))

    def forward(self, x):
        h, result = torch.zeros(x.size(1), self.recurrent_kernel.size(0)), []
        for x_t in x:
            vx = nn.functional.layer_norm(x_t @ self.kernel, self.bias.shape, self.gamma[0]) + self.bias
            vh = (
                nn.functional.layer_norm(h @ self.recurrent_kernel, self.bias.shape, self.gamma[1])
                + self.recurrent_bias
            )
            (xz, xr, xg), (hz, hr, hg) = vx.chunk(3, 1), vh.chunk(3, 1)
            z, r = torch.sigmoid(xz + hz), torch.sigmoid(xr + hr)
            new = z * h + (1 - z) * torch.tanh(xg + r * hg)
            h = self.zoneout * h + (1 - self.zoneout) * new  # as haste does in evaluation mode
            result.append(h)
        return torch.stack(result)


class LiGRULayer(nn.Module):
    """The parameters, buffers and options of speechbrain's LiGRU_Layer, with layer_norm of its SLiGRU_Layer.

    layer_norm: whether that norm has parameters, or None for no such norm. With two directions both have the
    same weights.
    """

    def __init__(self, inputs, hidden, norm=nn.BatchNorm1d, act=None, bidirectional=False, layer_norm=None):
        super().__init__()
        self.w, self.u = (nn.Linear(n, 2 * hidden, bias=False) for n in (inputs, hidden))
        self.norm, self.act, self.bidirectional = norm(2 * hidden), act or nn.ReLU(), bidirectional
        if layer_norm is not None:
            self.layer_norm = nn.LayerNorm(2 * hidden, elementwise_affine=layer_norm)
        self.register_buffer("h_init", torch.zeros(1, hidden))
        self.register_buffer("drop_masks", torch.ones(9, hidden))
        self.register_buffer("drop_mask_te", torch.ones(1))
        self.batch_size = 1

    def forward(self, x):
        if self.bidirectional:
            x = torch.cat([x, x.flip(1)])
        self.batch_size = len(x)
        h, ys = self.h_init.expand(len(x), -1), []
        for w in self.norm(self.w(x).flatten(0, 1)).unflatten(0, x.shape[:2]).unbind(1):
            u = self.u(h)
            n, z = (w + (self.layer_norm(u) if hasattr(self, "layer_norm") else u)).chunk(2, 1)
            h = torch.sigmoid(z) * h + (1 - torch.sigmoid(z)) * self.act(n) * self.drop_mask_te
            ys.append(h)
        y = torch.stack(ys, 1)
        if self.bidirectional:
            y, backward = y.chunk(2)
            y = torch.cat([y, backward.flip(1)], 2)
        return y


class LiGRU(nn.Module):
    """A module like speechbrain's LiGRU and SLiGRU. With two directions the returned h has y at the
    last step, with axes in another order."""

    def __init__(self, *layers):
        super().__init__()
        self.rnn = nn.ModuleList(layers)

    def forward(self, x):
        last = []
        for layer in self.rnn:
            x = layer(x)
            last.append(x[:, -1])
        h = torch.stack(last, 1)
        return x, h.reshape(2 * len(last), len(x), -1) if layer.bidirectional else h.transpose(0, 1)


def fresh(module):
    """Sets gains to 1 and biases to 0, as before training. Returns the module."""
    for name, p in module.named_parameters():
        if "norm" not in name:
            nn.init.uniform_(p, -0.3, 0.3)
    return module


class OutCell(LayerNormLSTMCell):
    """fastrnns' parameters, but c is normalised for the output only, as in Ba et al. 2016."""

    def forward(self, x, h, c):
        gates = self.layernorm_i(x @ self.weight_ih.t()) + self.layernorm_h(h @ self.weight_hh.t())
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(self.layernorm_c(c)), c


class Pair(nn.Module):
    """A cell with the signature of fastrnns: cell(x, (h, c)) returns h, (h, c)."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x, state: tuple[torch.Tensor, torch.Tensor]):
        h, c = self.cell(x, state[0], state[1])
        return h, (h, c)


class WithState(nn.Module):
    """A layer with the signature of fastrnns: layer(x, state) returns y, state. States are (B, H)."""

    def __init__(self, cell, allow_none=False, reverse=False):
        super().__init__()
        self.cell, self.allow_none, self.reverse = cell, allow_none, reverse

    def forward(self, x, state):
        if state is None and self.allow_none:
            state = [torch.zeros(x.size(1), self.cell.hidden)] * 2
        h, c = state
        if h.dim() != 2:
            raise RuntimeError("h must be (B, H)")
        ys = []
        for x_t in x.flip(0) if self.reverse else x:
            h, c = self.cell(x_t, h, c)
            ys.append(h)
        ys = torch.stack(ys)
        return ys.flip(0) if self.reverse else ys, (h, c)


class BothWithState(nn.Module):
    def __init__(self, *cells):
        super().__init__()
        self.directions = nn.ModuleList([WithState(cell, reverse=d == 1) for d, cell in enumerate(cells)])

    def forward(self, x, states):
        ys, ends = zip(*(d(x, s) for d, s in zip(self.directions, states, strict=True)), strict=True)
        return torch.cat(ys, -1), list(ends)


class StackWithStates(nn.Module):
    """A stack like those of fastrnns: states are a list of layers, with a list of directions in each."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x, states):
        ends = []
        for layer, state in zip(self.layers, states, strict=True):
            x, end = layer(x, state)
            ends.append(end)
        return x, ends


class TorchLike(nn.Module):
    """A layer that requires states (layers, B, H) as in torch.nn, and returns a dict."""

    def __init__(self, cell):
        super().__init__()
        self.cell = WithState(cell)

    def forward(self, x, state):
        h, c = state
        y, (h, c) = self.cell(x, (h.squeeze(0), c.squeeze(0)))
        return {"output": y, "state": (h[None], c[None])}

    def state_dict(self, *args, **kwargs):
        return {n.replace("cell.cell", "cell"): p for n, p in super().state_dict(*args, **kwargs).items()}


class BatchFirst(nn.Module):
    def __init__(self, cell, batch_first=None):
        super().__init__()
        self.cell = cell
        if batch_first is not None:
            self.batch_first = batch_first

    def forward(self, x):
        return Layer.forward(_Forward(self.cell), x.swapaxes(0, 1)).swapaxes(0, 1)


_Forward = namedtuple("_Forward", "cell reverse", defaults=[False])


# {signature: a function from a class of cells to a module with this signature, 5 inputs and 12 units}
WAYS = {
    "cell(x, h, c)": lambda cell: cell(5, 12),
    "cell(x, (h, c))": lambda cell: Pair(cell(5, 12)),
    "layer(x)": lambda cell: Layer(cell(5, 12), False),
    "layer(x, state)": lambda cell: WithState(cell(5, 12)),
    "layer(x, None)": lambda cell: WithState(cell(5, 12), allow_none=True),
    "layer(x, state) of torch.nn": lambda cell: TorchLike(cell(5, 12)),
    "stack(x)": lambda cell: Stack(Layer(cell(5, 12), False), Layer(cell(12, 12), False)),
    "stack(x, states)": lambda cell: StackWithStates(WithState(cell(5, 12)), WithState(cell(12, 12))),
    "directions(x)": lambda cell: Both(cell(5, 12), cell(5, 12)),
    "directions(x, states)": lambda cell: BothWithState(cell(5, 12), cell(5, 12)),
    "stack of directions(x)": lambda cell: Stack(Both(cell(5, 12), cell(5, 12)),
                                                 Both(cell(24, 12), cell(24, 12))),
    "stack of directions(x, states)": lambda cell: StackWithStates(
        BothWithState(cell(5, 12), cell(5, 12)), BothWithState(cell(24, 12), cell(24, 12))),
    "list of cells": lambda cell: nn.ModuleList([cell(5, 12), cell(12, 12)]),
    "list of layers": lambda cell: nn.ModuleList([WithState(cell(5, 12)), WithState(cell(12, 12))]),
    "sequence of layers(x)": lambda cell: nn.Sequential(Layer(cell(5, 12), False),
                                                        Layer(cell(12, 12), False)),
    "sequence of cells": lambda cell: nn.Sequential(Pair(cell(5, 12)), Pair(cell(12, 12))),
    "batch first": lambda cell: BatchFirst(cell(5, 12), True),
}  # fmt: skip
