"""Invalid and valid values for the constraints of lnrnn.arguments, and checks of the errors."""

from __future__ import annotations

import decimal
import fractions
import math
import re

import numpy as np
import pytest

from helpers import NOT_REAL, Kind, bad_outs, layouts, named, read_only

V, E = ValueError, TypeError
HUGE = 10**5000  # Python raises an error when this int is printed
NAN, INF = float("nan"), float("inf")


class Hostile:
    """An object that raises an error for every operation, even for repr()."""

    def fail(self, *args):
        raise RuntimeError("asked")

    __array__ = __float__ = __int__ = __repr__ = __str__ = __bool__ = __eq__ = fail
    __hash__ = None


class Turned:
    """An object whose __index__ returns no integer."""

    def __index__(self):
        return "3"


NO_INTEGER = [
    "3", b"3", None, 1.0, 2.5, NAN, True, np.True_, np.float64(3), 1j, [3], (3,), {}, np.array([3, 4]),
    np.array(3.0), np.array(True), decimal.Decimal(3), fractions.Fraction(3), Hostile(), Turned(), int,
]  # fmt: skip
NO_NUMBER = [
    "1e-5", b"1", None, True, np.True_, 1j, [1e-5], (), {}, np.array([1.0, 2.0]), Hostile(), np.array("1"),
    float,
]  # fmt: skip
INFINITE = [NAN, INF, -INF, 10**400, -(10**400), HUGE, decimal.Decimal("NaN"), np.float32(NAN)]
NO_FLAG = [0, 1, 1.0, None, "True", "", [], np.array([True, False]), np.int64(1), Hostile()]
NO_ARRAY = [v for v in NOT_REAL if v is not None]
NO_ARRAY += [Hostile(), np.zeros(3, "U1"), b"abc", {1, 2}, iter([1]), HUGE]
NO_SIZES = ["4", None, 4.0, True, (4.0,), (True,), (3, (4,)), [[4]], Hostile()]
WRONG_SIZES = [-1, (), [], (3, -4), -HUGE, 2**63, HUGE, (2**63, 1)]


def label(value):
    try:
        return re.sub(" at 0x[0-9a-f]+", "", str(value))[:40]
    except Exception:
        return type(value).__name__


# --- arrays -------------------------------------------------------------------------------------------------


def shapes(text, known):
    """Returns a pattern of the shapes that names of axes permit, as str(shape) has them without spaces."""

    def of(name):
        size = known.get(name, name)
        if size is None:
            return "(?!)"
        each = size if isinstance(size, tuple) else (size,)
        return "".join(rf"{n}," if isinstance(n, int) else r"(\d+,)*" if n == "*" else r"\d+," for n in each)

    return "|".join("".join(map(of, names.split())) for names in text.split("|"))


def near_shapes(good):
    """Yields shapes like `good`: with an axis more, fewer, longer, shorter, or moved."""
    for k, n in enumerate(good):
        yield from ((*good[:k], m, *good[k + 1 :]) for m in (n - 1, n + 1, 0) if m >= 0)
        yield (*good[:k], *good[k + 1 :])
    yield from ((*good[:k], 1, *good[k:]) for k in range(len(good) + 1))
    yield from ((), (0,), (1, 0), good[::-1], (*good, *good), (1, 2, 1, 2))


