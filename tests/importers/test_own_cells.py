"""from_torch of cells that people wrote for themselves: their equation is found by running them."""

from __future__ import annotations

import copy
import warnings
from itertools import permutations

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import own_cells  # noqa: E402
from own_cells import FIRST, PER_GATE, REFUSED, SECOND, TwoLinears  # noqa: E402

torch.set_num_threads(1)

NOTED = "names of no known cell and was run to find its equation: it is lnrnn"
# Over 30 steps, float32 against the module in float64. Measured over 5 draws of every module: at most 9e-6.
CLOSE = 3e-5
TAKEN = FIRST | SECOND | PER_GATE
STEPS_OF_H = own_cells.LayerNormGRUCell, own_cells.PartsOfAGRU, own_cells.PaperGRU, own_cells.NormPerGateGRU
STEPS_OF_H_AND_C = TwoLinears, own_cells.GainsLessOne, own_cells.NormPerGate, own_cells.NormPerGateAndCell


@pytest.fixture(autouse=True)
def the_same_numbers_every_time():
    torch.manual_seed(0)


def drawn(module):
    """The module with parameters at random, gains and biases too, as after training."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return module.eval()


def taken(module, **options):
    with pytest.warns(UserWarning, match=NOTED):
        return lnrnn.from_torch(module, **options)


def outputs(module, model, x):
    """y (T, B, ...) of the module itself in float64, for x (T, B, D)."""
    module = copy.deepcopy(module).double()
    x, zeros = torch.tensor(x, dtype=torch.float64), torch.zeros(x.shape[1], model.hidden_size).double()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            return _outputs(module, model, x, zeros).numpy()
    finally:
        torch.set_default_dtype(torch.float32)


def _outputs(module, model, x, zeros):
    if isinstance(module, (own_cells.StateFirst, own_cells.ElmanStateFirst)):
        first = isinstance(module, own_cells.StateFirst)  # which returns a pair
        step, state = (lambda x, h: module(h, x)[0] if first else module(h, x)), zeros
    elif isinstance(module, STEPS_OF_H):
        step, state = module, zeros
    elif isinstance(module, (own_cells.MatmulParameters, own_cells.EinsumCell)):
        step, state = (lambda x, s: module(x, *s)), (zeros, zeros)
    elif isinstance(module, (own_cells.PerGateLinears, own_cells.WithoutGains)):
        step, state = (lambda x, s: module(x, s)[1]), (zeros, zeros)
    elif isinstance(module, STEPS_OF_H_AND_C):
        step, state = module, (zeros, zeros)
    else:
        y = module(x.transpose(0, 1) if model.batch_first else x)
        y = next(iter(y.values())) if isinstance(y, dict) else y[0] if isinstance(y, tuple) else y
        return y.transpose(0, 1) if model.batch_first else y
    ys = []
    for x_t in x:
        state = step(x_t, state)
        ys.append(state[0] if isinstance(state, tuple) else state)
    return torch.stack(ys)


def assert_taken(module, D, **options):
    model = taken(module, **options)
    x = np.random.default_rng(1).standard_normal((30, 3, D)).astype(np.float32)
    y, _ = model(x.swapaxes(0, 1) if model.batch_first else x)
    y = y.swapaxes(0, 1) if model.batch_first else y
    assert absolute_error(y, outputs(module, model, x)) < CLOSE
    return model


@pytest.mark.parametrize(("name", "D"), [*((n, 8) for n in TAKEN), *((n, D) for n in FIRST for D in (5, 1))])
def test_what_people_write_is_taken(name, D):
    make, cell = TAKEN[name]
    model = assert_taken(drawn(make(D, 8)), D)
    assert type(model).__name__ == cell and (model.input_size, model.hidden_size) == (D, 8)


@pytest.mark.parametrize("name", REFUSED)
def test_other_equations_are_refused_with_the_nearest(name):
    with pytest.raises(
        ValueError, match=r"of no known cell.*not found by running it.*By hand: model = lnrnn\."
    ):
        lnrnn.from_torch(REFUSED[name](5, 8))


@pytest.mark.parametrize("name", ["peephole", "std + eps", "clipped", "noisy"])
def test_of_what_is_far_off_no_spec_is_recommended(name):
    with pytest.raises(
        ValueError, match=r"may not have this equation: peepholes.*nearest is lnrnn\.LSTM"
    ) as e:
        lnrnn.from_torch(REFUSED[name](5, 8))
    assert "By hand: model = lnrnn.LSTM(input_size, hidden_size, norm=...);" in str(e.value)


def test_of_what_is_near_the_spec_is_recommended():
    module = TwoLinears(5, 8)
    module.ln_c.eps = 3e-5  # lnrnn's norms have one eps
    spec = r"LayerNormSpec\(placement='split', cell='out', eps=[\d.e-]{3,7}, "
    with pytest.raises(ValueError, match=rf"nearest is.*\de-\d\d off.*By hand: .*norm={spec}") as e:
        lnrnn.from_torch(module)
    assert "may not have" not in str(e.value)


def test_a_bias_without_a_place_is_named():
    with pytest.raises(ValueError, match=r"no cell of lnrnn with norms at .* has a place for gates\.bias\."):
        lnrnn.from_torch(REFUSED["reset before"](5, 8))


class AnyOrder(nn.Module):
    """An LSTM or GRU with one norm over all gates, which lie in the order that is given."""

    def __init__(self, order, H=6, D=4):
        super().__init__()
        self.order, self.lin, self.ln = order, nn.Linear(D + H, len(order) * H), nn.LayerNorm(len(order) * H)

    def forward(self, x, *state):
        h = state[0]
        a = dict(
            zip(self.order, self.ln(self.lin(torch.cat([h, x], 1))).chunk(len(self.order), 1), strict=True)
        )
        if len(state) == 2:
            c = a["f"].sigmoid() * state[1] + a["i"].sigmoid() * a["g"].tanh()
            return a["o"].sigmoid() * c.tanh(), c
        n = torch.tanh(a["r"].sigmoid() * a["n"])
        return a["z"].sigmoid() * (h - n) + n


@pytest.mark.parametrize("order", [*permutations("ifgo"), *permutations("rzn")], ids="".join)
def test_every_order_of_gates_is_found(order):
    module = drawn(AnyOrder(order))
    theirs = module.lin.weight.detach().numpy()
    at = np.argsort([("ifgo" if len(order) == 4 else "rzn").index(gate) for gate in order])
    ours = np.concatenate([np.split(theirs, len(order))[k] for k in at])
    model = taken(module)
    np.testing.assert_array_equal(model.weight_hh_l0, ours[:, :6])
    np.testing.assert_array_equal(model.weight_ih_l0, ours[:, 6:])


@pytest.mark.parametrize("first", ["x", "h"])
def test_columns_of_x_and_h_are_not_confused_where_there_are_as_many(first):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.ln = nn.Linear(16, 24, bias=False), nn.LayerNorm(24)

        def forward(self, x, h):
            r, n, u = self.ln(self.w(torch.cat([x, h] if first == "x" else [h, x], 1))).chunk(3, 1)
            u = torch.sigmoid(u - 1)
            return u * torch.tanh(torch.sigmoid(r) * n) + (1 - u) * h

    module = drawn(Cell())
    model, w = taken(module), module.w.weight.detach().numpy()
    ours = np.concatenate([w[:8], w[16:], w[8:16]])
    np.testing.assert_array_equal(model.weight_ih_l0, ours[:, :8] if first == "x" else ours[:, 8:])
    np.testing.assert_array_equal(model.weight_hh_l0, ours[:, 8:] if first == "x" else ours[:, :8])


class TwoLayersBothWays(nn.Module):
    """Cells by direction, not by layer: of as many inputs as outputs of a layer, shapes do not say it."""

    def __init__(self):
        super().__init__()
        self.there = nn.ModuleList([own_cells.MatmulParameters(16, 8) for _ in range(2)])
        self.back = nn.ModuleList([own_cells.MatmulParameters(16, 8) for _ in range(2)])

    def forward(self, x):
        run = own_cells.BothWays.run
        self.h = 8
        for there, back in zip(self.there, self.back, strict=True):
            steps = list(x)
            both = run(self, there, steps), run(self, back, steps[::-1])[::-1]
            x = torch.cat([torch.stack(ys) for ys in both], -1)
        return x


def test_layers_and_directions_are_told_apart_by_running_them():
    for check in (None, False):
        model = assert_taken(drawn(TwoLayersBothWays()), 16, check=check)
        assert model.num_layers == 2 and model.bidirectional


def test_a_part_that_can_be_taken_is_named():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = own_cells.ElmanNet(5, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.rnn(x)[0])

    with pytest.raises(ValueError, match=r"what a part of it computes was found: give model\.rnn"):
        lnrnn.from_torch(Model())


def test_without_gradients_the_search_says_so():
    class Cell(TwoLinears):
        @torch.no_grad()
        def forward(self, x, state):
            return super().forward(x, state)

    with pytest.raises(ValueError, match="gives no gradients, and the search needs them"):
        lnrnn.from_torch(Cell(5, 8))


def test_the_spec_that_was_found_can_be_given():
    module = drawn(TwoLinears(5, 8))
    spec = taken(module).norm
    assert spec == lnrnn.LayerNormSpec("split", "out")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lnrnn.from_torch(module, norm=spec).norm == spec
    with pytest.raises(ValueError, match=r"with this norm=.*the nearest is .*cell='carry'"):
        lnrnn.from_torch(module, norm=lnrnn.LayerNormSpec("split", "carry"))
    assert taken(module, norm="layer", check=True).norm == spec


@pytest.mark.parametrize("name", PER_GATE)
def test_with_the_right_spec_a_norm_for_each_gate_is_found_too(name):
    module = drawn(PER_GATE[name][0](5, 8))
    model = taken(module)
    assert model.norm.placement == "gate" and model.norm.inner_bias
    same = lnrnn.from_torch(module, norm=model.norm)
    for parameter, value in model.parameters().items():
        np.testing.assert_array_equal(same.parameters()[parameter], value)


@pytest.mark.parametrize("eps", [1e-12, 3e-4, 0.05])
def test_eps_is_found_where_no_attribute_says_it(eps):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(5, 32), nn.Linear(8, 32)
            self.gain = nn.Parameter(torch.ones(32))

        def forward(self, x, h, c):
            i, f, g, o = nn.functional.layer_norm(self.a(x) + self.b(h), (32,), self.gain, None, eps).chunk(
                4, 1
            )
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            return o.sigmoid() * c.tanh(), c

    assert taken(drawn(Cell())).norm.eps == pytest.approx(eps, rel=0.01, abs=1e-11)


def test_the_module_is_afterwards_what_it_was():
    module = TwoLinears(5, 8).half().train()
    before, random = copy.deepcopy(module.state_dict()), torch.random.get_rng_state()
    taken(module)
    assert module.training and torch.equal(torch.random.get_rng_state(), random)
    for name, value in module.state_dict().items():
        assert value.dtype == torch.float16 and torch.equal(value, before[name])
        assert module.get_parameter(name).grad is None


@pytest.mark.parametrize("looks", [1, 2, 10, 30, 100, 400])
def test_the_search_stops_at_its_limit(looks, monkeypatch):
    """The clock says that the time is over from so many looks on: the module is not run again, and what came
    nearest until then is said."""
    runs, passed = [], []

    class Cell(own_cells.Peephole):
        def forward(self, x, state):
            runs.append(len(passed))
            return super().forward(x, state)

    def clock():
        passed.append(torch.get_num_threads())
        return 0.0 if len(passed) <= looks else 1e9

    monkeypatch.setattr("lnrnn.importers.search.runs.thread_time", clock)
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match=r"ran out of time, which is 7 s of one core.*norm=") as e:
            lnrnn.from_torch(Cell(5, 8))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert max(runs, default=0) <= looks and len(passed) == looks + 1
    assert ("the nearest is lnrnn.LSTM" in str(e.value)) == (looks >= 30)
    assert set(passed[1:]) == {1}  # time in other threads is not counted


# --- state dicts --------------------------------------------------------------------------------------------

G2P = {"w_ih": "weight_ih_l0", "w_hh": "weight_hh_l0", "b_ih": "bias_ih_l0", "b_hh": "bias_hh_l0"}


def test_names_of_a_bare_state_dict():
    gru = nn.GRU(5, 8)
    theirs = {old: gru.state_dict()[new] for old, new in G2P.items()}
    x = np.random.default_rng(1).standard_normal((7, 3, 5)).astype(np.float32)
    want = lnrnn.from_torch(gru)(x)[0]
    np.testing.assert_array_equal(lnrnn.from_torch(theirs, names=G2P)(x)[0], want)
    half = {new if new.endswith("hh_l0") else old: theirs[old] for old, new in G2P.items()}
    some = {old: new for old, new in G2P.items() if old in half}
    np.testing.assert_array_equal(lnrnn.from_torch(half, names=some)(x)[0], want)
    deep = {f"enc.{old}": v for old, v in theirs.items()}
    names = {f"enc.{old}": f"enc.{new}" for old, new in G2P.items()}
    np.testing.assert_array_equal(lnrnn.from_torch(deep, names=names, prefix="enc.")(x)[0], want)


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (
            {"w_ihh": "weight_ih_l0"},
            ValueError,
            "'w_ihh', which is no key of the state dict; did you mean 'w_ih'",
        ),
        (
            {"q": "weight_ih_l0"},
            ValueError,
            "'q', which is no key of the state dict; the keys are b_hh, b_ih",
        ),
        (G2P | {"w_hh": "weight_ih_l0"}, ValueError, "'weight_ih_l0' of two keys, 'w_ih' and 'w_hh'"),
        ({"w_ih": "w_hh"}, ValueError, "'w_hh' of two keys"),
        (["w_ih"], TypeError, "names must be a mapping"),
        ({"w_ih": 3}, TypeError, "names must be a mapping"),
    ],
)
def test_wrong_names(names, error, message):
    state = {old: v for (old, _), v in zip(G2P.items(), nn.GRU(5, 8).state_dict().values(), strict=True)}
    with pytest.raises(error, match=message):
        lnrnn.from_torch(state, names=names)


def test_a_state_dict_of_ones_own_cell_is_told_to_bring_the_module():
    with pytest.raises(
        ValueError, match=r"give the module, which can be run, or names= where only names differ"
    ):
        lnrnn.from_torch(TwoLinears(5, 8).state_dict())


def test_tensors_without_numbers_and_numbers_beyond_float32():
    with pytest.raises(ValueError, match=r"weight_ih_l0 is a meta tensor"):
        lnrnn.from_torch(nn.LSTM(5, 8, device="meta"))
    state = {name: v.double() for name, v in nn.GRU(5, 8).state_dict().items()}
    state["weight_hh_l0"][3, 2] = -1e39
    with pytest.raises(ValueError, match=r"weight_hh_l0 must be in float32's range, got 1e\+39"):
        lnrnn.from_torch(state)


def test_what_names_do_not_tell_apart_is_refused():
    class Unnamed(own_cells.ElmanStateFirst):
        def forward(self, a, b):
            return super().forward(a, b)

    with pytest.raises(ValueError, match=r"forward\(a, b\) does not say which argument is the state"):
        lnrnn.from_torch(Unnamed(8, 8))
    assert_taken_state_first(Unnamed(5, 8))


def assert_taken_state_first(module):
    assert taken(module).input_size == 5


def test_a_whole_model_with_many_convolutions_is_refused_at_once():
    model = nn.ModuleDict(
        {str(k): nn.Conv2d(k + 1, k + 2, 3) for k in range(12)} | {"cell": TwoLinears(5, 8)}
    )
    with pytest.raises(ValueError, match="of no known cell"):
        lnrnn.from_torch(model)


def test_under_inference_mode():
    with torch.inference_mode():
        assert taken(TwoLinears(5, 8)).hidden_size == 8
