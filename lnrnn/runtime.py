"""Threads and instruction sets: what the environment asks for, and what a user can ask and set."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from . import _core
from .errors import integer


def _choose(variable: str, available: list[str], use: Callable[[str], None], what: str) -> None:
    """Uses what an environment variable names, if it names anything."""
    name = os.environ.get(variable)
    if not name:
        return
    if name not in available:
        raise ImportError(f"{variable}={name!r} is not {what} has; available: {', '.join(available)}")
    use(name)


def _from_environment() -> None:
    sets = _core.isa_list() + _core.isa_emulated()
    _choose("LNRNN_ISA", sets, _core.use_isa, "an instruction set that this machine")
    _choose("LNRNN_TEAM", _core.team_list(), _core.use_team, "a kind of threads that this build")
    text = os.environ.get("LNRNN_NUM_THREADS")
    if text:
        try:
            set_num_threads(int(text))
        except ValueError:
            raise ImportError(
                f"LNRNN_NUM_THREADS must be a whole number from 1 to 1024, got {text!r}"
            ) from None


def set_num_threads(n: int) -> None:
    """Lets each call use up to `n` threads (1 <= n <= 1024).

    Until it is called, and unless LNRNN_NUM_THREADS says it, each call may use as many threads as the
    environment variable OMP_NUM_THREADS says at that time, or else as many as this process may use cores
    (affinity mask and control-group quota, at the import); but no more than omp_set_num_threads or
    threadpoolctl has set. Results do not depend on it.

    Where the system has no room for so many threads (limits on processes or memory, as of a container), calls
    go on with fewer, and one RuntimeWarning says so; after another `set_num_threads` they try again. OpenMP
    ends the process when it cannot start a thread, so that this is tried out before, and is not certain where
    other processes or libraries start threads at the same time. Threads of the library's own (`cpu_info()`
    says which are used, LNRNN_TEAM=pthread chooses them) have no such gap.
    """
    _core.set_num_threads(integer("n", n, 1, 1024))


def get_num_threads() -> int:
    """How many threads a call of the caller's may use."""
    return _core.get_num_threads()


@contextmanager
def num_threads(n: int) -> Iterator[None]:
    """with lnrnn.num_threads(n): calls inside use up to `n` threads (1 <= n <= 1024), and nobody else's do.

    It holds for the thread or the asynchronous task that enters it (it is a context variable, as of
    contextvars), and goes before `set_num_threads`, which is for the whole process; a call's own threads=
    goes before both. Results do not depend on it.
    """
    n = integer("n", n, 1, 1024)
    before = _core.own_num_threads.set(n)
    try:
        yield
    finally:
        _core.own_num_threads.reset(before)


def thread_limit(threads: int | None) -> int:
    """The argument `threads` of a call, checked; 0: as set."""
    return 0 if threads is None else integer("threads", threads, 1, 1024)


def cpu_info() -> dict[str, Any]:
    """What runs here.

    Keys: `isa` (kernel set in use: "avx512amx", "avx512bf16", "avx512vnni", "avx512", "avxvnni", "avx2",
    "sse2", "neoni8mm", "neonbf16", "neondot", "neon" or "scalar"; it follows from the CPU's model and what
    the kernel permits, never from a timing),
    `available` (all that this build and this machine have, best first; LNRNN_ISA chooses another), `emulated`
    (sets with the bits of units that this machine may lack, in plain C: slow, and used only where LNRNN_ISA
    names them), `units` (what bfloat16 and int8 weights are multiplied on: "amx", "avx512_bf16",
    "avx512_vnni", "avx_vnni", "arm_bf16", "arm_i8mm", "arm_dotprod", or None for ordinary vector
    instructions; a unit of bfloat16 takes its other factor rounded to bfloat16), `amx` ("usable", "not on
    this CPU", "not enabled by the operating system" or "refused by the kernel"), `openmp` (whether the
    build has it), `team` (whose threads calls use: "openmp", or "pthread", a pool of this library's own),
    `num_threads` (see `set_num_threads`), `cores` (that this process may use: CPUs of its affinity mask, or
    under OMP_PROC_BIND of OpenMP's places, but no more than the quotas of its control groups allow),
    `caches` (bytes of the data caches "l1", "l2" and "l3" as the machine names them: what is prefetched,
    and how much is computed at a time, follows from them; no result does).
    """
    return _core.cpu_info()


def get_include() -> str:
    """The folder of lnrnn.h and lnrnn_api.h, for the compiler of an extension module or a program that calls
    lnrnn from C: -I"$(python -c 'import lnrnn; print(lnrnn.get_include())')". For Cython, `cimport lnrnn`
    needs it too. docs/c_api.md has examples."""
    package = Path(__file__).parent
    installed = package / "include"
    return str(installed if installed.is_dir() else package.parent / "include")  # installed in place


def get_library() -> str:
    """The file of liblnrnn, the shared library in the package, for programs and other languages that call
    lnrnn without Python, as by ctypes.CDLL. docs/c_api.md has examples."""
    return str(next(Path(__file__).parent.glob("liblnrnn.*")))


def _is_command() -> bool:
    """Whether this process is the command line: the script `lnrnn` or `python -m lnrnn`."""
    argv = getattr(sys, "argv", None) or [""]
    if argv[0] != "-m":
        return PurePath(argv[0]).stem == "lnrnn"
    # With -m, Python puts this first while it locates and imports the module's package. The module's name is
    # then the word before the rest of argv, or the end of the option: -mlnrnn.
    return re.fullmatch(r"(-\w*m)?lnrnn", sys.orig_argv[-len(argv)]) is not None


try:
    _from_environment()
except ImportError as error:
    # Both commands import lnrnn before any line of lnrnn.cli runs, so the message cannot be left to that.
    if not _is_command():
        raise
    print(f"lnrnn: error: {error}", file=sys.stderr)
    raise SystemExit(2) from None
