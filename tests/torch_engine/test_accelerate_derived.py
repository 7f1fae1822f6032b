"""lnrnn.torch.accelerate on modules of classes derived from torch.nn's, and on modules with hooks."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from abc import ABC, abstractmethod

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import rnn as packing  # noqa: E402

from lnrnn.torch import accelerate  # noqa: E402
from mixed_models import B, H, I, T, assert_same  # noqa: E402

torch.set_num_threads(1)  # small operations take longer on several threads


class Plain(nn.GRU):
    """A class with a constructor, a method and an attribute of its own, but torch.nn's forward."""

    def __init__(self, size):
        super().__init__(I, size, batch_first=True)
        self.scale = 2.0


class Lengths(ABC, nn.RNNBase):
    """As in pytorch_forecasting: a base whose forward takes lengths."""

    @abstractmethod
    def first(self, x):
        """Returns the first state."""

    def forward(self, x, hx=None, lengths=None, enforce_sorted=True):
        if lengths is None:
            return super().forward(x, hx=hx)
        packed = packing.pack_padded_sequence(x, lengths, self.batch_first, enforce_sorted)
        y, state = super().forward(packed, hx=hx)
        return packing.pad_packed_sequence(y, self.batch_first)[0], state


class Forecasting(Lengths, nn.LSTM):
    def first(self, x):
        return tuple(x.new_zeros(self.num_layers, len(x), self.hidden_size) for _ in range(2))


class Negated(nn.RNN):
    @torch.no_grad()
    def forward(self, input, hx=None):
        y, h = super().forward(-input, hx)
        return -y, h


class Twice(Plain):
    def forward(self, input, hx=None):
        y, h = super().forward(input, hx)
        return 2 * y, h


class Counting(type):
    def __call__(cls, *arguments, **named):
        made = super().__call__(*arguments, **named)
        made.made = True
        return made


class WithMeta(nn.LSTM, metaclass=Counting):
    pass


DERIVED = {
    "plain": lambda: Plain(H),
    "super().forward": lambda: Forecasting(I, H, 2, batch_first=True),
    "decorated": lambda: Negated(I, H),
    "derived twice": lambda: Twice(H),
    "metaclass": lambda: WithMeta(I, H),
}


@pytest.mark.parametrize("what", DERIVED)
def test_derived_classes_are_taken(what, monkeypatch):
    module = DERIVED[what]()
    plain, kind = copy.deepcopy(module), type(module)
    report = accelerate(module, check=torch.randn(B, T, I))
    assert [name for name, _ in report.replaced] == [""] and not report.left
    assert isinstance(module, kind) and type(module) is not kind
    assert type(module).__name__ == f"Accelerated{kind.__name__}" and module.engine == "lnrnn"
    x = torch.randn(B, T, I)
    gradients = []
    for each in (module, plain):
        given = x.clone().requires_grad_()
        y = each(given)[0]
        if y.requires_grad:
            gradients.append(torch.autograd.grad(y.square().sum(), [given, *each.parameters()]))
    assert_same(module(x), plain(x))
    for a, b in zip(*(gradients or ((), ())), strict=True):
        assert (a - b).abs().max() < 2e-5 * b.abs().max()

    def refused(*arguments):
        raise AssertionError("torch.nn computes")

    for name in ("lstm", "gru", "rnn_tanh"):
        monkeypatch.setattr(torch.nn.modules.rnn._VF, name, refused, raising=False)
    module(x)
    with pytest.raises(AssertionError, match="torch.nn computes"):
        plain(x)
    monkeypatch.undo()
    report.restore()
    assert type(module) is kind and vars(module).keys() == vars(plain).keys()
    assert_same(module(x), plain(x), 1e-7)


def saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


@pytest.mark.parametrize("what", ["super().forward", "metaclass"])
def test_copies_of_derived_classes_stay_accelerated(what):
    module, x = DERIVED[what](), torch.randn(B, T, I)
    plain = copy.deepcopy(module)
    accelerate(module)
    for way in (copy.deepcopy, copy.copy, saved, lambda m: pickle.loads(pickle.dumps(m))):
        other = way(module)
        assert type(other) is type(module) and other.engine == "lnrnn"
        assert_same(other(x), plain(x))


