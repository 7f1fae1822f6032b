"""from_torch runs a module and compares its outputs with those of the converted network.

Modules with another equation are refused. Valid modules pass, however they are called. A message says why a
module cannot be run. Modules are not changed.
"""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import lnrnn
from lnrnn.recognise import proof

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.functional import layer_norm  # noqa: E402

import lnrnn.torch  # noqa: E402
from torch_cells import (  # noqa: E402
    WAYS,
    BatchFirst,
    CustomLSTM,
    GateGRUCell,
    HasteGRU,
    Layer,
    LayerNormLSTMCell,
    OutCell,
    Pair,
    fresh,
    shaken,
)  # fmt: skip

torch.set_num_threads(1)  # small operations take longer on several threads

T, B, I, H = 6, 4, 5, 12  # noqa: E741 - the letters of the shapes in the documentation
OUT = lnrnn.LayerNormSpec("split", "out")
OTHER = "its forward is another"


@pytest.mark.parametrize("way", WAYS)
def test_a_valid_module_passes_however_it_is_called(way):
    module = shaken(WAYS[way](LayerNormLSTMCell))
    # check=True raises an error if the module cannot run.
    assert lnrnn.from_torch(module, check=True).norm.cell == "carry"


# These ways differ in how the module is traced.
@pytest.mark.parametrize("way", [
    "cell(x, (h, c))", "layer(x, state) of torch.nn", "stack of directions(x, states)", "list of cells",
    "sequence of cells", "batch first",
])  # fmt: skip
def test_a_module_that_computes_something_else_is_refused_with_its_equation(way):
    module = fresh(WAYS[way](OutCell))
    message = (
        rf"fastrnns's parameters, .*{OTHER}.*differ by up to \d\.\d+,.*norm={re.escape(str(OUT))}: give that"
    )
    with pytest.raises(ValueError, match=message):
        lnrnn.from_torch(module)
    assert lnrnn.from_torch(module, norm=OUT, check=True).norm == OUT


def test_a_given_norm_is_checked_too():
    for module in (fresh(OutCell(I, H)), shaken(OutCell(I, H))):
        with pytest.raises(ValueError, match=OTHER):
            lnrnn.from_torch(module, norm=lnrnn.LayerNormSpec("split", "carry"))
        assert lnrnn.from_torch(module, check=False).norm.cell == "carry"
    assert lnrnn.from_torch(fresh(LayerNormLSTMCell(I, H))).norm.cell == "carry"


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_scripted_modules_are_run():
    right, wrong = (torch.jit.script(shaken(Pair(cell(I, H)))) for cell in (LayerNormLSTMCell, OutCell))
    assert lnrnn.from_torch(right, check=True).norm.cell == "carry"
    with pytest.raises(ValueError, match=OTHER):
        lnrnn.from_torch(wrong)
    wrong.train()
    assert lnrnn.from_torch(wrong, norm=OUT, check=True).norm == OUT
    assert wrong.training and all(part.training for part in wrong.modules())


@pytest.mark.parametrize("module", [
    lambda: CustomLSTM(I, H, True), lambda: Layer(GateGRUCell(I, H, True), False), lambda: HasteGRU(I, H),
    lambda: nn.GRU(I, H, 2, bidirectional=True), lambda: nn.RNN(I, H, nonlinearity="relu"),
    lambda: nn.LSTM(I, H, batch_first=True, dropout=0.5, num_layers=2).train(), lambda: nn.LSTMCell(I, H),
    lambda: nn.GRUCell(I, H), lambda: Layer(GateGRUCell(I, H, False), False),
    lambda: nn.ModuleList([nn.RNNCell(I, H), nn.RNNCell(H, H)]),
    lambda: lnrnn.torch.GRU(I, H, batch_first=True),
])  # fmt: skip
def test_modules_of_other_systems_pass(module):
    module = module()
    training = module.training
    options = {"batch_first": False} if isinstance(module, Layer) else {}
    lnrnn.from_torch(shaken(module).train(training), check=True, **options)
    assert module.training == training


# --- tolerance ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [
    lambda: lnrnn.torch.LSTM(I, 64, norm=lnrnn.LayerNormSpec("gate", "carry"), seed=1),
    lambda: lnrnn.torch.GRU(I, 12, 2, bidirectional=True, seed=2),
    lambda: lnrnn.torch.RNN(I, 64, seed=3),
])  # fmt: skip
def test_valid_modules_are_far_within_the_tolerance(make, monkeypatch):
    monkeypatch.setattr(proof, "MARGIN", proof.MARGIN / 3)
    lnrnn.from_torch(make(), check=True)
    lnrnn.from_torch(shaken(make()), check=True)


