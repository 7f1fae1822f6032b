"""Hostile .safetensors files: of a model's file that was damaged, load says ValueError with the file's name,
or gives the model that stands there; soon, and in little memory."""

from __future__ import annotations

import copy
import json
import os
import struct
import tempfile

import ml_dtypes
import numpy as np

import lnrnn
from fuzz_draw import chance, network, pick
from fuzz_judge import alike

FILE = os.path.join(tempfile.gettempdir(), f"fuzz-hostile{os.getpid()}.safetensors")
NUMBERS = (
    0, 1, -1, 2, 3, 7, 8, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30,
    1.5,
)  # fmt: skip
VALUES = (
    *NUMBERS, None, True, False, "", "abc", "layer", "batch", "tanh", "LSTM", [], [1], {}, {"kind": "batch"},
    "a" * 5000, [[[[]]]], 1e308, -0.0,
)  # fmt: skip
TYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
DTYPES = (*TYPES, "I32", "U8", "BOOL", "F8_E4M3", "F31", "", "f32", 32, None)


def any_value(rng):
    return copy.deepcopy(pick(rng, VALUES))  # what is put in its place may be changed in turn


def packed(header, data: bytes, length: int | None = None) -> bytes:
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def taken_apart(raw: bytes):
    n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + n]), raw[8 + n :]


def bits(rng, raw: bytes) -> bytes:
    """Some bits turned, mostly of the header."""
    damaged = bytearray(raw)
    end = 8 + struct.unpack("<Q", raw[:8])[0] if chance(rng, 0.8) else len(raw)
    for at in rng.integers(0, end, rng.integers(1, 4)):
        damaged[at] ^= 1 << rng.integers(8)
    return bytes(damaged)


def some_bytes(rng, raw: bytes) -> bytes:
    damaged = bytearray(raw)
    at = int(rng.integers(len(raw)))
    damaged[at : at + int(rng.integers(1, 20))] = rng.integers(
        0, 256, rng.integers(0, 20), np.uint8
    ).tobytes()
    return bytes(damaged)


def cut(rng, raw: bytes) -> bytes:
    at = int(rng.integers(len(raw)))
    return raw[:at] if chance(rng, 0.7) else raw + rng.bytes(at % 50) if chance(rng, 0.5) else raw[at:]


def length(rng, raw: bytes) -> bytes:
    """Another length of the header."""
    found = struct.unpack("<Q", raw[:8])[0] + int(rng.integers(-3, 4))
    value = pick(rng, (found, *(int(n) for n in NUMBERS if isinstance(n, int) and 0 <= n < 2**64)))
    return struct.pack("<Q", value) + raw[8:]


def tensor(rng, raw: bytes) -> bytes:
    """Other entries of one tensor's header: dtype, shape, offsets."""
    header, data = taken_apart(raw)
    name = pick(rng, [n for n in header if n != "__metadata__"])
    for _ in range(int(rng.integers(1, 3))):
        at, entry = rng.random(), header[name]
        other = header[pick(rng, [n for n in header if n != "__metadata__"])]
        if at < 0.2:
            entry["dtype"] = pick(rng, DTYPES)
        elif at < 0.45 and isinstance(entry.get("shape"), list):
            shape = entry["shape"]
            if shape and chance(rng, 0.7):
                shape[rng.integers(len(shape))] = pick(rng, NUMBERS)
            elif chance(rng, 0.5):
                shape.insert(0, pick(rng, (1, 0, *NUMBERS)))
            else:
                entry["shape"] = any_value(rng)
        elif at < 0.6:
            entry["data_offsets"] = pick(rng, (other.get("data_offsets"), [0, 4]))
        elif at < 0.8:
            entry["data_offsets"] = [pick(rng, NUMBERS), pick(rng, NUMBERS)]
        elif at < 0.9:
            entry[pick(rng, ("dtype", "shape", "data_offsets", "more"))] = any_value(rng)
        else:
            entry.pop(pick(rng, ("dtype", "shape", "data_offsets")), None)
    return packed(header, data)


