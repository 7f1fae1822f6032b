"""C functions of liblnrnn that only tests and benchmarks call. The headers in pyx/ describe them."""

from __future__ import annotations

import ctypes
import os
from ctypes import c_char_p, c_double, c_int, c_int64, c_size_t, c_uint
from typing import Any

import lnrnn

library = ctypes.CDLL(lnrnn.get_library())


def function(name: str, result: Any, *arguments: Any) -> Any:
    """Returns the C function lnrnn_NAME with these types."""
    found = getattr(library, f"lnrnn_{name}")
    found.restype, found.argtypes = result, arguments
    return found


# --- threads: runtime/threads.h -----------------------------------------------------------------------------


class Teams(ctypes.Structure):
    _fields_ = (("tasks", c_int), ("units", c_int))


BARRIER_MODES = ("normal", "together", "staggered", "slow")
_cores_of = function("cores_of", c_int, c_int, c_char_p, c_char_p)
_teams_had = function("teams_had", Teams)
_set_barrier_mode = function("set_barrier_mode", None, c_int)
_set_back_off = function("set_back_off", None, c_int64)
next_back_off = function("next_back_off", c_int64, c_int64, c_int64, c_int64)
waits_too_long = function("waits_too_long", c_int, c_int64, c_int64, c_uint)
set_slow_from = function("set_slow_from", None, c_uint)


def cores_of(cpus: int, groups: str | os.PathLike[str], root: str | os.PathLike[str]) -> int:
    return _cores_of(cpus, os.fsencode(groups), os.fsencode(root))


def teams_had() -> tuple[int, int]:
    """Returns the largest number of threads that divided tasks since the last call of teams_had, and the
    largest that divided the units of a step."""
    teams = _teams_had()
    return teams.tasks, teams.units


def set_barrier_mode(mode: str) -> None:
    _set_barrier_mode(BARRIER_MODES.index(mode))


def set_back_off(seconds: int) -> None:
    """Makes calls use one thread for this time, as if cores were busy. 0 seconds end it."""
    _set_back_off(1_000_000_000 * seconds)


# --- the machine: lnrnn/tuning.h, runtime/cpu_model.h -------------------------------------------------------


class Caches(ctypes.Structure):
    _fields_ = (("l1", c_size_t), ("l2", c_size_t), ("l3", c_size_t), ("reads_ahead", c_int))


class CpuModel(ctypes.Structure):
    _fields_ = tuple(
        (name, c_double)
        for name in ("multiply_adds", "l2", "l3", "memory", "all_memory", "barrier", "barrier_thread")
    )


get_caches = function("get_caches", Caches)
set_caches = function("set_caches", None, Caches)
get_cpu_model = function("get_cpu_model", CpuModel)
set_cpu_model = function("set_cpu_model", None, CpuModel)


# --- the partition of a step: runtime/thread_policy.h, rnn/cost_model.h -------------------------------------


class Partition(ctypes.Structure):
    _fields_ = (("groups", c_int), ("team", c_int), ("divide_rows", c_int))


class StepWork(ctypes.Structure):
    _fields_ = (
        *((name, c_size_t) for name in ("rows", "inputs", "units", "outputs", "projection", "panels")),
        *((name, c_int) for name in ("dtype", "sides", "at_once", "reset_before", "layer_norm")),
        ("caches", Caches),
    )


_panels_of = function("panels_of", c_size_t, c_int, c_size_t)
_step_time = function("step_time", c_double, ctypes.POINTER(StepWork), Partition)
_choose_partition = function(
    "choose_partition", Partition, c_int, c_size_t, c_size_t, ctypes.POINTER(StepWork), ctypes.c_void_p
)
_set_partition = function("set_partition", None, Partition)


WEIGHTS = ("float32", "bfloat16", "int8")


def _step_work(
    B: int, D: int, H: int, gates: int = 1, sides: int = 1, dtype: str = "float32", layer_norm: bool = True
) -> StepWork:
    """Returns the work of a step for the current cache sizes."""
    weights = WEIGHTS.index(dtype)
    panels = _panels_of(weights, gates * H)
    return StepWork(B, D, H, gates * H, 0, panels, weights, sides, 1, 0, layer_norm, get_caches())


def partition(threads: int, *sizes: Any, **options: Any) -> tuple[int, int, bool, float]:
    """Returns the fastest partition for the work of `_step_work(*sizes, **options)`. The result: groups of
    sequences at a time, threads per group, whether they divide the rows of states too, ns of a step."""
    work = _step_work(*sizes, **options)
    chosen = _choose_partition(
        threads, work.rows, work.panels, work, ctypes.cast(_step_time, ctypes.c_void_p)
    )
    return chosen.groups, chosen.team, bool(chosen.divide_rows), _step_time(work, chosen)


def step_time(groups: int, team: int, divide_rows: bool, *sizes: Any, **options: Any) -> float:
    """Returns the ns of a step with this partition, for the work of `_step_work(*sizes, **options)`."""
    return _step_time(_step_work(*sizes, **options), Partition(groups, team, divide_rows))


def set_partition(groups: int = 0, team: int = 0, divide_rows: bool = False) -> None:
    """Makes all calls with enough threads use this partition. Without arguments calls choose the fastest."""
    _set_partition(Partition(groups, team, divide_rows))


# --- networks: rnn/network.h, rnn/wavefront.h ---------------------------------------------------------------

NETWORK_WAYS = ("fastest", "in turn", "side by side")
_set_network_way = function("set_network_way", None, c_int)
set_part = function("set_part", None, c_double)
set_share_of_blocks = function("set_share_of_blocks", None, c_double)


def set_network_way(way: str) -> None:
    _set_network_way(NETWORK_WAYS.index(way))
