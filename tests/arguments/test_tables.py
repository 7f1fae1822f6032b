"""Every argument in lnrnn.arguments.TAKES: invalid values are refused, valid ones accepted, docs are true.

checked_calls.py has the calls, bad_values.py makes the values.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import re
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

import lnrnn
from bad_values import edges, expected, invalid, label, refuses, valid
from checked_calls import NETWORK_CALLS, NORM_CALLS, OTHER_CALLS
from lnrnn.arguments import TAKES

LATER = "data importers.conversion importers.rnnoise onnx onnxruntime scoring sessions torch"
for module in LATER.split():
    with suppress(ImportError):  # of a package that is not installed
        importlib.import_module(f"lnrnn.{module}")

CALLS = {name: lambda _, make=make: make() for name, make in (NORM_CALLS | NETWORK_CALLS).items()}
CALLS |= OTHER_CALLS
each_call = pytest.mark.parametrize("name", CALLS)


def arguments(call):
    """Yields (argument, constraint, valid value, function that calls with another value, known)."""
    tables = {}
    for table in reversed(call.tables.split()):
        tables |= TAKES[table]
    for name, good in call.valid.items():
        known = {key: size for key, size in call.known.items() if key not in call.free.get(name, "").split()}
        shown = call.names.get(name, name)
        if isinstance(good, tuple):  # a state of several arrays
            for k, part in enumerate(good):
                change = lambda v, k=k, good=good, name=name: {name: (*good[:k], v, *good[k + 1 :])}  # noqa: E731
                yield f"{shown}[{k}]", tables[name], part, change, known
        else:
            yield shown, tables[name], good, lambda v, name=name: {name: v}, known


def bits(result):
    """Returns something that is equal for equal results."""
    if isinstance(result, np.ndarray):
        return result.shape, result.dtype, result.tobytes()
    if isinstance(result, (tuple, list)):
        return list(map(bits, result))
    if isinstance(result, dict):
        return {name: bits(value) for name, value in result.items()}
    if isinstance(result, lnrnn.Network):
        return repr(result), bits(result.state_dict())
    return repr(result) if type(result).__module__.startswith("lnrnn.rnn.specs") else type(result)


def fresh(call):
    """Returns copies of the valid arguments, because a call may write to them."""
    return {name: copy.copy(value) for name, value in call.valid.items()}


@each_call
def test_invalid_values_are_refused_and_change_nothing(name, tmp_path):
    call = CALLS[name](tmp_path)
    call.call(**call.valid)
    for argument, takes, good, change, known in arguments(call):
        for error, value in invalid(takes, good, known):
            given = call.valid | change(value)
            others = [v for v in given.values() if isinstance(v, np.ndarray) and v is not value]
            before = call.state(), [array.tobytes() for array in others]
            words = [] if isinstance(value, (list, tuple)) else expected(takes)
            refuses(error, argument, value, words, partial(call.call, **given))
            assert (call.state(), [array.tobytes() for array in others]) == before, (argument, label(value))


@each_call
def test_valid_values_in_every_form_give_the_same_result(name, tmp_path):
    call = CALLS[name](tmp_path)
    want = bits(call.call(**fresh(call)))
    for argument, takes, good, change, known in arguments(call):
        if good is not None:
            for value in valid(takes, good, known, argument != call.dtype_of):
                assert bits(call.call(**fresh(call) | change(value))) == want, (argument, value)
                assert argument != "out" or bits(np.asarray(value)) == want
        for value in edges(takes) if call.edges else ():
            call.call(**fresh(call) | change(value))


def test_every_constraint_has_a_call(tmp_path):
    """A new row of a table needs a call with a valid value."""
    rows = {(table, argument) for table, rows in TAKES.items() for argument in rows}
    for make in CALLS.values():
        call = make(tmp_path)
        rows -= {(table, argument) for table in call.tables.split() for argument in call.valid}
    assert not rows


# --- documentation ------------------------------------------------------------------------------------------

ENTRY = re.compile(r"^(\w+(?:, \w+)*) : (.*)\n((?:    .*\n|\n)*)", re.MULTILINE)


def documented(thing):
    """Returns {argument: (type, description)} of a docstring."""
    text = inspect.getdoc(thing) + "\n"
    section = re.search(r"^Parameters\n-+\n((?:.*\n)*?)(?=\w.*\n---|\Z)", text, re.MULTILINE)
    return {
        name: (kind, " ".join(words.split()))
        for names, kind, words in (ENTRY.findall(section[1]) if section else ())
        for name in names.split(", ")
    }


def public(table):
    """Returns the public objects whose arguments, or attributes, a table describes."""
    if table.startswith("Network"):
        yield from (getattr(lnrnn, cell) for cell in ("RNN", "LSTM", "GRU", "LiGRU", "SLSTM"))
    elsewhere = {"torch.modules": "torch.LSTM", "Stream.__call__": "Stream"}
    thing = lnrnn
    for name in elsewhere.get(table, table.removesuffix(".options")).split("."):
        thing = getattr(thing, name, None)
    yield from [] if thing is None else [thing]


def bounds(takes, words):
    """Returns the bounds of a number that a description has: (least, most, below)."""
    interval = re.search(r"in \[(\d), (\d)([\])])", words)
    if interval:
        least, most = float(interval[1]), float(interval[2])
        return (least, most, np.inf) if interval[3] == "]" else (least, np.inf, most)
    between = re.search(r"(\d+) to (\d+)", words)
    if between:
        return float(between[1]), float(between[2]), np.inf
    least = re.search(r"at least (\d+)|(\d+) for none", words)
    return float(least[1] or least[2]) if least else 1.0, np.inf, np.inf


@pytest.mark.parametrize("table", sorted(TAKES))
def test_docstrings_have_the_constraints(table):
    """A docstring names the kind, the bounds, the choices, and None. Without bounds an integer is at least 1.

    It need not name bounds beyond 1024.
    """
    if table.startswith("torch"):
        pytest.importorskip("torch")
    for thing in public(table):
        for name, (kind, words) in documented(thing).items():
            takes = TAKES[table].get(name)
            if takes is None:
                continue
            optional = type(takes).__name__ in ("Optional", "Statistic")
            text = f"{thing.__name__}({name})"
            takes = getattr(takes, "of", takes) if optional else takes
            choices = getattr(takes, "choices", ())
            assert ("None" in kind or "optional" in kind) == (optional or None in choices), text
            what = type(takes).__name__
            word = {"Integer": "int", "Number": "float", "Flag": "bool", "Array": "array", "Output": "array",
                    "Statistic": "array", "Sizes": "int or tuple of int"}.get(what, "")  # fmt: skip
            assert word in kind, text
            quoted = set(re.findall(r'"(\w+)"', kind)) or (set(choices) if kind == "str, optional" else set())
            assert quoted == {c for c in choices if isinstance(c, str)}, text
            if what in ("Integer", "Number"):
                most = takes.most if takes.most and takes.most <= 1024 else np.inf
                assert bounds(takes, words) == (takes.least, most, getattr(takes, "below", np.inf)), text