def wrong_arrays(takes, good, known):
    good, kinds = np.asarray(good), {"integers": "iu", "booleans": "b"}.get(takes.of, "biuf")
    yield from ((E, v) for v in [*NO_ARRAY, good * 1j, good.astype("M8[s]"), good.astype("U3")])
    yield from ((E, good.astype(kind)) for kind in "d?BO" if np.dtype(kind).kind not in kinds)
    yield E, [None] * max(len(good) if good.ndim else 1, 1)
    permitted = shapes(takes.axes, known)
    for shape in dict.fromkeys(near_shapes(good.shape)):
        if not re.fullmatch(permitted, "".join(f"{n}," for n in shape)):
            yield V, np.zeros(shape, good.dtype)
            yield V, np.zeros(shape, good.dtype).tolist()
    if takes.most and good.ndim:
        most = known[takes.most]
        for wrong in (-1, most + 1, -(2**63), 2**31, 2**32 + 1, 2**63 - 1):
            yield V, [*good.tolist()[:-1], wrong]
        yield from ((V, np.full(good.shape, wrong, np.uint64)) for wrong in (2**63, 2**64 - 1))
        yield from ((V, np.full(good.shape, *wrong)) for wrong in ((-1, np.int8), (most + 1, np.uint8)))
        yield from ((E, [*good.tolist()[:-1], wrong]) for wrong in (2**64, HUGE, NAN, 1.5))


def like(value, converted=True):
    """Yields equal arrays in other forms: other layouts, a subclass, and if `converted` lists and dtypes."""
    value = np.asarray(value)
    yield value.view(Kind)
    if value.ndim and value.dtype.kind == "f":
        yield from layouts(value).values()
    else:
        yield from (read_only(value), value[..., ::-1].copy()[..., ::-1] if value.ndim else value)
    if not converted:
        return
    yield value.tolist()
    if value.dtype.kind == "f":
        others = (value.astype(kind) for kind in ("f8", ">f8", "f2", "g", "i1", "i8"))
        yield from (other for other in others if (other == value).all())
    if value.dtype.kind == "i":
        yield from (value.astype(kind) for kind in ("i1", "u2", ">i4", "u8"))


# --- all constraints ----------------------------------------------------------------------------------------


def invalid(takes, good, known):
    """Yields (error, value) for a constraint, whose valid value is `good`. known: sizes of axes."""
    kind = type(takes).__name__
    if kind == "Optional":
        yield from ((error, v) for error, v in invalid(takes.of, good, known) if v is not None)
    elif kind == "Integer":
        beyond = [2**63, 2**64 + 1, 10**400, HUGE, takes.most + 1] if takes.most else []
        small = [takes.least - 1, np.int64(takes.least - 1), -(2**70), -HUGE]
        yield from [(E, v) for v in NO_INTEGER] + [(V, v) for v in small + beyond]
    elif kind == "Number":
        above = [(V, takes.most + 1e-9), (V, takes.most + 1)] * (takes.most < INF)
        below = [(V, takes.below), (V, takes.below + 1)] * (takes.below < INF)
        small = [takes.least - 1, takes.least - 1e-300 or -1e-300]
        yield from [(E, v) for v in NO_NUMBER] + [(V, v) for v in small + INFINITE] + above + below
    elif kind == "Flag":
        yield from ((E, v) for v in NO_FLAG)
    elif kind == "Choice":
        texts = [c for c in takes.choices if isinstance(c, str)]
        near = [*map(str.title, texts), *map(str.upper, texts), *(c + " " for c in texts), texts[0][:-1]]
        others = [b"".join(c.encode() for c in texts), [texts[0]], 3, True, math.tanh, Hostile()]
        yield from ((V, v) for v in (*near, "", "x" * 10_000, None) if v not in takes.choices)
        yield from ((E, v) for v in (*others, np.array(texts + texts)))
    elif kind == "Instance":
        others = [3, 1.5, b"text", ["x"], {}, "text", None, object()]
        yield from ((E, v) for v in others if not isinstance(v, takes.kind))
    elif kind == "Sizes":
        yield from [(E, v) for v in NO_SIZES] + [(V, v) for v in WRONG_SIZES]
    elif kind == "Output":
        yield from bad_outs(np.zeros(known[takes.like], np.float32))
    elif kind == "Statistic" and known["training"]:  # it is updated in place
        yield from ((E, v) for v in [*NO_ARRAY, list(good), good.astype(int)])
        yield from ((V, v) for v in (good[:3], good[:, None], np.broadcast_to(np.float32(1), good.shape)))
    elif kind == "Statistic":
        yield from ((E, v) for v in NO_ARRAY)
        yield from ((V, v) for v in (None, good[:3], good[:, None], np.float32(1)))
    else:
        assert kind == "Array", kind
        yield E, None
        yield from wrong_arrays(takes, good, known)


