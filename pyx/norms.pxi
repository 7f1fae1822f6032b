# Functions and norms. Part of _core.pyx.

def map_f32(int function, x, y):
    cdef size_t n = x.size
    cdef const float *px = floats(x, n)
    cdef float *py = out_floats(y, n)
    with nogil:
        lnrnn_map(function, n, px, py, num_threads)


ctypedef fused real:
    float
    double


cdef inline real *typed(object array, size_t size, bint writable, real tag) except? NULL:
    if real is float:
        return <float *>pointer(array, cnp.NPY_FLOAT32, size, writable)
    else:
        return <double *>pointer(array, cnp.NPY_FLOAT64, size, writable)


cdef inline bint plain(object array, int kind):
    """A numpy array, no subclass, of that type, C-contiguous, aligned, in the machine's byte order?"""
    return (cnp.PyArray_CheckExact(array) and cnp.PyArray_TYPE(<cnp.ndarray>array) == kind
            and cnp.PyArray_ISCARRAY_RO(<cnp.ndarray>array))


cdef inline bint apart(object a, object b):
    """Do two C-contiguous arrays share no byte?"""
    cdef char *p = cnp.PyArray_BYTES(<cnp.ndarray>a)
    cdef char *q = cnp.PyArray_BYTES(<cnp.ndarray>b)
    return p + cnp.PyArray_NBYTES(<cnp.ndarray>a) <= q or q + cnp.PyArray_NBYTES(<cnp.ndarray>b) <= p


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


cdef inline bint row_parameter(object p, int kind, cnp.ndarray x, object shape, Py_ssize_t n):
    """None, or a plain array of the last axes' shape?"""
    cdef int k, ndim, skip
    if p is None:
        return True
    if not plain(p, kind) or cnp.PyArray_SIZE(<cnp.ndarray>p) != n:
        return False
    ndim = cnp.PyArray_NDIM(<cnp.ndarray>p)
    if ndim != (len(<tuple>shape) if type(shape) is tuple else 1):
        return False
    skip = cnp.PyArray_NDIM(x) - ndim
    for k in range(ndim):
        if cnp.PyArray_DIMS(<cnp.ndarray>p)[k] != cnp.PyArray_DIMS(x)[skip + k]:
            return False
    return True


cdef inline bint writes_to(object out, object x, int kind):
    """Is out a plain writeable array of x's shape, and either x itself or apart from it?"""
    cdef int k
    if not plain(out, kind) or not cnp.PyArray_ISWRITEABLE(<cnp.ndarray>out):
        return False
    if cnp.PyArray_NDIM(<cnp.ndarray>out) != cnp.PyArray_NDIM(<cnp.ndarray>x):
        return False
    for k in range(cnp.PyArray_NDIM(<cnp.ndarray>x)):
        if cnp.PyArray_DIMS(<cnp.ndarray>out)[k] != cnp.PyArray_DIMS(<cnp.ndarray>x)[k]:
            return False
    return cnp.PyArray_BYTES(<cnp.ndarray>out) == cnp.PyArray_BYTES(<cnp.ndarray>x) or apart(out, x)


cdef void run_layer_norm(int kind, const void *x, const void *gain, const void *bias, double eps, void *y,
                         size_t rows, size_t n, int threads) noexcept nogil:
    if kind == cnp.NPY_FLOAT32:
        lnrnn_layer_norm_f32(rows, n, <const float *>x, n, <const float *>gain, <const float *>bias, <float>eps,
                             <float *>y, n, threads)
    else:
        lnrnn_layer_norm_f64(rows, n, <const double *>x, n, <const double *>gain, <const double *>bias, eps,
                             <double *>y, n, threads)


# Elements below which letting other Python threads run costs more than it gives them.
cdef enum:
    SHORT = 16384


