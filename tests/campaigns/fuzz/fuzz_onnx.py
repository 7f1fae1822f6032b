"""Reads damaged ONNX files. lnrnn must raise a ValueError, or find networks that agree with ONNX Runtime.

A damage changes bytes, or any field of any message: names, numbers, types, dims, attributes and whole nodes.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

import lnrnn
from fuzz_draw import chance, pick

try:
    import onnx_ir  # noqa: F401
    from onnx import ModelProto, helper

    import graph_cases
    import onnx_files
    from lnrnn.onnx import errors, plugin_trial, report
    from onnx_cells import graph_parts

    plugin_trial.SECONDS = 0  # one call of each session
    FILES = [path for path in sorted(graph_cases.FOLDER.glob("*.txt")) if path.name != "cells.txt"]
    GRAPHS = list(map(graph_cases.read, FILES))
except BaseException as error:  # a missing package, or pytest's exception that skips a test
    if not isinstance(error, ImportError) and type(error).__name__ != "Skipped":
        raise
    ModelProto = None

DAMAGES = 10  # of each model
NUMBERS = (
    0, 1, -1, 2, 3, 7, 8, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30,
    1.5,
)  # fmt: skip
SECONDS = 10  # of processor time that reading a damaged file may take
FILE = Path(tempfile.gettempdir()) / f"fuzz-damaged{os.getpid()}.onnx"
WORDS = ("", "LSTM", "GRU", "RNN", "If", "Loop", "Scan", "Constant", "Concat", "Slice", "Split", "Transpose",
         "Reshape", "Squeeze", "Identity", "DynamicQuantizeLSTM", "com.microsoft", "ai.onnx", "reverse",
         "bidirectional", "Relu", "HardSigmoid", "clip", "layout", "location", "../x", "/dev/zero",
         "a" * 3000)  # fmt: skip


def case(rng, judge) -> None:
    if ModelProto is None:
        for _ in range(DAMAGES):
            judge.true("onnx is not installed", True, "")
        return
    proto = pick(rng, (nodes, graph, graph, of_a_network))(rng)
    for _ in range(DAMAGES):
        raw, how = damaged(rng, proto), rng.random()
        if how < 0.7:
            read(judge, raw, check=how < 0.25)
        elif how < 0.9:
            described(judge, raw)
        else:
            opened(judge, raw)


# --- models -------------------------------------------------------------------------------------------------


def nodes(rng):
    """Returns a model of a node RNN, LSTM or GRU."""
    H, width = (int(n) for n in rng.integers(1, 5, 2))
    return onnx_files.recurrent(
        rng, pick(rng, ("RNN", "LSTM", "GRU")), width, H, 1 + int(chance(rng, 0.3)), bias=chance(rng, 0.7),
        lengths=chance(rng, 0.4), states=chance(rng, 0.4), opset=int(rng.integers(7, 23)),
    )  # fmt: skip


def graph(rng):
    """Returns a graph of tests/cases: cells in plain operators, in a loop, unrolled, or alone."""
    return pick(rng, pick(rng, GRAPHS)).model()


def of_a_network(rng):
    """Returns a file of to_onnx whose nodes are steps, in a Scan or alone.

    A layer norm of two units may magnify rounding errors more than one disturbed network shows.
    """
    cell = pick(rng, ("RNN", "LSTM", "GRU", "LiGRU", "SLSTM"))
    options = {"num_heads": 1} if cell == "SLSTM" else {"norm": pick(rng, ("layer", "layer", "batch"))}
    rnn = getattr(lnrnn, cell)(
        int(rng.integers(1, 5)), int(rng.integers(3, 6)), num_layers=int(rng.integers(1, 3)),
        seed=int(rng.integers(2**31)), **options,
    )  # fmt: skip
    if rnn.known_steps is not None:
        rnn.forward_train(rng.standard_normal((2, 3, rnn.input_size)))
    step, lengths, resets = chance(rng, 0.3), chance(rng, 0.3), chance(rng, 0.2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        lnrnn.to_onnx(rnn, path, step=step, lengths=lengths and not step, resets=resets)
        return ModelProto.FromString(path.read_bytes())


# --- damages ------------------------------------------------------------------------------------------------


def damaged(rng, proto) -> bytes:
    if chance(rng, 0.05):
        return pick(rng, (nested, chained, repeated))(rng, proto).SerializeToString()
    if chance(rng, 0.3):
        raw = proto.SerializeToString()
        return pick(rng, (bits, bits, some_bytes, cut))(rng, raw)
    result = ModelProto()
    result.CopyFrom(proto)
    for _ in range(int(rng.integers(1, 4))):
        change(rng, result)
    try:
        return result.SerializeToString()
    except Exception:  # a string that is no UTF-8
        return b""


def bits(rng, raw: bytes) -> bytes:
    damaged = bytearray(raw)
    for at in rng.integers(0, len(raw), rng.integers(1, 4)):
        damaged[at] ^= 1 << rng.integers(8)
    return bytes(damaged)


def some_bytes(rng, raw: bytes) -> bytes:
    at = int(rng.integers(len(raw)))
    return raw[:at] + rng.bytes(int(rng.integers(20))) + raw[at + int(rng.integers(20)) :]


def cut(rng, raw: bytes) -> bytes:
    at = int(rng.integers(len(raw)))
    return raw[:at] if chance(rng, 0.7) else raw + rng.bytes(at % 50) if chance(rng, 0.5) else raw[at:]


def nested(rng, proto):
    """Returns a model whose graph stands inside of many nodes."""
    result = ModelProto()
    result.CopyFrom(proto)
    for _ in range(int(pick(rng, (3, 20, 30)))):
        inner = result.graph.SerializeToString()
        own = {} if chance(rng, 0.5) else {"then_branch": helper.make_graph([], "empty", [], [])}
        node = helper.make_node("If", ["on"], ["result"], **own)
        node.attribute.add(name="else_branch", type=5).g.ParseFromString(inner)
        del result.graph.node[:], result.graph.output[:]
        result.graph.node.append(node)
    return result


def chained(rng, proto):
    """Returns a model with a long chain of nodes before a random input of a node."""
    result = ModelProto()
    result.CopyFrom(proto)
    (at, node) = pick(rng, [(k, node) for k, node in enumerate(result.graph.node) if node.input])
    place = int(rng.integers(len(node.input)))
    last, n = node.input[place], int(pick(rng, (50, 500, 3000)))
    kind = pick(rng, ("Identity", "Identity", "Neg", "Tanh", "Add", "Transpose", "Concat", "Squeeze"))
    options = {"axis": 0} if kind == "Concat" else {}
    chain = []
    for k in range(n):
        inputs = [last, last] if kind in ("Add", "Concat") else [last]
        chain.append(helper.make_node(kind, inputs, [f"chain{k}"], **options))
        last = f"chain{k}"
    node.input[place] = last
    every = [*result.graph.node[:at], *chain, *result.graph.node[at:]]
    del result.graph.node[:]
    result.graph.node.extend(every)
    return result


def repeated(rng, proto):
    """Returns a model that has its nodes many times, with other names of their outputs."""
    result = ModelProto()
    result.CopyFrom(proto)
    every = list(proto.graph.node)
    for k in range(int(rng.integers(2, max(3, 300 // max(len(every), 1))))):
        names = {name: f"{name}-{k}" for node in every for name in node.output if name}
        for node in every:
            copied = result.graph.node.add()
            copied.CopyFrom(node)
            for field in (copied.input, copied.output):
                field[:] = [names.get(name, name) for name in field]
    return result


def places(message):
    """Returns (message, field) for all fields that are set, at all depths."""
    result, stack = [], [message]
    while stack:
        message = stack.pop()
        for field, value in message.ListFields():
            result.append((message, field))
            if field.message_type is not None:
                stack.extend(value if is_repeated(message, field) else [value])
    return result


def is_repeated(message, field) -> bool:
    return hasattr(getattr(message, field.name), "MergeFrom") and not hasattr(
        getattr(message, field.name), "ListFields"
    )


def change(rng, proto) -> None:
    """Changes one field: a number, a name, bytes, or one of several messages."""
    every = places(proto)
    message, field = pick(rng, every)
    value = getattr(message, field.name)
    try:
        if is_repeated(message, field):
            change_several(rng, value, field, every)
        elif field.message_type is not None:
            same = [getattr(m, f.name) for m, f in every if f.message_type is field.message_type
                    and not is_repeated(m, f)]  # fmt: skip
            if chance(rng, 0.5):
                message.ClearField(field.name)
            else:
                copied = type(value)()
                copied.CopyFrom(pick(rng, same))
                value.CopyFrom(copied)
        else:
            setattr(message, field.name, another(rng, value, every))
    except (ValueError, TypeError, OverflowError):  # a number that does not fit the type of the field
        message.ClearField(field.name)


def change_several(rng, values, field, every) -> None:
    at, how = int(rng.integers(len(values))), rng.random()
    if how < 0.25:
        del values[at]
    elif how < 0.4:
        del values[at:]
    elif field.message_type is None:
        values[at] = another(rng, values[at], every)
    else:
        copied = type(values[at])()
        copied.CopyFrom(values[int(rng.integers(len(values)))])
        if how < 0.7:
            values.append(copied)
        else:
            values[at].CopyFrom(copied)


def another(rng, value, every):
    """Returns another value of the same type: often one of the model's own."""
    if isinstance(value, (str, bytes)):
        own = [getattr(m, f.name) for m, f in every if not is_repeated(m, f)]
        own = [v for v in own if isinstance(v, type(value))]
        word = pick(rng, WORDS)
        word = word if isinstance(value, str) else word.encode()
        if isinstance(value, bytes) and chance(rng, 0.3):
            return value[: int(rng.integers(len(value) + 1))]
        return pick(rng, own) if own and chance(rng, 0.6) else word
    if isinstance(value, float):
        return float(pick(rng, (0.0, 1.0, -1.0, 0.5, np.nan, np.inf, 1e30)))
    return int(value) + int(rng.integers(-2, 3)) if chance(rng, 0.5) else int(pick(rng, NUMBERS))


