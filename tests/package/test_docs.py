"""Tests README.md and docs/: a block of code runs or has a reason why not, and links have targets."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import lnrnn
import pages
from lnrnn import cli
from lnrnn.rnn.cells import CELLS
from pages import ROOT

LANGUAGES = ("python", "console", "text")
RUN = [page for page in pages.PAGES if any(b.language in LANGUAGES[:2] for b in pages.blocks(page))]


def shown(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", RUN, ids=shown)
def test_the_code_of_a_page_runs_and_prints_its_output(page, tmp_path):
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    strict = ["-W", "error::RuntimeWarning", "-W", "error::UserWarning"]
    result = subprocess.run(
        [sys.executable, *strict, pages.__file__, str(page)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    if result.stdout:
        pytest.skip(result.stdout)


@pytest.mark.parametrize("page", pages.PAGES, ids=shown)
def test_blocks_that_are_not_run_have_a_reason(page):
    for block in pages.blocks(page):
        where = f"{shown(page)}:{block.line}"
        if test := block.marks.get("tested by"):
            assert page.name in (ROOT / test).read_text(), f"{where}: {test} does not name the page"
            continue
        assert block.language in LANGUAGES or len(block.marks.get("not run", "")) > 8, (
            f"{where}: a block of {block.language or 'no language'} needs <!-- not run: why --> above it"
        )
        if block.language == "python":
            compile(block.text, where, "exec")
        if block.language == "console":
            for command, _ in pages.commands(block):
                check_command(shlex.split(command, comments=True), where)
    prose = re.sub(r"(?s)```.*?\n```", "", page.read_text())
    indented = re.search(r"(?:\A|\n\n)    (?!- |\d\. ).*", prose)
    assert not indented, f"{shown(page)}: a block without a fence: {indented and indented[0]}"


def check_command(words, where):
    """Asserts that the arguments of lnrnn, the targets of make, or the file for Python exist."""
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if words[0].endswith("lnrnn"):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                cli.build_parser().parse_args(words[1:])
            except SystemExit as end:
                assert end.code == 0, f"{where}: {said.getvalue()}"
    elif words[0] == "make":
        for target in (word for word in words[1:] if "=" not in word):
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), f"{where}: make {target}"
    elif words[0].endswith("python") and not words[1].startswith("-"):
        assert (ROOT / words[1]).is_file(), f"{where}: {words[1]}"


@pytest.mark.parametrize("page", pages.PAGES, ids=shown)
def test_relative_links_lead_to_existing_files(page):
    text = re.sub(r"(?s)```.*?\n```|`[^`\n]+`", "", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http:", "https:", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), f"{shown(page)}: {target}"


def test_every_page_is_in_the_site():
    """Every page of docs/ is in a list of docs/index.md. `make docs` checks this for all folders."""
    index = (ROOT / "docs" / "index.md").read_text().splitlines()
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= {"index", *index}


WRONG = {
    "print(1 + 1)  # 3": "the page says",
    "print(1)": "the page says",
    "1 / 0": "division by zero",
    "raise SystemExit(0)": "a block ends the program",
    "console:$ lnrnn info --nothing": "--nothing",
    "console:$ lnrnn --version\nlnrnn 99": "lnrnn --version",
    "console:$ rm -r /": "give a reason why rm is not run",
}


@pytest.mark.parametrize("code", WRONG)
def test_a_page_that_is_wrong_fails(code, tmp_path):
    language = "console" if code.startswith("console:") else "python"
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n```{language}\n{code.removeprefix('console:')}\n```\n")
    with pytest.raises(BaseException, match=WRONG[code]), contextlib.redirect_stderr(io.StringIO()):
        pages.main(page)
    page.write_text(page.read_text().replace("```", "<!-- not run: it is wrong -->\n```", 1))
    assert pages.run(page) == ""


def test_a_page_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("page.md").write_text("# Title\n\n```python\nopen('model.pt', 'w').close()\n```\n")
    pages.main(Path("page.md").resolve())
    assert [*tmp_path.iterdir()] == [tmp_path / "page.md"]


def test_benchmark_records_are_shown_and_complete(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import result_tables

    record = result_tables.record
    texts = [page.read_text() for page in pages.PAGES]
    assert [*map(result_tables.updated, texts)] == texts, "run docs/result_tables.py"
    shown = {found[1] for text in texts for found in result_tables.TABLE.finditer(text)}
    cited = {found[1] for text in texts for found in result_tables.NUMBER.finditer(text)}
    names = (shown | cited) - {"campaigns", "long_sequences"}
    assert names == {path.stem for path in record.RESULTS.glob("*.json")}
    for name in names:
        one = record.load(name)
        assert one["machine"] and re.fullmatch(r"\d{4}-\d\d-\d\d", one["date"]), name
        assert all(len(row) == len(one["columns"]) for row in one.get("rows", [])), name
        assert all(cells and len(cells[0]) > 1 for _, cells, _ in record.contents(one)), name
    bars = record.bars(record.load("recurrent_zen5"))
    by_hand = (21.8 / 2.49 * 104 / 45.5 * 142 / 40.5) ** (1 / 3)
    assert bars["LN-LSTM, whole sequences"]["torch.jit"] == pytest.approx(by_hand)
    assert all("torch" in bars for bars in record.bars(record.load(result_tables.README)).values())


def test_a_table_whose_rows_are_all_disturbed_has_no_mean(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import result_tables

    races = result_tables.record.load("recurrent_zen5")["races"][:2]
    (table,) = result_tables.record.tables([race | {"others": 0.5} for race in races])
    assert "geometric mean: none, because other" in "\n".join(table.text())
    (table,) = result_tables.record.tables([races[0] | {"others": 0.5}, races[1]])
    assert "geometric mean: vs onnxruntime" in "\n".join(table.text())


def test_no_two_pages_write_the_same_file():
    """A reader may run several pages in one folder."""
    writes = re.compile(r"""(?:save\w*|to_onnx|write_table)\((?:[^\n"]+, )?"([^"]+)\"""")
    names = [name for page in pages.PAGES for name in {*writes.findall(page.read_text())}]
    assert len(names) == len({*names}) > 9


def test_the_pages_have_at_most_22000_words():
    text = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    text = re.sub(r"(?s)<!-- table.*?<!-- end -->", "", text)  # omits tables of results
    assert len(text.split()) <= 22_000


def test_every_environment_variable_is_documented():
    page = (ROOT / "docs" / "api" / "environment.md").read_text()
    sources = [path for path in (ROOT / "pyx").rglob("*.*") if path.suffix in (".py", ".c", ".h")]
    sources += (ROOT / "lnrnn").rglob("*.py")
    read = set()
    for path in sources:
        if path.name != "_core.c":
            text = path.read_text()
            read |= set(re.findall(r"(?:environ\.get|getenv|_choose)\(\s*\"([A-Z_]+)\"", text))
            read |= set(re.findall(r"environ\[\"([A-Z_]+)\"\]", text))
    assert {"LNRNN_ISA", "LNRNN_TEAM", "LNRNN_NUM_THREADS", "LNRNN_OPENMP", "OMP_NUM_THREADS"} <= read
    assert {name for name in read if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("module", ["", "data", "onnx", "onnxruntime", "reference", "sessions", "torch"])
def test_every_public_name_has_an_entry_in_the_api_pages(module):
    """Members of a class are in the list below its entry, or its docstring describes them."""
    if module in ("onnx", "torch"):
        pytest.importorskip({"onnx": "onnx_ir"}.get(module, module))
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    entries = dict(re.findall(r"^\.\. auto\w+:: lnrnn\.(\S+)\n((?: .*\n)*)", pages, re.M))
    where = importlib.import_module(f"lnrnn.{module}".rstrip("."))
    for name in where.__all__:
        entry = "CELL" if name in CELLS else name  # docs/conf.py lists the cells
        places = (f"{module}.{entry}".lstrip("."), entry, module)
        options = next((entries[place] for place in places if place in entries), None)
        assert options is not None, name
        cls = getattr(where, name)
        if not inspect.isclass(cls) or issubclass(cls, Exception) or hasattr(cls, "register_buffer"):
            continue  # torch.nn.Module has more members than these pages
        own = (c for c in cls.__mro__ if c.__module__.startswith("lnrnn") and c.__name__ != "Counts")
        members = {m for c in own for m in vars(c) if m[0] != "_"}
        told = " ".join(
            [options, entries["Network"], lnrnn.LSTM.__doc__, *(inspect.getdoc(c) or "" for c in cls.__mro__)]
        )
        assert {m for m in members if not re.search(rf"\b{m}\b", told)} == set(), name


def test_the_citation_has_this_version():
    page = (ROOT / "docs" / "platforms.md").read_text()
    assert f"version = {{{lnrnn.__version__}}}" in page
    assert f"version: {lnrnn.__version__}\n" in (ROOT / "CITATION.cff").read_text()