def test_a_difference_of_a_twenty_thousandth_is_refused():
    class Scaled(nn.RNN):
        def forward(self, x, h=None):
            y, h = super().forward(x, h)
            return y * (1 + 5e-5), h

    for module in (Scaled(I, H), shaken(Scaled(I, H))):
        with pytest.raises(ValueError, match="forward is another.* differ"):
            lnrnn.from_torch(module)


# --- other equations ----------------------------------------------------------------------------------------


class Changed(LayerNormLSTMCell):
    """A cell with one change of its equation. change: its name, or a function of the new h."""

    change = None

    def norm(self, layer, v):
        eps = 1e-3 if self.change == "eps" else layer.eps
        v = layer_norm(v, v.shape[-1:], eps=eps) if self.change != "unbiased" else (
            (v - v.mean(-1, keepdim=True)) / (v.std(-1, keepdim=True) + eps)
        )  # fmt: skip
        return v * layer.weight + layer.bias

    def forward(self, x, h, c):
        gates = self.norm(self.layernorm_i, x @ self.weight_ih.t())
        i, f, g, o = (gates + self.norm(self.layernorm_h, h @ self.weight_hh.t())).chunk(4, 1)
        if self.change == "forget":
            f = f + 1
        if self.change == "order":
            f, g = g, f
        gate = nn.functional.hardsigmoid if self.change == "hard" else torch.sigmoid
        c = self.norm(self.layernorm_c, gate(f) * c + gate(i) * torch.tanh(g))
        h = gate(o) * (c if self.change == "identity" else torch.tanh(c))
        h = self.change(h) if callable(self.change) else h
        return h + x.mean() if self.change == "residual" else h, c


@pytest.mark.parametrize("change", ["unbiased", "eps", "forget", "order", "hard", "identity", "residual"])
def test_small_changes_are_noticed(change):
    module = fresh(Changed(I, H))
    module.change = change
    for each in (module.double(), shaken(module)):
        with pytest.raises(ValueError, match=rf"{OTHER}.*name the places with norm=.*check=x.*check=False"):
            lnrnn.from_torch(each)


class Long(Layer):
    def forward(self, x):
        return super().forward(x) * (2 if self.cell.change and len(x) > 200 else 1)


@pytest.mark.parametrize(("each", "change", "reason"), [
    (lambda cell: cell, lambda h: h.clamp(-1e7, 1e7), r"operator aten\.clamp\.default\. check=x"),
    (lambda cell: Layer(cell, False), lambda h: torch.where(h > 1e7, -h, h), r"operator aten\.where"),
    (lambda cell: nn.ModuleList([cell]), lambda h: torch.minimum(h, torch.tensor(1e7)), "aten.minimum"),
    (lambda cell: Layer(cell, False), lambda h: -h if len(h) > 131 else h, r"on a batch of \d+ sequences"),
    (lambda cell: Long(cell, False), "late", "on input of 220 steps"),
])  # fmt: skip
def test_a_difference_that_starts_late_is_refused(each, change, reason):
    cell = Changed(I, H)
    module = shaken(each(cell))
    assert lnrnn.from_torch(module, check=True).norm.cell == "carry"
    cell.change = change
    with pytest.raises(ValueError, match=f"fastrnns's parameters, .*{OTHER}.*{reason}"):
        lnrnn.from_torch(module)
    lnrnn.from_torch(module, check=False)


def test_a_class_derived_from_a_known_one_is_not_known():
    class Residual(nn.LSTM):
        def forward(self, x, state=None):
            y, state = super().forward(x, state)
            return y + y.mean(), state

    class Twin(lnrnn.torch.GRU):
        def forward(self, x, *rest):
            y, h = super().forward(x, *rest)
            return 2 * y, h

    class Late(nn.GRU):
        def forward(self, x, state=None):
            y, state = super().forward(x, state)
            return y.clamp(-1e7, 1e7), state

    lnrnn.from_torch(type("Same", (nn.LSTM,), {})(I, H))
    with pytest.raises(ValueError, match="operator aten.clamp"):
        lnrnn.from_torch(Late(I, H))
    for module in (Residual(I, H), Twin(I, H)):
        with pytest.raises(ValueError, match=rf"{OTHER}.* differ.*explains \S+\. check=x"):  # no norm= fits
            lnrnn.from_torch(module)


