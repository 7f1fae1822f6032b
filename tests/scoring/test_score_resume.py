"""`lnrnn score` continues after it was killed, and neither loses nor repeats a row group.

It refuses changes that would give other results, and a second writer.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
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
    """Returns paths of a model, an input of 12 row groups, and an output that does not exist."""
    network(D, 5, cell="GRU").save(tmp_path / "m.safetensors")
    lengths = rng.integers(0, 9, 10 * GROUPS)
    sequence_files.write(tmp_path / "in.parquet", rng, lengths, D, row_group_size=10, null=(7, 8))
    return tmp_path / "m.safetensors", tmp_path / "in.parquet", tmp_path / "out.parquet"


def words(files, *more):
    return ["score", *map(str, files), "--column", "x", "--workers", "1", *map(str, more)]


def whole(files, *more):
    """Returns the output of an undisturbed run."""
    model, source, target = files
    other = target.with_name("whole.parquet")
    assert cli.main(words((model, source, other), *more)) == 0
    data = other.read_bytes()
    other.unlink()
    return data


@pytest.fixture
def begun(files):
    """Returns `files` after a run that was interrupted after five row groups."""
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
    """Returns a list that gets the numbers of the computed row groups."""
    real, calls = bulk.compute, []

    def compute(job, index):
        calls.append(index)
        return real(job, index)

    monkeypatch.setattr(bulk, "compute", compute)
    return calls


# --- killed -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_killed_before_any_change_of_a_file_continues(tmp_path, rng):
    pytest.importorskip("pyarrow", minversion="26")  # older ones cannot read the null
    network(D, 5).save(tmp_path / "m.safetensors")
    table = sequence_files.write(tmp_path / "in.parquet", rng, [3, 0, 5, 2, 4, 1], D, row_group_size=2)
    rows = table["x"].to_pylist()
    rows[3][1] = None  # a bad row
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


def test_a_run_killed_with_its_workers_continues(tmp_path, rng, monkeypatch):
    """If the command is killed, its workers end by themselves. The next run continues."""
    files = [tmp_path / name for name in ("m.safetensors", "in.parquet", "out.parquet")]
    network(D, 256, cell="LSTM").save(files[0])  # large, so that a row group takes some tenths of a second
    sequence_files.write(files[1], rng, rng.integers(0, 80, 50 * GROUPS), D, row_group_size=50)
    program = sequence_files.command(*words(files, "--workers", 2))
    while len(list(parts(files[2]).glob("0*.parquet"))) < 2:
        assert program.poll() is None
        time.sleep(0.005)
    below = sequence_files.descendants(program.pid)
    program.send_signal(signal.SIGKILL)
    assert sequence_files.ended(program)[0] == -signal.SIGKILL
    assert len([text for text in below.values() if "spawn_main" in text]) == 2
    for _ in range(500):
        if not any(os.path.exists(f"/proc/{pid}") for pid in below):
            break
        time.sleep(0.01)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in below)
    done = sorted(int(path.stem) for path in parts(files[2]).glob("0*.parquet"))
    assert 2 <= len(done) < GROUPS and not files[2].exists()
    calls = computed(monkeypatch)
    assert cli.main(words(files)) == 0
    assert sorted(calls + done) == list(range(GROUPS))
    assert not parts(files[2]).exists()
    assert files[2].read_bytes() == whole(files)


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-20])


def another_bit(path):
    """Changes one bit in the last byte of the first column."""
    at, data = pq.read_metadata(path).row_group(0).column(0), bytearray(path.read_bytes())
    data[at.data_page_offset + at.total_compressed_size - 1] ^= 1
    path.write_bytes(data)


def leave_rubbish(path):
    """Writes files that killed runs leave."""
    (path.parent / ".lnrnn-0123456789abcdef.part").write_bytes(b"a manifest")
    (path.parent / "run-0123456789abcdef").mkdir()
    (path.parent / "run-0123456789abcdef" / "00000009.parquet").write_bytes(b"of a killed run")


# {name of the case: (change of the file of row group 3, whether row group 3 must be computed again, arguments
# that change no result)}.
DAMAGES = {
    "none": (lambda path: None, False, ()),
    "rubbish beside it": (leave_rubbish, False, ()),
    "cut off": (cut_off, True, ()),
    "empty": (lambda path: path.write_bytes(b""), True, ()),
    "of another row group": (lambda path: shutil.copy(path.with_name("00000001.parquet"), path), True, ()),
    "another bit": (another_bit, True, ()),
    "bad rows are skipped now": (lambda path: None, False, ("--bad", "skip")),
    "and named": (lambda path: None, False, ("--bad", "skip", "--id-column", "id")),
    "bad rows are named now": (lambda path: None, False, ("--id-column", "id")),
    "more threads": (lambda path: None, False, ("--threads", "2")),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_an_interrupted_run_continues(begun, monkeypatch, what):
    """The second run computes only the row groups that are missing or damaged."""
    change, again, more = DAMAGES[what]
    change(parts(begun[2]) / "00000003.parquet")
    calls = computed(monkeypatch)
    assert cli.main(words(begun, *more)) == 0
    assert calls == [3] * again + list(range(5, GROUPS))
    assert not parts(begun[2]).exists()
    monkeypatch.undo()
    assert begun[2].read_bytes() == whole(begun)


@pytest.mark.parametrize("size", [400, 3000, 6000])
def test_a_file_that_cannot_grow_is_named_and_the_next_run_continues(files, capsys, rng, size):
    """The first file of more bytes is the manifest, a part or the output."""
    sequence_files.write(files[1], rng, [30] * 60, D, row_group_size=8)
    resource = pytest.importorskip("resource")
    want, limits = whole(files, "--into", "all"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        assert cli.main(words(files, "--into", "all")) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = capsys.readouterr().err.splitlines()[-1]
    assert "file too large" in said and str(files[2]) in said, said
    assert not files[2].exists()
    assert cli.main(words(files, "--into", "all")) == 0 and files[2].read_bytes() == want


def test_a_run_continues_with_another_number_of_processes(begun):
    assert cli.main(words(begun, "--workers", "2")) == 0
    assert begun[2].read_bytes() == whole(begun)


@pytest.mark.parametrize("change", ["removed", "of another row group", "where none belongs"])
def test_a_wrong_list_of_bad_rows_is_computed_again(files, monkeypatch, change):
    """Row groups 0 and 2 have one bad row each. Lists of other row groups are not read."""
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


# --- refused ------------------------------------------------------------------------------------------------


def refused(files, capsys, message, *more):
    kept = {path.name: path.read_bytes() for path in parts(files[2]).glob("*.*")}
    capsys.readouterr()
    assert cli.main(words(files, *more)) == 2
    captured = capsys.readouterr()
    said = rf"lnrnn score: error: cannot continue:? ?{message}\n"
    assert captured.out == "" and re.fullmatch(said, captured.err), captured.err
    assert {path.name: path.read_bytes() for path in parts(files[2]).glob("*.*")} == kept
    assert not files[2].exists()


def stop_at(row_group, files, *more):
    """Ends a run at a row group. The row groups before it are complete."""
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


def another_column(files, rng):
    table = pq.read_table(files[1])
    pq.write_table(table.append_column("y", table["x"]), files[1], row_group_size=10)


def another_input(files, rng):
    """Writes another input with the same time of modification."""
    before = files[1].stat()
    sequence_files.write(files[1], rng, rng.integers(0, 9, 10 * GROUPS), D, row_group_size=10)
    os.utime(files[1], ns=(before.st_atime_ns, before.st_mtime_ns))


# {name of the case: (arguments of the first run, a change, arguments of the second run, the message)}.
SKIP, NUMBER, SHA = ("--bad", "skip"), "was [0-9]+, and is [0-9]+", "[0-9a-f]{64}"
REFUSED = {
    "into": ((), None, ("--into", "mean"), "--into was last, and is mean"),
    "column": ((), None, ("--column", "y"), "--column was x, and is y"),
    "name": ((), None, ("--name", "code"), "--name was x_last, and is code"),
    "no skip": (SKIP, None, (), "--bad was skip, and is raise"),
    "another list": (SKIP, None, (*SKIP, "--id-column", "id"), "--bad was skip, and is skip --id-column id"),
    "model": (
        (), lambda files, rng: network(D, 5, cell="GRU", seed=7).save(files[0]), (),
        f"the model's SHA-256 was {SHA}, and is {SHA}",
    ),
    "input": ((), another_input, (), f"the input's number of bytes {NUMBER}"),
    "age": ((), lambda files, rng: os.utime(files[1]), (), f"the input's time of modification .* {NUMBER}"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_changes_with_other_results_are_refused(files, capsys, rng, what):
    first, change, more, message = REFUSED[what]
    if what == "column":
        another_column(files, rng)
    stop_at(2, files, *first)
    if change is not None:
        change(files, rng)
    refused(files, capsys, rf"from \S+out.parquet.parts: {message}; remove .*", *more)


def test_another_version_or_kernel_set_is_refused(begun, capsys, monkeypatch):
    for module, name, value, message in (
        (lnrnn, "__version__", "9.9", r"lnrnn's version was \S+, and is 9.9"),
        (_core, "isa", lambda: "other", r"the kernel set was \S+, and is other"),
    ):
        with monkeypatch.context() as other:
            other.setattr(module, name, value)
            refused(begun, capsys, rf"from .*: {message}; remove .*")


def test_a_worker_with_another_kernel_set_is_refused(files, capsys, monkeypatch):
    """Each worker checks its kernel set, because workers may run on other machines."""
    real, isa = bulk.compute, _core.isa()

    def compute(job, index):
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(_core, "isa", lambda: "other")
            return real(pickle.loads(pickle.dumps(job)), index)

    monkeypatch.setattr(bulk, "compute", compute)
    assert cli.main(words(files)) == 2
    err = capsys.readouterr().err
    assert re.search(rf"has the kernel set other, and the Scorer is for {isa}, .* LNRNN_ISA", err), err
    assert not files[2].exists() and not parts(files[2]).exists()


@pytest.mark.parametrize("which", ["model", "input"])
def test_files_that_change_during_a_run_are_refused(files, capsys, monkeypatch, which):
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
    message = "has changed since its scoring began" if which == "input" else "has changed: its SHA-256 was"
    assert message in capsys.readouterr().err
    assert not files[2].exists()


def test_a_second_writer_is_refused(files, capsys, monkeypatch):
    real, second = bulk.compute, []

    def compute(job, index):
        if index == 2:
            second.append(sequence_files.ended(sequence_files.command(*words(files))))
        return real(job, index)

    monkeypatch.setattr(bulk, "compute", compute)
    assert cli.main(words(files)) == 0
    code, out, err = second[0]
    assert code == 2 and out == ""
    said = rf"\S+out.parquet.parts is being written by process {os.getpid()} on \S+, since .*"
    assert re.fullmatch(rf"lnrnn score: error: {said}\n", err), err
    assert files[2].read_bytes() == whole(files)


PLANTS = {"symbolic": os.symlink, "hard": os.link, "a pipe": lambda _, path: os.mkfifo(path)}
PLANTED = [(how, name) for how in PLANTS for name in ("lock", "manifest.json", "00000007.bad.parquet")]


@pytest.mark.parametrize("how, name", [*PLANTED, ("symbolic", "../out.bad.parquet")])
def test_planted_links_are_refused_and_not_followed(files, capsys, how, name):
    victim, place = files[2].with_name("victim"), parts(files[2]) / name
    victim.write_text("{}")
    parts(files[2]).mkdir()
    PLANTS[how](victim, place)
    assert cli.main(words(files, "--bad", "skip")) == 2
    assert place.name in capsys.readouterr().err and place.is_symlink() == (how == "symbolic")
    assert victim.read_text() == "{}" and not files[2].exists()


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("how", ["link", "owner"] if os.geteuid() == 0 else ["link"])
def test_a_folder_of_parts_that_another_user_planted_is_refused(files, capsys, how, outer):
    folder, other = parts(files[2].with_name("out") if outer else files[2]), files[2].with_name("other")
    other.mkdir()
    os.chown(other, 65534 if how == "owner" else -1, -1)
    source, out = (files[1].parent, folder.with_name("out")) if outer else files[1:]
    folder.symlink_to(other) if how == "link" else other.rename(folder)
    assert cli.main(words((files[0], source, out))) == 2
    assert f"{folder} must be of this user, and no link, got " in capsys.readouterr().err
    assert not out.exists() or not any(out.iterdir())


def test_a_damaged_manifest_is_refused(begun, capsys):
    for text in ("{", "[]", "3"):
        parts(begun[2]).joinpath("manifest.json").write_text(text)
        refused(begun, capsys, r".*manifest.json is damaged .*; remove \S+out.parquet.parts to .*")


def test_other_files_in_the_folder_of_parts_stay(begun):
    (parts(begun[2]) / "notes.txt").write_text("mine")
    assert cli.main(words(begun)) == 0
    assert [path.name for path in parts(begun[2]).iterdir()] == ["notes.txt"]
    assert cli.main(words(begun)) == 0  # the next run succeeds


def test_the_manifest_has_all_that_results_depend_on(begun):
    held = json.loads((parts(begun[2]) / "manifest.json").read_text())
    assert held["lnrnn's version"] == lnrnn.__version__ and held["the kernel set"]
    assert not {"--engine", "--workers", "--threads"} & set(held)
    assert np.all([isinstance(value, (int, str)) for value in held.values()])
