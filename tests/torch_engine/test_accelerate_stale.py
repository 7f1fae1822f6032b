"""Writes that lnrnn.torch does not notice: `check` finds them, and the next calls use the present weights."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import lnrnn.torch  # noqa: E402
from lnrnn.torch import accelerate  # noqa: E402
from mixed_models import B, H, I, T, assert_same, flat  # noqa: E402
from torch_cells import HasteGRU, Layer, LayerNormLSTMCell, shaken  # noqa: E402

torch.set_num_threads(1)  # small operations take longer on several threads


def weight_normed(name):
    return lambda: parametrizations.weight_norm(nn.LSTM(I, H), name).eval()


def of_other_tensors():
    """Returns a module whose first weight is a buffer, and whose second is an attribute."""
    module = nn.GRU(I, H)
    first, second = module.weight_ih_l0.detach(), module.weight_hh_l0.detach()
    del module.weight_ih_l0, module.weight_hh_l0
    module.register_buffer("weight_ih_l0", first)
    module.weight_hh_l0 = second
    return module


def of_attributes():
    """Returns a module that keeps its weights in attributes, as some forms of dropout of weights do."""
    module = nn.GRU(I, H)
    for name, p in list(module.named_parameters()):
        delattr(module, name)
        setattr(module, name, p.detach())
    return module


def batch_normed():
    module = lnrnn.torch.GRU(I, H, norm=lnrnn.BatchNormSpec(T), seed=0)
    module(torch.randn(T, 8, I))
    return module.eval()


MODULES = {
    "layers": lambda: nn.LSTM(I, H, 2, bidirectional=True),
    "cell": lambda: nn.GRUCell(I, H),
    "weight_norm of W_ih": weight_normed("weight_ih_l0"),
    "weight_norm of W_hh": weight_normed("weight_hh_l0"),
    "buffers and attributes": of_other_tensors,
    "attributes": of_attributes,
    "custom": lambda: shaken(HasteGRU(I, H)),
    "custom, with parameters as lnrnn's": lambda: shaken(Layer(LayerNormLSTMCell(I, H), False)),
    "lnrnn.torch": lambda: lnrnn.torch.LSTM(I, H, seed=0),
    "batch norm": batch_normed,
}


def made(what):
    model = nn.ModuleDict({"part": MODULES[what]()})
    accelerate(model)
    return model["part"], model


def write(m):
    """Changes an element of each larger tensor that is not among the 8 that calls compare."""
    for t in (*m.parameters(), *m.buffers(), *vars(m).values()):
        if isinstance(t, torch.Tensor) and t.is_floating_point() and t.numel() > 14:
            t.data.view(-1)[1] += 1


def found(model, x):
    """Returns the names in the error of a check, or None if there is no error."""

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model["part"](x)

    whole = Whole()
    whole.train(model["part"].training)
    try:
        accelerate(whole, check=x)
    except ValueError as error:
        said = str(error)
        assert said.startswith("model has weights that were written without notice")
        return said.partition(": ")[2].partition(". ")[0].split(", ")
    return None


def given(what):
    return torch.randn(B, I) if what == "cell" else torch.randn(T, B, I)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("what", MODULES)
def test_check_finds_weights_that_were_written_without_notice(what, checked):
    module, model = made(what)
    x = given(what)
    with torch.no_grad():
        for _ in range(2):
            assert not checked or found(model, x) is None
            before = flat(module(x))[0]
            module(x)
        write(module)
        assert torch.equal(flat(module(x))[0], before)  # else this test does not show anything
        names = found(model, x)
        after = flat(module(x))[0]
        assert not torch.equal(after, before)
        assert found(model, x) is None
        assert_same(flat(module(x))[0], flat(copy.deepcopy(module)(x))[0])  # copies keep no packed weights
    assert all(name.startswith("model.part.") for name in names)
    weights = [name.removeprefix("model.part.") for name in names]
    if what == "layers":
        assert weights == [name for name, _ in module.named_parameters()]
    else:
        assert len(weights) >= 2


@pytest.mark.parametrize("what", sorted(MODULES))
def test_check_finds_weights_of_calls_in_a_mode_of_torch(what):
    """In such a mode calls pass through torch's dispatcher, which does not know the module."""
    module, model = made(what)
    x = given(what)
    with torch.no_grad():
        with FlopCounterMode(display=False):
            before = flat(module(x))[0]
            write(module)
            assert torch.equal(flat(module(x))[0], before)
        assert found(model, x)
        with FlopCounterMode(display=False):
            assert_same(flat(module(x))[0], flat(copy.deepcopy(module)(x))[0])
            assert not torch.equal(flat(module(x))[0], before)


def test_check_names_only_the_written_weights():
    module, model = made("layers")
    plain, x = nn.LSTM(I, H, 2, bidirectional=True), given("layers")
    plain.load_state_dict(module.state_dict())
    with torch.no_grad():
        for m in (module, plain):
            m(x)
            m.weight_hh_l1.numpy()[2, 3] += 1
    assert found(model, x) == ["model.part.weight_hh_l1"]
    assert_same(module(x), plain(x))


def test_check_finds_weights_of_short_calls_with_gradients():
    """Calls of few steps keep packed weights too. These are others than those of calls without gradients."""
    module, model = made("layers")
    accelerate(model, dtype="int8")
    module.engine = "lnrnn"
    x = torch.randn(2, B, I)
    before = module(x)[0]
    write(module)
    assert torch.equal(module(x)[0], before)
    assert found(model, x) == [f"model.part.{name}" for name, _ in module.named_parameters()]
    after = module(x)[0]
    assert not torch.equal(after, before)
    assert_same(after, copy.deepcopy(module)(x)[0])


def test_check_finds_layers_with_dropout_in_training():
    module = nn.LSTM(I, H, 2, dropout=0.5)
    accelerate(module)
    x = given("layers")
    with torch.no_grad():
        module(x)
        module.weight_hh_l1.numpy()[2, 3] += 1
    with pytest.raises(ValueError, match="without notice, as through p.data or NumPy: weight_hh_l1. Calls"):
        accelerate(module, check=x)


def test_frozen_weights_are_no_error():
    module, model = made("layers")
    x = given("layers")
    module.frozen = True
    with torch.no_grad():
        before = module(x)
        write(module)
        assert found(model, x) is None
        assert torch.equal(module(x)[0], before[0])


@pytest.mark.parametrize("what", sorted(what for what in MODULES if not what.startswith("custom")))
def test_setting_frozen_lets_the_next_call_read_all_weights(what):
    module, model = made(what)
    x = given(what)
    with torch.no_grad():
        before = flat(module(x))[0]
        write(module)
        module.frozen = False
        assert not torch.equal(flat(module(x))[0], before)
        assert found(model, x) is None


@pytest.mark.parametrize("what", ["layers", "cell", "weight_norm of W_ih", "custom"])
def test_weights_that_were_written_between_restore_and_accelerate(what):
    part = MODULES[what]()
    model, x = nn.ModuleDict({"part": part}), given(what)
    with torch.no_grad():
        report = accelerate(model)
        part(x), part(x)
        report.restore()
        write(part)
        want = part(x)
        accelerate(model)
        assert_same(part(x), want)
