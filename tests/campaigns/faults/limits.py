"""Runs calls under limits of file sizes, processes and address space. A call must raise the limit's error or
give the right result, and the next call must be right.
"""

from __future__ import annotations

import argparse
import errno
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from operations import bits

import lnrnn
from lnrnn.cli import write_array
from source_copy import ROOT


@contextmanager
def limited(kind: int, value: int) -> Iterator[None]:
    """Runs the body under a soft limit, which can be raised again."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (hard, hard))


class Writers:
    """Functions that replace old files by new files, which are larger than several pages of memory."""

    def __init__(self, folder: Path) -> None:
        self.model, self.array, self.png = (folder / n for n in ("m.safetensors", "a.npy", "f.png"))
        self.folder = folder
        self.new, self.old = lnrnn.LSTM(20, 40, seed=1), lnrnn.RNN(3, 5, seed=0)
        self.values = np.random.default_rng(0).random(5000)
        self.reset()

    def reset(self) -> None:
        self.old.save(self.model)
        write_array(self.array, np.arange(3.0))
        self.png.write_bytes(b"old")

    def figure(self) -> None:
        from lnrnn.demo import save_figure

        save_figure(self.png, (2.0, 1.0), lambda figure: figure.subplots().plot([0, 1]))

    def all(self) -> list:
        return [
            (self.model, lambda: self.new.save(self.model)),
            (self.array, lambda: write_array(self.array, self.values)),
            (self.png, self.figure),
        ]

    def whole(self, path: Path) -> str:
        """Returns "old" if the file has the old content, "new" if it has the new one.

        Otherwise raises an error.
        """
        if path == self.model:
            return {bits(self.old): "old", bits(self.new): "new"}[bits(lnrnn.load(path))]
        if path == self.array:
            return {np.arange(3.0).tobytes(): "old", self.values.tobytes(): "new"}[np.load(path).tobytes()]
        data = path.read_bytes()
        assert data == b"old" or (data.startswith(b"\x89PNG") and data.endswith(b"IEND\xaeB`\x82"))
        return "old" if data == b"old" else "new"

    def attempt(self, path: Path, write, number: int) -> bool:
        """Returns whether `write` wrote the file. An error must name the path, with errno `number`."""
        before = sorted(os.listdir("/proc/self/fd"))
        try:
            write()
            expected = "new"
        except OSError as error:
            assert error.errno == number and error.filename == str(path), repr(error)
            expected = "old"
        assert sorted(os.listdir("/proc/self/fd")) == before, "a file descriptor was not closed"
        assert self.whole(path) == expected, f"{path.name} is not the {expected} file"
        assert set(os.listdir(self.folder)) == {p.name for p in (self.model, self.array, self.png)}
        return expected == "new"


def steps_of(options: argparse.Namespace) -> int:
    return 3 if options.quick else 60


def work_folder(options: argparse.Namespace) -> Path:
    return Path(tempfile.mkdtemp(dir=options.folder))


def file_sizes(options: argparse.Namespace) -> dict[str, int]:
    """Limits the size of files, from 0 bytes to more than needed."""
    writers, tried = Writers(work_folder(options)), 0
    for path, write in writers.all():
        write()
        size = path.stat().st_size
        for limit in np.unique(np.linspace(0, size + 1, steps_of(options)).astype(int)):
            writers.reset()
            with limited(resource.RLIMIT_FSIZE, int(limit)):
                done = writers.attempt(path, write, errno.EFBIG)
            assert done == (limit >= size), f"{path.name}: {limit} of {size} bytes"
            write()
            assert writers.whole(path) == "new"
            tried += 1
    return {"limits": tried}


def address_space(options: argparse.Namespace) -> dict[str, int]:
    """Limits the growth of the address space, from 0 bytes to more than needed."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 16, 128)).astype(np.float32)
    rows = rng.standard_normal((4000, 1024)).astype(np.float32)
    rnn, bn = lnrnn.LSTM(128, 256, seed=0), lnrnn.GRU(128, 256, norm="batch", seed=0)
    y, _, tape = rnn.forward_train(x)
    start = bn.state_dict()
    work = {
        "layer_norm": (lambda: lnrnn.layer_norm(rows, 1024), bytes),
        "layer_norm_backward": (lambda: lnrnn.layer_norm_backward(rows, rows, 1024, rows[0]), bytes),
        "batch_norm": (lambda: lnrnn.batch_norm(rows, None, None, training=True), bytes),
        # This network needs more memory than malloc and lnrnn keep for later calls.
        "constructor": (lambda: lnrnn.LSTM(512, 2048, seed=0), bytes),
        "call": (lambda: rnn(x), lambda: bits(rnn)),
        "to_dtype": (lambda: rnn.to_dtype("int8")(x), lambda: bits(rnn)),
        "forward_train": (lambda: bn.forward_train(x)[:2], lambda: bits(bn)),
        "backward": (lambda: rnn.backward(tape, y), lambda: bits(rnn)),
        "calibrate": (lambda: bn.calibrate([x]), lambda: bits(bn)),
    }
    tried = refused = 0
    for name, (call, seen) in work.items():
        bn.load_state_dict(start)
        old, want, new = seen(), bits(call()), seen()
        for growth in np.linspace(0, 40 << 20, steps_of(options)).astype(int):
            bn.load_state_dict(start)
            with open("/proc/self/statm") as file:
                size = int(file.read().split()[0]) * resource.getpagesize()
            error = result = None
            with limited(resource.RLIMIT_AS, size + int(growth)):
                try:
                    result = call()
                except MemoryError as caught:
                    error = caught
            where = f"{name}, {growth} bytes more"
            if error is None:
                assert bits(result) == want and seen() == new, f"{where}: a wrong result"
            else:
                refused += 1
                assert seen() in (old, new), f"{where}: the state is neither the old nor the new one"
            bn.load_state_dict(start)
            assert bits(call()) == want, f"{where}: the next call is wrong"
            tried += 1
    assert refused, "no call ran out of memory"
    return {"limits": tried, "refused": refused}


def processes(options: argparse.Namespace) -> dict[str, int]:
    """Limits the number of processes and threads. Results must be right with any number of threads."""
    sys.path.append(str(ROOT / "tests/runtime"))
    from test_threads import ADDRESSES, PROCESSES, with_limit

    rng, tries = np.random.default_rng(options.seed), max(1, steps_of(options) // 6)
    for _ in range(tries):
        limit, threads = int(rng.integers(1, 20)), int(rng.integers(2, 33))
        with_limit(PROCESSES.format(limit=limit), threads)
        limit = int(rng.integers(60, 400))
        try:
            with_limit(ADDRESSES.format(limit=limit), threads)
        except AssertionError as error:
            if (
                not str(error).rstrip().endswith("MemoryError")
            ):  # a process without memory for the results is allowed to end with MemoryError
                raise AssertionError(f"{threads} threads, {limit} MiB: {error}") from None
    return {"limits": 2 * tries}
