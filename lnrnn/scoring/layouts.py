"""Gathers Sequences from columns that have one number at a step: a column for each feature, or flat lists."""

from __future__ import annotations

import numpy as np

from .sequences import Sequences


def side_by_side(parts: list[Sequences], names: tuple[str, ...], width: int) -> Sequences:
    """Returns rows whose steps have a number of each part. Rows of unequal lengths are bad.

    A row is null if it is null in all parts, and bad if it is null in some.
    """
    if len(parts) != width:
        raise ValueError(f"columns must be {width} columns, as the model takes, got {len(parts)}")
    if len({len(part) for part in parts}) > 1:
        raise ValueError(f"columns must have equal lengths, got {[len(part) for part in parts]}")
    null = np.logical_and.reduce([part.null for part in parts])
    bad: dict[int, str] = {}
    for name, part in zip(names, parts, strict=True):
        for row in np.flatnonzero(part.null & ~null).tolist():
            bad.setdefault(row, f"it is null in {name!r}")
        for row, reason in part.bad.items():
            bad.setdefault(row, f"in {name!r}, {reason}")
    present = np.ones(len(null), bool)
    present[list(bad)] = False
    for name, part in zip(names[1:], parts[1:], strict=True):
        own, first = part.lengths, parts[0].lengths
        for row in np.flatnonzero((own != first) & present).tolist():
            bad.setdefault(row, f"it has {first[row]} steps in {names[0]!r} and {own[row]} in {name!r}")
    even = [Sequences.of(part.values, part.offsets, null, bad) for part in parts]
    values = np.stack([part.values[:, 0] for part in even], axis=1)
    return Sequences(values, even[0].offsets, null, bad)


def unflattened(given: Sequences, width: int) -> Sequences:
    """Returns rows of steps of `width` numbers, for rows of numbers. A row with a part of a step is bad."""
    lengths = given.lengths
    reasons = {
        int(row): f"it has {lengths[row]} numbers, which is no multiple of the model's {width}"
        for row in np.flatnonzero(lengths % width)
    }
    given = Sequences.of(given.values, given.offsets, given.null, given.bad | reasons)
    return Sequences(given.values.reshape(-1, width), given.offsets // width, given.null, given.bad)
