"""Tests the shared code of the studies: intervals, verdicts, and runs that lose no results."""

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace

import common
import numpy as np
import pytest
from common import Check, Clause, Study, interval
from plots import label_places

import lnrnn
from lnrnn.files import replacing


def test_the_interval_of_five_differences():
    half = 2.776445 * math.sqrt(2.5 / 5)
    assert interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0])) == pytest.approx((3 - half, 3 + half), rel=1e-6)
    assert interval(np.full(3, 0.5)) == (0.5, 0.5)
    assert interval(np.array([0.3])) == (-np.inf, np.inf)
    # 5.5976 is the 0.9975 quantile of Student's t with four degrees of freedom: 0.025 is divided by ten, by
    # Bonferroni's correction.
    half = 5.59757 * math.sqrt(2.5 / 5)
    assert interval(np.arange(1.0, 6.0), 10) == pytest.approx((3 - half, 3 + half), rel=1e-5)


def test_means_are_printed_with_their_intervals_and_deviations():
    values = np.array([0.01, 0.02, 0.06])  # half of the interval: 4.3027 * 0.026458 / sqrt(3) = 0.0657
    assert common.points(values) == "+3.0 [-3.6, +9.6]" and common.percent(values) == "3.0±2.6"
    assert common.with_interval(np.log([2.0, 2, 2]), style=".2f", of=np.exp) == "2.00 [2.00, 2.00]"


