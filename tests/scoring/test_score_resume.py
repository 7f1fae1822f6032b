"""lnrnn score: killed at any moment it goes on without losing or repeating a row group; what would give other
results, and a second writer, are refused."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import lnrnn
import sequence_files
from lnrnn import _core, cli
from lnrnn.scoring import bulk
from networks import network

pytest.importorskip("safetensors")
pq = pytest.importorskip("pyarrow.parquet")

D = 3
GROUPS = 12


@pytest.fixture
def files(tmp_path, rng):
    """Paths of a model, an input of 12 row groups and an output to be."""
    network(D, 5, cell="GRU").save(tmp_path / "m.safetensors")
    lengths = rng.integers(0, 9, 10 * GROUPS)
    sequence_files.write(tmp_path / "in.parquet", rng, lengths, D, row_group_size=10, null=(7, 8))
    return tmp_path / "m.safetensors", tmp_path / "in.parquet", tmp_path / "out.parquet"


@pytest.fixture
def slow_files(tmp_path, rng):
    """As `files`; a row group takes some tenths of a second."""
    network(D, 256, cell="LSTM").save(tmp_path / "m.safetensors")
    lengths = rng.integers(0, 80, 50 * GROUPS)
    sequence_files.write(tmp_path / "in.parquet", rng, lengths, D, row_group_size=50)
    return tmp_path / "m.safetensors", tmp_path / "in.parquet", tmp_path / "out.parquet"


def words(files, *more):
    return ["score", *map(str, files), "--column", "x", "--workers", "1", *map(str, more)]


def whole(files, *more):
    """What an undisturbed run writes."""
    model, source, target = files
    other = target.with_name("whole.parquet")
    assert cli.main(words((model, source, other), *more)) == 0
    data = other.read_bytes()
    other.unlink()
    return data


@pytest.fixture
def begun(files):
    """`files`, where a run has done five row groups and was interrupted."""
    stop_at(5, files)
    folder = files[2].with_name("out.parquet.parts")
    assert sorted(path.name for path in folder.iterdir()) == [
        *(f"{k:08}.parquet" for k in range(5)), "lock", "manifest.json",
    ]  # fmt: skip
    assert not files[2].exists()
    return files


def parts(target):
    return target.with_name(target.name + ".parts")


def computed(monkeypatch):
    """A list that gets the number of each row group as it is computed."""
    real, calls = bulk.compute, []

    def compute(job, index):
        calls.append(index)
        return real(job, index)

    monkeypatch.setattr(bulk, "compute", compute)
    return calls


# --- killed -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_before_each_change_of_a_file(tmp_path, rng):
    network(D, 5).save(tmp_path / "m.safetensors")
    table = sequence_files.write(tmp_path / "in.parquet", rng, [3, 0, 5, 2, 4, 1], D, row_group_size=2)
    rows = table["x"].to_pylist()
    rows[3][1] = None  # a bad one
    table = table.set_column(1, "x", [rows]).cast(table.schema)
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=2)
    names = [tmp_path / name for name in ("m.safetensors", "in.parquet", "out.parquet")]
    program = Path(sequence_files.__file__).with_name("killed_runs.py")
    done = subprocess.run(
        [sys.executable, program, tmp_path, *words(names, "--bad", "skip")[1:]],
        env=os.environ | {"PYTHONPATH": str(sequence_files.ROOT), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-1]) > 30


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_in_the_middle(slow_files, workers, monkeypatch):
    target = slow_files[2]
    program = sequence_files.command(*words(slow_files, "--workers", workers))
    while len(list(parts(target).glob("0*.parquet"))) < 4:
        assert program.poll() is None
        time.sleep(0.005)
    below = sequence_files.descendants(program.pid)
    program.send_signal(signal.SIGKILL)
    assert sequence_files.ended(program)[0] == -signal.SIGKILL
    assert len([text for text in below.values() if "spawn_main" in text]) == (2 if workers == 2 else 0)
    for _ in range(500):  # its workers end by themselves
        if not any(os.path.exists(f"/proc/{pid}") for pid in below):
            break
        time.sleep(0.01)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in below)
    done = sorted(int(path.stem) for path in parts(target).glob("0*.parquet"))
    assert 4 <= len(done) < GROUPS and not target.exists()
    calls = computed(monkeypatch)
    assert cli.main(words(slow_files)) == 0
    assert sorted(calls + done) == list(range(GROUPS))
    assert not parts(target).exists()
    assert target.read_bytes() == whole(slow_files)


def test_a_killed_worker_is_replaced(slow_files):
    program = sequence_files.command(*words(slow_files, "--workers", 2))
    killed = set()
    while program.poll() is None:
        workers = [p for p, text in sequence_files.descendants(program.pid).items() if "spawn_main" in text]
        if not killed and list(parts(slow_files[2]).glob("0*.parquet")):
            for pid in sorted(workers)[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.01)
    code, out, err = sequence_files.ended(program)
    assert (code, out) == (0, "") and err.startswith(f"lnrnn score: {50 * GROUPS} rows, ")
    assert len(killed) == 1
    assert slow_files[2].read_bytes() == whole(slow_files)


def test_a_row_group_that_ends_every_worker_is_named(files, monkeypatch):
    """Others are done meanwhile."""
    program = files[0].with_name("program.py")
    program.write_text(ENDS_WORKERS)
    done = subprocess.run(
        [sys.executable, program, *words(files, "--workers", 2)],
        env=os.environ | {"PYTHONPATH": str(sequence_files.ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert re.fullmatch(r"lnrnn score: error: row group 3: the process .* died 3 times .*\n", done.stderr)
    assert not files[2].exists()
    assert len(list(files[0].parent.glob("attempt-*"))) == 3
    calls = computed(monkeypatch)
    assert cli.main(words(files)) == 0
    assert 3 in calls and 0 not in calls
    assert files[2].read_bytes() == whole(files)


ENDS_WORKERS = """
import os, signal, sys
from lnrnn import cli
from lnrnn.scoring import bulk, row_groups