# --- reading ------------------------------------------------------------------------------------------------


def networks(source, check: bool):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return lnrnn.from_onnx(source, check=check)


def read(judge, raw: bytes, check: bool) -> None:
    """Checks that lnrnn raises a ValueError or finds networks. check: whether to run ONNX Runtime too."""
    result = tried(judge, raw, "damaged onnx, refused", lambda: networks(raw, check))
    if result is None:
        return
    every = list(result.values()) if isinstance(result, dict) else [result]
    size = sum(a.nbytes for rnn in every for a in rnn.state_dict().values())
    judge.true(f"damaged onnx, read{' and run' * check}", size <= 4 * len(raw) + 10**5, f"{size}: {raw!r}")


def described(judge, raw: bytes) -> None:
    """Checks one execution of `lnrnn onnx FILE`: a ValueError, or a report in printable characters."""
    FILE.write_bytes(raw)
    try:
        found = tried(judge, raw, "damaged onnx, refused by the report", lambda: report.describe(FILE))
    finally:
        FILE.unlink()
    if found is not None:
        printable = all(line.isprintable() for line in report.text(found).split("\n"))
        right = json.loads(json.dumps(found)) is not None and printable
        judge.true("damaged onnx, described", right, f"the file: {raw!r}")


def opened(judge, raw: bytes) -> None:
    """Checks one execution of Model: a ValueError, or states. No step is run: ONNX Runtime aborts for some
    files, such as a Loop without an end.
    """
    FILE.write_bytes(raw)
    try:
        result = tried(judge, raw, "damaged onnx, refused by Model", lambda: lnrnn.onnx.Model(FILE)._file)
        if result is not None:
            tried(judge, raw, "damaged onnx, refused by a stream", lambda: result.zeros(1))
            judge.true("damaged onnx, opened by Model", True, "")
    finally:
        FILE.unlink()


