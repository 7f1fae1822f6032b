# Norms and elementwise functions. They accept only ordinary arrays. For other arguments they return
# None: lnrnn/norm/functional.py then converts the arguments or raises an error.

Function = IntEnum(
    "Function", {"EXP": LNRNN_MAP_EXP, "TANH": LNRNN_MAP_TANH, "SIGMOID": LNRNN_MAP_SIGMOID}, module=__name__)

cdef int bfloat16 = -1  # typenum of ml_dtypes' bfloat16, once such an array was an argument


cdef inline int dtype_of(cnp.ndarray array) except -2:
    """Returns the array's dtype as LNRNN_FLOAT32 .. of lnrnn.h, or -1 if it has none of these dtypes."""
    global bfloat16
    cdef int kind = cnp.PyArray_TYPE(array)
    if kind == cnp.NPY_FLOAT32 or kind == cnp.NPY_FLOAT64:
        return LNRNN_FLOAT32 if kind == cnp.NPY_FLOAT32 else LNRNN_FLOAT64
    if kind >= 256 and bfloat16 < 0 and array.dtype.name == "bfloat16":  # 256: NPY_USERDEF
        bfloat16 = kind
    return LNRNN_FLOAT16 if kind == cnp.NPY_FLOAT16 else LNRNN_BFLOAT16 if kind == bfloat16 else -1


cdef inline bint is_double(object array) noexcept:
    return array is not None and cnp.PyArray_TYPE(<cnp.ndarray>array) == cnp.NPY_FLOAT64


cdef inline int computed_type(cnp.ndarray x) noexcept:
    """Returns the NumPy typenum in which x is computed, and which gains and biases have."""
    return cnp.NPY_FLOAT64 if is_double(x) else cnp.NPY_FLOAT32


cdef inline object widened(object parameter, object x):
    """Converts a parameter of x's 16-bit dtype to float32. Call it before checks: other threads may
    change arrays during the conversion."""
    if (parameter is None or not ordinary(x) or cnp.PyArray_ITEMSIZE(<cnp.ndarray>x) != 2
            or not plain(parameter, cnp.PyArray_TYPE(<cnp.ndarray>x))):
        return parameter
    return (<cnp.ndarray>parameter).astype(np.float32)


cdef inline bint parameter_fits(object parameter, int kind, cnp.ndarray x, int first, int axes) noexcept:
    """Returns True for None, and for an ordinary array of typenum `kind` with the shape of `axes` axes of x,
    beginning with axis `first`."""
    cdef int k
    if parameter is None:
        return True
    if not plain(parameter, kind) or cnp.PyArray_NDIM(<cnp.ndarray>parameter) != axes:
        return False
    for k in range(axes):
        if cnp.PyArray_DIMS(<cnp.ndarray>parameter)[k] != cnp.PyArray_DIMS(x)[first + k]:
            return False
    return True


cdef inline size_t product(cnp.ndarray x, int first, int end) noexcept:
    """Returns the product of the sizes of axes first .. end - 1 of x."""
    cdef size_t n = 1
    cdef int k
    for k in range(first, end):
        n *= cnp.PyArray_DIMS(x)[k]
    return n


cdef inline int threads_of(size_t elements) except -1:
    """Returns the thread limit, or 0 for few elements: one thread, without releasing the GIL."""
    return allowed_threads() if elements >= LNRNN_RELEASE_LOCK_ELEMENTS else 0


cdef inline bint takes(
        lnrnn_batch *b, cnp.ndarray x, int first, int axes, gain, bias, eps, gy, out) except -1:
    """Sets b from the arguments, without statistics and memory. x is seen as (N, C, L): C is `axes` axes of x
    beginning with `first`. gain, bias: (C). Returns False if an array is not ordinary, if x is empty, if gy
    lacks x's dtype or shape, or if `out` cannot be written."""
    cdef int kind = computed_type(x)
    if not ((type(eps) is float or type(eps) is int and eps == 0) and (gy is x or like(gy, x))
            and parameter_fits(gain, kind, x, first, axes) and parameter_fits(bias, kind, x, first, axes)):
        return False
    if out is not None and not (writable(out, x) and disjoint(out, gain) and disjoint(out, bias)):
        return False
    b.dtype, b.eps, b.x, b.gain, b.bias = dtype_of(x), eps, data(x), data(gain), data(bias)
    b.N, b.C = product(x, 0, first), product(x, first, first + axes)
    b.L = product(x, first + axes, cnp.PyArray_NDIM(x))
    b.threads = threads_of(b.N * b.C * b.L)
    return b.dtype >= 0 and 0 <= b.eps < INFINITY and b.N * b.C * b.L > 0


