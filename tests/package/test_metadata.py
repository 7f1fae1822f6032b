"""Tests the metadata for a package index: README.md, and the addresses of the public repository, if any."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from email import message_from_string

import pytest

from lnrnn import packages
from source_copy import ROOT

ADDRESS = "https://example.org/somebody/lnrnn"


# Runs setup.py without compilation.
SETUP = """
import sys, Cython.Build
Cython.Build.cythonize = lambda *_, **__: []
sys.argv = ["setup.py", "-q", "egg_info", "--egg-base", sys.argv[1]]
exec(compile(open("setup.py").read(), "setup.py", "exec"))
"""


def metadata(into, **environment):
    command = [sys.executable, "-c", SETUP, str(into)]
    free = {name: value for name, value in os.environ.items() if name != "LNRNN_REPOSITORY"}
    ran = subprocess.run(command, cwd=ROOT, env={**free, **environment}, capture_output=True, text=True)
    if ran.returncode:
        return ran.stderr
    return message_from_string((into / "lnrnn.egg-info/PKG-INFO").read_text())


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Returns the metadata of a package without a public repository."""
    return metadata(tmp_path_factory.mktemp("plain"))


def test_links_and_pictures_lead_to_the_repository(tmp_path):
    result = metadata(tmp_path, LNRNN_REPOSITORY=ADDRESS + "/")
    assert dict(line.split(", ") for line in result.get_all("Project-URL")) == {
        "Source": ADDRESS,
        "Documentation": f"{ADDRESS}/blob/main/docs/index.md",
        "Changelog": f"{ADDRESS}/blob/main/CHANGELOG.md",
        "Issues": f"{ADDRESS}/issues",
    }
    text = result.get_payload()
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", text)
    assert len(links) > 10 and all(to.startswith(f"{ADDRESS}/") for _, to in links)
    kinds = {(picture, to[len(ADDRESS) :].split("/")[1]) for picture, to in links}
    assert kinds == {("!", "raw"), ("", "blob")}
    version = result["Version"]
    here = [to.partition(f"/v{version}/")[2].partition("#")[0] for _, to in links]
    assert all((ROOT / path).is_file() for path in here)


def test_without_an_address_readme_is_unchanged(plain):
    assert not plain.get_all("Project-URL")
    assert plain.get_payload().strip() == (ROOT / "README.md").read_text().strip()


def test_messages_name_the_packages_of_an_extra(plain):
    required = plain.get_all("Requires-Dist")
    for extra, words in packages.EXTRAS.items():
        names = [re.match(r"[\w.\[\],-]+", line)[0] for line in required if f'extra == "{extra}"' in line]
        assert sorted(names) == sorted(shlex.split(words)), extra


def test_a_wrong_address_is_refused(tmp_path):
    said = metadata(tmp_path, LNRNN_REPOSITORY="github.com/somebody/lnrnn")
    assert "LNRNN_REPOSITORY must begin with https://, got 'github.com/somebody/lnrnn'" in said


# Links for Windows with a linker that writes an import library of each module, and prints those that remain.
LINKED = """
import sys, Cython.Build, setuptools
from pathlib import Path
from setuptools.command.build_ext import build_ext
Cython.Build.cythonize = lambda *_, **__: []
given, here = {}, Path(sys.argv[1])
setuptools.setup = lambda **words: given.update(words)
def link(self):
    for name in "_core-cpython torch/layouts liblnrnn_ort liblnrnn.4".split():
        path = here / f"lnrnn/{name}.lib"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
build_ext.build_extensions = link
(here / "their.lib").touch()
exec(compile(open("setup.py").read(), "setup.py", "exec"))
command = given["cmdclass"]["build_ext"](setuptools.Distribution())
command.plat_name, command.build_lib, command.extensions = "win-amd64", str(here), given["ext_modules"]
command.build_extensions()
print(*sorted(path.relative_to(here).as_posix() for path in here.rglob("*.lib")))
"""


def test_only_import_libraries_of_the_build_are_removed(tmp_path):
    command = [sys.executable, "-c", LINKED, str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "lnrnn/liblnrnn.4.lib their.lib\n"
