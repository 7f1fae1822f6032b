"""Tests `lnrnn score` on folders, patterns and addresses, whose outputs are folders."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile

import pytest

import lnrnn
import sequence_files
from lnrnn import cli
from lnrnn.scoring import bulk, report
from lnrnn.scoring.job import Outcome
from networks import network

pytest.importorskip("safetensors")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

D = 3
NAMES = ["day=1/a.parquet", "day=1/b.parquet", "day=2/a.parquet", "c.parquet"]
NESTED = pa.list_(pa.list_(pa.float32()))


def model(seed):
    return network(D, 4, cell="GRU", seed=seed)


@pytest.fixture
def folder(tmp_path, rng):
    """Returns a folder with a model and a folder `in` of four files, each with 12 rows in row groups of 5."""
    model(0).save(tmp_path / "m.safetensors")
    for name in NAMES:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        sequence_files.write(path, rng, rng.integers(0, 9, 12), D, row_group_size=5, null=(7,))
    return tmp_path


@pytest.fixture
def computed(monkeypatch):
    """Returns a list that gets the file and the row group of each computation."""
    real, calls = bulk.compute, []

    def compute(job, index):
        calls.append((job.input.name, index))
        return real(job, index)

    monkeypatch.setattr(bulk, "compute", compute)
    return calls


def score(folder, *words, into="out"):
    """Runs lnrnn score. words: inputs and options. Returns the exit code."""
    known = list(map(str, words))
    options = next((k for k, word in enumerate(known) if word.startswith("--")), len(known))
    given = [str(folder / "m.safetensors"), *known[:options], str(folder / into), *known[options:]]
    return cli.main(["score", *given, "--column", "x", "--workers", "1"])


def files(folder):
    """Returns the names of all files in a folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def read(path):
    """Returns a table. pq.read_table would add columns of partitions, and may close the file later."""
    return pq.read_table(pa.BufferReader(path.read_bytes()))


def assert_scored(folder, name, source=None, output=None):
    want = lnrnn.Scorer(folder / "m.safetensors", "x")(read(source or folder / "in" / name))
    assert read(output or folder / "out" / name).equals(sequence_files.as_written(want))


def poison(path, row):
    table = read(path)
    rows = table["x"].to_pylist()
    rows[row] = [[1.0, None, 2.0]]
    pq.write_table(table.set_column(1, "x", pa.array(rows, NESTED)), path, row_group_size=5)


# --- inputs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_folder_has_an_output_for_each_file(folder, capsys, workers):
    """Hidden files, such as those of Spark, are left out."""
    for name in ("_SUCCESS", ".crc", "_metadata", "day=1/_tmp/d.parquet", ".git/e.parquet"):
        (folder / "in" / name).parent.mkdir(exist_ok=True)
        (folder / "in" / name).write_bytes(b"")
    assert score(folder, folder / "in", "--workers", workers) == 0
    assert files(folder / "out") == sorted(NAMES)
    for name in NAMES:
        assert_scored(folder, name)
    assert sorted(path.name for path in folder.iterdir()) == ["in", "m.safetensors", "out"]
    assert "4 files, 48 rows, " in capsys.readouterr().err
    whole = pq.read_table(folder / "out")
    assert len(whole) == 48 and sorted(set(whole["day"].to_pylist()), key=str) == [1, 2, None]


def test_links_to_folders_are_followed_once(folder):
    """Names of partitions may begin with an underscore."""
    (folder / "in" / "day=1" / "again").symlink_to(folder / "in")
    (folder / "other").mkdir()
    shutil.copy(folder / "in" / "c.parquet", folder / "other")
    (folder / "in" / "_day=3").symlink_to(folder / "other")
    assert score(folder, folder / "in") == 0
    assert files(folder / "out") == sorted([*NAMES, "_day=3/c.parquet"])


