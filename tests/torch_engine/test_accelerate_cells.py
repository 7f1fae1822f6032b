"""Tests lnrnn.torch.accelerate on modules of other projects, whose parameters from_torch knows."""

from __future__ import annotations

import copy
import pickle
from contextlib import suppress
from functools import cache

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import own_cells  # noqa: E402
from lnrnn.torch import accelerate  # noqa: E402
from mixed_models import flat  # noqa: E402
from rms_cells import RMS  # noqa: E402
from torch_cells import (  # noqa: E402
    WAYS,
    CustomLSTM,
    GateGRUCell,
    HasteGRU,
    Layer,
    LayerNormLSTMCell,
    Stack,
    WithState,
    shaken,
)

torch.set_num_threads(1)  # small operations take longer on several threads

T, B, I, H = 7, 4, 5, 12  # noqa: E741 - the letters of the shapes in the documentation
SINGLE = 5e-6  # both sides compute in float32
TAKEN = ("layer(x, None)", "layer(x, state) of torch.nn", "directions(x)", "stack(x, states)",
         "stack of directions(x, states)", "list of layers", "batch first")  # fmt: skip
SEQUENCES = {
    **{way: (lambda make=WAYS[way]: make(LayerNormLSTMCell)) for way in TAKEN},
    "torchaudio": lambda: CustomLSTM(I, H, True),
    "icefall": lambda: Stack(Layer(GateGRUCell(I, H, True), False), Layer(GateGRUCell(H, H, True), False)),
    "haste": lambda: HasteGRU(I, H),
}


@cache
def accelerated(what):
    """Returns an accelerated module, an ordinary copy, and the report. Tests that write to them copy both."""
    module = shaken(SEQUENCES[what]())
    plain = copy.deepcopy(module)
    return module, plain, accelerate(module)


