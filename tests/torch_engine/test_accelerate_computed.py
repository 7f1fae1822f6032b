"""lnrnn.torch.accelerate on modules whose weights are computed from other parameters."""

from __future__ import annotations

import copy
import itertools
import warnings

import pytest

import lnrnn

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.utils import parametrizations, parametrize, prune  # noqa: E402

import lnrnn.torch  # noqa: E402
from lnrnn.torch import accelerate  # noqa: E402
from mixed_models import B, H, I, T, assert_same  # noqa: E402

torch.set_num_threads(1)  # small operations take longer on several threads


class Noise(nn.Module):
    """A parametrization that is random in training, and not at all torch's."""

    def forward(self, weight):
        return weight + torch.randn_like(weight) if self.training else weight.tanh()


class WeightDropout(nn.Module):
    """As in fastai's AWD-LSTM: dropout of weight_hh_l0, which is then an attribute of the module."""

    def __init__(self, module, rate=0.5):
        super().__init__()
        self.module, self.rate = module, rate
        weight = module.weight_hh_l0
        del module.weight_hh_l0
        self.weight_hh_l0_raw = nn.Parameter(weight.data)
        module.weight_hh_l0 = weight.clone()
        module.flatten_parameters = lambda: None

    def forward(self, *arguments):
        raw = self.weight_hh_l0_raw
        self.module.weight_hh_l0 = F.dropout(raw, self.rate) if self.training else raw.clone()
        return self.module(*arguments)


class WeightDrop(nn.Module):
    """As in Salesforce's awd-lstm-lm: the weight exists only after the first call of forward."""

    def __init__(self, module, rate=0.5):
        super().__init__()
        self.module, self.rate = module, rate
        module.flatten_parameters = lambda: None
        weight = module._parameters.pop("weight_hh_l0")
        module.register_parameter("weight_hh_l0_raw", nn.Parameter(weight.data))

    def forward(self, *arguments):
        raw = self.module.weight_hh_l0_raw
        self.module.weight_hh_l0 = 1 * F.dropout(raw, self.rate, self.training)
        return self.module.forward(*arguments)


