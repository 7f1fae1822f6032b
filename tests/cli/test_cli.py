"""Tests the command `lnrnn`: its output, the files that it writes, and its errors of one line each."""

from __future__ import annotations

import getpass
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest

import lnrnn
from lnrnn import cli, demo, studies
from lnrnn.errors import reason


def run(capsys, *arguments) -> tuple[int, str, str]:
    """Runs the command. Returns exit code, stdout, stderr."""
    code = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def files(tmp_path):
    """Returns a folder with files of a model and its input, the model, and the input."""
    pytest.importorskip("safetensors")
    rnn = lnrnn.RNN(3, 5, seed=1)
    rnn.save(str(tmp_path / "model.safetensors"))
    x = np.random.default_rng(0).standard_normal((7, 2, 3)).astype(np.float32)
    np.save(tmp_path / "in.npy", x)
    return tmp_path, rnn, x


def paths(folder):
    return folder / "model.safetensors", folder / "in.npy", folder / "out.npy"


# --- lnrnn run ----------------------------------------------------------------------------------------------


def test_run_accepts_lengths(files, capsys):
    folder, rnn, x = files
    np.save(folder / "lengths.npy", np.array([4, 7]))
    assert run(capsys, "run", *paths(folder), "--lengths", folder / "lengths.npy") == (0, "", "")
    got = np.load(folder / "out.npy")
    assert np.array_equal(got, rnn(x, lengths=[4, 7])[0])
    assert not got[4:, 0].any() and got[4:, 1].any()


def test_run_replaces_an_old_output_and_may_overwrite_its_input(files, capsys):
    folder, rnn, x = files
    model, input_file, output = paths(folder)
    output.write_bytes(b"old")
    assert run(capsys, "run", model, input_file, output)[0] == 0
    assert np.array_equal(np.load(output), rnn(x)[0])
    assert run(capsys, "run", model, input_file, input_file)[0] == 0
    assert np.array_equal(np.load(input_file), rnn(x)[0])


@pytest.mark.parametrize("name", ["its own", "symbolic link", "hard link"])
def test_run_does_not_overwrite_the_model(files, capsys, name):
    folder, rnn, x = files
    model, input_file, output = paths(folder)
    if name == "its own":
        output = model
    elif name == "symbolic link":
        output.symlink_to(model)
    else:
        output.hardlink_to(model)
    code, _, error = run(capsys, "run", model, input_file, output)
    assert code == 2 and "must be another file than the input" in error
    assert np.array_equal(lnrnn.load(model)(x)[0], rnn(x)[0])


def saved(save, value, **options):
    """Returns a function that saves the value in a file. np.save would add .npy to a path."""

    def damage(path):
        with path.open("wb") as file:
            save(file, value, **options)

    return damage


def written(content):
    return lambda path: path.write_bytes(content)


