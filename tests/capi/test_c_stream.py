"""Tests streams through the table of the C API: they have the bits of Python, share lanes, refuse bad
arguments."""

from __future__ import annotations

import ctypes
import gc
import sys

import numpy as np
import pytest

import lnrnn
from c_table import INT, SIZE, Handle, P, address, function
from helpers import available_isas, together, using_isa, using_threads
from networks import network, normal, parts, same, stays

D, H = 3, 17
DOUBLE = ctypes.c_double


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("by", [0, 1, 2, 3, 5, 7, H, 3 * H - 1])
def test_y_may_be_or_overlap_x(rng, layers, by):
    """The distance between x and y is `by` floats."""
    rows = 70
    rnn = network(H, H, cell="LSTM", num_layers=layers)
    x = normal(rng, rows, H)
    want = rnn.stream(rows + 1)(x, np.arange(rows))
    for x_first in (True, False):
        memory = np.zeros(rows * H + by, np.float32)
        a, b = memory[: rows * H].reshape(rows, H), memory[by:].reshape(rows, H)
        source, y = (a, b) if x_first else (b, a)
        source[...] = x
        with Handle(rnn.stream(rows + 1), rows) as handle:
            assert handle.step(source, y) == 0
            same(handle.steps(), [1] * rows + [0])
        same(y, want)


# --- states and resets --------------------------------------------------------------------------------------


def test_python_and_c_see_the_same_lanes(rng):
    rnn = network(D, H, cell="LSTM", num_layers=2)
    stream, alike = rnn.stream(4), rnn.stream(4)
    with Handle(stream, 2) as handle:
        handle.stepped(normal(rng, 2, D), [3, 1])
        kept = stream.get_state([3, 1])
        assert kept.steps_done.tolist() == [1, 1] and kept.state[0].any()
        stream.reset([3])
        assert not handle.state(1)[3].any() and handle.state(1)[1].any()
        same(handle.steps(), [0, 1, 0, 0])
        stream.set_state([0, 2], kept)
        # Python reads the state that C has written, and both continue from it.
        handle.state(0)[3], handle.state(1, 1)[3] = 0.25, -0.5
        h, c = stream.state
        assert (h[0, 3] == 0.25).all() and (c[1, 3] == -0.5).all()
        alike.state = stream.state
        x = normal(rng, 2, D)
        same(handle.stepped(x, [3, 0]), alike(x, [3, 0]))


# --- wrong arguments ----------------------------------------------------------------------------------------

NO_LANE, TWICE, OVERRUN = -1, -2, -3


def refused(rnn, stream, handle, code, lanes, reset=True):
    """Asserts that a step of these lanes, and their reset, return `code` and change no lane and no y.
    library.c has all codes."""
    before, steps = parts(rnn, stream.state), stream.steps_done
    lanes = None if lanes is None else np.array(lanes, np.int64)
    x, y = np.ones((handle.rows, D), np.float32), np.full((handle.rows, H), 7, np.float32)
    assert handle.step(x, y, lanes) == code
    assert (y == 7).all()
    if reset:
        assert handle.reset(lanes) == code
    stays(rnn, stream, before, steps)


def test_wrong_lanes_change_nothing(rng):
    rnn = network(D, H, cell="LSTM", num_layers=2)
    stream = rnn.stream(5)
    with Handle(stream, 3) as handle:
        handle.stepped(normal(rng, 3, D), [4, 1, 0])
        for lanes in ([0, 1, 5], [-1, 2, 3], [0, 2**62, 1], [0, 1, -(2**63)]):
            refused(rnn, stream, handle, NO_LANE, lanes)
        for lanes in ([0, 0, 1], [4, 1, 4]):
            refused(rnn, stream, handle, TWICE, lanes)
        assert handle.reset(None, 6) == NO_LANE
        handle.stepped(normal(rng, 3, D), [4, 1, 2])  # a valid step works again
    same(stream.steps_done, [1, 2, 1, 0, 2])


def test_impossible_steps_are_refused(rng):
    """A lane is beyond the last step, or C has written an invalid number of steps."""
    rnn = network(D, H, norm=lnrnn.BatchNormSpec(overrun="last"), trained=2)
    stream = rnn.stream(2)
    with Handle(stream, 2) as handle:
        for step in (2**62, 2**63 - 1, -1, -(2**63)):
            stream._lanes.steps[:] = 0, step
            refused(rnn, stream, handle, OVERRUN, None, reset=False)
        assert handle.reset(np.array([1])) == 0
        handle.stepped(normal(rng, 2, D))
    same(stream.steps_done, [1, 1])


