"""from_torch reads the equation of a module in its graph, whatever operators of torch the module uses."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from own_cells import Own, drawn, linear, sequence, two_linears, zeros  # noqa: E402

torch.set_num_threads(1)
D, H, T, B = 5, 8, 6, 3
CLOSE = 1e-5  # the rounding of six steps in float32; the largest error that was measured is 8e-7


def rnn(step, call="cell(x, h)", gates=1, states=1, **more):
    """Returns a module with random parameters W, U and b. step: as in Own."""
    torch.manual_seed(1)
    module = Own(
        call, step, H, states, W=drawn(gates * H, D), U=drawn(gates * H, H), b=zeros(gates * H), **more
    )
    with torch.no_grad():
        module.b.normal_()
    return module.eval()


def converted(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lnrnn.from_torch(module, check=False)


def assert_found(module, **options):
    """Compares the network of a module's graph alone with the module."""
    model = converted(module)
    assert {name: getattr(model, name) for name in options} == options
    x = torch.randn(T, B, D, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        want = module(x) if "layer" in module.call else sequence(module, x)
    want = want[0] if isinstance(want, tuple) else want
    assert absolute_error(model(x.numpy())[0], want.numpy()) < CLOSE
    return model


# --- operators ----------------------------------------------------------------------------------------------

SUMS = {
    "linear": lambda m, x, h: F.linear(x, m.W, m.b) + F.linear(h, m.U),
    "addmm": lambda m, x, h: torch.addmm(m.b, x, m.W.t()) + torch.mm(h, m.U.T),
    "addmm of a value": lambda m, x, h: torch.addmm(F.linear(x, m.W, m.b), h, m.U.transpose(0, 1)),
    "matrix on the left": lambda m, x, h: (m.W @ x.T + m.U @ h.T).permute(1, 0) + m.b,
    "bmm": lambda m, x, h: (torch.bmm(x[None], m.W.T[None]) + h.unsqueeze(0) @ m.U.T).squeeze(0) + m.b,
    "einsum": lambda m, x, h: torch.einsum("bd,hd->bh", x, m.W) + torch.einsum("kh,bh->bk", m.U, h) + m.b,
    "cat": lambda m, x, h: F.linear(torch.cat([h, x], 1), torch.cat([m.U, m.W], 1), m.b),
    "in place": lambda m, x, h: F.linear(x, m.W, m.b).add_(F.linear(h, m.U)),
    "alpha": lambda m, x, h: torch.add(m.b, F.linear(x, 2 * m.W), alpha=0.5).sub(F.linear(h, m.U), alpha=-1),
    "rsub": lambda m, x, h: 1 - (torch.rsub(F.linear(x, m.W / 2), 1 - m.b, alpha=2) - F.linear(h, m.U)),
    "div": lambda m, x, h: (F.linear(x, 4 * m.W) / 2 + F.linear(h, m.U).mul(2)) * 0.5 + m.b,
    "views": lambda m, x, h: (F.linear(x.reshape(-1, 1, D).expand(-1, 1, D).flatten(1), m.W, m.b).clone()
                              + F.linear(h.view(-1, 1, H).squeeze(1), m.U).contiguous()),
    "casts": lambda m, x, h: (F.linear(x.detach(), m.W, m.b) + F.linear(h.to(torch.float32), m.U)).type_as(x),
    "repeat": lambda m, x, h: F.linear(x.repeat(1, 1), m.W) + F.linear(h, m.U) + m.b.expand(len(x), H),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_sums_are_read_in_each_spelling(name):
    model = assert_found(rnn(lambda m, x, h: (torch.tanh(SUMS[name](m, x, h)),)))
    assert type(model) is lnrnn.RNN and model.norm is None


CUTS = {
    "chunk": lambda a: a.chunk(4, -1),
    "split": lambda a: a.split(H, 1),
    "split_with_sizes": lambda a: (
        *a.split([2 * H, H, H], -1)[0].chunk(2, -1),
        *a.split([2 * H, H, H], -1)[1:],
    ),
    "slice": lambda a: [a[:, k * H : k * H + H] for k in range(4)],
    "unbind": lambda a: a.view(-1, 4, H).unbind(1),
    "select": lambda a: [a.unflatten(-1, (4, H))[:, k] for k in range(4)],
    "interleaved": lambda a: a.view(-1, H, 4).unbind(-1),
    "every fourth": lambda a: [a[:, k::4] for k in range(4)],
    "norm of two axes": lambda a: F.layer_norm(a.view(-1, 4, H), (4, H)).unbind(1),
    "flip": lambda a: a.reshape(-1, 4, H).flip(1).transpose(0, 1).unbind(0),
}


@pytest.mark.parametrize("name", CUTS)
def test_gates_are_cut_in_each_spelling(name):
    def step(m, x, h, c):
        i, f, g, o = CUTS[name](F.linear(x, m.W, m.b) + F.linear(h, m.U))
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    model = assert_found(rnn(step, "cell(x, (h, c))", 4, 2))
    assert type(model) is lnrnn.LSTM


def centred(a):
    return a - a.mean(-1, keepdim=True)


EPS = 1e-3
NORMS = {
    "layer_norm": lambda m, a: F.layer_norm(a, (H,), m.gain, m.shift, EPS),
    "native": lambda m, a: torch.native_layer_norm(a, [H], m.gain, m.shift, EPS)[0],
    "sqrt": lambda m, a: m.gain * centred(a) / (centred(a).square().mean(-1, True) + EPS).sqrt() + m.shift,
    "rsqrt": lambda m, a: centred(a) * torch.rsqrt((centred(a) ** 2).mean(-1, True) + EPS) * m.gain + m.shift,
    "pow": lambda m, a: m.shift + (EPS + centred(a).pow(2).mean(-1, True)) ** -0.5 * centred(a) * m.gain,
    "var": lambda m, a: m.shift + m.gain * centred(a) / (a.var(-1, False, True) + EPS).sqrt(),
    "reciprocal": lambda m, a: m.shift + m.gain * centred(a) * (
        a.var(-1, correction=0, keepdim=True) + EPS).sqrt().reciprocal(),
    "var_mean": lambda m, a: m.shift + m.gain * (a - torch.var_mean(a, -1, correction=0, keepdim=True)[1]) / (
        torch.var_mean(a, -1, correction=0, keepdim=True)[0] + EPS).sqrt(),
    "expand_as": lambda m, a: m.shift + m.gain * (a - a.mean(-1, True).expand_as(a)) / (
        a.var(-1, False, True) + EPS).sqrt().expand_as(a),
    "sum": lambda m, a: m.shift + m.gain * (a - a.sum(-1, True) / H) / (
        (centred(a) * centred(a)).sum(-1, keepdim=True) / a.size(-1) + EPS).sqrt(),
    "two means": lambda m, a: m.shift + m.gain * centred(a) / (
        (a * a).mean(-1, True) - a.mean(-1, True) ** 2 + EPS).sqrt(),
    "after a join": lambda m, a: F.layer_norm(torch.cat(a.chunk(2, 1), 1), (H,), m.gain, m.shift, EPS),
}  # fmt: skip


def normed(norm):
    def step(m, x, h):
        return (torch.relu(norm(m, F.linear(x, m.W) + F.linear(h, m.U, m.b))),)

    return rnn(step, gain=nn.Parameter(1 + torch.arange(H) / 7), shift=nn.Parameter(torch.arange(H) / 5))


@pytest.mark.parametrize("name", NORMS)
def test_norms_are_read_in_each_spelling(name):
    model = assert_found(normed(NORMS[name]), nonlinearity="relu")
    assert model.norm.placement == "joint" and model.norm.eps == pytest.approx(EPS)


def std_without_eps(m, a):
    return m.gain * centred(a) / a.std(-1, unbiased=False, keepdim=True) + m.shift


def test_a_std_without_eps_is_a_norm():
    assert converted(normed(std_without_eps)).norm.eps == 0


@pytest.mark.parametrize("gates", [F.hardsigmoid, torch.sigmoid])
def test_the_function_of_gates_is_read(gates):
    def step(m, x, h):
        r, z, n = F.linear(x, m.W, m.b).chunk(3, 1)
        u, v, w = m.U.chunk(3, 0)
        r, z = gates(r + F.linear(h, u)), gates(z + F.linear(h, v))
        return (torch.lerp(torch.tanh(n + F.linear(r * h, w)), h, z),)

    model = assert_found(rnn(step, gates=3), reset_after=False)
    assert model.gate_activation == ("sigmoid" if gates is torch.sigmoid else "hard_sigmoid")


FUNCTIONS = {
    "exp": (lambda a: 1 / (1 + torch.exp(-a)), lambda a: 2 / (1 + torch.exp(-2 * a)) - 1),
    "sigmoid": (torch.sigmoid, lambda a: 2 * torch.sigmoid(2 * a) - 1),
}


@pytest.mark.parametrize("call", ["cell(x, (h, c))", "layer(x) -> y"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_read_in_each_spelling(name, call):
    sigmoid, tanh = FUNCTIONS[name]

    def step(m, x, h, c):
        i, f, g, o = map(lambda v, of: of(v), plain(m, x, h).chunk(4, 1), (sigmoid, sigmoid, tanh, sigmoid))
        c = f * c + i * g
        return o * tanh(c), c

    assert type(assert_found(rnn(step, call, 4, 2))) is lnrnn.LSTM


# --- sequences ----------------------------------------------------------------------------------------------


def tanh_step(m, a, h):
    return torch.tanh(a + F.linear(h, m.U))


def in_a_loop(first, project=lambda m, x: F.linear(x, m.W, m.b), end=torch.stack, order=lambda x: x):
    def forward(m, x):
        a, h, ys = order(project(m, x)), first(m, x), []
        for t in range(len(x)):
            h = tanh_step(m, a[t], h)
            ys.append(h)
        return order(end(ys))

    return forward


def rows(m, x):
    return F.linear(x.flatten(0, 1), m.W, m.b).view(*x.shape[:2], H)


def written(fill):
    def forward(m, x):
        y, h = fill(x), torch.zeros(x.shape[1], H)
        for t in range(len(x)):
            h = tanh_step(m, F.linear(x[t], m.W, m.b), h)
            y[t] = h
        return y, h.unsqueeze(0)

    return forward


ZEROS = {
    "new_zeros": lambda m, x: x.new_zeros(x.shape[1], H),
    "zeros": lambda m, x: torch.zeros((1, x.size(1), H))[0],
    "full": lambda m, x: torch.full((x.shape[1], H), 0.0),
    "zeros of a width": lambda m, x: torch.zeros(x.shape[1], 2 * H)[:, :H],
}
LAYERS = {
    **{name: in_a_loop(first) for name, first in ZEROS.items()},
    "rows of all steps": in_a_loop(ZEROS["zeros"], rows),
    "cat": in_a_loop(ZEROS["zeros"], end=lambda ys: torch.cat([y.unsqueeze(0) for y in ys])),
    "cat of rows": in_a_loop(ZEROS["zeros"], end=lambda ys: torch.cat(ys).view(len(ys), *ys[0].shape)),
    "written to empty": written(lambda x: torch.empty(*x.shape[:2], H)),
    "written to zeros": written(lambda x: x.new_zeros(*x.shape[:2], H)),
}  # fmt: skip


class Layer(nn.Module):
    call = "layer(x)"

    def __init__(self, forward):
        super().__init__()
        torch.manual_seed(1)
        self.own, self.W, self.U, self.b = forward, drawn(H, D), drawn(H, H), drawn(1, H)

    def forward(self, x):
        return self.own(self, x)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_read_in_each_spelling(name):
    assert_found(Layer(LAYERS[name]), batch_first=False, reverse=False, num_layers=1)


def test_a_layer_that_reads_from_the_end_is_a_network_in_reverse():
    assert_found(Layer(in_a_loop(ZEROS["zeros"], order=lambda x: x.flip(0))), reverse=True)


# --- near misses --------------------------------------------------------------------------------------------


def plain(m, x, h):
    return F.linear(x, m.W, m.b) + F.linear(h, m.U)


def lstm_with(change):
    def step(m, x, h, c):
        i, f, g, o = (F.linear(x, m.W, m.b) + F.linear(h, m.U)).chunk(4, 1)
        return change(i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid(), h, c)

    return rnn(step, "cell(x, (h, c))", 4, 2)


MISSES = {
    "norm of the batch": lambda: normed(lambda m, a: F.layer_norm(a.T, (len(a),)).T),
    "norm of half": lambda: normed(lambda m, a: F.layer_norm(a.view(-1, 2, H // 2), (H // 2,)).flatten(1)),
    "mean of absolutes": lambda: normed(lambda m, a: a * torch.rsqrt(a.abs().mean(-1, True) + EPS)),
    "std and eps": lambda: normed(lambda m, a: centred(a) / (a.std(-1, unbiased=False, keepdim=True) + EPS)),
    "unbiased": lambda: normed(lambda m, a: centred(a) / (a.var(-1, keepdim=True) + EPS).sqrt()),
    "another mean": lambda: normed(lambda m, a: (a - a.abs().mean(-1, True)) / a.std(-1, False, True)),
    "clamp between": lambda: rnn(lambda m, x, h: (torch.tanh(plain(m, x, h).clamp(-3, 3)),)),
    "clamp of x": lambda: rnn(lambda m, x, h: (torch.tanh(plain(m, x.clamp(-3, 3), h)),)),
    "leaky relu": lambda: rnn(lambda m, x, h: (F.leaky_relu(plain(m, x, h)),)),
    "two groups": lambda: normed(lambda m, a: F.group_norm(a, 2, m.gain, m.shift, EPS)),
    "two sequences": lambda: rnn(lambda m, x, h: (torch.tanh(plain(m, x, h).roll(1, 0)),)),
    "a mask": lambda: rnn(lambda m, x, h: (plain(m, x, h).tanh() * torch.arange(len(x))[:, None],)),
    "other c returned": lambda: lstm_with(lambda i, f, g, o, h, c: (o * (f * c + i * g).tanh(), f * c)),
    "exchanged": lambda: lstm_with(lambda i, f, g, o, h, c: (f * c + i * g, o * (f * c + i * g).tanh())),
    "y doubled": lambda: Layer(lambda m, x: LAYERS["zeros"](m, x) * 2),
    "y in reverse": lambda: Layer(lambda m, x: LAYERS["zeros"](m, x).flip(0)),
    "y of one step less": lambda: Layer(lambda m, x: F.pad(LAYERS["zeros"](m, x)[1:], (0, 0, 0, 0, 1, 0))),
    "mean of x": lambda: Layer(lambda m, x: LAYERS["zeros"](m, x - x.mean(0, keepdim=True))),
    "another start": lambda: Layer(in_a_loop(lambda m, x: torch.ones(x.shape[1], H))),
    "first state of x": lambda: Layer(in_a_loop(lambda m, x: F.linear(x[0], m.W))),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_are_refused(name):
    reason = r"the output 'mul in return .*' reads a value between" if name == "other c returned" else ""
    with pytest.raises(ValueError, match=f"a trace of forward is no network of lnrnn either: {reason}"):
        converted(MISSES[name]())


# --- modules that torch cannot trace, and modules that change -----------------------------------------------


class Writes(nn.Module):
    """A cell that keeps its last output. last: a buffer, a tensor or None. write: how it is kept."""

    def __init__(self, last, write):
        super().__init__()
        self.cell = rnn(lambda m, x, h: (torch.tanh(plain(m, x, h)),))
        self.last, self.write = last, write

    def forward(self, x, h):
        h = self.cell(x, h)
        self.write(self, h[0])
        return h


def rebind(module, h):
    module.last = h


Needs = type("Needs", (Layer,), {"forward": lambda self, x, a, b, c: self.own(self, x)})
Ignores = type("Ignores", (Layer,), {"forward": lambda m, x, s: m.own(m, x) if s.dim() else x})


def branching(when):
    return rnn(lambda m, x, h: (torch.tanh(plain(m, x, h)) * (2 if when(x, h) else 1),))


def hooked():
    module = rnn(lambda m, x, h: (torch.tanh(plain(m, x, h)),))
    module.register_forward_hook(lambda module, given, result: result * 2)
    return module


CHOOSES = r"forward chooses by a value that it computes at 'return .*when\(x, h\).*' \(line \d+ of \S+\)"
WRITES = "forward writes to last"
OTHERS = {
    "branch": (lambda: branching(lambda x, h: x.sum() > 0), CHOOSES),
    "number": (lambda: branching(lambda x, h: h.max().item() > 1), CHOOSES),
    "batch": (lambda: branching(lambda x, h: len(x) > 64), "depends on the number of steps or of sequences"),
    "steps": (lambda: Layer(lambda m, x: LAYERS["zeros"](m, x) if len(x) == 3 else x), "depends on"),
    "random": (lambda: rnn(lambda m, x, h: (torch.tanh(plain(m, x, h) + torch.rand(1)),)), ".*random"),
    "writes": (lambda: Writes(nn.Buffer(torch.zeros(H)), lambda m, h: m.last.copy_(h)), WRITES),
    "rebinds": (lambda: Writes(nn.Buffer(torch.zeros(H)), rebind), WRITES),
    "keeps": (lambda: Writes(None, rebind), WRITES),
    "keeps another": (lambda: Writes(torch.zeros(H), rebind), WRITES),
    "changes x": (lambda: rnn(lambda m, x, h: (plain(m, x.mul_(2), h).tanh(),)), "forward writes to its arg"),
    "hook": (hooked, "it changes what its last layer returns"),
    "argument": (lambda: Needs(LAYERS["zeros"]), r"no call of its forward\(x, a, b, c\) .* needs c too;"),
    "no state": (lambda: Ignores(LAYERS["zeros"]), "its forward must start from the states given"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_modules_without_one_graph_are_refused_by_name(name, capfd):
    make, reason = OTHERS[name]
    with pytest.raises(ValueError, match=f"no network of lnrnn either: (its (equation )?)?{reason}"):
        converted(make().eval())
    assert capfd.readouterr() == ("", "")  # no graph is printed


def test_parameters_may_be_shared_between_gates():
    def step(m, x, h, c):
        i, f, g, o = (F.linear(x, m.W, m.b) + F.linear(h, m.U) for _ in range(4))
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    assert_found(rnn(step, "cell(x, (h, c))", states=2))


def test_one_array_of_zeros_may_be_both_states():
    def forward(m, x):
        h = c = x.new_zeros(x.shape[1], H)
        ys = []
        for v in x:
            h, c = m.cell(v, (h, c))
            ys.append(h)
        return torch.stack(ys)

    module = Layer(forward)
    module.cell, module.W, module.U, module.b = two_linears(D, H), None, None, None
    assert_found(module)


def test_a_graph_may_be_too_large(monkeypatch):
    for limit, what in (("blocks.MOST_NODES", "nodes"), ("traces.MOST_OPERATORS", "operators")):
        monkeypatch.setattr(f"lnrnn.importers.{limit}", 3)
        with pytest.raises(ValueError, match=f"has more than 3 {what}"):
            converted(rnn(lambda m, x, h: (torch.tanh(plain(m, x, h)),)))


def test_linears_of_a_module_list_are_read():
    parts = nn.ModuleList([linear(D, H), linear(H, H)])
    step = Own(
        "cell(x, h)", lambda m, x, h: (torch.tanh(m.parts_[0](x) + m.parts_[1](h)),), H, 1, parts_=parts
    )
    assert np.array_equal(converted(step).weight_ih_l0, parts[0].weight.detach().numpy())


def test_a_number_that_is_one_for_now_is_no_part_of_an_equation():
    scaled = rnn(
        lambda m, x, h: (m.scale * torch.tanh(F.linear(x, m.W) + F.linear(h, m.U)),),
        scale=nn.Parameter(torch.ones(())),
    )
    with pytest.raises(ValueError, match="a trace of forward is no network of lnrnn"):
        lnrnn.from_torch(scaled)


def test_names_of_a_library_do_not_decide_what_a_module_is():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.u = nn.Linear(D, 2 * H, bias=False), nn.Linear(H, 2 * H, bias=False)
            self.norm = nn.LayerNorm(2 * H)

        def forward(self, x, h):
            n, z = (self.norm(self.w(x)) + self.u(h)).chunk(2, -1)
            z = torch.sigmoid(z)
            return z * h + (1 - z) * torch.relu(n)

    with pytest.warns(UserWarning, match=r"it is lnrnn.LiGRU.* with forward\(x, h\) called as mod"):
        assert type(lnrnn.from_torch(Own())) is lnrnn.LiGRU
