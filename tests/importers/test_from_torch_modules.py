"""Tests from_torch on modules of torch.nn and of other projects. test_import_checks.py has more of both."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from torch_cells import (  # noqa: E402
    Bare,
    CustomLSTM,
    HasteGRU,
    Layer,
    LayerNormLSTMCell,
    LiGRU,
    LiGRULayer,
    shaken,
)

torch.set_num_threads(1)  # small operations take longer on several threads

T, B, I, H = 9, 3, 5, 12  # noqa: E741 - the letters of the shapes in the documentation
SINGLE = 5e-6  # both sides compute in float32


def numbers(state):
    return tuple(s.detach().numpy() for s in state) if isinstance(state, tuple) else state.detach().numpy()


def assert_same(got, want):
    got, want = (v if isinstance(v, tuple) else (v,) for v in (got, numbers(want)))
    for a, b in zip(got, want, strict=True):
        assert absolute_error(a, b) < SINGLE


@pytest.mark.parametrize(("num_layers", "bidirectional"), [(1, False), (2, True)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_modules_of_torch_have_the_same_results(name, batch_first, bias, num_layers, bidirectional):
    module = shaken(
        getattr(nn, name)(I, H, num_layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional)
    )
    model = lnrnn.from_torch(module)
    assert type(model).__name__ == name and model.norm is None and model.batch_first == batch_first
    x = torch.randn(T, B, I, generator=torch.Generator().manual_seed(1))
    x = x.swapaxes(0, 1).contiguous() if batch_first else x
    y, state = module(x)
    got, end = model(x)
    assert_same(got, y)
    assert_same(end, state)
    # In a packed sequence, the reverse direction begins at the end of each sequence.
    lengths = torch.tensor([4, T, 1])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first, enforce_sorted=False)
    y, state = module(packed, state)
    y, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first)
    got, end = model(x, numbers(module(x)[1]), lengths=lengths)
    assert_same(got, y)
    assert_same(end, state)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("layers, both, bias", [(1, False, True), (2, False, False), (2, True, True)])
def test_projections(layers, both, bias):
    module = shaken(nn.LSTM(I, H, layers, bias, bidirectional=both, proj_size=3))
    x = torch.randn(5, B, I, generator=torch.Generator().manual_seed(1))
    for source in (module, module.state_dict()):
        model = lnrnn.from_torch(source)
        assert (model.hidden_size, model.proj_size) == (H, 3)
        y, (h, c) = model(x)
        want, (h_want, c_want) = module(x)
        assert_same((y, h, c), (want, h_want, c_want))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_every_floating_dtype_and_parameters_that_require_grad(dtype):
    module = shaken(nn.GRU(I, H)).to(dtype)
    kept = dict(module.named_parameters())  # parameters require grad, the tensors of state_dict() do not
    for source in (module, module.state_dict(), kept):
        model = lnrnn.from_torch(source)
        for name, p in kept.items():
            np.testing.assert_array_equal(getattr(model, name), p.detach().float().numpy())
    with pytest.raises(TypeError, match="weight_ih_l0 must be an array of floating"):
        lnrnn.from_torch({name: p.detach().to(torch.int8) for name, p in kept.items()})


def test_prefix_selects_a_submodule():
    model = nn.ModuleDict({"rnn": nn.GRU(I, H), "head": nn.Linear(H, 2)})
    with pytest.raises(ValueError, match="give the submodule itself"):
        lnrnn.from_torch(model, prefix="rnn.")
    with pytest.raises(ValueError, match=r"a part of it: give model\.rnn$"):
        lnrnn.from_torch(model)
    parts = nn.ModuleDict({"rnn": nn.GRU(I, H)}), nn.LSTM(I, H), nn.Linear(H, 2)
    deep = nn.ModuleDict({"parts": nn.ModuleList(parts)})
    with pytest.raises(ValueError, match=r"a part of it: give model\.parts\[0\]\.rnn or model\.parts\[1\]$"):
        lnrnn.from_torch(deep)
    assert lnrnn.from_torch(model["rnn"]).hidden_size == H


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_eps_is_that_of_the_module():
    x = torch.randn(T, B, I)
    module = shaken(Layer(LayerNormLSTMCell(I, H, lambda n: nn.LayerNorm(n, eps=0.1)), False))
    for given in (module, torch.jit.script(module)):
        assert_same(lnrnn.from_torch(given)(x)[0], module(x))
    with pytest.raises(ValueError, match=r"eps must be the same in module and arguments, got \[0.01, 0.1\]"):
        lnrnn.from_torch(module, eps=0.01)
    module.cell.layernorm_c.eps = 1e-3
    with pytest.raises(ValueError, match=r"eps must be the same in module and arguments, got \[0.001, 0.1\]"):
        lnrnn.from_torch(module)


def test_norms_without_eps_need_a_given_eps():
    x = torch.randn(T, B, I)
    module = shaken(Layer(LayerNormLSTMCell(I, H, Bare), False))
    with pytest.raises(ValueError, match="eps must be given for the norms .*cell.layernorm_c"):
        lnrnn.from_torch(module)
    # check=True would refuse the module: its results are NaN, because the first h has variance 0.
    assert_same(lnrnn.from_torch(module, eps=0, check=False)(x)[0], module(x))


def test_haste_has_the_same_results():
    x = torch.randn(T, B, I)
    module = shaken(HasteGRU(I, H))
    assert_same(lnrnn.from_torch(module)(x)[0], module(x))
    assert lnrnn.from_torch(HasteGRU(I, H, batch_first=True), check=False).batch_first
    module.zoneout = 0.2
    model = lnrnn.from_torch(module)
    assert model.zoneout == 0.2
    assert_same(model(x)[0], module(x))
    module.zoneout = 1.0
    with pytest.raises(ValueError, match="zoneout must be .*below 1, got 1.0"):
        lnrnn.from_torch(module)
    with pytest.raises(ValueError, match="zoneout must be the same in"):
        lnrnn.from_torch(HasteGRU(I, H, zoneout=0.1), zoneout=0)


def ligru(layers=1, **options):
    """Returns a LiGRU of speechbrain whose statistics of batch norm are not the defaults."""
    wide = H * (1 + options.get("bidirectional", False))
    module = shaken(LiGRU(*(LiGRULayer(wide if k else I, H, **options) for k in range(layers))))
    for name, value in module.named_buffers():
        if "running" in name:
            value.uniform_(0.2, 0.8)
    return module


@pytest.mark.parametrize(("name", "bidirectional", "layer_norm"), [
    ("relu", False, None), ("tanh", True, None), ("relu", True, False), ("tanh", False, True),
])  # fmt: skip
def test_speechbrains_ligru(name, bidirectional, layer_norm):
    act = nn.ReLU() if name == "relu" else nn.Tanh()
    x = torch.randn(B, T, I, generator=torch.Generator().manual_seed(1))
    module = ligru(
        2 - bidirectional, norm=nn.LayerNorm, act=act, bidirectional=bidirectional, layer_norm=layer_norm
    )
    model = lnrnn.from_torch(module, kind="speechbrain")
    assert (model.nonlinearity, model.bidirectional, model.batch_first) == (name, bidirectional, True)
    assert model.norm.placement == ("input" if layer_norm is None else "split")
    (y, h), (got, end) = module(x), model(x)
    assert_same(got, y)
    if not bidirectional:
        assert_same(end, h)
    assert_same(lnrnn.from_torch(module.rnn[0])(x)[0], module.rnn[0](x))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_batch_norm_of_speechbrain_is_folded(bidirectional):
    x = torch.randn(B, T, I, generator=torch.Generator().manual_seed(1))
    module = ligru(2, bidirectional=bidirectional, norm=lambda n: nn.BatchNorm1d(n, eps=0.1))
    model = lnrnn.from_torch(module)
    assert model.norm is None and not model.bias_hh_l0.any()
    assert_same(model(x)[0], module(x)[0])


REFUSED_LIGRUS = [
    (lambda: ligru(act=torch.sin), "nonlinearity must be 'relu' or 'tanh' .*got sin"),
    (lambda: ligru(act=nn.LeakyReLU()), "nonlinearity must be 'relu' or 'tanh' .*got LeakyReLU"),
    (lambda: ligru(layer_norm=False), "ff_normalization must be 'layernorm' for an SLiGRU"),
    (lambda: ligru().state_dict(), "a state dict .*does not show its activation.*give the module"),
    (lambda: ligru(norm=nn.LayerNorm, layer_norm=True).state_dict(), "give the module"),
    (lambda: LiGRU(LiGRULayer(I, H), LiGRULayer(H, H, act=nn.Tanh())), "nonlinearity must be equal in all"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "message"), REFUSED_LIGRUS)
def test_other_ligrus_are_refused(source, message):
    with pytest.raises(ValueError, match=message):
        lnrnn.from_torch(source())


def test_options_are_the_modules():
    for option, value in (("nonlinearity", "tanh"), ("eps", 0.1)):
        with pytest.raises(ValueError, match=f"{option} must be the module's .*, got {value!r}"):
            lnrnn.from_torch(ligru(), **{option: value})
    with pytest.raises(ValueError, match="nonlinearity must be the same in .*, got .*'relu', 'tanh'"):
        lnrnn.from_torch(nn.RNN(I, H, nonlinearity="relu"), nonlinearity="tanh")


WEIGHT_NORMS = [torch.nn.utils.weight_norm, torch.nn.utils.parametrizations.weight_norm]


def with_weight_norm(kind, module, *paths, **options):
    """Returns the module with weight norm on some weights, and with random parameters."""
    for path in paths:
        part, _, name = path.rpartition(".")
        kind(module.get_submodule(part), name, **options)
    return shaken(module)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(("name", "dim"), [("RNN", 0), ("LSTM", 1), ("GRU", None)])
@pytest.mark.parametrize("kind", WEIGHT_NORMS)
def test_weight_norm_is_folded(name, kind, dim):
    x = torch.randn(T, B, I, generator=torch.Generator().manual_seed(1))
    module = with_weight_norm(kind, getattr(nn, name)(I, H, 2), "weight_hh_l0", "weight_ih_l1", dim=dim)
    before, y = module.state_dict(), module(x)[0]
    options = {"nonlinearity": "tanh"} if name == "RNN" else {}
    for given in (module, module.state_dict()):
        assert_same(lnrnn.from_torch(given, **options)(x)[0], y)
    assert module.state_dict().keys() == before.keys() and torch.equal(module(x)[0], y)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("kind", WEIGHT_NORMS)
def test_weight_norm_of_linears_is_folded(kind):
    x = torch.randn(T, B, I, generator=torch.Generator().manual_seed(1))
    module = with_weight_norm(kind, CustomLSTM(I, H, True), "x2g.weight", "p2g.weight")
    y = module(x)
    for given in (module, module.state_dict()):
        assert_same(lnrnn.from_torch(given)(x)[0], y)
    assert_same(module(x).detach().numpy(), y)


def test_other_parametrizations_are_folded_in_a_module():
    x = torch.randn(T, B, I, generator=torch.Generator().manual_seed(1))
    module = torch.nn.utils.parametrizations.spectral_norm(nn.GRU(I, H), "weight_hh_l0").eval()
    assert_same(lnrnn.from_torch(module)(x)[0], module(x)[0])
    with pytest.raises(ValueError, match="missing weight_hh; unexpected parametrizations.weight_hh_l0"):
        lnrnn.from_torch(module.state_dict())


def test_norms_outside_a_known_layer_do_not_matter():
    """from_torch refuses this model, but not because its norms have different eps."""
    model = nn.ModuleDict(
        {"rnn": nn.LSTM(3, 5), "a": nn.RMSNorm(5), "b": nn.LayerNorm(5), "c": nn.LayerNorm(5, 0.1)}
    )
    with pytest.raises(ValueError, match="no known cell.*give model.rnn"):
        lnrnn.from_torch(model)
