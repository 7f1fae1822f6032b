"""Tests from_torch with cells that users wrote. Their equations come from their graphs."""

from __future__ import annotations

import copy
import warnings
from itertools import permutations

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import own_cells  # noqa: E402
from own_cells import (  # noqa: E402
    FIRST,
    PER_GATE,
    REFUSED,
    BothWays,
    ElmanStateFirst,
    Own,
    elman,
    lstm,
    one_linear,
    ones,
    peephole,
    sequence,
    two_linears,
    unrolled,
    zero_state,
)
from rms_cells import RMS  # noqa: E402

torch.set_num_threads(1)
TAKEN = own_cells.TAKEN | RMS

NOTED = "names of no known cell and was traced to find its equation: it is lnrnn"
# The tolerance for 30 steps in float32. Every module was measured with 5 seeds: the largest error is 9e-6.
CLOSE = 3e-5


def drawn(module):
    """Adds random numbers to all parameters. Returns the module."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return module.eval()


def taken(module, **options):
    with pytest.warns(UserWarning, match=NOTED):
        return lnrnn.from_torch(module, **options)


def outputs(module, batch_first, x):
    """Returns y (T, B, ...) of the module in float64, for x (T, B, D)."""
    module, x = copy.deepcopy(module).double(), torch.tensor(x, dtype=torch.float64)
    with torch.no_grad():
        if hasattr(module, "step"):
            return unrolled(module, x, zero_state(module, x[0]))[0].numpy()
        y = module(x.transpose(0, 1) if batch_first else x)
        y = y[0] if isinstance(y, tuple) else y
        return (y.transpose(0, 1) if batch_first else y).numpy()


def assert_taken(module, D, **options):
    model = taken(module, **options)
    x = np.random.default_rng(1).standard_normal((30, 3, D)).astype(np.float32)
    y, _ = model(x.swapaxes(0, 1) if model.batch_first else x)
    y = y.swapaxes(0, 1) if model.batch_first else y
    assert absolute_error(y, outputs(module, model.batch_first, x)) < CLOSE
    return model


SIZES = [*((name, 8) for name in TAKEN), *((name, 1) for name in FIRST), ("two Linears", 5), ("stack", 5)]


@pytest.mark.parametrize(("name", "D"), SIZES)
def test_custom_cells_are_converted(name, D):
    make, cell = TAKEN[name]
    model = assert_taken(drawn(make(D, 8)), D)
    assert type(model).__name__ == cell and (model.input_size, model.hidden_size) == (D, 8)


@pytest.mark.parametrize("name", ["two Linears", "scrambled gates", "interleaved", "stack"])
def test_a_network_has_biases_if_the_module_has(name):
    """Biases are zeros before training. Then they may be None, and forward may add 1 to forget gates."""
    module = drawn(TAKEN[name][0](5, 8))
    for parameter, p in module.named_parameters():
        p.data *= not parameter.endswith("bias")
    assert taken(module).bias
    if name in ("scrambled gates", "interleaved"):
        for part in module.modules():
            part.bias = None
        assert taken(module).bias == (name == "interleaved")


def test_columns_of_x_and_h_are_told_apart_if_there_are_as_many():
    """One matrix is for [h, x] in sheeprl and for [x, h] in DreamerV2: with equal sizes, other networks."""

    class Swapped(torch.nn.Module):
        def __init__(self, cell):
            super().__init__()
            self.layer_norm, self.linear = cell.layer_norm, cell.linear

        def forward(self, x, h):
            reset, cand, update = self.layer_norm(self.linear(torch.cat((x, h), -1))).chunk(3, -1)
            update = torch.sigmoid(update - 1)
            return update * torch.tanh(torch.sigmoid(reset) * cand) + (1 - update) * h

    cell = drawn(TAKEN["sheeprl"][0](8, 8))
    found = assert_taken(cell, 8)
    other = taken(Swapped(cell))
    assert np.array_equal(found.weight_ih_l0, other.weight_hh_l0)
    x = np.random.default_rng(1).standard_normal((30, 3, 8)).astype(np.float32)
    h, ys = torch.zeros(3, 8), []
    with torch.no_grad():
        for x_t in torch.tensor(x):
            h = Swapped(cell)(x_t, h)
            ys.append(h.numpy())
    assert absolute_error(other(x)[0], np.array(ys)) < CLOSE < 0.1 < absolute_error(found(x)[0], np.array(ys))
    with pytest.raises(ValueError, match="does not show which columns are for x"):
        lnrnn.from_torch(cell.state_dict())


REASONS = {
    "clip": r"has its operator aten\.clamp\.default\.",
    "noisy": "operator aten.*, which draws random",
    "peephole": r"std \+ eps: no cell has node 'add in return .*' \(Add\) in this place\.",
    "std": r"std \+ eps: no cell has node 'mean in centred = x - x\.mean\(.*\)' \(ReduceMean\)\.",
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_equations_are_refused_and_the_operator_is_named(name):
    reason = next(
        (text for part, text in REASONS.items() if part in name), "equation is none of lnrnn's, .* clipped"
    )
    with pytest.raises(ValueError, match=rf"no known cell.*no network .*: .*{reason}.*names=.*By h"):
        lnrnn.from_torch(REFUSED[name](5, 8))


def test_a_refused_module_is_traced_once():
    """The second trace, of more sequences, is for modules whose first is a network."""
    module, batches = peephole(5, 8), []
    step = module.own_step
    module.own_step = lambda m, x, h, c: step(m, x, h, c) if batches.append(len(x)) is None else None
    with pytest.raises(ValueError, match="none of lnrnn's"):
        lnrnn.from_torch(module)
    assert max(batches) == 7


def test_the_spec_of_a_similar_equation_is_recommended():
    module = two_linears(5, 8)
    module.ln_c.eps = 3e-5  # all norms of lnrnn have the same eps
    spec = r"LayerNormSpec\(placement='split'\)"
    with pytest.raises(ValueError, match=rf"norms have the eps \[1e-05, 3e-05\], .* with one .*norm={spec}"):
        lnrnn.from_torch(module)


ORDERS = [*permutations("ifgo"), *permutations("rzn")]


@pytest.mark.parametrize("order", ORDERS[::3], ids="".join)
def test_the_order_of_gates_is_detected(order):
    """The order is detected even if the matrix has as many columns for x as for h."""
    x_first = order[0] in "iz"
    module = drawn(one_linear(6, 6, "cell(x, (h, c))" if len(order) == 4 else "cell(x, h)", order, x_first))
    theirs = module.lin.weight.detach().numpy()
    at = np.argsort([("ifgo" if len(order) == 4 else "rzn").index(gate) for gate in order])
    ours = np.concatenate([np.split(theirs, len(order))[k] for k in at])
    model, columns = taken(module), (ours[:, :6], ours[:, 6:])
    np.testing.assert_array_equal(model.weight_ih_l0, columns[0 if x_first else 1])
    np.testing.assert_array_equal(model.weight_hh_l0, columns[1 if x_first else 0])


def test_layers_and_directions_are_told_apart():
    for check in (None, False):
        model = assert_taken(drawn(BothWays(16, 8, layers=2)), 16, check=check)
        assert model.num_layers == 2 and model.bidirectional


def test_convertible_submodules_are_named_at_any_depth():
    parts, cells = {"rnn": elman(5, 8), "head": nn.Linear(8, 3)}, [two_linears(5, 8), two_linears(8, 8)]
    deep = nn.ModuleDict({"head": parts["head"], "cells": nn.ModuleList(cells)})
    many = {str(k): nn.Conv2d(k + 1, k + 2, 3) for k in range(12)}
    for model, give in (
        (nn.ModuleDict(parts), r"model\.rnn$"),
        (nn.ModuleDict(many | parts), r"model\.rnn$"),
        (nn.ModuleList([peephole(5, 8), cells[1]]), r"model\[1\]$"),
        (nn.ModuleList(cells), r"model\[0\] or model\[1\]$"),
        (deep, r"model\.cells\[0\] or model\.cells\[1\]$"),
    ):
        with pytest.raises(ValueError, match=rf"either: .*; .* convert a part of it: give {give}"):
            lnrnn.from_torch(model)


class Started(nn.Module):
    """A layer whose first states are parameters or buffers. given: whether a caller's state replaces them."""

    def __init__(self, cell, shape, buffer=False, given=False):
        super().__init__()
        self.cell, self.given, self.names = cell, given, ["h0", "c0"][: cell.states]
        for name in self.names:
            first = torch.full(shape, 0.5)
            self.register_buffer(name, first) if buffer else setattr(self, name, nn.Parameter(first))

    def forward(self, x, state=None):
        if state is None or not self.given:
            state = tuple(getattr(self, name).reshape(1, -1).repeat(x.shape[1], 1) for name in self.names)
        return sequence(self.cell, x, state)


