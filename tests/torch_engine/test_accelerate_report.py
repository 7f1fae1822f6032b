"""lnrnn.torch.accelerate keeps the model's structure. Also tests its report and check=."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest

import lnrnn
from helpers import absolute_error

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import rnn as packing  # noqa: E402

import lnrnn.torch  # noqa: E402
from lnrnn.torch import accelerate, custom_modules, model_checks, operator  # noqa: E402
from mixed_models import SINGLE, B, H, I, T, Tagger, assert_same, pair  # noqa: E402
from torch_cells import Layer, LayerNormLSTMCell, LiGRU, LiGRULayer, shaken  # noqa: E402

# --- unchanged ----------------------------------------------------------------------------------------------


def test_modules_parameters_and_names_do_not_change():
    model = Tagger(num_layers=2)
    rnn, keys = model.encoder["rnn"], list(model.state_dict())
    parameters = [id(p) for p in model.parameters()]
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    accelerate(model)
    assert model.encoder["rnn"] is rnn and type(rnn) is not nn.LSTM
    assert isinstance(rnn, nn.LSTM) and isinstance(model.stack[1], nn.RNN)
    assert list(model.state_dict()) == keys and [id(p) for p in model.parameters()] == parameters
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    model.load_state_dict(saved, strict=True)
    for name, value in model.state_dict().items():
        assert torch.equal(value, saved[name])
    assert (rnn.input_size, rnn.hidden_size, rnn.num_layers, rnn.batch_first) == (I, H, 2, True)
    assert [w.shape for w in rnn.all_weights[0]] == [(4 * H, I), (4 * H, H), (4 * H,), (4 * H,)]
    rnn.flatten_parameters()
    rnn.reset_parameters()
    assert "LSTM(5, 12, num_layers=2, batch_first=True)" in repr(model)


def saved_and_loaded(value, **options):
    file = io.BytesIO()
    torch.save(value, file)
    return torch.load(io.BytesIO(file.getvalue()), **options)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": lambda module: saved_and_loaded(module, weights_only=False),
}


@pytest.mark.parametrize("way", COPIES)
def test_copies_stay_accelerated(way):
    module, plain = pair("LSTM", num_layers=2, dropout=0.5)
    other = COPIES[way](module)
    x = torch.randn(T, B, I)
    assert type(other) is type(module) and other.engine == "lnrnn"
    assert other.weight_ih_l0 is not module.weight_ih_l0
    with torch.no_grad():
        module.weight_ih_l0.zero_()
    assert_same(other.eval()(x), plain.eval()(x))
    for each in (other.train(), plain.train()):
        torch.manual_seed(5)
        each(x)[0].sum().backward()
    assert (other.weight_hh_l1.grad - plain.weight_hh_l1.grad).abs().max() < 1e-4


def test_state_dicts_go_between_accelerated_and_plain():
    module, plain = pair("GRU", bidirectional=True)
    other = nn.GRU(I, H, bidirectional=True)
    other.load_state_dict(saved_and_loaded(module.state_dict(), weights_only=True))
    x = torch.randn(T, B, I)
    assert_same(module(x), other(x))
    served = lnrnn.from_torch(module, check=True)
    assert absolute_error(served(x.numpy())[0], plain(x)[0].detach().numpy()) < SINGLE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lnrnn.from_torch(module)  # the class is known, so the module is not run


def test_restore_undoes_accelerate():
    model = Tagger(num_layers=2)
    twin = copy.deepcopy(model)
    report = accelerate(model)
    model.encoder["rnn"].engine = "torch"
    names = [name for name, _ in report.replaced]
    report.restore()
    report.restore()
    assert str(report).startswith("replaced 0, left 3\n  left encoder.rnn: restore() has restored it\n")
    assert [name for name, _ in report.left] == names and not report.replaced
    words = torch.randint(0, 20, (B, T))
    kinds = [type(m) for m in model.modules()]
    assert kinds == [type(m) for m in twin.modules()]
    own, others = ([set(vars(m)) for m in each.modules()] for each in (model, twin))
    assert own == others
    assert torch.equal(model(words), twin(words))
    assert len(accelerate(model).replaced) == 3


# --- modules that are left ----------------------------------------------------------------------------------


def with_backward_hook():
    module = nn.LSTM(I, H)
    module.register_backward_hook(lambda *_: None)
    return module


def with_forward():
    module = nn.GRU(I, H)
    module.forward = lambda x: (x, x)
    return module


class Unknown(nn.Module):
    """One layer of QRNN, whose recurrence has no matrix. name: the name of the class."""

    def __new__(cls, name="QuasiRNN_Layer", **parameters):
        return super().__new__(type(name, (cls,), {}))

    def __init__(self, name="", **parameters):
        super().__init__()
        self.w = nn.Linear(I, 2 * H)
        for own, shape in parameters.items():
            self.register_parameter(own, nn.Parameter(torch.ones(shape)))

    def forward(self, x):
        c, cs = 0, []
        for z, f in (torch.sigmoid(self.w(x_t)).chunk(2, -1) for x_t in x):
            c = f * c + z
            cs.append(c)
        return torch.stack(cs)


class Pools(Unknown):
    def forward(self, x, hidden=None):
        return super().forward(x)


LEFT = {
    "a forward of its own": with_forward,
    "backward hooks, which see torch.nn's operations": with_backward_hook,
    "lnrnn computes it already": lambda: lnrnn.torch.LSTM(I, H),
    "it is scripted": lambda: torch.jit.script(nn.LSTM(I, H)),
    "its forward writes to batch_size": lambda: LiGRU(LiGRULayer(I, H)),
    "its class is QuasiRNN_Layer, but its equation is none of lnrnn's": Unknown,
    "its class is my_cell_2, but ": lambda: Unknown("my_cell_2"),
    "a and b have the shapes of a cell's W_ih and W_hh, but ":
        lambda: Unknown("Own", a=(3 * H, I), b=(3 * H, H)),
    "x2h and h2h have the shapes of": lambda: Unknown("Own", x2h=(I, H), h2h=(H, H)),
    "it takes a state, hidden, but ": lambda: Pools("Own"),
}  # fmt: skip


def refuses(*_):
    raise custom_modules.Refused("its equation is none")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("why", LEFT)
def test_modules_that_are_left_are_named(why, monkeypatch):
    """The equations of modules with a text that ends with "but" are not looked for, which takes seconds."""
    part = LEFT[why]()
    if why.endswith((", but ", "shapes of")):
        monkeypatch.setattr(custom_modules, "replace_forward", refuses)
    model = nn.ModuleDict({"part": part, "other": nn.GRU(I, H)})
    kind = type(part)
    report = accelerate(model)
    assert type(model["part"]) is kind
    assert [name for name, _ in report.replaced] == ["other"]
    ((name, said),) = report.left
    assert name == ("part.rnn.0" if isinstance(part, LiGRU) else "part") and why in said
    assert str(report) == repr(report) and f"left {name}: {said}" in str(report)


@pytest.mark.parametrize(
    "part",
    [
        Unknown("Cellular"), Unknown("SRnnoise"), Unknown("Own", gate=(4 * H, H), down=(H, 4 * H)),
        Unknown("Own", query=(H, H), key=(H, I)), nn.TransformerEncoderLayer(H, 2, 16), nn.Conv1d(I, H, 3),
    ],
    ids=lambda part: type(part).__name__,
)  # fmt: skip
def test_other_modules_are_not_in_the_report(part):
    report = accelerate(nn.Sequential(part))
    assert not report.replaced and not report.left


@pytest.mark.filterwarnings("ignore")
def test_quantized_modules_are_left():
    try:
        model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.LSTM(I, H)), {nn.LSTM})
    except (AttributeError, RuntimeError) as error:
        pytest.skip(f"torch cannot quantise here: {error}")
    report = accelerate(model)
    assert not report.replaced
    assert (
        report.left[0][0] == "0" and "(torch.ao.nn.quantized.dynamic.modules.rnn.LSTM): " in report.left[0][1]
    )
    assert lnrnn.from_torch(model[0]).hidden_size == H  # as the reason recommends


@pytest.mark.filterwarnings("ignore")
def test_the_error_of_scripting_names_alternatives():
    model = Tagger()
    report = accelerate(model)
    kinds = [type(m) for m in model.modules()]
    message = r"AcceleratedGRU of .*restore\(\) of its report first, or use torch.jit.trace"
    other = lnrnn.torch.LSTM(I, H), "lnrnn.torch.LSTM: use torch.jit.trace, or torch.export"
    for wrong, said in ((nn.Sequential(model.stack[0]), message), other):
        with pytest.raises(RuntimeError, match=said):
            torch.jit.script(wrong)
    assert kinds == [type(m) for m in model.modules()]
    report.restore()
    torch.jit.script(model.stack[0])


def test_shared_modules_are_reported_once():
    rnn, cell = nn.GRU(H, H), nn.GRUCell(H, H)
    model = nn.ModuleDict({"a": rnn, "b": nn.ModuleList([rnn]), "c": cell, "d": cell})
    report = accelerate(model)
    assert [name for name, _ in report.replaced] == ["a", "b.0", "c", "d"] and not report.left
    assert report.replaced[1][1] == "the same module as a"
    again = accelerate(model)
    assert not again.replaced and "lnrnn computes it already" in {why for _, why in again.left}
    report.restore()
    assert type(rnn) is nn.GRU


def test_the_report_names_all_modules():
    model = Tagger(num_layers=2)
    model.stack[0], model.stack[1] = nn.LSTM(H, H), nn.LSTM(H, H, bias=False)
    report = accelerate(model)
    assert [name for name, _ in report.replaced] == ["encoder.rnn", "stack.0", "stack.1"]
    assert not report.left
    assert str(report).splitlines() == [
        "replaced 3, left 0",
        "  replaced encoder.rnn: AcceleratedLSTM(5, 12, num_layers=2, batch_first=True)",
        "  replaced stack.0: AcceleratedLSTM(12, 12)",
        "  replaced stack.1: AcceleratedLSTM(12, 12, bias=False)",
    ]
    assert "the model: AcceleratedGRU" in str(accelerate(nn.GRU(I, H)))
    assert str(accelerate(nn.Linear(2, 3))) == "replaced 0, left 0"


SMALL = {
    "GRUCell": "; torch computes calls with gradients of up to {} sequences, where it is faster",
    "RNNCell": "; torch computes calls with gradients of up to {} sequences, where it is faster",
    "RNN": "; torch computes calls with gradients of up to 4 steps and {} frames, where it is faster",
    "GRU": "; torch computes calls with gradients of up to 2 steps and {} frames, where it is faster",
}


@pytest.mark.parametrize("name", SMALL)
def test_the_report_says_which_small_calls_stay_with_torch(name, monkeypatch):
    module, calls = getattr(nn, name)(60, 60), []
    ((_, what),) = accelerate(module).replaced
    before, _, after = SMALL[name].partition("{}")
    assert before in what and what.endswith(after)
    most = int(what.partition(before)[2].split()[0])
    monkeypatch.setattr(operator, "run", lambda *a, run=operator.run, **b: calls.append(0) or run(*a, **b))
    shapes = [(most, 60), (most + 1, 60)] if "Cell" in name else [(1, most, 60), (1, most + 1, 60)]
    for computed, shape in enumerate(shapes):
        module(torch.randn(shape))
        assert len(calls) == computed
    if "Cell" not in name:
        module(torch.randn(4 if name == "RNN" else 2, 1, 60))
        assert len(calls) == 1
        module(torch.randn(5 if name == "RNN" else 3, 1, 60))
        assert len(calls) == 2


@pytest.mark.parametrize("module", [nn.LSTM(I, H), nn.GRUCell(1000, 1000)], ids=str)
def test_the_report_says_nothing_if_no_call_is_small(module):
    assert str(accelerate(module)) == f"replaced 1, left 0\n  replaced the model: {module}"


# --- check --------------------------------------------------------------------------------------------------


class Named(nn.Module):
    """A model with several arguments and results, and a buffer that changes."""

    def __init__(self):
        super().__init__()
        self.rnn, self.norm, self.drop = nn.LSTM(I, H), nn.BatchNorm1d(H), nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, scale=1.0, *, mask=None):
        self.calls += 1
        y, (h, c) = self.rnn(x)
        scores = self.drop(self.norm(h[0])) * scale
        if mask is not None:
            scores = scores.masked_fill(mask, -torch.inf)
        return {"y": y, "state": [h, (c,)], "scores": scores, "best": scores.argmax(-1), "n": 3}


def test_check_takes_the_arguments_of_a_call():
    x = torch.randn(T, B, I)
    mask = torch.rand(B, H) < 0.2
    for check in (x, (x,), (x, 2.0), {"x": x, "mask": mask}):
        model = Named().train()
        model.rnn.eval()
        before, number = copy.deepcopy(model.state_dict()), torch.get_rng_state()
        assert len(accelerate(model, check=check).replaced) == 1
        assert torch.equal(torch.get_rng_state(), number)
        assert model.training and model.drop.training and not model.rnn.training
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name
    packed = packing.pack_sequence([torch.randn(3, I), torch.randn(2, I)])
    assert accelerate(nn.GRU(I, H), check=packed).replaced


def test_bad_values_of_check_are_refused():
    model = nn.Sequential(nn.GRU(I, H))
    with pytest.raises(RuntimeError, match="input.size"):
        accelerate(model, check=torch.randn(T, B, I + 1))
    assert type(model[0]) is nn.GRU
    with pytest.raises(ValueError, match="check must be for a model that returns tensors"):
        accelerate(WithoutOutput(), check=torch.randn(T, B, I))


class WithoutOutput(nn.Module):
    def forward(self, x):
        return None


class LooksAtTheClass(nn.Module):
    """A model whose outputs change unless its network has exactly torch.nn's class."""

    def __init__(self, change):
        super().__init__()
        self.rnn, self.change = nn.LSTM(I, H), change

    def forward(self, x):
        y = self.rnn(x)[0]
        return y if type(self.rnn) is nn.LSTM else self.change(y)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda y: y * 1.001, "differ by up to .*, where rounding explains .*replaced rnn: AcceleratedLSTM"),
        (lambda y: y[:1], "must keep the shapes .*, got"),
        (lambda y: y.masked_fill(y > y.mean(), torch.nan), "outputs have NaN or infinity at other places"),
        (lambda y: 1 / 0, "division"),
    ],
)
def test_a_model_that_differs_is_restored(change, said):
    model = LooksAtTheClass(change)
    x = torch.randn(T, B, I)
    want = model(x)
    with pytest.raises((ValueError, ZeroDivisionError), match=f"(?s){said}"):
        accelerate(model, check=x)
    assert type(model.rnn) is nn.LSTM and model.training and torch.equal(model(x), want)


