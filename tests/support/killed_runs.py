"""Kills `lnrnn score` before each change that it makes to files, and runs it again each time.

    python killed_runs.py FOLDER WORDS...

The program first runs `lnrnn score WORDS...` once, with files in FOLDER. Then for n = 1, 2, ... it kills the
command before its n-th change, and runs it again to its end. It fails if an output differs from the output of
the first run, or if a file with another name remains. It prints the number of changes.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

# Import pyarrow and pandas once here, so that forked processes need not.
import pyarrow.parquet
import safetensors.numpy  # noqa: F401
import tqdm  # noqa: F401

from lnrnn import cli
from lnrnn.scoring import bulk  # noqa: F401

pyarrow.array(["imports pandas if it is there"]).to_numpy(zero_copy_only=False)

CHANGES = ("replace", "fsync", "unlink", "mkdir", "rmdir", "open")


def child(words: list[str], kill_at: int) -> int:
    """Runs the command in a forked process. Returns its exit code, which is -9 if it was killed."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    count = 0

    def counted(change):
        def call(*arguments, **options):
            nonlocal count
            writes = change is not real_open or (len(arguments) > 1 and arguments[1] & os.O_CREAT)
            count += bool(writes)
            if writes and count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*arguments, **options)

        return call

    real_open = os.open
    os.fsync = lambda descriptor: None  # fsync is slow, and only matters if the machine loses power
    for name in CHANGES:
        setattr(os, name, counted(getattr(os, name)))
    os._exit(cli.main(["score", *words]))


def main(folder: Path, words: list[str]) -> None:
    before = {path.name for path in folder.iterdir()}

    def outputs() -> dict[str, bytes]:
        """Returns the bytes of all outputs, but not those of the file that a killed command was writing."""
        found = (path for path in sorted(folder.rglob("*")) if path.is_file())
        own = {str(path.relative_to(folder)): path for path in found if not path.name.startswith(".lnrnn-")}
        return {name: path.read_bytes() for name, path in own.items() if name.partition("/")[0] not in before}

    def clean() -> None:
        for path in folder.iterdir():
            if path.name not in before:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    assert child(words, 0) == 0
    whole, killed = outputs(), 0
    while True:
        clean()
        code = child(words, killed + 1)
        if code == 0:
            break
        assert code == -signal.SIGKILL, code
        killed += 1
        assert all(whole[name] == data for name, data in outputs().items()), killed
        assert (code := child(words, 0)) == 0, (killed, code)
        assert outputs() == whole, killed
    print(killed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
