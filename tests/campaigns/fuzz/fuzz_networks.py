"""Fuzzes networks: each face of tests/conformance has the bits of a call for each sequence alone, which has
the reference's results."""

from __future__ import annotations

import copy
import pickle

import numpy as np
from cases import alone
from faces import FACES

import engine_switches
import lnrnn
from fuzz_draw import arranged, caches, described, drawn_case, pick
from fuzz_judge import alike
from fuzz_truth import compare, forward, rounded, short_step
from helpers import rounds_bfloat16_rows, using_caches
from networks import only_forward, parts, whole

# Faces that need no other package, no compiler, and no sizes that threads can divide.
EVERY = {
    f"{group}, {name}": face
    for group in ("Python", "streams", "files")
    for name, face in FACES[group].items()
    if name not in ("threads", "side by side") and "C" not in name.split()
}


def laid_out(case):
    """x and a state in another memory layout, other sizes of caches, and threads that wait for each other."""
    rng = np.random.default_rng(case.x.size)
    x, *start = (next((array for _, array in arranged(rng, a, 1)), a) for a in (case.x, *(case.start or ())))
    h0 = whole(case.rnn, start) if start else None
    engine_switches.set_barrier_mode(pick(rng, ("together", "staggered", "slow")))
    try:
        with using_caches(caches(rng)):
            return case.ended(*case.rnn(x, h0, case.lengths, case.resets, threads=3))
    finally:
        engine_switches.set_barrier_mode("normal")


EVERY["layouts"] = laid_out, lambda case: True


def copy_of(rng, thing):
    """Returns (kind of copy, copy)."""
    at = rng.integers(3)
    if at == 2:
        return "pickle", pickle.loads(pickle.dumps(thing))
    return ("deepcopy", copy.deepcopy(thing)) if at else ("copy", copy.copy(thing))


def equal(judge, kind, rnn, got, want, label) -> None:
    """Counts one execution, and asserts that y and all states have equal bits."""
    judge.counts[kind] += 1
    for g, w in zip((got[0], *parts(rnn, got[1])), (want[0], *parts(rnn, want[1])), strict=True):
        alike(np.ascontiguousarray(g), np.ascontiguousarray(w), label)


def case(rng, judge) -> None:
    drawn = drawn_case(rng)
    y, ends = alone(drawn)
    label = f"{described(drawn.rnn)}, {drawn.x.shape}, lengths {drawn.lengths}, {drawn.threads} threads"
    faces = [name for name, (_, takes) in EVERY.items() if takes(drawn)]
    for name in dict.fromkeys(["Python, call", *(pick(rng, faces) for _ in range(6))]):
        got, states = EVERY[name][0](drawn)
        judge.counts[name] += 1
        for a, b in zip((got, *(states or ())), (y, *ends), strict=bool(states)):
            alike(np.ascontiguousarray(a), np.ascontiguousarray(b), f"{label}, {name}")
    if drawn.resets is None and not np.any(drawn.rnn.zoneout):
        truth(judge, drawn, [y, *ends], label)


def truth(judge, drawn, results, label) -> None:
    """Compares with the reference. If only weights are rounded to bfloat16, a float32 network with the
    rounded weights must give the same bits. If x and h are rounded too, single steps are compared."""
    rnn, x = drawn.rnn, np.where(np.arange(len(drawn.x))[:, None, None] < drawn.lengths[:, None], drawn.x, 0)
    if rnn.dtype == "int8" or (rnn.dtype == "bfloat16" and rounds_bfloat16_rows()):
        # Exclude networks that round r h or the input of a projection, because the double-precision value
        # may be rounded to another number than the kernel's. A head has its own scale.
        exact = getattr(rnn, "reset_after", True) and not getattr(rnn, "proj_size", 0)
        exact = exact and getattr(rnn, "num_heads", 1) == 1 and not isinstance(rnn, lnrnn.SLSTM)
        if exact and rnn.num_layers == 1 and only_forward(rnn) and x.size and rnn.norm is None:
            state = drawn.states
            for row in x:
                y, h = rnn(row[None], whole(rnn, state))
                want = short_step(rnn, row[None], state)
                judge.counts["call"] += 1
                for k, (g, w) in enumerate(zip((y, *parts(rnn, h)), want, strict=True)):
                    size, where = np.abs(w).max(initial=1), f"{label}, {rnn.dtype} step, result {k}"
                    judge.within(g, w, 3e-6 * size, where, f"{rnn.dtype} step")
                state = parts(rnn, h)
        return
    single = rnn.to_dtype("float32")
    if rnn.dtype == "bfloat16":
        single = rounded(single)
        got = single(x, drawn.h0, drawn.lengths)
        equal(judge, "call", rnn, got, (results[0], whole(rnn, results[1:])), f"{label}, rounded weights")
    compare(judge, "call", forward(drawn.lengths), results, single, (x, *parts(rnn, drawn.h0)), label)
