# Streams: compute a step of some lanes.

LAST_STEP = LNRNN_LAST_STEP


cdef inline bint native_floats(object array, int ndim, Py_ssize_t n0, Py_ssize_t n1) noexcept:
    """Returns True for an exact float32 NumPy array in native byte order with shape (n0, n1); or (n1,) if
    n0 is 1. It need not be contiguous."""
    return (cnp.PyArray_CheckExact(array) and cnp.PyArray_TYPE(<cnp.ndarray>array) == cnp.NPY_FLOAT32
            and cnp.PyArray_ISNOTSWAPPED(<cnp.ndarray>array) and cnp.PyArray_NDIM(<cnp.ndarray>array) == ndim
            and cnp.PyArray_DIMS(<cnp.ndarray>array)[0] == (n0 if ndim == 2 else n1)
            and (cnp.PyArray_DIMS(<cnp.ndarray>array)[1] == n1 if ndim == 2 else n0 == 1))


@cython.final
cdef class Lanes:
    """The states and step counts of a stream's lanes. Computes steps of some lanes.

    states: float32 arrays h (layers, lanes, P) and, if the cell has one, c (layers, lanes, C). steps (lanes,)
    int64. Threads that step different lanes write to no common memory."""

    cdef readonly list states
    cdef readonly object steps
    cdef Network network
    cdef lnrnn_stream_fields stream
    cdef lnrnn_handle_fields *idle  # unused handles, linked by `next`

    def __init__(self, Network network, Py_ssize_t lanes, Py_ssize_t rows, zeros=np.zeros):
        """rows: the number of lanes in the first call, for which memory is allocated. zeros(shape, dtype):
        allocates the arrays."""
        cdef lnrnn_network_fields *packed = network.pack()
        self.network = network
        lnrnn_stream_of(&self.stream, packed, lanes)
        self.stream.references = 1 << 30  # lnrnn_stream_release must never free the stream
        # No comprehension: if memory for its list is exhausted, Cython 3.3 drops the reference to a new
        # element twice.
        self.states = []
        for width in (packed.h_width, packed.c_width)[:packed.states]:
            one = zeros((packed.layers, lanes, width), np.float32)
            self.states.append(one)
        self.steps = zeros((lanes,), np.int64)
        self.stream.steps, self.stream.h = <int64_t *>data(self.steps), <float *>data(self.states[0])
        self.stream.c = <float *>data(self.states[1]) if packed.states == 2 else NULL
        # A handle is created now, which packs the weights, so that the first step is quick.
        self.give(self.create(rows, threads_for(self.stream.step_work * rows, 0)))

    def __dealloc__(self):
        cdef lnrnn_handle_fields *h = self.idle
        while h != NULL:
            self.idle = h.next
            lnrnn_handle_free(<lnrnn_handle *>h)
            h = self.idle
        lnrnn_network_release(<lnrnn_network *>self.stream.network)

    cdef lnrnn_handle_fields *create(self, size_t rows, int threads) except NULL:
        """Creates a handle for the current instruction set."""
        cdef lnrnn_network_fields *network = self.network.pack()
        cdef lnrnn_handle *found
        cdef char message[LNRNN_MESSAGE]
        cdef int status
        # The critical section protects the network that this call reads: another thread may replace and
        # release the network too.
        with cython.critical_section(self):
            network, self.stream.network = self.stream.network, network
            status = lnrnn_handle_create(<lnrnn_stream *>&self.stream, rows, threads, &found, message)
        lnrnn_network_release(<lnrnn_network *>network)
        check(status, message)
        return <lnrnn_handle_fields *>found

    cdef lnrnn_handle_fields *take(self, size_t rows, int threads) except NULL:
        """Returns a handle that no other call uses. It has memory for more rows, because the next call may
        need more."""
        cdef lnrnn_handle_fields *h
        cdef size_t more = min(<size_t>self.stream.lanes, rows + rows // 4)
        with cython.critical_section(self):
            h = self.idle
            if h != NULL:
                self.idle = h.next
        if h != NULL and h.network.isa == lnrnn_isa_name():
            if h.rows == rows and h.call.threads == threads:
                return h
            if lnrnn_handle_fit(h, rows, threads):
                return h
        lnrnn_handle_free(<lnrnn_handle *>h)
        h = self.create(more, threads)
        if more == rows or lnrnn_handle_fit(h, rows, threads):
            return h
        lnrnn_handle_free(<lnrnn_handle *>h)
        return self.create(rows, threads)

    cdef int give(self, lnrnn_handle_fields *h) except -1:
        with cython.critical_section(self):
            h.next, self.idle = self.idle, h
        return 0

    cdef object begin(self, x, rows, out, resets, int threads, lnrnn_handle_fields **handle, double *work):
        """Checks a step's arguments, and adds its multiply-adds to *work. Returns y: `out` if it is an
        ordinary array, else a new array. *handle gets the inputs, or is NULL for a step of no lane. Returns
        None where `step` returns None; then *handle is NULL."""
        cdef Py_ssize_t R = self.stream.lanes, D = self.stream.inputs, P = self.stream.h_width
        cdef lnrnn_handle_fields *h
        cdef cnp.npy_intp dims[2]
        cdef int ndim = cnp.PyArray_NDIM(<cnp.ndarray>x) if cnp.PyArray_CheckExact(x) else 0
        handle[0] = NULL
        if rows is not None:
            if not fits(rows, cnp.NPY_INT64, 1, -1, -1, -1):
                return None
            R = cnp.PyArray_SIZE(<cnp.ndarray>rows)
        if R > <Py_ssize_t>self.stream.lanes or ndim < 1 or ndim > 2 or not native_floats(x, ndim, R, D):
            return None
        if resets is not None and not fits(resets, cnp.NPY_BOOL, 1, R, -1, -1):
            return None
        if out is not None and not (native_floats(out, ndim, R, P)
                                    and cnp.PyArray_ISWRITEABLE(<cnp.ndarray>out)):
            return None
        x = x if ordinary(x) else copied(x)
        dims[0], dims[ndim - 1] = R, P
        y = out if ordinary(out) else empty_of(ndim, dims, cnp.NPY_FLOAT32, R * P * sizeof(float))
        if R == 0:
            return y
        work[0] += self.stream.step_work * R
        h = self.take(R, threads_for(self.stream.step_work * R, threads))
        memcpy(h.x, data(x), R * D * sizeof(float))
        if lnrnn_handle_choose(h, <const int64_t *>data(rows), <const unsigned char *>data(resets)):
            self.give(h)
            return None
        handle[0] = h
        return y

    cpdef object step(self, x, rows, out, resets, int threads):
        """Computes one step. x (R, D), or (D,) for one lane. rows (R,) int64: the lanes, or None for all.
        resets (R,) or None. Returns y (R, P) or (P,): `out`, which may be x, or a new array. threads 0: the
        global limit.

        Returns None for arguments that are not arrays of these dtypes and shapes, for invalid lanes and for a
        step without statistics. The caller then raises the error. No lane has changed then, nor after a
        MemoryError. No signal is handled during the step."""
        cdef double work = 0
        cdef PyThreadState *state
        cdef lnrnn_handle_fields *h
        y = self.begin(x, rows, out, resets, threads, &h, &work)
        if h != NULL:
            state = release_gil(work >= LNRNN_RELEASE_LOCK_WORK)
            lnrnn_handle_run(h, <float *>data(y))
            acquire_gil(state)
            self.give(h)
        if y is None or out is None or y is out:
            return y
        cnp.PyArray_CopyInto(<cnp.ndarray>out, <cnp.ndarray>y)
        return out

    def put(self, rows, list states, steps):
        """Sets states and step counts of lanes `rows`, (R,) int64. states: (layers, R, *) float32; None: 0;
        [] leaves the states. steps: (R,) int64; None leaves the counts. After an error no lane has changed.
        No signal is handled meanwhile."""
        cdef Py_ssize_t R = axis(rows, 0), k
        cdef const float *given[2]
        if states and len(states) != len(self.states):
            raise AssertionError(f"internal error: {len(states)} states, of {len(self.states)}")
        for k in range(len(states)):
            shape = self.states[k].shape
            given[k] = floats(states[k], <size_t>shape[0] * R * <size_t>shape[2])
        if not lnrnn_stream_put(
                &self.stream, indices(rows, R), R, given if states else NULL, indices(steps, R)):
            raise AssertionError(f"internal error: lanes {rows}, steps {steps}")


cdef class StreamBase:
    """The base class of Stream, with `__call__`. As a Python function it would take a quarter of the time
    of a small step."""

    cdef public Lanes _lanes

    def __call__(self, x, lanes=None, *, out=None, lengths=None, resets=None, threads=None):
        if (self._lanes is not None and lengths is None and threads is None
                and not (self._lanes.stream.together and (lanes is not None or resets is not None))):
            y = self._lanes.step(x, lanes, out, resets, 0)
            if y is not None:
                return y
        return self._converted(x, lanes, out, lengths, resets, threads)


def step_all(list steps, int threads):
    """Computes one step of several streams. steps: (stream, x) for all lanes of a stream, or (lanes, x, rows)
    for some lanes of a Lanes. x (R, D), or (D,) for one lane. Returns [y, ...], new arrays (R, P) or (P,).
    threads: as in Lanes.step.

    Returns None if Lanes.step would return None for an element, or if a stream occurs twice. No lane has
    changed then, nor after a MemoryError. No signal is handled during the call.
    """
    cdef Py_ssize_t n = len(steps), k
    cdef double work = 0
    cdef PyThreadState *state
    cdef tuple pair
    cdef list lanes = [], results = []
    cdef lnrnn_handle_fields **handles = <lnrnn_handle_fields **>calloc(n + 1, sizeof(lnrnn_handle_fields *))
    if handles == NULL:
        raise MemoryError
    try:
        for k in range(n):
            if type(steps[k]) is not tuple or not 2 <= len(<tuple>steps[k]) <= 3:
                return None
            pair = steps[k]
            found = pair[0]
            if len(pair) == 2:
                found = (<StreamBase>found)._lanes if isinstance(found, StreamBase) else None
            if type(found) is not Lanes:
                return None
            lanes.append(found)
            results.append((<Lanes>found).begin(
                pair[1], pair[2] if len(pair) == 3 else None, None, None, threads, &handles[k], &work))
            if handles[k] == NULL:
                return None
        if len(set(lanes)) != n:
            return None
        state = release_gil(work >= LNRNN_RELEASE_LOCK_WORK)
        for k in range(n):
            lnrnn_handle_run(handles[k], <float *>cnp.PyArray_DATA(<cnp.ndarray>results[k]))
        acquire_gil(state)
        return results
    finally:
        for k in range(len(lanes)):
            if handles[k] != NULL:
                (<Lanes>lanes[k]).give(handles[k])
        free(handles)


# --- session pools
# -------------------------------------------------------------------------------------------

def lanes_of(list tables, ids):
    """Returns the lanes of `ids`, a list or tuple, as int64 (R,), or None if an id has no lane. tables: 2**n
    dicts {id: lane}; an id's hash selects the dict."""
    cdef Py_ssize_t k, last = len(tables) - 1
    cdef cnp.npy_intp dims[1]
    cdef PyObject *found
    dims[0] = len(ids)
    rows = cnp.PyArray_EMPTY(1, dims, cnp.NPY_INT64, 0)
    cdef int64_t *to = <int64_t *>data(rows)
    for k in range(dims[0]):
        each = ids[k]
        found = PyDict_GetItemWithError(<dict>tables[hash(each) & last], each)
        if found == NULL:
            return None
        to[k] = <int64_t>(<object>found)
    return rows


def all_finite(x, Py_ssize_t n0, Py_ssize_t n1):
    """Returns True if x is an ordinary float32 array (n0, n1) without NaN and infinity."""
    if not (native_floats(x, 2, n0, n1) and ordinary(x)):
        return False
    cdef const uint32_t *bits = <const uint32_t *>data(x)
    cdef uint32_t infinite = 0x7F800000, wrong = 0
    cdef Py_ssize_t k
    for k in range(n0 * n1):
        wrong |= (bits[k] & infinite) == infinite
    return wrong == 0
