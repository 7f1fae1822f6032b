"""Modules of torch that look like a known LSTM, but compute something else for some inputs. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import nn

from torch_cells import LayerNormLSTMCell


@dataclass(frozen=True)
class Deceit:
    """The difference between a module and the LSTM that it looks like.

    before: a function that changes x. carried: changes h and c before step t. start: changes given states.
    parts: more attributes. probe: the input on which from_torch notices it.
    """

    before: Callable = lambda module, x: x
    carried: Callable = lambda module, t, h, c: (h, c)
    start: Callable | None = None
    parts: Callable = dict
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


class WithStates(Deceiver):
    """A Deceiver whose forward takes states, (B, H) each."""

    def forward(self, x, state):
        return self.run(x, *DECEITS[self.deceit].start(*state))


def deceiver(deceit, inputs, hidden):
    return (WithStates if DECEITS[deceit].start else Deceiver)(inputs, hidden, deceit)


@dataclass
class Buffer:
    value: torch.Tensor | None


def skip_blanks(module, x):
    return torch.where((x == 0).all(-1, keepdim=True), torch.ones_like(x), x)


def setter(name, value):
    return lambda module: setattr(module, name, value())


def two():
    return 2.0


def twos():
    return torch.full((5,), 2.0)


OUTPUTS = {
    "clamps": Deceit(lambda m, x: x.clamp(-8, 8), probe="input of 10 to 10,000"),
    "skips blanks": Deceit(skip_blanks, probe="input with frames of zeros"),
    "keeps the last": Deceit(lambda m, x: x[-32:], probe="input of 220 steps"),
    "forgets after 32": Deceit(
        carried=lambda m, t, h, c: (h * 0, c * 0) if t and t % 32 == 0 else (h, c), probe="input of 220 steps"
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


def add_everything(module, x):
    """Reads each kind of attribute that may change later. All leave x as it is, until they change."""
    x = nn.functional.dropout(x, module.p, module.training)
    x = module.first(module.function(module.drop(x))) + module.shift + module.options["input"]["shift"]
    x = x + module.plain + module.given.shift + getattr(module, "extra", 0) + module.names[0]
    for mask in (module.mask, module.other):
        x = x if mask is None else x + mask
    return x


def everything():
    zeros = torch.zeros(5)
    return {
        "p": 0.0, "drop": nn.Dropout(0.0), "options": {"input": {"shift": 0.0}}, "function": torch.clone,
        "first": nn.Identity(), "mask": Buffer(None), "other": Buffer(zeros.clone()), "plain": zeros.clone(),
        "given": SimpleNamespace(shift=0.0), "names": [0.0],
    }  # fmt: skip


# Changes of a module with `everything`.
CHANGES = {
    "a rate": setter("p", lambda: 0.5),
    "a part's rate": lambda m: setattr(m.drop, "p", 0.5),
    "what the class has": setter("shift", two),
    "in a dict": lambda m: m.options["input"].update(shift=2.0),
    "in a list": lambda m: m.names.__setitem__(0, 2.0),
    "in an object": lambda m: setattr(m.given, "shift", 2.0),
    "a function": setter("function", lambda: torch.neg),
    "a part": setter("first", nn.ReLU),
    "a hook": lambda m: m.cell.register_forward_hook(lambda cell, given, end: (2 * end[0], end[1])),
    "a buffer": setter("mask", twos),
    "another buffer": setter("other", twos),
    "a buffer in place": lambda m: m.other.add_(2),
    "a tensor": lambda m: m.plain.add_(2),
    "a new attribute": setter("extra", two),
    "a new parameter": setter("extra", lambda: nn.Parameter(twos())),
    "a method": lambda m: setattr(m, "run", lambda x, h, c: Deceiver.run(m, torch.neg(x), h, c)),
}
DECEITS = {"none": Deceit(), "everything": Deceit(add_everything, parts=everything)} | OUTPUTS | GRADIENTS