NARROW = 0.03 + 0.001 * np.array([-1.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("values", "margin", "verdict", "at_zero"),
    [
        (NARROW, 0.02, "confirmed", "confirmed"),
        (NARROW, 0.04, "refuted", "confirmed"),
        (-NARROW, -0.04, "confirmed", "refuted"),
        (NARROW, 0.031, "unclear", "confirmed"),
        (np.full(3, 0.5), 0.5, "unclear", "confirmed"),  # a value on the margin is not above it
        (np.zeros(3), 0.0, "unclear", "unclear"),
        (np.array([0.5]), 0.1, "unclear", "unclear"),
        (np.array([0.5, np.nan]), 0.1, "unclear", "unclear"),
        (np.full(20, np.nan), -1, "unclear", "unclear"),
    ],
)
def test_a_verdict_follows_the_interval(values, margin, verdict, at_zero):
    clause = Clause("it is so", values, margin)
    assert (clause.verdict(), clause.verdict(0.0)) == (verdict, at_zero)
    assert clause.row()[0] == "it is so" and clause.row()[3:] == [verdict, at_zero]


class Counted:
    """A study without measurements that counts calls of tune and measure."""

    def __init__(self):
        self.tuned, self.measured, cells = [], [], ("rnn", "gru")
        parts = self.measure, self.clauses, self.tables, self.draw, self.tune
        self.study = Study("made_up", *parts, options=cells)

    def tune(self, seeds, quick, option):
        self.tuned.append((list(seeds), option))
        return {"rate": 0.1}

    def measure(self, seeds, settings, quick, option):
        self.measured.append((list(seeds), settings, quick, option, lnrnn.get_num_threads()))
        return {"share": {"LN": np.array(seeds) / 3}, "steps": np.arange(3), "note": "a", "none": [None]}

    def clauses(self, results):
        return [Clause("it is large " * 6, results["share"]["LN"], 0.0), Check("of course", True)]

    def tables(self, results):
        yield f"the shares are {results['share']['LN'].mean():.1f}"

    def draw(self, results, figure):
        figure.subplots().plot(results["share"]["LN"])

    def run(self, *words):
        try:
            self.study.main([*words, "--no-figure"] if "--figure" not in words else words[1:])
        except SystemExit as ended:
            return ended.code
        return 0


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """Returns a Counted in an empty folder, without kept results."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(common, "FOLDER", tmp_path / "studies")
    monkeypatch.setattr(common, "in_page", lambda: False)
    return Counted()


def kept(path="made_up.json"):
    with open(path) as file:
        return json.load(file)


def test_a_run_tunes_measures_and_keeps_the_results(counted, capsys):
    threads = lnrnn.get_num_threads()
    assert counted.run("--figure", "--output-dir", "a b/c") == 0 and lnrnn.get_num_threads() == threads
    assert counted.tuned == [(list(range(5)), "rnn")]
    assert counted.measured == [(list(range(5, 25)), {"rate": 0.1}, False, "rnn", 1)]
    found = kept("a b/c/made_up.json")
    assert (found["lnrnn"], found["isa"]) == (lnrnn.__version__, lnrnn.cpu_info()["isa"])
    assert found["seeds"] == list(range(5, 25)) and found["settings"] == {"rate": 0.1}
    assert [row[3] for row in found["clauses"]] == ["confirmed", "holds"]
    np.testing.assert_allclose(found["results"]["share"]["LN"], np.arange(5, 25) / 3, rtol=1e-6)
    with open("a b/c/made_up.png", "rb") as file:
        assert file.read(4) == b"\x89PNG"
    told = capsys.readouterr().out
    assert "confirmed" in told and "Figure: " in told
    assert sorted(os.listdir("a b/c")) == ["made_up.json", "made_up.png"]


def test_kept_results_equal_the_measured_ones(counted, tmp_path, monkeypatch, capsys):
    assert counted.run("--output-dir", "studies/results", "--cell", "gru") == 0
    found = counted.study.results("gru")
    assert (found["share"]["LN"] == np.float64([f"{n / 3:.7g}" for n in range(5, 25)])).all()
    assert found["steps"].tolist() == [0, 1, 2] and found["note"] == "a" and found["none"] == [None]
    again = common.as_arrays(json.loads(json.dumps(common.as_lists(found))))
    np.testing.assert_array_equal(again["share"]["LN"], found["share"]["LN"])
    # Now the study has kept settings for this cell, so it only tunes if --tune is given.
    capsys.readouterr()
    assert counted.run("--cell", "gru", "--seeds", "3") == 0
    assert len(counted.tuned) == 1 and counted.measured[-1][0] == [5, 6, 7]
    assert counted.run("--cell", "gru", "--tune", "--quick") == 0
    assert len(counted.tuned) == 2 and counted.measured[-1][2]
    assert "confirmed" not in capsys.readouterr().out.rpartition("Took")[0].rpartition("Took")[2]
    assert counted.run("--cell", "gru", "--kept") == 0 and len(counted.measured) == 3
    file = tmp_path / "studies/results/made_up_gru.json"
    file.write_text(file.read_text().replace(lnrnn.__version__, "0.0.9"))
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "tqdm", None)  # printing needs no package of a run
    assert counted.run("--cell", "gru", "--kept") == 0
    assert f"measured with lnrnn 0.0.9; this is {lnrnn.__version__}." in capsys.readouterr().out


def test_times_alone_are_measured_again(counted):
    counted.study = replace(counted.study, times=lambda quick: {"step": [1.0 + len(counted.measured), 2.0]})
    assert counted.run("--output-dir", "studies/results") == 0
    before = kept("studies/results/made_up.json")
    counted.measured.append("other")
    assert counted.run("--times") == 0 and len(counted.measured) == 2
    after = kept()
    assert [each["results"].pop("times")["step"] for each in (before, after)] == [[2, 2], [3, 2]]
    assert before == after and [row[3] for row in after["clauses"]] == ["confirmed", "holds"]
    for words in ("--quick", "--seeds=3", "--tune", "--kept"):
        assert counted.run("--times", words) == 2


def test_missing_results_are_named(counted, capsys):
    assert counted.run("--kept") == 2
    assert capsys.readouterr().err == ("made_up.py: error: results/made_up.json is missing: run made_up.py\n")


def test_without_matplotlib_the_results_are_kept_and_printed(counted, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert counted.run("--figure") == 2
    told, error = capsys.readouterr()
    assert "the shares are" in told and kept()["seeds"][0] == 5
    assert error.count("\n") == 1 and "pip install matplotlib" in error and "--no-figure" in error


@pytest.mark.parametrize("package", ["tqdm", "scipy.stats"])
def test_a_missing_package_is_named_before_anything_is_measured(counted, monkeypatch, capsys, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert counted.run() == 2 and not counted.measured and not counted.tuned
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and package in error and "pip install" in error and "scipy" in error


def test_a_full_disk_loses_nothing_that_was_measured(counted, monkeypatch, capsys):
    def full(path):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(common, "replacing", full)
    assert counted.run() == 2
    told, error = capsys.readouterr()
    assert "the shares are" in told and "confirmed" in told
    assert error.count("\n") == 1 and "no space left on device" in error and "made_up.json" in error
    calls = iter([replacing, full])  # no space left for the figure
    monkeypatch.setattr(common, "replacing", lambda path: next(calls)(path))
    assert counted.run("--figure") == 2
    assert kept()["seeds"][0] == 5 and "made_up.png" in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_an_error_before_the_measurement(counted, capsys):
    os.mkdir("made_up.json")
    open("file", "w").close()
    folders = {"file": "file", "file/below": "below", "/proc": "/proc", ".": "made_up.json"}
    for folder, name in folders.items():
        assert counted.run("--output-dir", folder) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and name in error
    assert not counted.measured


BAD = (
    "--seeds 0",
    "--seeds x",
    "--cell lstm",
    "--fast",
    "--kept --quick",
    "--kept --tune",
    "--kept --seeds 3",
    "--times",
)


@pytest.mark.parametrize("words", BAD)
def test_bad_arguments_are_refused(counted, words, capsys):
    assert counted.run(*words.split()) == 2 and not counted.measured
    error = "--kept measures nothing" if "--kept" in words else "made_up.py: error: "
    assert error in capsys.readouterr().err


def test_ctrl_c_ends_at_once_without_a_traceback(tmp_path):
    (tmp_path / "scripted.py").write_text(
        "import time\nfrom common import Study\n"
        "def measure(*_):\n    print('measuring', flush=True)\n    time.sleep(60)\n"
        "Study('scripted', measure, None, None, None).main(['--no-figure'])\n"
    )
    path = os.pathsep.join([common.__file__.rpartition(os.sep)[0], lnrnn.__file__.rpartition("lnrnn")[0]])
    process = subprocess.Popen(
        [sys.executable, "scripted.py"], cwd=tmp_path, text=True, env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout.readline() == "measuring\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=20)
    assert (process.returncode, error) == (130, "scripted.py: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["scripted.py"]


def test_results_are_in_order_and_the_first_of_equal_settings_is_best():
    assert common.side_by_side(lambda n: n**2, range(20), "squares") == [n**2 for n in range(20)]
    assert common.best(("a", "b", "c"), [0.1, 0.3, 0.3]) == "b"
    found = common.by_seed(lambda part, seed: {"sum": part + seed, "own": [seed]}, [10, 20], [1, 2, 3])
    assert found[10]["sum"].tolist() == [11, 12, 13] and found[20]["own"].tolist() == [[1], [2], [3]]
    # Over both seeds 5 is best, though 9 is best for seed 1.
    score = lambda part, setting, seed: {5: 0.6, 9: 0.7 if seed == 1 else 0.2}.get(setting, part == "b")  # noqa: E731
    assert common.tuned({"a": [5, 9], "b": [5, 1, 9]}, score, [0, 1]) == {"a": 5, "b": 1}


def test_labels_of_lines_do_not_overlap():
    assert label_places([80, 79, 12, 80], 6) == pytest.approx([79 + 2 / 3, 73 + 2 / 3, 12, 85 + 2 / 3])
    assert label_places([20, 10], 6) == [20, 10]