def structure(value):
    """Returns the nested types of a value, with the shapes of tensors."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, dict):
        return {key: structure(part) for key, part in value.items()}
    return type(value), [structure(part) for part in value]


def ways_to_call(module, x):
    """Returns lists of arguments with which a module runs: x, x and None, x and states in a usual order."""
    B = x.shape[1]
    a, b, c, d = ((torch.randn(B, H), torch.randn(B, H)) for _ in range(4))
    one = (torch.randn(1, B, H), torch.randn(1, B, H))
    for state in ((), (None,), (a,), (one,), ([a, b],), ([[a, b], [c, d]],)):
        with suppress(Exception):  # modules raise any exception for unexpected arguments
            module(x, *state)
            yield state


@pytest.mark.parametrize("what", SEQUENCES)
def test_sequence_modules_are_replaced_and_keep_their_results(what):
    module, plain, report = accelerated(what)
    assert report.replaced and not report.left
    assert [*module.state_dict()] == [*plain.state_dict()] and type(module) is type(plain)
    first, other = (m[0] if isinstance(m, (nn.ModuleList, nn.Sequential)) else m for m in (module, plain))
    # x has more steps and sequences than accelerate's trial runs.
    x = torch.randn(T + 4, B + 1, I)
    calls = list(ways_to_call(other, x))
    assert calls
    for state in calls:
        with torch.no_grad():
            got, want = first(x, *state), other(x, *state)
        assert structure(got) == structure(want)
        for a, b in zip(flat(got), flat(want), strict=True):
            assert absolute_error(a.numpy(), b.numpy()) < SINGLE
        assert all(map(torch.equal, flat(first(x, *state)), flat(other(x, *state))))  # with gradients


def test_lnrnn_computes_the_calls(monkeypatch):
    """The test replaces the module's own forward by a function that returns None.

    So a result other than None comes from lnrnn.
    """
    module = shaken(Layer(LayerNormLSTMCell(I, H), False))
    accelerate(module)
    want = module(torch.randn(T, B, I))
    monkeypatch.setattr(Layer, "forward", lambda self, x: None)
    assert module(torch.randn(T, B, I)) is None  # it needs gradients
    module.requires_grad_(False)
    assert module(torch.randn(T, B, I)).shape == want.shape
    assert module(torch.randn(T, B, I).double()) is None  # lnrnn does not compute float64
    assert module(x=torch.randn(T, B, I)).shape == want.shape
    assert module(torch.randn(0, B, I)) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert module(torch.randn(T, B, I)) is None
    assert module.double()(torch.randn(T, B, I)) is None


@pytest.mark.parametrize("what", ["haste", "torchaudio", "icefall", "stack(x, states)"])
def test_copies_have_their_own_parameters_and_use_changed_ones(what):
    module, plain = copy.deepcopy(accelerated(what)[:2])
    x = torch.randn(T, B, I)
    state = next(ways_to_call(plain, x))
    with torch.no_grad():
        module(x, *state)
        others = copy.deepcopy(module), pickle.loads(pickle.dumps(module))
        for p in module.parameters():
            p.zero_()
        for k in range(2):
            want = flat(plain(x, *state))[0].numpy()
            for other in others:
                assert "forward" in vars(other)
                for _ in range(2):
                    assert absolute_error(flat(other(x, *state))[0].numpy(), want) < SINGLE
            for p in (p for each in (*others, plain) for p in each.parameters()):
                p.data.mul_(0.9 + 0.05 * k)


# The tests of from_torch have more. It takes the last two whole, and accelerate one not at all, one in parts.
OWN = (*RMS, "peepholes", "gains less 1", "lists of parameters", "Elman, state required", "state first",
       "stack")  # fmt: skip


@pytest.mark.filterwarnings("ignore:Own")
@pytest.mark.parametrize("name", OWN)
def test_own_cells_have_the_bits_of_from_torch(name):
    """Names of parameters do not show these equations. Models of several cells have them one by one."""
    module = shaken((own_cells.TAKEN | RMS)[name][0](I, 8))
    for part in module.modules():
        if isinstance(part, (own_cells.Own, own_cells.ElmanStateFirst, own_cells.ParameterLists)):
            part.__class__ = type("OwnCell", (type(part),), {})
    plain = copy.deepcopy(module)
    report = accelerate(module)
    if name in OWN[-2:]:
        assert all("its first argument is the state" in why for _, why in report.left)
        assert bool(report.left) == ("first" in name) != bool(report.replaced)
        return
    ((path, what),) = report.replaced
    model = lnrnn.from_torch(plain, check=False)
    assert path == "" and f"lnrnn's {type(model).__name__}(5, 8" in what and not report.left
    xs, state = torch.randn(2, B, I), [torch.randn(1, B, 8) for _ in range(1 + (type(model) is lnrnn.LSTM))]
    with torch.no_grad():
        for x in xs:
            if "one step" in what:
                given = [s[0] for s in state]
                h0 = tuple(s.numpy() for s in state) if len(state) > 1 else state[0].numpy()
                try:
                    got = flat(module(x, *given))
                except TypeError:
                    got = flat(module(x, tuple(given)))
                want = model(x[None].numpy(), h0)[0][0]
            else:
                x = torch.stack([x, -x], int(model.batch_first))
                started = (torch.zeros(1, B, 8),) if "required" in name else ()
                got, want = flat(module(x, *started)), model(x.numpy())[0]
            np.testing.assert_array_equal(got[0].numpy(), want)


class Residual(Stack):
    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, x, x], -1)[..., :H] + layer(x)
        return x


class Drops(Stack):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


class Keeps(Layer):
    def forward(self, x):
        y = super().forward(x)
        self.last = y[-1]
        return y


class Counts(Layer):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Remembers(Layer):
    """Keeps values in attributes, dicts, lists and sets."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.memory, self.records, self.seen = {"states": {}}, [], set()

    def forward(self, x):
        y = super().forward(x)
        self.memory["states"]["h"] = y[-1]
        self.records.append(y.mean().item())
        self.seen.add(x.shape)
        return y


class Tells(Layer):
    def forward(self, x):
        return super().forward(x), len(x)


class ClippedCell(LayerNormLSTMCell):
    def forward(self, x, h, c):
        h, c = super().forward(x, h, c)
        return h, c.clamp(-1, 1)


class ScaledCell(nn.Module):
    """Its W_ih is a product of parameters."""

    def __init__(self):
        super().__init__()
        self.w, self.scale, self.u = nn.Linear(I, H), nn.Parameter(torch.ones(I)), nn.Linear(H, H)

    def forward(self, x, h):
        return torch.tanh(x @ (self.w.weight * self.scale).t() + self.w.bias + self.u(h))


def with_a_hook_inside():
    module = Stack(Layer(LayerNormLSTMCell(I, H), False))
    module.layers[0].cell.register_forward_hook(lambda *_: None)
    return module


