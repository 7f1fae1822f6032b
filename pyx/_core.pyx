# cython: language_level=3
"""Buffers to pointers, and nothing else: the Python above has checked and allocated, the C below cannot fail.

What the Python above promises is asserted here once more where a broken promise would mean a wild pointer.
"""
cimport numpy as cnp
from libc.math cimport INFINITY
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memset

from lnrnn_c cimport *

import numpy as np

cnp.import_array()

cdef int num_threads = 1


# --- the machine ---------------------------------------------------------------------------------------------

def isa_list():
    cdef const char *names[8]
    cdef size_t n = lnrnn_isa_list(names)
    return [names[i].decode() for i in range(n)]


def isa():
    return lnrnn_isa_name().decode()


def use_isa(str name):
    """Switches the kernels of the whole process. The import does it for LNRNN_ISA, tests for themselves."""
    if lnrnn_isa_use(name.encode()):
        raise ValueError(f"instruction set {name!r} is not available here; available: {', '.join(isa_list())}")


def has_openmp():
    return bool(lnrnn_has_openmp())


def cores():
    return lnrnn_cores()


def get_num_threads():
    return num_threads


def set_num_threads(int n):
    global num_threads
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    num_threads = n


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


cdef int strided(object array, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t n2, bint writable, float **data,
                 ptrdiff_t *s0, ptrdiff_t *s1) except -1:
    """A float32 array (n0, n1, n2) whose last axis is contiguous: data, and the two strides in elements."""
    cdef cnp.ndarray a = <cnp.ndarray?>array
    cdef cnp.npy_intp *shape = cnp.PyArray_DIMS(a)
    cdef cnp.npy_intp *step = cnp.PyArray_STRIDES(a)
    if (cnp.PyArray_TYPE(a) != cnp.NPY_FLOAT32 or cnp.PyArray_NDIM(a) != 3 or not cnp.PyArray_ISALIGNED(a)
            or shape[0] != n0 or shape[1] != n1 or shape[2] != n2 or (n2 > 1 and step[2] != 4)
            or (writable and not cnp.PyArray_ISWRITEABLE(a)) or step[0] % 4 or step[1] % 4):
        raise AssertionError(f"broken promise: {array.dtype} {array.shape} {array.strides}")
    data[0] = <float *>cnp.PyArray_DATA(a)
    s0[0] = step[0] // 4
    s1[0] = step[1] // 4
    return 0


def aligned(size_t n):
    """n float32, not initialised, at an address that is a multiple of 64."""
    a = np.empty(n + 16, np.float32)
    cdef uintptr_t address = <uintptr_t>cnp.PyArray_DATA(<cnp.ndarray>a)
    cdef size_t skip = (64 - address % 64) % 64 // 4
    return a[skip:skip + n]


# --- functions and norms -------------------------------------------------------------------------------------

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
    cdef const double *pm = out_doubles(mean, C)
    cdef const double *pq = out_doubles(m2, C)
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


# --- one recurrent layer, one direction ----------------------------------------------------------------------

