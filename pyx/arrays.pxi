# Quick checks of arrays, and functions that release the GIL.

cdef inline bint ordinary(object array) noexcept:
    """Returns True for an exact NumPy array that is C-contiguous, aligned and in native byte order."""
    return cnp.PyArray_CheckExact(array) and cnp.PyArray_ISCARRAY_RO(<cnp.ndarray>array)


cdef inline bint plain(object array, int kind) noexcept:
    """Returns True for an ordinary array with the NumPy typenum `kind`."""
    return ordinary(array) and cnp.PyArray_TYPE(<cnp.ndarray>array) == kind


cdef inline bint like(object array, object x) noexcept:
    """Returns True for an ordinary array with the dtype and shape of x."""
    return (plain(array, cnp.PyArray_TYPE(<cnp.ndarray>x))
            and cnp.PyArray_SAMESHAPE(<cnp.ndarray>array, <cnp.ndarray>x))


cdef inline bint disjoint(object a, object b) noexcept:
    """Returns True if two C-contiguous arrays share no memory, or if one is None."""
    if a is None or b is None:
        return True
    cdef char *p = cnp.PyArray_BYTES(<cnp.ndarray>a)
    cdef char *q = cnp.PyArray_BYTES(<cnp.ndarray>b)
    return p + cnp.PyArray_NBYTES(<cnp.ndarray>a) <= q or q + cnp.PyArray_NBYTES(<cnp.ndarray>b) <= p


cdef inline bint writable(object out, object x) noexcept:
    """Returns True if `out` is writeable, has the dtype and shape of x, and is x itself or shares no memory
    with x."""
    return (like(out, x) and cnp.PyArray_ISWRITEABLE(<cnp.ndarray>out)
            and (cnp.PyArray_BYTES(<cnp.ndarray>out) == cnp.PyArray_BYTES(<cnp.ndarray>x)
                 or disjoint(out, x)))


cdef inline void *data(object array) noexcept:
    return NULL if array is None else cnp.PyArray_DATA(<cnp.ndarray>array)


cdef inline object read_only(object array):
    cnp.PyArray_CLEARFLAGS(<cnp.ndarray>array, cnp.NPY_ARRAY_WRITEABLE)
    return array


# If `release` is set, other Python threads can run between release_gil and acquire_gil. No Python objects
# may be used there.

cdef inline PyThreadState *release_gil(bint release) noexcept:
    return PyEval_SaveThread() if release else NULL


cdef inline void acquire_gil(PyThreadState *state) noexcept:
    if state != NULL:
        PyEval_RestoreThread(state)
