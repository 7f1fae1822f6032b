"""Long calls run in parts, between which interrupts are handled. The division changes no bit, and an
interrupted call changes nothing."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager

import numpy as np
import pytest

import engine_switches
import lnrnn
from helpers import in_parts_of, several_threads, using_caches, using_threads
from lnrnn import _core
from networks import (
    VARIANTS,
    drawn_state,
    each_cell,
    each_norm,
    equal_arrays,
    network,
    normal,
    parts,
    run_python,
    same,
    zone_out,
)
from outcome import until

needs_a_timer = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no setitimer")

# Numbers of multiply-adds in a part. With SIZES, parts are one step of a group or some steps. With WHOLE a
# call is one part.
SIZES, WHOLE = (1, 2e6), 1e18

# (inputs, units, sequences, steps). Threads divide the sequences of "groups", and the units of the other
# shapes, which have few sequences. Every call has enough work for two threads. An LSTM or GRU without heads
# needs a third of the steps.
SHAPES = {"groups": (17, 65, 70, 30), "units": (130, 193, 3, 60), "one": (5, 190, 1, 210)}
# tests/conformance has all variants. Some cases have sequences of different lengths.
SOME = ["RNN", "LSTM split out", "GRU split", "LiGRU input", "GRU reset split", "SLSTM exp", "LSTM batch"]
each_case = pytest.mark.parametrize(
    "variant, shape, ragged",
    [(v, s, bool((i + k) % 2)) for i, v in enumerate(SOME) for k, s in enumerate(SHAPES)
     if i % 3 == k or i == 1],
)  # fmt: skip


def drawn(variant, shape, ragged, **options):
    """Returns a network and its arguments. x is float64, because a short call of float32 has no parts."""
    inputs, hidden, batch, steps = SHAPES[shape]
    rng = np.random.default_rng(hidden)
    steps = steps if variant["cell"] == "RNN" or "num_heads" in variant else steps // 3
    rnn = network(inputs, hidden, trained=steps, **variant, **options)
    assert steps * batch * len(rnn.weight_hh_l0) * (inputs + rnn.weight_hh_l0.shape[1]) > 2**22
    ends = rng.integers(steps // 3, steps + 1, batch)
    ends[0] = steps
    ends[1:] -= ends[1:] * (rng.random(batch - 1) < 0.1).astype(int)  # some sequences are empty
    x = normal(rng, steps, batch, inputs).astype(np.float64)
    return rng, rnn, x, drawn_state(rng, rnn, batch), ends if ragged else None


def on_threads(compute, want, had=None):
    """Asserts that compute() returns `want` in parts of every size, on one and on two threads. had: the most
    threads that compute() gets."""
    for threads in (1, 2):
        for size in SIZES:
            with several_threads(threads, "either", had and min(had, threads)), in_parts_of(size):
                for got, array in zip(compute(), want, strict=True):
                    same(got, array, err_msg=f"{threads} threads, parts of {size}")


@pytest.mark.skipif(lnrnn.cpu_info()["team"] == "none", reason="built without threads")
@each_cell
def test_parts_with_a_thread_that_lost_its_core(cell):
    """The first thread continues alone to the end of a part. In the next part both threads begin where it
    stopped."""
    _, rnn, x, h0, _ = drawn(dict(cell=cell), "units", False)
    with using_threads(1), in_parts_of(WHOLE):
        y, h = rnn(x, h0)
    # A part has several chunks.
    with using_caches((1024, 4096, 4096)), in_parts_of(SIZES[1]), several_threads(2, divide="units"):
        engine_switches.set_barrier_mode("slow")
        got, state = rnn(x, h0)
    for array, want in zip((got, *parts(rnn, state)), (y, *parts(rnn, h)), strict=True):
        same(array, want)


@each_cell
def test_parts_with_statistics_of_the_batch(cell):
    """With overrun "batch" and in calibration, a step needs all sequences at once."""
    rng, rnn, x, h0, ends = drawn(dict(cell=cell, norm="batch"), "groups", True)
    rnn.calibrate([x[:3]])
    rnn.overrun = "batch"

    def compute():
        other = network(17, 65, cell=cell, norm="batch")
        other.calibrate([(x, ends)])
        y, h = rnn(x, h0, ends)
        return y, *parts(rnn, h), *other.state_dict().values()

    with using_threads(1), in_parts_of(WHOLE):
        want = compute()
    on_threads(compute, want, had=1)


@each_case
def test_parts_of_inference_and_training(variant, shape, ragged):
    rng, rnn, x, h0, ends = drawn(VARIANTS[variant], shape, ragged, bidirectional=True)
    width = getattr(rnn, "proj_size", 0) or rnn.hidden_size
    gy, gh = normal(rng, *x.shape[:2], 2 * width), drawn_state(rng, rnn, x.shape[1])
    before = rnn.state_dict()

    def infer():
        zone_out(rnn, 0.25 if ragged else 0)
        y, h = rnn(x, h0, ends)
        zone_out(rnn, 0)
        return y, *parts(rnn, h)

    def train():
        rnn.load_state_dict(before)
        y, h, tape = rnn.forward_train(x, h0, ends)
        gx, gh0, grads = rnn.backward(tape, gy, gh)
        return y, *parts(rnn, h), gx, *parts(rnn, gh0), *grads.values(), *rnn.state_dict().values()

    for compute in (infer, train):
        with using_threads(1), in_parts_of(WHOLE):
            want = compute()
        on_threads(compute, want)


@contextmanager
def ticking(handler, seconds=0.003):
    """Sends a signal repeatedly, for which Python calls handler(frame) as soon as it can."""
    signal.signal(signal.SIGALRM, lambda _, frame: handler(frame))
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        # Do not restore the default handler, because the last signal may not have arrived yet.
        signal.signal(signal.SIGALRM, lambda *_: None)


def long_call(what):
    """Returns a call of a network with one layer that takes about a quarter of a second on one thread."""
    norm = "batch" if what == "calibrate" else "layer"
    rnn = network(128, 256, cell="LSTM", norm=norm)
    x = normal(np.random.default_rng(0), 100 if what == "backward" else 250, 32, 128)
    if what == "backward":
        y, _, tape = rnn.forward_train(x)
        return lambda: rnn.backward(tape, y)
    return lambda: {"call": rnn, "forward_train": rnn.forward_train, "calibrate": rnn.calibrate}[what](
        [x] if what == "calibrate" else x
    )


@needs_a_timer
@pytest.mark.parametrize(
    "what, threads", [("call", 1), ("call", 2), ("forward_train", 2), ("backward", 1), ("calibrate", 2)]
)
def test_signals_are_handled_within_a_call(what, threads):
    """No pause between two handled signals lasts half of the call."""
    call = long_call(what)
    with using_threads(threads), in_parts_of(2**25):
        call()
        times = [time.perf_counter()]
        with ticking(lambda _: times.append(time.perf_counter())):
            call()
        times.append(time.perf_counter())
    assert max(np.diff(times)) < (times[-1] - times[0]) / 2


class Interrupted(Exception):
    pass


@needs_a_timer
@each_cell
@each_norm
def test_an_interrupted_call_changes_nothing(cell, norm):
    rng = np.random.default_rng(0)
    rnn = network(64, 128, cell=cell, norm=norm, num_layers=2)
    x, y = normal(rng, 60, 33, 64), normal(rng, 60, 33, 128)
    if norm == "batch":
        rnn.forward_train(x[:50])
    before = {name: value.copy() for name, value in rnn.state_dict().items()}
    twin = network(64, 128, cell=cell, norm=norm, num_layers=2)
    twin.load_state_dict(before)
    want_y, _, want_tape = twin.forward_train(x)
    want, after = twin.backward(want_tape, y), twin.state_dict()

    def interrupt(frame):  # raises only in the call, and not, for example, in a destructor
        if frame.f_code.co_filename.endswith(("network.py", "settings.py", "training.py", "engine.py")):
            raise Interrupted

    with in_parts_of(2**20):
        for delay in (0.001, 0.005):  # in the first layer, and later
            with pytest.raises(Interrupted), ticking(interrupt, delay):
                while True:
                    rnn.load_state_dict(before)
                    rnn.forward_train(x)
            found = rnn.state_dict()  # must be the state before the call or the state after it
            assert any(
                all(np.array_equal(found[name], value) for name, value in state.items())
                for state in (before, after)
            )
        rnn.load_state_dict(before)
        got_y, _, tape = rnn.forward_train(x)
        same(got_y, want_y)
        for delay in (0.001, 0.005):
            with pytest.raises(Interrupted), ticking(interrupt, delay):
                while True:
                    rnn.backward(tape, y)
        gx, gh0, grads = rnn.backward(tape, y)
    for got, array in zip((gx, gh0, *grads.values()), (want[0], want[1], *want[2].values()), strict=True):
        same(got, array)
    equal_arrays(rnn.state_dict(), after)


def interrupt_the_longest_calls():
    """Interrupts calls that take minutes, because they use the slowest instruction set."""
    import os
    import threading

    _core.use_isa("scalar")
    lnrnn.set_num_threads(1)
    rnn = lnrnn.LSTM(8, 1024, norm="batch", seed=0)
    x = np.zeros((400, 32, 8), np.float32)
    for call in (rnn.forward_train, lambda x: rnn.calibrate([x]), lnrnn.LSTM(8, 1024, seed=0)):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            call(x)
        assert rnn.known_steps == 0


@needs_a_timer
def test_ctrl_c_ends_a_long_call():
    """The call takes minutes. If Ctrl-C does not end it, the test ends the process and fails."""
    done = run_python("from test_interrupts import interrupt_the_longest_calls as f; f()", timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]


@needs_a_timer
@pytest.mark.parametrize("what", ["step", "state", "reset"])
@each_cell
def test_an_interrupted_stream_is_as_before_or_after(cell, what):
    """After an interrupt, h and c of all layers and the step number are all old or all new."""
    rng = np.random.default_rng(0)
    rnn = network(12, 24, cell=cell, num_layers=3)
    stream, x, other = rnn.stream(4), normal(rng, 4, 12), drawn_state(rng, rnn, 4)
    begin = drawn_state(rng, rnn, 4)

    def start():
        stream.state, stream.steps_done = begin, 5000

    def seen():
        return stream.steps_done.tobytes(), *(s.tobytes() for s in parts(rnn, stream.state))

    change = {
        "step": lambda: stream(x.astype(float)),  # only such calls run code of stream.py
        "state": lambda: setattr(stream, "state", other),
        "reset": stream.reset,
    }[what]
    start()
    old = seen()
    change()
    new, interrupted = seen(), 0
    armed = False

    def interrupt(frame):
        nonlocal armed
        # Raises only in stream.py, and not, for example, in a destructor.
        if armed and frame.f_code.co_filename.endswith("stream.py"):
            armed = False
            raise KeyboardInterrupt

    with ticking(interrupt, 0.0002):
        for _ in until(60):
            start()
            try:
                armed = True
                change()
                armed = False
            except KeyboardInterrupt:
                interrupted += 1
            assert seen() in (old, new)
            if interrupted == 5:
                return
    raise AssertionError(f"{interrupted} interrupts")
