"""Draws random masks of training calls, for dropout and zoneout."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arguments import Integer
from ..errors import bad_type, bad_value
from .architecture import Architecture
from .batches import FLOAT32
from .specs import DropoutSpec

Array = np.ndarray
# Dropout factors of h in W_hh h, (B, P); where zoneout keeps the old h, and the old c: bool (T, B, *) each.
MaskArrays = tuple[Array | None, Array | None, Array | None]
DRAWN = 2**16  # random numbers to draw at a time

# Purposes of random numbers, as the first number of a generator's spawn key.
BETWEEN, INPUTS, STATES, ZONEOUT_H, ZONEOUT_C = range(5)


Entropy = int | Sequence[int] | None  # an argument of np.random.SeedSequence


def checked_seed(seed: Any) -> Entropy:
    """Returns the argument `seed` of forward_train, checked."""
    expected = "None, an integer of at least 0, or a sequence of such"
    if seed is None:
        return None
    if isinstance(seed, (str, bytes)) or not (isinstance(seed, Sequence) or getattr(seed, "ndim", 0) == 1):
        if getattr(seed, "ndim", 0):
            raise bad_value("seed", expected, seed)
        try:
            return Integer(0).check("seed", seed)
        except TypeError:
            raise bad_type("seed", expected, seed) from None
    return [Integer(0).check(f"seed[{k}]", value) for k, value in enumerate(seed)]


def drawn(entropy: Entropy, key: tuple[int, int, int], shape: tuple[int, ...], rate: float) -> Array:
    """Returns a boolean array whose elements are True with probability `rate`.

    Each key (purpose, layer, direction) has its own Philox generator, whose raw numbers are equal in all
    versions of NumPy.
    """
    numbers = np.random.Philox(np.random.SeedSequence(entropy, spawn_key=key))
    found = np.empty(shape, bool)
    flat, below = found.reshape(-1), np.uint32(min(round(rate * 2**32), 2**32 - 1))
    for at in range(0, flat.size, DRAWN):
        part = flat[at : at + DRAWN]
        words = numbers.random_raw((part.size + 1) // 2).astype("<u8", copy=False).view("<u4")
        np.less(words[: part.size], below, out=part)
    return found


def factors(dropped: Array, rate: float) -> Array:
    """Returns float32 dropout factors: 0 where `dropped`, 1 / (1 - rate) elsewhere."""
    return np.where(dropped, FLOAT32.type(0), FLOAT32.type(1 / (1 - rate)))


@dataclass(frozen=True, eq=False)
class Masks:
    """The masks of one training call. A mask is None if it drops nothing.

    inputs: by layer, factors (B, input width). between: by layer, True where an input is kept and multiplied
    by `scale`, (T, B, width). states: by layer and direction, factors (B, P). zoneout: by layer, direction,
    True where the old h, and the old c, is kept, (T, B, *). Steps have the order of x in both directions.
    """

    inputs: tuple[Array | None, ...]
    between: tuple[Array | None, ...]
    scale: float
    states: tuple[Array | None, ...]
    zoneout: tuple[tuple[Array | None, Array | None], ...]

    def arrays(self) -> list[Array]:
        each = (*self.inputs, *self.between, *self.states, *(m for pair in self.zoneout for m in pair))
        return [mask for mask in each if mask is not None]

    def of_layer(self, k: int) -> MaskArrays:
        """Returns the masks of layer and direction number k, in the order of the compiled module."""
        return self.states[k], *self.zoneout[k]

    def drops_input(self, layer: int) -> bool:
        return self.inputs[layer] is not None or self.between[layer] is not None

    def of_input(self, layer: int) -> tuple[Array | None, float, Array | None]:
        """Returns the input masks of a layer for the compiled module: `between`, `scale`, `inputs`."""
        return self.between[layer], self.scale, self.inputs[layer]

    def on_input(self, layer: int, x: Array, out: Array) -> None:
        """Multiplies x (T, B, width), a layer's input or its gradient, by the input masks. out may be x."""
        inputs, between = self.inputs[layer], self.between[layer]
        with np.errstate(invalid="ignore", over="ignore"):  # values past a sequence's end are arbitrary
            if between is not None:
                np.multiply(x, between, out=out)
                np.multiply(out, FLOAT32.type(self.scale), out=out)
                x = out
            if inputs is not None:
                np.multiply(x, inputs, out=out)


def draw(
    made: Architecture, spec: DropoutSpec, zoneout: Sequence[float], entropy: Entropy, T: int, B: int
) -> Masks | None:
    """Returns masks for B sequences of T steps, or None if nothing is dropped.

    Masks depend on entropy (None: random), B and the rates. Masks of step t do not depend on T.
    """
    layers, directions, P = made.num_layers, made.directions, made.h_width
    if spec.between and layers == 1:
        warnings.warn(
            f"dropout between layers has no effect: {made.cell.name} has one layer (num_layers=1); "
            "DropoutSpec(inputs=, states=) drops inside a layer",
            stacklevel=4,  # the caller of forward_train
        )
    if not (spec.inputs or spec.states or zoneout or (spec.between and layers > 1)):
        return None
    entropy = np.random.SeedSequence(entropy).entropy  # one entropy for all generators, also for None
    widths = [made.input_size if n == 0 else directions * P for n in range(layers)]
    inputs = tuple(
        factors(drawn(entropy, (INPUTS, n, 0), (B, width), spec.inputs), spec.inputs) if spec.inputs else None
        for n, width in enumerate(widths)
    )
    between = tuple(
        ~drawn(entropy, (BETWEEN, n, 0), (T, B, width), spec.between) if spec.between and n else None
        for n, width in enumerate(widths)
    )
    places = [divmod(k, directions) for k in range(layers * directions)]
    states = tuple(
        factors(drawn(entropy, (STATES, *place), (B, P), spec.states), spec.states) if spec.states else None
        for place in places
    )
    rates = (*zoneout, 0.0, 0.0)[:2]

    def kept(kind: int, place: tuple[int, int], state: int) -> Array | None:
        if not rates[state]:
            return None
        return drawn(entropy, (kind, *place), (T, B, made.widths[state]), rates[state])

    pairs = tuple((kept(ZONEOUT_H, p, 0), kept(ZONEOUT_C, p, 1)) for p in places)
    return Masks(inputs, between, 1 / (1 - spec.between), states, pairs)
