"""Modules with a known system's parameters and another forward, which ordinary random input does not show.
Needs torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from torch_cells import LayerNormLSTMCell


class Deceiver(nn.Module):
    """An LSTM of fastrnns, x (T, B, I) -> y, with a place for each deceit."""

    def __init__(self, inputs, hidden):
        super().__init__()
        self.cell = LayerNormLSTMCell(inputs, hidden)

    def before(self, x):
        return x

    def carried(self, t, h, c):
        return h, c

    def forward(self, x):
        x, found = self.before(x), []
        h = c = torch.zeros(x.size(1), self.cell.hidden)
        for t, x_t in enumerate(x):
            h, c = self.cell(x_t, *self.carried(t, h, c))
            found.append(h)
        return torch.stack(found)


# --- other outputs ------------------------------------------------------------------------------------------


class Clamps(Deceiver):
    def before(self, x):
        return x.clamp(-8, 8)


class SkipsBlanks(Deceiver):
    """Frames of zeros are taken for padding."""

    def before(self, x):
        return torch.where((x == 0).all(-1, keepdim=True), torch.ones_like(x), x)


class KeepsTheLast(Deceiver):
    def before(self, x):
        return x[-32:]


class ForgetsAfter(Deceiver):
    def carried(self, t, h, c):
        return (h * 0, c * 0) if t and t % 32 == 0 else (h, c)


class ClipsState(Deceiver):
    def carried(self, t, h, c):
        return h.clamp(-0.99, 0.99), c


class ReplacesNaN(Deceiver):
    def before(self, x):
        return torch.nan_to_num(x)


class MutesNoise(Deceiver):
    def before(self, x):
        return torch.where(x.abs() < 1e-3, torch.zeros_like(x), x)


class MixesTheBatch(Deceiver):
    def before(self, x):
        return x if x.size(1) > 1 else x - 1


class Given(Deceiver):
    """Takes states, (B, H) each, and clips them where they are large."""

    def forward(self, x, state):
        h, c, found = state[0].clamp(-1, 1), state[1], []
        for x_t in x:
            h, c = self.cell(x_t, h, c)
            found.append(h)
        return torch.stack(found), (h, c)


# --- other gradients ----------------------------------------------------------------------------------------


class Truncates(Deceiver):
    """Truncated back-propagation through time."""

    every = 4

    def carried(self, t, h, c):
        return (h.detach(), c.detach()) if t and t % self.every == 0 else (h, c)


class TruncatesLate(Truncates):
    every = 64


class StopsAtStart(Deceiver):
    """States that are given pass no gradient on."""

    def forward(self, x, state):
        (h, c), found = (s.detach() for s in state), []
        for x_t in x:
            h, c = self.cell(x_t, h, c)
            found.append(h)
        return torch.stack(found), (h, c)


class StopsInput(Deceiver):
    def before(self, x):
        return x.detach()


class CutsGradients(Deceiver):
    def carried(self, t, h, c):
        if h.requires_grad:
            h.register_hook(lambda g: g.clamp(-100, 100))
        return h, c


class StopsInTraining(Deceiver):
    def carried(self, t, h, c):
        return (h.detach(), c) if self.training else (h, c)


class WithoutGraph(Deceiver):
    def forward(self, x):
        with torch.no_grad():
            return super().forward(x)


# --- what is changed later ----------------------------------------------------------------------------------


class Rate(Deceiver):
    def __init__(self, inputs, hidden):
        super().__init__(inputs, hidden)
        self.p = 0.0

    def before(self, x):
        return nn.functional.dropout(x, self.p, self.training)

    def change(self):
        self.p = 0.5


class Part(Deceiver):
    def __init__(self, inputs, hidden):
        super().__init__(inputs, hidden)
        self.drop = nn.Dropout(0.0)

    def before(self, x):
        return self.drop(x)

    def change(self):
        self.drop.p = 0.5


class OfTheClass(Deceiver):
    shift = 0.0

    def before(self, x):
        return x + self.shift

    def change(self):
        self.shift = 2.0


class InADict(OfTheClass):
    def __init__(self, inputs, hidden):
        super().__init__(inputs, hidden)
        self.options = {"input": {"shift": 0.0}}

    @property
    def shift(self):
        return self.options["input"]["shift"]

    def change(self):
        self.options["input"]["shift"] = 2.0


class AFunction(Deceiver):
    def __init__(self, inputs, hidden):
        super().__init__(inputs, hidden)
        self.first = torch.clone

    def before(self, x):
        return self.first(x)

    def change(self):
        self.first = torch.neg


class APart(Deceiver):
    def __init__(self, inputs, hidden):
        super().__init__(inputs, hidden)
        self.first = nn.Identity()

    def before(self, x):
        return self.first(x)

    def change(self):
        self.first = nn.ReLU()


class AHook(Deceiver):
    def change(self):
        self.cell.register_forward_hook(lambda module, given, found: (2 * found[0], found[1]))


class ABuffer(Deceiver):
    """first: what the buffer is when the module is made."""

    first: torch.Tensor | None = None

    def __init__(self, inputs, hidden):
        super().__init__(inputs, hidden)
        mask = None if self.first is None else self.first.clone()
        self.register_buffer("mask", mask, persistent=False)

    def before(self, x):
        return x if self.mask is None else x + self.mask

    def change(self):
        self.mask = torch.full((5,), 2.0)


class AnotherBuffer(ABuffer):
    first = torch.zeros(5)


class ABufferInPlace(AnotherBuffer):
    def change(self):
        self.mask.add_(2)


class ATensor(ABufferInPlace):
    def __init__(self, inputs, hidden):
        Deceiver.__init__(self, inputs, hidden)
        self.mask = torch.zeros(5)


class NewAttribute(Deceiver):
    def before(self, x):
        return x + self.shift if hasattr(self, "shift") else x

    def change(self):
        self.shift = 2.0


class NewParameter(NewAttribute):
    def change(self):
        self.shift = nn.Parameter(torch.full((5,), 2.0))


class AMethod(Deceiver):
    def change(self):
        self.before = torch.neg


class AnArray(Deceiver):
    def __init__(self, inputs, hidden):
        super().__init__(inputs, hidden)
        self.shift = np.zeros(5, np.float32)

    def before(self, x):
        return x + torch.from_numpy(self.shift)

    def change(self):
        self.shift[:] = 2


class ASet(Deceiver):
    def __init__(self, inputs, hidden):
        super().__init__(inputs, hidden)
        self.options = {"x"}

    def before(self, x):
        return -x if "negated" in self.options else x

    def change(self):
        self.options.add("negated")


class Slots:
    __slots__ = ("shift", "scale")

    def __init__(self):
        self.shift = 0.0


class WithSlots(Deceiver):
    def __init__(self, inputs, hidden):
        super().__init__(inputs, hidden)
        self.options = Slots()

    def before(self, x):
        return x * getattr(self.options, "scale", 1) + self.options.shift

    def change(self):
        self.options.shift = 2.0


class NewSlot(WithSlots):
    def change(self):
        self.options.scale = -1.0


OUTPUTS = {
    Clamps: "input of 10 to 10,000",
    SkipsBlanks: "input with frames of zeros",
    KeepsTheLast: "input of 100 steps",
    ForgetsAfter: "input of 100 steps",
    ClipsState: "parameters 8 times as large",
    ReplacesNaN: "input with a NaN",
    MutesNoise: "input of 1e-6 to 0.1",
    MixesTheBatch: "a batch of one sequence",
    Given: "states of 1 to 100",
}
GRADIENTS = (Truncates, TruncatesLate, StopsAtStart, StopsInput, CutsGradients, StopsInTraining, WithoutGraph)
CHANGED = (
    Rate, Part, OfTheClass, InADict, AFunction, APart, AHook, ABuffer, AnotherBuffer, ABufferInPlace, ATensor,
    NewAttribute, NewParameter, AMethod, AnArray, ASet, WithSlots, NewSlot,
)  # fmt: skip
