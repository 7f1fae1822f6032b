"""Recurrent cells and layers with layer norm, as users of torch write them. Needs torch.

The cells differ in names, order of gates, shapes and signatures. lnrnn can compute the cells in TAKEN, and
must refuse the cells in REFUSED. Most are functions of D inputs and H units that return an Own.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn import LayerNorm


def unrolled(module, xs, state):
    """Calls a module's step for each of xs. Returns all h, and the last state."""
    hs = []
    for x in xs:
        state = module.step(x, *state)
        hs.append(state[0])
    return torch.stack(hs), state


def zero_state(module, x):
    return tuple(x.new_zeros(len(x), module.units) for _ in range(module.states))


def sequence(module, x, state=None):
    """Calls the module's step for each step of x, time first. Returns the same as `unrolled`."""
    return unrolled(module, x, state or zero_state(module, x[0]))


def batch_first(module, x, state=None):
    ys, state = unrolled(module, x.unbind(1), state or zero_state(module, x[:, 0]))
    return ys.transpose(0, 1), state


def in_a_dict(module, x, state=None):
    ys, state = sequence(module, x, state)
    return {"output": ys, "state": state}


def h_beside_the_state(module, x, state):
    state = module.step(x, *state)
    return state[0], state


CALLS = {
    "cell(x, h)": lambda module, x, h: module.step(x, h)[0],
    "cell(h, x)": lambda module, h, x: module.step(x, h)[0],
    "cell(h, x) -> h, h": lambda module, h, x: module.step(x, h) * 2,
    "cell(x, h, c)": lambda module, x, h, c: module.step(x, h, c),
    "cell(x, (h, c))": lambda module, x, state: module.step(x, *state),
    "cell(x, (h, c)) -> h, (h, c)": h_beside_the_state,
    "layer(x) -> y": lambda module, x: sequence(module, x)[0],
    "layer(x) -> y, h, c": lambda module, x: (lambda y, state: (y, *state))(*sequence(module, x)),
    "layer(x, state)": sequence,
    "layer(x, h)": lambda module, x, h: sequence(module, x, h.unbind()),
    "layer(x, state), batch first": batch_first,
    "layer(x) -> dict": in_a_dict,
}


class Own(nn.Module):
    """A module with these parts. call: a key of CALLS, the signature of its forward.

    step(module, x_t, *state): returns the next state, a tuple that begins with h."""

    def __init__(self, call, step, units, states=2, **parts):
        super().__init__()
        self.call, self.own_step, self.units, self.states = call, step, units, states
        for name, part in parts.items():
            setattr(self, name, part)

    def step(self, x, *state):
        return self.own_step(self, x, *state)

    def forward(self, *given):
        return CALLS[self.call](self, *given)


# --- parts --------------------------------------------------------------------------------------------------


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def drawn(*shape):
    return nn.Parameter(torch.randn(*shape) / math.sqrt(min(shape[-2:])))


def ones(*shape):
    return nn.Parameter(torch.ones(*shape))


def zeros(*shape):
    return nn.Parameter(torch.zeros(*shape))


