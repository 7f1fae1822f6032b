"""Invalid states and step numbers of a StreamState, a pickle or an assignment are refused.

The error names the wrong argument, and no lane changes. C also asserts values that could corrupt memory.
"""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

import lnrnn
from lnrnn import _core
from networks import network, normal, parts, same, stays

D, H, LANES, LAST = 3, 5, 4, 2**62


def stepped(rng, **options):
    """Returns a network, a stream of it after one step, and the stream's states."""
    rnn = network(D, H, trained=3, **options)
    stream = rnn.stream(LANES)
    stream(normal(rng, LANES, D))
    return rnn, stream, parts(rnn, stream.state)


def unpickled(stream, **changed):
    """Returns the stream that pickle creates if some of its arguments are changed."""
    make, (snapshot, lanes, state, step) = stream.__reduce__()
    given = {"lanes": lanes, "state": state, "steps_done": step} | changed
    return pickle.loads(pickle.dumps(Remade(make, (snapshot, *given.values()))))


class Remade:
    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("options", [
    dict(cell="LSTM"), dict(cell="GRU", norm=None), dict(norm="batch"),
    *(dict(norm=lnrnn.BatchNormSpec(overrun=overrun)) for overrun in ("last", "mean", "batch")),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("error, step", [
    *((ValueError, np.full(LANES, n)) for n in (-1, -(2**63), 2**63 - 1)),
    *((ValueError, np.array(steps)) for steps in ([1, 1, -1, 1], [LAST + 1, 1, 1, 1])),
    (ValueError, np.full(LANES, 2**64 - 1, np.uint64)), (ValueError, np.ones(LANES - 1, int)),
    (ValueError, np.ones((LANES, 1), int)), (ValueError, 2**70),
    *((TypeError, step) for step in (np.ones(LANES), np.ones(LANES, bool), [None] * LANES, "1", None)),
])  # fmt: skip
def test_impossible_steps_are_refused(rng, options, error, step):
    rnn, stream, before = stepped(rng, **options)
    state = dataclasses.replace(stream.get_state(), steps_done=step)
    for name, call in (
        ("state.steps_done", lambda: stream.set_state(None, state)),
        ("steps_done", lambda: setattr(stream, "steps_done", step)),
        ("steps_done", lambda: unpickled(stream, steps_done=step)),
    ):
        with pytest.raises(error, match=f"^{name} must be "):
            call()
        stays(rnn, stream, before, 1)
    y = stream(normal(rng, LANES, D))
    assert np.isfinite(y).all() and (stream.steps_done == 2).all()


@pytest.mark.parametrize("cell", ["RNN", "LSTM"])
def test_impossible_pickled_states_are_refused(rng, cell):
    _, stream, h = stepped(rng, cell=cell)
    other = [s[:, :2] for s in h]
    for states in ([*h, *h], [], h * 3, other, [s[..., :2] for s in h], [s.astype(complex) for s in h]):
        with pytest.raises((ValueError, TypeError), match=r"^state(\[0\])? must be "):
            unpickled(stream, state=states)
    for size in (0, -1, 2**31, 2.0, True, None):
        with pytest.raises((ValueError, TypeError), match="^lanes must be "):
            unpickled(stream, lanes=size)
    twin = unpickled(stream)
    for s, kept in zip(parts(stream, twin.state) if cell == "RNN" else twin.state, h, strict=True):
        same(s, kept)


def test_a_lane_beyond_the_last_step_is_refused(rng):
    """A lane counts its steps up to a limit. Calls of one step or several beyond the limit raise an error."""
    rnn, stream, _ = stepped(rng)
    stream.steps_done = [5, LAST - 1, 0, LAST]
    x = normal(rng, LANES, D)
    stream(x[:2], [0, 1])
    before, steps = parts(rnn, stream.state), [6, LAST, 0, LAST]
    for call, lane in (
        (lambda: stream(x), 1),
        (lambda: stream(x[:2], [2, 3]), 3),
        (lambda: stream(normal(rng, 2, 2, D), [2, 3]), 3),
    ):
        with pytest.raises(ValueError, match=f"^the steps of lane {lane} must be at most {LAST}, got"):
            call()
        stays(rnn, stream, before, steps)
    stream.set_state(None, stream.get_state())  # the state of a stream must always be valid
    stream(x, resets=np.array([False, True, False, True]))
    same(stream.steps_done, [7, 1, 1, 1])


def test_the_compiled_module_asserts_states(rng):
    """Lanes.put raises AssertionError for arguments that Python should have refused."""
    rnn, stream, before = stepped(rng, cell="RNN", norm=lnrnn.BatchNormSpec(overrun="batch"))
    lanes, rows, h = stream._lanes, np.arange(LANES), before[0] + 1
    for states, steps in (
        ([h, h], None),
        ([h, None], None),
        ([h[:, :2]], None),
        ([], np.array([0, 0, -1, 0])),
        ([h], np.full(LANES, LAST + 1)),
        ([h], np.array([0, 0, 1, 0])),
        ([h], np.zeros(LANES, np.int32)),
    ):
        with pytest.raises(AssertionError, match="internal error"):
            lanes.put(rows, states, steps)
        stays(rnn, stream, before, 1)
    with pytest.raises(AssertionError, match="internal error"):
        lanes.put(np.array([0, 1, 2, LANES]), [h], None)
    stays(rnn, stream, before, 1)


def test_a_network_with_parameters_of_other_shapes_is_refused():
    """A damaged pickle can have parameters that do not fit its architecture."""
    snapshot = network(H, H, num_layers=2).stream(1)._snapshot
    description, state = snapshot.architecture.description("float32", None), snapshot.state()
    assert _core.Network(description, state).nbytes == 0
    for name in ("weight_ih_l0", "weight_hh_l1", "gain_l1"):
        with pytest.raises(AssertionError, match="internal error"):
            _core.Network(description, state | {name: state[name][1:]})
        with pytest.raises(AssertionError, match="internal error"):
            _core.Network(description, state | {name: state[name].astype(float)})


@pytest.mark.parametrize("what", ["_snapshot", "_lanes"])
def test_compiled_objects_have_no_pickle(what):
    """Compiled objects contain memory addresses, which mean nothing in another process."""
    stream = network(D, H).stream(1)
    found = stream._lanes if what == "_lanes" else stream._snapshot.compiled()
    with pytest.raises(TypeError, match="cannot pickle|no default __reduce__"):
        pickle.dumps(found)
    assert not [name for name in dir(_core) if "unpickle" in name]