def test_one_class_is_derived_for_all_modules_and_deleted_with_its_base():
    class Local(nn.GRU):
        pass

    first, second = Local(I, H), Local(I, H)
    for each in (first, second):
        accelerate(each)
    assert type(first) is type(second)
    kept = weakref.ref(type(first))
    del first, second, each, Local
    gc.collect()
    assert kept() is None


# --- left ---------------------------------------------------------------------------------------------------


class Unrelated(nn.LSTM):
    def forward(self, x, hx=None):
        return nn.LSTM.forward(self, -x, hx)


class Reversed(nn.GRU):
    def permute_hidden(self, hx, permutation):
        return hx.flip(0) if permutation is None else super().permute_hidden(hx, permutation)


class Engine(nn.GRU):
    engine = "own"


class EngineLater(nn.GRU):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self._networks = "own"


class Final(nn.GRU):
    def __init_subclass__(cls):
        raise TypeError("Final must not be derived")


class OwnBase(nn.RNNBase):
    def __init__(self, *sizes):
        super().__init__("LSTM", *sizes)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Unrelated, "the forward of its class Unrelated does not call super().forward"),
        (Reversed, "its class Reversed has permute_hidden of its own, which torch.nn's class or lnrnn's"),
        (Engine, "its class Engine has engine of its own"),
        (EngineLater, "its class EngineLater has _networks of its own"),
        (Final, "no class can be derived from its class Final: Final must not be derived"),
        (OwnBase, "its class OwnBase is derived from torch.nn.RNNBase"),
    ],
)
def test_classes_that_cannot_be_taken_are_named(kind, why):
    module = kind(I, H)
    report = accelerate(nn.ModuleDict({"part": module}))
    assert type(module) is kind and not report.replaced
    ((name, said),) = report.left
    assert name == "part" and said.startswith(why)


# --- hooks --------------------------------------------------------------------------------------------------


def test_hooks_of_a_module_are_called_as_before():
    seen = {}
    modules = [nn.LSTM(I, H) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    x = torch.randn(T, B, I)

    def noted(kind):
        def hook(module, *values):
            seen.setdefault(module, []).append((kind, values))

        return hook

    for module in modules:
        module.register_forward_pre_hook(noted("before"))
        module.register_forward_hook(noted("after"))
        module.register_full_backward_pre_hook(noted("backward before"))
        module.register_full_backward_hook(noted("backward after"))
        module.register_forward_hook(lambda module, given, result: (2 * result[0], result[1]))
    assert accelerate(modules[0]).replaced
    for module in modules:
        module(x.clone().requires_grad_())[0].square().sum().backward()
    own, plain = seen[modules[0]], seen[modules[1]]
    assert [kind for kind, _ in own] == [kind for kind, _ in plain]
    assert len(own) == 4
    for (_, a), (_, b) in zip(own, plain, strict=True):
        assert_same(*([[t for t in flatten(value) if t is not None] for value in (a, b)]), tolerance=2e-5)


def flatten(value):
    if isinstance(value, (tuple, list)):
        return [t for part in value for t in flatten(part)]
    return [value]


class OwnCell(nn.LSTMCell):
    def forward(self, input, hx=None):
        h, c = super().forward(-input, hx)
        return 2 * h, c


def test_derived_cells_are_taken():
    module, plain = OwnCell(I, H), OwnCell(I, H)
    plain.load_state_dict(module.state_dict())
    report = accelerate(nn.ModuleDict({"cell": module}))
    assert [name for name, _ in report.replaced] == ["cell"] and isinstance(module, OwnCell)
    x, state = torch.randn(B, I), (torch.randn(B, H), torch.randn(B, H))
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            for _ in range(2):
                assert_same(module.eval()(x, state), plain.eval()(x, state))
    report.restore()
    assert type(module).__name__ == type(plain).__name__
