"""The recurrent benchmarks: models, our calls, the answer, and what the machine needs for the bare work.

The functions below run in a worker process; the tests name them. Arguments: threads, then the size.
"""

from __future__ import annotations

from functools import partial

import numpy as np

import cell_gru
import cell_lstm
import cell_rnn
import lnrnn
from case import Case, Limit, Unavailable
from lnrnn import reference
from machine import DOT_BF16, DOT_INT8, FMA_F32, READ, READ_AHEAD, Loop
from neighbours import busy_process
from peers_plain import PLAIN
from peers_rnn import STREAMED, WHOLE, builders, openvino_scan
from race import Call

CELLS = {"rnn": cell_rnn, "lstm": cell_lstm, "gru": cell_gru}
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
PEAKS = {"float32": FMA_F32, "bfloat16": DOT_BF16, "int8": DOT_INT8}

# What should be reached: by layer norm over the plain cell from H = 256 on; by lengths uniform in 1..T over
# all of T steps; by several threads over one beside a busy process. The threads must wait there for the one
# whose core is taken; a collapse, a time slice lost at each step, is far beyond 2.
NORM_COSTS, NORM_FROM, RAGGED, BESIDE = 1.1, 256, 0.6, 2.0

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
    """The larger of two times: the arithmetic at the peak of the type's multiply-add, and reading the
    recurrent weights once a step at the bandwidth that an array of their size gets, wherever it lies. A
    stream reads the input weights at each step too. Each thread has its part of the weights."""
    size = cell.GATES * hidden * hidden * BYTES[dtype] * (2 if streamed else 1)
    operations = 2 * batch * cell.GATES * hidden * 2 * hidden * steps
    peak = Loop(PEAKS[dtype], threads=threads)
    peak.turn(1)
    if not peak.work.value:  # no such instruction here: the type is widened and multiplied as float32
        peak = Loop(FMA_F32, threads=threads)
        peak.turn(1)
    share = operations / peak.work.value
    loops = {
        "arithmetic": peak,
        "read": Loop(READ, size, threads),
        "read ahead": Loop(READ_AHEAD, size, threads),
    }

    def seconds(took):
        reading = np.minimum(took["read"], took["read ahead"]) * steps
        computing = took["arithmetic"] * share
        limit.name = "weights" if np.median(reading) > np.median(computing) else "arithmetic"
        return np.maximum(reading, computing)

    limit = Limit("", loops, seconds)
    return limit


def _ours(call, threads, answer=None, **more) -> dict[str, Call]:
    ours = {"lnrnn": Call(call, answer=answer), **{f"lnrnn {name}": other for name, other in more.items()}}
    if threads > 1:
        ours["lnrnn 1 thread"] = Call(
            call,
            answer=answer,
            enter=partial(lnrnn.set_num_threads, 1),
            leave=partial(lnrnn.set_num_threads, threads),
        )
    return ours


def _whole(model, x) -> Call:
    return Call(partial(model, x), answer=lambda: model(x)[0])


def whole(threads, cell, batch, hidden, steps):
    """Whole sequences, float32."""
    cell = CELLS[cell]
    p, x = cell.parameters(hidden, hidden), _inputs(steps, batch, hidden)
    call = _whole(_model(cell, p), x)
    peers = builders(WHOLE, cell, cell.for_peers(p), x, threads)
    return Case(
        _ours(call.call, threads, call.answer),
        peers,
        (cell.answer(reference, p, x),),
        (TOLERANCE,),
        _work(cell, threads, batch, hidden, steps),
        steps,
    )


def _rounded(p, dtype) -> dict[str, np.ndarray]:
    """The parameters with matrices rounded to the type: bfloat16 to the nearest, int8 with one scale a
    row."""

    def rounded(w):
        if dtype == "bfloat16":
            bits = w.view(np.uint32)
            return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
        scale = np.abs(w).max(1, keepdims=True) / 127
        return np.rint(w / scale) * scale

    return {name: rounded(v) if v.ndim == 2 else v for name, v in p.items()}


