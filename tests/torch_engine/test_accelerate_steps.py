"""lnrnn.torch.accelerate on custom cells that a model calls one step at a time."""

from __future__ import annotations

import copy
import pickle
from functools import cache

import numpy as np
import pytest

from helpers import absolute_error

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from lnrnn.torch import accelerate  # noqa: E402
from mixed_models import flat  # noqa: E402
from torch_cells import WAYS, LayerNormLSTMCell, shaken  # noqa: E402

torch.set_num_threads(1)  # small operations take longer on several threads

B, I, H = 4, 5, 12  # noqa: E741 - the letters of the shapes in the documentation
SINGLE = 5e-6  # both sides compute in float32


class LayerNormGRUCell(nn.Module):
    """As in sheeprl: one matrix of [h, x], and one norm of all gates."""

    def __init__(self, input_size, hidden_size, bias=True, layer_norm_cls=nn.LayerNorm, layer_norm_kw=None):
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        self.linear = nn.Linear(input_size + hidden_size, 3 * hidden_size, bias=bias)
        self.layer_norm = layer_norm_cls(3 * hidden_size, **(layer_norm_kw or {"eps": 1e-3}))

    def forward(self, input, hx):
        is_3d = input.dim() == 3
        if is_3d:
            if len(input) != 1:
                raise AssertionError("only one step")
            input = input.squeeze(0)
        hx = hx.squeeze(0) if hx.dim() == 3 else hx
        x = self.layer_norm(self.linear(torch.cat((hx, input), -1)))
        reset, cand, update = torch.chunk(x, 3, -1)
        update = torch.sigmoid(update - 1)
        hx = update * torch.tanh(torch.sigmoid(reset) * cand) + (1 - update) * hx
        return hx.unsqueeze(0) if is_3d else hx


class Packed(LayerNormLSTMCell):
    """fastrnns' cell that begins at zero without a state, and returns a list."""

    def forward(self, x, state=None):
        h, c = (x.new_zeros(len(x), self.hidden),) * 2 if state is None else state
        return [*super().forward(x, h, c)]


class Unpacking(LayerNormLSTMCell):
    """Takes a tuple or a list."""

    def forward(self, x, state):
        return super().forward(x, *state)


CELLS = {
    "sheeprl": lambda: LayerNormGRUCell(I, H),
    "sheeprl without bias": lambda: LayerNormGRUCell(I, H, False),
    "as many inputs as units": lambda: LayerNormGRUCell(H, H),
    "h and c": lambda: WAYS["cell(x, h, c)"](LayerNormLSTMCell),
    "(h, c)": lambda: WAYS["cell(x, (h, c))"](LayerNormLSTMCell),
    "list": lambda: Packed(I, H),
    "any pair": lambda: Unpacking(I, H),
}


def inputs(what, *batch):
    x, h, c = torch.randn(*batch, H if what.startswith("as many") else I), *torch.randn(2, *batch, H)
    if what in ("(h, c)", "list", "any pair"):
        return x, (h, c)
    return (x, h, c) if what == "h and c" else (x, h)


def next_states(what, result):
    """Returns the arguments of the next call after x."""
    if what == "(h, c)":
        return [result[1]]
    return [*result] if what == "h and c" else [result]


@cache
def accelerated(what):
    module = shaken(CELLS[what]())
    plain = copy.deepcopy(module)
    report = accelerate(nn.ModuleDict({"cell": module}))
    ((name, text),) = report.replaced
    assert name == "cell" and not report.left
    assert text.endswith(", one step at a time; calls that need gradients run its own forward")
    return module, plain


def two(what):
    """Returns an accelerated cell and an ordinary copy."""
    return copy.deepcopy(accelerated(what))


def assert_equal(got, want):
    assert type(got) is type(want)
    for a, b in zip(flat(got), flat(want), strict=True):
        assert a.shape == b.shape and absolute_error(a.detach().numpy(), b.detach().numpy()) < SINGLE


@pytest.mark.parametrize("what", CELLS)
def test_steps_have_the_results_of_the_module(what, monkeypatch):
    module, plain = two(what)
    x, *state = inputs(what, B)
    with torch.no_grad():
        for training in (False, True):
            mine, own = state, state
            for _ in range(4):  # the first call packs the weights
                got, want = module.train(training)(x, *mine), plain.train(training)(x, *own)
                assert_equal(got, want)
                mine, own = next_states(what, got), next_states(what, want)
        for batch in (1, 9):
            given = inputs(what, batch)
            assert_equal(module(*given), plain(*given))
        with monkeypatch.context() as changed:
            changed.setattr(type(module), "forward", None)
            module(x, *state)  # lnrnn computes it


def test_sheeprl_calls_with_three_axes_and_names():
    module, plain = two("sheeprl")
    x, h = inputs("sheeprl", B)
    with torch.no_grad():
        for _ in range(2):
            assert_equal(module(x[None], h[None]), plain(x[None], h[None]))
            assert_equal(module(x[None], h), plain(x[None], h))
            assert_equal(module(x, h[None]), plain(x, h[None]))
            assert_equal(module(input=x, hx=h), plain(x, h))
            assert_equal(module(x, hx=h), plain(x, h))
        assert_equal(module(x[0], h[0]), plain(x[0], h[0]))
        for each in (module, plain):
            with pytest.raises(AssertionError, match="only one step"):
                each(x[:, None], h[None])
    with pytest.raises(TypeError, match="unexpected keyword"):
        module(x, state=h)


