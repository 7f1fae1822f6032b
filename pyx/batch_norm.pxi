# Batch norm. Part of _core.pyx. Each function gives None if an argument is not of the plainest kind: then nothing was done,
# and lnrnn/norm/functional.py says what is wrong or makes plain ones of them.

cdef bint batch_of(object x, object gain, object bias, object eps, lnrnn_batch *b) except -1:
    """Fills in b, all but its memory, if these arguments are plain."""
    cdef int k
    cdef cnp.npy_intp *dims
    if not ordinary(x) or type(eps) is not float or cnp.PyArray_NDIM(<cnp.ndarray>x) < 2:
        return False
    b.dtype = dtype_of(x)
    b.eps = eps
    if b.dtype < 0 or not 0 <= b.eps < INFINITY or cnp.PyArray_SIZE(<cnp.ndarray>x) == 0:
        return False
    dims = cnp.PyArray_DIMS(<cnp.ndarray>x)
    b.N, b.C, b.L = dims[0], dims[1], 1
    for k in range(2, cnp.PyArray_NDIM(<cnp.ndarray>x)):
        b.L *= dims[k]
    if not channels(gain, real_kind(b.dtype), b.C) or not channels(bias, real_kind(b.dtype), b.C):
        return False
    b.x, b.gain, b.bias = data(x), data(gain), data(bias)
    b.threads = 1 if b.N * b.C * b.L < LNRNN_RELEASE_LOCK_ELEMENTS else allowed_threads()
    return True


cdef inline bint channels(object p, int kind, size_t C) noexcept:
    """None, or a plain array of C values?"""
    return p is None or (plain(p, kind) and cnp.PyArray_NDIM(<cnp.ndarray>p) == 1
                         and <size_t>cnp.PyArray_SIZE(<cnp.ndarray>p) == C)


cdef inline bint statistic(object p, size_t C) noexcept:
    return channels(p, cnp.NPY_FLOAT32, C) or channels(p, cnp.NPY_FLOAT64, C)


cdef bint updatable(object p, x, gain, bias, out) noexcept:
    """None, or an array that may be written while the others are read and written?"""
    return p is None or (cnp.PyArray_ISWRITEABLE(<cnp.ndarray>p) and disjoint(p, x) and disjoint(p, gain) and disjoint(p, bias)
                         and disjoint(p, out))


def batch_norm(x, mean, var, gain, bias, training, momentum, eps, out, features=None):
    """-> y, or None. In training mean and var, unless None, are updated. features: the channels that x must have, or None."""
    cdef lnrnn_batch b
    cdef room r
    cdef size_t need, count
    cdef bint train
    cdef void *py
    cdef void *pm
    cdef void *pv
    cdef bint mean_double, var_double
    cdef PyThreadState *state
    if type(training) is not bool or type(momentum) is not float or not 0 <= momentum <= 1:
        return None
    if not cnp.PyArray_CheckExact(x):
        return None
    gain, bias = widened(gain, x, dtype_of(x)), widened(bias, x, dtype_of(x))
    if not batch_of(x, gain, bias, eps, &b) or not statistic(mean, b.C) or not statistic(var, b.C):
        return None
    if features is not None and features != b.C:
        return None
    train, count = training, b.N * b.L
    if out is not None and not (writes_to(out, x) and disjoint(out, gain) and disjoint(out, bias) and disjoint(out, mean)
                                and disjoint(out, var)):
        return None
    if train:
        if (count < 2 or not updatable(mean, x, gain, bias, out) or not updatable(var, x, gain, bias, out)
                or not disjoint(mean, var)):
            return None
    elif mean is None or var is None:
        return None
    # Before other threads run, which may give the arrays another dtype.
    pm, pv, mean_double, var_double = data(mean), data(var), is_double(mean), is_double(var)
    y = empty_like(x) if out is None else out
    py = data(y)
    need = lnrnn_batch_work(&b, train)
    take(&r, need + 2 * b.C)
    b.work, b.mean, b.var = r.values, r.values + need, r.values + need + b.C
    if not train:
        lnrnn_read_doubles(b.C, data(mean), is_double(mean), b.mean)
        lnrnn_read_doubles(b.C, data(var), is_double(var), b.var)
    state = let_others(b.N * b.C * b.L >= LNRNN_RELEASE_LOCK_ELEMENTS)
    lnrnn_batch_norm(&b, py, train)
    go_on(state)
    if train and pm != NULL:
        lnrnn_update_statistic(b.C, pm, mean_double, momentum, b.mean, 0)
    if train and pv != NULL:
        lnrnn_update_statistic(b.C, pv, var_double, momentum, b.var, count)
    leave(&r)
    return y


def batch_norm_backward(gy, x, mean, var, gain, training, eps):
    """-> gx, ggain or None, gbias; or None. mean and var are read unless training."""
    cdef lnrnn_batch b
    cdef room r
    cdef size_t need
    cdef bint train
    cdef PyThreadState *state
    cdef cnp.npy_intp dims[1]
    if type(training) is not bool or not cnp.PyArray_CheckExact(x):
        return None
    gain = widened(gain, x, dtype_of(x))
    if not batch_of(x, gain, None, eps, &b):
        return None
    if not plain(gy, cnp.PyArray_TYPE(<cnp.ndarray>x)) or not alike(gy, x):
        return None
    train = training
    if train:
        if b.N * b.L < 2:
            return None
    elif mean is None or var is None or not statistic(mean, b.C) or not statistic(var, b.C):
        return None
    gx = empty_like(x)
    cdef const void *pgy = data(gy)
    cdef void *pgx = data(gx)  # GCOVR_EXCL_LINE: gcc moves the call
    need = lnrnn_batch_work(&b, True)
    take(&r, need + 4 * b.C)
    b.work, b.mean, b.var = r.values, r.values + need, r.values + need + b.C
    cdef double *ggain = b.var + b.C
    cdef double *gbias = ggain + b.C
    if not train:
        lnrnn_read_doubles(b.C, data(mean), is_double(mean), b.mean)
        lnrnn_read_doubles(b.C, data(var), is_double(var), b.var)
    state = let_others(b.N * b.C * b.L >= LNRNN_RELEASE_LOCK_ELEMENTS)
    lnrnn_batch_norm_backward(&b, pgy, pgx, ggain, gbias, train)
    go_on(state)
    try:
        dims[0] = b.C
        kind = real_kind(b.dtype)
        return gx, None if gain is None else rounded(kind, 1, dims, ggain), rounded(kind, 1, dims, gbias)
    finally:
        leave(&r)
