"""Reads damaged .safetensors and .npy files. lnrnn must raise an error that names the file, or read its data.

The campaign reader mutates the headers of files of networks.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import tempfile
from pathlib import Path

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


def models(rng, judge) -> None:
    """lnrnn must refuse a damaged file of a network with an error that names it, or read a network."""
    model = network(rng, known=2, most_layers=2)
    model.save(MODEL)
    raw = MODEL.read_bytes()
    for _ in range(20):
        damage = pick(rng, (bits, bits, some_bytes, cut))
        damaged = damage(rng, raw, 8 + int.from_bytes(raw[:8], "little"))
        MODEL.write_bytes(damaged)
        label = f"{damage.__name__}, the file: {damaged[:1500]!r}"
        try:
            other = lnrnn.load(MODEL)
        except ValueError as error:
            text = str(error)
            right = str(MODEL) in text and len(text) < 700
            judge.true("damaged safetensors, refused", right, f"{label}: {text[:200]!r}")
        else:
            judge.true("damaged safetensors, loaded", repr(other) == repr(copy.copy(other)), label)


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
