# Which arrays the norms take as they are. Part of _core.pyx.

cdef int bfloat16 = -1  # NumPy's number for it, which it gets when somebody imports ml_dtypes


cdef inline int dtype_of(object array) except -2:
    """The C library's name for the type of an array's values, or -1."""
    global bfloat16
    cdef int kind = cnp.PyArray_TYPE(<cnp.ndarray>array)
    if kind == cnp.NPY_FLOAT32:
        return LNRNN_FLOAT32
    if kind == cnp.NPY_FLOAT64:
        return LNRNN_FLOAT64
    if kind == cnp.NPY_FLOAT16:
        return LNRNN_FLOAT16
    if kind >= 256:  # NPY_USERDEF
        if bfloat16 < 0 and array.dtype.name == "bfloat16":
            bfloat16 = kind
        if kind == bfloat16:
            return LNRNN_BFLOAT16
    return -1


cdef inline object widened(object parameter, object x, int dtype):
    """A parameter in the dtype of the computation, if it has x's own."""
    if (dtype != LNRNN_BFLOAT16 and dtype != LNRNN_FLOAT16) or parameter is None:
        return parameter
    if plain(parameter, cnp.PyArray_TYPE(<cnp.ndarray>x)):
        return (<cnp.ndarray>parameter).astype(np.float32)
    return parameter


cdef inline int real_kind(int dtype) noexcept:
    """NumPy's number for the type in which that one is computed."""
    return cnp.NPY_FLOAT64 if dtype == LNRNN_FLOAT64 else cnp.NPY_FLOAT32


cdef inline bint ordinary(object array) noexcept:
    """A numpy array, no subclass, C-contiguous, aligned, in the machine's byte order?"""
    return cnp.PyArray_CheckExact(array) and cnp.PyArray_ISCARRAY_RO(<cnp.ndarray>array)


cdef inline bint plain(object array, int kind) noexcept:
    """Such an array of that type?"""
    return ordinary(array) and cnp.PyArray_TYPE(<cnp.ndarray>array) == kind


cdef inline bint disjoint(object a, object b) noexcept:
    """Do two C-contiguous arrays share no byte? None shares none."""
    if a is None or b is None:
        return True
    cdef char *p = cnp.PyArray_BYTES(<cnp.ndarray>a)
    cdef char *q = cnp.PyArray_BYTES(<cnp.ndarray>b)
    return p + cnp.PyArray_NBYTES(<cnp.ndarray>a) <= q or q + cnp.PyArray_NBYTES(<cnp.ndarray>b) <= p


cdef inline bint alike(object a, object b) noexcept:
    """Two arrays of one shape?"""
    cdef int k
    if cnp.PyArray_NDIM(<cnp.ndarray>a) != cnp.PyArray_NDIM(<cnp.ndarray>b):
        return False
    for k in range(cnp.PyArray_NDIM(<cnp.ndarray>b)):
        if cnp.PyArray_DIMS(<cnp.ndarray>a)[k] != cnp.PyArray_DIMS(<cnp.ndarray>b)[k]:
            return False
    return True


cdef inline bint writes_to(object out, object x) noexcept:
    """Is out a plain writeable array of x's type and shape, and either x itself or without memory in common with it?"""
    if not plain(out, cnp.PyArray_TYPE(<cnp.ndarray>x)) or not cnp.PyArray_ISWRITEABLE(<cnp.ndarray>out):
        return False
    return alike(out, x) and (cnp.PyArray_BYTES(<cnp.ndarray>out) == cnp.PyArray_BYTES(<cnp.ndarray>x) or disjoint(out, x))


cdef inline void *data(object array) noexcept:
    """The data of an array, or NULL for None."""
    return NULL if array is None else cnp.PyArray_DATA(<cnp.ndarray>array)


cdef inline object read_only(object array):
    cnp.PyArray_CLEARFLAGS(<cnp.ndarray>array, cnp.NPY_ARRAY_WRITEABLE)
    return array


cdef inline bint is_double(object p) noexcept:
    return p is not None and cnp.PyArray_TYPE(<cnp.ndarray>p) == cnp.NPY_FLOAT64


cdef object rounded(int kind, int ndim, cnp.npy_intp *dims, const double *values):
    """A new array of that type and shape with these values."""
    array = cnp.PyArray_EMPTY(ndim, dims, kind, 0)
    lnrnn_write_doubles(cnp.PyArray_SIZE(<cnp.ndarray>array), values, data(array), is_double(array), False)
    return array


# Other Python threads run between these two, if they are let. No Python object may be touched there.

cdef inline PyThreadState *let_others(bint run) noexcept:
    return PyEval_SaveThread() if run else NULL


cdef inline void go_on(PyThreadState *state) noexcept:
    if state != NULL:
        PyEval_RestoreThread(state)


cdef struct room:
    double *values
    double small[1536]


cdef inline int take(room *r, size_t n) except -1:
    """Memory for n doubles: on the stack if they are few. Give it back with `leave`."""
    r.values = &r.small[0]
    if n > 1536:
        r.values = <double *>malloc(n * sizeof(double))
        if r.values == NULL:
            raise MemoryError
    return 0


cdef inline void leave(room *r) noexcept:
    if r.values != &r.small[0]:
        free(r.values)


def same_bytes(a, b):
    """Have two C-contiguous arrays of one size the same bytes? NaN equals itself here, and 0 is not -0."""
    cdef const char *p = cnp.PyArray_BYTES(<cnp.ndarray?>a)
    cdef const char *q = cnp.PyArray_BYTES(<cnp.ndarray?>b)
    cdef size_t n = cnp.PyArray_NBYTES(<cnp.ndarray>a)
    cdef bint same
    if n != <size_t>cnp.PyArray_NBYTES(<cnp.ndarray>b) or not (
        cnp.PyArray_IS_C_CONTIGUOUS(<cnp.ndarray>a) and cnp.PyArray_IS_C_CONTIGUOUS(<cnp.ndarray>b)
    ):
        raise AssertionError(f"broken promise: {a.shape} {a.strides}, {b.shape} {b.strides}")
    with nogil:
        same = memcmp(p, q, n) == 0
    return same
