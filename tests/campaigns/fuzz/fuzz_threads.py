"""Checks calls that use several threads: other numbers of threads and cache sizes must give the same bits."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np

import engine_switches
import lnrnn
from fuzz_draw import STYLES, caches, chance, lengths, network, pick, values
from fuzz_judge import alike
from fuzz_networks import described, equal
from fuzz_norms import agree
from helpers import using_caches
from networks import drawn_state, normal

WORTH = 3 * 2**22  # calls with this many multiply-adds use three threads


@contextmanager
def team(n: int, barrier: str = "together"):
    """Runs the body with up to n threads. Calls use them even if cores are busy."""
    lnrnn.set_num_threads(n)
    engine_switches.set_barrier_mode(barrier)
    engine_switches.teams_had()
    try:
        yield
    finally:
        engine_switches.set_barrier_mode("normal")
        lnrnn.set_num_threads(1)


def kind_of(name: str) -> str:
    """Returns a kind of execution that contains the largest number of threads in the last calls."""
    return f"{name}, team of {max(1, *engine_switches.teams_had())}"


def norms(rng, judge) -> None:
    dtype = pick(rng, (np.float32, np.float64, np.float16))
    n = int(rng.integers(1, 400))
    rows = int(3e5 / n) + int(rng.integers(0, 50))
    x, gy = values(rng, (rows, n), dtype, pick(rng, STYLES)), values(rng, (rows, n), dtype, "normal")
    single = np.float64 if dtype is np.float64 else np.float32
    weight, bias = (rng.standard_normal(n).astype(single) if chance(rng, 0.7) else None for _ in range(2))
    mean, var = rng.standard_normal(n).astype(single), rng.uniform(0.5, 2, n).astype(single)
    calls = {
        "layer_norm": lambda: (lnrnn.layer_norm(x, n, weight, bias),),
        "rms_norm": lambda: (lnrnn.rms_norm(x, n, weight),),
        "layer_norm_backward": lambda: lnrnn.layer_norm_backward(gy, x, n, weight, bias),
        "batch_norm": lambda: (lnrnn.batch_norm(x, mean, var, weight, bias),),
        "batch_norm, training": lambda: (lnrnn.batch_norm(x, None, None, weight, bias, True),),
        "batch_norm_backward": lambda: lnrnn.batch_norm_backward(gy, x, None, None, weight),
    }
    for name in rng.permutation(list(calls))[:3]:
        want = calls[name]()
        label = f"{name} of {np.dtype(dtype).name}{x.shape}"
        for threads in (2, 3):
            with team(threads):
                got = calls[name]()
                agree(judge, kind_of(name), got, want, f"{label}, {threads} threads")
        with using_caches(caches(rng)):
            agree(judge, f"{name}, other caches", calls[name](), want, f"{label}, other caches")
        if name in ("layer_norm", "rms_norm"):
            k = int(rng.integers(rows))
            alone = (
                lnrnn.layer_norm(x[k], n, weight, bias) if name[0] == "l" else lnrnn.rms_norm(x[k], n, weight)
            )
            judge.same(name, alone, want[0][k], f"{label}, row {k} alone")


def networks(rng, judge) -> None:
    hidden, width = int(rng.integers(60, 280)), int(rng.integers(1, 130))
    rnn = network(rng, known=4, most_layers=2, sizes=(width, hidden))
    limited = isinstance(rnn.norm, lnrnn.BatchNormSpec) and rnn.norm.max_steps is not None
    train = not limited and chance(rng, 0.4)
    if not train:
        rnn = rnn.to_dtype(pick(rng, ("float32",) * 3 + ("bfloat16", "int8")))
    batch = int(pick(rng, (1, 2, 3, 7, 16, 33, 70)))
    macs = batch * len(rnn.weight_hh_l0) * (width + hidden)
    steps = 1 + int(WORTH * rng.uniform(1, 1.5) / macs)
    if rnn.overrun == "raise":
        rnn.overrun = "last"
    x, ends, h0 = normal(rng, steps, batch, width), lengths(rng, steps, batch), drawn_state(rng, rnn, batch)
    x = np.ascontiguousarray(x.swapaxes(0, 1)) if rnn.batch_first else x
    label = f"{described(rnn)}, {steps} steps of {batch}"
    if train:
        training(rng, judge, rnn, x, ends, h0, label)
        return
    want = rnn(x, h0, ends)
    for threads in (2, 3):
        barrier = pick(rng, ("together", "together", "staggered", "slow"))
        with team(threads, barrier):
            got = rnn(x, h0, ends)
            equal(judge, kind_of("call"), rnn, got, want, f"{label}, {threads} threads, barriers {barrier}")
    with using_caches(caches(rng)):
        equal(judge, "call, other caches", rnn, rnn(x, h0, ends), want, f"{label}, other caches")


def training(rng, judge, rnn, x, ends, h0, label) -> None:
    before = rnn.state_dict()
    y, h, tape = rnn.forward_train(x, h0, ends)
    gy = normal(rng, *y.shape)
    want = rnn.backward(tape, gy, h)
    for threads in (2, 3):
        rnn.load_state_dict(before)
        with team(threads):
            other = rnn.forward_train(x, h0, ends)
            equal(judge, kind_of("forward_train"), rnn, other[:2], (y, h), f"{label}, {threads} threads")
            got = rnn.backward(other[2], gy, h)
            kind = kind_of("backward")
        judge.counts[kind] += 1
        alike(np.ascontiguousarray(got[0]), np.ascontiguousarray(want[0]), f"{label}, gx, {threads} threads")
        for name, value in want[2].items():
            alike(got[2][name], value, f"{label}, {name}, {threads} threads")


def case(rng, judge) -> None:
    (norms if chance(rng, 0.4) else networks)(rng, judge)
