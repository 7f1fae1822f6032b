"""Reads and sets the floating-point state of the calling thread, through glibc's fenv_t."""

from __future__ import annotations

import ctypes
import platform
import sys
from contextlib import contextmanager

# PLACE: the offset in fenv_t of the word that controls vector instructions. STATES: values of this word that
# differ from the default. They flush denormals, change the rounding mode, have sticky flags, or trap on
# invalid operations, overflow and division by 0.
if platform.machine() == "x86_64":
    PLACE, DEFAULT, FLAGS = 28, 0x1F80, 0x3F  # MXCSR
    STATES = {
        "flush": DEFAULT | 0x8040, "upward": DEFAULT | 0x4000, "downward": DEFAULT | 0x2000,
        "toward zero": DEFAULT | 0x6000, "flags": DEFAULT | FLAGS, "traps": DEFAULT & ~0x680,
        "all": 0xE040 | DEFAULT & ~0x680,
    }  # fmt: skip
else:
    PLACE, DEFAULT, FLAGS = 0, 0, 0  # FPCR; the flags are in another word
    STATES = {"flush": 1 << 24, "upward": 1 << 22, "downward": 2 << 22, "toward zero": 3 << 22}

known = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
known = known and platform.machine() in ("x86_64", "aarch64")
_libm = ctypes.CDLL("libm.so.6") if known else None


def state() -> int:
    result = ctypes.create_string_buffer(64)
    assert _libm.fegetenv(result) == 0
    return int.from_bytes(result[PLACE : PLACE + 4], "little")


def set_state(value: int) -> None:
    env = ctypes.create_string_buffer(64)
    assert _libm.fegetenv(env) == 0
    env[PLACE : PLACE + 4] = value.to_bytes(4, "little")
    assert _libm.fesetenv(env) == 0


@contextmanager
def in_state(value: int):
    """Runs the body in this state. The body should only call lnrnn, because Python's arithmetic changes
    too."""
    before = state()
    set_state(value)
    try:
        yield
    finally:
        set_state(before)


# The argument of fesetround.
ROUNDING = {"downward": 0x400, "upward": 0x800, "toward zero": 0xC00}
if platform.machine() == "aarch64":
    ROUNDING = {"downward": 2 << 22, "upward": 1 << 22, "toward zero": 3 << 22}


@contextmanager
def rounding(mode: str):
    """Runs the body with this rounding mode for all arithmetic of the thread, including the x87."""
    before = _libm.fegetround()
    assert _libm.fesetround(ROUNDING[mode]) == 0
    try:
        yield
        assert _libm.fegetround() == ROUNDING[mode]
    finally:
        _libm.fesetround(before)