cdef class Layer:
    """Parameters of one layer in one direction, packed for the instruction set in use.

    weight_ih (H, D), weight_hh (H, H), gain (H) or None, bias (H): float32, contiguous; kept, not copied, and not to be
    changed. act: 0 tanh, 1 relu, 2 sigmoid, 3 identity. norm: 0 none, 1 layer, 2 batch.
    """

    cdef lnrnn_rnn r
    cdef object weights, parameters, tables, packed, transposed, packed_for

    def __init__(self, weight_ih, weight_hh, gain, bias, int act, int norm, double eps, bint reverse):
        cdef size_t H = weight_ih.shape[0], I = weight_ih.shape[1]
        floats(weight_ih, H * I)
        floats(weight_hh, H * H)
        memset(&self.r, 0, sizeof(self.r))
        self.weights = (weight_ih, weight_hh)
        self.parameters = (gain, bias)
        self.r.D, self.r.H = I, H
        self.r.gain, self.r.bias = floats(gain, H), floats(bias, H)
        self.r.act, self.r.norm, self.r.eps, self.r.reverse = act, norm, <float>eps, reverse

    def set_steps(self, scale, shift, size_t known, ptrdiff_t beyond):
        """Batch norm at inference: scale, shift (rows, H) by step; beyond: the row for steps from `known` on, or -1."""
        cdef size_t rows = scale.shape[0]
        if known > rows or beyond >= <ptrdiff_t>rows or (beyond < 0 and beyond != -1):
            raise AssertionError(f"broken promise: {known} known steps, beyond {beyond}, {rows} rows")
        self.r.scale, self.r.shift = floats(scale, rows * self.r.H), floats(shift, rows * self.r.H)
        self.r.known, self.r.beyond = known, beyond
        self.tables = (scale, shift)

    cdef int pack(self) except -1:
        name = isa()
        if self.packed_for != name:
            self.packed = [packed(w, False) for w in self.weights]
            self.transposed = None
            self.packed_for = name
            self.r.w_ih = floats(self.packed[0], self.packed[0].size)
            self.r.w_hh = floats(self.packed[1], self.packed[1].size)
        return 0

    @property
    def nbytes(self):
        """Bytes of the packed weights; 0 before the first call."""
        return sum(a.nbytes for a in self.packed or ()) + sum(a.nbytes for a in self.transposed or ())

    cdef int describe(self, lnrnn_rnn *r, x, y, h0, hn, order, length, size_t start, statistics, tape) except -1:
        cdef ptrdiff_t T = x.shape[0], B = x.shape[1], I = self.r.D, H = self.r.H
        cdef float *px = NULL
        self.pack()
        r[0] = self.r
        r.T, r.B = T, B
        strided(x, T, B, I, False, &px, &r.xt, &r.xb)
        r.x = px
        strided(y, T, B, H, True, &r.y, &r.yt, &r.yb)
        r.h0, r.hn = floats(h0, B * H), out_floats(hn, B * H)
        r.order, r.length = indices(order, B), indices(length, B)
        r.start = start
        r.threads = num_threads
        if statistics is not None:
            mean, var, count = statistics
            r.mean, r.var = out_doubles(mean, T * H), out_doubles(var, T * H)
            r.count = <int64_t *>pointer(count, cnp.NPY_INT64, T, True)
        if tape is not None:
            r.tape = out_floats(tape, tape.size)
        return 0

    def forward(self, x, y, h0, hn, order, length, size_t start=0, statistics=None, tape=None):
        """x (T, B, I), h0 (B, H) -> y (T, B, H), hn (B, H).

        order (B): the sequences, longest first; length (B): their lengths in that order, checked by the caller.
        statistics: arrays mean, var (T, H) and count (T) that make batch norm use and report those of the batch.
        tape: tape_size floats for backward.
        """
        cdef lnrnn_rnn r
        self.describe(&r, x, y, h0, hn, order, length, start, statistics, tape)
        cdef size_t need = lnrnn_rnn_plan(&r)
        work = aligned(need)
        r.work = out_floats(work, need)
        with nogil:
            lnrnn_rnn_forward(&r)

    def tape(self, size_t rows):
        """An empty tape for `rows` living steps."""
        return aligned(lnrnn_packed_size(self.r.H, 1) * rows)

    def backward(self, x, y, h0, order, length, statistics, tape, gy, ghn, gx, gh0, gw_ih, gw_hh, ggain, gbias):
        """Gradients of what forward did with the same arguments; the arrays gx .. gbias are written."""
        cdef lnrnn_rnn r
        cdef lnrnn_rnn_gradients g
        cdef size_t T = x.shape[0], B = x.shape[1], I = self.r.D, H = self.r.H, need
        cdef float *pgy = NULL
        self.describe(&r, x, y, h0, np.empty_like(h0), order, length, 0, statistics, tape)
        if self.transposed is None:
            self.transposed = [packed(w, True) for w in self.weights]
        strided(gy, T, B, H, False, &pgy, &g.gyt, &g.gyb)
        g.gy, g.ghn = pgy, floats(ghn, B * H)
        g.w_ih_t = floats(self.transposed[0], self.transposed[0].size)
        g.w_hh_t = floats(self.transposed[1], self.transposed[1].size)
        g.gx, g.gh0 = out_floats(gx, T * B * I), out_floats(gh0, B * H)
        g.gw_ih, g.gw_hh = out_floats(gw_ih, H * I), out_floats(gw_hh, H * H)
        g.ggain, g.gbias = out_doubles(ggain, H), out_doubles(gbias, H)
        living = 2 * int(np.sum(length))
        rows = np.empty(living, np.uintp)
        g.rows = <const float **>cnp.PyArray_DATA(<cnp.ndarray>rows)
        lnrnn_rnn_plan(&r)
        need = lnrnn_rnn_backward_work(&r)
        work = aligned(need)
        g.work = out_floats(work, need)
        with nogil:
            lnrnn_rnn_backward(&r, &g)


cdef class Step:
    """One step of a Layer on buffers that stay: a call allocates nothing.

    x (1, B, D) is read, y (1, B, H) written, h (B, H) read and written. The arrays are kept.
    """

    cdef lnrnn_rnn r
    cdef Layer layer
    cdef object buffers, work
    cdef const char *packed_for

    def __init__(self, Layer layer, x, y, h):
        cdef size_t B = x.shape[1]
        self.layer = layer
        self.buffers = (x, y, h, np.arange(B, dtype=np.int64), np.ones(B, np.int64))
        self.prepare()

    cdef int prepare(self) except -1:
        x, y, h, order, length = self.buffers
        self.layer.describe(&self.r, x, y, h, h, order, length, 0, None, None)
        cdef size_t need = lnrnn_rnn_plan(&self.r)
        self.work = aligned(need)
        self.r.work = out_floats(self.work, need)
        self.packed_for = lnrnn_isa_name()
        return 0

    def __call__(self, size_t step):
        """step: how many came before, for the statistics of batch norm."""
        if self.packed_for != lnrnn_isa_name() or self.r.threads != num_threads:
            self.prepare()
        self.r.start = step
        with nogil:
            lnrnn_rnn_forward(&self.r)


def packed(w, bint transpose):
    """w (n, k) or its transpose, in panels for the instruction set in use."""
    cdef size_t n = w.shape[0], k = w.shape[1]
    cdef const float *p = floats(w, n * k)
    cdef size_t rows = k if transpose else n, columns = n if transpose else k
    out = aligned(lnrnn_packed_size(rows, columns))
    cdef float *q = out_floats(out, out.size)
    cdef ptrdiff_t row = 1 if transpose else <ptrdiff_t>k, column = <ptrdiff_t>k if transpose else 1
    with nogil:
        lnrnn_pack(rows, columns, p, row, column, q)
    return out