@pytest.mark.parametrize(
    "given, expected",
    [
        (["in/day=*"], ["day=1/a.parquet", "day=1/b.parquet", "day=2/a.parquet"]),
        (["in/**/a.parquet"], ["day=1/a.parquet", "day=2/a.parquet"]),
        (["in/day=1/[ab].parquet"], ["a.parquet", "b.parquet"]),
        (["in/day=1/a.parquet", "in/day=2/a.parquet"], ["day=1/a.parquet", "day=2/a.parquet"]),
        (["in/day=1", "in/c.parquet"], ["c.parquet", "day=1/a.parquet", "day=1/b.parquet"]),
        (["in/day=1", "in/day=2"], ["day=1/a.parquet", "day=1/b.parquet", "day=2/a.parquet"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_names_are_relative_to_the_folder_of_all_inputs(folder, given, expected):
    assert score(folder, *(folder / each for each in given)) == 0
    assert files(folder / "out") == expected


def test_a_file_whose_name_has_wildcards_is_no_pattern(folder):
    (folder / "in" / "c.parquet").rename(folder / "[c]?.parquet")
    assert score(folder, folder / "[c]?.parquet", into="out.parquet") == 0
    assert_scored(folder, "", folder / "[c]?.parquet", folder / "out.parquet")


@pytest.mark.parametrize("kind", ["folder", "pattern", "zip", "file:// and a folder"])
def test_addresses_are_read_with_fsspec(folder, kind):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.rm("/set", recursive=True) if memory.exists("/set") else None
    memory.put(str(folder / "in"), "/set", recursive=True)
    with zipfile.ZipFile(folder / "in.zip", "w") as archive:
        for name in NAMES:
            archive.write(folder / "in" / name, name)
    address, names = {
        "folder": ("memory://set", sorted(NAMES)),
        "pattern": ("memory://set/day=*/*.parquet", [name for name in NAMES if "day" in name]),
        "zip": (f"zip://day=1/*.parquet::file://{folder}/in.zip", ["a.parquet", "b.parquet"]),
        "file:// and a folder": (f"file://{folder}/in", sorted(NAMES)),
    }[kind]
    assert score(folder, address) == 0
    assert files(folder / "out") == names
    for name in names:
        assert_scored(folder, name, folder / "in" / "day=1" / name if kind == "zip" else None)


def test_an_address_of_a_file_that_changes_is_noticed(folder, capsys, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    memory, real = fsspec.filesystem("memory"), bulk.compute
    memory.pipe("/changes.parquet", (folder / "in" / "c.parquet").read_bytes())
    assert score(folder, "memory://changes.parquet", into="out.parquet") == 0
    assert_scored(folder, "c.parquet", output=folder / "out.parquet")

    def compute(job, index):
        if index == 1:
            memory.pipe("/changes.parquet", (folder / "in" / "day=1" / "a.parquet").read_bytes())
        return real(job, index)

    monkeypatch.setattr(bulk, "compute", compute)
    assert score(folder, "memory://changes.parquet", into="out.parquet") == 2
    assert "changes.parquet has changed since its scoring began" in capsys.readouterr().err


def test_complete_files_are_not_computed_again(folder, computed, monkeypatch, capsys):
    real = bulk.compute

    def compute(job, index):
        if (job.input.name, index) == ("day=1/b.parquet", 1):
            raise KeyboardInterrupt
        return real(job, index)

    with monkeypatch.context() as patch:
        patch.setattr(bulk, "compute", compute)
        assert score(folder, folder / "in") == 130
    assert files(folder / "out") == ["c.parquet", "day=1/a.parquet"]
    assert files(folder / "out.parts") == [
        f"day=1/b.parquet/{name}" for name in ("00000000.parquet", "lock", "manifest.json")
    ]
    computed.clear()
    capsys.readouterr()
    assert score(folder, folder / "in") == 0
    assert computed == [("day=1/b.parquet", k) for k in (1, 2)] + [("day=2/a.parquet", k) for k in range(3)]
    assert not (folder / "out.parts").exists() and "4 files, 48 rows, " in capsys.readouterr().err
    for name in NAMES:
        assert_scored(folder, name)


# {name of the case: (change after the first run, options of the second one, files to compute)}.
CHANGES = {
    "no change": (None, (), []),
    "another input": (lambda folder: os.utime(folder / "in" / "c.parquet"), (), ["c.parquet"]),
    "a damaged output": (lambda folder: os.truncate(folder / "out" / "c.parquet", 300), (), ["c.parquet"]),
    "a removed output": (lambda folder: (folder / "out" / "c.parquet").unlink(), (), ["c.parquet"]),
    "another model": (lambda folder: model(9).save(folder / "m.safetensors"), (), sorted(NAMES)),
    "another result": (None, ("--into", "mean"), sorted(NAMES)),
    "another compression": (None, ("--compression", "zstd"), sorted(NAMES)),
    "other columns": (None, ("--keep", "id"), sorted(NAMES)),
    "a list of bad rows": (None, ("--bad", "skip"), sorted(NAMES)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_second_run_computes_what_has_changed(folder, computed, what):
    assert score(folder, folder / "in") == 0
    change, options, expected = CHANGES[what]
    if change is not None:
        change(folder)
    computed.clear()
    assert score(folder, folder / "in", *options) == 0
    assert sorted({name for name, _ in computed}) == expected


def test_complete_files_with_bad_rows_are_refused_without_skip(folder, computed, capsys):
    poison(folder / "in" / "c.parquet", 6)
    assert score(folder, folder / "in", "--bad", "skip") == 0
    computed.clear()
    assert score(folder, folder / "in", "--bad", "skip") == 0 and not computed
    assert " 1 bad row (" in capsys.readouterr().err
    assert score(folder, folder / "in") == 2
    assert "c.parquet, row group 1, row 6, column 'x': step 0 holds a null" in capsys.readouterr().err


# --- bad files and rows -------------------------------------------------------------------------------------


def test_bad_rows_are_listed_by_file(folder, capsys):
    for name, row in (("c.parquet", 6), ("day=1/a.parquet", 11)):
        poison(folder / "in" / name, row)
    assert score(folder, folder / "in", "--bad", "skip", "--id-column", "id") == 0
    assert f" 2 bad rows ({folder / 'out.bad'}), " in capsys.readouterr().err
    listed = {name: read(folder / "out.bad" / name).to_pylist() for name in NAMES}
    reason = "step 0 holds a null"
    assert listed == {
        "c.parquet": [{"row": 6, "row_group": 1, "reason": reason, "id": 6}],
        "day=1/a.parquet": [{"row": 11, "row_group": 2, "reason": reason, "id": 11}],
        "day=1/b.parquet": [],
        "day=2/a.parquet": [],
    }


def damaged_later(path):
    """Damages the last row group, so that the first ones can be read."""
    data = bytearray(path.read_bytes())
    column = pq.read_metadata(path).row_group(2).column(1)
    first = column.dictionary_page_offset or column.data_page_offset
    data[first : first + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(data)


BAD_FILES = {
    "text": (lambda path: path.write_text("hello"), "cannot be read as Parquet"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be read as Parquet"),
    "another schema": (
        lambda path: pq.write_table(pa.table({"y": [1]}), path),
        "there is no column 'x'; the columns are 'y'",
    ),
    "another type": (
        lambda path: pq.write_table(pa.table({"x": ["a"]}), path),
        "column 'x' must be .*, got string",
    ),
    "damaged": (damaged_later, "row group 2, cannot be read as Parquet"),
    "no permission": (lambda path: path.chmod(0), "cannot be opened: Permission denied"),
    "a broken link": (lambda path: (path.unlink(), path.symlink_to("nowhere")), "no such file: .*b.parquet'"),
}


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("what", BAD_FILES)
def test_a_bad_file_is_named_and_the_others_are_scored(folder, capfd, what, workers):
    """Without --bad skip, the command ends at the file."""
    if what == "no permission" and os.geteuid() == 0:
        pytest.skip("root may read every file")
    change, message = BAD_FILES[what]
    path = folder / "in" / "day=1" / "b.parquet"
    change(path)
    assert score(folder, folder / "in", "--workers", workers) == 2
    assert re.search(rf"error: .*{message}", capfd.readouterr().err)
    assert not (folder / "out" / "day=1" / "b.parquet").exists()
    assert score(folder, folder / "in", "--bad", "skip", "--workers", workers) == 1
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2 and re.match(rf"lnrnn score: left out: .*{message}", said[0]), said
    assert said[1].startswith("lnrnn score: 3 files, 36 rows, ") and " 1 bad file, " in said[1]
    assert files(folder / "out") == [name for name in sorted(NAMES) if name != "day=1/b.parquet"]
    assert not (folder / "out.parts").exists()


def test_a_file_that_disappears_is_left_out(folder, capsys, monkeypatch):
    real = bulk.compute

    def compute(job, index):
        outcome = real(job, index)
        if (job.input.name, index) == ("day=1/b.parquet", 1):
            os.unlink(job.input.path)
        return outcome

    monkeypatch.setattr(bulk, "compute", compute)
    assert score(folder, folder / "in", "--bad", "skip") == 1
    assert "left out: no such file: " in capsys.readouterr().err
    assert len(files(folder / "out")) == 3 and not (folder / "out.parts").exists()


def test_errors_that_are_not_of_an_input_end_the_command(folder, capsys, monkeypatch):
    """For example a worker with another kernel set."""
    failed = Outcome("c.parquet", 0, error="the kernel set differs")
    monkeypatch.setattr(bulk, "compute", lambda job, index: failed)
    assert score(folder, folder / "in", "--bad", "skip") == 2
    assert "error: the kernel set differs" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("mount") is None, reason="needs mount")
def test_a_full_disk_ends_the_command_and_the_next_run_continues(folder, capsys, rng):
    sequence_files.write(folder / "in" / "c.parquet", rng, [400] * 300, D, row_group_size=50)
    small = folder / "small"
    small.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], capture_output=True)
    if done.returncode:
        pytest.skip(f"cannot mount a file system: {done.stderr.decode()}")
    try:
        assert score(folder, folder / "in", "--bad", "skip", into="small/out") == 2
        said = capsys.readouterr().err
        assert "no space left on device" in said and "small" in said, said
        assert not (small / "out" / "c.parquet").exists()
        subprocess.run(["mount", "-o", "remount,size=16m", small], check=True)
        assert score(folder, folder / "in", "--bad", "skip", into="small/out") == 0
        for name in NAMES:
            assert_scored(folder, name, output=small / "out" / name)
    finally:
        subprocess.run(["umount", small], check=True)


# {name of the case: (inputs, output, the error)}.
REFUSED = {
    "nothing there": (["nowhere"], "out", "no such file: '.*nowhere'"),
    "no match": (["in/*.csv"], "out", r"no files in '.*\*.csv'"),
    "only hidden files": (["in/_*"], "out", "no files in "),
    "twice": (["in", "in"], "out", "the inputs .* have the same output, c.parquet"),
    "a file as output": (["in"], "m.safetensors", "the output of a folder must be"),
    "output in the input": (["in"], "in", "the output must be a folder without inputs"),
    "an address": (["in"], "s3://bucket/out", "the output must be on this machine"),
    "the root": (["in"], "/", "the output must be a folder of a file system, got its root, /"),
    "an unknown protocol": (["nosuch://x/y"], "out", "nosuch"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_runs_write_nothing(folder, capsys, case):
    given, output, message = REFUSED[case]
    before = files(folder)
    words = [word if "://" in word else str(folder / word) for word in ("m.safetensors", *given, output)]
    assert cli.main(["score", *words, "--column", "x"]) == 2
    err = capsys.readouterr().err
    assert re.search(f"error: .*{message}", err) and err.count("\n") == 1, err
    assert files(folder) == before


def test_progress_counts_files(folder, capsys, monkeypatch):
    monkeypatch.setattr(report, "EVERY", 0)
    assert score(folder, folder / "in") == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("lnrnn score: 0 of 4 files, 5 rows, ") and said[0].endswith(" s left")
    assert said[-2].startswith("lnrnn score: 3 of 4 files, 48 rows, 0 s left")


def test_the_log_may_be_json(folder, capsys, monkeypatch):
    monkeypatch.setattr(report, "EVERY", 0)
    (folder / "in" / "c.parquet").write_text("hello")
    poison(folder / "in" / "day=1" / "a.parquet", 3)
    assert score(folder, folder / "in", "--bad", "skip", "--log", "json") == 1
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [event["event"] for event in events] == ["bad file", *["progress"] * 9, "summary"]
    assert events[0]["file"] == str(folder / "in" / "c.parquet") and "Parquet" in events[0]["reason"]
    assert events[1]["rows"] == 5 and events[1]["seconds_left"] >= 0
    last = events[-1]
    steps = last.pop("steps")
    assert steps > 0 and last.pop("seconds") >= 0
    assert last == {
        "event": "summary", "files": 3, "inputs": 4, "bad_files": 1, "rows": 36, "bad_rows": 1,
        "output": str(folder / "out"), "bad_rows_in": str(folder / "out.bad"),
    }  # fmt: skip
    assert score(folder, folder / "in", "--log", "json") == 2
    (event,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert event["event"] == "error" and "c.parquet" in event["message"]
