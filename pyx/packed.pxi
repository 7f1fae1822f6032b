# Sequences in the order of torch's PackedSequence: the rows of all sequences at step 0, then at step 1, and
# so on, long sequences first.

def packed_rows(sizes, order, back, Py_ssize_t rows):
    """sizes (T,) int64: the number of sequences with a step t. order (B,) int64: the index of each sequence's
    state. back (B,) int64: the inverse of order. Both None: sequence b has state b.

    Returns the table of lnrnn/rnn/rows.py, for concatenated sequences as in `ragged`. Returns None if sizes
    rise or do not add up to `rows`, or if `order` and `back` are not inverse permutations."""
    cdef Py_ssize_t T, B, t, i, first = 0
    cdef const int64_t *n
    cdef const int64_t *state = NULL
    cdef const int64_t *inverse
    cdef lnrnn_row *row
    cdef cnp.npy_intp[2] dims = [0, sizeof(lnrnn_row) // sizeof(int64_t)]
    if not fits(sizes, cnp.NPY_INT64, 1, -1, -1, -1) or not cnp.PyArray_SIZE(<cnp.ndarray>sizes):
        return None
    n, T = <const int64_t *>data(sizes), cnp.PyArray_DIMS(<cnp.ndarray>sizes)[0]
    B = n[0]
    if B < 1 or B > rows or (order is None) != (back is None):
        return None
    if order is not None and not (fits(order, cnp.NPY_INT64, 1, B, -1, -1)
                                  and fits(back, cnp.NPY_INT64, 1, B, -1, -1)):
        return None
    for t in range(T):
        if n[t] < 1 or (t and n[t] > n[t - 1]) or n[t] > rows - first:
            return None
        first += n[t]
    if first != rows:
        return None
    dims[0] = B
    table = cnp.PyArray_ZEROS(2, dims, cnp.NPY_INT64, 0)
    row, t, first = <lnrnn_row *>data(table), T, 0
    if order is not None:
        state, inverse = <const int64_t *>data(order), <const int64_t *>data(back)
    for i in range(B):
        while n[t - 1] <= i:
            t -= 1
        row[i].first, row[i].length, row[i].end = first, t, first + t
        row[i].state = state[i] if state != NULL else i
        first += t
        if state != NULL and (state[i] < 0 or state[i] >= B or inverse[state[i]] != i):
            return None
    return table


def by_sequence(array, table):
    """array (N, width) float32 in the order of steps.

    Returns a new array in the order of sequences. table: from `packed_rows`.
    """
    return reordered(array, table, True)


def by_step(array, table):
    """Returns the inverse of `by_sequence`."""
    return reordered(array, table, False)


cdef object reordered(array, table, bint apart):
    cdef Py_ssize_t t = 0, i, active = axis(table, 0)
    cdef size_t width = axis(array, 1)
    cdef const lnrnn_row *row = <const lnrnn_row *>indices(table, 6 * <size_t>active)
    cdef cnp.npy_intp[2] dims = [axis(array, 0), width]
    cdef const float *given = floats(array, dims[0] * width)
    cdef float *found
    for i in range(active):
        if (row[i].first != t or row[i].length < 1 or row[i].length > dims[0] - t
                or (i and row[i].length > row[i - 1].length)):
            raise AssertionError(f"internal error: row {i} of a packed sequence")
        t += row[i].length
    if t != dims[0]:
        raise AssertionError(f"internal error: {t} steps in {dims[0]} rows")
    result = empty_of(2, dims, cnp.NPY_FLOAT32, dims[0] * width * sizeof(float))
    found, t = <float *>data(result), 0
    with nogil:
        while active:
            for i in range(active):
                if apart:
                    memcpy(found + (row[i].first + t) * width, given, width * sizeof(float))
                    given += width
                else:
                    memcpy(found, given + (row[i].first + t) * width, width * sizeof(float))
                    found += width
            t += 1
            while active and row[active - 1].length <= t:
                active -= 1
    return result
