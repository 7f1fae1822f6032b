"""The job with an index of docs/scaling.md: a process computes the files whose numbers end with its index."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import sequence_files
from networks import network

pytest.importorskip("safetensors")
pq = pytest.importorskip("pyarrow.parquet")


def test_a_job_of_two_indices_gives_the_files_of_one_command(rng, tmp_path):
    page = (sequence_files.ROOT / "docs" / "scaling.md").read_text()
    line = re.search(r"^\$ lnrnn (score .*\$SLURM_ARRAY_TASK_ID.*)$", page, re.M)[1]
    network(3, 4).save(tmp_path / "model.safetensors")
    (tmp_path / "in").mkdir()
    for k in (0, 1, 10):
        sequence_files.write(tmp_path / "in" / f"part-{k:03}.parquet", rng, [2, 0, 5], 3, row_group_size=2)
    own = os.pathsep.join([str(sequence_files.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])

    def run(words, index=""):
        given = os.environ | {"SLURM_ARRAY_TASK_ID": index, "PYTHONPATH": own, "PYTHON": sys.executable}
        command = f'"$PYTHON" -m lnrnn {words}'
        return subprocess.Popen(command, shell=True, cwd=tmp_path, env=given, stderr=subprocess.PIPE)

    for job in [run(line, "0"), run(line, "1"), run("score model.safetensors in one --column x")]:
        _, error = job.communicate(timeout=120)
        assert job.returncode == 0, error
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "out").iterdir()) and len(names) == 3
    for name in names:
        assert pq.read_table(tmp_path / "out" / name).equals(pq.read_table(tmp_path / "one" / name))
