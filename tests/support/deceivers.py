"""Modules of torch that look like a known LSTM, but compute something else for some inputs. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from torch_cells import LayerNormLSTMCell


@dataclass(frozen=True)
class Deceit:
    """The difference between a module and the LSTM that it looks like.

    before: a function that changes x. carried: changes h and c before step t. start: changes given states.
    parts: more attributes. change: alters the module later. probe: the input on which from_torch notices it.
    """

    before: Callable = lambda module, x: x
    carried: Callable = lambda module, t, h, c: (h, c)
    start: Callable | None = None
    parts: Callable = dict
    change: Callable | None = None
    probe: str = ""


class Deceiver(nn.Module):
    """An LSTM with the parameters of fastrnns' LSTM, from x (T, B, I) to y. deceit: a key of DECEITS."""

    shift = 0.0

    def __init__(self, inputs, hidden, deceit="none"):
        super().__init__()
        self.cell, self.deceit = LayerNormLSTMCell(inputs, hidden), deceit
        for name, part in DECEITS[deceit].parts().items():
            if isinstance(part, Buffer):
                self.register_buffer(name, part.value, persistent=False)
            else:
                setattr(self, name, part)

    def run(self, x, h, c):
        deceit, ys = DECEITS[self.deceit], []
        for t, x_t in enumerate(deceit.before(self, x)):
            h, c = self.cell(x_t, *deceit.carried(self, t, h, c))
            ys.append(h)
        return torch.stack(ys), (h, c)

    def forward(self, x):
        zeros = torch.zeros(x.size(1), self.cell.hidden)
        if self.deceit == "without a graph":
            with torch.no_grad():
                return self.run(x, zeros, zeros)[0]
        return self.run(x, zeros, zeros)[0]

    def change(self):
        DECEITS[self.deceit].change(self)


class WithStates(Deceiver):
    """A Deceiver whose forward takes states, (B, H) each."""

    def forward(self, x, state):
        return self.run(x, *DECEITS[self.deceit].start(*state))


def deceiver(deceit, inputs, hidden):
    return (WithStates if DECEITS[deceit].start else Deceiver)(inputs, hidden, deceit)


@dataclass
class Buffer:
    value: torch.Tensor | None


class Slots:
    __slots__ = ("shift", "scale")

    def __init__(self):
        self.shift = 0.0


def skip_blanks(module, x):
    return torch.where((x == 0).all(-1, keepdim=True), torch.ones_like(x), x)


def add_shift(module, x):
    return x + module.shift


def add_mask(module, x):
    return x if module.mask is None else x + module.mask


def setter(name, value):
    return lambda module: setattr(module, name, value())


def two():
    return 2.0


def twos():
    return torch.full((5,), 2.0)


OUTPUTS = {
    "clamps": Deceit(lambda m, x: x.clamp(-8, 8), probe="input of 10 to 10,000"),
    "skips blanks": Deceit(skip_blanks, probe="input with frames of zeros"),
    "keeps the last": Deceit(lambda m, x: x[-32:], probe="input of 100 steps"),
    "forgets after 32": Deceit(
        carried=lambda m, t, h, c: (h * 0, c * 0) if t and t % 32 == 0 else (h, c), probe="input of 100 steps"
    ),
    "clips h": Deceit(
        carried=lambda m, t, h, c: (h.clamp(-0.99, 0.99), c), probe="parameters 8 times as large"
    ),
    "replaces NaN": Deceit(lambda m, x: torch.nan_to_num(x), probe="input with a NaN"),
    "mutes noise": Deceit(
        lambda m, x: torch.where(x.abs() < 1e-3, torch.zeros_like(x), x), probe="input of 1e-6 to 0.1"
    ),
    "mixes the batch": Deceit(lambda m, x: x if x.size(1) > 1 else x - 1, probe="a batch of one sequence"),
    "clips what is given": Deceit(start=lambda h, c: (h.clamp(-1, 1), c), probe="states of 1 to 100"),
}
GRADIENTS = {
    "truncates": Deceit(carried=lambda m, t, h, c: (h.detach(), c.detach()) if t and t % 4 == 0 else (h, c)),
    "stops at start": Deceit(start=lambda h, c: (h.detach(), c.detach())),
    "without a graph": Deceit(),
}
CHANGED = {
    "a rate": Deceit(
        lambda m, x: nn.functional.dropout(x, m.p, m.training),
        parts=lambda: {"p": 0.0}, change=setter("p", lambda: 0.5),
    ),
    "a part's rate": Deceit(
        lambda m, x: m.drop(x),
        parts=lambda: {"drop": nn.Dropout(0.0)}, change=lambda m: setattr(m.drop, "p", 0.5),
    ),
    "what the class has": Deceit(add_shift, change=setter("shift", two)),
    "in a dict": Deceit(
        lambda m, x: x + m.options["input"]["shift"],
        parts=lambda: {"options": {"input": {"shift": 0.0}}},
        change=lambda m: m.options["input"].update(shift=2.0),
    ),
    "a function": Deceit(
        lambda m, x: m.first(x),
        parts=lambda: {"first": torch.clone}, change=setter("first", lambda: torch.neg),
    ),
    "a part": Deceit(
        lambda m, x: m.first(x), parts=lambda: {"first": nn.Identity()}, change=setter("first", nn.ReLU)
    ),
    "a hook": Deceit(
        change=lambda m: m.cell.register_forward_hook(lambda cell, given, end: (2 * end[0], end[1]))
    ),
    "a buffer": Deceit(add_mask, parts=lambda: {"mask": Buffer(None)}, change=setter("mask", twos)),
    "another buffer": Deceit(
        add_mask, parts=lambda: {"mask": Buffer(torch.zeros(5))}, change=setter("mask", twos)
    ),
    "a buffer in place": Deceit(
        add_mask, parts=lambda: {"mask": Buffer(torch.zeros(5))}, change=lambda m: m.mask.add_(2)
    ),
    "a tensor": Deceit(add_mask, parts=lambda: {"mask": torch.zeros(5)}, change=lambda m: m.mask.add_(2)),
    "a new attribute": Deceit(
        lambda m, x: x + m.extra if hasattr(m, "extra") else x, change=setter("extra", two)
    ),
    "a new parameter": Deceit(
        lambda m, x: x + m.extra if hasattr(m, "extra") else x,
        change=setter("extra", lambda: nn.Parameter(twos())),
    ),
    "a method": Deceit(
        change=lambda m: setattr(m, "run", lambda x, h, c: Deceiver.run(m, torch.neg(x), h, c))
    ),
    "slots": Deceit(
        lambda m, x: x * getattr(m.options, "scale", 1) + m.options.shift,
        parts=lambda: {"options": Slots()}, change=lambda m: setattr(m.options, "shift", 2.0),
    ),
    "a new slot": Deceit(
        lambda m, x: x * getattr(m.options, "scale", 1),
        parts=lambda: {"options": Slots()}, change=lambda m: setattr(m.options, "scale", -1.0),
    ),
}  # fmt: skip
DECEITS = {"none": Deceit()} | OUTPUTS | GRADIENTS | CHANGED