def changed(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


HUGE_SHAPE = {"descr": "<f4", "fortran_order": False, "shape": (2**40, 2**20, 3)}
OBJECTS = np.array([{}, None], dtype=object)
MANY_DIGITS = b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"9" * 9000
NOT_READABLE = r"in\.npy must be a \.npy file of numbers, got one that NumPy cannot read"

# {name of the case: (file to damage, function that damages it, pattern of the message)}.
BAD = {
    "no model": ("model", Path.unlink, r"model\.safetensors"),
    "foreign model": ("model", written(b"to whom it may concern"), ""),
    "no input": ("input", Path.unlink, r"in\.npy"),
    "empty input": ("input", written(b""), NOT_READABLE),
    "a damaged header": ("input", changed(lambda raw: raw.replace(b"(7,", b"((7,")), NOT_READABLE),
    "a header of ten thousand digits": ("input", written(MANY_DIGITS), NOT_READABLE),
    "input cut short": ("input", changed(lambda raw: raw[:-8]), NOT_READABLE),
    "archive as input": ("input", saved(np.savez, np.ones((2, 2, 3))), NOT_READABLE),
    "objects as input": (
        "input", saved(np.save, OBJECTS, allow_pickle=True), NOT_READABLE + ".*allow_pickle",
    ),
    "huge input": ("input", saved(np.lib.format.write_array_header_1_0, HUGE_SHAPE), ""),
    "too many channels": ("input", saved(np.save, np.ones((2, 2, 4))), "x.*4"),
    "lengths as text": ("lengths", written(b"4\n7\n"), r"lengths must be a \.npy file of numbers"),
    "lengths beyond T": ("lengths", saved(np.save, [4, 8]), "lengths.*8"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_run_reports_bad_files_in_one_line_and_keeps_the_output(files, capsys, case):
    folder, _, _ = files
    which, damage, message = BAD[case]
    model, input_file, output = paths(folder)
    lengths = folder / "lengths"
    damage({"model": model, "input": input_file, "lengths": lengths}[which])
    output.write_bytes(b"old")
    before = sorted(folder.iterdir())
    more = ["--lengths", lengths] if which == "lengths" else []
    code, shown, error = run(capsys, "run", model, input_file, output, *more)
    assert (code, shown) == (2, "")
    assert error.startswith("lnrnn run: error: ") and error.count("\n") == 1 and 30 < len(error) < 1000
    assert re.search(message, error), error
    assert output.read_bytes() == b"old" and sorted(folder.iterdir()) == before


def test_run_refuses_sequences_beyond_the_known_steps(files, capsys):
    folder, _, x = files
    model, input_file, output = paths(folder)
    rnn = lnrnn.RNN(3, 5, norm="batch", seed=1)
    rnn.calibrate([x[:6]])
    rnn.save(str(model))
    code, _, error = run(capsys, "run", model, input_file, output)
    assert code == 2 and error.count("\n") == 1 and "6" in error and "7" in error
    assert not output.exists()


@pytest.mark.parametrize("output, message", [
    ("no/out.npy", "error: no such file or directory"), ("folder", "error: is a directory"),
    ("/proc/out.npy", "'/proc/out.npy'"),
])  # fmt: skip
def test_run_checks_the_output_before_it_reads_anything(tmp_path, capsys, output, message):
    (tmp_path / "folder").mkdir()
    code, _, error = run(capsys, "run", tmp_path / "no model", tmp_path / "no input", tmp_path / output)
    assert (code, error.count("\n")) == (2, 1) and message in error and output in error


# --- lnrnn info, demo and others ----------------------------------------------------------------------------


def test_info_prints_facts_about_the_library(capsys):
    code, shown, error = run(capsys, "info")
    facts = dict(line.split(": ", 1) for line in shown.splitlines())
    info = lnrnn.cpu_info()
    assert (code, error) == (0, "")
    assert facts["lnrnn"] == lnrnn.__version__ and facts["numpy"] == np.__version__
    assert facts["isa"] == info["isa"] and facts["available"].split() == list(info["available"])
    assert facts["openmp"] == ("yes" if info["openmp"] else "no") and facts["team"] == info["team"]
    assert facts["num_threads"] == str(lnrnn.get_num_threads())
    assert facts["caches"].split() == [f"{name}={size}" for name, size in info["caches"].items()]


def test_a_report_has_versions_and_machine_but_no_names_or_paths(tmp_path):
    home = tmp_path / "home" / "jane"
    home.mkdir(parents=True)
    free = {
        name: str(home) for name in ("HOME", "TMPDIR", "VIRTUAL_ENV", "LNRNN_REPOSITORY", "OMP_STACKSIZE")
    }
    free |= {name: "jane" for name in ("USER", "LOGNAME", "HOSTNAME", "SECRET")}
    free |= {"LNRNN_ISA": "scalar", "PYTHONPATH": os.pathsep.join([str(home), *sys.path])}
    done = process("-m", "lnrnn", "info", "--report", environment=free, cwd=home)
    assert done.returncode == 0, done.stderr
    facts = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    for package in ("numpy", "torch", "onnxruntime"):
        with suppress(PackageNotFoundError):
            installed = version(package)
            assert facts[package] == installed
    assert facts["variables"] == "LNRNN_ISA=scalar" and facts["isa"] == "scalar"
    assert re.match(r"(gcc|Clang) \d+\.\d", facts["compiler"]) and platform.system() in facts["system"]
    assert facts["gil"] in ("yes", "no") and facts["cpu"]
    assert platform.python_compiler().partition(" (")[0] in facts["interpreter"]
    names = {"jane", str(tmp_path), str(Path.home()), sys.prefix, platform.node(), getpass.getuser()}
    assert not [name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", done.stdout)]
    assert not re.search(r"(^|\s)/\w|\\\\", done.stdout)


def test_a_report_of_a_model_is_refused(capsys):
    assert run(capsys, "info", "--report", "model")[0] == 2


@pytest.mark.parametrize("cell, norm", [("RNN", "layer"), ("LSTM", "batch"), ("GRU", None)])
def test_run_and_info_support_every_cell(tmp_path, capsys, cell, norm):
    pytest.importorskip("safetensors")
    model = getattr(lnrnn, cell)(3, 5, norm=norm, seed=1, batch_first=True).to_dtype("bfloat16")
    x = np.random.default_rng(0).standard_normal((2, 7, 3)).astype(np.float32)
    if norm == "batch":
        model.calibrate([x])
    model.save(tmp_path / "model.safetensors")
    np.save(tmp_path / "in.npy", x)
    assert run(capsys, "run", *paths(tmp_path)) == (0, "", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.npy", "model.safetensors", "out.npy"]
    got = np.load(tmp_path / "out.npy")
    assert got.dtype == np.float32 and np.array_equal(got, model(x)[0])
    code, shown, error = run(capsys, "info", tmp_path / "model.safetensors")
    facts = dict(line.split(": ", 1) for line in shown.splitlines())
    assert (code, error) == (0, "")
    shown = [facts[name] for name in ("cell", "hidden_size", "batch_first", "dtype")]
    assert shown == [cell, "5", "yes", "bfloat16"]
    assert facts["norm"] == str(model.norm) and facts.get("known_steps") == (None if norm != "batch" else "7")
    assert facts["parameters"] == str(sum(v.size for v in model.parameters().values()))
    assert facts["packed_bytes"] == str(model.packed_bytes) != "0"


@pytest.mark.parametrize("error, text", [
    (FileNotFoundError(2, "No such file", "a", None, "b"), "no such file: 'a' -> 'b'"),
    (OSError(5, "I/O error", 3), "I/O error: 3"), (OSError(5, b"abc"), "[Errno 5] b'abc'"),
    (ValueError("a\n  b"), "a b"), (MemoryError(), "MemoryError"),
], ids=str)  # fmt: skip
def test_reasons_of_errors(error, text):
    assert reason(error) == text


@pytest.mark.parametrize("words", [
    "info FILE", "onnx --json FILE", "onnx FILE --input in.npy", "run FILE in.npy out",
    "run model.safetensors FILE out", "run model.safetensors in.npy out --lengths FILE",
    "score FILE in.npy out --column x",
    "score model.safetensors FILE out --column x", "score FILE in.npy out --column x --log json",
])  # fmt: skip
@pytest.mark.parametrize("file, message", [
    ("nothing", "no such file"), ("in.npy/below", "no such file|not a directory"), ("empty", "0 bytes|got "),
    ("folder", "not a regular file|must be a file|is a directory|no files in"),
])  # fmt: skip
def test_a_file_that_cannot_be_read_is_named_without_an_errno(
    files, capsys, monkeypatch, words, file, message
):
    for package in {"o": ["onnx"], "s": ["pyarrow", "tqdm"]}.get(words[0], []):
        pytest.importorskip(package)
    monkeypatch.chdir(files[0])
    Path("folder").mkdir()
    Path("empty").touch()
    code, shown, error = run(capsys, *words.replace("FILE", file).split())
    assert (code, shown, error.count("\n")) == (2, "", 1) and re.search(message, error), error
    assert "Errno" not in error and (file in error or "lengths must be" in error)


def test_the_command_without_arguments_prints_help(capsys):
    code, shown, error = run(capsys)
    assert (code, error) == (0, "") and shown.startswith("usage: lnrnn") and "score" in shown


def test_demo_passes_its_options_to_the_study(capsys, monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(studies, "run", lambda name, words: calls.append((name, words)) or 3)
    monkeypatch.setattr(studies, "run_all", lambda folder, words: calls.append((folder, words)))
    assert run(capsys, "demo", "--full")[0] == 3
    flags = [f"--{flag}" for flag in studies.FLAGS]
    options = ["--seeds", 3, "--output-dir", tmp_path / "a b", "--cell", "gru"]
    assert run(capsys, "demo", "axes", *options, *flags)[0] == 3
    assert calls[0] == ("long-sequences", [])
    assert calls[1] == ("axes", [*flags, "--seeds=3", f"--output-dir={tmp_path / 'a b'}", "--cell=gru"])
    for option in (["--quick"], ["--no-figure"], ["--seeds", 3], ["--output-dir", tmp_path]):
        assert run(capsys, "demo", *option)[0] == 3
    assert [name for name, _ in calls[2:]] == ["long-sequences"] * 4
    assert run(capsys, "demo", "all", "--tune", "--output-dir", tmp_path)[0] == 0
    assert calls[-1] == (tmp_path, ["--tune", f"--output-dir={tmp_path}"])


def test_the_short_demo_is_the_default(capsys, monkeypatch):
    calls = []
    monkeypatch.setattr(demo, "run", lambda *arguments: calls.append(arguments))
    assert run(capsys, "demo")[0] == 0
    assert run(capsys, "demo", "--cell", "gru")[0] == 0
    assert calls == [("rnn",), ("gru",)]


STUDY = """'Title of {name}'
import os, sys
import lnrnn
print("{name}", *sys.argv[1:], os.path.dirname(lnrnn.__file__))
sys.exit({code})
"""


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """Writes invented studies below "a clone", and makes "a clone" the current folder."""
    folder = tmp_path / "a clone" / studies.WHERE
    folder.mkdir(parents=True)
    for name in ("common", "nets", "plots"):
        (folder / f"{name}.py").write_text("")
    for name, code in (("axes", 0), ("batch_size", 1), ("long_sequences", 0), ("pixels", 0)):
        (folder / f"{name}.py").write_text(STUDY.format(name=name, code=code))
    monkeypatch.setattr(studies, "__file__", str(tmp_path / "site" / "lnrnn" / "studies.py"))
    monkeypatch.chdir(tmp_path / "a clone")
    return folder


def test_studies_are_listed_the_default_first(made_up, capsys):
    code, shown, error = run(capsys, "demo", "--list")
    assert (code, error) == (0, "") and max(map(len, shown.splitlines())) <= 80
    names = [line.partition("  ")[0] for line in shown.splitlines()]
    assert names == ["(no name)", "long-sequences", "axes", "batch-size", "pixels", "all"]
    lines = shown.splitlines()
    assert "(default)" in lines[0] and "--full" in lines[1] and "Title of axes" in lines[2]


def test_a_study_is_a_process_with_this_lnrnn(made_up, capfd):
    assert run(capfd, "demo", "axes", "--seeds", 3, "--output-dir", "b c") == (
        0, f"axes --seeds=3 --output-dir=b c {os.path.dirname(lnrnn.__file__)}\n", "",
    )  # fmt: skip
    assert run(capfd, "demo", "batch_size")[0] == 1
    assert run(capfd, "demo", "--full")[1].startswith("long_sequences ")


def test_all_studies_continue_after_one_that_fails_and_print_all_results(made_up, capfd, tmp_path):
    (tmp_path / "out").mkdir()
    row = '["it is so", "+3 [+1, +5] points", "+1", "confirmed", "confirmed"]'
    for name, rows in (("pixels", row), ("long_sequences_gru", row), ("axes", "")):
        (tmp_path / "out" / f"{name}.json").write_text(f'{{"clauses": [{rows}]}}')
    code, shown, error = run(capfd, "demo", "all", "--quick", "--output-dir", tmp_path / "out")
    assert (code, error) == (1, "")
    place = -1
    for number, name in enumerate(("long-sequences", "axes", "batch-size", "pixels"), 1):
        words = f" --quick --output-dir={tmp_path / 'out'} " + "--cell=gru " * (number == 1)
        at = shown.index(f"--- {number} of 4: {name} -")
        assert shown.index(name.replace("-", "_") + words) > at > place
        place = at
    told = "  it is so\n      +3 [+1, +5] points: confirmed\n"
    assert shown.endswith(f"\n\nlong_sequences_gru\n{told}\npixels\n{told}")


@pytest.mark.parametrize("name", ["axes", "all"])
def test_an_interrupted_study_ends_the_command(made_up, name, capfd):
    (made_up / "axes.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    assert run(capfd, "demo", name)[0] == 130
    (made_up / "axes.py").write_text("import sys; sys.exit(130)")
    code, shown, error = run(capfd, "demo", name)
    assert code == 130 and "batch" not in shown and error == "lnrnn demo: interrupted\n"


def test_a_killed_study_is_reported(made_up, capfd):
    (made_up / "axes.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert run(capfd, "demo", "axes")[0] == 137


@pytest.mark.parametrize("name, nearest", [
    ("batch-siz", "batch-size"), ("Axis", "axes"), ("LONG", "long-sequences"), ("al", "all"), ("xyzzy", None),
])  # fmt: skip
def test_an_unknown_study_gets_the_nearest_name(made_up, capsys, name, nearest):
    code, _, error = run(capsys, "demo", name)
    hint = f"; did you mean {nearest}?" if nearest else ""
    names = "long-sequences, axes, batch-size, pixels, all"
    assert (code, error) == (
        2, f"lnrnn demo: error: NAME must be one of {names}, got {name!r}{hint}\n",
    )  # fmt: skip


def test_without_studies_the_error_says_where_they_are(made_up, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    for words in (["axes"], ["all"], ["--full"]):
        code, _, error = run(capsys, "demo", *words)
        assert code == 2 and error.count("\n") == 1 and "examples/studies" in error
    code, shown, _ = run(capsys, "demo", "--list")
    assert code == 0 and "(default)" in shown and "examples/studies" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_studies_next_to_the_package_are_used(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert list(studies.studies())[0] == "long-sequences"
    assert studies.folder() == Path(lnrnn.__file__).parents[1] / "examples" / "studies"


@pytest.mark.parametrize("package", ["tqdm", "pyarrow"])
def test_score_names_all_packages_that_it_needs(capsys, monkeypatch, package):
    pytest.importorskip("pyarrow.parquet")
    monkeypatch.setitem(sys.modules, package, None)
    code, _, error = run(capsys, "score", "none.safetensors", "none.parquet", "out.parquet", "--column", "x")
    assert code == 2 and error.count("\n") == 1
    assert f"lnrnn score needs {package}, of the extra 'score': pip install pyarrow tqdm fsspec, " in error


def test_an_interrupt_is_one_line(capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupt)
    assert run(capsys, "demo") == (130, "", "lnrnn demo: interrupted\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert run(capsys, "demo")[2] == "\nlnrnn demo: interrupted\n"


def test_an_internal_error_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(demo, "run", lambda *_, **__: {}["missing"])
    with pytest.raises(KeyError):
        cli.main(["demo"])


@pytest.mark.parametrize(
    "arguments", [["other"], ["run"], ["demo", "--seeds", "many"], ["demo", "--cell", "RNN"]]
)
def test_bad_usage_is_one_line(capsys, arguments):
    with pytest.raises(SystemExit) as raised:
        cli.main(arguments)
    assert raised.value.code == 2 and "usage: lnrnn" in capsys.readouterr().err


# --- processes ----------------------------------------------------------------------------------------------


def process(*words, **options) -> subprocess.CompletedProcess:
    """Runs Python with these arguments, in the current directory, with this process's sys.path."""
    path = os.pathsep.join([os.getcwd(), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, **options.pop("environment", {})}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(
        [sys.executable, *map(str, words)], text=True, env=environment, check=False, **options
    )


def test_python_m_lnrnn_is_the_command():
    done = process("-m", "lnrnn", "--version")
    assert (done.returncode, done.stdout) == (0, f"lnrnn {lnrnn.__version__}\n")
    done = process("-m", "lnrnn", "info")
    assert done.returncode == 0 and f"isa: {lnrnn.cpu_info()['isa']}\n" in done.stdout


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_without_a_reader_is_no_error(unbuffered):
    """For example `head` may end before the first line is written."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = process("-m", "lnrnn", "info", stdout=writer, environment={"PYTHONUNBUFFERED": unbuffered})
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_output_that_cannot_be_written_is_an_error():
    with open("/dev/full", "w") as full:
        done = process("-m", "lnrnn", "info", stdout=full)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "error: no space left" in done.stderr


def test_a_process_without_stdout():
    """A process that a shell starts with `>&-`, or a service, has no stdout."""
    code = "import sys\nsys.stdout = None\nfrom lnrnn.cli import main\nsys.exit(main(['info']))"
    done = process("-c", code)
    assert (done.returncode, done.stderr) == (0, "")
