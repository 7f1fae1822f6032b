"""Defines races of whole training updates of a model of characters.

A recurrent layer reads windows of Python's help text, one-hot, and a linear layer predicts the next
character. An update computes the mean cross-entropy of all steps, its gradients, clipping, and a step of
Adam. lnrnn's contender is the classifier of the studies, in NumPy. Contenders in torch differ in the
recurrent layer only. The compared answer is the losses of the first updates. Adam hides the scale of
gradients, but cases_training.py checks it."""

from __future__ import annotations

import sys
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np

import lnrnn
from case import Case
from cases_training import engines
from cells import CELLS
from lnrnn.speakers import Adam, cross_entropy, updates
from peers_rnn import torch_on
from race import Call

# The folder of the studies comes last, because its modules and those here may have equal names.
sys.path.append(str(Path(__file__).parents[2] / "examples" / "studies"))

from help_text import SYMBOLS, cut, load_help_text  # noqa: E402
from recurrent import StepClassifier  # noqa: E402

RATE, LARGEST_NORM, GAIN = 1e-2, 1.0, 0.1
CHECKED = 6  # the losses of this number of updates are compared
BATCHES = 16  # contenders repeat these batches

# Losses fall from 4.2 to 3.7 or less in CHECKED updates. Right float32 losses differ by 6e-7 at most.
TOLERANCE = 5e-6


def characters(threads, cell, batch, hidden, steps):
    cell = CELLS[cell]
    random, text = np.random.default_rng(0), load_help_text().train
    lengths = np.full(batch, steps)
    batches = []
    for _ in range(BATCHES):
        x, following = cut(text, random.integers(0, len(text) - steps, batch), steps)
        batches.append((x, lengths, following))
    normed, plain = (_start(cell, hidden, norm) for norm in ("layer", None))
    ours = {"lnrnn": _contender(partial(_in_numpy, cell, normed), batches)}
    for name, engine in engines().items():
        ours[name] = _contender(partial(_in_torch, threads, _twin(cell, normed, engine), normed), batches)
    loop = partial(_in_torch, threads, _loop(cell, normed), normed)
    module = partial(_in_torch, threads, _plain(cell, plain), plain)
    peers = {
        "torch": lambda: _contender(loop, batches),
        "torch.nn plain": lambda: _contender(module, batches, _losses(cell, plain, batches, None)),
    }
    want = _losses(cell, normed, batches, "layer")
    return Case(ours, peers, want, (TOLERANCE,), counted="updates", other_work=("torch.nn plain",))


def _start(cell, hidden, norm) -> dict[str, np.ndarray]:
    """Returns initial parameters of the recurrent layer (without the suffix) and of the head.

    Gains are 0.1, as in one setting of the study. With gains of 1 rounding errors grow from step to step, and
    all float32 losses are wrong by 1e-3 after five updates."""
    rnn = getattr(lnrnn, cell.NAME)(SYMBOLS, hidden, norm=norm, seed=0)
    model = StepClassifier(rnn, SYMBOLS, np.random.default_rng(0))
    return {
        name.removesuffix("_l0"): value * np.float32(GAIN if name.startswith("gain") else 1)
        for name, value in model.parameters().items()
    }


def _recurrent(p) -> dict[str, np.ndarray]:
    return {name: value for name, value in p.items() if not name.startswith("head_")}


def _contender(start, batches, answer=None) -> Call:
    """Returns a contender. start(): creates a model, and returns a function that updates it once and returns
    the loss."""
    update, turns = start(), cycle(batches)

    def losses():
        fresh = start()
        return np.array([fresh(one) for one in batches[:CHECKED]])

    return Call(lambda: update(next(turns)), answer=losses, reference=answer)


def _in_numpy(cell, p):
    rnn = getattr(lnrnn, cell.NAME)(SYMBOLS, p["weight_hh"].shape[1])
    return _updates(StepClassifier(rnn, SYMBOLS, np.random.default_rng(0)), p)


