"""Defines races of recurrent networks. Each public function below returns a Case.

worker.py calls these functions with the number of threads and the size.
"""

from __future__ import annotations

from functools import partial

import numpy as np

import lnrnn
from case import Case, Limit, on_one_thread_too
from cells import CELLS
from machine import READ, READ_AHEAD, Loop, fastest_arithmetic
from peers_narrow import NARROW
from peers_plain import PLAIN
from peers_rnn import STREAMED, WHOLE, builders
from race import Call
from short_weights import to_bfloat16, to_int8

BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


def _int8(w):
    numbers, scale = to_int8(w)
    return numbers * scale


ROUNDED = {"bfloat16": to_bfloat16, "int8": _int8}

# The largest permitted ratios of two times. NORM_COSTS: the time with layer norm divided by that without a
# norm, for H >= NORM_FROM. RAGGED: the time with lengths uniform in 1..T divided by the time with T steps.
NORM_COSTS, NORM_FROM, RAGGED = 1.1, 256, 0.6

# The tolerance with weights in a short type, as a multiple of the error that rounding the weights causes.
# Errors of peers were up to 7 times as large, because they also round activations, states and gates. No error
# may exceed MOST, because an answer with two gates exchanged is wrong by 0.45 to 1.7.
OURS_ROUND, PEERS_ROUND, MOST = 3, 10, 0.3

# Outputs are in -1..1. Right float32 answers of all libraries differ by 4e-6 at most, up to H = 1024 and for
# any T. A wrong formula causes errors a thousand times as large.
TOLERANCE = 2e-5


def _inputs(steps, batch, width):
    return np.random.default_rng(7).standard_normal((steps, batch, width), np.float32)


def _model(cell, p, norm="layer"):
    model = getattr(lnrnn, cell.NAME)(p["weight_ih"].shape[1], p["weight_hh"].shape[1], norm=norm)
    for name, value in p.items():
        setattr(model, f"{name}_l0", value)
    return model


def _work(cell, threads, batch, hidden, steps, dtype="float32", streamed=False) -> Limit:
    """Returns as limit the larger of two times. One is the arithmetic at the rate of the fastest
    multiply-add. The other is a read of the recurrent weights per step, at the bandwidth of an array of their
    size.

    streamed: the input weights are read in each step too. Each thread reads its part of the weights.
    """
    size = cell.GATES * hidden * hidden * BYTES[dtype] * (2 if streamed else 1)
    operations = 2 * batch * cell.GATES * hidden * 2 * hidden * steps
    peak = Loop(fastest_arithmetic(dtype, threads), threads=threads)
    peak.turn(1)
    share = operations / peak.work.value
    reads = {"read": Loop(READ, size, threads), "read ahead": Loop(READ_AHEAD, size, threads)}

    def seconds(took):
        reading = np.minimum(took["read"], took["read ahead"]) * steps
        computing = took["arithmetic"] * share
        limit.name = "weights" if np.median(reading) > np.median(computing) else "arithmetic"
        return np.maximum(reading, computing)

    limit = Limit("", {"arithmetic": peak, **reads}, seconds)
    return limit


def _ours(judged: Call, threads, **more: Call) -> dict[str, Call]:
    ours = on_one_thread_too(judged, threads)
    return {"lnrnn": ours.pop("lnrnn"), **{f"lnrnn {name}": call for name, call in more.items()}, **ours}


def _whole(model, x) -> Call:
    return Call(partial(model, x), answer=lambda: model(x)[0])


def whole(threads, cell, batch, hidden, steps):
    """Races whole sequences in float32."""
    cell = CELLS[cell]
    p, x = cell.parameters(hidden, hidden), _inputs(steps, batch, hidden)
    ours = _ours(_whole(_model(cell, p), x), threads)
    peers = builders(WHOLE, cell, cell.for_peers(p), x, threads)
    limit = _work(cell, threads, batch, hidden, steps)
    return Case(ours, peers, (cell.answer(p, x),), (TOLERANCE,), limit, steps)