cdef inline bint takes_rows(lnrnn_batch *b, x, shape, gain, bias, eps, gy, out) except -1:
    """Sets b from the arguments of layer norm, as `takes` does. shape: an int or a tuple of ints, the
    sizes of the last axes of x."""
    cdef Py_ssize_t k, ndim, axes = len(<tuple>shape) if type(shape) is tuple else 1
    cdef int overflow
    if not ordinary(x) or not 0 < axes <= cnp.PyArray_NDIM(<cnp.ndarray>x):
        return False
    ndim = cnp.PyArray_NDIM(<cnp.ndarray>x)
    for k in range(axes):
        size = (<tuple>shape)[k] if type(shape) is tuple else shape
        if type(size) is not int:
            return False
        # the number is -1 after an overflow
        if PyLong_AsLongAndOverflow(size, &overflow) != cnp.PyArray_DIMS(<cnp.ndarray>x)[ndim - axes + k]:
            return False
    return takes(b, x, <int>(ndim - axes), <int>axes, gain, bias, eps, gy, out)


cdef inline bint is_statistic(object array, cnp.ndarray x) noexcept:
    return parameter_fits(array, cnp.NPY_FLOAT32, x, 1, 1) or parameter_fits(array, cnp.NPY_FLOAT64, x, 1, 1)


cdef inline bint takes_channels(
        lnrnn_batch *b, lnrnn_running *r, x, gain, bias, eps, gy, out, mean, var, training) except -1:
    """Sets b and r from the arguments of batch norm, as `takes` does. Inference needs mean and var; training
    needs several values per channel."""
    if (not ordinary(x) or type(training) is not bool or cnp.PyArray_NDIM(<cnp.ndarray>x) < 2
            or not is_statistic(mean, x) or not is_statistic(var, x)
            or not takes(b, x, 1, 1, gain, bias, eps, gy, out)):
        return False
    r.mean, r.var, r.mean_is_double, r.var_is_double = data(mean), data(var), is_double(mean), is_double(var)
    return b.N * b.L > 1 if training else mean is not None and var is not None


cdef inline bint can_update(object array, x, gain, bias, out, other) noexcept:
    return array is None or (
        cnp.PyArray_ISWRITEABLE(<cnp.ndarray>array) and disjoint(array, x) and disjoint(array, gain)
        and disjoint(array, bias) and disjoint(array, out) and disjoint(array, other))


cdef enum:
    FEW_DOUBLES = 1536  # doubles of working memory on the stack


cdef inline double *allocate(lnrnn_batch *b, size_t work, double *few) except NULL:
    """Sets b's memory: `few` (FEW_DOUBLES) if it suffices, else memory that `release` frees. Returns memory
    for (2, C) sums."""
    cdef size_t n = 4 * b.C + work
    b.mean = few if n <= FEW_DOUBLES else <double *>malloc(n * sizeof(double))
    if b.mean == NULL:
        raise MemoryError
    b.var, b.work = b.mean + b.C, b.mean + 4 * b.C
    return b.mean + 2 * b.C


cdef inline void release(lnrnn_batch *b, double *few) noexcept:
    if b.mean != few:
        free(b.mean)


cdef inline object some_eps(eps, x, bint centred):
    """Returns eps. If it is None, as RMS norm permits, returns the machine epsilon of the arithmetic."""
    if eps is None and not centred and ordinary(x):
        return DBL_EPSILON if is_double(x) else FLT_EPSILON
    return eps


def layer_norm(x, shape, gain, bias, eps, out, bint centred=True):
    """Returns y, or None for arguments that it does not accept. centred: False for RMS norm."""
    cdef lnrnn_batch b
    gain, bias, eps = widened(gain, x), widened(bias, x), some_eps(eps, x, centred)
    if not takes_rows(&b, x, shape, gain, bias, eps, x, out):
        return None
    y = empty_like(x) if out is None else out
    cdef void *py = data(y)
    cdef PyThreadState *gil = release_gil(b.threads)
    lnrnn_layer_norm(b.dtype, b.N, b.C, b.x, b.C, b.gain, b.bias, b.eps, py, b.C, centred, b.threads)
    acquire_gil(gil)
    return y


