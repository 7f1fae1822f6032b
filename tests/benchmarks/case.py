"""One benchmark before its race: who runs, what the answer must be, what the machine allows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

import lnrnn
from machine import COPY, READ, READ_AHEAD, Loop
from race import Call, on_track


class Unavailable(Exception):
    """This benchmark cannot run here, for a reason that the reader of the table should know."""


@dataclass
class Limit:
    """What the machine would need for the bare work. `loops` run in the same race; `seconds` turns their
    seconds (one entry a round, by name) into seconds of one call, and `name` says what that is."""

    name: str
    loops: dict[str, Loop | Call]
    seconds: Callable[[dict[str, np.ndarray]], np.ndarray]


def traffic(size: int, threads: int, *, copies: int = 1, reads: int = 0) -> Limit:
    """The time to copy an array of `size` bytes `copies` times and read one like it `reads` times."""
    loops = {"memcpy": Loop(COPY, size, threads)}
    if reads:
        loops |= {"read": Loop(READ, size, threads), "read ahead": Loop(READ_AHEAD, size, threads)}

    def seconds(took):
        total = copies * took["memcpy"]
        return total + reads * np.minimum(took["read"], took["read ahead"]) if reads else total

    return Limit("memcpy" + (" + read" if reads else ""), loops, seconds)


@dataclass
class Case:
    """ours: the library's variants, the first of them the one to be judged. peers: builders, called in the
    worker; one that raises is left out and named. Every call returns an array or a tuple of arrays in the
    order of `reference`; `tolerance` is what each may differ by at most, absolutely (`peers_tolerance`: for
    peers, if they sum more loosely). `steps`: time steps in one call, by which times are divided in the
    table. `bounds`: what a variant of ours should take at most, in times of the judged one's (and `grace`
    seconds a call besides), and `also_judged`: variants that are compared with the best peer too; the table
    says both. `other_work`: peers that compute something else, which is no contest but worth knowing; none
    of them is the best peer. `counted`: what a call is, if the table shall say how many of it there are in a
    second. `beside`: what goes on beside the race, such as a busy neighbour. `tells_errors`: whether the
    table shall say how far each contender's first result is from `reference`, as it stands in `errors`: the
    largest and the mean error, relative to the largest value of the reference."""

    ours: dict[str, Call]
    peers: dict[str, Callable[[], Call]]
    reference: tuple[np.ndarray, ...]
    tolerance: tuple[float, ...]
    limit: Limit | None = None
    steps: int = 1
    peers_tolerance: tuple[float, ...] | None = None
    bounds: dict[str, float] = field(default_factory=dict)
    grace: float = 0.0
    also_judged: tuple[str, ...] = ()
    other_work: tuple[str, ...] = ()
    counted: str = ""
    beside: Callable[[], AbstractContextManager] | None = None
    tells_errors: bool = False
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def assemble(self) -> dict:
        """Every contender that is here and right, by name; our own must be right."""
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
            except Exception as error:  # whatever a peer trips over is told, and the race goes on without it
                wrong = f"refuses: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
            if wrong:
                self.left_out[name] = wrong
            else:
                contenders[name] = call
        return contenders

    def _wrong(self, name: str, call: Call, tolerance) -> str:
        """What is wrong with the answer; empty if nothing is. A contender's own tolerance goes first."""
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
            if self.tells_errors and k == 0:
                top = float(np.abs(want).max())
                self.errors[name] = error / top, float(errors.mean()) / top
            if not error <= allowed:
                return f"is wrong by {error:.3g} in result {k}, where {allowed:.3g} is allowed"
        return ""


def on_one_thread_too(judged: Call, threads: int) -> dict[str, Call]:
    """The judged call, and on several threads also the same on one."""
    if threads == 1:
        return {"lnrnn": judged}
    enter, leave = partial(lnrnn.set_num_threads, 1), partial(lnrnn.set_num_threads, threads)
    one = Call(judged.call, answer=judged.answer, enter=enter, leave=leave)
    return {"lnrnn": judged, "lnrnn 1 thread": one}


def as_float64(value) -> np.ndarray:
    """A result of any of the libraries as a float64 array."""
    if hasattr(value, "detach"):  # torch: numpy() knows no bfloat16
        value = value.detach().double().numpy()
    return np.asarray(value).astype(np.float64)


def tolerances(reference, dtype, units: float) -> tuple[float, ...]:
    """`units` roundings of the largest value of each result."""
    if np.dtype(dtype).kind == "V":  # bfloat16, which NumPy does not know
        from ml_dtypes import finfo
    else:
        from numpy import finfo
    return tuple(float(units * float(finfo(dtype).eps) * np.abs(r).max(initial=0)) for r in reference)