def test_hooks_and_a_replaced_forward_of_a_known_module_are_noticed():
    hooked, replaced, before = (nn.RNN(I, H) for _ in range(3))
    hooked.register_forward_hook(lambda module, x, result: (result[0] + 1, result[1]))
    replaced.forward = lambda x, h=None: (torch.zeros(*x.shape[:2], H), h)
    before.register_forward_pre_hook(lambda module, x: (2 * x[0],))
    for module in (hooked, replaced, before, nn.ModuleList([nn.LSTMCell(I, H), OutCell(H, H)])):
        with pytest.raises(ValueError):
            lnrnn.from_torch(module)
    silent = nn.GRU(I, H)
    silent.register_forward_hook(lambda *_: None)
    lnrnn.from_torch(silent)


def refuse(*_):
    raise RuntimeError("it ran")


def test_a_known_module_is_run_only_with_check_true(monkeypatch):
    for cls in (nn.GRU, nn.LSTMCell, lnrnn.torch.RNN):
        module = cls(I, H)
        monkeypatch.setattr(cls, "forward", refuse)
        lnrnn.from_torch(module)
        lnrnn.from_torch(module, check=False)
        with pytest.raises(ValueError, match="it ran"):
            lnrnn.from_torch(module, check=True)


# --- modules that cannot be run -----------------------------------------------------------------------------


class Elsewise(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.cell, self.how = shaken(LayerNormLSTMCell(I, H)), how

    def forward(self, x, *rest):
        if self.how == "raise":
            raise RuntimeError("no lengths given\nand more")
        results = {"last": x.new_zeros(H), "nan": x.new_full((*x.shape[:-1], H), torch.nan), "text": "done"}
        return results.get(self.how)


@pytest.mark.parametrize(("how", "reason"), [
    ("raise", r"module\(x\): RuntimeError: no lengths given\)"), ("last", r"no tensor of shape \(7, 3, 12\)"),
    ("none", "no tensor"), ("text", "no tensor"),
])  # fmt: skip
def test_a_module_that_cannot_run_is_a_warning_or_with_check_true_an_error(how, reason):
    module = Elsewise(how)
    message = rf"could not be checked.*no usual call.*{reason}.*compare module\(x\).*check=False"
    with pytest.warns(UserWarning, match=message) as caught:
        assert lnrnn.from_torch(module).norm.cell == "carry"
    assert len(caught) == 1 and caught[0].filename == __file__
    for check in (True, np.zeros((T, B, I))):
        with pytest.raises(ValueError, match="could not be checked"):
            lnrnn.from_torch(module, check=check)
    lnrnn.from_torch(module, check=False)


def test_objects_that_look_like_modules_are_not_checked():
    own = {"modules": lambda: iter([]), "named_modules": lambda: iter([])}
    looks = SimpleNamespace(state_dict=nn.GRU(I, H).state_dict, **own)
    with pytest.warns(UserWarning, match="against the module: it is not a torch.nn.Module"):
        assert lnrnn.from_torch(looks).hidden_size == H


def test_outputs_that_are_not_finite_are_refused():
    nan = shaken(LayerNormLSTMCell(I, H))
    with torch.no_grad():
        nan.weight_ih[0, 0] = torch.nan
    with pytest.warns(UserWarning, match="not finite"):
        lnrnn.from_torch(nan)
    with pytest.raises(ValueError, match="not finite"):
        lnrnn.from_torch(nan, check=True)
    with pytest.raises(ValueError, match="differ by up to inf"):
        lnrnn.from_torch(Elsewise("nan"))


def test_half_precision_is_checked_in_float64_if_possible():
    right, wrong = shaken(LayerNormLSTMCell(I, H)), shaken(OutCell(I, H))
    lnrnn.from_torch(copy.deepcopy(right).half(), check=True)
    with pytest.raises(ValueError, match=OTHER):
        lnrnn.from_torch(copy.deepcopy(wrong).half())
    lnrnn.from_torch(right.bfloat16(), check=True)  # checked in float64, which has all bfloat16 numbers
    with pytest.raises(ValueError, match=OTHER):
        lnrnn.from_torch(wrong.bfloat16())
    right.__deepcopy__ = refuse  # without a copy in float64, rounding could hide a difference of this size
    message = r"rounding alone may change its outputs by \d.*deepcopy\(module\)\.float\(\)"
    with pytest.warns(UserWarning, match=message):
        lnrnn.from_torch(right)


class Rounds(LayerNormLSTMCell):
    """A cell that rounds h to float32, by NumPy. factor: of h."""

    factor = 1.0

    def forward(self, x, h, c):
        h, c = super().forward(x, h, c)
        return torch.from_numpy(h.numpy().astype(np.float32)) * self.factor, c


def test_a_module_that_rounds_to_float32_is_compared_with_the_limit_of_float32():
    module = shaken(Rounds(I, H))
    for each in (module, copy.deepcopy(module).half()):
        lnrnn.from_torch(each, check=True)
        each.factor = 1.0001
        with pytest.raises(ValueError, match=OTHER):
            lnrnn.from_torch(each)


def test_batch_norm_is_checked_over_the_steps_it_knows():
    module = type("Mine", (lnrnn.torch.LSTM,), {})(I, H, norm=lnrnn.BatchNormSpec(max_steps=9))
    with pytest.warns(UserWarning, match="could not be checked"):
        lnrnn.from_torch(module)
    module.train()(torch.randn(3, 8, I))
    state = {name: v.clone() for name, v in module.state_dict().items()}
    lnrnn.from_torch(module, check=True)
    assert module.training
    for name, v in module.state_dict().items():
        assert torch.equal(v, state[name])


# --- check may be an input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("as_given", [
    np.asarray, torch.as_tensor, lambda x: torch.tensor(x, dtype=torch.float64, requires_grad=True)
])  # fmt: skip
def test_check_may_be_an_input(as_given):
    x = as_given(np.random.default_rng(0).standard_normal((T, B, I), dtype=np.float32))
    right, wrong = shaken(Layer(LayerNormLSTMCell(I, H), False)), shaken(Layer(OutCell(I, H), False))
    lnrnn.from_torch(right, check=x)
    with pytest.raises(ValueError, match=rf"{OTHER}.*shape \({T}, {B}, {I}\)"):
        lnrnn.from_torch(wrong, check=x)
    first = BatchFirst(shaken(OutCell(I, H)), True)
    lnrnn.from_torch(first, check=x, norm=OUT)
    with pytest.raises(ValueError, match=rf"shape \({T}, {B}, {I}\)"):
        lnrnn.from_torch(first, check=x)
    cells = LayerNormLSTMCell(I, H), LayerNormLSTMCell(H, H)
    lnrnn.from_torch(nn.ModuleList(map(shaken, cells)), check=x)