class Compute:
    def __call__(self, job, index):
        if index == 3:
            open(f"{os.path.dirname(job.input)}/attempt-{os.getpid()}", "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return row_groups.compute(job, index)

if __name__ == "__main__":
    bulk.compute = Compute()
    sys.exit(cli.main(sys.argv[1:]))
"""


def test_interrupted_and_gone_on_with(begun, monkeypatch):
    calls = computed(monkeypatch)
    assert cli.main(words(begun)) == 0
    assert calls == list(range(5, GROUPS))
    assert not parts(begun[2]).exists()
    assert begun[2].read_bytes() == whole(begun)


def test_what_is_left_of_a_part_is_computed_again(begun, monkeypatch):
    first, second = (parts(begun[2]) / f"{k:08}.parquet" for k in (1, 3))
    first.write_bytes(first.read_bytes()[:-20])
    second.write_bytes(b"")
    (parts(begun[2]) / ".lnrnn-0123456789abcdef.part").write_bytes(b"a manifest")
    (parts(begun[2]) / "run-0123456789abcdef").mkdir()
    (parts(begun[2]) / "run-0123456789abcdef" / "00000009.parquet").write_bytes(b"of a killed run")
    calls = computed(monkeypatch)
    assert cli.main(words(begun)) == 0
    assert calls == [1, 3, *range(5, GROUPS)]
    assert begun[2].read_bytes() == whole(begun)


def test_a_part_of_another_row_group_is_computed_again(begun, monkeypatch):
    """All have ten rows."""
    first, second = (parts(begun[2]) / f"{k:08}.parquet" for k in (1, 3))
    second.write_bytes(first.read_bytes())
    calls = computed(monkeypatch)
    assert cli.main(words(begun)) == 0
    assert calls == [3, *range(5, GROUPS)]
    assert begun[2].read_bytes() == whole(begun)


def test_a_part_with_another_bit_is_computed_again(begun, monkeypatch):
    part = parts(begun[2]) / "00000002.parquet"
    at = pq.read_metadata(part).row_group(0).column(0)
    data = bytearray(part.read_bytes())
    data[at.data_page_offset + at.total_compressed_size - 1] ^= 1  # of the last number
    part.write_bytes(data)
    calls = computed(monkeypatch)
    assert cli.main(words(begun)) == 0
    assert calls == [2, *range(5, GROUPS)]
    assert begun[2].read_bytes() == whole(begun)


@pytest.mark.parametrize("change", ["removed", "of another row group", "where none belongs"])
def test_a_list_of_bad_rows_that_is_not_its_own_is_made_again(files, monkeypatch, change):
    """Row groups 0 and 2 have a bad row each. A list of a row group that has none is not read."""
    table = pq.read_table(files[1])
    rows = table["x"].to_pylist()
    rows[5], rows[25] = [[1.0, None, 2.0]], [[1.0, None, 2.0]]
    table = table.set_column(1, "x", [rows]).cast(table.schema)
    pq.write_table(table, files[1], row_group_size=10)
    want = whole(files, "--bad", "skip")
    listed = pq.read_table(files[2].with_name("whole.bad.parquet"))
    assert listed["row"].to_pylist() == [5, 25]
    stop_at(4, files, "--bad", "skip")
    lists = [parts(files[2]) / f"{k:08}.bad.parquet" for k in range(3)]
    assert [path.exists() for path in lists] == [True, False, True]
    if change == "removed":
        lists[2].unlink()
    else:
        lists[1 if change == "where none belongs" else 2].write_bytes(lists[0].read_bytes())
    calls = computed(monkeypatch)
    assert cli.main(words(files, "--bad", "skip")) == 0
    assert calls == [*([2] if change != "where none belongs" else []), *range(4, GROUPS)]
    assert files[2].read_bytes() == want
    assert pq.read_table(files[2].with_name("out.bad.parquet")).equals(listed)


@pytest.mark.parametrize("more", [("--threads", "2"), ("--workers", "2")])
def test_what_no_result_depends_on_may_change(begun, more):
    assert cli.main(words(begun, *more)) == 0
    assert begun[2].read_bytes() == whole(begun)


@pytest.mark.parametrize(
    "more", [("--bad", "skip"), ("--bad", "skip", "--id-column", "id"), ("--id-column", "id")]
)
def test_after_a_bad_row_one_may_skip_and_name_them(begun, more, monkeypatch):
    calls = computed(monkeypatch)
    assert cli.main(words(begun, *more)) == 0
    assert calls == list(range(5, GROUPS))
    monkeypatch.undo()
    assert begun[2].read_bytes() == whole(begun)


# --- refused ------------------------------------------------------------------------------------------------


def refused(files, capsys, message, *more):
    kept = {path.name: path.read_bytes() for path in parts(files[2]).glob("*.*")}
    capsys.readouterr()
    assert cli.main(words(files, *more)) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and re.fullmatch(rf"lnrnn score: error: {message}\n", captured.err), (
        captured.err
    )
    assert {path.name: path.read_bytes() for path in parts(files[2]).glob("*.*")} == kept
    assert not files[2].exists()


@pytest.mark.parametrize(
    "more, name",
    [
        (("--into", "mean"), "--into was last, and is mean"),
        (("--column", "y"), "--column was x, and is y"),
        (("--name", "code"), "--name was x_last, and is code"),
    ],
)
def test_another_option(begun, capsys, more, name):
    model, source, target = begun
    if name.startswith("--column"):  # a file that has both
        table = pq.read_table(source)
        pq.write_table(table.append_column("y", table["x"]), source, row_group_size=10)
        parts(target).joinpath("manifest.json").unlink()
        stop_at(1, begun)
    refused(begun, capsys, rf"cannot go on with what \S+out.parquet.parts holds: {name}; remove .*", *more)


def stop_at(row_group, files, *more):
    """Those before it are done."""
    real = bulk.compute

    def compute(job, index):
        if index == row_group:
            raise KeyboardInterrupt
        return real(job, index)

    bulk.compute = compute
    try:
        assert cli.main(words(files, *more)) == 130
    finally:
        bulk.compute = real


def test_skip_does_not_become_raise(files, capsys):
    stop_at(3, files, "--bad", "skip")
    refused(files, capsys, "cannot go on .* --bad was skip, and is raise; remove .*")


def test_lists_of_bad_rows_keep_their_columns(files, capsys):
    stop_at(3, files, "--bad", "skip")
    changed = "cannot go on .* --bad was skip, and is skip --id-column id; remove .*"
    refused(files, capsys, changed, "--bad", "skip", "--id-column", "id")


def test_another_model(begun, capsys):
    network(D, 5, cell="GRU", seed=7).save(begun[0])
    refused(
        begun, capsys, "cannot go on .* the model's SHA-256 was [0-9a-f]{64}, and is [0-9a-f]{64}; remove .*"
    )


def test_another_input(begun, capsys, rng):
    before = begun[1].stat()
    sequence_files.write(begun[1], rng, rng.integers(0, 9, 10 * GROUPS), D, row_group_size=10)
    refused(begun, capsys, "cannot go on .* the input's number of bytes was [0-9]+, and is [0-9]+; remove .*")
    os.utime(begun[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    refused(begun, capsys, "cannot go on .* the input's number of bytes .*")


def test_an_input_that_was_written_to(begun, capsys):
    os.utime(begun[1])
    refused(begun, capsys, "cannot go on .* the input's time of modification .* was [0-9]+, and is .*")


def test_another_version_and_another_kernel_set(begun, capsys, monkeypatch):
    monkeypatch.setattr(lnrnn, "__version__", "9.9")
    refused(begun, capsys, r"cannot go on .* lnrnn's version was \S+, and is 9.9; remove .*")
    monkeypatch.undo()
    monkeypatch.setattr(_core, "isa", lambda: "other")
    refused(begun, capsys, r"cannot go on .* the kernel set was \S+, and is other; remove .*")


def test_a_worker_with_another_kernel_set(files, capsys, monkeypatch):
    """Its own check: workers may run on other machines."""
    real, isa = bulk.compute, _core.isa()

    def compute(job, index):
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(_core, "isa", lambda: "other")
            return real(pickle.loads(pickle.dumps(job)), index)

    monkeypatch.setattr(bulk, "compute", compute)
    assert cli.main(words(files)) == 2
    err = capsys.readouterr().err
    assert re.search(rf"has the kernel set other, and the Scorer is for {isa}: .* LNRNN_ISA", err), err
    assert not files[2].exists() and not parts(files[2]).exists()


@pytest.mark.parametrize("which", ["model", "input"])
def test_files_that_change_on_the_way(files, capsys, monkeypatch, which):
    real = bulk.compute

    def compute(job, index):
        if index == 4:
            if which == "input":
                os.utime(files[1])
            else:
                network(D, 5, cell="GRU", seed=7).save(files[0])
        return real(job, index)

    monkeypatch.setattr(bulk, "compute", compute)
    assert cli.main(words(files)) == 2
    message = "has changed since its scoring began" if which == "input" else "is not the model that it was"
    assert message in capsys.readouterr().err
    assert not files[2].exists()


def test_a_second_writer(files, capsys, monkeypatch):
    real, second = bulk.compute, []

    def compute(job, index):
        if index == 2:
            second.append(sequence_files.ended(sequence_files.command(*words(files))))
        return real(job, index)

    monkeypatch.setattr(bulk, "compute", compute)
    assert cli.main(words(files)) == 0
    code, out, err = second[0]
    assert code == 2 and out == ""
    assert re.fullmatch(
        rf"lnrnn score: error: \S+out.parquet.parts is being written by process {os.getpid()} on \S+, since "
        r".*\n",
        err,
    ), err
    assert files[2].read_bytes() == whole(files)


def test_a_damaged_manifest(begun, capsys):
    for text in ("{", "[]", "3"):
        parts(begun[2]).joinpath("manifest.json").write_text(text)
        refused(
            begun, capsys, r"cannot go on: \S+manifest.json is damaged .*; remove \S+out.parquet.parts to .*"
        )


def test_what_a_user_put_into_the_folder_stays(begun):
    (parts(begun[2]) / "notes.txt").write_text("mine")
    assert cli.main(words(begun)) == 0
    assert [path.name for path in parts(begun[2]).iterdir()] == ["notes.txt"]
    assert cli.main(words(begun)) == 0  # and does not hinder the next run


def test_the_manifest_says_what_results_depend_on(begun):
    held = json.loads((parts(begun[2]) / "manifest.json").read_text())
    assert held["lnrnn's version"] == lnrnn.__version__ and held["kernel set" if 0 else "the kernel set"]
    assert not {"--engine", "--workers", "--threads"} & set(held)
    assert np.all([isinstance(value, (int, str)) for value in held.values()])