def valid(takes, good, known, converted=True):
    """Yields values with the same meaning as `good`, and then None, and the values at the edges."""
    kind = type(takes).__name__
    if kind == "Optional":
        yield from valid(takes.of, good, known, converted)
    elif kind == "Integer":
        yield from (make(good) for make in (np.int16, np.uint64, np.array))
    elif kind == "Number":
        yield from (np.float64(good), np.array(good), decimal.Decimal(good))
    elif kind == "Flag":
        yield np.bool_(good)
    elif kind == "Choice" and isinstance(good, str):
        yield from ("".join(good), np.str_(good))
    elif kind == "Output":
        blank = np.zeros(known[takes.like], np.float32)
        yield from (v for v in layouts(blank).values() if v.flags.writeable and v.dtype == np.float32)
        yield blank.view(Kind)
    elif kind == "Array" or (kind == "Statistic" and not known["training"]):
        yield from like(good, converted)


def edges(takes):
    """Returns the smallest and the largest valid value of a number, all choices, or both flags."""
    kind = type(takes).__name__
    if kind == "Optional":
        return [None, *edges(takes.of)]
    if kind == "Integer":
        return [takes.least] + ([takes.most] if takes.most and takes.most <= 1024 else [])
    if kind == "Number":
        return [takes.least, takes.most if takes.most < INF else math.nextafter(min(takes.below, 9), 0)]
    return {"Flag": [True, False], "Choice": list(getattr(takes, "choices", ()))}.get(kind, [])


# --- messages -----------------------------------------------------------------------------------------------


def expected(takes):
    """Returns the words that a message must have."""
    kind = type(takes).__name__
    if kind == "Optional":
        return expected(takes.of)
    if kind in ("Integer", "Number"):
        most, below = takes.most, getattr(takes, "below", INF)
        words = [f"at least {takes.least:g}"] + [f"at most {most}"] * (most not in (None, INF))
        return words + [f"below {below:g}"] * (below < INF)
    return {
        "Flag": ["True or False"], "Instance": [getattr(takes, "expected", "")],
        "Choice": ["one of", *map(repr, getattr(takes, "choices", ()))],
    }.get(kind, [])  # fmt: skip


def seen(value):
    """Returns texts; a message about this value contains one of them."""
    if isinstance(value, np.ndarray) and value.ndim:
        wrong = [f"got {n} (int)" for n in value.flat] if value.dtype.kind in "iu" else []
        return [f"array of shape {value.shape} and dtype {value.dtype}", "got a read-only array", *wrong]
    inner = value.item() if isinstance(value, (np.generic, np.ndarray)) else value
    return [f"({type(v).__name__})" for v in (value, inner)] + ["array of shape () and dtype "]


def refuses(error, name, value, words, call):
    """Asserts that call() raises error. The message must name the argument, the valid and the given value.

    words: parts of the message. value: the invalid value.
    """
    with pytest.raises(error, match=named(re.escape(name))) as caught:
        call()
    assert type(caught.value) is error  # a subclass, such as UnicodeError, is not allowed
    text = str(caught.value)
    assert len(text) < 400 and " must be " in text and ", got " in text, text[:500]
    assert all(word in text for word in words), (text, words)
    assert isinstance(value, (list, tuple)) or any(each in text for each in seen(value)), (text, label(value))
    return text


def snapshot(rnn):
    """Returns the names and bits of all arrays of a network, its overrun, and its known_steps."""
    return {k: v.tobytes() for k, v in rnn.state_dict().items()}, rnn.overrun, rnn.known_steps
