"""Tests `lnrnn score` on folders, patterns and addresses, whose outputs are folders."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import lnrnn
import sequence_files
from lnrnn import _core, cli
from lnrnn.scoring import report
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
        sequence_files.write(path, rng, rng.integers(0, 9, 12), D, row_group_size=5, null=(7,), names="xy")
    return tmp_path


def at_batch(monkeypatch, number, act):
    """Makes the Scorer call `act` before batch `number` of rows of a command, counted from 0."""
    real, count = lnrnn.Scorer.__call__, itertools.count()

    def call(self, table):
        if len(table) and next(count) == number:
            act()
        return real(self, table)

    monkeypatch.setattr(lnrnn.Scorer, "__call__", call)


def interrupt():
    raise KeyboardInterrupt


def score(folder, *words, into="out"):
    """Runs lnrnn score. words: inputs and options. Returns the exit code."""
    known = list(map(str, words))
    options = next((k for k, word in enumerate(known) if word.startswith("--")), len(known))
    given = [str(folder / "m.safetensors"), *known[:options], str(folder / into)]
    return cli.main(["score", *given, "--column", "x", "--workers", "1", *known[options:]])


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
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe("/changes.parquet", (folder / "in" / "c.parquet").read_bytes())
    assert score(folder, "memory://changes.parquet", into="out.parquet") == 0
    assert_scored(folder, "c.parquet", output=folder / "out.parquet")
    other = (folder / "in" / "day=1" / "a.parquet").read_bytes()
    at_batch(monkeypatch, 1, lambda: memory.pipe("/changes.parquet", other))
    assert score(folder, "memory://changes.parquet", into="other.parquet") == 2
    assert "changes.parquet has changed since its scoring began" in capsys.readouterr().err
    assert score(folder, "memory://changes.parquet", into="out.parquet") == 2
    assert "out.parquet already: the" in capsys.readouterr().err


def test_a_job_of_two_indices_gives_the_files_of_one_command(folder):
    """The page scoring.md has the command: a task computes the files whose numbers end with its index."""
    page = (sequence_files.ROOT / "docs" / "scoring.md").read_text()
    line = re.search(r"^\$ lnrnn (score .*\$SLURM_ARRAY_TASK_ID.*)$", page, re.M)[1]
    for k, name in ((0, "c"), (1, "day=1/a"), (10, "day=1/b")):
        (folder / "in" / f"{name}.parquet").rename(folder / "in" / f"part-{k:03}.parquet")
    (folder / "m.safetensors").rename(folder / "model.safetensors")
    environment = os.environ | {"PYTHONPATH": str(sequence_files.ROOT), "PYTHON": sys.executable}
    for words, index in (
        (line, "0"),
        (line, "1"),
        ("score model.safetensors 'in/*.parquet' one --column x", ""),
    ):
        given = environment | {"SLURM_ARRAY_TASK_ID": index}
        subprocess.run(f'"$PYTHON" -m lnrnn {words}', shell=True, cwd=folder, env=given, check=True)
    assert len(files(folder / "one")) == 3 and files(folder / "one") == files(folder / "out")
    for name in files(folder / "one"):
        assert (folder / "one" / name).read_bytes() == (folder / "out" / name).read_bytes()


def times(folder):
    return {name: (folder / "out" / name).stat().st_mtime_ns for name in files(folder / "out")}


def test_an_interrupted_run_goes_on_and_says_how_far_it_came(folder, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        at_batch(patch, 7, interrupt)
        assert score(folder, folder / "in") == 130
    do = "the same command keeps them, and computes the others from their first rows"
    assert capsys.readouterr().err == f"lnrnn score: interrupted after 2 of 4 files; {do}\n"
    before = times(folder)
    assert list(before) == ["c.parquet", "day=1/a.parquet"]
    assert score(folder, folder / "in") == 0
    assert "4 files (2 kept from an earlier run), 48 rows, " in capsys.readouterr().err
    assert times(folder).items() >= before.items()
    for name in NAMES:
        assert_scored(folder, name)
    (folder / "out" / "c.parquet").unlink()
    assert score(folder, folder / "in", "--log", "json") == 0
    assert json.loads(capsys.readouterr().err)["kept"] == 3
    with monkeypatch.context() as patch:
        at_batch(patch, 1, interrupt)
        assert score(folder, folder / "in", "--log", "json", "--workers", "1", into="other") == 130
    (event,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert event["event"] == "error" and "interrupted after 0 of 4 files; " in event["message"]


def touched(path):
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**12))


def another_footer(path):
    """Changes the footer, but neither the size nor the time of modification."""
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"parquet-cpp-arrow", b"parquet-CPP-arrow"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


# {name of the case: (change after the first run, options of the second one, the error)}.
C, OUT, SHA = "in/c.parquet", "out/c.parquet", "[0-9a-f]{64}"
CHANGES = {
    "another input": (lambda each: another_footer(each / C), (), f"the .* footer was {SHA}, and is {SHA}"),
    "an old output": (lambda folder: os.utime(folder / OUT, (1, 1)), (), "it is older than .*in/c.parquet"),
    "a damaged output": (
        lambda folder: os.truncate(folder / OUT, 300), (), "it was not written by this command"),
    "another model": (lambda folder: model(9).save(folder / "m.safetensors"), (),
        f"the model's SHA-256 was {SHA}, and is {SHA}"),
    "another column": (None, ("--column", "y", "--name", "x_last"), "--column was x, and is y"),
    "another result": (None, ("--into", "mean"), "--into was last, and is mean"),
    "another name": (None, ("--name", "code"), "the list of columns was .*'x_last'.*, and is .*'code'.*"),
    "another compression": (None, ("--compression", "zstd"), "--compression was snappy, and is zstd"),
    "other columns": (None, ("--keep", "id"), "the list of columns was .*, and is .*"),
    "bad rows": (None, ("--bad", "null"), "--bad was raise, and is null"),
    "version": ((lnrnn, "__version__", "9.9"), (), r"lnrnn's version was \S+, and is 9.9"),
    "kernel set": ((_core, "isa", lambda: "other"), (), r"the kernel set was \S+, and is other"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_an_output_with_other_facts_is_refused_by_name_and_stays(folder, capsys, monkeypatch, what):
    assert score(folder, folder / "in") == 0
    change, options, message = CHANGES[what]
    monkeypatch.setattr(*change) if isinstance(change, tuple) else change and change(folder)
    before, _ = times(folder), capsys.readouterr()
    assert score(folder, folder / "in", *options) == 2
    do = "choose another output, or give --overwrite"
    said = capsys.readouterr().err
    assert re.fullmatch(rf"lnrnn score: error: there is \S+c.parquet already: {message}; {do}\n", said), said
    assert times(folder) == before
    assert score(folder, folder / "in", *options, "--overwrite") == 0
    kept = 3 if change and what.split()[-1] in ("input", "output") else 0
    assert (f"({kept} kept from an earlier run)" in capsys.readouterr().err) == bool(kept)
    assert (times(folder).items() ^ before.items()) >= {("c.parquet", before["c.parquet"])}
    assert score(folder, folder / "in", *options) == 0
    assert "4 files (4 kept from an earlier run), 48 rows, 0 bad rows" in capsys.readouterr().err


def test_bad_rows_of_kept_files_are_counted(folder, capsys):
    poison(folder / "in" / "c.parquet", 6)
    assert score(folder, folder / "in", "--bad", "null") == 0
    assert score(folder, folder / "in", "--bad", "null") == 0
    assert capsys.readouterr().err.count(" 48 rows, 1 bad row, ") == 2


def test_an_output_of_another_command_meanwhile_stays(folder, capsys, monkeypatch):
    mine = folder / "out" / "c.parquet"
    at_batch(monkeypatch, 2, lambda: mine.write_text("mine"))
    assert score(folder, folder / "in") == 2
    assert f"another command has written {mine} meanwhile; that file is kept" in capsys.readouterr().err
    assert mine.read_text() == "mine" and not list(mine.parent.glob(".lnrnn-*"))


# --- bad files and rows -------------------------------------------------------------------------------------


BAD_FILES = {
    "text": (lambda path: path.write_text("hello"), "cannot be read as Parquet"),
    "another schema": (lambda path: pq.write_table(pa.table({"y": [1]}), path),
        "there is no column 'x'; the columns are 'y'"),
    "another type": (lambda path: pq.write_table(pa.table({"x": ["a"]}), path),
        "column 'x' must be .*, got string"),
    "damaged": (lambda path: sequence_files.damage(path, 2, 1), "row group 2, cannot be read as Parquet"),
    "no permission": (lambda path: path.chmod(0), "cannot be opened: Permission denied"),
    "a broken link": (lambda path: (path.unlink(), path.symlink_to("nowhere")), "no such file: .*b.parquet'"),
}  # fmt: skip


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("what", BAD_FILES)
def test_a_bad_file_is_named_and_the_others_are_scored(folder, capfd, what, workers):
    """Without --bad null, the command ends at the file."""
    if what == "no permission" and os.geteuid() == 0:
        pytest.skip("root may read every file")
    change, message = BAD_FILES[what]
    path = folder / "in" / "day=1" / "b.parquet"
    change(path)
    assert score(folder, folder / "in", "--workers", workers) == 2
    assert re.search(rf"error: .*{message}", capfd.readouterr().err)
    assert not (folder / "out" / "day=1" / "b.parquet").exists()
    assert score(folder, folder / "in", "--bad", "null", "--overwrite", "--workers", workers) == 1
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2 and re.match(rf"lnrnn score: left out: .*{message}", said[0]), said
    assert said[1].startswith("lnrnn score: 3 files, 36 rows, ") and " 1 bad file, " in said[1]
    assert files(folder / "out") == [name for name in sorted(NAMES) if name != "day=1/b.parquet"]


def test_a_file_that_disappears_is_left_out(folder, capsys, monkeypatch):
    at_batch(monkeypatch, 7, (folder / "in" / "day=1" / "b.parquet").unlink)
    assert score(folder, folder / "in", "--bad", "null") == 1
    said = capsys.readouterr().err
    assert "left out: no such file: " in said and "3 files, 36 rows, 0 bad rows, 1 bad file, " in said
    assert files(folder / "out") == [name for name in sorted(NAMES) if name != "day=1/b.parquet"]


@pytest.mark.parametrize("which", ["model", "kernel set", "input"])
def test_what_changes_during_a_run_ends_it(folder, capsys, monkeypatch, which):
    """With --bad null too, unless it is an input."""
    act, message = {
        "model": (
            lambda: model(9).save(folder / "m.safetensors"),
            "m.safetensors has changed: its SHA-256 was",
        ),
        "kernel set": (
            lambda: monkeypatch.setattr(_core, "isa", lambda: "other"),
            "has the kernel set other, ",
        ),
        "input": (lambda: touched(folder / C), "c.parquet has changed since its scoring began"),
    }[which]
    at_batch(monkeypatch, 1, act)
    assert score(folder, folder / "in", "--bad", "null") == (1 if which == "input" else 2)
    assert message in capsys.readouterr().err
    assert not (folder / "out" / "c.parquet").exists()


# {name of the case: (inputs, output, the error)}.
REFUSED = {
    "nothing there": (["nowhere"], "out", "no such file: '.*nowhere'"),
    "no match": (["in/*.csv"], "out", r"no files in '.*\*.csv'"),
    "only hidden files": (["in/_*"], "out", "no files in "),
    "twice": (["in", "in"], "out", "the inputs .* have the same output, c.parquet"),
    "a file as output": (["in"], "m.safetensors", "the output of a folder must be"),
    "output in the input": (["in"], "in", "the output must be a folder without inputs"),
    "an address": (["in"], "s3://bucket/out", "the output must be on this machine"),
    "the root": (["in"], "/", "the output must be a folder without inputs"),
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
    assert said[0].startswith("lnrnn score: 0 of 4 files, 5 of 48 rows, ") and said[0].endswith(" s left")
    assert said[-2].startswith("lnrnn score: 3 of 4 files, 48 of 48 rows, 0 s left")


def test_the_log_may_be_json(folder, capsys, monkeypatch):
    monkeypatch.setattr(report, "EVERY", 0)
    (folder / "in" / "c.parquet").write_text("hello")
    poison(folder / "in" / "day=1" / "a.parquet", 3)
    assert score(folder, folder / "in", "--bad", "null", "--log", "json") == 1
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [event["event"] for event in events] == ["bad file", *["progress"] * 9, "summary"]
    assert events[0]["file"] == str(folder / "in" / "c.parquet") and "Parquet" in events[0]["reason"]
    assert events[1]["rows"] == 5 and events[1]["seconds_left"] >= 0
    last = events[-1]
    assert last.pop("seconds") >= 0
    assert last == {
        "event": "summary", "files": 3, "kept": 0, "inputs": 4, "bad_files": 1, "rows": 36, "bad_rows": 1,
        "output": str(folder / "out"),
    }  # fmt: skip
    assert score(folder, folder / "in", "--log", "json") == 2
    (event,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert event["event"] == "error" and "c.parquet" in event["message"]
