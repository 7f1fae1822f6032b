"""Handles interrupts of the command `lnrnn` while Python imports lnrnn, before lnrnn.cli runs."""

from __future__ import annotations

import re
import signal
import sys
from contextlib import suppress
from pathlib import PurePath


def is_command() -> bool:
    """Returns whether this process was started as `lnrnn` or `python -m lnrnn`."""
    argv = getattr(sys, "argv", None) or [""]
    if not isinstance(argv[0], str) or len(argv) > len(sys.orig_argv):
        return False
    if argv[0] != "-m":
        # Processes of multiprocessing, which are no commands, have the parent's argv but another orig_argv.
        return PurePath(argv[0]).stem == "lnrnn" and argv[0] in sys.orig_argv and _calls_cli(argv[0])
    # argv[0] is "-m" while Python imports the module's package. The module's name is then the argument before
    # the rest of argv, or the end of the option: -mlnrnn.
    return re.fullmatch(r"(-\w*m)?lnrnn", sys.orig_argv[-len(argv)]) is not None


def _calls_cli(path: str) -> bool:
    """Returns whether a file is the script of an installation of lnrnn, not another program named lnrnn."""
    try:
        with open(path, "rb") as file:
            return b"lnrnn.cli" in file.read(4096)
    except OSError:
        return False


def handle_interrupts() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt again, which the end of this file may have changed."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# During the import, Ctrl-C ends the process by the signal, without a traceback. The shell's status is 130.
if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.SIG_DFL)
