"""Invalid arguments, each with the error that it must raise, for tests of bad input."""

from __future__ import annotations

import decimal
import fractions
import re

import numpy as np
import pytest

from helpers import NOT_REAL, named

T, B, D, H = 4, 3, 2, 5
X = np.ones((T, B, D), np.float32)
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
    "1e-5", b"1", True, np.True_, 1j, [1e-5], (), {}, np.array([1.0, 2.0]), Hostile(), np.array("1"), float,
]  # fmt: skip
NO_FLAG = [0, 1, 1.0, None, "True", "", [], np.array([True, False]), np.int64(1), Hostile()]
NO_ARRAY = [v for v in NOT_REAL if v is not None]
NO_ARRAY += [Hostile(), np.zeros(3, "U1"), b"abc", {1, 2}, iter([1]), HUGE]


def wrong(error, name, values):
    return [(error, name, {name: value}) for value in values]


def sizes(name, most):
    beyond = [0, -1, most + 1, 2**63, 2**64 + 1, -(2**70), 10**400, HUGE, -HUGE]
    return wrong(E, name, NO_INTEGER) + wrong(V, name, beyond)


def numbers(name, *, most=None):
    above = [] if most is None else [most + 1e-9, most + 1]
    infinite = [NAN, INF, -INF, 10**400, -(10**400), HUGE, decimal.Decimal("NaN"), np.float32(NAN)]
    return wrong(E, name, NO_NUMBER) + wrong(V, name, [-1, -1e-300, *infinite, *above])


def label(value):
    try:
        return re.sub(" at 0x[0-9a-f]+", "", str(value))[:40]
    except Exception:
        return type(value).__name__


def cases(*lists):
    return pytest.mark.parametrize("error, name, given", [case for part in lists for case in part], ids=label)


def refuses(error, name, call, *args, **given):
    """Asserts that call raises error. Its message must name the argument, the valid and the given value."""
    with pytest.raises(error, match=named(name)) as caught:
        call(*args, **given)
    assert type(caught.value) is error  # a subclass, such as UnicodeError, is not allowed
    text = str(caught.value)
    assert len(text) < 400 and " must be " in text and ", got " in text, text[:500]


def snapshot(rnn):
    """Returns the names and bits of all arrays of a network, its overrun, and its known_steps."""
    return {k: v.tobytes() for k, v in rnn.state_dict().items()}, rnn.overrun, rnn.known_steps
