"""Defines a case of a benchmark: the contenders of a race, the right answer, and the machine's limit.

A contender is lnrnn or another library (a peer), as a function to time. README.md describes races."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

import lnrnn
from machine import COPY, READ, READ_AHEAD, Loop
from race import Call, on_track


class Unavailable(Exception):
    """A case, or a contender (a function to time), cannot run here. The table shows the reason."""


@dataclass
class Limit:
    """The limit of a race: the shortest time in which the machine could do the work of a call."""

    name: str
    loops: dict[str, Loop | Call]  # run as contenders in the same race
    seconds: Callable[[dict[str, np.ndarray]], np.ndarray]  # {loop: seconds by round} -> the limit by round


def traffic(size: int, threads: int, *, copies: int = 1, reads: int = 0) -> Limit:
    """Returns as limit the time of `copies` copies and `reads` reads of `size` bytes."""
    loops = {"memcpy": Loop(COPY, size, threads)}
    if reads:
        loops |= {"read": Loop(READ, size, threads), "read ahead": Loop(READ_AHEAD, size, threads)}

    def seconds(took):
        total = copies * took["memcpy"]
        return total + reads * np.minimum(took["read"], took["read ahead"]) if reads else total

    return Limit("memcpy" + (" + read" if reads else ""), loops, seconds)


@dataclass
class Case:
    """A race of lnrnn against peers. Calls return an array, or a tuple ordered like `reference`."""

    ours: dict[str, Call]  # lnrnn's contenders; the first is judged
    peers: dict[str, Callable[[], Call]]  # builders; if one raises an error, its peer does not race
    reference: tuple[np.ndarray, ...]
    tolerance: tuple[float, ...]  # the largest absolute error of each result
    limit: Limit | None = None
    steps: int = 1  # time steps of a call; tables show the time of one step
    peers_tolerance: tuple[float, ...] | None = None  # default: `tolerance`
    bounds: dict[str, float] = field(default_factory=dict)  # targets for time of a contender / judged one
    grace: float = 0.0  # seconds by which a contender of `bounds` may exceed its target
    also_judged: tuple[str, ...] = ()  # other contenders of `ours` to compare with the best peer
    other_work: tuple[str, ...] = ()  # peers that compute something else, so they are never the best peer
    shows_errors: bool = False  # whether the table shows `errors`
    # {contender: largest and mean error of its first result}, relative to the reference's largest value
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # {peer: reason}

    def assemble(self) -> dict:
        """Returns {name: contender with right answers}. Raises an error if lnrnn's are wrong."""
        contenders = {}
        for name, call in self.ours.items():
            if wrong := self._wrong(name, call, self.tolerance):
                raise AssertionError(f"{name} {wrong}")
            contenders[name] = call
        for name, build in self.peers.items():
            try:
                call = build()
                wrong = self._wrong(name, call, self.peers_tolerance or self.tolerance)
            except Unavailable as reason:
                wrong = str(reason)
            except ModuleNotFoundError as error:
                wrong = f"is not installed ({error.name})"
            except Exception as error:  # the race continues without this peer, and the table has the error
                wrong = f"refuses: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
            if wrong:
                self.left_out[name] = wrong
            else:
                contenders[name] = call
        return contenders

    def _wrong(self, name: str, call: Call, tolerance) -> str:
        """Describes the error of an answer. Returns "" if the answer is right."""
        with on_track(call):
            got = call.answer()
        got = got if isinstance(got, (tuple, list)) else (got,)
        reference = call.reference or self.reference
        if len(got) != len(reference):
            return f"gives {len(got)} results, not {len(reference)}"
        for k, (value, want, allowed) in enumerate(
            zip(got, reference, call.tolerance or tolerance, strict=True)
        ):
            value = as_float64(value)
            if value.shape != want.shape:
                return f"gives shape {value.shape} as result {k}, not {want.shape}"
            errors = np.abs(value - want)
            error = float(errors.max(initial=0))
            if self.shows_errors and k == 0:
                top = float(np.abs(want).max())
                self.errors[name] = error / top, float(errors.mean()) / top
            if not error <= allowed:
                return f"is wrong by {error:.3g} in result {k}, where {allowed:.3g} is allowed"
        return ""


def on_one_thread_too(judged: Call, threads: int) -> dict[str, Call]:
    """Returns the call to judge, and if there are several threads also the same call on one thread."""
    if threads == 1:
        return {"lnrnn": judged}
    enter, leave = partial(lnrnn.set_num_threads, 1), partial(lnrnn.set_num_threads, threads)
    one = Call(judged.call, answer=judged.answer, enter=enter, leave=leave)
    return {"lnrnn": judged, "lnrnn 1 thread": one}


def as_float64(value) -> np.ndarray:
    if hasattr(value, "detach"):  # a tensor of torch, whose numpy() knows no bfloat16
        value = value.detach().double().numpy()
    return np.asarray(value).astype(np.float64)


def tolerances(reference, dtype, roundings: float) -> tuple[float, ...]:
    """Returns a tolerance for each result: `roundings` times the rounding error of its largest value."""
    if np.dtype(dtype).kind == "V":  # bfloat16, which is no dtype of NumPy
        from ml_dtypes import finfo
    else:
        from numpy import finfo
    return tuple(float(roundings * float(finfo(dtype).eps) * np.abs(r).max(initial=0)) for r in reference)