def test_a_pair_of_states_is_a_tuple_or_a_list():
    module, plain = two("any pair")
    x, pair = inputs("any pair", B)
    with torch.no_grad():
        for _ in range(2):
            for state in (pair, [*pair]):
                assert_equal(module(x, state), plain(x, state))
        with pytest.raises(TypeError, match="state"):
            module(x[None])


class Block(nn.Module):
    """Not recurrent, but with the names of sheeprl's parameters."""

    def __init__(self, rows=3 * H, columns=I + H):
        super().__init__()
        self.linear, self.layer_norm = nn.Linear(columns, rows), nn.LayerNorm(rows)

    def forward(self, x):
        return self.layer_norm(self.linear(x))


@pytest.mark.parametrize("sizes", [(3 * H, I + H), (7, 5), (12, 12)])
def test_other_modules_with_such_names_are_not_listed(sizes):
    report = accelerate(nn.Sequential(Block(*sizes)))
    assert not report.replaced and not report.left


def test_another_order_of_columns_is_refused():
    class Swapped(LayerNormGRUCell):
        def forward(self, input, hx):
            return LayerNormGRUCell.forward(self, hx, input)

    report = accelerate(nn.Sequential(shaken(Swapped(H, H))))
    assert not report.replaced and "its first argument is the state" in report.left[0][1]


@pytest.mark.parametrize("what", ["sheeprl", "(h, c)"])
def test_gradients_are_those_of_the_module(what):
    module, plain = two(what)
    x, *state = inputs(what, B)
    with torch.no_grad():
        module(x, *state), module(x, *state)
    gradients = []
    for each in (module, plain):
        given, now = x.clone().requires_grad_(), state
        for _ in range(3):
            result = each(given, *now)
            now = next_states(what, result)
        loss = sum(t.square().sum() for t in flat(result))
        gradients.append(torch.autograd.grad(loss, [given, *each.parameters()]))
    for a, b in zip(*gradients, strict=True):
        assert (a - b).abs().max() <= 1e-6 * b.abs().max()
    for p in (*module.parameters(), *plain.parameters()):
        p.requires_grad_(False)
    assert_equal(module(x, *state), plain(x, *state))
    given = x.clone().requires_grad_()
    result = flat(module(given, *state))[0]
    assert torch.autograd.grad(result.sum(), given)[0].abs().max() > 0


CHANGES = {
    "in place": lambda m: [p.mul_(0.9) for p in m.parameters()],
    "data": lambda m: [p.data.mul_(0.9) for p in m.parameters()],
    "new data": lambda m: [setattr(p, "data", p.data * 0.9) for p in m.parameters()],
    "NumPy": lambda m: [
        np.multiply(p.numpy(), 0.9, out=p.numpy()) for p in map(torch.detach, m.parameters())
    ],
    "state dict": lambda m: m.load_state_dict({k: v * 0.9 for k, v in m.state_dict().items()}),
    "new parameter": lambda m: setattr(m.linear, "weight", nn.Parameter(m.linear.weight * 0.9)),
    "no bias": lambda m: setattr(m.linear, "bias", None),
    "new submodule": lambda m: setattr(m, "linear", copy.deepcopy(m.linear).requires_grad_(False)),
    "eps": lambda m: setattr(m.layer_norm, "eps", 0.5),
    "double and back": lambda m: m.double().float(),
    "double": lambda m: m.double(),
    "hook": lambda m: m.linear.register_forward_hook(lambda _m, _x, y: y.abs()) and None,
    "own hook": lambda m: m.register_forward_hook(lambda _m, _x, y: 2 * y) and None,
    "forward of a part": lambda m: setattr(m.layer_norm, "forward", torch.tanh),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_noticed(change):
    module, plain = two("sheeprl")
    x, h = inputs("sheeprl", B)
    with torch.no_grad():
        for _ in range(2):
            before = module(x, h)
        for each in (module, plain):
            CHANGES[change](each)
        if change == "double":
            x, h = x.double(), h.double()
        for _ in range(2):
            got, want = module(x, h), plain(x, h)
            assert absolute_error(got.numpy(), want.numpy()) < SINGLE
        same = (got - before).abs().max() < 1e-4
        assert same == (change in ("double and back", "double", "new submodule"))


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_copies_have_their_own_weights(way):
    module, plain = two("sheeprl")
    x, h = inputs("sheeprl", B)
    with torch.no_grad():
        module(x, h), module(x, h)
        other = copy.deepcopy(module) if way == "deepcopy" else pickle.loads(pickle.dumps(module))
        for p in module.parameters():
            p.zero_()
        for _ in range(2):
            assert_equal(other(x, h), plain(x, h))
        for p in (*other.parameters(), *plain.parameters()):
            p.mul_(0.5)
        assert_equal(other(x, h), plain(x, h))


def test_special_calls():
    module, plain = two("sheeprl")
    x, h = inputs("sheeprl", B)
    with torch.no_grad():
        module(x, h), module(x, h)
        strided = torch.randn(I, B).t(), torch.randn(H, 2 * B).t()[::2]
        assert_equal(module(*strided), plain(*strided))
        halves = {name: p * 0.5 for name, p in module.named_parameters()}
        got, want = (torch.func.functional_call(m, halves, (x, h)) for m in (module, plain))
        assert_equal(got, want)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(module(x, h), plain(x, h))
        xs, hs = torch.randn(3, B, I), torch.randn(3, B, H)
        assert_equal(torch.vmap(module)(xs, hs), torch.vmap(plain)(xs, hs))
        with pytest.raises(RuntimeError):
            module(x, h[:, 1:])
        assert module(x[:0], h[:0]).shape == (0, H)
        assert module(x * torch.nan, h).isnan().all()
    with torch.inference_mode():
        assert_equal(module(x, h), plain(x, h).clone())
