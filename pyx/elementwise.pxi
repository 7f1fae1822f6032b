# The elementwise functions. Part of _core.pyx. As those of layer_norm.pxi: None if an argument is not of the plainest kind.

Function = _enumeration("Function", EXP=LNRNN_MAP_EXP, TANH=LNRNN_MAP_TANH, SIGMOID=LNRNN_MAP_SIGMOID)


def map_f32(int function, x, out):
    """-> y, or None. function: a member of Function, or its value."""
    cdef int threads
    cdef Py_ssize_t n
    if not plain(x, cnp.NPY_FLOAT32) or (out is not None and not writes_to(out, x)):
        return None
    n = cnp.PyArray_SIZE(<cnp.ndarray>x)
    y = empty_like(x) if out is None else out
    cdef const float *px = <const float *>data(x)
    cdef float *py = <float *>data(y)
    threads = 1 if n < LNRNN_RELEASE_LOCK_ELEMENTS else allowed_threads()
    cdef PyThreadState *state = let_others(n >= LNRNN_RELEASE_LOCK_ELEMENTS)
    lnrnn_map(function, n, px, py, threads)
    go_on(state)
    return y
