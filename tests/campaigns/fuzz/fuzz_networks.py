"""Fuzzes inference on whole sequences: every cell, norm, option and type of weights, against the reference.

Bits must not depend on other sequences of the batch, memory layouts, divisions of a sequence, and threads.
Copies and files of the network must give the same bits.
"""

from __future__ import annotations

import copy
import os
import pickle
import tempfile

import numpy as np

import lnrnn
from fuzz_draw import arranged, caches, chance, inputs, lengths, network, pick
from fuzz_judge import alike
from fuzz_truth import compare, forward, rounded, short_step
from helpers import rounds_bfloat16_rows, using_caches
from networks import drawn_state, newer_arguments, only_forward, parts, taken, whole, widths

KNOWN = 4  # how many steps have statistics of batch norm
OPTIONS = "input_size", "hidden_size", "num_layers", "norm", "bias", "batch_first", "bidirectional"
FILE = os.path.join(tempfile.gettempdir(), f"fuzz{os.getpid()}.safetensors")


def described(rnn) -> str:
    f = getattr(rnn, "nonlinearity", "")
    values = {n: getattr(rnn, n) for n in OPTIONS} | newer_arguments(rnn) | {"dtype": rnn.dtype}
    return f"{type(rnn).__name__} {f} " + ", ".join(f"{n}={value!r}" for n, value in values.items())


def swapped(rnn, a: np.ndarray) -> np.ndarray:
    """Swaps the first two axes of `a` if the network has batch_first: to (T, B, ...) or back."""
    return a.swapaxes(0, 1) if rnn.batch_first else a


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
    rnn = network(rng, known=KNOWN)
    batch_norm = isinstance(rnn.norm, lnrnn.BatchNormSpec)
    dtype = pick(rng, ("float32",) * 3 + ("bfloat16", "int8"))
    single, rnn = rnn, rnn.to_dtype(dtype, pick(rng, (None, 14, 8)) if dtype == "int8" else None)
    steps = int(rng.integers(0, KNOWN + 1 if batch_norm and rnn.overrun == "raise" else 9))
    batch = int(rng.integers(0, 8)) if chance(rng, 0.93) else int(rng.integers(8, 70))
    x, ends = inputs(rng, rnn, steps, batch), lengths(rng, steps, batch)
    h0 = drawn_state(rng, rnn, batch) if chance(rng, 0.6) else None
    label = f"{described(rnn)}, {steps} steps of {batch}, lengths {ends}"

    def call(x, h0=h0, ends=ends):
        y, h = rnn(swapped(rnn, x), h0, ends)
        return swapped(rnn, y), h

    y, h = first = call(x)
    truth(judge, rnn, single, x, h0, ends, first, label)
    same_call(rng, judge, rnn, call, x, h0, ends, first, label)
    copies(rng, judge, rnn, swapped(rnn, x), h0, ends, (swapped(rnn, y), h), label)
    # After KNOWN steps, overrun "batch" uses statistics of all sequences, so each depends on the others.
    independent = not (batch_norm and rnn.overrun == "batch" and steps > KNOWN)
    if independent:
        other_batches(rng, judge, rnn, call, x, h0, ends, first, label)
    if only_forward(rnn) and batch and (independent or ends is None):
        stream(rng, judge, rnn, x, h0, ends, first, label)


def truth(judge, rnn, single, x, h0, ends, got, label) -> None:
    """Compares with the reference. If only weights are rounded to bfloat16, a float32 network with the
    rounded weights must give the same bits. If x and h are rounded too, single steps are compared."""
    results = [got[0], *parts(rnn, got[1])]
    if rnn.dtype == "int8" or (rnn.dtype == "bfloat16" and rounds_bfloat16_rows()):
        # Exclude networks that round r h or the input of a projection, because the double-precision value
        # may be rounded to another number than the kernel's.
        exact = getattr(rnn, "reset_after", True) and not getattr(rnn, "proj_size", 0)
        exact = exact and getattr(rnn, "num_heads", 1) == 1  # a head has its own scale
        steps = only_forward(rnn) and exact and not isinstance(rnn, lnrnn.SLSTM)
        if rnn.num_layers == 1 and steps and ends is None and x.size and rnn.norm is None:
            state = [np.zeros((1, x.shape[1], width), np.float32) if s is None else s
                     for s, width in zip(parts(rnn, h0), widths(rnn), strict=True)]  # fmt: skip
            for row in x:
                y, h = rnn(swapped(rnn, row[None]), whole(rnn, state))
                want = short_step(rnn, row[None], state)
                judge.counts["call"] += 1
                for k, (g, w) in enumerate(zip((swapped(rnn, y), *parts(rnn, h)), want, strict=True)):
                    size = np.abs(w).max(initial=1)
                    where = f"{label}, {rnn.dtype} step, result {k}"
                    judge.within(g, w, 3e-6 * size, where, f"{rnn.dtype} step")
                state = parts(rnn, h)
        return
    if rnn.dtype == "bfloat16":
        single = rounded(single)
        y, h = single(swapped(rnn, x), h0, ends)
        equal(judge, "call", rnn, got, (swapped(rnn, y), h), f"{label}, rounded weights")
    compare(judge, "call", forward(ends), results, single, (x, *parts(rnn, h0)), label)


