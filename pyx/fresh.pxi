# Arrays for results. Part of _core.pyx. Large ones live in the blocks of result_memory.h, by way of NumPy's own interface for it
# (NEP 49): each array remembers who is to free its memory, so that views and other owners keep it as they do any other.

from cpython.contextvars cimport PyContext_Copy, PyContext_Enter, PyContext_Exit, PyContext_New

cdef extern from "runtime/result_memory.h" nogil:
    enum:
        LNRNN_RESULT_FROM
    int lnrnn_keeps_result_memory()
    void *lnrnn_result_malloc(size_t size)
    void *lnrnn_result_realloc(void *block, size_t size)
    void lnrnn_result_free(void *block)

cdef extern from "numpy/arrayobject.h":
    ctypedef struct PyDataMemAllocator:
        void *ctx
        void *(*malloc)(void *ctx, size_t size) noexcept nogil
        void *(*calloc)(void *ctx, size_t n, size_t size) noexcept nogil
        void *(*realloc)(void *ctx, void *block, size_t size) noexcept nogil
        void (*free)(void *ctx, void *block, size_t size) noexcept nogil

    ctypedef struct PyDataMem_Handler:
        char name[127]
        unsigned char version
        PyDataMemAllocator allocator

    object PyDataMem_SetHandler(object handler)


cdef void *block_malloc(void *ctx, size_t size) noexcept nogil:
    return lnrnn_result_malloc(size)


# GCOVR_EXCL_START: NumPy demands it of an allocator, and calls it for zeros only
cdef void *block_calloc(void *ctx, size_t n, size_t size) noexcept nogil:
    cdef void *block = NULL if size and n > SIZE_MAX // size else lnrnn_result_malloc(n * size)
    return memset(block, 0, n * size) if block else NULL
# GCOVR_EXCL_STOP


cdef void *block_realloc(void *ctx, void *block, size_t size) noexcept nogil:
    return lnrnn_result_realloc(block, size)


cdef void block_free(void *ctx, void *block, size_t size) noexcept nogil:
    lnrnn_result_free(block)


cdef PyDataMem_Handler block_handler
strcpy(block_handler.name, b"lnrnn")
block_handler.version = 1
block_handler.allocator = PyDataMemAllocator(NULL, block_malloc, block_calloc, block_realloc, block_free)
cdef object blocks = PyCapsule_New(&block_handler, b"mem_handler", NULL) if lnrnn_keeps_result_memory() else None


cdef object with_blocks():
    """A context of contextvars in which NumPy takes memory from `blocks`."""
    context = PyContext_New()
    PyContext_Enter(context)
    try:
        PyDataMem_SetHandler(blocks)
    finally:
        PyContext_Exit(context)
    return context


cdef object block_context = None if blocks is None else with_blocks()


cdef object empty_of(int ndim, cnp.npy_intp *dims, int kind, size_t bytes):
    """A C-contiguous array of these axes and that type, which take that many bytes; of any contents."""
    if bytes < LNRNN_RESULT_FROM or blocks is None:
        return cnp.PyArray_EMPTY(ndim, dims, kind, 0)
    # A context of our own, for one that another thread is in cannot be entered. To leave it takes no memory, which setting
    # NumPy's handler back would.
    context = PyContext_Copy(block_context)
    PyContext_Enter(context)
    try:
        return cnp.PyArray_EMPTY(ndim, dims, kind, 0)
    finally:
        PyContext_Exit(context)


def empty_like(x):
    """An array of the shape and the type of x, in C order; of any contents."""
    return empty_of(cnp.PyArray_NDIM(<cnp.ndarray?>x), cnp.PyArray_DIMS(<cnp.ndarray>x), cnp.PyArray_TYPE(<cnp.ndarray>x),
                    cnp.PyArray_NBYTES(<cnp.ndarray>x))


def empty(tuple shape):
    """A float32 array of that shape, in C order; of any contents."""
    cdef cnp.npy_intp dims[3]
    cdef size_t bytes = sizeof(float)
    cdef int k, ndim = len(shape)
    if ndim > 3:
        raise AssertionError(f"broken promise: {ndim} axes")
    for k in range(ndim):
        dims[k] = shape[k]
        bytes *= dims[k]
    return empty_of(ndim, dims, cnp.NPY_FLOAT32, bytes)
