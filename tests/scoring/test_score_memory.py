"""The memory of `lnrnn score` does not grow with the file or its row groups."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import sequence_files
from networks import network

pytest.importorskip("safetensors")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

D = 16
ROWS = 400  # rows of 100 steps on average are 2.5 MB

# The program reads pieces of 1 MB, and needs 1 MB for y.
PROGRAM = """
import sys
from lnrnn import cli
from lnrnn.scoring import parquet, sequences
parquet.PIECE_BYTES, sequences.PIECE = 2**20, 2**18
assert cli.main(sys.argv[1:]) == 0
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak(folder, into):
    """Returns the peak memory of a run in KiB."""
    done = subprocess.run(
        [
            sys.executable, "-c", PROGRAM, "score", folder / "m.safetensors", folder / "in.parquet",
            folder / "out.parquet", "--column", "x", "--into", into, "--workers", "1", "--overwrite",
        ],
        env=os.environ | {"PYTHONPATH": str(sequence_files.ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
@pytest.mark.parametrize("into, row_groups", [("last", 24), ("all", 1)])
def test_memory_is_flat(tmp_path, rng, into, row_groups):
    network(D, 4).save(tmp_path / "m.safetensors")
    table = pa.table({"x": sequence_files.sequences(rng, rng.integers(0, 200, ROWS), D)})

    def written(copies, row_groups):
        whole = pa.concat_tables([table] * copies)
        pq.write_table(whole, tmp_path / "in.parquet", row_group_size=len(whole) // row_groups)
        return peak(tmp_path, into)

    small = written(4, 4)
    # The file has 60 MB. The peak of a program differs by 20 MB between runs, seldom by 40 MB.
    assert any(written(24, row_groups) < small + 35 * 1024 for _ in range(3))
    got = pq.read_table(tmp_path / "out.parquet")
    assert len(got) == 24 * ROWS
    first = got.slice(0, ROWS)[f"x_{into}"].combine_chunks()
    assert got.slice(23 * ROWS)[f"x_{into}"].combine_chunks().equals(first)
