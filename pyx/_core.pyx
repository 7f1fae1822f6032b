# cython: language_level=3, auto_pickle=False
"""Buffers to pointers, between the Python above, which checks, and the C below, which cannot fail.

A function first takes plain arrays as they are, allocates their results and calls C. It gives None for all other
arguments: Python then converts them, or raises an error. The promises of that Python are asserted where a broken
one would mean a wild pointer. Objects that several threads share change in critical sections, for Pythons without
the interpreter's lock; in others these are nothing.
"""
cimport cython
cimport numpy as cnp
from cpython.exc cimport PyErr_CheckSignals
from cpython.pycapsule cimport PyCapsule_New
from cpython.pystate cimport PyThreadState
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.float cimport DBL_EPSILON, FLT_EPSILON
from libc.math cimport INFINITY
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport SIZE_MAX, int64_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset, strcmp, strcpy

from lnrnn cimport *
from lnrnn_c cimport *

import os
import warnings
from contextvars import ContextVar
from enum import IntEnum
from time import perf_counter

import numpy as np

if strcmp(lnrnn_version(), LNRNN_VERSION):
    raise ImportError(
        f"liblnrnn is of version {lnrnn_version().decode()}, the module of lnrnn of {LNRNN_VERSION.decode()}: "
        "the process has loaded another one than that of the package")

cnp.import_array()


# --- the machine ---------------------------------------------------------------------------------------------

def isa_list():
    cdef const char *names[LNRNN_ISAS]
    cdef size_t n = lnrnn_isa_list(names)
    return [names[i].decode() for i in range(n)]


def isa_emulated():
    cdef const char *names[LNRNN_ISAS]
    cdef size_t n = lnrnn_isa_emulated(names)
    return [names[i].decode() for i in range(n)]


def units():
    cdef const char *bf16 = lnrnn_isa_unit(LNRNN_WEIGHT_BF16)
    cdef const char *int8 = lnrnn_isa_unit(LNRNN_WEIGHT_I8)
    return {
        "bfloat16": None if bf16 is NULL else bf16.decode(),
        "int8": None if int8 is NULL else int8.decode(),
    }


def amx():
    return lnrnn_isa_amx().decode()


def isa():
    return lnrnn_isa_name().decode()


def use_isa(str name):
    """Switches the kernels of the whole process. The import does it for LNRNN_ISA, tests for themselves."""
    if lnrnn_isa_use(name.encode()):
        raise ValueError(f"instruction set {name!r} is not available here; available: {', '.join(isa_list())}")


def has_openmp():
    return bool(lnrnn_has_openmp())


def team_list():
    cdef const char *names[2]
    cdef size_t n = lnrnn_team_list(names)
    return [names[i].decode() for i in range(n)]


def team():
    return lnrnn_team_name().decode()


def use_team(str name):
    """Switches the teams of threads of the whole process. The import does it for LNRNN_TEAM, tests for themselves."""
    if lnrnn_team_use(name.encode()):
        raise ValueError(f"team of threads {name!r} is not available here; available: {', '.join(team_list())}")


def cores():
    return lnrnn_cores()


def caches():
    """Bytes of the data caches of a core: L1, L2, L3."""
    cdef lnrnn_caches found = lnrnn_get_caches()
    return found.l1, found.l2, found.l3


# What `num_threads` of lnrnn/runtime.py sets for its caller alone; calls look it up once somebody has used it.
own_num_threads = ContextVar("lnrnn.num_threads", default=None)
cdef bint some_have_their_own = False


def use_own_num_threads():
    global some_have_their_own
    some_have_their_own = True


# How many threads a call uses: runtime/thread_policy.h. Here stands only the number of the caller's context.

cdef int allowed_threads() except -1:
    """The most threads of a call without the argument `threads`."""
    own = own_num_threads.get() if some_have_their_own else None
    return lnrnn_allowed_threads(0 if own is None else own)


