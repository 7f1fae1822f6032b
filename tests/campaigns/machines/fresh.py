"""lnrnn in environments that were never used: what somebody does who has just cloned it.

Each is a clone of the last commit in a folder of its own, with a home of its own: no cache, no settings, no
environment variable of this one. There `make demo` and `make test` run, with a selection of the
tests, or with all of them.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outcome import Missing, Wrong, done, needs
from pythons_here import python_of
from source_copy import ROOT

__all__ = ["root_below_0700", "user_on_3_10", "user_on_3_13"]

# What folders, users and Pythons can break: files, processes, the compiler, pages of docs, imports.
TESTS = (
    "tests/files", "tests/cli", "tests/package", "tests/capi",
    "tests/runtime/test_runtime.py", "tests/norm/test_layer_norm.py", "tests/simd/test_vmath.py",
    "tests/rnn/test_forward.py", "tests/rnn/test_stream.py", "tests/rnn/test_bad_calls.py",
    "tests/rnn/test_copies.py", "tests/scoring/test_score.py", "tests/scoring/test_scorer.py",
    "tests/demo/test_short_demo.py", "tests/campaigns/test_campaigns.py",
)  # fmt: skip
KEPT = ("PATH", "LANG", "PIP_", "SSL_", "http_proxy", "https_proxy", "no_proxy")  # of environment variables


def root_below_0700(options: argparse.Namespace) -> str:
    """As root, below a folder that nobody else may enter, as root's home is in most containers."""
    if os.geteuid():
        raise Missing("needs root")
    with room("root", None) as folder:
        return tried(folder, "clone", sys.executable, None, options)


def user_on_3_10(options: argparse.Namespace) -> str:
    """As an ordinary user, in a folder with a space and an umlaut, with Python 3.10."""
    return as_user("3.10", options)


def user_on_3_13(options: argparse.Namespace) -> str:
    """As above, with Python 3.13."""
    return as_user("3.13", options)


def as_user(version: str, options: argparse.Namespace) -> str:
    python = python_of(version)
    if not python:
        raise Missing(f"needs Python {version}")
    user = "nobody" if os.geteuid() == 0 else None
    with room(f"python{version}", user) as folder:
        return tried(folder, "mein Büro/lnrnn", readable(python, folder, user), user, options)


@contextmanager
def room(name: str, user: str | None) -> Iterator[Path]:
    """A folder of mode 0700 that belongs to the user; it is removed in the end."""
    with tempfile.TemporaryDirectory(prefix=f"lnrnn-{name}-") as folder:
        if user:
            os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        yield Path(folder)


def identity(user: str | None) -> dict[str, object]:
    """Options of subprocess.run, to run as that user; None: as this one."""
    return {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def readable(python: str, folder: Path, user: str | None) -> str:
    """That Python, if the user can run it: else a copy in the folder, as of one below root's home."""
    try:
        subprocess.run([python, "-c", ""], check=True, capture_output=True, **identity(user))
        return python
    except (OSError, subprocess.CalledProcessError):
        prefix = Path(done([python, "-c", "import sys; print(sys.base_prefix)"]).strip())
        ignored = shutil.ignore_patterns("test", "__pycache__", "*.a")
        shutil.copytree(prefix, folder / "python", symlinks=True, ignore=ignored)
        return str(folder / "python/bin" / Path(python).resolve().name)


def tried(folder: Path, name: str, python: str, user: str | None, options: argparse.Namespace) -> str:
    """Clones into folder/name, runs `make demo` and `make test` there. -> what came out."""
    needs("git", "make")
    clone, home = folder / name, folder / "home"
    home.mkdir()
    clone.parent.mkdir(exist_ok=True)
    done(["git", "clone", "--quiet", str(ROOT), str(clone)])
    if user:
        for path in (home, clone.parent, clone, *clone.rglob("*")):
            os.chown(path, *pwd.getpwnam(user)[2:4], follow_symlinks=False)
    kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    free = {**kept, "HOME": str(home), "USER": user or pwd.getpwuid(os.geteuid()).pw_name}
    if Path(python).is_relative_to(folder):  # a copy, which may look for its library where it was installed
        free["LD_LIBRARY_PATH"] = str(Path(python).parents[1] / "lib")

    def make(*words: str) -> str:
        try:
            return done(["make", f"PYTHON={python}", *words], cwd=clone, env=free, **identity(user))
        except Wrong as wrong:
            raise Wrong(f"in {clone}, Python {python}: {wrong}") from None

    make("demo")
    said = make("test", *([] if options.whole else [f"ARGS={' '.join(TESTS)}"])).splitlines()[-1]
    known = done([str(clone / ".venv/bin/lnrnn"), "info"], env=free, **identity(user))
    size = done(["du", "-sm", str(clone / ".venv")]).split()[0]
    left = done(["git", "status", "--short"], cwd=clone, env=free, **identity(user)).strip()
    if left:
        raise Wrong(f"the clone is changed afterwards:\n{left}")
    version = re.search(r"^python: (.*)$", known, re.M)[1]
    return f"{free['USER']}, Python {version}, {name}: demo; tests: {said}; .venv has {size} MB"