def narrow(threads, cell, batch, hidden, steps, dtype):
    """Whole sequences, weights in bfloat16 or int8, against float32 peers, and OpenVINO in bfloat16."""
    cell = CELLS[cell]
    p, x = cell.parameters(hidden, hidden), _inputs(steps, batch, hidden)
    full = _model(cell, p)
    if not hasattr(full, "to_dtype"):
        raise Unavailable("this lnrnn has no to_dtype")
    want = cell.answer(reference, p, x)
    # What rounding the weights alone does to the answer; rounding activations as well may triple it.
    error = 3 * float(np.abs(cell.answer(reference, _rounded(p, dtype), x) - want).max())
    call, plain = _whole(full.to_dtype(dtype), x), _whole(full, x)
    ours = _ours(call.call, threads, call.answer, float32=plain)
    for name, contender in ours.items():
        contender.tolerance = (TOLERANCE if name == "lnrnn float32" else error,)
    theirs = cell.for_peers(p)
    peers = builders(WHOLE, cell, theirs, x, threads)
    if dtype == "bfloat16":
        peers["openvino bf16"] = partial(openvino_scan, cell, theirs, x, threads, "bf16", (error,))
    return Case(ours, peers, (want,), (TOLERANCE,), _work(cell, threads, batch, hidden, steps, dtype), steps)


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
    return Case(
        _ours(call, threads, answer, whole=_whole(model, x)),
        peers,
        (cell.answer(reference, p, x),),
        (TOLERANCE,),
        _work(cell, threads, batch, hidden, steps, streamed=True),
        steps,
    )


def batch_norm(threads, cell, batch, hidden, steps):
    """Batch norm by time step at inference, against layer norm in the same cell; no peer has it."""
    cell = CELLS[cell]
    p, x = cell.parameters(hidden, hidden), _inputs(steps, batch, hidden)
    model = _model(cell, p, norm="batch")
    model.calibrate([_inputs(steps, 16, hidden)])
    statistics = tuple(np.array(s) for s in (model.running_mean_l0, model.running_var_l0))
    plain = _whole(_model(cell, p), x)
    plain.tolerance = (np.inf,)  # another model: checked by `whole`
    call = _whole(model, x)
    return Case(
        _ours(call.call, threads, call.answer, LN=plain),
        {},
        (cell.answer(reference, p, x, norm="batch", statistics=statistics),),
        (TOLERANCE,),
        _work(cell, threads, batch, hidden, steps),
        steps,
    )


def plain(threads, cell, batch, hidden, steps):
    """The cell without a norm, against torch.nn and the libraries' own operators; and what our norm costs."""
    cell = CELLS[cell]
    random, bound = np.random.default_rng(0), hidden**-0.5  # as torch initialises
    shapes = {
        "weight_ih": (cell.GATES * hidden, hidden),
        "weight_hh": (cell.GATES * hidden, hidden),
        "bias_ih": (cell.GATES * hidden,),
        "bias_hh": (cell.GATES * hidden,),
    }
    p = {name: random.uniform(-bound, bound, shape).astype(np.float32) for name, shape in shapes.items()}
    x = _inputs(steps, batch, hidden)
    call = _whole(_model(cell, p, norm=None), x)
    normed = _whole(_model(cell, cell.parameters(hidden, hidden)), x)
    normed.tolerance = (np.inf,)  # another model: checked by `whole`
    return Case(
        _ours(call.call, threads, call.answer, layer=normed),
        builders(PLAIN, cell, p, x, threads),
        (cell.plain_answer(reference, p, x),),
        (TOLERANCE,),
        _work(cell, threads, batch, hidden, steps),
        steps,
        also_judged=("lnrnn layer",),
        bounds={"lnrnn layer": NORM_COSTS} if hidden >= NORM_FROM else {},
    )


def ragged(threads, cell, batch, hidden, steps):
    """Lengths uniform in 1..T, against the same sequences padded to T."""
    cell = CELLS[cell]
    p, x = cell.parameters(hidden, hidden), _inputs(steps, batch, hidden)
    model, lengths = _model(cell, p), np.random.default_rng(3).integers(1, steps + 1, batch)
    alive = (np.arange(steps)[:, None] < lengths)[:, :, None]
    return Case(
        {
            "lnrnn padded": Call(partial(model, x), answer=lambda: model(x)[0] * alive),
            "lnrnn ragged": Call(
                partial(model, x, lengths=lengths), answer=lambda: model(x, lengths=lengths)[0]
            ),
        },
        {},
        (cell.answer(reference, p, x, lengths=lengths),),
        (TOLERANCE,),
        None,
        steps,
        bounds={"lnrnn ragged": RAGGED},
    )


def neighbour(threads, cell, batch, hidden, steps):
    """One thread and several, beside a process that computes without end on the same CPUs."""
    if threads == 1:
        raise Unavailable("one thread on one core only takes turns with a neighbour")
    cell = CELLS[cell]
    p, x = cell.parameters(hidden, hidden), _inputs(steps, batch, hidden)
    several = _whole(_model(cell, p), x)
    one = Call(
        several.call,
        answer=several.answer,
        enter=partial(lnrnn.set_num_threads, 1),
        leave=partial(lnrnn.set_num_threads, threads),
    )
    name = f"lnrnn {threads} threads"
    return Case(
        {"lnrnn 1 thread": one, name: several},
        {},
        (cell.answer(reference, p, x),),
        (TOLERANCE,),
        None,
        steps,
        bounds={name: BESIDE},
        beside=busy_process,
    )
