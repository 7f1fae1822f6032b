"""Hostile .npy files, as ``lnrnn run`` reads them: an error that names the file, or the array that stands
there; never a pickle, and no more memory than the file is long."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from pathlib import Path

import numpy as np

import lnrnn
from fuzz_draw import arranged, chance, network, pick
from fuzz_judge import alike
from lnrnn import cli

FOLDER = Path(tempfile.gettempdir())
FILE = FOLDER / f"fuzz-hostile{os.getpid()}.npy"
MODEL = FOLDER / f"fuzz-model{os.getpid()}.safetensors"
OUT = FOLDER / f"fuzz-out{os.getpid()}.npy"

HUGE = (2**20, 2**31, 2**33, 2**40, 2**60, 2**63, 2**64, -1)
DESCRS = ("<f4", ">f8", "|O", "|V7", "<U9999", "|S0", "<c8", "<M8[s]", "<i1", "f", "", "<f16", [("a", "<f4")],
          [("a", "<f4", (2**40,))], "<V999999999", "|b1", "object", None, 5)  # fmt: skip


def written(header: bytes, data: bytes, version=(1, 0)) -> bytes:
    size = len(header).to_bytes(2 if version == (1, 0) else 4, "little", signed=False)
    return b"\x93NUMPY" + bytes(version) + size + header + data


def saved(array, **how) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, **how)
    return buffer.getvalue()


def damaged(rng, array) -> bytes:
    """The file of the array, damaged in one way or other; or a header of our own."""
    raw, at = bytearray(saved(array)), rng.random()
    if at < 0.3:
        for k in rng.integers(0, 128 if chance(rng, 0.7) else len(raw), rng.integers(1, 4)):
            raw[k] ^= 1 << rng.integers(8)
    elif at < 0.45:
        del raw[int(rng.integers(len(raw))) :]
    elif at < 0.55:
        raw += rng.bytes(int(rng.integers(1, 50)))
    elif at < 0.7:
        k = int(rng.integers(len(raw)))
        raw[k : k + int(rng.integers(9))] = rng.bytes(int(rng.integers(9)))
    elif at < 0.95:
        shape = list(array.shape)
        if shape:
            shape[rng.integers(len(shape))] = pick(rng, HUGE)
        descr = array.dtype.str if chance(rng, 0.5) else pick(rng, DESCRS)
        header = {"descr": descr, "fortran_order": pick(rng, (True, False, 1, None)), "shape": tuple(shape)}
        if chance(rng, 0.2):
            header[pick(rng, ("descr", "shape", "more"))] = pick(
                rng, ((2**62, 2**62, 0), [], "x", (1.5,), -3)
            )
        text = repr(header).encode() + b"\n"
        raw = bytearray(written(text, array.tobytes(), pick(rng, ((1, 0), (2, 0), (3, 0), (9, 9)))))
    else:
        text = pick(
            rng, (b"(" * 500, b"{" * 9000, b"9" * 9000, b"{'a': " + b"-" * 3000 + b"1}", b"\xff" * 64, b"")
        )
        raw = bytearray(written(text, b""))
    return bytes(raw)


def case(rng, judge) -> None:
    array = rng.standard_normal(tuple(int(n) for n in rng.integers(0, 5, rng.integers(0, 4))))
    array = array.astype(pick(rng, (np.float32, np.float64, np.int64, np.float16)))
    try:
        for _ in range(12):
            read(judge, damaged(rng, array))
        for name, other in arranged(rng, array, 3) if array.dtype.kind == "f" else ():
            FILE.write_bytes(saved(other))
            judge.same(
                "npy", np.ascontiguousarray(cli.read_array(FILE)).astype(array.dtype), array, f"npy, {name}"
            )
        if chance(rng, 0.3):
            command(rng, judge)
        lengths(rng, judge)
    finally:
        for path in (FILE, MODEL, OUT):
            path.unlink(missing_ok=True)


def read(judge, raw: bytes) -> None:
    FILE.write_bytes(raw)
    try:
        found = cli.read_array(FILE)
    except ValueError as error:
        judge.true("hostile npy, refused", str(FILE) in str(error), f"{error}; the file: {raw[:300]!r}")
        return
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}; the file: {raw[:300]!r}") from error
    size = found.nbytes if found.dtype.itemsize else 0
    judge.true(
        "hostile npy, read",
        not found.dtype.hasobject and size <= len(raw),
        f"{found.dtype}{found.shape}: {raw[:300]!r}",
    )


def lengths(rng, judge) -> None:
    """Texts of lengths, one a line."""
    path = FILE.with_suffix(".txt")
    lines = [str(int(n)) for n in rng.integers(0, 9, rng.integers(0, 5))]
    want = np.array(lines, np.int64)
    wrong = chance(rng, 0.6)
    if wrong:
        lines.insert(0, pick(rng, ("a", "1.5", "1 2", "9" * 30, "-" * 9, "0x1", "\x00", "9" * 6000)))
    path.write_text("\n".join(lines) + ("\n\n" if chance(rng, 0.5) else ""))
    try:
        found = cli.read_lengths(path)
    except ValueError as error:
        judge.true("lengths", wrong and str(path) in str(error) and len(str(error)) < 400, f"{error}")
    else:
        assert not wrong, f"{lines}: {found}"
        judge.same("lengths", found, want, f"{lines}")
    finally:
        path.unlink(missing_ok=True)


def command(rng, judge) -> None:
    """The whole command: status 0 and the output, or status 2, a line that says why, and no output."""
    model = network(rng, known=9, most_layers=2)
    model.save(MODEL)
    x = rng.standard_normal((3, 2, model.input_size)).astype(np.float32)
    right = chance(rng, 0.4)
    FILE.write_bytes(saved(x) if right else damaged(rng, x))
    OUT.unlink(missing_ok=True)
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        status = cli.main(["run", str(MODEL), str(FILE), str(OUT)])
    if right:
        assert status == 0, said.getvalue()
        judge.same("lnrnn run", np.load(OUT), np.ascontiguousarray(model(x)[0]), "lnrnn run")
        return
    text = said.getvalue()
    judge.true("lnrnn run", (status == 0) == OUT.exists() and status in (0, 2), f"{status}, {text[:300]}")
    if status:
        assert "error" in text and "Traceback" not in text and text.count("\n") == 1 and len(text) < 1000, (
            text[:500]
        )
    else:
        y = lnrnn.load(MODEL)(cli.read_array(FILE))[0]
        alike(np.ascontiguousarray(np.load(OUT)), np.ascontiguousarray(y), "lnrnn run")
