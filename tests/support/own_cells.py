"""Recurrent cells and layers with layer norm, as people write them for themselves: no two name, order or call
their parts alike. Needs torch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class TwoLinears(nn.Module):
    """A cell of two Linears without biases, a norm on each side and one of c on its way out."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.wx = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.wh = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.ln_x = nn.LayerNorm(4 * hidden_size)
        self.ln_h = nn.LayerNorm(4 * hidden_size)
        self.ln_c = nn.LayerNorm(hidden_size)

    def forward(self, x, state):
        h, c = state
        gates = self.ln_x(self.wx(x)) + self.ln_h(self.wh(h))
        i, f, o, g = gates.chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(self.ln_c(c))
        return h, c


class TwoLinearsWithBias(nn.Module):
    """A batch_first layer whose Linears have biases in front of the norms; a forget bias is added in its
    forward; the normalised c is carried."""

    def __init__(self, input_dim, hidden_dim, forget_bias=1.0):
        super().__init__()
        self.hidden_dim, self.forget_bias = hidden_dim, forget_bias
        self.i2h = nn.Linear(input_dim, 4 * hidden_dim)
        self.h2h = nn.Linear(hidden_dim, 4 * hidden_dim)
        self.norm_i2h = nn.LayerNorm(4 * hidden_dim)
        self.norm_h2h = nn.LayerNorm(4 * hidden_dim)
        self.norm_cell = nn.LayerNorm(hidden_dim)

    def forward(self, inputs, state=None):
        batch, steps, _ = inputs.shape
        if state is None:
            state = inputs.new_zeros(batch, self.hidden_dim), inputs.new_zeros(batch, self.hidden_dim)
        h, c = state
        outputs = []
        for t in range(steps):
            a = self.norm_i2h(self.i2h(inputs[:, t])) + self.norm_h2h(self.h2h(h))
            j, i, f, o = torch.split(a, self.hidden_dim, dim=1)
            c = self.norm_cell(c * torch.sigmoid(f + self.forget_bias) + torch.sigmoid(i) * torch.tanh(j))
            h = torch.tanh(c) * torch.sigmoid(o)
            outputs.append(h)
        return torch.stack(outputs, dim=1), (h, c)


class OneMatrix(nn.Module):
    """A layer with one Linear over [x, h] and one norm over all gates of what comes out, with its bias
    inside; c is not normalised; time first, outputs alone."""

    def __init__(self, n_in, n_hidden):
        super().__init__()
        self.n_hidden = n_hidden
        self.fc = nn.Linear(n_in + n_hidden, 4 * n_hidden)
        self.ln = nn.LayerNorm(4 * n_hidden)

    def forward(self, x):
        h = x.new_zeros(x.size(1), self.n_hidden)
        c = x.new_zeros(x.size(1), self.n_hidden)
        ys = []
        for xt in x:
            f, i, o, g = self.ln(self.fc(torch.cat([xt, h], 1))).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            ys.append(h)
        return torch.stack(ys)


class LayerNormGRUCell(nn.Module):
    """As of sheeprl: one matrix over [h, x], one norm over all 3H, update and its offset of -1."""

    def __init__(self, input_size, hidden_size, bias=False, eps=1e-3):
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.linear = nn.Linear(input_size + hidden_size, 3 * hidden_size, bias=bias)
        self.layer_norm = nn.LayerNorm(3 * hidden_size, eps=eps)

    def forward(self, input, hx):  # noqa: A002 - its name
        is_3d = input.dim() == 3
        if is_3d:
            input = input.squeeze(0)  # noqa: A001
        if hx.dim() == 3:
            hx = hx.squeeze(0)
        x = self.layer_norm(self.linear(torch.cat((hx, input), -1)))
        reset, cand, update = torch.chunk(x, 3, -1)
        reset = torch.sigmoid(reset)
        cand = torch.tanh(reset * cand)
        update = torch.sigmoid(update - 1)
        hx = update * cand + (1 - update) * hx
        return hx.unsqueeze(0) if is_3d else hx


