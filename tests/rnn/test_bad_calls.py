"""Tests invalid values of all arguments of constructors, calls, streams, training, parameters and statistics.

Each raises an error of the right type that names the argument, and changes nothing.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest

import lnrnn
from bad_values import (
    HUGE,
    INF,
    NAN,
    NO_ARRAY,
    NO_FLAG,
    NO_INTEGER,
    B,
    D,
    E,
    H,
    Hostile,
    T,
    V,
    X,
    cases,
    label,
    numbers,
    refuses,
    sizes,
    snapshot,
    wrong,
)
from helpers import NOT_REAL, named
from networks import each_norm, network

# --- whole sequences ----------------------------------------------------------------------------------------

LONG = np.full(B, T)
NO_INTEGERS = [
    *NO_ARRAY[:-1], LONG.astype(float), LONG.astype(np.float16), LONG > 0, [1.0, 2.0, 3.0], [1, 2, 2.5],
    [NAN] * B, LONG * 1j, LONG.astype(object), [1, 2, None], ["1", "2", "3"],
    [1, 2, 2**64], [1, 2, HUGE],  # NumPy converts these two to arrays of objects
]  # fmt: skip
WRONG_LENGTHS = [
    1, LONG[:2], np.full(B + 1, 1), LONG[None], LONG[:, None], [], [1, 2, T + 1], [-1, 2, 3],
    [0, 0, -(2**63)], [1, 2, 2**31], [1, 2, 2**32 + 1], [1, 2, 2**63 - 1],
    np.array([1, 2, 2**63], np.uint64), np.array([1, 2, 2**64 - 1], np.uint64),
    np.array([1, 2, -1], np.int8), np.array([255, 1, 2], np.uint8),
]  # fmt: skip
NO_NUMBERS = [Hostile(), X * 1j, X.astype("M8[s]"), X.astype("U3"), X.astype(object), X.tobytes()]
WRONG_SHAPES = [(D,), (1, T, B, D), (T, B, 1), (T, B, D + 1), (T, B, 0), (T, D + 1), (0,), (1, 0), (0, 0)]
WRONG_STATES = [
    (), (H,), (B, H), (2, B, H), (1, B, H + 1), (1, B + 1, H), (1, 1, H), (1, H), (1, 1, B, H), (0,),
]  # fmt: skip
WRONG_CALLS = [
    *wrong(E, "x", [*NOT_REAL, *NO_NUMBERS]),
    *wrong(V, "x", [np.float32(1), np.ones((D, B, T)), *map(np.ones, WRONG_SHAPES)]),
    *wrong(E, "h0", NO_ARRAY[:-1]),
    *wrong(V, "h0", [0.0, *map(np.zeros, WRONG_STATES)]),
    *wrong(E, "lengths", NO_INTEGERS),
    *wrong(V, "lengths", WRONG_LENGTHS),
]


@each_norm
@cases(WRONG_CALLS)
def test_call_refuses_a_wrong_argument(norm, error, name, given):
    rnn = network(D, H, norm=norm, trained=T)
    before = snapshot(rnn)
    arguments = dict(x=X) | given
    refuses(error, name, rnn, **arguments)
    refuses(error, name, rnn.forward_train, **arguments)
    if norm == "batch" and name != "h0":
        refuses(error, name, rnn.calibrate, [X, (arguments["x"], arguments.get("lengths"))])
    assert snapshot(rnn) == before


def test_call_refuses_wrong_lengths_with_batch_first_and_of_one_sequence():
    rnn = network(D, H, batch_first=True)
    refuses(V, "lengths", rnn, X, lengths=LONG)  # with batch_first, X has T sequences
    refuses(V, "lengths", rnn, X, lengths=[1, 2, 3, B + 1])
    refuses(V, "h0", rnn, X, np.zeros((1, B, H)))
    for name, value in (
        ("h0", np.zeros((1, 1, H))),
        ("lengths", [1, 2]),
        ("lengths", T + 1),
        ("lengths", -1),
    ):
        refuses(V, name, rnn, X[:, 0], **{name: value})
    refuses(E, "lengths", rnn, X[:, 0], lengths=2.0)


@pytest.mark.parametrize("batches", [None, 3, "ab", X, X[0], Hostile(), np.float32(1)], ids=label)
def test_calibrate_refuses_wrong_batches(batches):
    rnn = network(D, H, norm="batch", trained=T)
    before = snapshot(rnn)
    with pytest.raises((E, V), match=f"{named('batches')}|{named('x')}"):
        rnn.calibrate(batches)
    for empty in ([], [(X, [0, 0, 0])], [X[:0]], [X[:, :0]]):
        refuses(V, "batches", rnn.calibrate, empty)
    assert snapshot(rnn) == before


def test_calibrate_passes_an_error_of_the_callers_iterator_on():
    rnn = network(D, H, norm="batch", trained=T)
    before = snapshot(rnn)
    with pytest.raises(ZeroDivisionError):
        rnn.calibrate(X * (1 // k) for k in (1, 0))
    assert snapshot(rnn) == before


@pytest.mark.parametrize("norm", ["layer", None])
def test_methods_of_batch_norm_are_refused_for_other_norms(norm):
    rnn = network(D, H, norm=norm)
    with pytest.raises(ValueError, match="batch norm"):
        rnn.calibrate([X])
    with pytest.raises(ValueError, match=named("overrun")):
        rnn.overrun = "last"
    assert rnn.overrun is rnn.known_steps is None


@pytest.mark.parametrize("value", ["Last", "", None, 3, ["last"], Hostile()], ids=label)
def test_overrun_refuses_a_wrong_value(value):
    rnn = network(D, H, norm="batch", trained=T)
    refuses(V if isinstance(value, str) or value is None else E, "overrun", setattr, rnn, "overrun", value)
    assert rnn.overrun == "raise"


# --- training -----------------------------------------------------------------------------------------------


@cases(
    wrong(E, "gy", NO_ARRAY[:-1]),
    wrong(E, "gh", NO_ARRAY[:-1]),
    wrong(
        V,
        "gy",
        [0, X, np.ones((T, B, H + 1)), np.ones((B, T, H)), np.ones((T, H)), np.ones((T - 1, B, H)), []],
    ),
    wrong(V, "gh", [0, np.ones((B, H)), np.ones((1, B, H + 1)), np.ones((2, B, H)), np.ones((1, H)), []]),
    wrong(E, "tape", [None, 3, "tape", (), {}, Hostile()]),
)
def test_backward_refuses_a_wrong_argument(error, name, given):
    rnn = network(D, H)
    y, h, tape = rnn.forward_train(X)
    refuses(error, name, rnn.backward, **dict(tape=tape, gy=y, gh=h) | given)


def test_backward_refuses_a_tape_of_another_network():
    rnn, y, tape = network(D, H), *network(D, H).forward_train(X)[::2]
    refuses(E, "tape", rnn.backward, tape, y)
    own = rnn.forward_train(X)[2]
    refuses(E, "tape", copy.deepcopy(rnn).backward, own, y)
    refuses(E, "tape", rnn.to_dtype("float32").backward, own, y)


@pytest.mark.parametrize(
    "dtype", ["float64", "Float32", "", None, 8, np.float32, np.dtype("f4"), Hostile()], ids=label
)
def test_to_dtype_refuses_a_wrong_dtype(dtype):
    refuses(V if isinstance(dtype, str) or dtype is None else E, "dtype", network(D, H).to_dtype, dtype)


MASKED = np.ma.array(X)
MASKED_DOORS = [
    ("values", lambda rnn, stream: rnn.ragged(MASKED[:, 0], [0, T])),
    ("x", lambda rnn, stream: rnn(list(MASKED))),
    ("x", lambda rnn, stream: lnrnn.SessionPool(rnn).step([], MASKED[0, :0])),
    ("resets", lambda rnn, stream: stream(X[0], resets=np.ma.ones(B, bool))),
    ("rows", lambda rnn, stream: stream(X[0, :1], np.ma.array([1]))),
    ("out", lambda rnn, stream: stream(X[0], out=np.ma.zeros((B, H), np.float32))),
    ("gy", lambda rnn, stream: rnn.backward(rnn.forward_train(X)[2], MASKED)),
    ("steps", lambda rnn, stream: lnrnn.step_all([(stream, MASKED[0])])),
    ("state", lambda rnn, stream: setattr(stream, "state", MASKED)),
    ("state", lambda rnn, stream: lnrnn.StreamState(MASKED, [0], "0" * 64).to_bytes()),
    ("weight_ih_l0", lambda rnn, stream: lnrnn.from_torch({"weight_ih_l0": MASKED[0], "weight_hh_l0": X[0]})),
    ("sequences", lambda rnn, stream: lnrnn.data.pad_sequence([X[0], MASKED[0]])),
]  # fmt: skip


@pytest.mark.parametrize("name, call", MASKED_DOORS, ids=label)
def test_masked_arrays_are_refused(name, call):
    with pytest.raises(TypeError, match=rf"{named(name)}.* got .*masked"):
        call(network(D, H), network(D, H).stream(B))


# --- parameters and statistics ------------------------------------------------------------------------------


@each_norm
def test_a_wrong_parameter_is_refused(norm):
    rnn = network(D, H, norm=norm, num_layers=2, trained=T)
    before = snapshot(rnn)
    for name, value in rnn.parameters().items():
        for bad in NO_ARRAY[:-1]:
            refuses(E, name, setattr, rnn, name, bad)
        for bad in (0.0, value[None], value[:-1], np.ones(value.size + 1), np.ones((value.size, 1)), []):
            refuses(V, name, setattr, rnn, name, bad)
        with pytest.raises(ValueError, match="read-only"):
            value[...] = 0
    for name in ("running_mean_l0", "running_var_l1", "count_l0"):
        if norm == "batch":
            assert not getattr(rnn, name).flags.writeable
        with pytest.raises(AttributeError, match=name):
            setattr(rnn, name, np.zeros(1))
    assert snapshot(rnn) == before


def state_cases():
    """Returns tuples (fault, error, a word of the message, function that damages a state dict)."""

    def drop(state, name):
        del state[name]

    yield "missing", V, "bias_l0", lambda s: drop(s, "bias_l0")
    yield "missing count", V, "count_l1", lambda s: drop(s, "count_l1")
    yield "unexpected", V, "gain_l7", lambda s: s.update(gain_l7=np.ones(H))
    yield "a key that is no name", V, "3", lambda s: s.update({3: np.ones(H)})
    for name in ("gain_l0", "weight_hh_l1", "running_mean_l0", "running_var_l1", "count_l0", "count_l1"):
        for bad in NO_ARRAY[:-1]:
            yield f"{name} {label(bad)}", E, name, lambda s, n=name, b=bad: s.update({n: b})
        yield f"{name} rank", V, name, lambda s, n=name: s.update({n: s[n][None]})
    for bad in (1.0, np.ones(H + 1), np.ones((1, H))):
        yield f"gain {label(bad)}", V, "gain_l0", lambda s, b=bad: s.update(gain_l0=b)
    for bad in (np.ones(T), np.full(T, NAN), np.ones(T, bool)):
        yield f"count {bad.dtype}", E, "count_l0", lambda s, b=bad: s.update(count_l0=b, count_l1=b)
    for bad in ([1, 2, 3, 4], [4, 4, 4, -1], [1, 0, 1, 0], [2**63 - 1, 0, 0, 1], [-(2**63), 0, 0, 0]):
        yield f"count {bad}", V, "count_l0", lambda s, b=bad: s.update(count_l0=b, count_l1=b)
    huge = np.array([2**64 - 1] * T, np.uint64)
    yield "count 2^64", V, "count_l0", lambda s: s.update(count_l0=huge, count_l1=huge)
    yield "counts that differ", V, "count_l1", lambda s: s.update(count_l1=s["count_l1"] + 1)
    short = dict(running_mean_l1=np.ones((2, H)), running_var_l1=np.ones((2, H)))
    yield "fewer steps in one", V, "count_l1", lambda s: s.update(short, count_l1=s["count_l1"][:2])
    longer, negative = np.ones((T + 1, H)), np.full((T, H), -1e-300)
    yield "more steps than counts", V, "running_mean_l0", lambda s: s.update(running_mean_l0=longer)
    yield "negative variance", V, "running_var_l1", lambda s: s.update(running_var_l1=negative)
    yield "infinitely negative", V, "running_var_l0", lambda s: s.update(running_var_l0=np.full((T, H), -INF))


@pytest.mark.parametrize("what, error, word, change", list(state_cases()), ids=label)
def test_load_state_dict_refuses_a_damaged_state(what, error, word, change):
    rnn = network(D, H, norm="batch", num_layers=2, trained=T)
    before, state = snapshot(rnn), network(D, H, seed=9, norm="batch", num_layers=2, trained=T).state_dict()
    change(state)
    refuses(error, word, rnn.load_state_dict, state)
    assert snapshot(rnn) == before


@pytest.mark.parametrize("state", [None, 3, "gain_l0", [], [("gain_l0", 1)], X, Hostile()], ids=label)
def test_load_state_dict_refuses_a_state_that_is_no_dict(state):
    for owner in (network(D, H), network(D, H, norm="batch"), lnrnn.LayerNorm(3), lnrnn.BatchNorm(3)):
        refuses(E, "state", owner.load_state_dict, state)


def test_load_state_dict_refuses_more_steps_than_max_steps():
    rnn = network(D, H, norm=lnrnn.BatchNormSpec(max_steps=T), trained=T)
    before = snapshot(rnn)
    refuses(V, "count_l0", rnn.load_state_dict, network(D, H, norm="batch", trained=T + 1).state_dict())
    assert snapshot(rnn) == before


def test_load_state_dict_of_layers_refuses_a_damaged_state():
    for layer in (lnrnn.LayerNorm(3), lnrnn.BatchNorm(3)):
        before = {k: v.tobytes() for k, v in layer.state_dict().items()}
        good = {k: v + 1 for k, v in layer.state_dict().items()}
        for name in good:
            for bad in NO_ARRAY[:-1]:
                refuses(E, name, layer.load_state_dict, good | {name: bad})
            refuses(V, name, layer.load_state_dict, good | {name: np.ones((7, 7))})
            refuses(V, name, layer.load_state_dict, {k: v for k, v in good.items() if k != name})
        refuses(V, "more", layer.load_state_dict, good | dict(more=1))
        assert {k: v.tobytes() for k, v in layer.state_dict().items()} == before


# --- streams ------------------------------------------------------------------------------------------------


@cases(sizes("batch_size", 2**31 - 1))
def test_stream_refuses_a_wrong_batch_size(error, name, given):
    refuses(error, name, network(D, H).stream, **given)


@cases(
    wrong(E, "x", [*NOT_REAL, Hostile(), X[0] * 1j]),
    wrong(V, "x", [X[:, 1:], X[..., 1:], X[0].T, X[0, 0], X[0, :2], 1.0, [], np.ones((B, 0))]),
    wrong(E, "state", NO_ARRAY[:-1]),
    wrong(V, "state", [0, np.ones((B, H)), np.ones((1, B, H + 1)), np.ones((2, B, H)), []]),
    wrong(E, "step", [v for v in NO_INTEGER if not isinstance(v, (list, tuple, np.ndarray))]),
    wrong(V, "step", [-1, -HUGE, 2**63, HUGE, [3], (3,), np.full(B + 1, 3), [[3] * B], [-1] * B]),
)
def test_a_step_refuses_a_wrong_argument(error, name, given):
    rnn = network(D, H, norm="batch", trained=T)
    stream, other = rnn.stream(B), rnn.stream(B)
    y = stream(X[0])
    kept, state = y.copy(), stream.state
    if name == "x":
        refuses(error, name, stream, given["x"])
    else:
        refuses(error, name, setattr, stream, name, given[name])
    other(X[0])
    np.testing.assert_array_equal(y, kept)
    np.testing.assert_array_equal(stream.state, state)
    assert (stream.step == 1).all()
    np.testing.assert_array_equal(stream(X[1]), other(X[1]))


# --- constructors -------------------------------------------------------------------------------------------


@cases(
    sizes("input_size", 2**31 - 1),
    sizes("hidden_size", 2**31 - 1),
    sizes("num_layers", 1024),
    wrong(E, "nonlinearity", [3, ["tanh"], b"tanh", math.tanh, Hostile(), np.array(["tanh", "relu"])]),
    wrong(V, "nonlinearity", ["Tanh", "", "tanh ", "softmax", None, "x" * 10_000]),
    wrong(E, "norm", [3, True, ["layer"], b"layer", lnrnn.LayerNormSpec, lnrnn.LayerNorm(3), Hostile()]),
    wrong(V, "norm", ["Layer", "", "none", "instance"]),
    *(wrong(E, name, NO_FLAG) for name in ("bias", "batch_first", "bidirectional")),
    wrong(E, "seed", [v for v in NO_INTEGER if v is not None]),
    wrong(V, "seed", [-1, -HUGE]),
)
def test_rnn_refuses_a_wrong_argument(error, name, given):
    refuses(error, name, lnrnn.RNN, **dict(input_size=D, hidden_size=H) | given)


def test_rnn_takes_any_kind_of_integer():
    for two in (np.int8(2), np.uint64(2), np.array(2)):
        rnn = lnrnn.RNN(two, two, two, seed=two)
        assert (rnn.input_size, rnn.hidden_size, rnn.num_layers) == (2, 2, 2)
        spec = lnrnn.BatchNormSpec(max_steps=two)
        assert type(rnn.input_size) is type(spec.max_steps) is int  # a file cannot store a NumPy integer
        np.testing.assert_array_equal(rnn.weight_ih_l0, lnrnn.RNN(2, 2, seed=2).weight_ih_l0)
        assert lnrnn.LayerNorm(two).normalized_shape == (2,)
    assert lnrnn.RNN(1, 1, 1024).num_layers == 1024  # the largest number


@cases(
    numbers("eps"),
    wrong(E, "eps", [None]),
    wrong(V, "placement", ["none", "Joint", ""]),
    wrong(E, "placement", [1, ["joint"], Hostile()]),
    wrong(V, "cell", ["in", ""]),
    wrong(E, "cell", [1, True, ["out"]]),
    wrong(V, "span", ["paper", ""]),
    wrong(E, "span", [1, False, ["all"]]),
    wrong(E, "inner_bias", [1, None, "yes", np.ones(3), Hostile()]),
)
def test_layer_norm_spec_refuses_a_wrong_argument(error, name, given):
    refuses(error, name, lnrnn.LayerNormSpec, **given)


@cases(
    numbers("eps"),
    wrong(E, "eps", [None]),
    numbers("momentum", most=1),
    wrong(E, "max_steps", [v for v in NO_INTEGER if v is not None]),
    wrong(V, "max_steps", [0, -1, 2**31, HUGE]),
    wrong(V, "overrun", ["Raise", "", "first", None]),
    wrong(E, "overrun", [1, ["last"], b"last", Hostile()]),
)
def test_batch_norm_spec_refuses_a_wrong_argument(error, name, given):
    refuses(error, name, lnrnn.BatchNormSpec, **given)


@cases(
    numbers("eps"),
    wrong(E, "eps", [None]),
    wrong(E, "elementwise_affine", NO_FLAG),
    wrong(E, "bias", NO_FLAG),
    wrong(E, "normalized_shape", ["4", None, 4.0, True, (4.0,), (True,), [[4]], Hostile(), np.array(["a"])]),
    wrong(V, "normalized_shape", [-1, (), [], (3, -4), -HUGE, 2**63, HUGE, (2**63, 1)]),
)
def test_layer_norm_refuses_a_wrong_argument(error, name, given):
    refuses(error, name, lnrnn.LayerNorm, **dict(normalized_shape=4) | given)


@cases(
    numbers("eps"),
    wrong(E, "eps", [None]),
    numbers("momentum", most=1),
    wrong(E, "affine", NO_FLAG),
    wrong(E, "track_running_stats", NO_FLAG),
    wrong(E, "num_features", NO_INTEGER),
    wrong(V, "num_features", [-1, -HUGE, 2**63, HUGE]),
)
def test_batch_norm_refuses_a_wrong_argument(error, name, given):
    refuses(error, name, lnrnn.BatchNorm, **dict(num_features=4) | given)


@cases(sizes("n", 1024))
def test_set_num_threads_refuses_a_wrong_number(error, name, given):
    before = lnrnn.get_num_threads()
    refuses(error, name, lnrnn.set_num_threads, **given)
    assert lnrnn.get_num_threads() == before


@pytest.mark.parametrize("mode", NO_FLAG, ids=label)
def test_train_refuses_a_wrong_mode(mode):
    for layer in (lnrnn.LayerNorm(3), lnrnn.BatchNorm(3)):
        refuses(E, "mode", layer.train, mode)
        assert layer.training is True
