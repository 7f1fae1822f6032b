# Allocates results. A memory handler (NEP 49) places large arrays in blocks of result_memory.h. NumPy stores
# the handler with each array, and so frees the memory correctly.

from cpython.contextvars cimport PyContext_Copy, PyContext_Enter, PyContext_Exit, PyContext_New

cdef extern from *:
    """
    #include "runtime/result_memory.h"
    static PyDataMem_Handler lnrnn_result_handler = {
        "lnrnn", 1, {NULL, lnrnn_result_malloc, lnrnn_result_calloc, lnrnn_result_realloc,
        lnrnn_result_free}};
    """
    enum: LNRNN_RESULT_FROM
    ctypedef struct PyDataMem_Handler:
        pass
    PyDataMem_Handler lnrnn_result_handler
    object PyDataMem_SetHandler(object handler)

# NumPy reads the current handler from the contextvars context, so this context sets it.
cdef object handler_context = PyContext_New()
PyContext_Enter(handler_context)
PyDataMem_SetHandler(PyCapsule_New(&lnrnn_result_handler, b"mem_handler", NULL))
PyContext_Exit(handler_context)


cdef object empty_of(int ndim, cnp.npy_intp *dims, int kind, size_t bytes):
    """Returns an uninitialised C-contiguous array. dims: its shape. kind: typenum. bytes: its size."""
    if bytes < LNRNN_RESULT_FROM:
        return cnp.PyArray_EMPTY(ndim, dims, kind, 0)
    # A context sets the handler, because leaving it needs no memory, unlike a reset. It is copied, because
    # only one thread at a time can enter a context.
    context = PyContext_Copy(handler_context)
    PyContext_Enter(context)
    try:
        return cnp.PyArray_EMPTY(ndim, dims, kind, 0)
    finally:
        PyContext_Exit(context)


cpdef empty_like(x):
    """Returns an uninitialised array with x's shape and dtype, in C order."""
    return empty_of(cnp.PyArray_NDIM(<cnp.ndarray?>x), cnp.PyArray_DIMS(<cnp.ndarray>x),
                    cnp.PyArray_TYPE(<cnp.ndarray>x), cnp.PyArray_NBYTES(<cnp.ndarray>x))


cpdef copied(x):
    """Returns a copy of x in C order. Large copies reuse memory of earlier results, whose pages need no
    clearing."""
    found = empty_like(x)
    cnp.PyArray_CopyInto(<cnp.ndarray>found, <cnp.ndarray>x)
    return found


def empty(tuple shape):
    """Returns an uninitialised float32 array of this shape, in C order."""
    cdef cnp.npy_intp dims[3]
    cdef int k, ndim = len(shape)
    if ndim > 3:
        raise AssertionError(f"internal error: {ndim} axes")
    for k in range(ndim):
        dims[k] = shape[k]
    return empty_of(ndim, dims, cnp.NPY_FLOAT32, cnp.PyArray_MultiplyList(dims, ndim) * sizeof(float))
