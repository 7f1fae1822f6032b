"""The caller's floating-point state changes no bit of a result, on any number of threads.

The state is rounding, flushing of denormals and traps. A call restores it, including the sticky flags."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import lnrnn
from c_library import library
from float_states import DEFAULT, FLAGS, STATES, in_state, known, set_state, state
from helpers import several_threads, using_network_way, using_partition, using_threads
from lnrnn import _core
from networks import network, normal, parts

pytestmark = pytest.mark.skipif(not known, reason="fenv_t of another C library")
each_state = pytest.mark.parametrize("value", [v for k, v in STATES.items() if k != "flags"], ids=hex)
T, B, D, H = 6, 66, 9, 40
NETWORKS = {
    "RNN none": dict(cell="RNN", norm=None, nonlinearity="relu"),
    "LSTM": dict(cell="LSTM", num_layers=2),
    "GRU": dict(cell="GRU", norm=None, bidirectional=True),
    "LSTM batch": dict(cell="LSTM", norm="batch"),
    "GRU batch": dict(cell="GRU", norm=lnrnn.BatchNormSpec(overrun="batch")),
}


def rough(rng, *shape):
    """Returns normal numbers, denormals, and numbers so small that their products are denormals."""
    small = np.float32(10.0) ** rng.integers(-42, 1, shape).astype(np.float32)
    return normal(rng, *shape) * np.where(rng.random(shape) < 0.5, small, np.float32(1))


def networks_of(name):
    """Returns new networks of every type of weights, without packed weights."""
    options = NETWORKS[name]
    rnn = network(D, H, trained=T if options.get("norm") == "batch" else 5, **options)
    rnn.load_state_dict({k: v * (0.3 if k.startswith("weight") else 1) for k, v in rnn.state_dict().items()})
    found = [rnn.to_dtype(dtype) for dtype in ("float32", "bfloat16", "int8")]
    for each in found if rnn.known_steps else ():
        each.stream()  # creates tables of batch norm now: NumPy computes them in the thread's state
    return found


def results_of(networks, x):
    found = []
    for rnn in networks:
        y, h = rnn(x)
        found += [y, *parts(rnn, h), rnn(x[:1, :1])[0]]
        if not rnn.bidirectional:
            stream = rnn.stream(B)
            found += [stream(x[0]), stream(x[1]), *np.atleast_1d(stream.state)]
        if rnn.dtype == "float32":
            y, _, tape = rnn.forward_train(x)
            # NumPy adds the gradients of x of two directions in the caller's state, so these may differ.
            gx, gh, grads = rnn.backward(tape, y, grad_x=not rnn.bidirectional)
            found += [y, *([] if gx is None else [gx]), *parts(rnn, gh), *grads.values()]
    return found


GAIN = np.linspace(-1, 1, 130)
GAIN32 = GAIN.astype(np.float32)
TINY = np.full(130, 1e-41, np.float32)  # a float32 statistic for x of float64


def results_of_norms(x, given):
    """Returns the results of every norm of x (N, 130). given: x in every dtype."""
    found = []
    for rows in given:
        planes = rows.reshape(len(rows), 10, 13)
        gain = GAIN if rows.dtype == np.float64 else GAIN32
        found += [lnrnn.layer_norm(rows, 130, gain, gain), lnrnn.rms_norm(rows, 130, gain)]
        found += lnrnn.layer_norm_backward(rows[::-1].copy(), rows, 130, gain, gain)
        for b, n in ((rows, 130), (planes, 10)):
            mean, var = np.zeros(n, np.float32), np.ones(n)
            found += [lnrnn.batch_norm(b, mean, var, gain[:n], gain[:n], training=True)]
            found += [mean.copy(), var.copy()]
            found += [lnrnn.batch_norm(b, mean, var, gain[:n], gain[:n])]
            found += lnrnn.batch_norm_backward(b[::-1].copy(), b, mean, var, gain[:n], training=True)
    found.append(lnrnn.batch_norm(np.zeros((2, 130)), TINY, np.ones(130)))
    return [*found, lnrnn.exp(x), lnrnn.tanh(x), lnrnn.sigmoid(x)]


def same(found, want):
    assert len(found) == len(want)
    for k, (a, b) in enumerate(zip(found, want, strict=True)):
        np.testing.assert_array_equal(
            np.asarray(a).view(f"u{a.dtype.itemsize}"), np.asarray(b).view(f"u{b.dtype.itemsize}"), err_msg=k
        )


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_the_same_bits_in_every_state(rng, vectors, name):
    """In each state, another number of threads divides the work, by sequences or by units."""
    x = rough(rng, T, B, D)
    with using_threads(1):
        want = results_of(networks_of(name), x)
    for k, value in enumerate(STATES.values()):
        threads, fresh = 1 + k % 3, networks_of(name)
        grid = ((1, threads), (threads, 1))[k // 3 % 2]
        with using_threads(threads), using_partition(*grid), in_state(value):
            found = results_of(fresh, x)
        same(found, want)


def test_parallel_layers_have_the_same_bits_in_every_state(rng):
    x = rough(rng, T, B, D)
    for name in ("LSTM", "GRU"):
        with using_threads(1):
            want = results_of(networks_of(name), x)
        fresh = networks_of(name)
        with using_network_way("side by side"), using_threads(3), in_state(STATES["upward"]):
            found = results_of(fresh, x)
        same(found, want)


def test_norms_have_the_same_bits_in_every_state(rng, isa):
    x = rough(rng, 300, 130)
    with np.errstate(over="ignore"):
        given = [x.astype(dtype) for dtype in (np.float32, np.float64, np.float16)]
    with using_threads(1):
        want = results_of_norms(x, given)
    for k, value in enumerate(STATES.values()):
        with using_threads(1 + k % 3), in_state(value):
            found = results_of_norms(x, given)
        same(found, want)


def calls(rng):
    """Returns calls whose arrays Cython passes to C without a check in Python."""
    stream, x = network(D, H, cell="LSTM", norm=None).stream(B), rough(rng, B, D)
    y, rows, wide = np.zeros((B, H), np.float32), rough(rng, 300, 130), np.zeros((300, 130), np.float32)
    gain, huge = np.ones(130, np.float32), np.full((300, 130), 3e38, np.float32)
    huge[::2], flat = -3e38, np.zeros_like(huge)
    ones = np.ones(130), np.ones(130)
    return {
        "stream": lambda: stream(x, out=y),
        "layer norm": lambda: lnrnn.layer_norm(rows, 130, gain, gain, 1e-5, out=wide),
        "layer norm of what has no spread": lambda: lnrnn.layer_norm(flat, 130, gain, gain, 0.0, out=wide),
        "layer norm of huge values": lambda: lnrnn.layer_norm(huge, 130, gain, gain, 1e-5, out=wide),
        "batch norm": lambda: lnrnn.batch_norm(huge, *ones, gain, gain, True, 0.1, 1e-5, out=wide),
        "exp": lambda: lnrnn.exp(huge, out=wide),
    }


@pytest.mark.parametrize("threads", [1, 2])
def test_calls_restore_the_caller_s_state(rng, threads):
    with using_threads(threads), np.errstate(all="ignore"):
        for name, call in calls(rng).items():
            call()
            for value in (DEFAULT, *STATES.values()):
                with in_state(value):
                    call()
                    after = state()
                assert after == value, f"{name}: {value:x} became {after:x}"


@each_state
def test_calls_restore_the_state_of_openmp_threads(rng, value):
    """Other libraries use OpenMP's threads too. The test sets the state of each thread before calls of lnrnn,
    and reads it afterwards."""
    if _core.team() != "openmp":
        pytest.skip("no OpenMP")
    try:
        run = ctypes.CDLL("libgomp.so.1").GOMP_parallel
    except (OSError, AttributeError):
        pytest.skip("not GCC's OpenMP")
    x = rough(rng, T, B, D)
    seen, fresh = [], networks_of("LSTM")
    region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

    def in_team(work):
        run(region(lambda _: work()), None, 2, 0)

    with several_threads(2, "either"):
        want = results_of(networks_of("LSTM"), x)
    with several_threads(2, "either"):
        in_team(lambda: set_state(value))
        try:
            set_state(DEFAULT)  # now this thread and its team have different states
            found = results_of(fresh, x)
            in_team(lambda: seen.append(state() & ~FLAGS))
        finally:
            in_team(lambda: set_state(DEFAULT))
    same(found, want)
    assert sorted(seen) == sorted([DEFAULT, value])


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("rate", [float("nan"), -5e-324])
def test_wrong_values_are_refused_in_every_state(name, rate):
    """In some states a comparison with NaN traps, and -5e-324 counts as 0. The checks of arguments must still
    work."""
    c = library()
    made = c.lnrnn_describe(1, 3, 4)
    made.dropout = rate
    with in_state(STATES[name]):
        status = c.lnrnn_description_resolve(ctypes.byref(made), None)
    assert status == 4
