# cython: language_level=3, auto_pickle=False
"""Calls C functions with pointers to arrays. Python checks the arguments; C computes and cannot fail.

Functions that must be quick accept only plain arrays, allocate results and call C. For other arguments
they return None, and Python converts the arguments or raises an error. All functions assert that Python has
checked the arrays ("internal error"). Objects shared by threads change in critical sections, for Python
builds without the GIL."""
cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItemWithError
from cpython.exc cimport PyErr_CheckSignals
from cpython.long cimport PyLong_AsLongAndOverflow
from cpython.pycapsule cimport PyCapsule_New
from cpython.pystate cimport PyThreadState
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.float cimport DBL_EPSILON, FLT_EPSILON
from libc.math cimport INFINITY
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset, strcmp

from lnrnn cimport *
from lnrnn_c cimport *

import os
import warnings
from contextvars import ContextVar
from enum import IntEnum

import numpy as np

if strcmp(lnrnn_version(), LNRNN_VERSION):
    raise ImportError(
        f"liblnrnn is of version {lnrnn_version().decode()}, the module of lnrnn of "
        f"{LNRNN_VERSION.decode()}: the process has loaded another liblnrnn than the package's")

cnp.import_array()


# --- the machine
# ---------------------------------------------------------------------------------------------

cdef extern from *:
    """
    #ifdef __clang__
    #define LNRNN_COMPILER __VERSION__
    #else
    #define LNRNN_COMPILER "gcc " __VERSION__
    #endif
    """
    const char *LNRNN_COMPILER

cdef list decoded(const char **names, size_t n):
    return [names[k].decode() for k in range(n)]


def isa_list():
    cdef const char *names[LNRNN_ISAS]
    return decoded(names, lnrnn_isa_list(names))


def isa_emulated():
    cdef const char *names[LNRNN_ISAS]
    return decoded(names, lnrnn_isa_emulated(names))


def isa():
    return lnrnn_isa_name().decode()


def use_isa(str name):
    """Selects the instruction set of the whole process. `import lnrnn` calls it if LNRNN_ISA is set."""
    if lnrnn_isa_use(name.encode()):
        known = ", ".join(isa_list())
        raise ValueError(f"instruction set {name!r} is not available here; available: {known}")


def team_list():
    cdef const char *names[2]
    return decoded(names, lnrnn_team_list(names))


def team():
    return lnrnn_team_name().decode()


def use_team(str name):
    """Selects the thread pool of the whole process. `import lnrnn` calls it if LNRNN_TEAM is set."""
    if lnrnn_team_use(name.encode()):
        known = ", ".join(team_list())
        raise ValueError(f"team of threads {name!r} is not available here; available: {known}")


def compiler():
    """Returns the name and version of the C compiler of this build."""
    return LNRNN_COMPILER.decode()


def cpu_info():
    """Returns the result of lnrnn.cpu_info()."""
    cdef lnrnn_caches caches = lnrnn_get_caches()
    cdef const char *bf16 = lnrnn_isa_unit(LNRNN_WEIGHT_BF16)
    cdef const char *int8 = lnrnn_isa_unit(LNRNN_WEIGHT_I8)
    return {
        "isa": isa(), "available": isa_list(), "emulated": isa_emulated(),
        "units": {"bfloat16": bf16.decode() if bf16 else None, "int8": int8.decode() if int8 else None},
        "amx": lnrnn_isa_amx().decode(), "openmp": "openmp" in team_list(), "team": team(),
        "num_threads": get_num_threads(), "cores": lnrnn_cores(),
        "caches": {"l1": caches.l1, "l2": caches.l2, "l3": caches.l3},
    }


# --- threads
# -------------------------------------------------------------------------------------------------
# runtime/thread_policy.h decides how many threads a call uses. Only Python knows the limit that
# lnrnn.num_threads sets.

own_num_threads = ContextVar("lnrnn.num_threads", default=0)  # set by lnrnn.num_threads


cdef int allowed_threads() except -1:
    """Returns the thread limit of calls without the argument `threads`."""
    return lnrnn_allowed_threads(own_num_threads.get())


cdef inline int threads_for(double multiply_adds, int threads) except -1:
    """Returns the thread limit of a call of recurrent layers: `threads`, or the default if it is 0. That
    is 1 for little work."""
    return threads if threads else allowed_threads() if lnrnn_repays_threads(multiply_adds) else 1


def get_num_threads():
    return allowed_threads()


def set_num_threads(int n):
    lnrnn_set_num_threads(n)


lnrnn_get_num_threads()  # the first call counts the cores

cdef extern from "Python.h":
    PyThreadState *PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState *state)
    int Py_AddPendingCall(int (*function)(void *) except -1, void *argument) nogil

cdef int threads_wanted, threads_given
cdef bint warned = False


