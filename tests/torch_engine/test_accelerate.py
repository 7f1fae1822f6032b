"""lnrnn.torch.accelerate: what is replaced, what is left and why, and that a model is what it was."""

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
from torch.nn.utils import parametrizations  # noqa: E402
from torch.nn.utils import rnn as packing  # noqa: E402

import lnrnn.torch  # noqa: E402
from lnrnn.torch import accelerate  # noqa: E402

T, B, I, H = 7, 4, 5, 12  # noqa: E741 - the letters of the shapes in the documentation
SINGLE = 5e-6  # both are float32
MODULES = [
    ("RNN", {}),
    ("RNN", {"nonlinearity": "relu", "num_layers": 2, "bias": False}),
    ("LSTM", {}),
    ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    ("GRU", {"bias": False, "batch_first": True}),
    ("GRU", {"num_layers": 3, "bidirectional": True}),
]


@pytest.fixture(autouse=True)
def the_same_numbers_every_time():
    torch.manual_seed(0)


def pair(name, **options):
    """A module of torch.nn, accelerated, and as it was."""
    plain = getattr(nn, name)(I, H, **options)
    module = copy.deepcopy(plain)
    assert accelerate(module).replaced
    return module, plain


def flat(value):
    """The tensors of what a call returns."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for part in value if part is not None for t in flat(part)]


def assert_same(got, want, tolerance=SINGLE):
    got, want = flat(got), flat(want)
    assert [t.shape for t in got] == [t.shape for t in want]
    assert [t.dtype for t in got] == [t.dtype for t in want]
    for a, b in zip(got, want, strict=True):
        assert absolute_error(a.detach().numpy(), b.detach().numpy()) < tolerance


def state(module, *batch):
    """First states of a module, drawn anew, beside x."""
    shape = (module.num_layers * (1 + module.bidirectional), *batch, H)
    parts = tuple(torch.randn(shape) for _ in range(1 + isinstance(module, nn.LSTM)))
    return parts if len(parts) == 2 else parts[0]


class Tagger(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.words = nn.Embedding(20, I)
        self.encoder = nn.ModuleDict({"rnn": nn.LSTM(I, H, batch_first=True, **options)})
        self.stack = nn.ModuleList([nn.GRU(H, H), nn.RNN(H, H, nonlinearity="relu")])
        self.out = nn.Linear(H, 3)

    def forward(self, words):
        x = self.encoder["rnn"](self.words(words))[0].transpose(0, 1)
        for layer in self.stack:
            x, _ = layer(x)
        return self.out(x)


# --- a call -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("name", "options"), MODULES, ids=str)
def test_calls_are_torchs(name, options, training):
    module, plain = pair(name, **options)
    module.train(training), plain.train(training)
    assert module.engine == "lnrnn"
    x = torch.randn(B, T, I) if module.batch_first else torch.randn(T, B, I)
    for start in (None, state(module, B)):
        assert_same(module(x, start), plain(x, start))
        with torch.no_grad():
            assert_same(module(x, start), plain(x, start))
    one = torch.randn(T, I)
    for start in (None, state(module)):
        assert_same(module(one, start), plain(one, start))
    assert_same(module(input=x, hx=None), plain(input=x, hx=None))
    assert_same(module(x[:, ::2], None), plain(x[:, ::2], None))


@pytest.mark.parametrize("lengths", [[7, 5, 5, 1], [3, 7, 1, 6]], ids=str)
@pytest.mark.parametrize(("name", "options"), MODULES, ids=str)
def test_packed_sequences_are_torchs(name, options, lengths):
    module, plain = pair(name, **options)
    x = torch.randn(T, B, I)
    ordered = lengths == sorted(lengths, reverse=True)
    packed = packing.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=ordered)
    for start in (None, state(module, B)):
        got, want = module(packed, start), plain(packed, start)
        assert isinstance(got[0], packing.PackedSequence)
        assert_same(got, want)


def test_what_torch_refuses_is_refused_in_its_words():
    module, plain = pair("LSTM")
    x = torch.randn(T, B, I)
    wrong = [
        (torch.randn(T, B, I + 1),), (x.double(),), (torch.randn(I),), (x[:0],), (x, state(module, B + 1)),
        (x, state(module)), (x, (state(module, B)[0], state(module)[0])),
        (torch.randn(T, I), state(module, B)),
    ]  # fmt: skip
    for arguments in wrong:
        with pytest.raises((ValueError, RuntimeError)) as want:
            plain(*arguments)
        with pytest.raises(want.type) as got:
            module(*arguments)
        assert str(got.value) == str(want.value)


def test_an_empty_batch_is_torchs():
    module, plain = pair("GRU")
    try:
        want = plain(torch.randn(T, 0, I))
    except (ValueError, RuntimeError) as error:
        with pytest.raises(type(error)):
            module(torch.randn(T, 0, I))
    else:
        assert_same(module(torch.randn(T, 0, I)), want)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_dropout_in_training_is_torchs_to_the_mask(name, bidirectional, batch_first):
    options = {"num_layers": 3, "dropout": 0.5, "bidirectional": bidirectional, "batch_first": batch_first}
    module, plain = pair(name, **options)
    x = torch.randn(B, T, I) if batch_first else torch.randn(T, B, I)
    start = state(module, B)
    results = []
    for each in (module, plain):
        torch.manual_seed(3)
        results.append(each(x, start))
    assert_same(*results)
    assert absolute_error(module(x)[0].detach().numpy(), results[0][0].detach().numpy()) > 0.01
    module.eval(), plain.eval()
    assert_same(module(x, start), plain(x, start))
    module.train().dropout = 0.0  # it is looked at in each call
    assert_same(module(x, start), plain(x, start))


# --- training -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("name", "options"), MODULES, ids=str)
def test_gradients_are_torchs(name, options, packed):
    """To 1e-5 of the largest of each tensor."""
    module, plain = pair(name, **options)
    x = torch.randn(B, T, I) if module.batch_first else torch.randn(T, B, I)
    start = flat(state(module, B))
    found = []
    for each in (module, plain):
        given, first = x.clone().requires_grad_(), [s.clone().requires_grad_() for s in start]
        inputs = given
        if packed:
            inputs = packing.pack_padded_sequence(
                given, torch.tensor([3, T, 1, 6]), module.batch_first, enforce_sorted=False
            )
        y, end = each(inputs, tuple(first) if len(first) == 2 else first[0])
        y = y.data if packed else y
        loss = y.square().sum() + sum(s.sin().sum() for s in flat(end))
        found.append(torch.autograd.grad(loss, [given, *first, *each.parameters()]))
    for got, want in zip(*found, strict=True):
        assert (got - want).abs().max() < 1e-5 * want.abs().max()


def test_a_model_trains_as_its_twin_and_its_optimiser_goes_on():
    model = Tagger(num_layers=2, dropout=0.2)
    before = dict(model.named_parameters())
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    words = torch.randint(0, 20, (B, T))
    tags = words.T % 3
    twin = copy.deepcopy(model)
    other = torch.optim.Adam(twin.parameters(), lr=0.02)

    def step(model, optimiser, seed):
        torch.manual_seed(seed)
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(words).flatten(0, 1), tags.flatten())
        loss.backward()
        optimiser.step()
        return loss.item()

    losses = []
    for k in range(25):
        if k == 3:
            assert len(accelerate(model).replaced) == 3
        losses.append(step(model, optimiser, k))
        assert abs(losses[-1] - step(twin, other, k)) < 1e-5
    assert losses[-1] < 0.9 * losses[0]
    assert {name: id(p) for name, p in model.named_parameters()} == {n: id(p) for n, p in before.items()}
    model.eval(), twin.eval()
    assert absolute_error(model(words).detach().numpy(), twin(words).detach().numpy()) < 1e-4


def test_weights_that_change_are_seen_in_evaluation():
    module, plain = pair("GRU", num_layers=2)
    module.eval(), plain.eval()
    x = torch.randn(T, B, I)
    with torch.no_grad():
        for change in (
            lambda m: None,
            lambda m: m.weight_hh_l1.data.mul_(0.5),
            lambda m: m.bias_ih_l0.numpy().fill(0.25),
            lambda m: setattr(m, "weight_ih_l0", nn.Parameter(torch.full_like(m.weight_ih_l0, 0.01))),
            lambda m: m.load_state_dict({k: v.flip(0) for k, v in m.state_dict().items()}),
        ):
            change(module), change(plain)
            assert_same(module(x), plain(x))


def test_frozen_parameters_and_inputs_get_no_gradient():
    module, plain = pair("LSTM")
    for each in (module, plain):
        each.weight_hh_l0.requires_grad_(False)
        each(torch.ones(T, B, I))[0].sum().backward()
    assert module.weight_hh_l0.grad is None
    assert (module.weight_ih_l0.grad - plain.weight_ih_l0.grad).abs().max() < 1e-4


# --- it stays what it was -----------------------------------------------------------------------------------


def test_modules_parameters_and_names_stay():
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


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
def test_copies(way):
    module, plain = pair("LSTM", num_layers=2, dropout=0.5)
    if way == "deepcopy":
        other = copy.deepcopy(module)
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(module))
    else:
        file = io.BytesIO()
        torch.save(module, file)
        other = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
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
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    other.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    x = torch.randn(T, B, I)
    assert_same(module(x), other(x))
    served = lnrnn.from_torch(module, check=True)
    assert absolute_error(served(x.numpy())[0], plain(x)[0].detach().numpy()) < SINGLE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lnrnn.from_torch(module)  # a known class: nothing to check


def test_restore():
    model = Tagger(num_layers=2)
    twin = copy.deepcopy(model)
    report = accelerate(model)
    model.encoder["rnn"].engine = "torch"
    report.restore()
    report.restore()
    words = torch.randint(0, 20, (B, T))
    kinds = [type(m) for m in model.modules()]
    assert kinds == [type(m) for m in twin.modules()]
    own, others = ([set(vars(m)) for m in each.modules()] for each in (model, twin))
    assert own == others
    assert torch.equal(model(words), twin(words))
    assert len(accelerate(model).replaced) == 3


# --- which engine -------------------------------------------------------------------------------------------


def test_which_engine():
    module, plain = pair("LSTM")
    x = torch.randn(T, B, I)
    module.engine = "torch"
    assert module.engine == "torch" and torch.equal(module(x)[0], plain(x)[0])
    module.engine = None
    assert module.engine == "lnrnn"
    module.double(), plain.double()
    assert module.engine == "torch" and torch.equal(module(x.double())[0], plain(x.double())[0])
    module.engine = "lnrnn"
    with pytest.raises(ValueError, match="cannot serve this call: it has parameters of torch.float64"):
        module(x.double())
    module.float(), plain.float()
    assert_same(module(x), plain(x))
    with pytest.raises(ValueError, match="cannot serve this call: x must be of torch.float32"):
        module(x.double())
    with pytest.raises((ValueError, TypeError), match="engine must be one of"):
        module.engine = "c"


def test_other_dtypes_are_replaced_and_wait():
    module = nn.GRU(I, H).double()
    (entry,) = accelerate(module).replaced
    assert entry[0] == "" and "by torch.nn's forward: its parameters are torch.float64 on cpu" in entry[1]
    assert module(torch.randn(T, B, I).double())[0].dtype == torch.float64
    assert module.float().engine == "lnrnn"


def test_autocast_is_torchs():
    module, plain = pair("LSTM")
    x = torch.randn(T, B, I)
    with torch.autocast("cpu", torch.bfloat16):
        got, want = module(x)[0], plain(x)[0]
    assert got.dtype == want.dtype and torch.equal(got, want)


def test_torch_func():
    module, plain = pair("GRU")
    x = torch.randn(T, B, I)

    def of(each, x):
        return each(x)[0].square().sum()

    for transform in (torch.func.grad, torch.func.jacrev):
        got, want = (transform(lambda x, e=each: of(e, x))(x) for each in (module, plain))
        assert (got - want).abs().max() < 1e-4
    zeros = {name: torch.zeros_like(p) for name, p in plain.named_parameters()}
    assert_same(
        torch.func.functional_call(module, zeros, (x,)), torch.func.functional_call(plain, zeros, (x,))
    )


@pytest.mark.filterwarnings("ignore")
def test_traces_are_torchs():
    module, plain = pair("LSTM")
    x = torch.randn(T, B, I)
    with torch.no_grad():
        traced = torch.jit.trace(module, x)
        assert "lnrnn::" not in str(traced.graph)
        assert_same(traced(x * 2), plain(x * 2))


@pytest.mark.parametrize("inside", [False, True])
def test_compiled(inside):
    import torch._dynamo

    torch._dynamo.reset()
    model = Tagger(num_layers=2)
    twin = copy.deepcopy(model)
    accelerate(model)
    with torch._dynamo.config.patch(allow_rnn=inside):
        run = torch.compile(model, backend="aot_eager", fullgraph=inside)
        for k in (3, 5):
            words = torch.randint(0, 20, (B, k))
            assert absolute_error(run(words).detach().numpy(), twin(words).detach().numpy()) < SINGLE
        run(words).sum().backward()
    twin(words).sum().backward()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert (p.grad - q.grad).abs().max() <= 1e-5 * q.grad.abs().max()


# --- what is left -------------------------------------------------------------------------------------------


class Own(nn.LSTM):
    def forward(self, x, hx=None):
        return super().forward(-x, hx)


def hooked(kind):
    module = nn.LSTM(I, H)
    {"forward hooks": module.register_forward_hook, "forward pre hooks": module.register_forward_pre_hook,
     "backward hooks": module.register_full_backward_hook,
     "backward pre hooks": module.register_full_backward_pre_hook}[kind](lambda *_: None)  # fmt: skip
    return module


def with_forward():
    module = nn.GRU(I, H)
    module.forward = lambda x: (x, x)
    return module


def without_a_parameter():
    module = nn.GRU(I, H)
    del module._parameters["weight_hh_l0"]
    module.weight_hh_l0 = torch.zeros(3 * H, H)
    return module


LEFT = {
    "parametrizations, of weight_hh_l0": lambda: parametrizations.weight_norm(nn.LSTM(I, H), "weight_hh_l0"),
    "its class Own is derived from torch.nn.LSTM": lambda: Own(I, H),
    "a projection (proj_size=3)": lambda: nn.LSTM(I, H, proj_size=3),
    "a forward of its own": with_forward,
    "weights that are no parameters: weight_hh_l0": without_a_parameter,
    "lnrnn computes it already": lambda: lnrnn.torch.LSTM(I, H),
    "one step at a time": lambda: nn.LSTMCell(I, H),
    "it is scripted": lambda: torch.jit.script(nn.LSTM(I, H)),
    **{f"it has {kind}": lambda kind=kind: hooked(kind)
       for kind in ("forward hooks", "forward pre hooks", "backward hooks", "backward pre hooks")},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("why", LEFT)
def test_what_is_left_is_named(why):
    part = LEFT[why]()
    model = nn.ModuleDict({"part": part, "other": nn.GRU(I, H)})
    kind = type(part)
    report = accelerate(model)
    assert type(model["part"]) is kind
    assert [name for name, _ in report.replaced] == ["other"]
    ((name, said),) = report.left
    assert name == "part" and why in said
    assert str(report) == repr(report) and f"left part: {said}" in str(report)


@pytest.mark.filterwarnings("ignore")
def test_quantised_modules_are_left():
    try:
        model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.LSTM(I, H)), {nn.LSTM})
    except (AttributeError, RuntimeError) as error:
        pytest.skip(f"torch cannot quantise here: {error}")
    report = accelerate(model)
    assert not report.replaced
    assert report.left == [("0", "it is quantised (torch.ao.nn.quantized.dynamic.modules.rnn.LSTM)")]


def test_accelerated_twice():
    model = Tagger()
    accelerate(model)
    report = accelerate(model)
    assert not report.replaced and {why for _, why in report.left} == {"lnrnn computes it already"}


def test_shared_modules():
    rnn, cell = nn.GRU(H, H), nn.GRUCell(H, H)
    model = nn.ModuleDict({"a": rnn, "b": nn.ModuleList([rnn]), "c": cell, "d": cell})
    report = accelerate(model)
    assert [name for name, _ in report.replaced] == ["a", "b.0"]
    assert report.replaced[1][1] == "the same module as a"
    assert [name for name, _ in report.left] == ["c", "d"]
    report.restore()
    assert type(rnn) is nn.GRU


def test_the_report():
    report = accelerate(Tagger(num_layers=2))
    assert [name for name, _ in report.replaced] == ["encoder.rnn", "stack.0", "stack.1"]
    assert not report.left
    assert str(report).splitlines() == [
        "replaced 3, left 0",
        "  replaced encoder.rnn: AcceleratedLSTM(5, 12, num_layers=2, batch_first=True)",
        "  replaced stack.0: AcceleratedGRU(12, 12)",
        "  replaced stack.1: AcceleratedRNN(12, 12)",
    ]
    assert "the model: AcceleratedGRU" in str(accelerate(nn.GRU(I, H)))
    assert str(accelerate(nn.Linear(2, 3))) == "replaced 0, left 0"


def test_bad_models():
    for bad in (None, {}, nn.LSTM, "model"):
        with pytest.raises(TypeError, match="model must be a torch.nn.Module, got"):
            accelerate(bad)


# --- check --------------------------------------------------------------------------------------------------


class Named(nn.Module):
    """Takes and gives several things, and has a buffer that changes."""

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


def test_check_takes_what_a_call_takes():
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


def test_bad_checks():
    model = nn.Sequential(nn.GRU(I, H))
    for bad in (1, "x", [torch.randn(T, B, I)], True):
        with pytest.raises(TypeError, match="check must be None, a tensor, a tuple"):
            accelerate(model, check=bad)
    with pytest.raises(RuntimeError, match="input.size"):
        accelerate(model, check=torch.randn(T, B, I + 1))
    assert type(model[0]) is nn.GRU
    with pytest.raises(ValueError, match="check is for a model that returns tensors"):
        accelerate(WithoutOutput(), check=torch.randn(T, B, I))


class WithoutOutput(nn.Module):
    def forward(self, x):
        return None


class LooksAtTheClass(nn.Module):
    """Computes something else where its network is not exactly torch.nn's: only its outputs say so."""

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
        (lambda y: y[:1], "were of shapes .* and are of"),
        (lambda y: y.masked_fill(y > y.mean(), torch.nan), "are NaN or infinite in other places"),
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


def test_differences_of_rounding_pass():
    for seed in range(10):
        torch.manual_seed(seed)
        model = LooksAtTheClass(lambda y: y * (1 + 2**-23))
        accelerate(model, check=torch.randn(50, B, I))


def test_an_input_that_says_nothing():
    model = nn.Sequential(nn.LSTM(I, H))
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    with pytest.raises(ValueError, match="could not be checked, and is restored: rounding alone"):
        accelerate(model, check=torch.randn(T, B, I))
    assert type(model[0]) is nn.LSTM
