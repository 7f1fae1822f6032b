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