class GammaBeta(nn.Module):
    """A layer norm written by hand."""

    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.gamma, self.beta, self.eps = ones(features), zeros(features), eps

    def scale(self, centred):
        return torch.sqrt((centred**2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return self.gamma * centred / self.scale(centred) + self.beta


class StdPlusEps(GammaBeta):
    def scale(self, centred):
        return centred.std(-1, keepdim=True) + self.eps


def lstm(gates, order, c, forget=0.0):
    """Returns the next c and the output gate. gates: sums of all gates, as a tensor or a list."""
    a = dict(zip(order, gates.chunk(4, -1) if isinstance(gates, torch.Tensor) else gates, strict=True))
    c = torch.sigmoid(a["f"] + forget) * c + torch.sigmoid(a["i"]) * torch.tanh(a["g"])
    return c, torch.sigmoid(a["o"])


# --- LSTMs --------------------------------------------------------------------------------------------------


def two_linears(D, H, call="cell(x, (h, c))", change=lambda module, x, h, c: (x, h, c), clip=None, **more):
    """An LSTM with norms of W x, of W h, and of c for the output. change: changes x, h and c first."""

    def step(m, x, h, c):
        x, h, c = change(m, x, h, c)
        i, f, o, g = (m.ln_x(m.wx(x)) + m.ln_h(m.wh(h))).chunk(4, dim=-1)
        if "p_i" in more:
            i, f = i + m.p_i * c, f + m.p_f * c
        c, o = lstm([i, f, o, g], "ifog", c)
        return o * torch.tanh(m.ln_c(c)), c if clip is None else c.clamp(-clip, clip)

    return Own(call, step, H, wx=linear(D, 4 * H), wh=linear(H, 4 * H), ln_x=LayerNorm(4 * H),
               ln_h=LayerNorm(4 * H), ln_c=LayerNorm(H), **more)  # fmt: skip


def two_linears_with_bias(D, H):
    """An LSTM with biases inside the norms, and a forget bias in forward. The normalised c is carried."""

    def step(m, x, h, c):
        c, o = lstm(m.norm_i2h(m.i2h(x)) + m.norm_h2h(m.h2h(h)), "gifo", c, 1.0)
        c = m.norm_cell(c)
        return torch.tanh(c) * o, c

    return Own("layer(x, state), batch first", step, H, i2h=nn.Linear(D, 4 * H), h2h=nn.Linear(H, 4 * H),
               norm_i2h=LayerNorm(4 * H), norm_h2h=LayerNorm(4 * H), norm_cell=LayerNorm(H))  # fmt: skip


def one_linear(D, H, call="cell(x, (h, c))", order="fiog", x_first=True, bias=True, per_gate=False):
    """An LSTM or GRU with one Linear of [x, h] or [h, x], and a norm of all gates or of each gate."""

    def step(m, x, h, *c):
        a = m.lin(torch.cat([x, h] if x_first else [h, x], 1)).chunk(len(m.norms), 1)
        a = torch.cat([norm(v) for norm, v in zip(m.norms, a, strict=True)], 1)
        if c:
            c, o = lstm(a, order, *c)
            return o * c.tanh(), c
        gates = dict(zip(order, a.chunk(3, 1), strict=True))
        n = torch.tanh(gates["r"].sigmoid() * gates["n"])
        return (gates["z"].sigmoid() * (h - n) + n,)

    norms = [H] * len(order) if per_gate else [len(order) * H]
    return Own(call, step, H, len(order) - 2, lin=nn.Linear(D + H, len(order) * H, bias=bias),
               norms=nn.ModuleList(map(LayerNorm, norms)))  # fmt: skip


def matmul_of_parameters(D, H, norm=GammaBeta):
    def step(m, x, h, c):
        c, o = lstm(m.norm(x @ m.W + h @ m.U + m.b), "ifog", c)
        return o * torch.tanh(m.cell_norm(c)), c

    return Own("cell(x, h, c)", step, H, W=drawn(D, 4 * H), U=drawn(H, 4 * H), b=zeros(4 * H),
               norm=norm(4 * H), cell_norm=norm(H))  # fmt: skip


def linears_for_each_gate(D, H):
    def step(m, x, h, c):
        c, o = lstm([m.ln[k](m.W[k](x) + m.U[k](h)) for k in "fioc"], "fiog", c)
        return o * torch.tanh(c), c

    W, U, ln = (nn.ModuleDict({gate: make() for gate in "ifco"})
                for make in (lambda: linear(D, H), lambda: linear(H, H), lambda: LayerNorm(H)))  # fmt: skip
    return Own("cell(x, (h, c)) -> h, (h, c)", step, H, W=W, U=U, ln=ln)


def einsum(D, H):
    """An LSTM whose weights have an axis of gates, and whose gains are a matrix. The normalised c is
    carried."""

    def step(m, x, h, c):
        a = torch.einsum("bd,gdh->gbh", x, m.w) + torch.einsum("bk,gkh->gbh", h, m.u)
        a = F.layer_norm(a, a.shape[-1:]) * m.scale[:, None] + m.shift[:, None]
        c, o = lstm(list(a), "ofig", c)
        c = m.ln(c)
        return o * torch.tanh(c), c

    return Own("cell(x, h, c)", step, H, w=drawn(4, D, H), u=drawn(4, H, H), scale=ones(4, H),
               shift=zeros(4, H), ln=LayerNorm(H))  # fmt: skip


def interleaved(D, H):
    """An LSTM without norm. Gates are interleaved, as in view(B, H, 4)."""

    def step(m, x, h, c):
        c, o = lstm((m.x2h(x) + m.h2h(h)).view(-1, H, 4).unbind(-1), "igfo", c, 1.0)
        return o * torch.tanh(c), c

    return Own("layer(x, state), batch first", step, H, x2h=nn.Linear(D, 4 * H), h2h=linear(H, 4 * H))


def scrambled_gates(D, H):
    """An LSTM without norm. It has eight Linears with biases, in random order."""

    def step(m, x, h, c):
        c, o = lstm([m.parts["x" + k](x) + m.parts["h" + k](h) for k in "ifog"], "ifog", c)
        return o * torch.tanh(c), c

    order = ("hf", "xo", "xg", "ho", "hi", "xf", "hg", "xi")
    parts = nn.ModuleDict({k: nn.Linear(D if k[0] == "x" else H, H) for k in order})
    return Own("layer(x) -> y, h, c", step, H, parts=parts)


def gains_less_one(D, H):
    """An LSTM with one matrix, no norm of c, and a norm for each gate, whose gain is 1 + gamma."""

    def norm(m, k, v):
        centred = v - v.mean(-1, keepdim=True)
        scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-8)
        return centred * scale * (1 + m.gammas[k]) + m.betas[k]

    def step(m, x, h, c):
        gates = (torch.cat([x, h], -1) @ m.weights).chunk(4, -1)
        c, o = lstm([norm(m, k, v) for k, v in zip("gifo", gates, strict=True)], "gifo", c)
        return o * c.tanh(), c

    gammas, betas = (nn.ParameterDict({k: zeros(H) for k in "gifo"}) for _ in range(2))
    return Own("cell(x, (h, c))", step, H, weights=drawn(D + H, 4 * H), gammas=gammas, betas=betas)


def haiku(D, H):
    """An LSTM with one matrix (D + H, 4H), and one norm of all gates with a bias inside. 1 is added to f."""

    def step(m, x, h, c):
        gated = torch.cat([x, h], dim=-1) @ m.w_gates + m.b_gates
        c, o = lstm(F.layer_norm(gated, (4 * H,), m.scale, m.offset, 1e-3), "igfo", c, 1)
        return o * torch.tanh(c), c

    return Own("layer(x) -> dict", step, H, w_gates=drawn(D + H, 4 * H), b_gates=zeros(4 * H),
               offset=zeros(4 * H), scale=ones(4 * H))  # fmt: skip


def without_gains(D, H):
    """An LSTM with norms of W x and W h without parameters, and one bias after them. The normalised c is
    carried."""

    def step(m, x, h, c):
        a = m.norm(m.input_weights(x)) + m.norm(m.state_weights(h)) + m.bias
        c, o = lstm(a, "goif", c)
        c = m.c_norm(c)
        return o * c.tanh(), c

    return Own("cell(x, (h, c)) -> h, (h, c)", step, H, input_weights=linear(D, 4 * H),
               state_weights=linear(H, 4 * H), norm=LayerNorm(4 * H, elementwise_affine=False),
               c_norm=LayerNorm(H, elementwise_affine=False), bias=zeros(4 * H))  # fmt: skip


def norm_per_gate_and_cell(D, H, biases=(True, True), cell=True):
    def step(m, x, h, c):
        a = (m.of_x(x) + m.of_h(h)).chunk(4, 1)
        c, o = lstm([norm(u) for norm, u in zip(m.norms, a, strict=True)], "fiog", c)
        return o * m.norm_c(c).tanh(), c

    return Own("cell(x, (h, c))", step, H, of_x=nn.Linear(D, 4 * H, bias=biases[0]),
               of_h=nn.Linear(H, 4 * H, bias=biases[1]), norms=nn.ModuleList(LayerNorm(H) for _ in range(4)),
               norm_c=LayerNorm(H) if cell else nn.Identity())  # fmt: skip


# --- GRUs and RNNs ------------------------------------------------------------------------------------------


def sheeprl(D, H, norm=LayerNorm):
    """A GRU with one matrix of [h, x], and one norm over 3H with eps 1e-3. The update gate has an offset."""

    def step(m, x, h):
        reset, cand, update = m.layer_norm(m.linear(torch.cat((h, x), -1))).chunk(3, -1)
        update = torch.sigmoid(update - 1)
        return (update * torch.tanh(torch.sigmoid(reset) * cand) + (1 - update) * h,)

    return Own("cell(x, h)", step, H, 1, linear=linear(D + H, 3 * H), layer_norm=norm(3 * H, eps=1e-3))


def swapped_gru(D, H):
    """A GRU whose z multiplies the new state, and is the first gate. Norms of W x and W h are over 3H."""

    def step(m, x, h):
        gx = F.layer_norm(F.linear(x, m.kernel), (3 * H,), m.g1, m.b1)
        gh = F.layer_norm(F.linear(h, m.recurrent), (3 * H,), m.g2, m.b2)
        (xz, xr, xn), (hz, hr, hn) = gx.chunk(3, -1), gh.chunk(3, -1)
        z = torch.sigmoid(xz + hz)
        return (z * torch.tanh(xn + torch.sigmoid(xr + hr) * hn) + (1 - z) * h,)

    return Own("layer(x, state), batch first", step, H, 1, kernel=drawn(3 * H, D), recurrent=drawn(3 * H, H),
               g1=ones(3 * H), b1=zeros(3 * H), g2=ones(3 * H), b2=zeros(3 * H))  # fmt: skip


def parts_of_a_gru(D, H):
    """A GRU without norm, with one Linear of [x, h] for r and z, and two for the candidate."""

    def step(m, x, h):
        z, r = torch.sigmoid(m.zr(torch.cat((x, h), dim=-1))).split(H, -1)
        return ((1 - z) * h + z * torch.tanh(m.xn(x) + r * m.hn(h)),)

    return Own("cell(x, h)", step, H, 1, hn=nn.Linear(H, H), xn=nn.Linear(D, H), zr=nn.Linear(D + H, 2 * H))


def paper_gru(D, H):
    """A GRU with norms of W x and W h as in Ba et al.: one for r and z together, one for n."""

    def step(m, x, h):
        r, u = torch.sigmoid(m.ln1(m.U(h)) + m.ln2(m.W(x))).chunk(2, dim=1)
        return (u * h + (1.0 - u) * torch.tanh(m.ln3(m.Ux(h)) * r + m.ln4(m.Wx(x))),)

    return Own("cell(x, h)", step, H, 1, W=linear(D, 2 * H), U=linear(H, 2 * H), Wx=linear(D, H),
               Ux=linear(H, H), ln1=LayerNorm(2 * H), ln2=LayerNorm(2 * H), ln3=LayerNorm(H),
               ln4=LayerNorm(H))  # fmt: skip


def state_first(D, H):
    """A GRU with a norm for each gate, called as cell(h, x)."""

    def step(m, x, h):
        update, reset = (torch.sigmoid(m.norms[k](m.ins[k](x) + m.gates[k](h))) for k in (0, 1))
        new = torch.tanh(m.norms[2](m.ins[2](x) + reset * m.gates[2](h)))
        return (torch.lerp(h, new, update),)

    return Own("cell(h, x) -> h, h", step, H, 1, gates=nn.ModuleList(linear(H, H) for _ in range(3)),
               ins=nn.ModuleList(linear(D, H) for _ in range(3)),
               norms=nn.ModuleList(LayerNorm(H) for _ in range(3)))  # fmt: skip


def norm_per_gate_gru(D, H):
    """A GRU with biases, and a norm for each gate. The reset gate multiplies W_hn h and its bias."""

    def step(m, x, h):
        (r, z, n), (hr, hz, hn) = m.of_x(x).chunk(3, 1), m.of_h(h).chunk(3, 1)
        r, z = torch.sigmoid(m.norms[0](r + hr)), torch.sigmoid(m.norms[1](z + hz))
        return ((1 - z) * torch.tanh(m.norms[2](n + r * hn)) + z * h,)

    return Own("cell(x, h)", step, H, 1, of_x=nn.Linear(D, 3 * H), of_h=nn.Linear(H, 3 * H),
               norms=nn.ModuleList(LayerNorm(H) for _ in range(3)))  # fmt: skip


def elman(D, H, call="layer(x, state), batch first"):
    """An RNN with relu, and a redundant bias."""

    def step(m, x, h):
        return (torch.relu(m.norm(m.inp(x) + m.rec(h))),)

    return Own(call, step, H, 1, inp=nn.Linear(D, H), rec=linear(H, H), norm=LayerNorm(H))


class ElmanStateFirst(nn.Module):
    """An RNN whose forward takes (h, x). If D equals H, only names distinguish h and x."""

    def __init__(self, D, H, clip=None):
        super().__init__()
        self.U, self.V = nn.Linear(D, H), linear(H, H)
        self.clip, self.units, self.states = clip, H, 1

    def forward(self, h, x):
        return torch.tanh(self.U(x if self.clip is None else x.clamp(-self.clip, self.clip)) + self.V(h))

    def step(self, x, h):
        return (self(h, x),)


def reset_before(D, H):
    """A GRU whose reset gate multiplies h before the matrix does."""

    def step(m, x, h):
        r, z = torch.sigmoid(m.gates(torch.cat([x, h], 1))).chunk(2, 1)
        return ((1 - z) * torch.tanh(m.ln(m.candidate(torch.cat([x, r * h], 1)))) + z * h,)

    return Own("cell(x, h)", step, H, 1, gates=nn.Linear(D + H, 2 * H), candidate=nn.Linear(D + H, H),
               ln=LayerNorm(H))  # fmt: skip


# --- several layers -----------------------------------------------------------------------------------------


class Stack(nn.Module):
    """Two layers, batch first."""

    def __init__(self, D, H):
        super().__init__()
        self.cells = nn.ModuleList([two_linears(D, H), two_linears(H, H)])

    def forward(self, x):
        ends = []
        for cell in self.cells:
            x, end = batch_first(cell, x)
            ends.append(end)
        return x, ends


class BothWays(nn.Module):
    """A cell for each layer and direction, in a list for each direction. Time first."""

    def __init__(self, D, H, layers=1):
        super().__init__()
        sizes = (D, *[2 * H] * (layers - 1))
        self.ahead = nn.ModuleList([matmul_of_parameters(n, H) for n in sizes])
        self.back = nn.ModuleList([matmul_of_parameters(n, H) for n in sizes])

    def forward(self, x):
        for ahead, back in zip(self.ahead, self.back, strict=True):
            x = torch.cat([sequence(ahead, x)[0], sequence(back, x.flip(0))[0].flip(0)], -1)
        return x


class ParameterLists(nn.Module):
    """Two layers of an RNN, batch first, with a ParameterList for each kind of parameter."""

    def __init__(self, D, H):
        super().__init__()
        self.units = H
        self.ih, self.hh = (nn.ModuleList([linear(n, H), linear(H, H)]) for n in (D, H))
        self.norms = nn.ModuleList([LayerNorm(H) for _ in range(4)])

    def forward(self, x):
        for k in range(2):
            h, ys = x.new_zeros(len(x), self.units), []
            for v in x.unbind(1):
                h = torch.tanh(self.norms[k](self.ih[k](v)) + self.norms[2 + k](self.hh[k](h)))
                ys.append(h)
            x = torch.stack(ys, 1)
        return x


def noisy(module, x, h, c):
    return F.dropout(x, 0.2), h, c  # dropout in evaluation mode too


def peepholes(D, H, norm=nn.Identity):
    """An LSTM whose gates i and f read c, and whose gate o reads the new c."""

    def step(m, x, h, c):
        i, f, g, o = (m.ln_x(m.wx(x)) + m.ln_h(m.wh(h))).chunk(4, dim=-1)
        i, f = torch.sigmoid(i + m.p_i * c), torch.sigmoid(f + m.p_f * c)
        c = f * c + i * torch.tanh(g)
        return torch.sigmoid(o + c * m.p_o) * torch.tanh(m.ln_c(c)), c

    own = {f"p_{gate}": nn.Parameter(torch.randn(H)) for gate in "ifo"}
    return Own("cell(x, (h, c))", step, H, wx=linear(D, 4 * H), wh=linear(H, 4 * H), ln_x=norm(4 * H),
               ln_h=norm(4 * H), ln_c=norm(H), **own)  # fmt: skip


def peephole(D, H):
    """An LSTM in which c is an input of the gates i and f alone."""
    return two_linears(D, H, p_i=nn.Parameter(torch.randn(H)), p_f=nn.Parameter(torch.randn(H)))


# {name: (a function that creates the cell, the class of lnrnn that computes it)}. Tests vary D.
FIRST = {
    "two Linears": (two_linears, "LSTM"),
    "two Linears with bias": (two_linears_with_bias, "LSTM"),
    "one matrix": (lambda D, H: one_linear(D, H, "layer(x) -> y"), "LSTM"),
    "sheeprl": (sheeprl, "GRU"),
    "matmul of parameters": (matmul_of_parameters, "LSTM"),
    "Linears for each gate": (linears_for_each_gate, "LSTM"),
    "swapped GRU": (swapped_gru, "GRU"),
    "Elman": (elman, "RNN"),
    "scrambled gates": (scrambled_gates, "LSTM"),
    "stack": (Stack, "LSTM"),
}
PER_GATE = {
    "norm per gate": (lambda D, H: one_linear(D, H, per_gate=True), "LSTM"),
    "norm per gate and of c": (norm_per_gate_and_cell, "LSTM"),
    "norm per gate, bias of x": (lambda D, H: norm_per_gate_and_cell(D, H, (True, False), False), "LSTM"),
    "norm per gate, bias of h": (lambda D, H: norm_per_gate_and_cell(D, H, (False, True)), "LSTM"),
    "norm per gate, GRU": (norm_per_gate_gru, "GRU"),
}
TAKEN = FIRST | PER_GATE | {
    "einsum": (einsum, "LSTM"),
    "peepholes": (peepholes, "LSTM"),
    "peepholes and norms": (lambda D, H: peepholes(D, H, LayerNorm), "LSTM"),
    "interleaved": (interleaved, "LSTM"),
    "parts of a GRU": (parts_of_a_gru, "GRU"),
    "both ways": (BothWays, "LSTM"),
    "gains less 1": (gains_less_one, "LSTM"),
    "Haiku": (haiku, "LSTM"),
    "without gains": (without_gains, "LSTM"),
    "paper GRU": (paper_gru, "GRU"),
    "state first": (state_first, "GRU"),
    "Elman, state first": (ElmanStateFirst, "RNN"),
    "lists of parameters": (ParameterLists, "RNN"),
    "Elman, state required": (lambda D, H: elman(D, H, "layer(x, h)"), "RNN"),
}  # fmt: skip
REFUSED = {
    "clipped input, state first": lambda D, H: ElmanStateFirst(D, H, clip=8.0),
    "peephole": peephole,
    "std + eps": lambda D, H: matmul_of_parameters(D, H, StdPlusEps),
    "clipped": lambda D, H: two_linears(D, H, clip=0.5),
    "noisy": lambda D, H: two_linears(D, H, change=noisy),
    "reset before": reset_before,
}
