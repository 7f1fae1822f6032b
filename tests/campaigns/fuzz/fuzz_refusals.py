"""Passes invalid arguments. Errors must name them, nothing may change, and the next call must be right."""

from __future__ import annotations

import re

import numpy as np

import lnrnn
from bad_values import NO_ARRAY, NO_FLAG, NO_INTEGER, NO_NUMBER
from fuzz_draw import chance, lengths, network, pick
from fuzz_judge import alike
from fuzz_networks import described
from helpers import named
from networks import drawn_state, normal, only_forward, parts, whole, widths

BAD_NUMBERS = (-1, -1e-300, float("nan"), float("inf"), -(10**400))


def refused(judge, errors, name: str, label: str, call, *arguments, **given) -> None:
    """Counts one execution, and asserts that it raises one of `errors`, with a short message that contains
    `name`."""
    try:
        call(*arguments, **given)
    except errors as error:
        text = str(error)
        right = re.search(named(re.escape(name)), text) and len(text) < 400
        judge.true("refused", bool(right), f"{label}: {name} was wrong, and the error is {text[:200]!r}")
    else:
        raise AssertionError(f"{label}: {name} was wrong, and there was no error")


def other_shape(rng, shape: tuple[int, ...]) -> tuple[int, ...]:
    while True:
        new = list(shape)
        at = rng.random()
        if at < 0.5 and new:
            k = int(rng.integers(len(new)))
            new[k] = max(0, new[k] + int(rng.integers(-2, 3)))
        elif at < 0.7:
            new.insert(int(rng.integers(len(new) + 1)), int(rng.integers(1, 3)))
        elif at < 0.9 and new:
            new.pop(int(rng.integers(len(new))))
        else:
            new = [int(n) for n in rng.integers(0, 5, rng.integers(0, 5))]
        if tuple(new) != tuple(shape):
            return tuple(new)


def wrong_array(rng, shape: tuple[int, ...]):
    """Returns (errors, invalid value) for an argument that must be an array of this shape."""
    if chance(rng, 0.4):
        return TypeError, pick(rng, NO_ARRAY)
    dtype = pick(rng, (np.float32, np.float64, np.int8))
    return ValueError, np.ones(other_shape(rng, shape), dtype)


def wrong_output(rng, shape: tuple[int, ...], dtype):
    at = rng.random()
    if at < 0.4:
        return ValueError, np.zeros(other_shape(rng, shape), dtype)
    if at < 0.6:
        other = pick(rng, [d for d in (np.float16, np.float32, np.float64, np.int32, ">f4") if d != dtype])
        return TypeError, np.zeros(shape, other)
    if at < 0.8:
        out = np.zeros(shape, dtype)
        out.flags.writeable = False
        return ValueError, out
    return TypeError, pick(rng, ([], 1, "out", [[0.0]]))


def norms(rng, judge) -> None:
    n, rows = int(rng.integers(1, 9)), int(rng.integers(2, 5))
    dtype = pick(rng, (np.float32, np.float64))
    x, vector = rng.standard_normal((rows, n)).astype(dtype), rng.standard_normal(n).astype(dtype)
    kind = pick(rng, ("layer_norm", "rms_norm", "layer_norm_backward", "batch_norm", "batch_norm_backward"))
    batch = kind.startswith("batch")
    call = getattr(lnrnn, kind)
    good = dict(x=x, weight=vector, eps=1e-5)
    arrays = {"weight": (n,)}
    if "backward" in kind:
        good["gy"] = x.copy()
        arrays["gy"] = (rows, n)
    else:
        arrays["out"] = (rows, n)
    if batch:
        good |= dict(running_mean=vector.copy(), running_var=vector**2 + 1, training=chance(rng, 0.5))
        if not good["training"]:
            arrays |= {"running_mean": (n,), "running_var": (n,)}
    else:
        good["normalized_shape"] = n
    if kind in ("layer_norm", "batch_norm", "layer_norm_backward"):
        good["bias"] = vector
        arrays["bias"] = (n,)
    want = call(**good)
    for _ in range(6):
        name = pick(rng, [*good, *arrays])
        if name == "out":
            errors, value = wrong_output(rng, (rows, n), dtype)
        elif name == "eps":
            errors, bad = (TypeError, NO_NUMBER) if chance(rng, 0.5) else (ValueError, BAD_NUMBERS)
            value = pick(rng, bad)
        elif name == "training":
            errors, value = TypeError, pick(rng, NO_FLAG)
        elif name == "normalized_shape":
            errors, bad = (ValueError, (-1,)) if chance(rng, 0.3) else (TypeError, ("3", 1.5, True, None))
            value = pick(rng, bad)
        elif name == "x":
            errors, value = TypeError, pick(rng, NO_ARRAY)
            if not batch and chance(rng, 0.5):
                errors, value = ValueError, np.zeros((rows, n + int(rng.integers(1, 4))), dtype)
        elif name in arrays:
            errors, value = wrong_array(rng, arrays[name])
            if name in ("weight", "bias") and value is None:
                continue
            if value is None:
                errors = (ValueError, TypeError)
        else:
            continue
        before = {k: v.tobytes() for k, v in good.items() if isinstance(v, np.ndarray)}
        refused(judge, errors, name, f"{kind}({name}={short(value)})", call, **(good | {name: value}))
        after = {k: v.tobytes() for k, v in good.items() if isinstance(v, np.ndarray)}
        assert before == after, f"{kind}: a refused call changed an array"
    if not (batch and good["training"]):
        again = call(**good)
        for g, w in zip(*(r if isinstance(r, tuple) else (r,) for r in (again, want)), strict=True):
            judge.same(kind, g, w, f"{kind} after a refusal")