class MatmulParameters(nn.Module):
    """A cell of parameters (inputs, 4H) used by @, and a norm of its own with gamma and beta."""

    class Norm(nn.Module):
        def __init__(self, features, eps=1e-6):
            super().__init__()
            self.gamma = nn.Parameter(torch.ones(features))
            self.beta = nn.Parameter(torch.zeros(features))
            self.eps = eps

        def forward(self, x):
            mean = x.mean(-1, keepdim=True)
            var = ((x - mean) ** 2).mean(-1, keepdim=True)
            return self.gamma * (x - mean) / torch.sqrt(var + self.eps) + self.beta

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.W = nn.Parameter(torch.empty(input_size, 4 * hidden_size))
        self.U = nn.Parameter(torch.empty(hidden_size, 4 * hidden_size))
        self.b = nn.Parameter(torch.zeros(4 * hidden_size))
        self.norm = MatmulParameters.Norm(4 * hidden_size)
        self.cell_norm = MatmulParameters.Norm(hidden_size)
        for w in (self.W, self.U):
            nn.init.orthogonal_(w)

    def forward(self, x, h, c):
        H = self.hidden_size
        z = self.norm(x @ self.W + h @ self.U + self.b)
        i, f, o, g = z[:, :H], z[:, H : 2 * H], z[:, 2 * H : 3 * H], z[:, 3 * H :]
        c_next = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h_next = torch.sigmoid(o) * torch.tanh(self.cell_norm(c_next))
        return h_next, c_next


class PerGateLinears(nn.Module):
    """A cell with a pair of Linears for each gate, and a norm for each."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        for gate in "ifco":
            setattr(self, f"W_{gate}", nn.Linear(input_size, hidden_size, bias=False))
            setattr(self, f"U_{gate}", nn.Linear(hidden_size, hidden_size, bias=False))
            setattr(self, f"ln_{gate}", nn.LayerNorm(hidden_size))

    def forward(self, x, hidden):
        h, c = hidden
        f = torch.sigmoid(self.ln_f(self.W_f(x) + self.U_f(h)))
        i = torch.sigmoid(self.ln_i(self.W_i(x) + self.U_i(h)))
        o = torch.sigmoid(self.ln_o(self.W_o(x) + self.U_o(h)))
        c_tilde = torch.tanh(self.ln_c(self.W_c(x) + self.U_c(h)))
        c = f * c + i * c_tilde
        h = o * torch.tanh(c)
        return h, (h, c)


class SwappedGRU(nn.Module):
    """A layer of a GRU whose z says how much is new, z first; F.linear on parameters; norms over all 3H of
    each side."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.kernel = nn.Parameter(torch.randn(3 * hidden_size, input_size) / math.sqrt(input_size))
        self.recurrent = nn.Parameter(torch.randn(3 * hidden_size, hidden_size) / math.sqrt(hidden_size))
        self.g1, self.b1 = (
            nn.Parameter(torch.ones(3 * hidden_size)),
            nn.Parameter(torch.zeros(3 * hidden_size)),
        )
        self.g2, self.b2 = (
            nn.Parameter(torch.ones(3 * hidden_size)),
            nn.Parameter(torch.zeros(3 * hidden_size)),
        )

    def forward(self, x, h=None):
        B, T, _ = x.shape
        H = self.hidden_size
        if h is None:
            h = torch.zeros(B, H, dtype=x.dtype, device=x.device)
        out = torch.empty(B, T, H, dtype=x.dtype, device=x.device)
        gx = F.layer_norm(F.linear(x, self.kernel), (3 * H,), self.g1, self.b1)
        for t in range(T):
            gh = F.layer_norm(F.linear(h, self.recurrent), (3 * H,), self.g2, self.b2)
            xz, xr, xn = gx[:, t].chunk(3, -1)
            hz, hr, hn = gh.chunk(3, -1)
            z = torch.sigmoid(xz + hz)
            n = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
            h = z * n + (1 - z) * h
            out[:, t] = h
        return out, h


