"""A case: the contenders of one race, the right answer, and the machine's limit."""

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
    """The case or the contender cannot run here. The table shows the reason."""


@dataclass
class Limit:
    """The least time in which the machine could do the work of a call."""

    name: str
    loops: dict[str, Loop | Call]  # contenders of the same race
    seconds: Callable[[dict[str, np.ndarray]], np.ndarray]  # {loop: seconds by round} -> seconds of a call


def traffic(size: int, threads: int, *, copies: int = 1, reads: int = 0) -> Limit:
    """The time to copy an array of `size` bytes `copies` times and to read it `reads` times."""
    loops = {"memcpy": Loop(COPY, size, threads)}
    if reads:
        loops |= {"read": Loop(READ, size, threads), "read ahead": Loop(READ_AHEAD, size, threads)}

    def seconds(took):
        total = copies * took["memcpy"]
        return total + reads * np.minimum(took["read"], took["read ahead"]) if reads else total

    return Limit("memcpy" + (" + read" if reads else ""), loops, seconds)


@dataclass
class Case:
    """A call of a contender returns an array, or a tuple of arrays in the order of `reference`."""

    ours: dict[str, Call]  # lnrnn's contenders; the first is judged
    peers: dict[str, Callable[[], Call]]  # builders; a peer whose builder raises is left out
    reference: tuple[np.ndarray, ...]
    tolerance: tuple[float, ...]  # the largest absolute error of each result
    limit: Limit | None = None
    steps: int = 1  # time steps of a call; tables show the time of one
    peers_tolerance: tuple[float, ...] | None = None  # if it is not `tolerance`
    bounds: dict[str, float] = field(default_factory=dict)  # targets: time of a contender / the judged one's
    grace: float = 0.0  # seconds that a bounded contender's call may take more
    also_judged: tuple[str, ...] = ()  # more of `ours` to compare with the best peer
    other_work: tuple[str, ...] = ()  # peers that compute something else, and never count as the best
    counted: str = ""  # the name of a call, if the table shows how many calls a second takes
    during: Callable[[], AbstractContextManager] | None = None  # entered while the race runs
    shows_errors: bool = False  # whether the table shows `errors`
    # {contender: largest and mean error of its first result}, relative to the reference's largest value
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # {peer: reason}

    def assemble(self) -> dict:
        """The contenders whose answers are right, by name. Raises if one of lnrnn's is wrong."""
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
            except Exception as error:  # the table shows it, and the race continues without the peer
                wrong = f"refuses: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
            if wrong:
                self.left_out[name] = wrong
            else:
                contenders[name] = call
        return contenders

    def _wrong(self, name: str, call: Call, tolerance) -> str:
        """The error of an answer as a text; empty if it is right."""
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
    """The judged call; if there are several threads, also the same call on one."""
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


def tolerances(reference, dtype, roundings: float) -> tuple[float, ...]:
    """So many roundings of the largest value of each result."""
    if np.dtype(dtype).kind == "V":  # bfloat16, which NumPy does not know
        from ml_dtypes import finfo
    else:
        from numpy import finfo
    return tuple(float(roundings * float(finfo(dtype).eps) * np.abs(r).max(initial=0)) for r in reference)