def _updates(model, p):
    recurrent = {f"{name}_l0": value for name, value in _recurrent(p).items()}
    model.set_parameters(recurrent | {name: value for name, value in p.items() if name.startswith("head_")})
    optimiser = Adam(RATE)

    def update(one) -> float:
        return next(updates(model, [one], optimiser, LARGEST_NORM))[0]

    return update


class _InFloat64:
    """The model in float64, by lnrnn.reference."""

    def __init__(self, cell, p, norm):
        self.cell, self.norm = cell, norm
        self.p = {name: value.astype(np.float64) for name, value in p.items()}

    def parameters(self):
        return self.p

    def set_parameters(self, values):
        self.p = values

    def loss_and_gradients(self, x, lengths, labels):
        zero = np.zeros((x.shape[1], self.p["weight_hh"].shape[1]))
        states, options = (zero,) * self.cell.STATES, {} if self.norm else {"norm": None}
        y, tape = self.cell.forward(_recurrent(self.p), x, states, **options)
        losses, glogits = cross_entropy(y @ self.p["head_weight"].T + self.p["head_bias"], labels)
        glogits /= losses.size
        _, _, grads = self.cell.backward(tape, glogits @ self.p["head_weight"])
        grads["head_weight"] = np.einsum("tnc,tnh->ch", glogits, y, optimize=True)
        grads["head_bias"] = glogits.sum((0, 1))
        return float(losses.mean()), grads


def _losses(cell, p, batches, norm) -> tuple[np.ndarray]:
    model, optimiser = _InFloat64(cell, p, norm), Adam(RATE)
    return (np.array([loss for loss, _ in updates(model, batches[:CHECKED], optimiser, LARGEST_NORM)]),)


def _module(module, p):
    """Returns the parameters of a recurrent layer of torch, and a function from x to y."""
    import torch

    module.load_state_dict({f"{name}_l0": torch.tensor(v) for name, v in _recurrent(p).items()})
    return list(module.parameters()), lambda x: module(x)[0]


def _twin(cell, p, engine):
    def make(torch):
        import lnrnn.torch

        return _module(getattr(lnrnn.torch, cell.NAME)(SYMBOLS, p["weight_hh"].shape[1], **engine), p)

    return make


def _plain(cell, p):
    return lambda torch: _module(getattr(torch.nn, cell.NAME)(SYMBOLS, p["weight_hh"].shape[1]), p)


def _loop(cell, p):
    """Returns a function that returns the same as `_module`, for a loop over the steps in torch."""

    def make(torch):
        given = cell.for_peers(_recurrent(p))
        named = {name: torch.tensor(v, requires_grad=True) for name, v in given.items()}

        def sequence(x):
            state = tuple(x.new_zeros(x.shape[1], p["weight_hh"].shape[1]) for _ in range(cell.STATES))
            ys = []
            parts = [part.unbind() for part in cell.torch_project(torch, named, x)]
            for projected in zip(*parts, strict=True):
                state = cell.torch_step(torch, named, projected, state)
                ys.append(state[0])
            return torch.stack(ys)

        return list(named.values()), sequence

    return make


def _in_torch(threads, make, p):
    torch = torch_on(threads)
    parameters, sequence = make(torch)
    head = torch.nn.Linear(p["head_weight"].shape[1], SYMBOLS)
    head.load_state_dict({name: torch.tensor(p[f"head_{name}"]) for name in ("weight", "bias")})
    parameters = [*parameters, *head.parameters()]
    optimiser = torch.optim.Adam(parameters, RATE, fused=True)

    def update(one) -> float:
        x, _, labels = one
        with torch.enable_grad():
            logits = head(sequence(torch.from_numpy(x)))
            labels = torch.from_numpy(labels)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            optimiser.zero_grad()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, LARGEST_NORM)
        optimiser.step()
        return loss.item()

    return update