def test_check_may_be_an_input_of_a_cell_or_of_one_sequence():
    x = torch.randn(B, I)
    lnrnn.from_torch(shaken(LayerNormLSTMCell(I, H)), check=x)
    lnrnn.from_torch(shaken(nn.GRUCell(I, H)), check=x)
    lnrnn.from_torch(shaken(nn.LSTM(I, H, 2, bidirectional=True)), check=x)
    with pytest.raises(ValueError, match=OTHER):  # the first step would not show the difference
        lnrnn.from_torch(shaken(OutCell(I, H)), check=x)


def test_a_given_input_can_show_a_difference_that_random_inputs_do_not():
    class Branching(LayerNormLSTMCell):
        def forward(self, x, h, c):
            return super().forward(-x if x.max() > 1e6 else x, h, c)

    module = shaken(Branching(I, H))
    lnrnn.from_torch(module)
    with pytest.raises(ValueError, match=OTHER):
        lnrnn.from_torch(module, check=1e7 * torch.randn(T, B, I))


@pytest.mark.parametrize(("error", "check"), [
    (ValueError, np.zeros((T, B, I + 1))), (ValueError, np.zeros(I)), (ValueError, np.zeros((1, T, B, I))),
    (ValueError, np.zeros((0, B, I))),
    (ValueError, np.full((T, B, I), np.nan)), (TypeError, "x"), (TypeError, np.zeros((T, B, I), complex)),
    (ValueError, 1),
])  # fmt: skip
def test_bad_values_of_check_are_refused(error, check):
    for module in (shaken(LayerNormLSTMCell(I, H)), nn.GRU(I, H)):
        with pytest.raises(error, match="check"):
            lnrnn.from_torch(module, check=check)