def tensors(rng, raw: bytes) -> bytes:
    """Tensors missing, named otherwise, twice, or more of them."""
    header, data = taken_apart(raw)
    names = [n for n in header if n != "__metadata__"]
    name, at = pick(rng, names), rng.random()
    if at < 0.3:
        del header[name]
    elif at < 0.5:
        header[pick(rng, ("gain_l9", "", "count_l0", "forward_train", "x" * 9999, name + "_reverse"))] = (
            header.pop(name)
        )
    elif at < 0.7:
        one, two = pick(rng, names), name
        header[one], header[two] = header[two], header[one]
    elif at < 0.85:
        end = len(data)
        header["more"] = dict(dtype="F32", shape=[0], data_offsets=[end, end])
    else:
        text = json.dumps(header)
        entry = json.dumps({name: header[name]})[1:-1]
        return packed((text[:-1] + ", " + entry + "}").encode(), data)  # one name twice
    return packed(header, data)


def configuration(rng, raw: bytes) -> bytes:
    """Another value in the configuration, or in the metadata."""
    header, data = taken_apart(raw)
    metadata = header["__metadata__"]
    if chance(rng, 0.1):
        metadata[pick(rng, ("format", "schema", "config"))] = any_value(rng)
        return packed(header, data)
    config = json.loads(metadata["config"])
    for _ in range(int(rng.integers(1, 3))):
        place = config
        if isinstance(config.get("norm"), dict) and chance(rng, 0.4):
            place = config["norm"]
        name = pick(rng, list(place) or ["kind"])
        if chance(rng, 0.85):
            place[name] = any_value(rng)
        else:
            place.pop(name, None)
    metadata["config"] = json.dumps(config)
    return packed(header, data)


def values(rng, raw: bytes) -> bytes:
    """Other numbers in the tensors: NaN, counts of any size."""
    header, data = taken_apart(raw)
    name = pick(rng, [n for n in header if n != "__metadata__"])
    first, last = header[name]["data_offsets"]
    found = np.frombuffer(data[first:last], TYPES[header[name]["dtype"]]).copy()
    if found.size:
        extremes = (-1, 0, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)) if found.dtype.kind == "i" else (
            np.nan, np.inf, -np.inf, -1.0, 0.0, 1e38, 1e-45)  # fmt: skip
        found[rng.integers(found.size)] = pick(rng, extremes)
    return packed(header, data[:first] + found.tobytes() + data[last:])


DAMAGES = (bits, bits, some_bytes, cut, length, tensor, tensor, tensors, configuration, configuration, values)


def case(rng, judge) -> None:
    model = network(rng, known=2, most_layers=2)
    if model.num_layers * model.hidden_size > 40:
        return
    model.save(FILE)
    with open(FILE, "rb") as file:
        raw = file.read()
    for _ in range(20):
        damage = pick(rng, DAMAGES)
        hostile = damage(rng, raw)
        with open(FILE, "wb") as file:
            file.write(hostile)
        loaded(judge, hostile, f"{damage.__name__} of a file of {type(model).__name__}")
    os.remove(FILE)


def loaded(judge, raw: bytes, what: str) -> None:
    """One execution: a refusal, or the model of this file. What the file holds is said in case of failure."""
    try:
        model = lnrnn.load(FILE)
    except ValueError as error:
        text = str(error)
        judge.true(
            "hostile safetensors, refused", FILE in text and len(text) < 700, f"{what}: {text[:200]!r}"
        )
        return
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}; the file: {raw[:1500]!r}") from error
    judge.counts["hostile safetensors, loaded"] += 1
    header, data = taken_apart(raw)
    for name, value in model.state_dict().items():
        first, last = header[name]["data_offsets"]
        there = np.frombuffer(data[first:last], TYPES[header[name]["dtype"]]).reshape(value.shape)
        assert value.tobytes() == there.tobytes(), f"{what}: {name} is not what the file holds"
    x = np.zeros((1, 2, model.input_size) if model.batch_first else (2, 1, model.input_size), np.float32)
    if model.known_steps is not None and model.known_steps < 2 and model.overrun != "batch":
        return
    y, _ = model(x)
    z, _ = model(x)
    alike(y, z, what)
