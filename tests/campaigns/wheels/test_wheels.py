"""Tests that archives have the same bytes wherever they are built, and the metadata of wheels."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import lnrnn

pytest.importorskip("Cython")
pytest.importorskip("setuptools")
sys.path.insert(0, str(Path(__file__).parent))

import checks  # noqa: E402
import run_wheels  # noqa: E402
import targets  # noqa: E402
import twice  # noqa: E402

from outcome import Wrong  # noqa: E402
from source_copy import copy_sources  # noqa: E402


@pytest.fixture(autouse=True)
def date(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


def wheel(folder: Path, prepare) -> Path:
    """Builds a wheel with the libraries of the installed package."""
    copy_sources(folder)
    prepare(folder)
    run = [sys.executable, "setup.py", "-q"]
    subprocess.run([*run, "build_py"], cwd=folder, check=True)
    (package,) = folder.glob("build/lib*/lnrnn")
    for path in Path(lnrnn.__file__).parent.rglob("*.so*"):
        shutil.copy(path, package / path.relative_to(Path(lnrnn.__file__).parent))
    subprocess.run([*run, "bdist_wheel", "--skip-build"], cwd=folder, check=True)
    (found,) = (folder / "dist").glob("*.whl")
    return found


@pytest.mark.parametrize("build", [run_wheels.sdist, wheel], ids=["sdist", "wheel"])
def test_two_builds_have_the_same_bytes(tmp_path, build):
    assert len(twice.equal(build, tmp_path)) == 64


def test_a_difference_is_named(tmp_path, monkeypatch):
    def dated(folder, prepare):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000" if folder.name == "first" else "1700000002")
        return run_wheels.sdist(folder, prepare)

    with pytest.raises(Wrong, match=r"these members differ: lnrnn-.*/CHANGELOG\.md"):
        twice.equal(dated, tmp_path)


def test_a_wheel_has_licences_and_a_bill_of_materials(tmp_path):
    built = wheel(tmp_path / "sources", lambda _: None)
    checks.check_metadata(built)
    for removed, message in {
        "licenses/LICENSE": "lacks the text of LICENSE",
        "lnrnn/torch/layouts": "the bill of materials lists",
    }.items():
        other = tmp_path / built.name
        with ZipFile(built) as source, ZipFile(other, "w") as target:
            for name in source.namelist():
                if removed not in name:
                    target.writestr(name, source.read(name))
        with pytest.raises(Wrong, match=message):
            checks.check_metadata(other)


@pytest.mark.parametrize("flags", ["", "t"])
def test_a_wheel_for_windows_names_the_dll_of_its_python(tmp_path, monkeypatch, flags):
    """t: the build without global lock, whose headers need a macro. No command runs."""
    headers, folder = tmp_path / "headers", tmp_path / "windows"
    headers.mkdir()

    def done(command):
        if command[1:3] == ["-c", targets.ASKED]:
            return f"{headers}\npython\n3\n13\n{flags}\n"
        if "download" in command:
            ZipFile(folder / "numpy-2-any.whl", "w").close()
        return "00 T PyList_New\n01 T main\n" if command[0] == "nm" else ""

    monkeypatch.setattr(targets, "done", done)
    _, library = targets.for_windows(targets.TARGETS["win-amd64"], "python", folder)
    assert library == [f"-L{folder}", f"-lpython313{flags}"]
    text = (folder / f"python313{flags}.def").read_text()
    assert text == f"LIBRARY python313{flags}.dll\nEXPORTS\nPyList_New\n"
    assert ("#define Py_GIL_DISABLED 1\n" in (folder / "python/pyconfig.h").read_text()) == bool(flags)