def layer_norm(x, shape, gain, bias, eps, out):
    """-> y, or None if an argument is not of the plainest kind: then nothing was done, and functional.layer_norm says
    what is wrong or makes plain ones of them."""
    cdef int kind, threads = num_threads
    cdef Py_ssize_t n, size
    cdef double e
    if not cnp.PyArray_CheckExact(x) or type(eps) is not float:
        return None
    kind = cnp.PyArray_TYPE(<cnp.ndarray>x)
    e = eps
    if (kind != cnp.NPY_FLOAT32 and kind != cnp.NPY_FLOAT64) or not plain(x, kind) or not 0 <= e < INFINITY:
        return None
    n = row_size(<cnp.ndarray>x, shape)
    size = cnp.PyArray_SIZE(<cnp.ndarray>x)
    if n == 0 or size == 0:
        return None
    if not row_parameter(gain, kind, x, shape, n) or not row_parameter(bias, kind, x, shape, n):
        return None
    if out is None:
        y = cnp.PyArray_EMPTY(cnp.PyArray_NDIM(<cnp.ndarray>x), cnp.PyArray_DIMS(<cnp.ndarray>x), kind, 0)
    else:
        y = out
        if (not writes_to(y, x, kind) or (gain is not None and not apart(y, gain))
                or (bias is not None and not apart(y, bias))):
            return None
    cdef const void *px = cnp.PyArray_DATA(<cnp.ndarray>x)
    cdef const void *pg = NULL if gain is None else cnp.PyArray_DATA(<cnp.ndarray>gain)
    cdef const void *pb = NULL if bias is None else cnp.PyArray_DATA(<cnp.ndarray>bias)
    cdef void *py = cnp.PyArray_DATA(<cnp.ndarray>y)
    if size < SHORT:
        run_layer_norm(kind, px, pg, pb, e, py, size // n, n, 1)
    else:
        with nogil:
            run_layer_norm(kind, px, pg, pb, e, py, size // n, n, threads)
    return y


cdef int c_layer_norm_backward(real tag, gy, x, gain, double eps, gx, ggain, gbias, size_t rows, size_t n) except -1:
    cdef const real *pgy = typed(gy, rows * n, False, tag)
    cdef const real *px = typed(x, rows * n, False, tag)
    cdef const real *pg = typed(gain, n, False, tag)
    cdef real *pgx = typed(gx, rows * n, True, tag)
    cdef double *dg = out_doubles(ggain, n)
    cdef double *db = out_doubles(gbias, n)
    cdef size_t need = lnrnn_layer_norm_work(rows, n)
    room = np.empty(need)
    cdef double *work = out_doubles(room, need)
    with nogil:
        if real is float:
            lnrnn_layer_norm_backward_f32(rows, n, pgy, px, pg, <float>eps, pgx, dg, db, work, num_threads)
        else:
            lnrnn_layer_norm_backward_f64(rows, n, pgy, px, pg, eps, pgx, dg, db, work, num_threads)
    return 0


def layer_norm_backward(gy, x, gain, double eps, gx, ggain, gbias, size_t rows, size_t n):
    if x.dtype == np.float32:
        c_layer_norm_backward[float](0, gy, x, gain, eps, gx, ggain, gbias, rows, n)
    else:
        c_layer_norm_backward[double](0, gy, x, gain, eps, gx, ggain, gbias, rows, n)


cdef int c_batch_moments(real tag, x, mean, m2, size_t N, size_t C, size_t L) except -1:
    cdef const real *px = typed(x, N * C * L, False, tag)
    cdef double *pm = out_doubles(mean, C)
    cdef double *pq = out_doubles(m2, C)
    with nogil:
        if real is float:
            lnrnn_batch_moments_f32(N, C, L, px, pm, pq, num_threads)
        else:
            lnrnn_batch_moments_f64(N, C, L, px, pm, pq, num_threads)
    return 0


def batch_moments(x, mean, m2, size_t N, size_t C, size_t L):
    if x.dtype == np.float32:
        c_batch_moments[float](0, x, mean, m2, N, C, L)
    else:
        c_batch_moments[double](0, x, mean, m2, N, C, L)


cdef int c_batch_fold(real tag, mean, m2, double count, gain, bias, double eps, at, scale, shift, size_t C) except -1:
    cdef const double *pm = <const double *>pointer(mean, cnp.NPY_FLOAT64, C, False)
    cdef const double *pq = <const double *>pointer(m2, cnp.NPY_FLOAT64, C, False)
    cdef const real *pg = typed(gain, C, False, tag)
    cdef const real *pb = typed(bias, C, False, tag)
    cdef real *pa = typed(at, C, True, tag)
    cdef real *ps = typed(scale, C, True, tag)
    cdef real *ph = typed(shift, C, True, tag)
    with nogil:
        if real is float:
            lnrnn_batch_fold_f32(C, pm, pq, count, pg, pb, eps, pa, ps, ph)
        else:
            lnrnn_batch_fold_f64(C, pm, pq, count, pg, pb, eps, pa, ps, ph)
    return 0


def batch_fold(mean, m2, double count, gain, bias, double eps, at, scale, shift, size_t C):
    if at.dtype == np.float32:
        c_batch_fold[float](0, mean, m2, count, gain, bias, eps, at, scale, shift, C)
    else:
        c_batch_fold[double](0, mean, m2, count, gain, bias, eps, at, scale, shift, C)


cdef int c_batch_affine(real tag, x, at, scale, shift, y, size_t N, size_t C, size_t L) except -1:
    cdef const real *px = typed(x, N * C * L, False, tag)
    cdef const real *pa = typed(at, C, False, tag)
    cdef const real *ps = typed(scale, C, False, tag)
    cdef const real *ph = typed(shift, C, False, tag)
    cdef real *py = typed(y, N * C * L, True, tag)
    with nogil:
        if real is float:
            lnrnn_batch_affine_f32(N, C, L, px, pa, ps, ph, py, num_threads)
        else:
            lnrnn_batch_affine_f64(N, C, L, px, pa, ps, ph, py, num_threads)
    return 0


def batch_affine(x, at, scale, shift, y, size_t N, size_t C, size_t L):
    if x.dtype == np.float32:
        c_batch_affine[float](0, x, at, scale, shift, y, N, C, L)
    else:
        c_batch_affine[double](0, x, at, scale, shift, y, N, C, L)


cdef int c_batch_sums(real tag, gy, x, at, sg, sgx, size_t N, size_t C, size_t L) except -1:
    cdef const real *pgy = typed(gy, N * C * L, False, tag)
    cdef const real *px = typed(x, N * C * L, False, tag)
    cdef const real *pa = typed(at, C, False, tag)
    cdef double *p0 = out_doubles(sg, C)
    cdef double *p1 = out_doubles(sgx, C)
    with nogil:
        if real is float:
            lnrnn_batch_sums_f32(N, C, L, pgy, px, pa, p0, p1, num_threads)
        else:
            lnrnn_batch_sums_f64(N, C, L, pgy, px, pa, p0, p1, num_threads)
    return 0


def batch_sums(gy, x, at, sg, sgx, size_t N, size_t C, size_t L):
    if x.dtype == np.float32:
        c_batch_sums[float](0, gy, x, at, sg, sgx, N, C, L)
    else:
        c_batch_sums[double](0, gy, x, at, sg, sgx, N, C, L)


cdef int c_batch_gx(real tag, gy, x, at, scale, c1, c2, gx, size_t N, size_t C, size_t L) except -1:
    cdef const real *pgy = typed(gy, N * C * L, False, tag)
    cdef const real *px = typed(x, N * C * L, False, tag)
    cdef const real *pa = typed(at, C, False, tag)
    cdef const real *ps = typed(scale, C, False, tag)
    cdef const real *p1 = typed(c1, C, False, tag)
    cdef const real *p2 = typed(c2, C, False, tag)
    cdef real *pgx = typed(gx, N * C * L, True, tag)
    with nogil:
        if real is float:
            lnrnn_batch_gx_f32(N, C, L, pgy, px, pa, ps, p1, p2, pgx, num_threads)
        else:
            lnrnn_batch_gx_f64(N, C, L, pgy, px, pa, ps, p1, p2, pgx, num_threads)
    return 0


def batch_gx(gy, x, at, scale, c1, c2, gx, size_t N, size_t C, size_t L):
    if x.dtype == np.float32:
        c_batch_gx[float](0, gy, x, at, scale, c1, c2, gx, N, C, L)
    else:
        c_batch_gx[double](0, gy, x, at, scale, c1, c2, gx, N, C, L)
