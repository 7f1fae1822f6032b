"""Threads, instruction sets and installed files: environment variables, and public functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import _core
from .arguments import TAKES, THREADS, check
from .errors import message

TAKES["set_num_threads"] = TAKES["num_threads"] = {"n": THREADS.of}


def _choose(variable: str, available: list[str], use: Callable[[str], None]) -> None:
    """Calls use(value) with the value of an environment variable, if set. It must be in `available`."""
    name = os.environ.get(variable)
    if not name:
        return
    if name not in available:
        raise ImportError(message(variable, f"one of {', '.join(available)}", repr(name)))
    use(name)


def _from_environment() -> None:
    sets = _core.isa_list() + _core.isa_emulated()
    _choose("LNRNN_ISA", sets, _core.use_isa)
    _choose("LNRNN_TEAM", _core.team_list(), _core.use_team)
    text = os.environ.get("LNRNN_NUM_THREADS")
    if text:
        try:
            set_num_threads(int(text) if text.isascii() and text.isdigit() else 0)
        except ValueError:
            expected = "a whole number from 1 to 1024"
            raise ImportError(message("LNRNN_NUM_THREADS", expected, repr(text))) from None


def set_num_threads(n: int) -> None:
    """Set the maximum number of threads of each call, for the whole process.

    Parameters
    ----------
    n : int
        Number of threads, 1 to 1024. Results do not depend on it.

    Raises
    ------
    ValueError, TypeError
        For another number.

    Notes
    -----
    The maximum is the first of these that is set: the argument of this function, LNRNN_NUM_THREADS,
    OMP_NUM_THREADS at the time of the call. The default is the number of cores of this process, from its
    affinity mask and control-group quota at the import. If neither of the first two is set,
    omp_set_num_threads and threadpoolctl are further limits.

    If the system cannot start this number of threads, calls use fewer, and one RuntimeWarning says so. After
    the next call of this function they try again. OpenMP ends the process if it cannot start a thread, so
    lnrnn tests beforehand whether threads can start. If another process starts threads at this moment, the
    test may be wrong. With LNRNN_TEAM=pthread there is no such risk.

    Examples
    --------
    >>> import lnrnn
    >>> before = lnrnn.get_num_threads()
    >>> lnrnn.set_num_threads(2)
    >>> lnrnn.get_num_threads()
    2
    >>> lnrnn.set_num_threads(before)
    """
    _core.set_num_threads(*check("set_num_threads", {"n": n}))


def get_num_threads() -> int:
    """Return the maximum number of threads of a call in this context.

    Examples
    --------
    >>> import lnrnn
    >>> lnrnn.get_num_threads() >= 1
    True
    """
    return _core.get_num_threads()


@contextmanager
def num_threads(n: int) -> Iterator[None]:
    """Limit the threads of calls inside a with statement, in this thread or asynchronous task.

    Parameters
    ----------
    n : int
        Number of threads, 1 to 1024. It overrides `set_num_threads`. The argument `threads` of a call
        overrides both. Errors are as in `set_num_threads`.

    Notes
    -----
    The limit is a variable of contextvars. Results do not depend on it.

    Examples
    --------
    >>> import lnrnn
    >>> with lnrnn.num_threads(1):
    ...     lnrnn.get_num_threads()
    1
    """
    (n,) = check("num_threads", {"n": n})
    before = _core.own_num_threads.set(n)
    try:
        yield
    finally:
        _core.own_num_threads.reset(before)


def thread_limit(threads: int | None) -> int:
    """Returns the argument `threads` of a call, checked; 0 if it is None."""
    if type(threads) is int and 1 <= threads <= 1024:
        return threads  # a full check takes longer than a step of a small network
    return THREADS.check("threads", threads) or 0


def cpu_info() -> dict[str, Any]:
    """Return facts about the instruction set, the threads and the machine.

    Returns
    -------
    dict
        isa : str
            The instruction set in use: "avx512amx", "avx512bf16", "avx512vnni", "avx512", "avxvnni", "avx2",
            "sse2", "neoni8mm", "neonbf16", "neondot", "neon" or "scalar". The CPU's model and the operating
            system decide, never a timing.
        available : list of str
            All sets of this build and machine, best first. LNRNN_ISA chooses one.
        emulated : list of str
            Sets with the bits of special instructions, in slow plain C. Only LNRNN_ISA chooses them.
        units : dict of str to str or None
            For "bfloat16" and for "int8" weights, the special instructions that multiply them: "amx",
            "avx512_bf16", "avx512_vnni", "avx_vnni", "arm_bf16", "arm_i8mm" or "arm_dotprod". None: the
            machine has none, and ordinary instructions multiply. Special instructions for bfloat16 round
            inputs to bfloat16 too.
        amx : str
            "usable, tested in an emulator only", "not on this CPU", "not enabled by the operating system" or
            "refused by the kernel". The first says that no CPU has run the kernels for AMX yet.
        openmp : bool
            Whether this build has OpenMP.
        team : str
            The threads that compute: "openmp", or "pthread" for threads that lnrnn starts itself.
        num_threads : int
            See `set_num_threads`.
        cores : int
            The number of cores of this process: CPUs of its affinity mask (or of OpenMP's places
            with OMP_PROC_BIND), limited by the quotas of its control groups.
        caches : dict of str to int
            Sizes in bytes of the data caches "l1", "l2" and "l3". They affect speed, never results.

    Examples
    --------
    >>> import lnrnn
    >>> info = lnrnn.cpu_info()
    >>> info["isa"] in info["available"] + info["emulated"]
    True
    """
    return _core.cpu_info()


def get_include() -> str:
    """Return the folder of the C headers, for compilers of programs and Cython modules that use lnrnn.

    Notes
    -----
    The compiler's option is ``-I"$(python -c 'import lnrnn; print(lnrnn.get_include())')"``. docs/c_api.md
    has examples.

    Examples
    --------
    >>> from pathlib import Path
    >>> import lnrnn
    >>> Path(lnrnn.get_include(), "lnrnn.h").is_file()
    True
    """
    package = Path(__file__).parent
    installed = package / "include"
    return str(installed if installed.is_dir() else package.parent / "include")  # an editable install


def get_library() -> str:
    """Return the path of the shared library liblnrnn, for programs and other languages than Python.

    Examples
    --------
    >>> import ctypes
    >>> import lnrnn
    >>> library = ctypes.CDLL(lnrnn.get_library())
    """
    return str(next(Path(__file__).parent.glob("liblnrnn.*")))


_from_environment()
