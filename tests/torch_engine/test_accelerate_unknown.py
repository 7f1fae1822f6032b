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


class Decoder(nn.Module):
    """Its methods take a state, but only for its cell."""

    def __init__(self):
        super().__init__()
        self.step, self.out = nn.GRUCell(I, H), nn.Linear(H, 3)

    def forward(self, x, hidden):
        hidden = self.step(x, hidden)
        return self.out(hidden), hidden


def test_a_module_that_passes_the_state_to_its_cell_is_not_listed():
    report = accelerate(nn.Sequential(Decoder()))
    assert [name for name, _ in report.replaced] == ["0.step"] and not report.left


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


class Gates(nn.Module):
    """A cell with a Linear for x and one for h."""

    def __init__(self, gates, **parts):
        super().__init__()
        self.gates = gates
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x, y):
        i, f, g, o = (self.one(x) + self.two(y)).chunk(self.gates, 1)
        return f.sigmoid() * y + i.sigmoid() * g.tanh() * o.sigmoid()


def test_linear_parts_with_the_shapes_of_a_cell_are_listed():
    left = listed(nn.Sequential(Gates(4, one=nn.Linear(I, 4 * H), two=nn.Linear(H, 4 * H, bias=False))))
    assert list(left) == ["0"] and "its parameters one.weight and two.weight have the shapes of" in left["0"]
    assert not listed(Gates(4, one=nn.Linear(I, 3), two=nn.Linear(H, 4 * H)))
    assert not listed(Gates(4, one=nn.Linear(H, 4 * H), two=nn.Linear(H, 4 * H), three=nn.Linear(4 * H, H)))
    assert not listed(named("Sums", nn.Linear(I, 4 * H), nn.Linear(H, 4 * H)))  # it has no gates


# --- by its methods -----------------------------------------------------------------------------------------


class Unit(nn.Module):
    """The GRU of DreamerV2 and sheeprl: one Linear for h and x. The class and its parameters show nothing."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(I + H, 3 * H)

    def forward(self, x, h):
        r, n, u = self.inner(torch.cat([h, x], 1)).chunk(3, 1)
        return torch.lerp(h, torch.tanh(r.sigmoid() * n), u.sigmoid())


class Pool(nn.Module):
    """The layer of speechbrain's QuasiRNN: no matrix multiplies h."""

    def __init__(self):
        super().__init__()
        self.w, self.z_gate, self.f_gate, self.o_gate = (
            nn.Linear(I, 3 * H),
            nn.Tanh(),
            nn.Sigmoid(),
            nn.Sigmoid(),
        )

    def forget_mult(self, f, x, hidden):
        result, h = [], hidden
        for f_t, x_t in zip(f, f * x, strict=True):
            h = x_t if h is None else x_t + (1 - f_t) * h
            result.append(h)
        return torch.stack(result)

    def forward(self, x, hidden=None):
        z, f, o = self.w(x).chunk(3, -1)
        c = self.forget_mult(self.f_gate(f), self.z_gate(z), hidden)
        return self.o_gate(o) * c, c[-1]


