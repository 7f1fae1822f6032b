"""Modules in unusual states for lnrnn.torch.accelerate, and changes of modules after it."""

from __future__ import annotations

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.utils import parametrizations, parametrize, prune  # noqa: E402
from torch.utils._pytree import tree_map  # noqa: E402

import lnrnn.torch  # noqa: E402
from lnrnn.torch import accelerate  # noqa: E402
from mixed_models import SINGLE, B, H, I, T, assert_same, flat, state  # noqa: E402
from torch_cells import Layer, LayerNormLSTMCell, shaken  # noqa: E402

torch.set_num_threads(1)  # small operations take longer on several threads


class Derived(nn.GRU):
    def forward(self, input, hx=None):
        return super().forward(input, hx)


MODULES = {
    "LSTM": lambda: nn.LSTM(I, H, 2),
    "derived": lambda: Derived(I, H),
}


def two(what):
    module, plain = MODULES[what](), MODULES[what]()
    plain.load_state_dict(module.state_dict())
    return module, plain


@pytest.mark.parametrize("what", MODULES)
def test_meta_modules_are_materialised_later(what):
    with torch.device("meta"):
        module = MODULES[what]()
    ((_, text),) = accelerate(module).replaced
    assert ", for now by torch.nn's forward: its parameters are torch.float32 on meta" in text
    assert module.engine == "torch"
    assert module(torch.randn(T, B, I, device="meta"))[0].shape == (T, B, H)
    plain = MODULES[what]()
    module.to_empty(device="cpu").load_state_dict(plain.state_dict())
    assert module.engine == "lnrnn"
    x = torch.randn(T, B, I)
    for each in (torch.no_grad, torch.enable_grad):
        with each():
            assert_same(module(x), plain(x))
    module.load_state_dict({name: p * 0.5 for name, p in plain.state_dict().items()}, assign=True)
    plain.load_state_dict({name: p * 0.5 for name, p in plain.state_dict().items()})
    with torch.no_grad():
        assert_same(module(x), plain(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("what", MODULES)
def test_other_dtypes_are_computed_by_torch(what, dtype):
    module, plain = two(what)
    module.to(dtype), plain.to(dtype)
    assert f"its parameters are {dtype} on cpu" in accelerate(module).replaced[0][1]
    x = torch.randn(T, B, I, dtype=dtype)
    with torch.no_grad():
        assert torch.equal(module(x)[0], plain(x)[0])
        module.float(), plain.float()
        assert module.engine == "lnrnn"
        for _ in range(2):
            assert_same(module(x.float()), plain(x.float()))
        module.to(dtype), plain.to(dtype)
        assert torch.equal(module(x)[0], plain(x)[0])


def from_vector(m):
    vector = nn.utils.parameters_to_vector(m.parameters()).detach() * 0.5
    nn.utils.vector_to_parameters(vector, m.parameters())


def refill(module, factor=0.5):
    """Frees the memory of parameters. Fills new memory with multiples of their numbers, as FSDP does."""
    values = [
        (p, p.untyped_storage(), p.untyped_storage().nbytes(), p.detach() * factor)
        for p in module.parameters()
    ]
    for _, storage, _, _ in values:
        storage.resize_(0)
    used = []
    for p, storage, size, value in values:
        used.append(torch.full((size // 4,), torch.nan))  # takes the old memory
        storage.resize_(size)
        p.data.copy_(value)
    return used


CHANGES = {
    "vector": from_vector,
    "some gradients": lambda m: next(m.parameters()).requires_grad_(False),
    "pre-hook": lambda m: m.register_forward_pre_hook(lambda _m, given: (given[0] * 2,)) and None,
    "full backward hook": lambda m: m.register_full_backward_hook(lambda *_: None) and None,
    "eval": lambda m: m.eval(),
    "no gradients": lambda m: m.requires_grad_(False),
    "reset": lambda m: (torch.manual_seed(3), m.reset_parameters()),
    "batch first": lambda m: setattr(m, "batch_first", True),
    "dropout": lambda m: setattr(m, "dropout", 0.0),
    "forward": lambda m: setattr(m, "forward", lambda x: (2 * x, x)),
    "hook": lambda m: m.register_forward_hook(lambda _m, _x, y: (2 * y[0], y[1])) and None,
    "freed": lambda m: refill(m) and None,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("what", MODULES)
def test_changes_after_accelerate(what, change):
    module, plain = two(what)
    report = accelerate(module)
    x = torch.randn(T, T, I)
    with torch.no_grad():
        module(x), module(x)
    for each in (module, plain):
        CHANGES[change](each)
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            assert_same(module(x), plain(x))
    if change != "forward":
        report.restore()
        assert type(module).__name__ == type(plain).__name__
        assert_same(module(x), plain(x))


@pytest.mark.parametrize("steps", [2, T])
def test_parameters_may_be_freed_between_forward_and_backward(steps):
    """Calls of few steps keep a copy of the weights."""
    module, plain = two("LSTM")
    accelerate(module)
    x, results = torch.randn(steps, B, I), []
    for each in (module, plain):
        y, _ = each(x)
        used = refill(each, 1.0)
        results.append(torch.autograd.grad(y.square().sum(), [*each.parameters()]))
        del used
    assert_same(*results, 1e-5)


def test_weights_of_another_shape_in_the_same_memory_are_refused():
    module = nn.LSTM(H, H)
    accelerate(module)
    x = torch.randn(T, B, H)
    with torch.no_grad():
        module(x), module(x)
        module.weight_ih_l0.data = module.weight_ih_l0.data.view(-1, 2 * H)
        for _ in range(2):
            with pytest.raises((RuntimeError, ValueError), match="shape|size"):
                module(x)


class WeightDropout(nn.Module):
    """As in fastai's AWD-LSTM: dropout of weight_hh_l0, which is then an attribute of the module."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.weight_hh_l0_raw = nn.Parameter(module._parameters.pop("weight_hh_l0").data)
        module.weight_hh_l0 = self.weight_hh_l0_raw.detach()
        module.flatten_parameters = lambda: None

    def forward(self, *arguments):
        self.module.weight_hh_l0 = 1 * F.dropout(self.weight_hh_l0_raw, 0.5, self.training)
        return self.module(*arguments)


def pruned(module):
    prune.l1_unstructured(module, "weight_hh_l0", 0.5)
    return module


def normed(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(module, "weight_hh_l0")


# How weights become computed, and how they become parameters again.
COMPUTED = {
    "parametrization": (
        lambda m: parametrizations.weight_norm(m, "weight_hh_l0"),
        lambda m: parametrize.remove_parametrizations(m, "weight_hh_l0"),
    ),
    "weight_norm": (normed, lambda m: nn.utils.remove_weight_norm(m, "weight_hh_l0")),
    "pruned": (pruned, lambda m: prune.remove(m, "weight_hh_l0")),
    "dropout": (
        WeightDropout,
        lambda m: setattr(m, "weight_hh_l0", nn.Parameter(vars(m).pop("weight_hh_l0"))),
    ),
}


@pytest.mark.parametrize("how", COMPUTED)
def test_computed_weights_are_left_to_torch(how):
    """Of a module that has them before or after accelerate, until they are parameters again."""
    compute, undo = COMPUTED[how]
    module, plain = two("LSTM")
    before, x = compute(copy.deepcopy(module)).eval(), torch.randn(T, B, I)
    ((_, why),) = accelerate(before).left
    assert why.startswith("its weight_hh_l0 are no parameters, as with weight_norm, pruning or parametri")
    report = accelerate(module)
    with torch.no_grad():
        module(x), module(x)
    outer, other = compute(module), compute(plain)
    for training, context in ((True, torch.enable_grad), (False, torch.enable_grad), (False, torch.no_grad)):
        results = []
        for each in (outer.train(training), other.train(training)):
            torch.manual_seed(0)
            with context():
                results.append(each(x)[0])
        assert torch.equal(*results) and module.engine == "torch"
    module.engine = "lnrnn"
    with pytest.raises(ValueError, match="serve this call: its weights must be parameters, got"):
        module(x)
    module.engine = None
    assert isinstance(module, nn.LSTM)
    undo(module), undo(plain)
    with torch.no_grad():
        for _ in range(2):
            assert module.engine == "lnrnn" and type(module).__name__ == "AcceleratedLSTM"
            assert_same(module(x), plain(x))
    report.restore()
    assert type(module) is nn.LSTM
    assert torch.equal(module(x)[0], plain(x)[0])


def test_restore_of_a_module_that_was_parametrized_later():
    module, plain = two("LSTM")
    report, x = accelerate(module), torch.randn(T, B, I)
    for each in (module, plain):
        COMPUTED["parametrization"][0](each)
    report.restore()
    assert not any("Accelerated" in cls.__name__ for cls in type(module).__mro__[1:])
    assert torch.equal(module(x)[0], plain(x)[0])
    COMPUTED["parametrization"][1](module)
    assert type(module) is nn.LSTM


class Wrapped(nn.Module):
    """As DistributedDataParallel holds a model."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *given):
        return self.module(*given)


def averaged(module):
    """Returns the running average of a module, which torch writes into a copy."""
    average = torch.optim.swa_utils.AveragedModel(module)
    with torch.no_grad():
        average(torch.ones(T, B, I))
        average.update_parameters(module)
        for p in module.parameters():
            p.mul_(2)
    average.update_parameters(module)
    return average


WRAPPERS = {
    "DataParallel": nn.DataParallel,
    "wrapped": Wrapped,
    "copy": copy.copy,
    "averaged": averaged,
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers(wrapper):
    module, plain = two("derived")
    accelerate(module)
    x = torch.randn(T, B, I)
    with torch.no_grad():
        module(x)
        got, want = (WRAPPERS[wrapper](m)(x) for m in (module, plain))
        assert_same(got, want)
        assert_same(module(x), plain(x))


def test_wrapped_models_are_searched():
    module, plain = two("derived")
    for wrapped in (nn.DataParallel(module), Wrapped(module)):
        report = accelerate(wrapped)
        assert [name for name, _ in report.replaced] == ["module"]
        assert_same(wrapped(torch.ones(T, B, I)), plain(torch.ones(T, B, I)))
        report.restore()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", MODULES)
def test_compiled_models(what):
    import torch._dynamo

    torch._dynamo.reset()
    module, plain = two(what)
    model, x = nn.Sequential(module), torch.randn(T, B, I)
    compiled = torch.compile(model, backend="eager")
    report = accelerate(compiled)
    assert [name for name, _ in report.replaced] == ["_orig_mod.0"] and not report.left
    with torch.no_grad():
        assert_same(compiled(x), plain(x))
    report.restore()
    with torch.no_grad():
        assert_same(compiled(x), plain(x))
        assert accelerate(compiled).replaced
        assert_same(compiled(x), plain(x))
    module, plain = two(what)
    module.compile(backend="eager")
    with torch.no_grad():
        module(x)
        assert accelerate(module).replaced
        assert_same(module(x), plain(x))


EXPORTED = MODULES | {
    "batch_first": lambda: nn.GRU(I, H, 2, batch_first=True, bidirectional=True),
    "GRUCell": lambda: nn.GRUCell(I, H),
    "custom": lambda: shaken(Layer(LayerNormLSTMCell(I, H), False)),
    "custom cell": lambda: shaken(nn.ModuleDict({"part": LayerNormLSTMCell(I, H)})["part"]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", EXPORTED)
def test_exported_modules(what):
    """Every second one with gradients."""
    context = (torch.enable_grad, torch.no_grad)[[*EXPORTED].index(what) % 2]
    module = EXPORTED[what]()
    plain = EXPORTED[what]()
    plain.load_state_dict(module.state_dict())
    assert accelerate(module).replaced
    steps, axis = () if "ell" in what else (T,), int(what not in ("GRUCell", "batch_first"))
    given = (torch.randn(*steps, B, I),) + (torch.randn(B, H),) * (2 if what == "custom cell" else 0)
    if isinstance(module, nn.RNNBase) and context is torch.enable_grad:
        given += (state(module, given[0].shape[axis]),)

    def axis_of(t):
        return axis if t is given[0] else t.dim() - 2

    for strict in (False, True) if what in ("LSTM", "derived") else (False,):
        sizes, other = None, tree_map(lambda t: 2 * t, given)
        if not (strict or "custom" in what):  # for any batch
            size = torch.export.Dim("B", min=2, max=64)
            sizes = tree_map(lambda t: {axis_of(t): size}, given)  # noqa: B023
            other = tree_map(lambda t: torch.cat([t, -t], axis_of(t)), given)
        with context():
            exported = torch.export.export(module, given, dynamic_shapes=sizes, strict=strict).module()
            assert_same(exported(*other), plain(*other))


class Halved(nn.Module):
    def forward(self, weight):
        return weight * 0.5


@pytest.mark.parametrize("what", ["custom", "custom cell"])
def test_custom_modules_with_parametrizations_registered_later(what):
    module = EXPORTED[what]()
    plain, cell = copy.deepcopy(module), what == "custom cell"
    accelerate(module)
    given = (torch.randn(*(() if cell else (T,)), B, I),) + (torch.randn(B, H),) * (2 * cell)
    with torch.no_grad():
        module(*given)
    for m in (module, plain):
        nn.utils.parametrize.register_parametrization(m if cell else m.cell, "weight_ih", Halved())
    model = nn.ModuleDict({"part": module})
    model.forward = lambda *arguments: module(*arguments)
    accelerate(model, check=given)
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            assert_same(module(*given), plain(*given))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ["GRUCell", "custom"])
def test_models_exported_to_onnx_have_torchs_operators(what):
    pytest.importorskip("onnxscript")
    module = EXPORTED[what]()
    model = nn.Sequential(module)
    assert accelerate(model).replaced
    x = torch.randn(*(() if "ell" in what else (T,)), B, I)
    exported = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
    assert not {node.domain for node in exported.model.graph} - {""}


@pytest.mark.parametrize("what", ["LSTM", "GRUCell"])
def test_the_error_of_tracing_by_fx_names_restore(what):
    module = EXPORTED[what]()
    model, plain = nn.Sequential(module), copy.deepcopy(module)
    report = accelerate(model)
    with pytest.raises(RuntimeError, match=r"torch.fx cannot trace Accelerated\w+ of .*: call restore\(\)"):
        torch.fx.symbolic_trace(model)
    report.restore()
    x = torch.randn(*(() if "ell" in what else (T,)), B, I)
    assert_same(torch.fx.symbolic_trace(model)(x), plain(x))


@pytest.mark.filterwarnings("ignore")
def test_scripted_parts_are_named():
    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.GRU(I, H))), nn.LSTM(H, H))
    report = accelerate(model)
    assert [name for name, _ in report.replaced] == ["1"]
    assert [name for name, _ in report.left] == ["0.0"] and "it is scripted" in report.left[0][1]


def test_shared_parameters_and_copies():
    module, other = nn.LSTM(I, H), nn.LSTM(I, H)
    other.weight_hh_l0 = module.weight_hh_l0
    plain = copy.deepcopy(nn.ModuleList([module, other]))
    model = nn.ModuleList([module, other])
    accelerate(model)
    again, x = copy.deepcopy(model), torch.randn(T, B, I)
    with torch.no_grad():
        for _ in range(2):
            for mine, own in zip(model, plain, strict=True):
                assert_same(mine(x), own(x))
            for pair in (model, plain):
                pair[0].weight_hh_l0.mul_(0.5)
        assert again[0].weight_hh_l0 is again[1].weight_hh_l0
        again[0].weight_hh_l0.zero_()
        plain[0].weight_hh_l0.zero_()
        for mine, own in zip(again, plain, strict=True):
            assert_same(mine(x), own(x))


SWAPPED = {
    "RNNCell": lambda: nn.RNNCell(I, H),
    "LSTMCell": lambda: nn.LSTMCell(I, H),
    "GRUCell": lambda: nn.GRUCell(I, H),
    "custom": lambda: shaken(Layer(LayerNormLSTMCell(I, H), False), int(torch.randint(999, ()))),
    "lnrnn.torch": lambda: lnrnn.torch.LSTM(I, H),
    "batch norm": lambda: lnrnn.torch.LSTM(I, H, norm=lnrnn.BatchNormSpec(T)),
}


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("what", SWAPPED)
def test_parameters_that_are_swapped(what, dtype):
    """torch swaps no tensors with weak references. Parameters of torch.nn's layers always have some."""
    module, other = SWAPPED[what](), SWAPPED[what]()
    x = torch.randn(B, I) if what.endswith("Cell") else torch.randn(2, B, I)
    if what == "batch norm":
        module(x), other(x)
    module.eval(), other.eval()
    plain, twin = copy.deepcopy(module), copy.deepcopy(other)
    accelerate(module, dtype=dtype)
    for _ in range(2):
        with torch.no_grad():
            before = flat(module(x))[0]
        if what != "batch norm":
            flat(module(x))[0].sum().backward()
    for mine, theirs in ((module, other), (plain, twin)):
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.utils.swap_tensors(a, b)
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            for _ in range(2):
                got, want = flat(module(x)), flat(plain(x))
                assert_same(got, want, SINGLE if dtype == "float32" else 0.1)
                assert not torch.equal(got[0], before)


@pytest.mark.parametrize("name", ["LSTM", "GRUCell"])
def test_sizes_of_accelerated_modules_must_not_be_set(name):
    module = getattr(nn, name)(I, H)
    report = accelerate(module)
    module.hidden_size = H
    for size, value in (("input_size", I + 2), ("hidden_size", 9), ("bias", False)):
        with pytest.raises(
            AttributeError, match=f"{size} must stay .* in an accelerated module, got {value}"
        ):
            setattr(module, size, value)
    report.restore()
    module.hidden_size = 9


@pytest.mark.parametrize("name", ["LSTM", "GRUCell"])
def test_absent_biases_are_left_to_torch(name):
    module = getattr(nn, name)(I, H)
    plain = copy.deepcopy(module)
    accelerate(module)
    x = torch.randn(B, I)
    with torch.no_grad():
        module(x)
        for m in (module, plain):
            for bias in [key for key in m._parameters if key.startswith("bias")]:
                setattr(m, bias, None)
        if name == "GRUCell":
            assert_same(module(x), plain(x))
        assert module.engine == "torch"