class ElmanNet(nn.Module):
    """A layer-normalised RNN with relu, of Linears; one bias too many."""

    def __init__(self, in_features, hid):
        super().__init__()
        self.hid = hid
        self.inp = nn.Linear(in_features, hid)
        self.rec = nn.Linear(hid, hid, bias=False)
        self.norm = nn.LayerNorm(hid)
        self.act = nn.ReLU()

    def forward(self, seq, h0=None):
        h = seq.new_zeros(seq.shape[0], self.hid) if h0 is None else h0
        hs = []
        for x in seq.unbind(1):
            h = self.act(self.norm(self.inp(x) + self.rec(h)))
            hs.append(h)
        return torch.stack(hs, 1), h


class PlainLSTM(nn.Module):
    """A plain LSTM under the names of g2p's NumPy model, its gates in another order, time first."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.w_ih = nn.Parameter(torch.randn(4 * hidden_size, input_size) / 4)
        self.w_hh = nn.Parameter(torch.randn(4 * hidden_size, hidden_size) / 4)
        self.b_ih = nn.Parameter(torch.zeros(4 * hidden_size))
        self.b_hh = nn.Parameter(torch.zeros(4 * hidden_size))

    def forward(self, x):
        h = c = torch.zeros(x.shape[1], self.hidden_size, dtype=x.dtype)
        y = []
        for t in range(len(x)):
            a = F.linear(x[t], self.w_ih, self.b_ih) + F.linear(h, self.w_hh, self.b_hh)
            g, o, i, f = a.chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            y.append(h)
        return torch.stack(y), h, c


class Stack(nn.Module):
    """A network of several layers, cells in a ModuleList, driven by its own forward. batch_first."""

    def __init__(self, input_size, hidden_size, num_layers=2):
        super().__init__()
        self.num_layers, self.hidden_size = num_layers, hidden_size
        self.cells = nn.ModuleList(
            [TwoLinears(input_size if k == 0 else hidden_size, hidden_size) for k in range(num_layers)]
        )

    def forward(self, x):
        zeros = x.new_zeros(x.size(0), self.hidden_size)
        states = [(zeros, zeros)] * self.num_layers
        outputs = []
        for t in range(x.size(1)):
            inp = x[:, t]
            for k, cell in enumerate(self.cells):
                states[k] = cell(inp, states[k])
                inp = states[k][0]
            outputs.append(inp)
        return torch.stack(outputs, 1), states


# --- in other styles again ------------------------------------------------


class EinsumCell(nn.Module):
    """Weights of the gates stacked along an axis of their own, a norm for each gate with its gains in a
    matrix, and the normalised c carried; forward(x, h, c) gives (h, c)."""

    def __init__(self, d, h):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, d, h) / math.sqrt(d))
        self.u = nn.Parameter(torch.randn(4, h, h) / math.sqrt(h))
        self.scale, self.shift = nn.Parameter(torch.ones(4, h)), nn.Parameter(torch.zeros(4, h))
        self.ln = nn.LayerNorm(h)

    def forward(self, x, h, c):
        a = torch.einsum("bd,gdh->gbh", x, self.w) + torch.einsum("bk,gkh->gbh", h, self.u)
        a = F.layer_norm(a, a.shape[-1:]) * self.scale[:, None] + self.shift[:, None]
        o, f, i = torch.sigmoid(a[:3])
        c = self.ln(f * c + i * torch.tanh(a[3]))
        return o * torch.tanh(c), c


class Interleaved(nn.Module):
    """A plain LSTM whose gates lie side by side in each unit, as view(B, H, 4) has them."""

    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.x2h, self.h2h = nn.Linear(d, 4 * h), nn.Linear(h, 4 * h, bias=False)

    def forward(self, xs):
        h = c = torch.zeros(xs.size(0), self.h)
        ys = []
        for x in xs.transpose(0, 1):
            i, j, f, o = (self.x2h(x) + self.h2h(h)).view(-1, self.h, 4).unbind(-1)
            c = c * torch.sigmoid(f + 1.0) + torch.sigmoid(i) * torch.tanh(j)
            h = torch.sigmoid(o) * torch.tanh(c)
            ys.append(h)
        return torch.stack(ys, 1), (h, c)


class PartsOfAGRU(nn.Module):
    """A plain GRU of one Linear over [x, h] for r and z, and two for the candidate."""

    def __init__(self, d, h):
        super().__init__()
        self.hidden = h
        self.hn, self.xn = nn.Linear(h, h), nn.Linear(d, h)
        self.zr = nn.Linear(d + h, 2 * h)

    def forward(self, x, h):
        z, r = torch.sigmoid(self.zr(torch.cat((x, h), dim=-1))).split(self.hidden, -1)
        n = torch.tanh(self.xn(x) + r * self.hn(h))
        return (1 - z) * h + z * n


class BothWays(nn.Module):
    """Two layers of an own cell for each direction, their outputs side by side. Time first."""

    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.forwards, self.backwards = MatmulParameters(d, h), MatmulParameters(d, h)

    def run(self, cell, xs):
        h = c = xs[0].new_zeros(xs[0].size(0), self.h)
        ys = []
        for x in xs:
            h, c = cell(x, h, c)
            ys.append(h)
        return ys

    def forward(self, xs):
        steps = list(xs)
        there, back = self.run(self.forwards, steps), self.run(self.backwards, steps[::-1])[::-1]
        return torch.cat([torch.stack(there), torch.stack(back)], -1)


class GainsLessOne(nn.Module):
    """A norm for each gate whose gain is 1 + gamma, and biases of their own; gates by name; no norm of c."""

    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.weights = nn.Parameter(torch.randn(d + h, 4 * h) / 3)
        self.gammas = nn.ParameterDict({k: nn.Parameter(torch.zeros(h)) for k in ("g", "i", "f", "o")})
        self.betas = nn.ParameterDict({k: nn.Parameter(torch.zeros(h)) for k in ("g", "i", "f", "o")})

    def forward(self, x, state):
        h, c = state
        a = dict(zip("gifo", (torch.cat([x, h], -1) @ self.weights).chunk(4, -1), strict=True))
        for k, v in a.items():
            mean = v.mean(-1, keepdim=True)
            var = (v - mean).square().mean(-1, keepdim=True)
            a[k] = (v - mean) * torch.rsqrt(var + 1e-8) * (1 + self.gammas[k]) + self.betas[k]
        c = a["f"].sigmoid() * c + a["i"].sigmoid() * a["g"].tanh()
        return a["o"].sigmoid() * c.tanh(), c


class HaikuLike(nn.Module):
    """One matrix (D + H, 4H) over [x, h], gates i, g, f, o with 1 added to f, one norm of all, with a bias in
    front; the outputs and the state come in a dict."""

    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.w_gates = nn.Parameter(torch.randn(d + h, 4 * h) / math.sqrt(d + h))
        self.b_gates = nn.Parameter(torch.zeros(4 * h))
        self.offset, self.scale = nn.Parameter(torch.zeros(4 * h)), nn.Parameter(torch.ones(4 * h))

    def forward(self, inputs, prev=None):
        if prev is None:
            prev = tuple(inputs.new_zeros(inputs.shape[1], self.h) for _ in range(2))
        h, c = prev
        out = []
        for x in inputs:
            gated = torch.cat([x, h], dim=-1) @ self.w_gates + self.b_gates
            gated = F.layer_norm(gated, (4 * self.h,), self.scale, self.offset, 1e-3)
            i, g, f, o = gated.chunk(4, dim=-1)
            f = torch.sigmoid(f + 1)
            c = f * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            out.append(h)
        return {"output": torch.stack(out), "state": (h, c)}


class WithoutGains(nn.Module):
    """Norms without parameters on both sides, one bias after them, and one norm of c that is carried."""

    def __init__(self, d, h):
        super().__init__()
        self.input_weights, self.state_weights = (
            nn.Linear(d, 4 * h, bias=False),
            nn.Linear(h, 4 * h, bias=False),
        )
        self.norm = nn.LayerNorm(4 * h, elementwise_affine=False)
        self.c_norm = nn.LayerNorm(h, elementwise_affine=False)
        self.bias = nn.Parameter(torch.zeros(4 * h))

    def forward(self, x, hc):
        a = self.norm(self.input_weights(x)) + self.norm(self.state_weights(hc[0])) + self.bias
        u, o, i, f = a.chunk(4, -1)
        c = self.c_norm(f.sigmoid() * hc[1] + i.sigmoid() * u.tanh())
        return o.sigmoid() * c.tanh(), (o.sigmoid() * c.tanh(), c)


class ParameterLists(nn.Module):
    """Two layers whose parameters stand in lists by kind, not in a module for each layer; RNN, a norm on each
    side, batch_first."""

    def __init__(self, d, h, layers=2):
        super().__init__()
        self.h = h
        self.ih = nn.ModuleList([nn.Linear(d if k == 0 else h, h, bias=False) for k in range(layers)])
        self.hh = nn.ModuleList([nn.Linear(h, h, bias=False) for _ in range(layers)])
        self.norm_ih = nn.ModuleList([nn.LayerNorm(h) for _ in range(layers)])
        self.norm_hh = nn.ModuleList([nn.LayerNorm(h) for _ in range(layers)])

    def forward(self, x):
        for ih, hh, norm_ih, norm_hh in zip(self.ih, self.hh, self.norm_ih, self.norm_hh, strict=True):
            h, ys = torch.zeros(len(x), self.h), []
            for t in range(x.shape[1]):
                h = torch.tanh(norm_ih(ih(x[:, t])) + norm_hh(hh(h)))
                ys.append(h)
            x = torch.stack(ys, 1)
        return x


class PaperGRU(nn.Module):
    """Ba et al.'s GRU: on each side a norm of r and z together and one of the candidate."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.n_out = n_out
        self.W, self.U = nn.Linear(n_in, 2 * n_out, bias=False), nn.Linear(n_out, 2 * n_out, bias=False)
        self.Wx, self.Ux = nn.Linear(n_in, n_out, bias=False), nn.Linear(n_out, n_out, bias=False)
        self.ln1, self.ln2 = nn.LayerNorm(2 * n_out), nn.LayerNorm(2 * n_out)
        self.ln3, self.ln4 = nn.LayerNorm(n_out), nn.LayerNorm(n_out)

    def forward(self, x, h_prev):
        preact = self.ln1(self.U(h_prev)) + self.ln2(self.W(x))
        r, u = torch.sigmoid(preact).chunk(2, dim=1)
        hbar = torch.tanh(self.ln3(self.Ux(h_prev)) * r + self.ln4(self.Wx(x)))
        return u * h_prev + (1.0 - u) * hbar


