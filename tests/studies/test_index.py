"""The index of the studies has the verdicts of the kept results, and README's first screen the numbers."""

import json
import re

import characters
import long_sequences
import numpy as np
import pytest
from common import FOLDER

CLAIMS = (FOLDER / "README.rst").read_text("utf-8").partition("Two claims that")[0]
ROWS = [row.split(" | ") for row in re.findall(r"^    (.*\|.*)$", CLAIMS, re.MULTILINE)[2:]]
NUMBER = r"[-+]?\d+(?:\.\d+)?"


def kept_intervals(pages):
    """Returns (low, high, the verdicts at the margin and at 0) of every clause of these pages."""
    for path in (path for page in pages for path in (FOLDER / "results").glob(f"{page}*.json")):
        for _, number, _, *verdicts in json.loads(path.read_text("utf-8"))["clauses"]:
            if ends := re.search(r"\[(.*), (.*)\]", number):
                low, high = map(float, ends.groups())
                yield from ((low, high, verdicts), (-high, -low, verdicts))


@pytest.mark.parametrize("row", [row for row in ROWS if "[" in row[2]], ids=lambda row: row[0][:40])
def test_verdicts_of_intervals_are_in_the_index(row):
    _, verdict, numbers, pages = row[0], row[1], row[2], row[-1]
    kept = list(kept_intervals(re.findall(r"<(\w+)\.py>", pages)))
    for texts in re.findall(rf"\[({NUMBER}), ({NUMBER})\]", numbers):
        # Both intervals are rounded: in the index to the digits that it shows, in the kept results to three.
        apart = [
            0.5 * 10.0 ** -len(text.partition(".")[2]) + 0.005 * abs(float(text)) + 1e-9 for text in texts
        ]
        found = [
            verdicts for *ends, verdicts in kept
            if all(abs(float(t) - e) <= a for t, e, a in zip(texts, ends, apart, strict=True))
        ]  # fmt: skip
        said = set(re.findall(r"\w+", verdict))
        assert any(said & set(verdicts) for verdicts in found), (texts, found)


def test_the_first_screen_has_the_kept_numbers():
    text = " ".join((FOLDER.parents[1] / "README.md").read_text("utf-8").split())
    demo = long_sequences.STUDY.results("rnn")["demo"]
    shares = {name: [f"{100 * s:.0f}" for s in share.mean(axis=0)[[0, -1]]] for name, share in demo.items()}
    assert "falls from {} to {} % if batch norm repeats its last step".format(*shares["last"]) in text
    assert f"Layer norm stays at {shares['layer norm'][1]} %. So does a plain RNN on this data" in text
    assert shares["layer norm"] == 2 * [shares["no norm"][1]]
    results = characters.STUDY.results()
    fewer = 100 * characters.saved(results, "lstm").mean()
    better = np.subtract(*(results["within"]["lstm"][norm].mean() for norm in ("no norm", "LN")))
    assert f"{fewer:.0f} % fewer updates, and ends {better:.2f} bits better" in text