def narrow(threads, cell, batch, hidden, steps, dtype, norm):
    """Races whole sequences with short weights against peers in the same type and lnrnn in float32."""
    cell = CELLS[cell]
    p = cell.parameters(hidden, hidden) if norm else cell.plain_parameters(hidden)
    x, full = _inputs(steps, batch, hidden), _model(cell, p, norm)
    answer = partial(cell.answer, norm=norm)
    want = answer(p, x)
    rounded = {name: ROUNDED[dtype](v) if v.ndim == 2 else v for name, v in p.items()}
    error = float(np.abs(answer(rounded, x) - want).max())
    more = {}
    if dtype == "int8":
        more["8-bit activations"] = _whole(full.to_dtype(dtype, activation_bits=8), x)
    ours = _ours(_whole(full.to_dtype(dtype), x), threads, **more, float32=_whole(full, x))
    ours["lnrnn float32"].tolerance = (TOLERANCE,)
    peers = builders(NARROW[norm][dtype], cell, cell.for_peers(p) if norm else p, x, threads)
    allowed, peers_allowed = min(OURS_ROUND * error, MOST), min(PEERS_ROUND * error, MOST)
    return Case(
        ours, peers, (want,), (allowed,), _work(cell, threads, batch, hidden, steps, dtype), steps,
        (peers_allowed,), also_judged=tuple(f"lnrnn {name}" for name in more), shows_errors=True,
    )  # fmt: skip


def streamed(threads, cell, batch, hidden, steps):
    """Races one step per call against peers that do the same and against lnrnn on the whole sequence."""
    cell = CELLS[cell]
    p, x = cell.parameters(hidden, hidden), _inputs(steps, batch, hidden)
    model = _model(cell, p)
    stream, xs = model.stream(batch), list(x)
    y = np.empty((batch, hidden), np.float32)

    def call():
        stream.reset()
        for x in xs:
            stream(x, out=y)

    def answer():
        stream.reset()
        return np.stack([stream(x, out=y).copy() for x in xs])

    peers = builders(STREAMED, cell, cell.for_peers(p), x, threads)
    ours = _ours(Call(call, answer=answer), threads, whole=_whole(model, x))
    limit = _work(cell, threads, batch, hidden, steps, streamed=True)
    return Case(ours, peers, (cell.answer(p, x),), (TOLERANCE,), limit, steps)


def plain(threads, cell, batch, hidden, steps):
    """Races a cell without a norm against the peers' own operators and against lnrnn with layer norm."""
    cell = CELLS[cell]
    p, x = cell.plain_parameters(hidden), _inputs(steps, batch, hidden)
    normed = _whole(_model(cell, cell.parameters(hidden, hidden)), x)
    normed.tolerance = (np.inf,)  # because this is another network, which `whole` checks
    ours, peers = (
        _ours(_whole(_model(cell, p, norm=None), x), threads, layer=normed),
        builders(PLAIN, cell, p, x, threads),
    )
    limit = _work(cell, threads, batch, hidden, steps)
    bounds = {"lnrnn layer": NORM_COSTS} if hidden >= NORM_FROM else {}
    return Case(
        ours, peers, (cell.answer(p, x, norm=None),), (TOLERANCE,), limit, steps, bounds=bounds,
        also_judged=("lnrnn layer",),
    )  # fmt: skip


def ragged(threads, cell, batch, hidden, steps):
    """Races lengths uniform in 1..T against the same sequences padded to T."""
    cell = CELLS[cell]
    p, x = cell.parameters(hidden, hidden), _inputs(steps, batch, hidden)
    model, lengths = _model(cell, p), np.random.default_rng(3).integers(1, steps + 1, batch)
    alive = (np.arange(steps)[:, None] < lengths)[:, :, None]
    short = partial(model, x, lengths=lengths)
    ours = {
        "lnrnn padded": Call(partial(model, x), answer=lambda: model(x)[0] * alive),
        "lnrnn ragged": Call(short, answer=lambda: short()[0]),
    }
    want, bounds = (cell.answer(p, x, lengths=lengths),), {"lnrnn ragged": RAGGED}
    return Case(ours, {}, want, (TOLERANCE,), None, steps, bounds=bounds)