class ScrambledGates(nn.Module):
    """A plain LSTM of eight Linears with biases, made in no order. batch_first."""

    def __init__(self, d, h):
        super().__init__()
        self.h = h
        order = ("hf", "xo", "xg", "ho", "hi", "xf", "hg", "xi")
        self.parts = nn.ModuleDict({k: nn.Linear(d if k[0] == "x" else h, h) for k in order})

    def forward(self, x, h0=None, c0=None):
        h = torch.zeros(x.shape[0], self.h) if h0 is None else h0
        c = torch.zeros(x.shape[0], self.h) if c0 is None else c0
        p, ys = self.parts, []
        for t in range(x.shape[1]):
            i, f, o, g = (p["x" + k](x[:, t]) + p["h" + k](h) for k in "ifog")
            c = torch.addcmul(torch.sigmoid(f) * c, torch.sigmoid(i), torch.tanh(g))
            h = torch.sigmoid(o) * torch.tanh(c)
            ys.append(h)
        return torch.stack(ys, dim=1), h, c


class StateFirst(nn.Module):
    """A GRU cell that takes the state before the input, a norm for each gate, and returns the state twice."""

    def __init__(self, hidden, inputs):
        super().__init__()
        self.gates = nn.ModuleList([nn.Linear(hidden, hidden, bias=False) for _ in range(3)])
        self.ins = nn.ModuleList([nn.Linear(inputs, hidden, bias=False) for _ in range(3)])
        self.norms = nn.ModuleList([nn.LayerNorm(hidden) for _ in range(3)])

    def forward(self, h, x):
        update, reset = (torch.sigmoid(self.norms[k](self.ins[k](x) + self.gates[k](h))) for k in (0, 1))
        new = torch.tanh(self.norms[2](self.ins[2](x) + reset * self.gates[2](h)))
        h = torch.lerp(h, new, update)
        return h, h


