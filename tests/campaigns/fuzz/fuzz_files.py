"""Reads damaged .safetensors and .npy files. lnrnn must raise an error that names the file, or read its data.

The campaign reader mutates many more files of networks, in C. This module also checks Python's part: errors,
results, time and memory.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import struct
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np

import lnrnn
from fuzz_draw import arranged, chance, network, pick
from fuzz_judge import alike
from lnrnn import cli

FOLDER, NUMBER = Path(tempfile.gettempdir()), os.getpid()
MODEL, ARRAY, OUT, LENGTHS = (
    FOLDER / f"fuzz-damaged{NUMBER}{suffix}" for suffix in (".safetensors", ".npy", ".out.npy", ".txt")
)
NUMBERS = (
    0, 1, -1, 2, 3, 7, 8, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30,
    1.5,
)  # fmt: skip
VALUES = (
    *NUMBERS, None, True, False, "", "abc", "layer", "batch", "tanh", "LSTM", [], [1], {}, {"kind": "batch"},
    "a" * 5000, [[[[]]]], 1e308, -0.0, "F32", "I32", "U8", "F8_E4M3", [0, 4],
)  # fmt: skip
NAMES = (
    "gain_l9",
    "",
    "count_l0",
    "forward_train",
    "x" * 9999,
    "weight_ih_l0_reverse",
    "kind",
    "eps",
    "more",
)
TYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def case(rng, judge) -> None:
    try:
        (models if chance(rng, 0.5) else arrays)(rng, judge)
    finally:
        for path in (MODEL, ARRAY, OUT, LENGTHS):
            path.unlink(missing_ok=True)


# --- damages of any file ------------------------------------------------------------------------------------


def bits(rng, raw: bytes, head: int) -> bytes:
    """Flips some bits, mostly of the first `head` bytes."""
    damaged = bytearray(raw)
    for at in rng.integers(0, head if chance(rng, 0.8) else len(raw), rng.integers(1, 4)):
        damaged[at] ^= 1 << rng.integers(8)
    return bytes(damaged)


def some_bytes(rng, raw: bytes, head: int) -> bytes:
    at = int(rng.integers(len(raw)))
    return raw[:at] + rng.bytes(int(rng.integers(20))) + raw[at + int(rng.integers(20)) :]


def cut(rng, raw: bytes, head: int) -> bytes:
    at = int(rng.integers(len(raw)))
    return raw[:at] if chance(rng, 0.7) else raw + rng.bytes(at % 50) if chance(rng, 0.5) else raw[at:]


# --- files of networks --------------------------------------------------------------------------------------


def packed(header, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def unpacked(raw: bytes):
    n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + n]), raw[8 + n :]


def length(rng, raw: bytes, head: int) -> bytes:
    near = struct.unpack("<Q", raw[:8])[0] + int(rng.integers(-3, 4))
    value = pick(rng, (near, *(n for n in NUMBERS if isinstance(n, int) and 0 <= n < 2**64)))
    return struct.pack("<Q", value) + raw[8:]


def places(tree):
    """Returns (container, key) of every value in a tree of dicts and lists."""
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, key
        if isinstance(value, (dict, list)):
            yield from places(value)


def header(rng, raw: bytes, head: int) -> bytes:
    """Replaces, removes, renames or exchanges values of the header or of the configuration in it."""
    tree, data = unpacked(raw)
    tree["__metadata__"]["config"] = config = json.loads(tree["__metadata__"]["config"])
    for _ in range(int(rng.integers(1, 3))):
        every = list(places(config if config and chance(rng, 0.4) else tree))
        if not every:
            break
        (container, key), (other, at), how = pick(rng, every), pick(rng, every), rng.random()
        if how < 0.55:
            values = NUMBERS if isinstance(container[key], int) and chance(rng, 0.7) else VALUES
            container[key] = copy.deepcopy(pick(rng, values))
        elif how < 0.7:
            container[key] = copy.deepcopy(other[at])
        elif how < 0.85:
            container.pop(key)
        elif isinstance(container, dict):
            container[pick(rng, NAMES)] = container.pop(key)
        else:
            container.insert(key, pick(rng, NUMBERS))
    metadata = tree.get("__metadata__")
    if isinstance(metadata, dict) and isinstance(metadata.get("config"), dict):
        metadata["config"] = json.dumps(metadata["config"])
    return packed(tree, data)


def twice(rng, raw: bytes, head: int) -> bytes:
    tree, data = unpacked(raw)
    name = pick(rng, list(tree))
    return packed((json.dumps(tree)[:-1] + ", " + json.dumps({name: tree[name]})[1:]).encode(), data)


def values(rng, raw: bytes, head: int) -> bytes:
    """Changes a number of a tensor to NaN, infinity, or if it is an integer to an extreme one."""
    tree, data = unpacked(raw)
    name = pick(rng, [n for n in tree if n != "__metadata__"])
    first, last = tree[name]["data_offsets"]
    tensor = np.frombuffer(data[first:last], TYPES[tree[name]["dtype"]]).copy()
    if tensor.size:
        extremes = (-1, 0, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)) if tensor.dtype.kind == "i" else (
            np.nan, np.inf, -np.inf, -1.0, 0.0, 1e38, 1e-45)  # fmt: skip
        tensor[rng.integers(tensor.size)] = pick(rng, extremes)
    return packed(tree, data[:first] + tensor.tobytes() + data[last:])


DAMAGES = (bits, bits, some_bytes, cut, length, header, header, header, header, twice, values)


def models(rng, judge) -> None:
    model = network(rng, known=2, most_layers=2)
    if model.num_layers * model.hidden_size > 40:
        return
    model.save(MODEL)
    tree, data = unpacked(MODEL.read_bytes())
    tree["__metadata__"] = dict(sorted(tree["__metadata__"].items()))  # safetensors writes them in any order
    raw = packed(tree, data)
    for _ in range(20):
        damage = pick(rng, DAMAGES)
        damaged = damage(rng, raw, 8 + struct.unpack("<Q", raw[:8])[0])
        MODEL.write_bytes(damaged)
        loaded(judge, damaged, f"{damage.__name__} of a file of {type(model).__name__}")


def loaded(judge, raw: bytes, label: str) -> None:
    """Checks one execution: lnrnn must raise an error, or return the network of this file."""
    try:
        model = lnrnn.load(MODEL)
    except ValueError as error:
        text = str(error)
        right = str(MODEL) in text and len(text) < 700
        judge.true("damaged safetensors, refused", right, f"{label}: {text[:200]!r}")
        return
    except Exception as error:
        raise AssertionError(f"{label}: {type(error).__name__}; the file: {raw[:1500]!r}") from error
    judge.counts["damaged safetensors, loaded"] += 1
    tree, data = unpacked(raw)
    for name, value in model.state_dict().items():
        first, last = tree[name]["data_offsets"]
        there = np.frombuffer(data[first:last], TYPES[tree[name]["dtype"]]).reshape(value.shape)
        assert value.tobytes() == there.tobytes(), f"{label}: {name} differs from the file"
    x = np.zeros((1, 2, model.input_size) if model.batch_first else (2, 1, model.input_size), np.float32)
    if model.known_steps is None or model.known_steps >= 2 or model.overrun == "batch":
        alike(model(x)[0], model(x)[0], label)


# --- files of arrays, as `lnrnn run` reads them -------------------------------------------------------------

HUGE = (2**20, 2**31, 2**33, 2**40, 2**60, 2**63, 2**64, -1)
DESCRS = ("<f4", ">f8", "|O", "|V7", "<U9999", "|S0", "<c8", "<M8[s]", "<i1", "f", "", "<f16", [("a", "<f4")],
          [("a", "<f4", (2**40,))], "<V999999999", "|b1", "object", None, 5)  # fmt: skip
TEXTS = (b"(" * 500, b"{" * 9000, b"9" * 9000, b"{'a': " + b"-" * 3000 + b"1}", b"\xff" * 64, b"")


def saved(array) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array)
    return buffer.getvalue()


def other_header(rng, array) -> bytes:
    """Returns a file whose header has another shape or dtype, or is no header."""
    shape, version = list(array.shape), pick(rng, ((1, 0), (2, 0), (3, 0), (9, 9)))
    if shape:
        shape[rng.integers(len(shape))] = pick(rng, HUGE)
    descr = array.dtype.str if chance(rng, 0.5) else pick(rng, DESCRS)
    entries = {"descr": descr, "fortran_order": pick(rng, (True, False, 1, None)), "shape": tuple(shape)}
    if chance(rng, 0.2):
        wrong = pick(rng, ((2**62, 2**62, 0), [], "x", (1.5,), -3))
        entries[pick(rng, ("descr", "shape", "more"))] = wrong
    text = pick(rng, TEXTS) if chance(rng, 0.15) else repr(entries).encode() + b"\n"
    size = len(text).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + size + text + array.tobytes()


def damaged_array(rng, array) -> bytes:
    if chance(rng, 0.35):
        return other_header(rng, array)
    return pick(rng, (bits, bits, some_bytes, cut))(rng, saved(array), 128)


def arrays(rng, judge) -> None:
    array = rng.standard_normal(tuple(int(n) for n in rng.integers(0, 5, rng.integers(0, 4))))
    array = array.astype(pick(rng, (np.float32, np.float64, np.int64, np.float16)))
    for _ in range(12):
        read(judge, damaged_array(rng, array))
    for name, other in arranged(rng, array, 3) if array.dtype.kind == "f" else ():
        ARRAY.write_bytes(saved(other))
        got = np.ascontiguousarray(cli.read_array(ARRAY)).astype(array.dtype)
        judge.same("npy", got, array, f"npy, {name}")
    if chance(rng, 0.3):
        command(rng, judge)
    lengths(rng, judge)


def read(judge, raw: bytes) -> None:
    """Checks one execution: lnrnn must raise an error, or return an array no larger than the file."""
    ARRAY.write_bytes(raw)
    try:
        got = cli.read_array(ARRAY)
    except ValueError as error:
        judge.true("damaged npy, refused", str(ARRAY) in str(error), f"{error}; the file: {raw[:300]!r}")
        return
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}; the file: {raw[:300]!r}") from error
    size = got.nbytes if got.dtype.itemsize else 0
    right = not got.dtype.hasobject and size <= len(raw)
    judge.true("damaged npy, read", right, f"{got.dtype}{got.shape}: {raw[:300]!r}")


def lengths(rng, judge) -> None:
    """Reads damaged files of lengths, which are texts with a number in each line."""
    lines = [str(int(n)) for n in rng.integers(0, 9, rng.integers(0, 5))]
    want = np.array(lines, np.int64)
    wrong = chance(rng, 0.6)
    if wrong:
        lines.insert(0, pick(rng, ("a", "1.5", "1 2", "9" * 30, "-" * 9, "0x1", "\x00", "9" * 6000)))
    LENGTHS.write_text("\n".join(lines) + ("\n\n" if chance(rng, 0.5) else ""))
    try:
        got = cli.read_lengths(LENGTHS)
    except ValueError as error:
        judge.true("lengths", wrong and str(LENGTHS) in str(error) and len(str(error)) < 400, f"{error}")
    else:
        assert not wrong, f"{lines}: {got}"
        judge.same("lengths", got, want, f"{lines}")


def command(rng, judge) -> None:
    """Runs `lnrnn run`. It must end with status 0 and an output, or with status 2, one line and no output."""
    model = network(rng, known=9, most_layers=2)
    model.save(MODEL)
    x = rng.standard_normal((3, 2, model.input_size)).astype(np.float32)
    right = chance(rng, 0.4)
    ARRAY.write_bytes(saved(x) if right else damaged_array(rng, x))
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
        status = cli.main(["run", str(MODEL), str(ARRAY), str(OUT)])
    text = printed.getvalue()
    judge.true("lnrnn run", (status == 0) == OUT.exists() and status in (0, 2), f"{status}, {text[:300]}")
    assert not (right and status), text
    if status:
        one_line = text.count("\n") == 1 and len(text) < 1000
        assert "error" in text and "Traceback" not in text and one_line, text[:500]
    else:
        y = model(x if right else cli.read_array(ARRAY))[0]
        alike(np.ascontiguousarray(np.load(OUT)), np.ascontiguousarray(y), "lnrnn run")