def test_releasing_a_stream_of_python_in_c_is_harmless(rng):
    """lnrnn_api.h forbids this release, but Python's own count of references keeps the stream."""
    rnn = network(D, H)
    stream, alike, x = rnn.stream(3), rnn.stream(3), normal(rng, 3, D)
    with Handle(stream, 3) as handle:
        for _ in range(3):
            function("lnrnn_stream_release", None, P)(handle.stream)
        same(handle.stepped(x), alike(x))
        same(stream(x), alike(x))
    same(stream(x), alike(x))


class Almost:
    _lanes = object()


@pytest.mark.parametrize("wrong", [None, 3, "stream", object(), Almost(), network(D, H), lnrnn.Stream])
def test_handle_open_refuses_other_objects(wrong):
    with pytest.raises(TypeError, match=f"stream must be a stream of lnrnn.*, got {type(wrong).__name__}"):
        Handle(wrong, 1)


@pytest.mark.parametrize("rows, threads, words", [
    (0, 1, "rows must be between 1 and the 5 lanes, got 0"),
    (6, 1, "rows must be between 1 and the 5 lanes, got 6"),
    (2**64 - 1, 1, "rows must be between 1 and the 5 lanes, got 18446744073709551615"),
    (1, 0, "threads must be between 1 and 1024, got 0"),
    (1, -1, "threads must be between 1 and 1024, got -1"),
    (1, 1025, "threads must be between 1 and 1024, got 1025"),
])  # fmt: skip
def test_handle_open_refuses_wrong_rows_and_threads(rows, threads, words):
    """After the error the stream has no new reference."""
    together = network(D, H, norm=lnrnn.BatchNormSpec(overrun="batch"), trained=2).stream(4)
    with pytest.raises(ValueError, match=r"rows must be 4, all lanes .*overrun \"batch\".*, got 3"):
        Handle(together, 3)
    stream = network(D, H).stream(5)
    lanes, before = stream._lanes, sys.getrefcount(stream._lanes)
    with pytest.raises(ValueError, match=words):
        Handle(stream, rows, threads)
    assert sys.getrefcount(lanes) == before


# --- threads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["layer", lnrnn.BatchNormSpec(overrun="last")], ids=str)
def test_threads_step_different_lanes_at_once(rng, norm):
    """Three threads step one stream in C without the interpreter's lock, and one steps it in Python."""
    rnn = network(D, 40, cell="LSTM", norm=norm, num_layers=2, trained=4)
    callers, own, steps = 4, 9, 100
    x = normal(rng, callers, steps, own, D)
    want = [rnn(x[k])[0] for k in range(callers)]
    got = np.zeros((callers, steps, own, 40), np.float32)
    order = rng.permutation(callers * own).reshape(callers, own)
    stream = rnn.stream(callers * own)
    handles = [Handle(stream, own) for _ in range(callers - 1)]

    def serve(k):
        for t in range(steps):
            if k == callers - 1:
                stream(x[k, t], order[k], out=got[k, t])
            else:
                assert handles[k].step(x[k, t], got[k, t], order[k]) == 0

    together(serve, callers)
    for handle in handles:
        handle.close()
    same(got, want)
    assert (stream.steps_done == steps).all()


# --- references of a handle ---------------------------------------------------------------------------------


def test_a_handle_keeps_the_lanes_until_it_is_closed(rng):
    rnn = network(D, H, cell="LSTM")
    stream, x = rnn.stream(2), normal(rng, 2, D)
    want = rnn.stream(2)(x)
    lanes, before = stream._lanes, sys.getrefcount(stream._lanes)
    handles = [Handle(stream, 2) for _ in range(3)]
    assert sys.getrefcount(lanes) == before + 3
    for handle in handles[1:]:
        handle.close()
    assert sys.getrefcount(lanes) == before + 1
    del stream, rnn, lanes
    gc.collect()
    same(handles[0].stepped(x), want)
    handles[0].close()
    handles[0].close()  # closes NULL


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_handle_keeps_its_instruction_set(rng, dtype):
    """Python and handles that are opened later use the newly selected set."""
    rnn = network(D, 33, cell="LSTM", num_layers=2).to_dtype(dtype)
    x = normal(rng, 3, D)
    for first in available_isas():
        with using_isa(first):
            want = rnn.stream(3)(x)
            handle = Handle(rnn.stream(3), 3)
        for other in available_isas():
            with using_isa(other), Handle(rnn.stream(3), 3) as later:
                same(later.stepped(x), rnn.stream(3)(x))
        handle.reset(None, 3)
        same(handle.stepped(x), want, err_msg=first)
        handle.close()