cdef inline int threads_for(double multiply_adds, int threads) except -1:
    """The most threads of a call of recurrent layers. If one thread is enough for the work, the context and the
    environment need not be read."""
    return threads if threads else allowed_threads() if lnrnn_repays_threads(multiply_adds) else 1


def get_num_threads():
    return allowed_threads()


def set_num_threads(int n):
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")  # GCOVR_EXCL_LINE: the Python function checks n
    lnrnn_set_num_threads(n)


lnrnn_get_num_threads()  # counts the cores now


ctypedef int (*pending)(void *) except -1

cdef extern from "Python.h":
    PyThreadState *PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState *state)
    int Py_AddPendingCall(pending function, void *argument) nogil

cdef int threads_wanted, threads_given
cdef bint warned = False


cdef int warn_once(void *_) except -1:
    """Runs in the main thread, and warns once in a process."""
    global warned
    if warned:
        return 0
    warned = True
    warnings.warn(
        f"lnrnn: a call that may use {threads_wanted} threads goes on with {threads_given}: the system has no room for "
        "more (limits on processes or memory, as of ulimit or a container). So do later calls, until "
        "lnrnn.set_num_threads is called again", RuntimeWarning)
    return 0


cdef void note_shortage(int wanted, int given) noexcept nogil:
    """Called after a call, without the interpreter's lock. Python warns as soon as it runs again."""
    global threads_wanted, threads_given
    if not warned:
        threads_wanted, threads_given = wanted, given
        Py_AddPendingCall(warn_once, NULL)


lnrnn_on_shortage(note_shortage)


# What the tests read and set: lnrnn.h and threads.h say what these are.

def cores_of(int cpus, groups, root):
    return lnrnn_cores_of(cpus, os.fsencode(groups), os.fsencode(root))


def teams_had():
    cdef lnrnn_teams had = lnrnn_teams_had()
    return had.tasks, had.units


def reads_ahead():
    return lnrnn_get_caches().reads_ahead


def set_caches(size_t l1, size_t l2, size_t l3, bint reads_ahead=False):
    lnrnn_set_caches(lnrnn_caches(l1, l2, l3, reads_ahead))


def cpu_model():
    """The rates of a core from which the cost model computes, by the names of cpu_model.h."""
    return lnrnn_get_cpu_model()


def set_cpu_model(**rates):
    """For tests: the rates of another machine, all of them."""
    lnrnn_set_cpu_model(rates)


cdef lnrnn_step_work step_work(size_t B, size_t D, size_t H, size_t gates, int sides, int dtype):
    cdef lnrnn_step_work w
    w.rows, w.inputs, w.units, w.outputs, w.dtype, w.sides = B, D, H, gates * H, dtype, sides
    w.panels, w.at_once, w.caches = lnrnn_panels_of(dtype, gates * H), 1, lnrnn_get_caches()
    return w


def partition(threads, B, D, H, gates=1, sides=1, dtype=LNRNN_WEIGHT_F32):
    """The partition of a step of this shape, for the caches and the CPU model in use: groups of sequences at a time, threads
    of each, whether these divide the rows of the states too; and its ns."""
    cdef lnrnn_step_work w = step_work(B, D, H, gates, sides, dtype)
    cdef lnrnn_partition p = lnrnn_choose_partition(threads, w.rows, w.panels, &w, lnrnn_step_time)
    return p.groups, p.team, bool(p.divide_rows), lnrnn_step_time(&w, p)


def step_time(groups, units, rows, B, D, H, gates=1, sides=1, dtype=LNRNN_WEIGHT_F32):
    """The ns of one partition by the cost model."""
    cdef lnrnn_step_work w = step_work(B, D, H, gates, sides, dtype)
    return lnrnn_step_time(&w, lnrnn_partition(groups, units, rows))


def set_partition(int groups=0, int units=0, bint rows=False):
    """For tests: the partition of all calls that may use so many threads; without arguments, the fastest again."""
    lnrnn_set_partition(lnrnn_partition(groups, units, rows))