class NormPerGate(nn.Module):
    """One Linear of all gates, with its bias, and a norm for each gate."""

    def __init__(self, d, h):
        super().__init__()
        self.w, self.norms = nn.Linear(d + h, 4 * h), nn.ModuleList(nn.LayerNorm(h) for _ in range(4))

    def forward(self, x, state):
        h, c = state
        a = self.w(torch.cat([x, h], 1)).chunk(4, 1)
        i, f, g, o = (norm(u) for norm, u in zip(self.norms, a, strict=True))
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class NormPerGateAndCell(nn.Module):
    """Two Linears, of x and of h, with biases or without; a norm for each gate, and one of c or none."""

    def __init__(self, d, h, biases=(True, True), cell=True):
        super().__init__()
        self.of_x, self.of_h = nn.Linear(d, 4 * h, bias=biases[0]), nn.Linear(h, 4 * h, bias=biases[1])
        self.norms = nn.ModuleList(nn.LayerNorm(h) for _ in range(4))
        self.norm_c = nn.LayerNorm(h) if cell else nn.Identity()

    def forward(self, x, state):
        h, c = state
        a = (self.of_x(x) + self.of_h(h)).chunk(4, 1)
        f, i, o, g = (norm(u) for norm, u in zip(self.norms, a, strict=True))
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * self.norm_c(c).tanh(), c