def test_rounding_differences_pass():
    accelerate(LooksAtTheClass(lambda y: y * (1 + 2**-23)), check=torch.randn(50, B, I))


def test_an_input_without_information_is_refused():
    model = nn.Sequential(nn.LSTM(I, H))
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    with pytest.raises(ValueError, match="restored: rounding alone .*; give an input like the model's own"):
        accelerate(model, check=torch.randn(T, B, I))
    assert type(model[0]) is nn.LSTM


class First(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0]


@pytest.mark.parametrize(
    ("seconds", "most", "calls"), [(1e-3, 99, 12), (0.125, 99, 4), (1, 99, 2), (1, 1, 1)]
)
def test_the_report_says_how_much_faster_a_call_is(seconds, most, calls, monkeypatch):
    """Calls with torch.nn's class take three times as long. The model refuses a call after `most`."""
    rnn, cell = model = nn.Sequential(First(I, H), shaken(Layer(LayerNormLSTMCell(H, H), False)))
    x, seen = torch.randn(T, B, I), []

    def timeit(once, number):
        plain = type(rnn) is First
        assert plain != ("forward" in vars(cell)) and len(seen) < most
        seen.append(seconds * (3 if plain else 1))
        once()
        return seen[-1]

    monkeypatch.setattr(model_checks, "timeit", timeit)
    report = accelerate(model, check=x)
    assert len(seen) == calls and report.gain == (3 if most > 1 else None)
    assert ("\n  a call on check is 3.0 times as fast as in torch, without" in str(report)) == (most > 1)
    assert type(rnn) is not First and "forward" in vars(cell)
    seen.clear()
    assert accelerate(model, check=x).gain == report.gain  # of modules that were replaced before
    assert type(rnn) is not First and "forward" in vars(cell)
    assert accelerate(nn.Sequential(lnrnn.torch.GRU(I, H)), check=x).gain is None
    report.restore()
    assert report.gain is None and "fast" not in str(report)
