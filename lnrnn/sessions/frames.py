"""Checks the arguments of a pool's step: ids and frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable
from typing import Any, Literal

import numpy as np

from ..errors import SequenceTooLongError, bad_type, bad_value, described, message, real
from ..rnn.batches import FLOAT32
from ..rnn.rows import padded
from ..rnn.snapshot import LAST_STEP, Snapshot
from .errors import SessionError

Array = np.ndarray
Bad = Literal["raise", "reset", "pass"]


def listed(ids: Any) -> list[Hashable]:
    if isinstance(ids, (str, bytes)):
        raise bad_type("ids", "a sequence of ids", ids, "for one session give [id]")
    try:
        return list(ids.tolist() if isinstance(ids, np.ndarray) else ids)
    except TypeError:
        raise bad_type("ids", "a sequence of ids", ids) from None


def not_live(ids: Any, pool: Container[Hashable]) -> SessionError:
    wrong = [id for id in ids if id not in pool]
    got = described(wrong[0]) if wrong else "others"
    return SessionError(message("ids", "ids of live sessions", got, "join it first"), wrong)


def frames(ids: Any, x: Any, width: int, bad: Bad) -> tuple[Array, Array | None]:
    """Returns (x as float32 (R, width), indices of frames to reset or None). Raises if x is invalid."""
    x = real("x", x)[...]
    wide = len(ids), width
    if x.shape != wide:
        raise bad_value("x", f"of shape {wide}, a frame for each of the ids", x)
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.array(x, FLOAT32, order="C")
    wrong = np.zeros(0, int) if bad == "pass" else np.flatnonzero(~np.isfinite(x).all(1))
    if not len(wrong):
        return x, None
    if bad == "raise":
        k = wrong[0]
        value = x[k][~np.isfinite(x[k])][0]
        got = f"{value} in the frame {k}, of session {ids[k]!r:.60}"
        raise SessionError(message("x", "finite", got), [ids[k] for k in wrong])
    return x, wrong


def refuse_twice(ids: Any, rows: Array) -> None:
    """Raises SessionError if two ids are equal. rows (R,): their lanes."""
    if len(set(rows.tolist())) != len(rows):
        twice = [id for id, count in Counter(ids).items() if count > 1]
        raise SessionError(message("ids", "different", f"{described(twice[0])} twice"), twice)


def refuse_last(ids: Any, steps: Array, snapshot: Snapshot) -> None:
    """Raises SessionError if a session cannot make another step. steps (R,): steps made so far."""
    try:
        snapshot.refuse_overrun(padded(None, 1, len(steps)).after(steps).table)
    except SequenceTooLongError as error:
        id = ids[error.sequence]
        raise SessionError(f"session {id!r:.60}: {error}", [id]) from error
    if steps.size and steps.max() >= LAST_STEP:
        k = int(steps.argmax())
        text = message(f"the step of session {ids[k]!r:.60}", f"less than {LAST_STEP}", f"{steps[k]}")
        raise SessionError(text, [ids[k]])