def short(value) -> str:
    try:
        return repr(value)[:60]
    except Exception:
        return type(value).__name__


def wrong_lengths(rng, steps: int, batch: int):
    at = rng.random()
    good = rng.integers(0, steps + 1, batch)
    if at < 0.3 and batch:
        good[rng.integers(batch)] = pick(rng, (-1, steps + 1, -(2**62), 2**62))
        return ValueError, good
    if at < 0.5:
        return ValueError, np.zeros(other_shape(rng, (batch,)), int)
    if at < 0.8 and batch:
        return TypeError, good.astype(pick(rng, (float, np.float32, bool)))
    return TypeError, pick(rng, ("abc", {}, object(), [[1], [2, 3]]))


def networks(rng, judge) -> None:
    rnn = network(rng, known=4)
    steps, batch = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    per_step = isinstance(rnn.norm, lnrnn.BatchNormSpec)
    x, ends = normal(rng, steps, batch, rnn.input_size), lengths(rng, steps, batch)
    h0 = drawn_state(rng, rnn, batch)
    given = np.ascontiguousarray(x.swapaxes(0, 1)) if rnn.batch_first else x
    label = described(rnn)
    want, want_h = rnn(given, h0, ends)
    gy = normal(rng, *want.shape)
    tape = rnn.forward_train(given, h0, ends)[2]
    before = rnn.state_dict()
    if per_step:
        want, want_h = rnn(given, h0, ends)
    for _ in range(5):
        at = rng.integers(9)
        if at == 0:
            errors, value = TypeError, pick(rng, NO_ARRAY)
            if chance(rng, 0.5):
                errors, value = ValueError, np.zeros((*given.shape[:-1], rnn.input_size + 1), np.float32)
            refused(judge, errors, "x", f"{label}, x {short(value)}", rnn, value)
        elif at == 1:
            shape = parts(rnn, h0)[0].shape
            errors, value = wrong_array(rng, shape)
            if value is None:
                continue
            name = "h0[0]" if isinstance(rnn, lnrnn.LSTM) else "h0"
            start = whole(rnn, [value, *parts(rnn, h0)[1:]])
            refused(judge, errors, "h0", f"{label}, {name} {short(value)}", rnn, given, start)
        elif at == 2:
            errors, value = wrong_lengths(rng, steps, batch)
            refused(judge, errors, "lengths", f"{label}, lengths {short(value)}", rnn, given, h0, value)
        elif at == 3:
            name = pick(rng, list(rnn.parameters()))
            errors, value = wrong_array(rng, rnn.parameters()[name].shape)
            errors = (errors, TypeError) if value is None else errors
            refused(judge, errors, name, label, setattr, rnn, name, value)
        elif at == 4:
            state = rnn.state_dict()
            name = pick(rng, list(state))
            if chance(rng, 0.5):
                del state[name]
            else:
                state[name + "x"] = state.pop(name)
            refused(judge, ValueError, name, f"{label}, state without {name}", rnn.load_state_dict, state)
        elif at == 5:
            value = pick(rng, ("float16", "", None, 8, np.float32, "INT8"))
            refused(judge, (ValueError, TypeError), "dtype", f"{label}, dtype {value!r}", rnn.to_dtype, value)
        elif at == 6 and tape is not None:
            errors, value = wrong_array(rng, gy.shape)
            if value is not None:
                refused(judge, errors, "gy", f"{label}, gy {short(value)}", rnn.backward, tape, value)
            refused(judge, TypeError, "tape", label, rnn.backward, pick(rng, (None, 3, gy, object())), gy)
        elif at == 7 and only_forward(rnn):
            stream = rnn.stream(batch)
            errors, value = wrong_array(rng, (batch, rnn.input_size))
            shape = getattr(value, "shape", ())
            if (shape == (rnn.input_size,) and batch == 1) or len(shape) == 3:  # may be valid
                continue
            refused(judge, errors, "x", f"{label}, stream, x {short(value)}", stream, value)
            errors, value = wrong_output(rng, (batch, widths(rnn)[0]), np.float32)
            refused(judge, errors, "out", f"{label}, out {short(value)}", stream, x[0], out=value)
            assert (stream.step == 0).all() and not any(s.any() for s in parts(rnn, stream.state)), label
        elif at == 8:
            sizes, flags = (
                ("input_size", "hidden_size", "num_layers"),
                ("bias", "batch_first", "bidirectional", "reverse"),
            )
            name = pick(rng, (*sizes, *flags))
            bad = NO_FLAG if name in flags else NO_INTEGER
            sizes = dict(input_size=2, hidden_size=4) | {name: pick(rng, bad)}
            refused(judge, TypeError, name, f"{type(rnn).__name__}({name})", type(rnn), **sizes)
    for name, value in rnn.state_dict().items():
        alike(value, before[name], f"{label}: a refused call changed {name}")
    judge.counts["call"] += 1
    got, got_h = rnn(given, h0, ends)
    alike(np.ascontiguousarray(got), np.ascontiguousarray(want), f"{label}, after refusals")
    for g, w in zip(parts(rnn, got_h), parts(rnn, want_h), strict=True):
        alike(g, w, f"{label}, state after refusals")


def case(rng, judge) -> None:
    (norms if chance(rng, 0.5) else networks)(rng, judge)
