"""Writes files under limits of their size. A call must raise the limit's error or write the whole file."""

from __future__ import annotations

import argparse
import errno
import os
import resource
import tempfile
from pathlib import Path

import numpy as np
from operations import bits

import lnrnn
from lnrnn.cli import write_array


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
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), hard))
            try:
                done = writers.attempt(path, write, errno.EFBIG)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            assert done == (limit >= size), f"{path.name}: {limit} of {size} bytes"
            write()
            assert writers.whole(path) == "new"
            tried += 1
    return {"limits": tried}