def test_from_torch_of_arrays_does_not_import_torch():
    code = """import sys, numpy as np, lnrnn
lnrnn.from_torch({"weight_hh_l0": np.ones((3, 1)), "weight_ih_l0": np.ones((3, 1))})
assert "torch" not in sys.modules"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --- the order of axes --------------------------------------------------------------------------------------


def test_another_order_of_axes_is_a_warning():
    module = BatchFirst(shaken(LayerNormLSTMCell(I, H)))  # the module has no attribute batch_first
    message = r"takes x as \(B, T, input_size\), the model as \(T, B, input_size\): give batch_first=True"
    with pytest.warns(UserWarning, match=message) as caught:
        assert not lnrnn.from_torch(module).batch_first
    assert len(caught) == 1 and caught[0].filename == __file__
    assert lnrnn.from_torch(module, batch_first=True, check=True).batch_first
    assert not lnrnn.from_torch(module, batch_first=False, check=True).batch_first
    module.batch_first = True
    assert lnrnn.from_torch(module).batch_first
    with pytest.warns(UserWarning, match="give batch_first=False"):  # icefall's known cell is batch_first
        lnrnn.from_torch(shaken(Layer(GateGRUCell(I, H, True), False)))


# --- nothing changes ----------------------------------------------------------------------------------------


class Restless(nn.Module):
    """A module whose forward changes its buffers, flags and random state."""

    def __init__(self):
        super().__init__()
        self.cell = shaken(LayerNormLSTMCell(I, H)).train()
        self.drop = nn.Dropout(0.9)
        self.register_buffer("calls", torch.zeros(2), persistent=False)
        self.last, self.kept, self.fails = None, torch.zeros(2), False

    def forward(self, x, state):
        self.calls += 1
        self.calls = self.calls + 1
        self.kept += torch.rand(2)
        self.last = torch.randn(3)
        self.new = self.last
        with torch.no_grad():
            self.cell.weight_ih.data *= 1 + 1e-9
        self.cell.layernorm_c.train()
        assert not torch.is_grad_enabled() and not self.drop.training
        if self.fails:
            raise RuntimeError("it fails")
        h, c = self.cell(self.drop(x), *state)
        with torch.no_grad():
            self.cell.weight_hh.add_(1)
        return h, (h, c)


@pytest.mark.parametrize("fails", [False, True])
def test_a_check_changes_nothing(fails):
    module = Restless()
    module.fails = fails
    module.cell.layernorm_i.eval()
    flags = [part.training for part in module.modules()]
    parameters = {name: (p, p.detach().clone(), p._version) for name, p in module.named_parameters()}
    calls, kept, names = module.calls, module.kept, list(vars(module))
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    try:
        lnrnn.from_torch(module, check=True)
    except ValueError as error:
        assert fails or OTHER in str(error)  # because it changes its weights at every step
    assert torch.equal(torch.rand(3), want)
    assert flags == [part.training for part in module.modules()] and names == list(vars(module))
    assert module.calls is calls and module.kept is kept
    assert module.last is None and not hasattr(module, "new")
    assert torch.equal(calls, torch.zeros(2)) and torch.equal(kept, torch.zeros(2))
    for name, p in module.named_parameters():
        old, value, _ = parameters[name]
        assert p is old and torch.equal(p, value) and p.requires_grad and p.grad is None
    assert torch.is_grad_enabled()


def test_a_check_does_not_disturb_a_pending_backward():
    module = shaken(LayerNormLSTMCell(I, H))
    h, _ = module(torch.randn(B, I), torch.zeros(B, H), torch.zeros(B, H))
    lnrnn.from_torch(module, check=True)
    h.sum().backward()
    assert module.weight_ih.grad is not None


@pytest.mark.parametrize("place", [0, 1])
def test_a_different_final_state_is_noticed(place):
    class Other(torch.nn.LSTM):
        def forward(self, x, hx=None):
            y, state = super().forward(x, hx)
            return y, tuple(2 * s if k == place else s for k, s in enumerate(state))

    with pytest.raises(ValueError, match=OTHER):
        lnrnn.from_torch(Other(5, 7))


def test_the_tolerance_is_relative_to_large_outputs():
    """Here disturbed parameters change no output, so the limit comes from the size of outputs only."""
    for size in (1.0, 3e5):
        ours = [np.array([size, -size / 2]), np.zeros(2)]
        for factor in (5e-7, 7e-7):
            found = proof.disagreement([ours[0] * (1 + factor), ours[1]], ours, lambda ours=ours: ours, 1e-7)
            limit = pytest.approx((factor * size, proof.MARGIN * 1e-7 * size), rel=1e-6)
            assert found is None if factor < 6e-7 else found == limit


def test_ordinary_input_must_agree_at_uncertain_steps_too():
    """Rounding may change the second step by more than a quarter. Other probes ignore such a step."""
    ours, other = [np.array([1.0, 0.1])], [np.array([1.0, 0.3])]
    given = other, ours, lambda: [ours[0] + [0, 0.01]], 1e-7
    assert proof.disagreement(*given) is None
    assert proof.disagreement(*given, first=True) == pytest.approx((0.2, proof.MARGIN * 0.01))
