"""Tests arrays that another thread changes during a call, or that change despite a read-only flag.

The call computes with the values that it checked, so no change can crash the process."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import sys

import numpy as np
import pytest

import lnrnn
from helpers import in_parts_of
from lnrnn.arguments import Array
from lnrnn.rnn.rows import END, FIRST, LENGTH, SEQUENCE, START, STATE
from networks import CELLS, NORMS, drawn_state, each_cell, each_norm, network, normal, run_apart, same

T, B, D, H = 7, 5, 3, 17


def at_every_line(call, change, restore):
    """Runs call() many times, with change() before the first line of Python code in lnrnn, then before the
    second, and so on. Another thread may do so at any of these moments. Returns the results, or errors."""
    done, results = False, []
    while not done:
        left = len(results)

        def trace(frame, event, arg):
            nonlocal left
            if f"{os.sep}lnrnn{os.sep}" not in frame.f_code.co_filename:
                return None
            if event == "line":
                if left == 0:
                    change()
                left -= 1
            return trace

        restore()
        before = sys.gettrace()  # a program that measures coverage sets a trace function
        sys.settrace(trace)
        try:
            results.append(call())
        except (ValueError, RuntimeError) as error:
            results.append(error)
        finally:
            sys.settrace(before)
        done = left >= 0
    restore()
    return results


def changed_lengths():
    rnn, x = lnrnn.RNN(2, 2, seed=0), np.ones((4, 512, 2), np.float32)
    lengths = np.full(512, 3)
    want = rnn(x, lengths=lengths)[0]
    for call in (lambda: rnn(x, lengths=lengths), lambda: rnn.forward_train(x, lengths=lengths)):
        found = at_every_line(call, lambda: lengths.fill(10**7), lambda: lengths.fill(3))
        assert len(found) > 20
        for result in found:
            if isinstance(result, ValueError):
                assert str(result).startswith("lengths must")
            else:
                same(result[0], want)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [lnrnn.LayerNorm, lnrnn.BatchNorm])
def test_a_state_loaded_within_a_call_of_a_layer(make, training, plain):
    """The call computes with either the old or the new state, never a mixture."""
    x = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    x = x[:, :4].copy() if plain else x[:, ::2]
    layer, states, wanted = make(4).train(training), [], []
    for k in (1, 2):
        states.append({name: np.full_like(value, k) for name, value in layer.state_dict().items()})
        layer.load_state_dict(states[-1])
        wanted.append(layer(x))
    assert not np.array_equal(*wanted)
    for result in at_every_line(
        lambda: layer(x), lambda: layer.load_state_dict(states[1]), lambda: layer.load_state_dict(states[0])
    ):
        assert any(np.array_equal(result, y) for y in wanted)


def test_lengths_are_read_once():
    """The lengths are an array-like that returns other numbers at each conversion."""

    class Restless:
        answers = [[4, 4], [10**7, 4]]

        def __array__(self, dtype=None, copy=None):
            return np.array(self.answers.pop(0))

    rnn, x = lnrnn.RNN(D, H, seed=0), np.zeros((4, 2, D), np.float32)
    same(rnn(x, lengths=Restless())[0], rnn(x)[0])


# --- tapes --------------------------------------------------------------------------------------------------


def taped(cell="RNN", norm="layer"):
    rng = np.random.default_rng(0)
    rnn = network(D, H, cell=cell, norm=norm, bidirectional=True)
    x, gy = normal(rng, T, B, D), normal(rng, T, B, 2 * H)
    return rnn, rnn.forward_train(x, drawn_state(rng, rnn, B), np.array([7, 7, 6, 2, 0]))[2], gy


def arrays_of(tape):
    """Returns {name for messages: array of the tape}."""
    found = {"rows": tape.rows.table} | {f"start {k}": s for k, s in enumerate(tape.start)}
    for k, run in enumerate(tape.runs):
        found |= {f"{name} {k}": getattr(run, name) for name in ("record", "x", "y")}
        for side, value in (run.statistics or {}).items():
            arrays = value if isinstance(value, tuple) else [value]
            found |= {f"statistics {side} {k} {i}": a for i, a in enumerate(arrays)}
    return found


@each_cell
@each_norm
def test_a_tape_is_read_only(cell, norm):
    rnn, tape, gy = taped(cell, norm)
    for name, array in arrays_of(tape).items():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        assert array.size, name
    with pytest.raises(TypeError):
        tape.start[0] = 0
    with pytest.raises(TypeError):
        tape.runs[0] = 0
    rnn.backward(tape, gy)


def force_tapes():
    """Makes each array of a tape writeable, and fills it with numbers that would be out of bounds."""
    for cell in CELLS:
        for norm in NORMS:
            rnn, tape, gy = taped(cell, norm)
            want = rnn.backward(tape, gy)
            for name, array in arrays_of(tape).items():
                if isinstance(array.base, np.ndarray):
                    array.base.setflags(write=True)
                array.setflags(write=True)
                for value in (10**6, -1, 2**62, 3):
                    kept = array.copy()
                    array[...] = value
                    if name == "rows":
                        with pytest.raises(AssertionError, match="internal error"):
                            rnn.backward(tape, gy)
                    else:
                        with np.errstate(all="ignore"):
                            rnn.backward(tape, gy)  # these numbers are valid
                    array[...] = kept
            same(rnn.backward(tape, gy)[0], want[0])
            table = tape.rows.table
            table[1:3, LENGTH] = 6, 7  # invalid: rising lengths
            with pytest.raises(AssertionError):
                rnn.backward(tape, gy)
            table[1:3, LENGTH] = 5, 5  # invalid: fewer steps than the tape has records
            with pytest.raises(AssertionError):
                rnn.backward(tape, gy)
            table[1:3, LENGTH] = 7, 6
            table[:2, STATE] = 1  # invalid: one state twice
            with pytest.raises(AssertionError):
                rnn.backward(tape, gy)
            table[:2, STATE] = 0, 1
            beyond = (SEQUENCE, B), (SEQUENCE, -1), (FIRST, 1), (FIRST, -1), (END, T + 1), (START, -1)
            for column, value in beyond:
                before = table[0, column]
                table[0, column] = value  # invalid: beyond the arrays
                with pytest.raises(AssertionError):
                    rnn.backward(tape, gy)
                table[0, column] = before
            same(rnn.backward(tape, gy)[0], want[0])
            if norm == "batch":
                tape.runs[0].statistics.clear()
                with pytest.raises(AssertionError):
                    rnn.backward(tape, gy)


def change_tapes_within_a_call():
    """A signal handler changes the tape between two parts of a call. The call uses the rows that it has
    checked."""
    rng = np.random.default_rng(0)
    rnn = network(64, 128, cell="LSTM")
    y, _, tape = rnn.forward_train(normal(rng, 250, 33, 64))
    want = rnn.backward(tape, y)[0]
    table = tape.rows.table
    kept, changes, got = table.copy(), [], None
    table.setflags(write=True)

    def change(_, frame):
        if frame.f_code is change_tapes_within_a_call.__code__:  # the call has not begun
            signal.setitimer(signal.ITIMER_REAL, 0.004)
            return
        changes.append(1)
        table[...] = 10**6

    with in_parts_of(2**16):
        signal.signal(signal.SIGALRM, change)
        for delay in (0.004, 0.008, 0.016, 0.032):
            signal.setitimer(signal.ITIMER_REAL, delay)
            try:
                got = rnn.backward(tape, y)[0]
                break
            except AssertionError as error:  # on a busy machine the signal comes before the check
                assert "rows that cannot be" in str(error)
                table[...] = kept
                changes.clear()
    assert changes
    same(got, want)
    table[...] = kept


needs_a_timer = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no setitimer")


@pytest.mark.parametrize(
    "attack", [changed_lengths, force_tapes, pytest.param(change_tapes_within_a_call, marks=needs_a_timer)]
)
def test_changes_cannot_crash_the_process(attack):
    run_apart(attack)


def test_a_tape_shares_no_memory_with_other_calls():
    rnn, x = lnrnn.RNN(D, H, seed=0), np.ones((T, B, D), np.float32)
    y = rnn(x)[0]
    tape = rnn.forward_train(x)[2]
    for array in arrays_of(tape).values():
        array.setflags(write=True)
        array[...] = 3
    same(rnn(x)[0], y)


def test_a_tape_can_be_copied_but_not_pickled():
    rnn, tape, gy = taped()
    assert copy.copy(tape) is tape
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="a Tape cannot be pickled or deep-copied: .* forward_train"):
            copied(tape)
    with pytest.raises(TypeError, match="tape must be a Tape of this network"):
        copy.copy(rnn).backward(tape, gy)


def test_a_checked_array_keeps_its_shape():
    """lnrnn checks its own view of the array. The caller cannot set the shape of the view."""
    given = np.zeros((2, 3), np.float32)
    found = Array("T D").check("x", given, {"dtype": np.float32})
    given.shape = 6
    assert found.shape == (2, 3) and np.shares_memory(found, given)
