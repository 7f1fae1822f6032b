"""lnrnn.GradualPruner: the schedule, the masks during training, and its state, in NumPy and in torch."""

from __future__ import annotations

import io
from itertools import cycle

import numpy as np
import pytest

import lnrnn
from networks import blocks_of, network, normal

DENSITIES = {"weight_ih": (0.5, 0.25, 1.0), "weight_hh_l0": 0.3, "weight_hh_l1": (0.2, 0.4, 0.75)}
OWN = {"0.w_in.weight": 0.3, "0.w_hh": (0.3, 0.4, 0.6)}


def weights(model):
    """Returns the weights of a network or module by name, as arrays."""
    if isinstance(model, lnrnn.Network):
        return {name: w for name, w in model.parameters().items() if w.ndim == 2}
    return {name: w.detach().double().clone().numpy() for name, w in model.named_parameters() if w.ndim == 2}


def pattern(w):
    """Returns which blocks have a weight that is not 0."""
    return blocks_of(w).any((2, 3))


def made(engine, rnn):
    """Returns a network, or a module with its weights."""
    if engine == "torch":
        pytest.importorskip("torch")
        return lnrnn.torch.from_network(rnn)
    return rnn


engines = pytest.mark.parametrize("engine", ["numpy", "torch"])


@engines
@pytest.mark.parametrize("begin, end, every", [(0, 12, 1), (3, 17, 5), (4, 4, 7), (0, 1, 100), (2, 9, 3)])
def test_the_density_falls_as_in_the_paper_and_ends_as_sparsify(begin, end, every, engine):
    """The weights do not change, so the blocks are those that sparsify chooses at once."""
    rnn = network(24, 40, cell="GRU", num_layers=2)
    wanted, model = weights(lnrnn.sparsify(rnn, DENSITIES)), made(engine, rnn)
    pruner, left = lnrnn.GradualPruner(model, DENSITIES, begin_step=begin, end_step=end, every=every), 1.0
    for t in range(1, end + 4):
        pruner.step()
        if begin <= t <= end and ((t - begin) % every == 0 or t == end):
            left = (1 - (t - begin) / (end - begin)) ** 3 if t < end else 0.0
        assert pattern(weights(model)["weight_hh_l0"]).sum() == round((0.3 + 0.7 * left) * 150), t
    assert pruner.steps_done == t
    for name, w in weights(model).items():
        np.testing.assert_array_equal(w, wanted[name], err_msg=name)


def test_gates_and_single_weights_have_densities_of_their_own():
    rnn = network(24, 64, cell="GRU", num_layers=2)
    other = lnrnn.sparsify(rnn, DENSITIES)
    for name, w in weights(other).items():
        of = DENSITIES.get(name, DENSITIES["weight_ih"])
        of = of if isinstance(of, tuple) else (of,)
        assert [pattern(gate).sum() for gate in np.split(w, len(of))] == [
            round(density * w.size / 32 / len(of)) for density in of
        ]


def test_a_parameter_with_two_names_is_pruned_once():
    torch = pytest.importorskip("torch")
    model = torch.nn.Module()
    model.shared, model.ghh = torch.nn.Parameter(torch.randn(96, 32)), torch.nn.GRU(32, 32)
    model.ghh.weight_hh_l0 = model.shared
    with pytest.raises(ValueError, match="equal for shared and ghh.weight_hh_l0, one parameter"):
        lnrnn.GradualPruner(model, {"shared": 0.5, "weight_hh": 0.3}, end_step=1)
    lnrnn.GradualPruner(model, {"weight_ih": 0.05, "weight_hh": 0.3}, end_step=1).step()
    assert pattern(weights(model)["shared"]).sum() == round(0.3 * 96)
    assert pattern(weights(model)["ghh.weight_ih_l0"]).sum() == round(0.05 * 96)  # keeps no diagonal
    model.ghh.weight_ih_l0 = torch.nn.Parameter(torch.ones(96, 64))
    pruner = lnrnn.GradualPruner(model, 0.5, end_step=1)
    model.ghh.weight_ih_l0 = torch.nn.Parameter(torch.ones(96, 32))
    words = r"with ghh.weight_ih_l0 of the shape \(96, 64\), as before, got \(96, 32\)"
    with pytest.raises(ValueError, match=words):
        pruner.step()
    assert pruner.steps_done == 0


# --- training -----------------------------------------------------------------------------------------------


class InNumPy:
    """A loop with momentum and weight decay."""

    def __init__(self):
        self.model = network(8, 32, cell="LSTM", norm="batch", trained=3)
        self.pruner = lnrnn.GradualPruner(self.model, 0.3, begin_step=2, end_step=9, every=3)
        self.speed = {name: np.zeros_like(w) for name, w in self.model.parameters().items()}

    def update(self, t):
        rng = np.random.default_rng(t)
        y, _, tape = self.model.forward_train(normal(rng, 5, 3, 8))
        for name, g in self.model.backward(tape, y - normal(rng, *y.shape))[2].items():
            w = getattr(self.model, name)
            self.speed[name] = 0.9 * self.speed[name] + g + 0.01 * w
            setattr(self.model, name, w - np.float32(0.05) * self.speed[name])
        self.pruner.step()

    def resumed(self):
        file, other = io.BytesIO(), InNumPy()
        np.savez(file, **self.pruner.state_dict())
        file.seek(0)
        other.model.load_state_dict(self.model.state_dict())
        other.speed = dict(self.speed)
        with np.load(file) as saved:
            other.pruner.load_state_dict(dict(saved))
        return other