def tried(judge, raw: bytes, refusal: str, run):
    """Returns the result of a function, or None after a ValueError, which is counted as `refusal`."""
    start = time.process_time()
    try:
        result = run()
    except ValueError as error:
        text, result = str(error), None
        proved = not isinstance(error, errors.DisprovedError) or are_dependent(raw)
        judge.true(refusal, proved and text != "", f"the file: {raw!r}; {text}")
    except Exception as error:
        raise AssertionError(f"the file: {raw!r}; {type(error).__name__}: {error}") from error
    seconds = time.process_time() - start
    assert seconds < SECONDS, f"the file: {raw!r}; {seconds:.0f} seconds"
    return result


def are_dependent(raw: bytes) -> bool:
    """Returns whether a part computes x from a state or a state from x: cases "wrong" of tests/cases do.
    Only the proof refuses such parts. Any other refusal by the proof shows a fault of the recogniser."""

    def before(value):
        stack, found = [value], {value}
        while stack:
            node = stack.pop().producer()
            stack += {given for given in (node.inputs if node else ()) if given is not None} - found
            found.update(stack)
        return found

    every = ((part.x, state) for part in graph_parts(raw) for state in (*part.h0, *part.c0) if state)
    return any(x in before(state) or state in before(x) for x, state in every)