@pytest.mark.parametrize(("name", "shape", "buffer"), [
    ("two Linears", (1, 8), False), ("Elman", (8,), True), ("swapped GRU", (1, 1, 8), False),
])  # fmt: skip
def test_a_learned_first_state_is_named(name, shape, buffer):
    module = Started(TAKEN[name][0](5, 8), shape, buffer)
    named = " and ".join(f"the {'buffer' if buffer else 'parameter'} {name}" for name in module.names)
    with pytest.raises(ValueError, match=rf"either: its first step reads {named} as.*give model\.cell$"):
        lnrnn.from_torch(module)


def test_a_first_state_of_a_known_cell_or_that_a_call_may_replace_is_named():
    class FromOnes(nn.LSTM):
        def forward(self, x):
            h0 = self.h0.repeat(1, x.shape[1], 1)
            return super().forward(x, (h0, torch.zeros_like(h0)))

    module = FromOnes(5, 8)
    module.register_buffer("h0", torch.ones(1, 1, 8), persistent=False)
    with pytest.raises(ValueError, match=r"forward is another: .*\. Its first step reads the buffer h0 as"):
        lnrnn.from_torch(module)
    module = Started(two_linears(5, 8), (8,), given=True)
    with pytest.warns(UserWarning, match=r"module and model differ: .* parameter h0 and the"):
        model = taken(module)
    x, start = torch.randn(7, 3, 5), (np.full((1, 3, 8), 0.5),) * 2
    assert absolute_error(model(x, start)[0], module(x)[0].detach().numpy()) < CLOSE


