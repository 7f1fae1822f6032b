"""Measures streams with many lanes: sessions on one core, and a single step.

    python tests/benchmarks/lanes.py sessions [--hidden 128] [--frame 32] [--isa NAME]
    python tests/benchmarks/lanes.py step [--hidden 128]

The network is an LSTM without a norm, with as many inputs as units, called from Python. sessions: every
session makes one step per frame of --frame milliseconds. Prints for each of CONTENDERS how many sessions fit:
999 of 1000 frames must end in time, in one of three tries. step: one session. Prints the median time of a
step, and the ratio to ONNX Runtime."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import lnrnn  # noqa: E402
from lnrnn import _core  # noqa: E402

FRAMES = 1000
TRIES = 3  # for each number of sessions, because a shared machine sometimes stops for milliseconds


def session(hidden: int, seed: int = 0) -> lnrnn.LSTM:
    return lnrnn.LSTM(hidden, hidden, norm=None, seed=seed)


def ours(dtype: str, rows: bool):
    def make(rnn, n):
        stream, out = rnn.to_dtype(dtype).stream(n), np.empty((n, rnn.hidden_size), np.float32)
        if not rows:
            return lambda x: stream(x, out=out)
        order = np.random.default_rng(0).permutation(n)
        given, back = np.empty_like(out), np.empty_like(out)

        def call(x):
            np.take(x, order, axis=0, out=given[:, : x.shape[1]])
            stream(given[:, : x.shape[1]], order, out=out)
            back[order] = out
            return back

        return call

    return make


def operator(rnn, batch: int):
    """Returns ONNX Runtime's LSTM of one step, on one thread: a function of x, h, c that returns h, c."""
    from cells import CELLS
    from peers_norm import onnx_session
    from peers_plain import onnx_model

    p = {name.removesuffix("_l0"): value for name, value in rnn.parameters().items()}
    model = onnx_model(CELLS["lstm"], p, np.empty((1, batch, rnn.input_size), np.float32), states=True)
    run = onnx_session(model, 1).run
    return lambda x, h, c: run(["hn", "cn"], {"x": x, "h": h, "c": c})


def batched(rnn, n):
    run, state = operator(rnn, n), [np.zeros((1, n, rnn.hidden_size), np.float32)] * 2

    def call(x):
        state[:] = run(x[None], *state)
        return state[0][0]

    return call


def one_each(rnn, n):
    """Returns a function that steps each session in a call of its own, by one InferenceSession."""
    run = operator(rnn, 1)
    states = [[np.zeros((1, 1, rnn.hidden_size), np.float32)] * 2 for _ in range(n)]

    def call(x):
        for k in range(n):
            states[k] = run(x[None, k : k + 1], *states[k])
        return np.concatenate([h[0] for h, _ in states])

    return call


# {name: function of an LSTM and n sessions, which returns a function from x (n, inputs) to h (n, hidden)}
CONTENDERS = {
    "lnrnn": ours("float32", False),
    "lnrnn, rows": ours("float32", True),
    "lnrnn, int8": ours("int8", False),
    "onnxruntime, batched by hand": batched,
    "onnxruntime, one by one": one_each,
}


def check(rnn, make, name) -> None:
    x = np.random.default_rng(1).standard_normal((5, 7, rnn.input_size), dtype=np.float32)
    call = make(rnn, 7)
    got = np.array([np.array(call(row)) for row in x])
    off = np.abs(got - rnn(x)[0]).max()
    if off > (1e-2 if "int8" in name else 1e-5):
        raise SystemExit(f"{name}: wrong by {off}")


def late(call, x, frame: float) -> float:
    """Returns the 99.9th percentile of a frame's seconds. Stops early if it is certainly above `frame`."""
    took = []
    for k in range(FRAMES):
        begin = time.perf_counter()
        call(x[k % len(x)])
        took.append(time.perf_counter() - begin)
        if sum(t > frame for t in took) > 1 + FRAMES // 1000:
            return float(min(t for t in took if t > frame))
    return float(np.quantile(took, 0.999))


def sessions(hidden: int, milliseconds: float) -> None:
    rnn, frame = session(hidden), milliseconds / 1e3
    lnrnn.set_num_threads(1)
    rng = np.random.default_rng(0)
    print(f"LSTM, {hidden} units, a frame of {milliseconds:g} ms, one thread, {_core.isa()}")
    for name, make in CONTENDERS.items():
        try:
            check(rnn, make, name)
        except ImportError as error:
            print(f"{name}: {error}")
            continue

        def fits(n, make=make):
            x = rng.standard_normal((4, n, hidden), dtype=np.float32)
            return any(late(make(rnn, n), x, frame) < frame for _ in range(TRIES))

        good, bad = 0, 64
        while fits(bad):
            good, bad = bad, 2 * bad
        while bad - good > max(good // 50, 1):
            middle = (good + bad) // 2
            good, bad = (middle, bad) if fits(middle) else (good, middle)
        print(f"{name}: {good} sessions", flush=True)


def step(hidden: int) -> None:
    rnn, steps = session(hidden), 500
    lnrnn.set_num_threads(1)
    x = np.random.default_rng(0).standard_normal((steps, 1, hidden), dtype=np.float32)
    calls = {name: CONTENDERS[name] for name in ("lnrnn", "lnrnn, int8", "onnxruntime, one by one")}
    for name, make in calls.items():
        check(rnn, make, name)
    calls = {name: make(rnn, 1) for name, make in calls.items()}
    took = {name: [] for name in calls}
    for _ in range(101):
        for name, call in calls.items():
            begin = time.perf_counter()
            for one in x:
                call(one)
            took[name].append((time.perf_counter() - begin) / steps * 1e6)
    print(f"LSTM, {hidden} units, one session, one thread, {_core.isa()}")
    last = float(np.median(took["onnxruntime, one by one"]))
    for name, each in took.items():
        print(f"{name}: {np.median(each):.2f} us a step, {last / np.median(each):.1f}x")


def main() -> None:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    parser.add_argument("part", choices=("sessions", "step"))
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--frame", type=float, default=32.0, help="milliseconds")
    parser.add_argument("--isa")
    options = parser.parse_args()
    if options.isa:
        _core.use_isa(options.isa)
    if options.part == "sessions":
        sessions(options.hidden, options.frame)
    else:
        step(options.hidden)


if __name__ == "__main__":
    main()