# --- the other functions of the C API -----------------------------------------------------------------------


def test_layer_norm_and_functions_have_the_bits_of_python(rng):
    x, y = normal(rng, 5, H), np.zeros((5, H), np.float32)
    gain, bias = normal(rng, 2, H)
    norm = function("lnrnn_layer_norm", None, INT, SIZE, SIZE, P, SIZE, P, P, DOUBLE, P, SIZE, INT, INT)
    norm(0, 5, H, address(x), H, address(gain), address(bias), 1e-5, address(y), H, 1, 1)
    same(y, lnrnn.layer_norm(x, H, gain, bias))
    norm(0, 5, H, address(x), H, address(gain), None, 1e-5, address(y), H, 0, 1)
    same(y, lnrnn.rms_norm(x, H, gain, eps=1e-5))
    apply = function("lnrnn_map", None, INT, SIZE, P, P, INT)
    for number, named in enumerate((lnrnn.exp, lnrnn.tanh, lnrnn.sigmoid)):
        apply(number, x.size, address(x), address(y), 2)
        same(y, named(x))
    assert function("lnrnn_isa_name", ctypes.c_char_p)() == lnrnn.cpu_info()["isa"].encode()
    assert function("lnrnn_cores", INT)() == lnrnn.cpu_info()["cores"]


def test_gradients_of_layer_norm_have_the_bits_of_python(rng):
    x, gy, gain = normal(rng, 5, H), normal(rng, 5, H), normal(rng, H)
    gx, ggain, gbias = np.zeros_like(x), np.zeros(H), np.zeros(H)
    work = np.zeros(function("lnrnn_layer_norm_work", SIZE, SIZE, SIZE)(5, H))
    kinds = INT, SIZE, SIZE, P, P, P, DOUBLE, P, P, P, P, INT, INT
    backward = function("lnrnn_layer_norm_backward", None, *kinds)
    found = gx, ggain, gbias
    layer_norm = lnrnn.layer_norm_backward(gy, x, H, gain, np.zeros(H, np.float32))
    for centred, wanted in ((1, layer_norm), (0, lnrnn.rms_norm_backward(gy, x, H, gain, 1e-5))):
        backward(0, 5, H, *map(address, (gy, x, gain)), 1e-5, *map(address, (*found, work)), centred, 1)
        for got, want in zip(found, wanted, strict=False):  # RMS norm has no bias
            same(got.astype(np.float32), want)


class Batch(ctypes.Structure):
    """lnrnn_batch of lnrnn.h."""

    _fields_ = [
        ("dtype", INT), ("N", SIZE), ("C", SIZE), ("L", SIZE), ("x", P), ("gain", P), ("bias", P),
        ("eps", DOUBLE), ("mean", P), ("var", P), ("work", P), ("threads", INT),
    ]  # fmt: skip


def test_batch_norm_has_the_bits_of_python(rng):
    N, C, L = 6, 5, 4
    x, (gain, bias) = normal(rng, N, C, L), normal(rng, 2, C)
    mean, var, y = np.zeros(C), np.zeros(C), np.zeros_like(x)
    b = Batch(0, N, C, L, *map(address, (x, gain, bias)), 1e-5, address(mean), address(var), None, 1)
    work = np.zeros(function("lnrnn_batch_work", SIZE, P, INT)(ctypes.addressof(b), 1))
    b.work = address(work)
    function("lnrnn_batch_norm", None, P, P, INT)(ctypes.addressof(b), address(y), 1)
    with using_threads(1):
        same(y, lnrnn.batch_norm(x, None, None, gain, bias, training=True))
    np.testing.assert_allclose(mean, x.mean((0, 2), dtype=float), rtol=0, atol=1e-7)
    gx, ggain, gbias = np.zeros_like(x), np.zeros(C), np.zeros(C)
    backward = function("lnrnn_batch_norm_backward", None, P, P, P, P, P, INT)
    gy = normal(rng, N, C, L)
    backward(ctypes.addressof(b), address(gy), address(gx), address(ggain), address(gbias), 1)
    want = lnrnn.batch_norm_backward(gy, x, None, None, gain, training=True)
    same(gx, want[0])