class NormPerGateGRU(nn.Module):
    """Two Linears with biases, and a norm for each gate; the reset gate multiplies h's part of the candidate,
    its bias too."""

    def __init__(self, d, h):
        super().__init__()
        self.of_x, self.of_h = nn.Linear(d, 3 * h), nn.Linear(h, 3 * h)
        self.norms = nn.ModuleList(nn.LayerNorm(h) for _ in range(3))

    def forward(self, x, h):
        (r, z, n), (hr, hz, hn) = self.of_x(x).chunk(3, 1), self.of_h(h).chunk(3, 1)
        r, z = torch.sigmoid(self.norms[0](r + hr)), torch.sigmoid(self.norms[1](z + hz))
        return (1 - z) * torch.tanh(self.norms[2](n + r * hn)) + z * h


# --- what no cell of lnrnn computes -------------------------------------------------------------------------


class Peephole(TwoLinears):
    """c enters the gates."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.p_i = nn.Parameter(torch.randn(hidden_size))
        self.p_f = nn.Parameter(torch.randn(hidden_size))

    def forward(self, x, state):
        h, c = state
        i, f, o, g = (self.ln_x(self.wx(x)) + self.ln_h(self.wh(h))).chunk(4, dim=-1)
        c = torch.sigmoid(f + self.p_f * c) * c + torch.sigmoid(i + self.p_i * c) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(self.ln_c(c)), c


class StdPlusEps(MatmulParameters):
    """Divides by std + eps, eps large enough to tell."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)

        class Norm(MatmulParameters.Norm):
            def forward(self, x):
                mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
                return self.gamma * (x - mean) / (std + self.eps) + self.beta

        self.norm, self.cell_norm = Norm(4 * hidden_size), Norm(hidden_size)