def same_call(rng, judge, rnn, call, x, h0, ends, first, label) -> None:
    """Checks that other dtypes, types and memory layouts of the arguments give the same bits."""
    for name, other in arranged(rng, np.ascontiguousarray(swapped(rnn, x)), 4):
        y, h = rnn(other, h0, ends)
        equal(judge, "call", rnn, (swapped(rnn, y), h), first, f"{label}, x {name}")
    equal(judge, "call", rnn, call(x.astype(np.float64)), first, f"{label}, x in float64")
    for threads in (2, 3):
        lnrnn.set_num_threads(threads)
        equal(judge, "call", rnn, call(x), first, f"{label}, {threads} threads")
    lnrnn.set_num_threads(1)
    with using_caches(caches(rng)):
        equal(judge, "call, other caches", rnn, call(x), first, f"{label}, other caches")
    if ends is not None:
        given = pick(rng, (ends.tolist(), ends.astype(np.int8), ends.astype(">i4"), np.repeat(ends, 2)[::2]))
        equal(judge, "call", rnn, call(x, ends=given), first, f"{label}, lengths as {type(given)}")
    if h0 is not None:
        for name, other in arranged(rng, parts(rnn, h0)[0], 2):
            start = whole(rnn, [other, *parts(rnn, h0)[1:]])
            equal(judge, "call", rnn, call(x, start), first, f"{label}, h0 {name}")


def other_batches(rng, judge, rnn, call, x, h0, ends, first, label) -> None:
    """Checks that sequences have equal bits alone, in another order, in two parts, and with any padding."""
    y, h = first
    steps, batch = x.shape[:2]
    for b in rng.permutation(batch)[:3]:
        n = steps if ends is None else int(ends[b])
        got = call(x[:n, b : b + 1], some(rnn, h0, [b]), None)
        equal(judge, "call", rnn, got, (y[:n, b : b + 1], taken(rnn, h, [b])), f"{label}, sequence {b} alone")
    who = rng.permutation(batch)[: rng.integers(0, batch + 1)]
    got = call(x[:, who], some(rnn, h0, who), None if ends is None else ends[who])
    equal(judge, "call", rnn, got, (y[:, who], taken(rnn, h, who)), f"{label}, sequences {who}")
    here = np.full(batch, steps) if ends is None else ends
    more = int(rng.integers(0, 4))
    wide = np.concatenate([x, np.zeros((more, *x.shape[1:]), np.float32)])
    wide[np.arange(len(wide))[:, None] >= here] = pick(rng, (np.nan, np.inf, 1e30))
    padded, end = call(wide, ends=here)
    assert not padded[steps:].any(), f"{label}: y past a length"
    equal(judge, "call", rnn, (padded[:steps], end), first, f"{label}, {more} steps of padding")
    if ends is None and steps and only_forward(rnn) and not isinstance(rnn.norm, lnrnn.BatchNormSpec):
        cut = int(rng.integers(0, steps + 1))
        one, middle = call(x[:cut])
        two, end = call(x[cut:], middle)
        equal(judge, "call", rnn, (np.concatenate([one, two]), end), first, f"{label}, cut at {cut}")
    if batch and chance(rng, 0.3):
        b = int(rng.integers(batch))
        start = None if h0 is None else whole(rnn, [s[:, b] for s in parts(rnn, h0)])
        got_y, got_h = rnn(x[:, b], start, None if ends is None else int(ends[b]))
        want = whole(rnn, [s[:, b] for s in parts(rnn, h)])
        alone = f"{label}, sequence {b} without a batch axis"
        equal(judge, "call", rnn, (got_y, got_h), (y[:, b], want), alone)


def some(rnn, state, who):
    return None if state is None else taken(rnn, state, who)


def stream(rng, judge, rnn, x, h0, ends, first, label) -> None:
    y, h = first
    s = rnn.stream(x.shape[1])
    if h0 is not None:
        s.state = h0
    for t, row in enumerate(x):
        got = s(row)
        alive = slice(None) if ends is None else ends > t
        judge.same("stream step", got[alive], y[t, alive], f"{label}, stream, step {t}")
    if ends is None:
        equal(judge, "stream state", rnn, (y, s.state), first, f"{label}, the stream's last state")


def copies(rng, judge, rnn, x, h0, ends, first, label) -> None:
    """Checks that a copy of any kind computes the same bits."""
    at = rng.random()
    if at < 0.6:
        name, other = copy_of(rng, rnn)
    elif at < 0.8:
        name, other = "state dict", anew(rnn)
    else:
        name = "file"
        rnn.save(FILE)
        other = lnrnn.load(FILE)
        os.remove(FILE)
    equal(judge, name, rnn, other(x, h0, ends), first, f"{label}, {name}")


def anew(rnn):
    """Returns a new network with the same arguments and state."""
    names = [*OPTIONS, *["nonlinearity"] * hasattr(rnn, "nonlinearity")]
    other = type(rnn)(seed=5, **{name: getattr(rnn, name) for name in names}, **newer_arguments(rnn))
    other.load_state_dict(rnn.state_dict())
    if rnn.overrun:
        other.overrun = rnn.overrun
    return other.to_dtype(rnn.dtype, rnn.activation_bits)
