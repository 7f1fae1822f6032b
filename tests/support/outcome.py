"""Exceptions for a campaign's parts that do not pass, and functions that run commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

__all__ = ["Missing", "Wrong", "done", "needs", "restart_with", "run_pytest", "until"]


class Missing(Exception):
    """The part of the campaign needs a program that is not installed."""


class Wrong(Exception):
    """The part of the campaign has a wrong result."""


def needs(*commands: str) -> None:
    absent = [command for command in commands if not shutil.which(command)]
    if absent:
        raise Missing(f"needs {' and '.join(absent)}")


def done(command: list[str], **options) -> str:
    """Runs a command and returns its output. If it fails, raises Wrong with the end of the output."""
    ran = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if ran.returncode:
        raise Wrong(f"exit {ran.returncode} of {' '.join(map(str, command))}\n{ran.stdout[-3000:]}")
    return ran.stdout


def run_pytest(program: str, more: list[str]) -> str:
    """Runs a file of tests with more arguments of pytest. Returns the end of pytest's output."""
    return done([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", program, *more])[-200:]


def until(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def restart_with(environment: dict[str, str]) -> None:
    """Starts this program again with these variables, unless they are already set."""
    if environment.items() - os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **environment})
