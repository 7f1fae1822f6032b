"""Under the limits of the system: sizes of files, a full disk, processes, address space. Each is an error
that says so, or the right result, and the next call is right.
"""

from __future__ import annotations

import argparse
import errno
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from operations import bits

import lnrnn
from lnrnn.cli import write_array
from outcome import Missing, needs, restart_with
from source_copy import ROOT


@contextmanager
def limited(kind: int, value: int) -> Iterator[None]:
    """The soft limit, which may be raised again."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (hard, hard))


class Writers:
    """What writes files, each over an old one. The new ones are of some pages."""

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
        """Is what stands there "old" or "new"? Raises for anything else."""
        if path == self.model:
            found = bits(lnrnn.load(path))
            return {bits(self.old): "old", bits(self.new): "new"}[found]
        if path == self.array:
            found = np.load(path).tobytes()
            return {np.arange(3.0).tobytes(): "old", self.values.tobytes(): "new"}[found]
        found = path.read_bytes()
        assert found == b"old" or (found.startswith(b"\x89PNG") and found.endswith(b"IEND\xaeB`\x82"))
        return "old" if found == b"old" else "new"

    def attempt(self, path: Path, write, number: int) -> bool:
        """-> whether it was written. Raises where anything else than that error of that path came."""
        before = sorted(os.listdir("/proc/self/fd"))
        try:
            write()
            told = "new"
        except OSError as error:
            assert error.errno == number and error.filename == str(path), repr(error)
            told = "old"
        assert sorted(os.listdir("/proc/self/fd")) == before, "a descriptor stays open"
        assert self.whole(path) == told, f"{path.name} is not the {told} one"
        assert set(os.listdir(self.folder)) == {p.name for p in (self.model, self.array, self.png)}
        return told == "new"


def steps_of(options: argparse.Namespace) -> int:
    return 3 if options.quick else 60


def work_folder(options: argparse.Namespace) -> Path:
    """An empty one."""
    return Path(tempfile.mkdtemp(dir=options.folder))


def file_sizes(options: argparse.Namespace) -> dict[str, int]:
    """Files may have so many bytes: from none to more than are needed."""
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


def disk(options: argparse.Namespace) -> dict[str, int]:
    """A small tmpfs that others have filled up to the last pages: no page is left, one, two, and so on."""
    folder = work_folder(options)
    mounts = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(folder)]
    if "LNRNN_UNSHARED" not in os.environ:
        needs("unshare")
        if subprocess.run(mounts, capture_output=True).returncode:
            raise Missing("needs a user namespace with mounts of its own")
    restart_with({"LNRNN_UNSHARED": "1"}, "unshare", "-rm")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(folder)], check=True)
    writers, tried = Writers(folder), 0

    for path, write in writers.all():
        write()  # matplotlib opens files of its own, once
        for pages in range(20):
            writers.reset()
            fill = folder / "a.npy.filler"
            free = os.statvfs(folder).f_bfree
            fill.write_bytes(b"x" * 4096 * max(0, free - pages))
            hidden = os.open(fill, os.O_RDONLY)  # it has no name, and takes its place
            fill.unlink()
            try:
                writers.attempt(path, write, errno.ENOSPC)
            finally:
                os.close(hidden)
            write()
            assert writers.whole(path) == "new"
            tried += 1
    return {"disks": tried}


def address_space(options: argparse.Namespace) -> dict[str, int]:
    """The address space may grow by so many pages: from none to more than are needed."""
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
        # Of more memory than is kept for the next one, by malloc or by us.
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
        for room in np.linspace(0, 40 << 20, steps_of(options)).astype(int):
            bn.load_state_dict(start)
            with open("/proc/self/statm") as file:
                size = int(file.read().split()[0]) * resource.getpagesize()
            error = found = None
            with limited(resource.RLIMIT_AS, size + int(room)):
                try:
                    found = call()
                except MemoryError as caught:
                    error = caught
            if error is None:
                assert bits(found) == want and seen() == new, f"{name}, {room} bytes more: a wrong result"
            else:
                refused += 1
                assert seen() in (old, new), f"{name}, {room} bytes more: neither the old nor the new"
            bn.load_state_dict(start)
            assert bits(call()) == want, f"{name}, {room} bytes more: the next call is wrong"
            tried += 1
    assert refused, "there was always enough memory"
    return {"limits": tried, "refused": refused}


def processes(options: argparse.Namespace) -> dict[str, int]:
    """So many processes and threads, for teams of several sizes: the results are those of one thread."""
    sys.path.append(str(ROOT / "tests/runtime"))
    from test_threads import ADDRESSES, PROCESSES, with_limit

    rng, tries = np.random.default_rng(options.seed), max(1, steps_of(options) // 6)
    for _ in range(tries):
        limit, threads = int(rng.integers(1, 20)), int(rng.integers(2, 33))
        with_limit(PROCESSES.format(limit=limit), threads)
        room = int(rng.integers(60, 400))
        try:
            with_limit(ADDRESSES.format(limit=room), threads)
        except AssertionError as error:
            if not str(error).rstrip().endswith("MemoryError"):  # which it may be: of the results themselves
                raise AssertionError(f"{threads} threads, {room} MiB: {error}") from None
    return {"limits": 2 * tries}