cdef int warn_once(void *_) except -1:
    """Warns once that the system gave fewer threads than a call wanted. Python runs it in the main thread."""
    global warned
    if not warned:
        warned = True
        warnings.warn(
            f"lnrnn: a call that may use {threads_wanted} threads got only {threads_given} from the system "
            "(ulimit or a container may limit processes or memory). Later calls use as many, until "
            "lnrnn.set_num_threads is called again", RuntimeWarning)
    return 0


cdef void note_shortage(int wanted, int given) noexcept nogil:
    """Records a shortage of threads, and lets Python warn about it. C calls this function without holding the
    GIL."""
    global threads_wanted, threads_given
    if not warned:
        threads_wanted, threads_given = wanted, given
        Py_AddPendingCall(warn_once, NULL)


lnrnn_on_shortage(note_shortage)


# --- pointers
# ------------------------------------------------------------------------------------------------

cdef void *pointer(object array, int kind, size_t size, bint writable) except? NULL:
    """Returns a pointer to the data of a C-contiguous array of typenum `kind` and `size`; NULL for None."""
    if array is None:
        return NULL
    cdef cnp.ndarray a = <cnp.ndarray?>array
    if (cnp.PyArray_TYPE(a) != kind or <size_t>cnp.PyArray_SIZE(a) != size or not cnp.PyArray_ISCARRAY_RO(a)
            or (writable and not cnp.PyArray_ISWRITEABLE(a))):
        raise AssertionError(
            f"internal error: {array.dtype} {array.shape}, wanted type {kind} with {size} elements")
    return cnp.PyArray_DATA(a)


cdef inline const float *floats(object array, size_t size) except? NULL:
    return <const float *>pointer(array, cnp.NPY_FLOAT32, size, False)


cdef inline float *out_floats(object array, size_t size) except? NULL:
    return <float *>pointer(array, cnp.NPY_FLOAT32, size, True)


cdef inline const int64_t *indices(object array, size_t size) except? NULL:
    return <const int64_t *>pointer(array, cnp.NPY_INT64, size, False)


cdef Py_ssize_t axis(object array, int k) except -1:
    """Returns the size of axis k."""
    cdef cnp.ndarray a = <cnp.ndarray?>array
    if cnp.PyArray_NDIM(a) <= k:
        raise AssertionError(f"internal error: {array.dtype} {array.shape}, wanted more than {k} axes")
    return cnp.PyArray_DIMS(a)[k]


cdef int strided(object array, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t n2, bint writable, float **data,
                 ptrdiff_t *s0, ptrdiff_t *s1) except -1:
    """Checks a float32 array (n0, n1, n2) whose last axis is contiguous. Sets *data, and *s0 and *s1 to its
    first two strides in elements. Strides of axes of size 1 are arbitrary in NumPy, and are not used."""
    cdef cnp.ndarray a = <cnp.ndarray?>array
    cdef cnp.npy_intp *shape = cnp.PyArray_DIMS(a)
    cdef cnp.npy_intp *step = cnp.PyArray_STRIDES(a)
    if (cnp.PyArray_TYPE(a) != cnp.NPY_FLOAT32 or cnp.PyArray_NDIM(a) != 3 or not cnp.PyArray_ISALIGNED(a)
            or shape[0] != n0 or shape[1] != n1 or shape[2] != n2
            or (writable and not cnp.PyArray_ISWRITEABLE(a))
            or (n0 and n1 and n2
                and ((n2 > 1 and step[2] != 4) or (n0 > 1 and step[0] % 4) or (n1 > 1 and step[1] % 4)))):
        raise AssertionError(f"internal error: {array.dtype} {array.shape} {array.strides}, not {n0, n1, n2}")
    data[0] = <float *>cnp.PyArray_DATA(a)
    s0[0] = step[0] // 4
    s1[0] = step[1] // 4
    return 0


def aligned(size_t n):
    """Returns an uninitialised float32 array (n,), aligned to 64 bytes."""
    cdef cnp.npy_intp length = n + 16
    a = empty_of(1, &length, cnp.NPY_FLOAT32, length * sizeof(float))
    cdef uintptr_t address = <uintptr_t>cnp.PyArray_DATA(<cnp.ndarray>a)
    cdef size_t skip = (64 - address % 64) % 64 // 4
    return a[skip:skip + n]


def words_at(addresses):
    """Returns the 4 bytes at each address as one bytes object. addresses: (n,) uint64."""
    cdef Py_ssize_t k, n = axis(addresses, 0)
    cdef const uint64_t *at = <const uint64_t *>pointer(addresses, cnp.NPY_UINT64, n, False)
    cdef bytes found = PyBytes_FromStringAndSize(NULL, 4 * n)
    for k in range(n):
        memcpy(<char *>found + 4 * k, <const void *><uintptr_t>at[k], 4)
    return found


include "result_memory.pxi"
include "arrays.pxi"
include "norm.pxi"
include "network.pxi"
include "packed.pxi"
include "stream.pxi"
include "file.pxi"
include "c_api.pxi"
