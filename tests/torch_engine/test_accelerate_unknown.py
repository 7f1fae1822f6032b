"""The report of lnrnn.torch.accelerate names recurrent modules of unknown classes, and no others."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from lnrnn.torch import accelerate  # noqa: E402

torch.set_num_threads(1)  # small operations take longer on several threads

T, B, I, H = 6, 2, 5, 8  # noqa: E741 - the letters of the shapes in the documentation


def listed(model, check=None):
    """Returns {name: reason} for all modules that are left. None must be replaced."""
    report = accelerate(model, check)
    assert not report.replaced
    return dict(report.left)


# --- by name ------------------------------------------------------------------------------------------------


def named(name, *parts, **attributes):
    """Returns a module of a class with this name."""
    module = type(name, (nn.Sequential,), attributes)(*parts)
    return module


@pytest.mark.parametrize(
    "name",
    ["QuasiRNN", "QRNNLayer", "SRNN_cell", "sLSTM", "sLSTMBlock", "LayerNormGruCell", "conv_lstm_2d", "AUGRU",
     "RecurrentMemory", "GatedCell", "Cell", "MemoryCellLayer", "cell", "my_cell_2", "BasicCells"],
)  # fmt: skip
def test_names_of_recurrent_classes_are_listed(name):
    part = named(name, nn.Linear(I, 2 * H))
    ((path, why),) = listed(nn.ModuleDict({"part": part})).items()
    assert path == "part" and f"does not know its class {name}: lnrnn.from_torch(module) may" in why
    assert listed(part)[""] == why


@pytest.mark.parametrize(
    "name",
    ["CellularAutomaton", "CellViT", "Cellpose", "Congruent", "LearntLoss", "Grunt", "Subcellular",
     "Turned"],
)  # fmt: skip
def test_other_names_are_not_listed(name):
    assert not listed(named(name, nn.Linear(I, 2 * H)))


def test_names_of_modules_without_matrices_are_not_listed():
    assert not listed(named("RNNTLoss"))
    assert not listed(named("GRUNorm", nn.LayerNorm(H)))
    assert not listed(named("NormalCell", nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2)))  # of NASNet
    assert list(listed(named("ConvLSTMCell", nn.Conv2d(2, 8, 3)))) == [""]
    assert list(listed(named("LazyGRUUnit", nn.LazyLinear(8)))) == [""]


def test_the_inner_module_is_listed_instead_of_the_outer():
    inner = named("LiGRU_Layer", nn.Linear(I, H))
    assert list(listed(named("RNNEncoder", nn.Sequential(inner)))) == ["0.0"]
    report = accelerate(named("AttentionalRNNDecoder", nn.Linear(I, H), nn.LSTMCell(I, H)))
    assert [name for name, _ in report.replaced + report.left] == ["1"]
    report = accelerate(named("GRUTagger", nn.Embedding(9, I), nn.GRU(I, H)))
    assert [name for name, _ in report.replaced] == ["1"] and not report.left


# --- by the shapes of parameters ----------------------------------------------------------------------------


class Raw(nn.Module):
    def __init__(self, **shapes):
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))


@pytest.mark.parametrize(
    ("shapes", "names"),
    [
        ({"W": (4 * H, I), "R": (4 * H, H), "b": (4 * H,)}, "W and R"),
        ({"kernel": (I, 3 * H), "recurrent_kernel": (H, 3 * H)}, "kernel and recurrent_kernel"),
        ({"a": (2 * H, H), "b": (2 * H, H)}, "b and a"),
        ({"weight_xh": (H, I), "weight_hh": (H, H)}, "weight_xh and weight_hh"),
        ({"w_i": (4 * H, I), "w_h": (4 * H, H), "out": (3, H)}, "w_i and w_h"),
    ],
)
def test_parameters_with_the_shapes_of_a_cell_are_listed(shapes, names):
    left = listed(nn.ModuleDict({"part": Raw(**shapes), "other": nn.Linear(H, 4 * H)}))
    assert list(left) == ["part"]
    assert f"parameters {names} have the shapes of a cell's W_ih and W_hh: " in left["part"]


@pytest.mark.parametrize(
    "shapes",
    [
        {"gate": (4 * H, H), "up": (4 * H, H), "down": (H, 4 * H)},  # a gated feed-forward layer
        {"query": (H, H), "key": (H, I), "value": (H, I)},  # attention
        {"in_proj": (3 * H, H), "out_proj": (H, H)},
        {"weight_hh": (H, H)},
        {"weight_hh": (4 * H, H), "bias": (4 * H,)},
        {},
    ],
)
def test_other_parameters_are_not_listed(shapes):
    assert not listed(Raw(**shapes))


# --- by calls -----------------------------------------------------------------------------------------------


class OneLinear(nn.Module):
    """A loop over time in the model's forward, with one matrix for x and h."""

    def __init__(self):
        super().__init__()
        self.both, self.head = nn.Linear(I + H, H), nn.Linear(H, 3)

    def forward(self, x):
        h, ys = x.new_zeros(x.shape[1], H), []
        for x_t in x:
            h = torch.tanh(self.both(torch.cat([x_t, h], 1)))
            ys.append(self.head(h))
        return torch.stack(ys)


