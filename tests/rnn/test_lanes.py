"""The lanes of a stream are independent: each gives the same bits as in a stream of its own."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest

import lnrnn
from helpers import available_isas, together, using_isa
from networks import network, normal, parts, same, stays

D, H = 3, 17


def test_the_state_of_another_network_is_refused(rng):
    rnn = network(D, H, cell="GRU")
    stream = rnn.stream(3)
    stream(normal(rng, 3, D))
    state = stream.get_state([1])
    changed, zoned = copy.copy(rnn), copy.copy(rnn)
    changed.weight_hh_l0 = np.nextafter(changed.weight_hh_l0, np.float32(1))
    zoned.zoneout = 0.1
    for other in (changed, zoned):
        fresh = other.stream(3)
        with pytest.raises(ValueError, match="another network"):
            fresh.set_state([0], state)
        assert not fresh.steps_done.any()
    for alike in (network(D, H, cell="GRU"), network(D, H, cell="GRU", batch_first=True)):
        alike.stream(3).set_state([2], state)


def test_reset_of_some_lanes_leaves_the_others(rng):
    rnn = network(D, H, cell="LSTM", num_layers=2)
    stream, x = rnn.stream(4), normal(rng, 4, D)
    stream(x)
    before = parts(rnn, stream.state)
    stream.reset([2, 0])
    same(stream.steps_done, [0, 1, 0, 1])
    for s, kept in zip(parts(rnn, stream.state), before, strict=True):
        assert not s[:, [0, 2]].any()
        same(s[:, [1, 3]], kept[:, [1, 3]])
    stream.reset(3)
    same(stream.steps_done, [0, 1, 0, 0])
    stream.steps_done = 5
    same(stream.steps_done, [5] * 4)
    stream.steps_done = [1, 2, 3, 4]
    same(pickle.loads(pickle.dumps(stream)).steps_done, [1, 2, 3, 4])


def test_step_is_a_live_view_that_nobody_can_write(rng):
    rnn = network(D, H, norm="batch", trained=4)
    stream, x = rnn.stream(3), normal(rng, 3, D)
    step = stream.steps_done
    assert step.base is not None and np.shares_memory(step, stream.steps_done)
    stream(x[:1], lanes=[1])
    same(step, [0, 1, 0])
    with pytest.raises(ValueError, match="read-only"):
        step[0] = 7
    stream.steps_done = step + 1
    same(step, [1, 2, 1])
    stream.steps_done = step  # from its own memory
    for other in (copy.copy(stream), copy.deepcopy(stream), pickle.loads(pickle.dumps(stream))):
        other(x)
        same(other.steps_done, [2, 3, 2])
    stream.reset([1])
    same(step, [1, 0, 1])
    del stream  # the view keeps the memory
    gc.collect()
    same(step, [1, 0, 1])


# --- wrong arguments ----------------------------------------------------------------------------------------


def test_overrun_raise_names_the_lane_before_any_changes(rng):
    rnn = network(D, H, norm="batch", trained=3)
    stream = rnn.stream(5)
    for _ in range(3):
        stream(normal(rng, 2, D), [4, 2])
    stream(normal(rng, 1, D), [1])
    before, steps = parts(rnn, stream.state), stream.steps_done
    for call in (
        lambda: stream(normal(rng, 3, D), [1, 4, 2]),
        lambda: stream(normal(rng, 3, 3, D), [1, 4, 2], lengths=[1, 0, 1]),
    ):
        with pytest.raises(lnrnn.SequenceTooLongError, match="lane 2 has 4 steps") as caught:
            call()
        for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
            assert (error.sequence, error.length, error.known_steps) == (2, 4, 3)
            assert str(error) == str(caught.value)
        stays(rnn, stream, before, steps)
    # A lane after its last known step is not refused if it is reset, or takes no step.
    stream(normal(rng, 2, D), [1, 4], resets=[False, True])
    stream(normal(rng, 3, 2, D), [2, 0], lengths=[0, 3])
    same(stream.steps_done, [3, 2, 3, 0, 1])


# --- memory and threads -------------------------------------------------------------------------------------


def test_one_lane_no_lane_and_a_chunk_that_overwrites_x(rng):
    """tests/arguments has all kinds of rows and layouts of out."""
    rnn, x = network(D, H), normal(rng, 3, D)
    same(rnn.stream(5)(x[0], 3), rnn.stream(3)(x)[0])
    assert rnn.stream(5)(x[:0], []).shape == (0, H)
    assert rnn.stream(5)(x[:0], [], resets=[]).shape == (0, H)
    assert rnn.stream(5)(np.zeros((4, 0, D)), []).shape == (4, 0, H)
    square = network(H, H)
    over = normal(rng, 4, 3, H)
    want = square(over)[0]
    assert square.stream(3)(over, out=over) is over
    same(over, want)


class Exporter:
    """An array that is only accessible through DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_arrays_of_other_libraries(rng):
    """Inputs are not copied, and outputs are written into the other library's memory."""
    rnn = network(D, H)
    x, rows = normal(rng, 2, D), [3, 0]
    want = rnn.stream(4)(x, rows)
    same(rnn.stream(4)(Exporter(x), rows), want)
    same(rnn(Exporter(x[None]))[0][0], want)
    with pytest.raises(TypeError, match="x must be an array of real numbers"):
        rnn.stream(4)(Exporter(np.array(["a", "b"])), rows)
    same(np.from_dlpack(rnn.stream(4)(x, rows)), want)
    torch = pytest.importorskip("torch")
    out = torch.zeros(2, H)
    assert rnn.stream(4)(torch.from_numpy(x), rows, out=out) is out
    same(out.numpy(), want)
    chunk = torch.from_numpy(np.stack([x, x]))
    same(rnn.stream(4)(chunk, torch.tensor(rows)), rnn.stream(4)(chunk.numpy(), rows))


@pytest.mark.parametrize("norm", ["layer", lnrnn.BatchNormSpec(overrun="last")], ids=str)
@pytest.mark.parametrize("hidden", [17, 300])
def test_threads_that_serve_different_lanes_need_no_lock(rng, norm, hidden):
    """Short steps keep the interpreter's lock, longer ones release it. Tests every number of rows."""
    rnn = network(D, hidden, norm=norm, num_layers=2, trained=4)
    callers, lanes, steps = 4, 12, 60 if hidden < 100 else 12
    x = normal(rng, steps, callers * lanes, D)
    want = rnn(x)[0]
    stream, got = rnn.stream(callers * lanes), np.zeros_like(want)

    def serve(k):
        mine = np.random.default_rng(k)
        own = np.arange(k * lanes, (k + 1) * lanes)
        for t in range(steps):
            order = mine.permutation(own)
            cut = mine.integers(0, lanes + 1)
            for rows in (order[:cut], order[cut:]):
                got[t, rows] = stream(x[t, rows], rows, threads=1 + k % 2)

    together(serve, callers, 100)
    same(got, want)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_stream_continues_with_another_instruction_set(rng, dtype):
    """The other set packs weights differently."""
    rnn = network(D, 33, cell="LSTM", num_layers=2).to_dtype(dtype)
    stream, x = rnn.stream(3), normal(rng, 3, D)
    stream(x)
    for isa in available_isas():
        with using_isa(isa):
            fresh = rnn.stream(3)
            fresh.set_state(None, stream.get_state())
            same(stream(x), fresh(x), err_msg=isa)
