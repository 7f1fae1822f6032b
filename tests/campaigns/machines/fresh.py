"""Runs `make demo` and `make test` in a new clone of the last commit.

The clone is in a temporary folder with its own home directory, so it has no caches, settings and environment
variables of this process.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outcome import Missing, Wrong, done, needs
from pythons_here import python_of
from source_copy import ROOT

# Prefixes of the environment variables that the clone gets.
KEPT = ("PATH", "LANG", "PIP_", "SSL_", "http_proxy", "https_proxy", "no_proxy")


def as_root(options: argparse.Namespace) -> dict[str, object]:
    """Clones as root, into a folder that other users may not enter, like root's home in most containers.

    SIGINT is ignored, as in a job in the background.
    """
    if os.geteuid():
        raise Missing("needs root")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with folder_of("root", None) as folder:
        return make_clone(folder, "clone", sys.executable, None, options)


def as_user(version: str, options: argparse.Namespace) -> dict[str, object]:
    """Clones as an ordinary user with this Python, into a folder with a space and an umlaut."""
    python = python_of(version)
    if not python:
        raise Missing(f"needs Python {version}")
    user = "nobody" if os.geteuid() == 0 else None
    with folder_of(f"python{version}", user) as folder:
        return make_clone(folder, "mein Büro/lnrnn", readable(python, folder, user), user, options)


@contextmanager
def folder_of(name: str, user: str | None) -> Iterator[Path]:
    """Creates a temporary folder of mode 0700 that belongs to the user."""
    with tempfile.TemporaryDirectory(prefix=f"lnrnn-{name}-") as folder:
        if user:
            os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        yield Path(folder)


def identity(user: str | None) -> dict[str, object]:
    """Returns options of subprocess.run that run as this user. None: the current user."""
    return {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def readable(python: str, folder: Path, user: str | None) -> str:
    """Returns this Python if the user can run it, or a copy in the folder if it is in root's home."""
    try:
        subprocess.run([python, "-c", ""], check=True, capture_output=True, **identity(user))
        return python
    except (OSError, subprocess.CalledProcessError):
        prefix = Path(done([python, "-c", "import sys; print(sys.base_prefix)"]).strip())
        ignored = shutil.ignore_patterns("test", "__pycache__", "*.a")
        shutil.copytree(prefix, folder / "python", symlinks=True, ignore=ignored)
        return str(folder / "python/bin" / Path(python).resolve().name)


def make_clone(
    folder: Path, name: str, python: str, user: str | None, options: argparse.Namespace
) -> dict[str, object]:
    """Clones into folder/name, and runs `make demo` and `make test` there. Returns their times and sizes."""
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
    if Path(python).is_relative_to(folder):  # a copy may look for its library where it was installed
        free["LD_LIBRARY_PATH"] = str(Path(python).parents[1] / "lib")

    def make(*words: str) -> str:
        try:
            return done(["make", f"PYTHON={python}", *words], cwd=clone, env=free, **identity(user))
        except Wrong as wrong:
            raise Wrong(f"in {clone}, Python {python}: {wrong}") from None

    figures: dict[str, object] = {}
    for target in ("demo", "test"):
        began, before = time.monotonic(), os.times()
        said = make(target, *([f"ARGS={shlex.join(options.pytest)}"] if target == "test" else []))
        cpu = sum(os.times()[2:4]) - sum(before[2:4])
        figures[target] = f"{(time.monotonic() - began) / 60:.1f} minutes, {cpu / 60:.1f} CPU minutes"
        figures[f"disk after {target}"] = f"{done(['du', '-sm', str(clone)]).split()[0]} MB"
    info = done([str(clone / ".venv/bin/lnrnn"), "info"], env=free, **identity(user))
    changes = done(["git", "status", "--short"], cwd=clone, env=free, **identity(user)).strip()
    if changes:
        raise Wrong(f"make has changed the clone:\n{changes}")
    version = re.search(r"^python: (.*)$", info, re.M)[1]
    return {"Python": version, "user": free["USER"], **figures, "tests": said.splitlines()[-1]}