LEFT = {
    "another equation": (
        lambda: Layer(ClippedCell(I, H), False), "but no cell of lnrnn has its operator aten.clamp.default"
    ),
    "an attribute": (
        lambda: Keeps(LayerNormLSTMCell(I, H), False), "its forward writes to last, which lnrnn does not"
    ),
    "a buffer": (
        lambda: Counts(LayerNormLSTMCell(I, H), False), "its forward writes to calls, which lnrnn does not"
    ),
    "containers": (
        lambda: Remembers(LayerNormLSTMCell(I, H), False),
        "lnrnn cannot notice changes inside of seen; make arrays buffers, with persistent=False, and sets",
    ),
    "numbers in what is returned": (
        lambda: Tells(LayerNormLSTMCell(I, H), False), "or does not run in a usual way"
    ),
    "scaled weights": (ScaledCell, "weight_ih_l0 must be sums of the module's parameters"),
    "hooks inside": (with_a_hook_inside, "it has hooks or a forward of its own"),
    "zoneout": (
        lambda: HasteGRU(I, H, zoneout=0.1), "zoneout must be 0 in lnrnn.torch, got 0.1; from_torch takes it"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", LEFT)
def test_other_equations_and_modules_with_memory_are_left(what):
    make, why = LEFT[what]
    report = accelerate(shaken(nn.ModuleDict({"part": make()})))
    assert all(name == "part.cell" and "one step at a time" in what for name, what in report.replaced)
    ((name, said),) = report.left
    assert name.startswith("part") and why in said


def test_submodules_of_a_module_with_another_equation_are_replaced():
    module = shaken(Residual(Layer(LayerNormLSTMCell(I, H), False), Layer(LayerNormLSTMCell(H, H), False)))
    plain = copy.deepcopy(module)
    report = accelerate(module)
    assert [name for name, _ in report.replaced] == ["layers.0", "layers.1"] and not report.left
    x = torch.randn(T, B, I)
    assert absolute_error(module(x).detach().numpy(), plain(x).detach().numpy()) < SINGLE


def test_a_forward_that_differs_in_training_is_kept():
    module = shaken(Drops(Layer(LayerNormLSTMCell(I, H), False)))
    plain = copy.deepcopy(module)
    ((_, what),) = accelerate(module).replaced
    assert what.endswith("run its own forward, and so do calls in training, which differ")
    x = torch.randn(T, B, I)
    results = []
    for each in (module.train(), plain.train()):
        torch.manual_seed(1)
        results.append(each(x))
    assert torch.equal(*results)
    with torch.no_grad():
        got, want = module.eval()(x), plain.eval()(x)
    assert not torch.equal(got, want) and absolute_error(got.detach().numpy(), want.detach().numpy()) < SINGLE


def test_containers_of_a_module_are_restored():
    module = shaken(Remembers(LayerNormLSTMCell(I, H), False))
    module.memory["states"]["c"] = module.records
    for look in (accelerate, lnrnn.from_torch):
        look(module)
        assert module.memory == {"states": {"c": module.records}} and not module.records and not module.seen


class Counted(nn.Module):
    """Its outputs depend on the length of a list."""

    def __init__(self):
        super().__init__()
        self.x, self.h, self.one, self.two = nn.Linear(I, H), nn.Linear(H, H), [1, 2], [3]

    def forward(self, x, h):
        y = torch.tanh(self.x(x) + self.h(h))
        return 100 * y if len(self.one) != 2 else y


def test_elements_that_move_between_lists_are_noticed():
    module = shaken(Counted())
    assert accelerate(module).replaced
    x, h = torch.randn(B, I), torch.randn(B, H)
    with torch.no_grad():
        before = [module(x, h) for _ in range(3)][-1]
        module.one.pop(), module.two.insert(0, 2)
        assert (module(x, h) / before).mean() > 99


def test_accelerating_twice_and_shared_modules():
    layer = shaken(WithState(LayerNormLSTMCell(I, H), allow_none=True))
    model = nn.ModuleDict({"a": layer, "b": layer, "other": nn.Linear(2, 3)})
    report = accelerate(model)
    assert [name for name, _ in report.replaced] == ["a", "b"] and not report.left
    assert report.replaced[1][1] == "the same module as a"
    again = accelerate(model)
    assert not again.replaced and again.left[0] == ("a", "lnrnn computes it already")


@pytest.mark.filterwarnings("ignore")
def test_the_error_of_scripting_names_restore():
    module = shaken(nn.Sequential(nn.Identity(), CustomLSTM(I, H, True)))
    report, x = accelerate(module), torch.randn(T, B, I)
    with pytest.raises(RuntimeError, match=r"has replaced: call restore\(\) of its report first"):
        torch.jit.script(module)
    assert torch.equal(torch.jit.trace(module, (x,))(x), type(module[1]).forward(module[1], x))
    report.restore()
    assert not {"forward", "__prepare_scriptable__"} & vars(module[1]).keys()


def test_compiled_modules_have_the_same_results():
    import torch._dynamo

    torch._dynamo.reset()
    module = shaken(nn.Sequential(HasteGRU(I, H), nn.Linear(H, 2)))
    plain = copy.deepcopy(module)
    assert accelerate(module).replaced
    run, x = torch.compile(module, backend="aot_eager"), torch.randn(T, B, I)
    for context in (torch.enable_grad, torch.no_grad):
        with context():
            got, want = run(x).detach(), plain(x).detach()
            assert absolute_error(got.numpy(), want.numpy()) < SINGLE
    assert not torch.equal(got, want)  # without gradients lnrnn's kernels compute the call