def test_a_module_needs_no_gradients():
    module = two_linears(5, 8)
    module.own_step = torch.no_grad()(module.own_step)
    assert taken(module).hidden_size == 8
    with torch.inference_mode():
        assert taken(two_linears(5, 8)).hidden_size == 8


def test_the_detected_spec_can_be_given():
    module = drawn(two_linears(5, 8))
    spec = taken(module).norm
    assert spec == lnrnn.LayerNormSpec("split", "out")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lnrnn.from_torch(module, norm=spec).norm == spec
    with pytest.raises(ValueError, match=r"must be the module's LayerN.*'split'\), got .*cell='carry'\)"):
        lnrnn.from_torch(module, norm=lnrnn.LayerNormSpec("split", "carry"))
    assert taken(module, norm="layer", check=True).norm == spec


@pytest.mark.parametrize("name", [*PER_GATE][1::3])
def test_a_norm_for_each_gate_is_detected_with_the_right_spec(name):
    module = drawn(PER_GATE[name][0](5, 8))
    model = taken(module)
    assert model.norm.placement == "gate" and model.norm.inner_bias
    same = lnrnn.from_torch(module, norm=model.norm)
    for parameter, value in model.parameters().items():
        np.testing.assert_array_equal(same.parameters()[parameter], value)


@pytest.mark.parametrize("eps", [1e-12, 3e-4, 0.05])
def test_eps_is_detected_without_an_attribute(eps):
    def step(m, x, h, c):
        c, o = lstm(nn.functional.layer_norm(m.a(x) + m.b(h), (32,), m.gain, None, eps), "ifgo", c)
        return o * c.tanh(), c

    module = Own("cell(x, h, c)", step, 8, a=nn.Linear(5, 32), b=nn.Linear(8, 32), gain=ones(32))
    assert taken(drawn(module)).norm.eps == pytest.approx(eps, rel=0.01, abs=1e-11)


def test_the_module_does_not_change():
    module = two_linears(5, 8).half().train()
    before, random = copy.deepcopy(module.state_dict()), torch.random.get_rng_state()
    taken(module)
    assert module.training and torch.equal(torch.random.get_rng_state(), random)
    for name, value in module.state_dict().items():
        assert value.dtype == torch.float16 and torch.equal(value, before[name])
        assert module.get_parameter(name).grad is None


G2P = {"w_ih": "weight_ih_l0", "w_hh": "weight_hh_l0", "b_ih": "bias_ih_l0", "b_hh": "bias_hh_l0"}


def test_names_of_a_state_dict_may_be_given():
    gru = nn.GRU(5, 8)
    theirs = {old: gru.state_dict()[new] for old, new in G2P.items()}
    x = np.random.default_rng(1).standard_normal((7, 3, 5)).astype(np.float32)
    want = lnrnn.from_torch(gru)(x)[0]
    np.testing.assert_array_equal(lnrnn.from_torch(theirs, names=G2P)(x)[0], want)
    half = {new if new.endswith("hh_l0") else old: theirs[old] for old, new in G2P.items()}
    some = {old: new for old, new in G2P.items() if old in half}
    np.testing.assert_array_equal(lnrnn.from_torch(half, names=some)(x)[0], want)
    deep = {f"enc.{old}": v for old, v in theirs.items()}
    names = {f"enc.{old}": f"enc.{new}" for old, new in G2P.items()}
    np.testing.assert_array_equal(lnrnn.from_torch(deep, names=names, prefix="enc.")(x)[0], want)


def test_meta_tensors_and_numbers_beyond_float32_are_refused():
    with pytest.raises(ValueError, match=r"weight_ih_l0 must have numbers, got a meta tensor"):
        lnrnn.from_torch(nn.LSTM(5, 8, device="meta"))
    state = {name: v.double() for name, v in nn.GRU(5, 8).state_dict().items()}
    state["weight_hh_l0"][3, 2] = -1e39
    with pytest.raises(ValueError, match=r"weight_hh_l0 must be in float32's range, got 1e\+39"):
        lnrnn.from_torch(state)
    largest = np.finfo(np.float32).max
    state["weight_hh_l0"][3, 2] = float(largest)
    assert lnrnn.from_torch(state).weight_hh_l0[3, 2] == largest


def test_an_ambiguous_state_argument_is_refused():
    forward = {"forward": lambda self, a, b: ElmanStateFirst.forward(self, a, b)}
    Unnamed = type("Unnamed", (ElmanStateFirst,), forward)
    with pytest.raises(ValueError, match=r"forward\(a, b\) does not show which argument is the state"):
        lnrnn.from_torch(Unnamed(8, 8))
    assert taken(Unnamed(5, 8)).input_size == 5
