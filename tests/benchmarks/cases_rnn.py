"""The recurrent benchmarks: models, our calls, the answer, and what the machine needs for the bare work.

The functions below run in a worker process; the tests name them. Arguments: threads, then the size.
"""

from __future__ import annotations

from functools import partial
from inspect import signature

import numpy as np

import lnrnn
import rounding
from case import Case, Limit, Unavailable, on_one_thread_too
from cells import CELLS
from machine import READ, READ_AHEAD, Loop, fastest_unit
from neighbours import busy_process
from peers_narrow import NARROW
from peers_plain import PLAIN
from peers_rnn import STREAMED, WHOLE, builders
from race import Call

BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}

# What should be reached: by layer norm over the plain cell from H = 256 on; by lengths uniform in 1..T over
# all of T steps; by several threads over one beside a busy process. The threads must wait there for the one
# whose core is taken; a collapse, a time slice lost at each step, is far beyond 2.
NORM_COSTS, NORM_FROM, RAGGED, BESIDE = 1.1, 256, 0.6, 2.0

# What rounding to a type does to weights, and by how much an answer may be wrong, in times of the largest
# error that this alone makes. Peers round activations, states and gates too, and were wrong by 7 times as
# much; but by MOST at most: with two gates exchanged an answer is wrong by 0.45 to 1.7.
OURS_ROUND, PEERS_ROUND, MOST = 3, 10, 0.3

# Outputs lie within -1..1. Right float32 answers of all libraries differ by 4e-6 at most (up to H = 1024, any
# T); a wrong formula is off by a thousand times as much.
TOLERANCE = 2e-5


def _inputs(steps, batch, width):
    return np.random.default_rng(7).standard_normal((steps, batch, width), np.float32)


def _model(cell, p, norm="layer"):
    """Our model of a cell with these parameters."""
    if not hasattr(lnrnn, cell.NAME):
        raise Unavailable(f"this lnrnn has no {cell.NAME}")
    model = getattr(lnrnn, cell.NAME)(p["weight_ih"].shape[1], p["weight_hh"].shape[1], norm=norm)
    for name, value in p.items():
        setattr(model, f"{name}_l0", value)
    return model


def _work(cell, threads, batch, hidden, steps, dtype="float32", streamed=False) -> Limit:
    """The larger of two times: the arithmetic at the peak of the type's fastest multiply-add, and reading the
    recurrent weights once a step at the bandwidth that an array of their size gets, wherever it lies. A
    stream reads the input weights at each step too. Each thread has its part of the weights."""
    size = cell.GATES * hidden * hidden * BYTES[dtype] * (2 if streamed else 1)
    operations = 2 * batch * cell.GATES * hidden * 2 * hidden * steps
    peak = Loop(fastest_unit(dtype, threads), threads=threads)
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
    """Whole sequences, float32."""
    cell = CELLS[cell]
    p, x = cell.parameters(hidden, hidden), _inputs(steps, batch, hidden)
    ours = _ours(_whole(_model(cell, p), x), threads)
    peers = builders(WHOLE, cell, cell.for_peers(p), x, threads)
    limit = _work(cell, threads, batch, hidden, steps)
    return Case(ours, peers, (cell.answer(p, x),), (TOLERANCE,), limit, steps)


def _narrow_models(model, dtype) -> dict[str, lnrnn.Network]:
    """{a word besides the type: the model with weights of this type}, for every kind of activations that
    there is; the first, which is judged, has no word."""
    models = {"": model.to_dtype(dtype)}
    if dtype == "int8" and "activation_bits" in signature(model.to_dtype).parameters:
        models["8-bit activations"] = model.to_dtype(dtype, activation_bits=8)
    return models


def narrow(threads, cell, batch, hidden, steps, dtype, norm):
    """Whole sequences, weights in bfloat16 or int8, against peers in the same type and our own float32; norm
    "layer" or None. How wrong an answer may be is measured in what rounding the weights alone does to it."""
    cell = CELLS[cell]
    p = cell.parameters(hidden, hidden) if norm else cell.plain_parameters(hidden)
    x, full = _inputs(steps, batch, hidden), _model(cell, p, norm)
    answer = partial(cell.answer, norm=norm)
    want = answer(p, x)
    rounded = {name: getattr(rounding, dtype)(v) if v.ndim == 2 else v for name, v in p.items()}
    error = float(np.abs(answer(rounded, x) - want).max())
    (_, judged), *others = _narrow_models(full, dtype).items()
    more = {name: _whole(model, x) for name, model in others}
    ours = _ours(_whole(judged, x), threads, **more, float32=_whole(full, x))
    ours["lnrnn float32"].tolerance = (TOLERANCE,)
    peers = builders(NARROW[norm][dtype], cell, cell.for_peers(p) if norm else p, x, threads)
    allowed, peers_allowed = min(OURS_ROUND * error, MOST), min(PEERS_ROUND * error, MOST)
    return Case(
        ours, peers, (want,), (allowed,), _work(cell, threads, batch, hidden, steps, dtype), steps,
        (peers_allowed,), also_judged=tuple(f"lnrnn {name}" for name in more), tells_errors=True,
    )  # fmt: skip


def streamed(threads, cell, batch, hidden, steps):
    """One step a call, against the same model over the whole sequence and against peers that step."""
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


def batch_norm(threads, cell, batch, hidden, steps):
    """Batch norm by time step at inference, against layer norm in the same cell; no peer has it."""
    cell = CELLS[cell]
    p, x = cell.parameters(hidden, hidden), _inputs(steps, batch, hidden)
    model = _model(cell, p, norm="batch")
    model.calibrate([_inputs(steps, 16, hidden)])
    statistics = tuple(np.array(s) for s in (model.running_mean_l0, model.running_var_l0))
    plain = _whole(_model(cell, p), x)
    plain.tolerance = (np.inf,)  # another model: checked by `whole`
    want = cell.answer(p, x, norm="batch", statistics=statistics)
    limit = _work(cell, threads, batch, hidden, steps)
    return Case(_ours(_whole(model, x), threads, LN=plain), {}, (want,), (TOLERANCE,), limit, steps)


def plain(threads, cell, batch, hidden, steps):
    """The cell without a norm, against torch.nn and the libraries' own operators; and what our norm costs."""
    cell = CELLS[cell]
    p, x = cell.plain_parameters(hidden), _inputs(steps, batch, hidden)
    normed = _whole(_model(cell, cell.parameters(hidden, hidden)), x)
    normed.tolerance = (np.inf,)  # another model: checked by `whole`
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
    """Lengths uniform in 1..T, against the same sequences padded to T."""
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


def neighbour(threads, cell, batch, hidden, steps):
    """One thread and several, beside a process that computes without end on the same CPUs."""
    if threads == 1:
        raise Unavailable("one thread on one core only takes turns with a neighbour")
    cell = CELLS[cell]
    p, x = cell.parameters(hidden, hidden), _inputs(steps, batch, hidden)
    name, ours = f"lnrnn {threads} threads", on_one_thread_too(_whole(_model(cell, p), x), threads)
    ours = {"lnrnn 1 thread": ours["lnrnn 1 thread"], name: ours["lnrnn"]}
    want, bounds = (cell.answer(p, x),), {name: BESIDE}
    return Case(ours, {}, want, (TOLERANCE,), None, steps, bounds=bounds, beside=busy_process)