class Own:
    """Makes a module with a cell of its own, whose parameters have other names."""

    def __new__(cls, torch):
        class Cell(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.w_in = torch.nn.Linear(16, 96)
                self.w_hh = torch.nn.Parameter(torch.randn(96, 32) / 6)

            def forward(self, x):
                h = x.new_zeros(x.shape[1], 32)
                for row in x:
                    a, b, c = (self.w_in(row) + h @ self.w_hh.T).chunk(3, 1)
                    h = h + torch.sigmoid(a) * (torch.tanh(b + c) - h)
                return (h,)

        return torch.nn.Sequential().append(Cell())


MODULES = {
    "LSTM": lambda torch: torch.nn.LSTM(16, 32, num_layers=2, bidirectional=True),
    "LSTM projected": lambda torch: torch.nn.LSTM(16, 32, proj_size=8),
    "GRU double": lambda torch: torch.nn.GRU(16, 32).double(),
    "RNN bfloat16": lambda torch: torch.nn.RNN(16, 32).bfloat16(),
    "GRUCell": lambda torch: torch.nn.GRUCell(16, 32),
    "lnrnn LSTM": lambda torch: lnrnn.torch.LSTM(16, 32, seed=0),
    "lnrnn GRU": lambda torch: lnrnn.torch.GRU(16, 32, norm="batch", seed=0),
    "own": Own,
}
OPTIMISERS = {
    "SGD": dict(lr=0.05, momentum=0.9, weight_decay=0.1, nesterov=True),
    "AdamW": dict(lr=1e-2, weight_decay=0.1),
    "RMSprop": dict(lr=1e-3, momentum=0.9),
}


class InTorch:
    def __init__(self, module, optimiser):
        self.torch, self.made = pytest.importorskip("torch"), (module, optimiser)
        self.torch.manual_seed(0)
        self.model = MODULES[module](self.torch)
        self.optimiser = getattr(self.torch.optim, optimiser)(
            self.model.parameters(), **OPTIMISERS[optimiser]
        )
        density = OWN if module == "own" else 0.3
        self.pruner = lnrnn.GradualPruner(self.model, density, begin_step=2, end_step=9, every=3)
        self.optimiser.register_step_post_hook(self.pruner.step)

    def update(self, t):
        x = self.torch.randn(3, 4, 16, generator=self.torch.Generator().manual_seed(t))
        x = x.to(next(self.model.parameters()).dtype)
        y = self.model(x[0]) if self.made[0] == "GRUCell" else self.model(x)[0]
        self.optimiser.zero_grad()
        (y - x.mean()).square().sum().backward()
        self.optimiser.step()

    def resumed(self):
        file, other = io.BytesIO(), InTorch(*self.made)
        parts = ("model", "optimiser", "pruner")
        self.torch.save({part: getattr(self, part).state_dict() for part in parts}, file)
        file.seek(0)
        for part, state in self.torch.load(file, weights_only=True).items():
            getattr(other, part).load_state_dict(state)
        return other


TRAININGS = {"numpy": InNumPy}
TRAININGS |= {
    f"{module}, {optimiser}": lambda module=module, optimiser=optimiser: InTorch(module, optimiser)
    for module, optimiser in [*zip(MODULES, cycle(OPTIMISERS)), ("LSTM", "AdamW")]  # noqa: B905
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
@pytest.mark.parametrize("name", TRAININGS)
def test_removed_blocks_stay_zero_and_resumed_training_has_the_same_bits(name):
    one, alive, others = TRAININGS[name](), {}, []
    before = weights(one.model)
    for t in range(1, 13):
        if t in (2, 6, 11):
            others.append(one.resumed())
        for each in (one, *others):
            each.update(t)
        now = {name: pattern(w) for name, w in weights(one.model).items()}
        for name in alive:
            assert not np.any(now[name] & ~alive[name]), (t, name)
        alive = now
    assert one.pruner.steps_done == 12
    for name, w in weights(one.model).items():
        assert (w != before[name]).any()
        for other in others:
            np.testing.assert_array_equal(weights(other.model)[name], w, err_msg=name)
        gates = OWN["0.w_hh"] if name == "0.w_hh" else (1.0,) if "hr" in name else (0.3,)
        assert pattern(w).sum() == sum(round(gate * w.size / len(gates) / 32) for gate in gates), name
        if "hh" in name and w.shape[1] == 32:
            diagonal = np.tile(np.eye(32, dtype=bool), (len(w) // 32, 1))
            assert pattern(w)[blocks_of(diagonal).any((2, 3))].all()