def old_weight_norm(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(module, "weight_hh_l0")


def pruned(module):
    prune.l1_unstructured(module, "weight_ih_l0", 0.5)
    return module


def parametrized(module):
    parametrize.register_parametrization(module, "weight_ih_l0", Noise())
    return parametrizations.weight_norm(module, "weight_hh_l0")


def of_buffers(module):
    """Makes all weights buffers, and biases plain attributes."""
    for name, p in list(module.named_parameters()):
        delattr(module, name)
        if name.startswith("weight"):
            module.register_buffer(name, p.detach())
        else:
            setattr(module, name, p.detach())
    return module


COMPUTED = {
    "weight_norm": lambda m: parametrizations.weight_norm(m, "weight_hh_l0"),
    "weight_norm of the first": lambda m: parametrizations.weight_norm(m, "weight_ih_l0"),
    "old weight_norm": old_weight_norm,
    "spectral_norm": lambda m: parametrizations.spectral_norm(m, "weight_hh_l0"),
    "orthogonal": lambda m: parametrizations.orthogonal(m, "weight_hh_l0", orthogonal_map="cayley"),
    "two parametrizations": parametrized,
    "weight drop": WeightDropout,
    "weight drop in forward": WeightDrop,
    "pruned": pruned,
    "buffers": of_buffers,
}


def two(what, name="LSTM"):
    """Returns an accelerated module with computed weights, and a plain one with the same parameters."""
    module = COMPUTED[what](getattr(nn, name)(I, H))
    plain = COMPUTED[what](getattr(nn, name)(I, H))
    plain.load_state_dict(module.state_dict())
    if what == "buffers":
        for end in ("ih", "hh"):
            setattr(plain, f"bias_{end}_l0", getattr(module, f"bias_{end}_l0"))
    report = accelerate(module, check=torch.randn(T, B, I))
    assert len(report.replaced) == 1 and not report.left
    return module, plain, report


def results(module, x, seed=0):
    torch.manual_seed(seed)
    given = x.clone().requires_grad_()
    y = module(given)[0]
    trained = [p for p in module.parameters() if p.requires_grad]
    return y, torch.autograd.grad(y.square().sum(), [given, *trained])


@pytest.mark.parametrize("what", COMPUTED)
def test_computed_weights_are_used_and_trained(what):
    module, plain, report = two(what, "GRU" if what in ("orthogonal", "pruned") else "LSTM")
    x = torch.randn(T, B, I)
    for training in (True, False, True):
        (y, gradients), (wanted, others) = (results(m.train(training), x) for m in (module, plain))
        assert_same(y, wanted)
        for a, b in zip(gradients, others, strict=True):
            assert (a - b).abs().max() <= 2e-5 * b.abs().max() + 1e-7
    report.restore()
    assert_same(module.eval()(x), plain.eval()(x))
    assert not any("Accelerated" in cls.__name__ for m in module.modules() for cls in type(m).__mro__)


MODES = [(True, torch.enable_grad), (True, torch.no_grad), (False, torch.enable_grad),
         (False, torch.no_grad), (False, torch.inference_mode)]  # fmt: skip


@pytest.mark.parametrize("what", [*COMPUTED, "a module of lnrnn.torch"])
def test_calls_in_any_order_of_modes_use_the_present_weights(what):
    if what in COMPUTED:
        module, plain, _ = two(what)
    else:
        module = COMPUTED["weight_norm"](lnrnn.torch.LSTM(I, H))
        plain = copy.deepcopy(module)
        plain.engine = "torch"
    x, factors = torch.randn(T, B, I), itertools.cycle([0.8, 1, 1.25, 1, -1, 1])
    for training, context in itertools.chain(*((a, a, b, b) for a, b in itertools.product(MODES, MODES))):
        got = []
        for each in (module.train(training), plain.train(training)):
            torch.manual_seed(0)
            with context():
                got.append(each(x))
        assert_same(*got)
        factor = next(factors)
        with context(), torch.no_grad():
            for p in (*module.parameters(), *plain.parameters()):
                if p.requires_grad and factor != 1:  # else torch counts no write
                    p.mul_(factor)


def test_weights_that_forward_has_not_set_yet():
    model = WeightDrop(nn.GRU(I, H)).eval()
    plain = copy.deepcopy(model)
    ((name, what),) = accelerate(model).replaced
    assert name == "module" and what.startswith("AcceleratedGRU(5, 12), once its model has set weight_hh_l0;")
    assert model.module.engine == "lnrnn"
    x = torch.randn(T, B, I)
    assert not accelerate(model, check=x).replaced
    with pytest.raises(AttributeError, match="no attribute 'weight_hh_l0'"):
        model.module(x)
    assert_same(model(x), plain(x))
    accelerate(model, check=x)
    model.double(), plain.double()
    assert_same(model(x.double()), plain(x.double()))
    assert model.module.engine == "torch"


UNDO = {
    "weight_norm": lambda m: parametrize.remove_parametrizations(m, "weight_hh_l0"),
    "old weight_norm": lambda m: nn.utils.remove_weight_norm(m, "weight_hh_l0"),
    "spectral_norm": lambda m: parametrize.remove_parametrizations(m, "weight_hh_l0"),
    "pruned": lambda m: prune.remove(m, "weight_ih_l0"),
    "weight drop": lambda m: None,
}


@pytest.mark.parametrize("change", UNDO)
def test_weights_may_become_computed_and_parameters_again(change):
    module, plain = nn.LSTM(I, H), nn.LSTM(I, H)
    plain.load_state_dict(module.state_dict())
    report = accelerate(module)
    x = torch.randn(T, B, I)
    outer = []
    for each in (module, plain):
        torch.manual_seed(0)
        outer.append(COMPUTED[change](each).eval())
    with torch.no_grad():
        assert_same(outer[0](x), outer[1](x))
        assert module.engine == "lnrnn"
        UNDO[change](module), UNDO[change](plain)
        assert type(module).__name__ == "AcceleratedLSTM" and type(plain) is nn.LSTM
        assert_same(outer[0](x), outer[1](x))
    report.restore()
    with torch.no_grad():
        assert_same(outer[0](x), outer[1](x))
    assert isinstance(module, nn.LSTM) and "_networks" not in vars(module)


def test_copies_of_parametrized_modules_are_separate():
    module, plain, report = two("weight_norm")
    other = copy.deepcopy(module)
    x = torch.randn(T, B, I)
    report.restore()
    assert other.engine == "lnrnn" and not hasattr(module, "engine")
    assert_same(other(x), plain(x))
    assert_same(module(x), plain(x))
    parametrize.remove_parametrizations(module, "weight_hh_l0")
    assert type(module) is nn.LSTM and parametrize.is_parametrized(other)
    assert_same(other(x), module(x))


class Derived(nn.LSTM):
    def forward(self, input, hx=None):
        return super().forward(2 * input, hx)


def test_parametrized_modules_of_derived_classes():
    module = parametrizations.weight_norm(Derived(I, H), "weight_hh_l0")
    plain = parametrizations.weight_norm(Derived(I, H), "weight_hh_l0")
    plain.load_state_dict(module.state_dict())
    report = accelerate(module)
    x = torch.randn(T, B, I)
    assert isinstance(module, Derived) and module.engine == "lnrnn"
    assert_same(module(x), plain(x))
    parametrize.remove_parametrizations(module, "weight_hh_l0")
    assert type(module).__name__ == "AcceleratedDerived" and type(module).__bases__[0] is Derived
    assert_same(module(x), plain(x))
    report.restore()
    assert type(module) is Derived


def test_weights_of_wrong_shapes_and_types():
    module = nn.LSTM(I, H)
    accelerate(module)
    x = torch.randn(T, B, I)
    for shape in ((4 * H, H + 1), (3 * H, H), (4 * H, H, 1), (4 * H,)):
        del module.weight_hh_l0
        module.weight_hh_l0 = torch.zeros(shape)
        for context in (torch.no_grad, torch.enable_grad):
            with context(), pytest.raises(ValueError, match=r"weight_hh_l0 must be of shape \(48, 12\), got"):
                module(x)
    del module.weight_hh_l0
    with pytest.raises(AttributeError, match="weight_hh_l0"):
        module(x)
    module.weight_hh_l0 = torch.zeros(4 * H, H, dtype=torch.float64)
    assert module.engine == "torch"
    weight = torch.randn(H, 4 * H).t()
    with torch.no_grad():
        results = []
        for module.weight_hh_l0 in (weight, torch._neg_view(weight), -weight):
            results.append(module(x)[0])
    assert module.engine == "lnrnn" and torch.equal(*results[1:]) and not torch.equal(*results[:2])


def test_weights_are_computed_once_in_evaluation(monkeypatch):
    module, plain, _ = two("weight_norm")
    kind, calls = type(module.parametrizations.weight_hh_l0[0]), []
    own = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, *given: calls.append(1) or own(self, *given))
    x, ones = torch.randn(T, B, I), torch.ones(4 * H, 1)
    with torch.no_grad():
        module.eval()(x)
        calls.clear()
        for _ in range(3):
            module(x)
        assert not calls
        for change in (
            lambda m: m.parametrizations.weight_hh_l0.original0.mul_(1.5),
            lambda m: m.parametrizations.weight_hh_l0.original1.data.add_(0.1),
            lambda m: setattr(m.parametrizations.weight_hh_l0, "original0", nn.Parameter(ones)),
            lambda m: parametrize.register_parametrization(m, "bias_hh_l0", Noise()),
            lambda m: m.load_state_dict({name: 0.5 * p for name, p in m.state_dict().items()}),
        ):
            for each in (module, plain):
                change(each.eval())
            for _ in range(2):
                assert_same(module(x), plain(x))
    halves = {name: p * 0.5 for name, p in plain.named_parameters()}
    with torch.no_grad():
        assert_same(*(torch.func.functional_call(m, halves, (x,)) for m in (module, plain)))
        assert_same(module(x), plain(x))
