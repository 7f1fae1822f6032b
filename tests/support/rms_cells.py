"""Recurrent cells with torch.nn.RMSNorm, as users of torch write them, in the form of own_cells.py."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn import RMSNorm

from own_cells import Own, drawn, linear, lstm, ones, sheeprl, zeros


def elman(D, H):
    """An RNN with one norm, torch's default eps, and biases inside of the norm. Batch first."""

    def step(m, x, h):
        return (torch.tanh(m.norm(m.ih(x) + m.hh(h))),)

    return Own(
        "layer(x, state), batch first", step, H, 1, ih=nn.Linear(D, H), hh=linear(H, H), norm=RMSNorm(H)
    )


def split(D, H):
    """An LSTM with norms of W x, W h and c, and one bias of the gates after the norms."""

    def step(m, x, h, c):
        a = m.norm_x(m.ih(x)) + m.norm_h(m.hh(h)) + m.bias
        c, o = lstm(a, "ifgo", c)
        return o * torch.tanh(m.norm_c(c)), c

    return Own("layer(x) -> y, h, c", step, H, ih=linear(D, 4 * H), hh=linear(H, 4 * H), bias=zeros(4 * H),
               norm_x=RMSNorm(4 * H, 1e-6), norm_h=RMSNorm(4 * H, 1e-6), norm_c=RMSNorm(H, 1e-6))  # fmt: skip


def per_gate(D, H):
    """An LSTM with a norm for each gate of one matrix, by the function. The normalised c is carried."""

    def step(m, x, h, c):
        gates = F.linear(torch.cat([x, h], -1), m.weight).chunk(4, -1)
        a = [F.rms_norm(u, (H,), gain, 1e-5) for u, gain in zip(gates, m.gains, strict=True)]
        c, o = lstm(a, "fiog", c)
        c = F.rms_norm(c, (H,), m.gain_c, 1e-5)
        return o * torch.tanh(c), c

    return Own("cell(x, (h, c))", step, H, weight=drawn(4 * H, D + H), gain_c=ones(H),
               gains=nn.ParameterList(ones(H) for _ in range(4)))  # fmt: skip


def by_hand(D, H):
    """A GRU with norms of W x and W h as in Ba et al., with a norm that is written by hand."""

    def norm(v, gain):
        return v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + 1e-6) * gain

    def step(m, x, h):
        x_rz, x_n = m.ih(x).split([2 * H, H], -1)
        h_rz, h_n = m.hh(h).split([2 * H, H], -1)
        r, z = torch.sigmoid(norm(x_rz, m.g[0]) + norm(h_rz, m.g[1])).chunk(2, -1)
        n = torch.tanh(norm(x_n, m.g[2]) + r * norm(h_n, m.g[3]))
        return ((1 - z) * n + z * h,)

    return Own("layer(x, state), batch first", step, H, 1, ih=linear(D, 3 * H), hh=linear(H, 3 * H),
               g=nn.ParameterList(ones(n) for n in (2 * H, 2 * H, H, H)))  # fmt: skip


RMS = {
    "RMS, Elman": (elman, "RNN"),
    "RMS, split": (split, "LSTM"),
    "RMS, per gate": (per_gate, "LSTM"),
    "RMS, Dreamer": (partial(sheeprl, norm=RMSNorm), "GRU"),
    "RMS, by hand": (by_hand, "GRU"),
}