def batch_norm(x, mean, var, gain, bias, training, momentum, eps, out):
    """Returns y, or None for arguments that it does not accept. Training updates mean and var, unless they
    are None."""
    cdef lnrnn_batch b
    cdef lnrnn_running r
    if type(momentum) is not float or not 0 <= momentum <= 1:
        return None
    gain, bias = widened(gain, x), widened(bias, x)
    if (not takes_channels(&b, &r, x, gain, bias, eps, x, out, mean, var, training)
            or not disjoint(out, mean) or not disjoint(out, var)
            or training and not (can_update(mean, x, gain, bias, out, var)
                                 and can_update(var, x, gain, bias, out, mean))):
        return None
    y = empty_like(x) if out is None else out
    cdef void *py = data(y)
    cdef bint train = training
    cdef double few[FEW_DOUBLES]
    allocate(&b, lnrnn_batch_work(&b, train), few)
    if not train:
        lnrnn_read_running(&b, &r)
    cdef PyThreadState *gil = release_gil(b.threads)
    lnrnn_batch_norm(&b, py, train)
    acquire_gil(gil)
    if train:
        lnrnn_update_running(&b, &r, momentum)
    release(&b, few)
    return y


cdef inline tuple gradients(lnrnn_batch *b, const lnrnn_running *r, bint train, gy, x, ggain, gbias):
    """Returns gx, ggain and gbias. r: the running statistics of batch norm. r = NULL: layer norm if train is
    True, else RMS norm."""
    gx = empty_like(x)
    cdef void *pgy = data(gy)
    cdef void *pgx = data(gx)
    cdef double few[FEW_DOUBLES]
    cdef size_t work = lnrnn_layer_norm_work(b.N, b.C) if r == NULL else lnrnn_batch_work(b, True)
    cdef double *sums = allocate(b, work, few)
    if r != NULL and not train:
        lnrnn_read_running(b, r)
    cdef PyThreadState *gil = release_gil(b.threads)
    if r == NULL:
        lnrnn_layer_norm_backward(
            b.dtype, b.N, b.C, pgy, b.x, b.gain, b.eps, pgx, sums, sums + b.C, b.work, train, b.threads)
    else:
        lnrnn_batch_norm_backward(b, pgy, pgx, sums, sums + b.C, train)
    acquire_gil(gil)
    lnrnn_write_doubles(b.C, sums, data(ggain), is_double(ggain), False)
    lnrnn_write_doubles(b.C, sums + b.C, data(gbias), is_double(gbias), False)
    release(b, few)
    return gx, ggain, gbias


def layer_norm_backward(gy, x, shape, gain, bias, eps, bint centred=True):
    """Returns (gx, ggain or None, gbias or None), or None for arguments that it does not accept.
    centred: False for RMS norm."""
    cdef lnrnn_batch b
    gain, bias, eps = widened(gain, x), widened(bias, x), some_eps(eps, x, centred)
    if not takes_rows(&b, x, shape, gain, bias, eps, gy, None):
        return None
    ggain = None if gain is None else empty_like(gain)
    gbias = None if bias is None else empty_like(bias)
    return gradients(&b, NULL, centred, gy, x, ggain, gbias)


def batch_norm_backward(gy, x, mean, var, gain, training, eps):
    """Returns (gx, ggain or None, gbias), or None for arguments that it does not accept. mean, var: read
    only at inference."""
    cdef lnrnn_batch b
    cdef lnrnn_running r
    gain = widened(gain, x)
    if training is True:
        mean = var = None
    if not takes_channels(&b, &r, x, gain, None, eps, gy, None, mean, var, training):
        return None
    gbias = cnp.PyArray_EMPTY(1, cnp.PyArray_DIMS(<cnp.ndarray>x) + 1, computed_type(x), 0)
    return gradients(&b, &r, training, gy, x, gain if gain is None else empty_like(gain), gbias)


def map_f32(int function, x, out):
    """Returns y, or None for arguments that it does not accept. function: a member of Function, or its
    value."""
    if not plain(x, cnp.NPY_FLOAT32) or not (out is None or writable(out, x)):
        return None
    y = empty_like(x) if out is None else out
    cdef size_t n = cnp.PyArray_SIZE(<cnp.ndarray>x)
    cdef const float *px = <const float *>data(x)
    cdef float *py = <float *>data(y)
    cdef int threads = threads_of(n)
    cdef PyThreadState *gil = release_gil(threads)
    lnrnn_map(function, n, px, py, threads)
    acquire_gil(gil)
    return y
