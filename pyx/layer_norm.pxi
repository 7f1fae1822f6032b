# Layer norm. Part of _core.pyx. Each function gives None if an argument is not of the plainest kind: then nothing was done,
# and lnrnn/norm/functional.py says what is wrong or makes plain ones of them.

cdef Py_ssize_t row_size(cnp.ndarray x, object shape) except -1:
    """The size of the last axes, if these are `shape` (an int or a tuple of ints), else 0."""
    cdef int ndim = cnp.PyArray_NDIM(x), k, axes
    cdef cnp.npy_intp *dims = cnp.PyArray_DIMS(x)
    cdef Py_ssize_t n = 1
    if type(shape) is int:
        return dims[ndim - 1] if ndim and shape == dims[ndim - 1] else 0
    if type(shape) is not tuple or not 0 < len(<tuple>shape) <= ndim:
        return 0
    axes = <int>len(<tuple>shape)
    for k in range(axes):
        item = (<tuple>shape)[k]
        if type(item) is not int or item != dims[ndim - axes + k]:
            return 0
        n *= dims[ndim - axes + k]
    return n


cdef inline int row_axes(object shape) noexcept:
    return <int>len(<tuple>shape) if type(shape) is tuple else 1


cdef inline bint row_parameter(object p, int kind, cnp.ndarray x, object shape, Py_ssize_t n):
    """None, or a plain array of the last axes' shape?"""
    cdef int k, ndim, skip
    if p is None:
        return True
    if not plain(p, kind) or cnp.PyArray_SIZE(<cnp.ndarray>p) != n:
        return False
    ndim = cnp.PyArray_NDIM(<cnp.ndarray>p)
    if ndim != row_axes(shape):
        return False
    skip = cnp.PyArray_NDIM(x) - ndim
    for k in range(ndim):
        if cnp.PyArray_DIMS(<cnp.ndarray>p)[k] != cnp.PyArray_DIMS(x)[skip + k]:
            return False
    return True


def layer_norm(x, shape, gain, bias, eps, out, bint centred=True):
    """-> y, or None. Not centred: RMS norm, whose eps may be None: the epsilon of the computation."""
    cdef int dtype, kind, threads
    cdef Py_ssize_t n, size
    cdef double e
    if not ordinary(x):
        return None
    dtype = dtype_of(x)
    if type(eps) is float:
        e = eps
    elif eps is None and not centred:
        e = DBL_EPSILON if dtype == LNRNN_FLOAT64 else FLT_EPSILON
    else:
        return None
    if dtype < 0 or not 0 <= e < INFINITY:
        return None
    gain, bias = widened(gain, x, dtype), widened(bias, x, dtype)  # first: other threads may run meanwhile
    n = row_size(<cnp.ndarray>x, shape)
    size = cnp.PyArray_SIZE(<cnp.ndarray>x)
    if n == 0 or size == 0:
        return None
    kind = real_kind(dtype)
    if not row_parameter(gain, kind, x, shape, n) or not row_parameter(bias, kind, x, shape, n):
        return None
    if out is not None and not (writes_to(out, x) and disjoint(out, gain) and disjoint(out, bias)):
        return None
    y = empty_like(x) if out is None else out
    cdef const void *px = data(x)
    cdef const void *pg = data(gain)
    cdef const void *pb = data(bias)
    cdef void *py = data(y)
    threads = 1 if size < LNRNN_RELEASE_LOCK_ELEMENTS else allowed_threads()
    cdef PyThreadState *state = let_others(size >= LNRNN_RELEASE_LOCK_ELEMENTS)
    lnrnn_layer_norm(dtype, size // n, n, px, n, pg, pb, e, py, n, centred, threads)
    go_on(state)
    return y


def layer_norm_backward(gy, x, shape, gain, bias, eps):
    """-> gx, ggain or None, gbias or None; or None."""
    cdef int dtype, kind, axes, threads = 1
    cdef Py_ssize_t n, size
    cdef double e
    cdef room r
    if not ordinary(x) or type(eps) is not float:
        return None
    dtype = dtype_of(x)
    e = eps
    if dtype < 0 or not 0 <= e < INFINITY or not plain(gy, cnp.PyArray_TYPE(<cnp.ndarray>x)) or not alike(gy, x):
        return None
    gain, bias = widened(gain, x, dtype), widened(bias, x, dtype)  # first: other threads may run meanwhile
    n = row_size(<cnp.ndarray>x, shape)
    size = cnp.PyArray_SIZE(<cnp.ndarray>x)
    if n == 0 or size == 0:
        return None
    kind = real_kind(dtype)
    if not row_parameter(gain, kind, x, shape, n) or not row_parameter(bias, kind, x, shape, n):
        return None
    gx = empty_like(x)
    cdef const void *pgy = data(gy)
    cdef const void *px = data(x)
    cdef const void *pg = data(gain)
    cdef void *pgx = data(gx)  # GCOVR_EXCL_LINE: gcc moves the call
    if size >= LNRNN_RELEASE_LOCK_ELEMENTS:
        threads = allowed_threads()
    take(&r, lnrnn_layer_norm_work(size // n, n) + 2 * n)
    cdef PyThreadState *state = let_others(size >= LNRNN_RELEASE_LOCK_ELEMENTS)
    lnrnn_layer_norm_backward(dtype, size // n, n, pgy, px, pg, e, pgx, r.values, r.values + n, r.values + 2 * n, threads)
    go_on(state)
    try:
        axes = row_axes(shape)
        dims = cnp.PyArray_DIMS(<cnp.ndarray>x) + cnp.PyArray_NDIM(<cnp.ndarray>x) - axes
        return (gx, None if gain is None else rounded(kind, axes, dims, r.values),
                None if bias is None else rounded(kind, axes, dims, r.values + n))
    finally:
        leave(&r)