class Clipped(TwoLinears):
    """Clips its state where it is large."""

    def forward(self, x, state):
        h, c = super().forward(x, state)
        return h, c.clamp(-0.5, 0.5)


class Noisy(TwoLinears):
    """Drops out in evaluation mode too."""

    def forward(self, x, state):
        return super().forward(F.dropout(x, 0.2), state)


class ResetBefore(nn.Module):
    """A GRU whose reset gate comes before the matrix."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.gates = nn.Linear(input_size + hidden_size, 2 * hidden_size)
        self.candidate = nn.Linear(input_size + hidden_size, hidden_size)
        self.ln = nn.LayerNorm(hidden_size)

    def forward(self, x, h):
        r, z = torch.sigmoid(self.gates(torch.cat([x, h], 1))).chunk(2, 1)
        n = torch.tanh(self.ln(self.candidate(torch.cat([x, r * h], 1))))
        return (1 - z) * h + z * n


class ElmanStateFirst(nn.Module):
    """h' of (h, x): with as many inputs as units either may be the input of an RNN."""

    def __init__(self, inputs, units, clip=None):
        super().__init__()
        self.U, self.V = nn.Linear(inputs, units), nn.Linear(units, units, bias=False)
        self.clip = clip

    def forward(self, h, x):
        return torch.tanh(self.U(x if self.clip is None else x.clamp(-self.clip, self.clip)) + self.V(h))


FIRST = {
    "two Linears": (TwoLinears, "LSTM"),
    "two Linears with bias": (TwoLinearsWithBias, "LSTM"),
    "one matrix": (OneMatrix, "LSTM"),
    "sheeprl": (LayerNormGRUCell, "GRU"),
    "matmul of parameters": (MatmulParameters, "LSTM"),
    "Linears for each gate": (PerGateLinears, "LSTM"),
    "swapped GRU": (SwappedGRU, "GRU"),
    "Elman": (ElmanNet, "RNN"),
    "plain LSTM": (PlainLSTM, "LSTM"),
    "stack": (Stack, "LSTM"),
}
SECOND = {
    "einsum": (EinsumCell, "LSTM"),
    "interleaved": (Interleaved, "LSTM"),
    "parts of a GRU": (PartsOfAGRU, "GRU"),
    "both ways": (BothWays, "LSTM"),
    "gains less 1": (GainsLessOne, "LSTM"),
    "Haiku": (HaikuLike, "LSTM"),
    "without gains": (WithoutGains, "LSTM"),
    "paper GRU": (PaperGRU, "GRU"),
    "scrambled gates": (ScrambledGates, "LSTM"),
    "state first": (lambda d, h: StateFirst(h, d), "GRU"),
    "Elman, state first": (ElmanStateFirst, "RNN"),
}
PER_GATE = {
    "norm per gate": (NormPerGate, "LSTM"),
    "norm per gate and of c": (NormPerGateAndCell, "LSTM"),
    "norm per gate, bias of x": (lambda d, h: NormPerGateAndCell(d, h, (True, False), False), "LSTM"),
    "norm per gate, bias of h": (lambda d, h: NormPerGateAndCell(d, h, (False, True)), "LSTM"),
    "norm per gate, GRU": (NormPerGateGRU, "GRU"),
}
REFUSED = {
    "clipped input, state first": lambda d, h: ElmanStateFirst(d, h, clip=8.0),
    "peephole": Peephole,
    "std + eps": StdPlusEps,
    "clipped": Clipped,
    "noisy": Noisy,
    "reset before": ResetBefore,
    "lists of parameters": ParameterLists,
}