class Heads(nn.Module):
    """The cell of xlstm's sLSTM: W x is its input, and R has a block for each head."""

    def __init__(self, heads=2):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(heads, H // heads, 4, H // heads))
        self.offset = nn.Parameter(torch.zeros(heads, 4, H // heads))

    def forward(self, input, state=None):
        heads, width = self.offset.shape[0], self.offset.shape[2]
        h = c = n = input.new_zeros(input.shape[1], heads, width)
        m, result = n - torch.inf, []
        for x_t in input:
            raw = x_t.view(-1, heads, 4, width) + torch.einsum("bhk,hkgl->bhgl", h, self.kernel) + self.offset
            i, f, z, o = raw.unbind(2)
            log_f = nn.functional.logsigmoid(f) + m
            m = torch.maximum(i, log_f)
            c, n = ((log_f - m).exp() * old + (i - m).exp() * new for old, new in ((c, z.tanh()), (n, 1)))
            h = o.sigmoid() * c / n
            result.append(h.flatten(1))
        return torch.stack(result), (h, c, n, m)


class Conditioned(Unit):
    """A method other than forward takes the state."""

    def forward(self, x):
        return [self.step(x_t, x_t.new_zeros(len(x_t), H)) for x_t in x]

    def step(self, x_t, hx):
        return super().forward(x_t, hx)


class Inside(nn.Module):
    """The loop is inside of forward, and nothing is an argument."""

    def __init__(self):
        super().__init__()
        self.both = nn.Linear(I + H, 4 * H)

    def forward(self, x):
        y = c = x.new_zeros(x.shape[1], H)
        t = 0
        while t < len(x):
            i, f, g, o = torch.split(self.both(torch.cat([x[t], y], 1)), H, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * g
            y = torch.sigmoid(o) * c
            t += 1
        return y


class Elman(nn.Module):
    """A loop with tanh alone, as in a tutorial."""

    def __init__(self):
        super().__init__()
        self.both = nn.Linear(I + H, H)

    def forward(self, x):
        y = x.new_zeros(x.shape[1], H)
        for x_t in x:
            y = torch.tanh(self.both(torch.cat([x_t, y], 1)))
        return y


@pytest.mark.parametrize(
    ("part", "said", "x"),
    [
        (Unit(), "it takes a state, h, and has a matrix, inner.weight: lnrnn.from_torch", (B, I)),
        (Pool(), "it takes a state, hidden, and has a matrix, w.weight: ", (T, B, I)),
        (Heads(), "it takes a state, state, and has a matrix, kernel: ", (T, B, 4 * H)),
        (Conditioned(), "it takes a state, hx, and has a matrix, inner.weight: ", (T, B, I)),
        (
            Inside(),
            "it has a loop with gates, and both.weight may be W_ih and W_hh side by side: ",
            (T, B, I),
        ),
        (Elman(), "it has a loop with gates, and both.weight may be W_ih and W_hh side by side: ", (T, B, I)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_methods_of_recurrent_classes_are_listed(part, said, x):
    state = (torch.zeros(B, H),) if isinstance(part, Unit) and not isinstance(part, Conditioned) else ()
    part(torch.randn(x), *state)  # it runs
    model = nn.ModuleDict({"other": nn.Linear(I, H), "part": part})
    left = listed(model)
    assert list(left) == ["part"] and said in left["part"]
    for name in ("QuasiRNNLayer", "sLSTMCell", "Recurrent"):  # a name says more
        renamed = type(name, (type(part),), {})()
        assert f"its class {name}: " in listed(nn.Sequential(renamed))["0"]


class Condition(nn.Module):
    def __init__(self, part=None):
        super().__init__()
        self.fc = nn.Linear(I, H) if part is None else part

    def forward(self, x, condition):
        return self.fc(x) * condition.sigmoid()


class Head(nn.Module):
    """Its only input is the state of another module."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(H, 3)

    def forward(self, h):
        return self.out(h)


class Attends(nn.Module):
    """Bahdanau's attention, which gets the state of another module."""

    def __init__(self):
        super().__init__()
        self.w, self.u, self.v = nn.Linear(H, H), nn.Linear(H, H), nn.Linear(H, 1)

    def forward(self, memory, hidden):
        return torch.softmax(self.v(torch.tanh(self.w(memory) + self.u(hidden))), 0)


class Streamed(nn.Conv1d):
    def forward(self, x, state=None):
        return super().forward(x if state is None else torch.cat([state, x], 2)), x[..., -2:]


class Skips(nn.Module):
    """A loop with concatenations, but without gates."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.ModuleList([nn.Linear(H, H), nn.Linear(I + H, H)]), nn.Linear(H, 4)

    def forward(self, x):
        y = x
        for layer in self.inner:
            y = torch.relu(layer(y))
            y = torch.cat([x, y], -1)
        return torch.sigmoid(self.out(y))


@pytest.mark.parametrize(
    "part",
    [Condition(), Head(), Attends(), Streamed(I, H, 3), Skips(), named("Holder", nn.Sequential(Condition()))],
    ids=lambda part: type(part).__name__,
)
def test_methods_of_other_classes_are_not_listed(part):
    assert not listed(nn.Sequential(part))


# --- by calls -----------------------------------------------------------------------------------------------


class OneLinear(nn.Module):
    """A loop over time in the model's forward, with one matrix for x and h."""

    def __init__(self):
        super().__init__()
        self.both, self.head = nn.Linear(I + H, H), nn.Linear(H, 3)

    def forward(self, x):
        h, ys = x.new_zeros(x.shape[1], H), []
        for x_t in x:
            h = torch.relu(self.both(torch.cat([x_t, h], 1)))
            ys.append(self.head(h))
        return torch.stack(ys)


def lstm(gates, c):
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return (o.sigmoid() * c.tanh()).detach(), c


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
            h, c = lstm(self.norm(self.x2g(x_t) + self.h2g(self.drop(h))), c)
            result[t] = self.head(h)
            x_t = result[t]
        return result


class Memory(nn.Module):
    """As Unit, but neither names nor methods show that it is recurrent."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(I + H, 3 * H)

    def forward(self, x, given):
        r, n, u = self.inner(torch.cat([given["h"], x], 1)).chunk(3, 1)
        return {"h": torch.lerp(given["h"], torch.tanh(r.sigmoid() * n), u.sigmoid())}


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
        (lambda: Greedy(Memory()), torch.tensor([1, 2]), "unit", T),
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
    class UnitGRU(Memory):
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
        self.unit, self.attention = Memory(), Attention()

    def forward(self, memory):
        state, before = {"h": memory.new_zeros(len(memory), H)}, memory.new_zeros(memory.shape[:2])
        for _ in range(T):
            weights = self.attention(state["h"], before)
            before = before + weights
            state = self.unit((weights[..., None] * memory).sum(1), state)
        return state["h"]


def test_attention_that_gets_its_own_weights_is_not_listed():
    assert list(listed(AttentionDecoder(), torch.randn(B, 7, I))) == ["unit"]
