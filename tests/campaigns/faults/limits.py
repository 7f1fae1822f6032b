"""Under the limits of the system: sizes of files, a full disk, processes, address space. Each is an error
that says so, or the right result, and the next call is right.

    python tests/campaigns/faults/limits.py files|memory|processes|disk FOLDER [--seed N] [--steps N]
"""

from __future__ import annotations

import argparse
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "support"), str(Path(__file__).parents[2] / "runtime")]

import numpy as np  # noqa: E402
from operations import bits  # noqa: E402

import lnrnn  # noqa: E402
from lnrnn.cli import write_array  # noqa: E402


@contextmanager
def limited(kind: int, value: int) -> Iterator[None]:
    """The soft limit, which may be raised again."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (hard, hard))


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


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
        assert names(self.folder) == sorted(p.name for p in (self.model, self.array, self.png)), names(
            self.folder
        )
        return told == "new"


def files(folder: Path, steps: int) -> int:
    """Files may have so many bytes: from none to more than are needed."""
    writers, tried = Writers(folder), 0
    for path, write in writers.all():
        write()
        size = path.stat().st_size
        for limit in np.unique(np.linspace(0, size + 1, steps).astype(int)):
            writers.reset()
            with limited(resource.RLIMIT_FSIZE, int(limit)):
                done = writers.attempt(path, write, errno.EFBIG)
            assert done == (limit >= size), f"{path.name}: {limit} of {size} bytes"
            write()
            assert writers.whole(path) == "new"
            tried += 1
    return tried


def disk(folder: Path) -> int:
    """A small tmpfs that others have filled up to the last pages: no page is left, one, two, and so on."""
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
    return tried


def memory(steps: int) -> int:
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
        for room in np.linspace(0, 40 << 20, steps).astype(int):
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
    return tried


def processes(seed: int, steps: int) -> int:
    """So many processes and threads, for teams of several sizes: the results are those of one thread."""
    from test_threads import ADDRESSES, PROCESSES, with_limit

    rng = np.random.default_rng(seed)
    for _ in range(steps):
        limit, threads = int(rng.integers(1, 20)), int(rng.integers(2, 33))
        with_limit(PROCESSES.format(limit=limit), threads)
        room = int(rng.integers(60, 400))
        try:
            with_limit(ADDRESSES.format(limit=room), threads)
        except AssertionError as error:
            if not str(error).rstrip().endswith("MemoryError"):  # which it may be: of the results themselves
                raise AssertionError(f"{threads} threads, {room} MiB: {error}") from None
    return 2 * steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["files", "memory", "processes", "disk"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    lnrnn.set_num_threads(1)
    tried = {
        "files": lambda: files(options.folder, options.steps),
        "disk": lambda: disk(options.folder),
        "memory": lambda: memory(options.steps),
        "processes": lambda: processes(options.seed, options.steps),
    }[options.what]()
    print(f"{options.what}: {tried} limits, each an error or the right result")


if __name__ == "__main__":
    main()