def set_barrier_mode(str mode):
    lnrnn_set_barrier_mode({"normal": LNRNN_BARRIER_NORMAL, "together": LNRNN_BARRIER_TOGETHER, "staggered": LNRNN_BARRIER_STAGGERED, "slow": LNRNN_BARRIER_SLOW}[mode])


def set_back_off(int64_t seconds):
    """0: no longer."""
    lnrnn_set_back_off(1000000000 * seconds)


# --- pointers ------------------------------------------------------------------------------------------------

cdef void *pointer(object array, int kind, size_t size, bint writable) except? NULL:
    """The data of a C-contiguous array of `size` elements, or NULL for None."""
    if array is None:
        return NULL
    cdef cnp.ndarray a = <cnp.ndarray?>array
    if (cnp.PyArray_TYPE(a) != kind or <size_t>cnp.PyArray_SIZE(a) != size or not cnp.PyArray_ISCARRAY_RO(a)
            or (writable and not cnp.PyArray_ISWRITEABLE(a))):
        raise AssertionError(f"broken promise: {array.dtype} {array.shape}, wanted type {kind} with {size} elements")
    return cnp.PyArray_DATA(a)


cdef inline const float *floats(object array, size_t size) except? NULL:
    return <const float *>pointer(array, cnp.NPY_FLOAT32, size, False)


cdef inline float *out_floats(object array, size_t size) except? NULL:
    return <float *>pointer(array, cnp.NPY_FLOAT32, size, True)


cdef inline double *out_doubles(object array, size_t size) except? NULL:
    return <double *>pointer(array, cnp.NPY_FLOAT64, size, True)


cdef inline const int64_t *indices(object array, size_t size) except? NULL:
    return <const int64_t *>pointer(array, cnp.NPY_INT64, size, False)


cdef Py_ssize_t axis(object array, int k) except -1:
    """The length of that axis."""
    cdef cnp.ndarray a = <cnp.ndarray?>array
    if cnp.PyArray_NDIM(a) <= k:
        raise AssertionError(f"broken promise: {array.dtype} {array.shape}, wanted more than {k} axes")
    return cnp.PyArray_DIMS(a)[k]


cdef int strided(object array, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t n2, bint writable, float **data,
                 ptrdiff_t *s0, ptrdiff_t *s1) except -1:
    """A float32 array (n0, n1, n2) whose last axis is contiguous: data, and the two strides in elements."""
    cdef cnp.ndarray a = <cnp.ndarray?>array
    cdef cnp.npy_intp *shape = cnp.PyArray_DIMS(a)
    cdef cnp.npy_intp *step = cnp.PyArray_STRIDES(a)
    if (cnp.PyArray_TYPE(a) != cnp.NPY_FLOAT32 or cnp.PyArray_NDIM(a) != 3 or not cnp.PyArray_ISALIGNED(a)
            or shape[0] != n0 or shape[1] != n1 or shape[2] != n2 or (writable and not cnp.PyArray_ISWRITEABLE(a))
            or (n0 and n1 and n2 and ((n2 > 1 and step[2] != 4) or step[0] % 4 or step[1] % 4))):
        raise AssertionError(f"broken promise: {array.dtype} {array.shape} {array.strides}")
    data[0] = <float *>cnp.PyArray_DATA(a)
    s0[0] = step[0] // 4
    s1[0] = step[1] // 4
    return 0


def aligned(size_t n):
    """n float32, not initialised, at an address that is a multiple of 64."""
    cdef cnp.npy_intp length = n + 16
    a = empty_of(1, &length, cnp.NPY_FLOAT32, length * sizeof(float))
    cdef uintptr_t address = <uintptr_t>cnp.PyArray_DATA(<cnp.ndarray>a)
    cdef size_t skip = (64 - address % 64) % 64 // 4
    return a[skip:skip + n]


def _enumeration(str name, **members):
    return IntEnum(name, members, module=__name__)


include "fresh.pxi"
include "arrays.pxi"
include "elementwise.pxi"
include "layer_norm.pxi"
include "batch_norm.pxi"
include "network.pxi"
include "stream.pxi"
include "file.pxi"
include "c_api.pxi"