class Generator(nn.Module):
    """An LSTM with norms whose output is its next input, and whose results are written into one tensor."""

    def __init__(self):
        super().__init__()
        self.x2g, self.h2g, self.norm = nn.Linear(I, 4 * H), nn.Linear(H, 4 * H), nn.LayerNorm(4 * H)
        self.head, self.drop = nn.Linear(H, I), nn.Dropout(0.5)

    def forward(self, x_t):
        h = c = x_t.new_zeros(len(x_t), H)
        result = x_t.new_zeros(T, len(x_t), I)
        for t in range(T):
            i, f, g, o = self.norm(self.x2g(x_t) + self.h2g(self.drop(h))).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = (o.sigmoid() * c.tanh()).detach()
            result[t] = self.head(h)
            x_t = result[t]
        return result


class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(I + H, 3 * H)

    def forward(self, x, state):
        r, n, u = self.inner(torch.cat([state["h"], x], 1)).chunk(3, 1)
        return {"h": torch.lerp(state["h"], torch.tanh(r.sigmoid() * n), u.sigmoid())}


class Greedy(nn.Module):
    """A decoder that chooses words: the head's output returns as a number of a word."""

    def __init__(self, unit):
        super().__init__()
        self.words, self.unit, self.head = nn.Embedding(9, I), unit, nn.Linear(H, 9)

    def forward(self, word):
        state, scores = {"h": torch.zeros(len(word), H)}, []
        for _ in range(T):
            state = self.unit(self.words(word), state)
            scores.append(self.head(state["h"]))
            word = scores[-1].argmax(1)
        return torch.stack(scores)


X = torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    ("model", "check", "name", "calls"),
    [
        (OneLinear, torch.randn(T, B, I, generator=X), "both", T),
        (Generator, torch.randn(B, I, generator=X), "h2g", T),
        (lambda: Greedy(Unit()), torch.tensor([1, 2]), "unit", T),
    ],
)
def test_modules_that_get_their_own_output_are_listed(model, check, name, calls):
    model = model()
    assert not listed(model)
    left = listed(model, check)
    assert list(left) == [name]
    assert f"it is called {calls} times, each time with its own last output" in left[name]
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


class Shared(nn.Module):
    """A shared layer, as in ALBERT, with a head for each depth."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(H, 2, 16, batch_first=True)
        self.depths, self.head = nn.Embedding(3, H), nn.Linear(H, H)

    def forward(self, x):
        ys = []
        for depth in range(3):
            x = self.layer(x + self.depths.weight[depth])
            ys.append(self.head(x))
        return sum(ys)


class Windows(nn.Module):
    """An encoder that is called on each part of the input, and an integrator with constant input."""

    def __init__(self):
        super().__init__()
        self.encoder, self.slope = nn.Sequential(nn.Linear(I, H), nn.ReLU(), nn.Linear(H, H)), nn.Linear(H, H)

    def forward(self, x):
        y = sum(self.encoder(x_t) for x_t in x)
        for t in range(4):
            y = y + 0.1 * self.slope(y) * torch.tensor(t)
        return y


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.again = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(3, 4)

    def forward(self, x):
        y = self.first(x)
        for _ in range(3):
            y = y + F.relu(self.again(y))
        return self.head(y.mean((2, 3)))


@pytest.mark.parametrize(
    ("model", "check"),
    [
        (Shared(), torch.randn(B, T, H)),
        (Windows(), torch.randn(T, B, I)),
        (Convolutions(), torch.randn(B, 1, 6, 6)),
        (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(H, 2, 16, batch_first=True), 2),
            torch.randn(B, T, H),
        ),
        (nn.Transformer(H, 2, 1, 1, 16, batch_first=True), (torch.randn(T, B, H), torch.randn(T, B, H))),
    ],
)
def test_models_without_recurrence_are_not_listed(model, check):
    assert not listed(model, check)


def test_modules_within_a_listed_module_are_not_listed_again():
    class UnitGRU(Unit):
        pass

    assert list(listed(Greedy(UnitGRU()), torch.tensor([1, 2]))) == ["unit"]
    cell = type("Cells", (nn.Module,), {"forward": lambda self, x, s: {"h": self.cell(x, s["h"])}})()
    cell.cell = nn.GRUCell(I, H)
    model = Greedy(cell)
    report = accelerate(model, torch.tensor([1, 2]))
    ((name, _),) = report.left + report.replaced
    assert name in ("unit", "unit.cell")


def test_the_run_that_watches_calls_changes_nothing():
    model = Generator().train()
    number, before = torch.get_rng_state(), {name: p.clone() for name, p in model.named_parameters()}
    accelerate(model, torch.randn(B, I, generator=X))
    assert model.training and model.drop.training and torch.equal(torch.get_rng_state(), number)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


class Attention(nn.Module):
    """Attention that depends on the sum of all weights before, as in Tacotron 2."""

    def __init__(self):
        super().__init__()
        self.query, self.place, self.energy = nn.Linear(H, 10), nn.Linear(1, 10), nn.Linear(10, 1)

    def forward(self, h, before):
        hidden = torch.tanh(self.query(h)[:, None] + self.place(before[..., None]))
        return torch.softmax(self.energy(hidden)[..., 0], 1)


class AttentionDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.unit, self.attention = Unit(), Attention()

    def forward(self, memory):
        state, before = {"h": memory.new_zeros(len(memory), H)}, memory.new_zeros(memory.shape[:2])
        for _ in range(T):
            weights = self.attention(state["h"], before)
            before = before + weights
            state = self.unit((weights[..., None] * memory).sum(1), state)
        return state["h"]


def test_attention_that_gets_its_own_weights_is_not_listed():
    assert list(listed(AttentionDecoder(), torch.randn(B, 7, I))) == ["unit"]
