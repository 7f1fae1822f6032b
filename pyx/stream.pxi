# One step of some lanes of a stream. Part of _core.pyx.

LAST_STEP = LNRNN_LAST_STEP


cdef inline bint native_floats(object array) noexcept:
    """A numpy array, no subclass, of float32 in the machine's byte order?"""
    return (cnp.PyArray_CheckExact(array) and cnp.PyArray_TYPE(<cnp.ndarray>array) == cnp.NPY_FLOAT32
            and cnp.PyArray_ISNOTSWAPPED(<cnp.ndarray>array))


cdef class Workspace:
    """The memory with which a call steps R rows: a call of another thread has another one."""

    cdef lnrnn_handle_fields handle
    cdef Packed packed
    cdef object memory, scratch
    cdef float *y  # (R, H), for a result that is not contiguous

    cdef int prepare(self, Lanes lanes, size_t rows, int threads) except -1:
        """For calls on so many rows."""
        cdef lnrnn_handle_fields *h = &self.handle
        cdef lnrnn_network_fields *network
        cdef size_t need
        self.packed = None  # until all is ready
        packed = lanes.network.pack()
        network = &(<Packed>packed).value
        memset(h, 0, sizeof(h[0]))
        h.stream, h.rows = &lanes.stream, rows
        self.memory = aligned(lnrnn_handle_memory(network, lanes.stream.lanes, rows) // sizeof(float))
        memset(data(self.memory), 0, cnp.PyArray_NBYTES(<cnp.ndarray>self.memory))
        need = lnrnn_handle_prepare(h, network, threads, data(self.memory))
        self.scratch = aligned(need + rows * network.units)
        h.call.scratch = <float *>data(self.scratch)
        self.y = h.call.scratch + need
        self.packed = packed
        return 0

    cdef void touch(self) noexcept:
        """Before the first step: every page of its memory is there by then."""
        memset(data(self.scratch), 0, cnp.PyArray_NBYTES(<cnp.ndarray>self.scratch))


cdef void copy_rows(float *to, ptrdiff_t to_row, ptrdiff_t to_value, const float *from_, ptrdiff_t row, ptrdiff_t value,
                    size_t rows, size_t width) noexcept:
    """(rows, width); strides in bytes. Addresses need no alignment."""
    cdef size_t i, j
    for i in range(rows):
        for j in range(width):
            memcpy(<char *>to + <ptrdiff_t>i * to_row + <ptrdiff_t>j * to_value,
                   <const char *>from_ + <ptrdiff_t>i * row + <ptrdiff_t>j * value, sizeof(float))


cdef class Lanes:
    """The states and steps of a stream's lanes, and the step that some of them take.

    states: arrays (layers, lanes, H), float32, one or two; steps (lanes,) int64. Threads that step different lanes
    share nothing that is written.
    """

    cdef readonly list states
    cdef readonly object steps
    cdef Network network
    cdef lnrnn_stream_fields stream
    cdef Packed packed # the stream's network
    cdef Py_ssize_t lanes
    cdef int64_t *step_of
    cdef Workspace spare
    cdef list more

    def __init__(self, Network network, Py_ssize_t lanes):
        self.network, self.lanes = network, lanes
        shape = len(network.layers), lanes, network.net.units
        # No comprehension: where there is no memory for its list, Cython 3.3 gives a new element up twice.
        self.states = []
        for _ in range(network.net.states):
            one = np.zeros(shape, np.float32)
            self.states.append(one)
        self.steps = np.zeros(lanes, np.int64)
        self.step_of = <int64_t *>cnp.PyArray_DATA(<cnp.ndarray>self.steps)
        self.more = []
        self.packed = network.pack()
        self.stream.network, self.stream.lanes, self.stream.references = &self.packed.value, lanes, 1
        self.stream.h, self.stream.steps = <float *>data(self.states[0]), self.step_of
        self.stream.c = <float *>data(self.states[1]) if network.net.states == 2 else NULL
        self.give(self.take(lanes, threads_for(network.net.step_work * lanes, 0))) # so that the first step has nothing to pack

    cdef Workspace take(self, Py_ssize_t rows, int threads):
        """A workspace that no other call has."""
        cdef Workspace found
        with cython.critical_section(self):
            found = self.spare
            self.spare = None
            if found is None and self.more:
                found = self.more.pop()
        if found is None:
            found = Workspace()
        if (found.packed is None or found.handle.rows != <size_t>rows or found.handle.call.threads != threads
                or found.packed.value.isa != lnrnn_isa_name()):
            found.prepare(self, rows, threads)
        return found

    cdef int give(self, Workspace found) except -1:
        with cython.critical_section(self):
            if self.spare is None:
                self.spare = found
            else:
                self.more.append(found)
        return 0

    def step(self, x, rows, out, resets, int threads):
        """x (R, D), or (D,) for one row -> y (R, H), or (H,): out, or a new array; x may be out. rows (R,)
        int64, or None for all; resets (R,) or None. threads: 0: as set for all calls.

        -> None, and nothing has changed, for arguments that are not arrays of these types and shapes, for wrong lanes,
        and for a step that is refused. The caller then looks closer. Or an error, of memory, and nothing has changed. No
        signal is handled in between.
        """
        cdef Py_ssize_t R = self.lanes, D = self.network.net.inputs, H = self.network.net.units
        cdef int ndim
        cdef cnp.npy_intp *shape
        cdef cnp.npy_intp *step
        cdef cnp.npy_intp dims[2]
        cdef const int64_t *chosen = NULL
        cdef const cnp.npy_bool *fresh = NULL
        cdef double multiply_adds
        cdef PyThreadState *state
        cdef Workspace work
        cdef float *py
        if not native_floats(x):
            return None
        ndim, shape = cnp.PyArray_NDIM(<cnp.ndarray>x), cnp.PyArray_DIMS(<cnp.ndarray>x)
        if rows is not None:
            if not plain(rows, cnp.NPY_INT64) or cnp.PyArray_NDIM(<cnp.ndarray>rows) != 1:
                return None
            R, chosen = cnp.PyArray_SIZE(<cnp.ndarray>rows), <const int64_t *>cnp.PyArray_DATA(<cnp.ndarray>rows)
        if not (ndim == 2 and shape[0] == R and shape[1] == D or ndim == 1 and R == 1 and shape[0] == D):
            return None
        if resets is not None:
            if not plain(resets, cnp.NPY_BOOL) or cnp.PyArray_NDIM(<cnp.ndarray>resets) != 1 or cnp.PyArray_SIZE(<cnp.ndarray>resets) != R:
                return None
            fresh = <const cnp.npy_bool *>cnp.PyArray_DATA(<cnp.ndarray>resets)
        dims[0], dims[ndim - 1] = R, H
        y = out
        if out is None:
            y = empty_of(ndim, dims, cnp.NPY_FLOAT32, R * H * sizeof(float))
        elif (not native_floats(out) or not cnp.PyArray_ISWRITEABLE(<cnp.ndarray>out)
                or cnp.PyArray_NDIM(<cnp.ndarray>out) != ndim or cnp.PyArray_DIMS(<cnp.ndarray>out)[0] != dims[0]
                or cnp.PyArray_DIMS(<cnp.ndarray>out)[ndim - 1] != H):
            return None
        multiply_adds = self.network.net.step_work * R
        work = self.take(R, threads_for(multiply_adds, threads))
        py = <float *>data(y) if ordinary(y) else work.y
        if cnp.PyArray_ISCARRAY_RO(<cnp.ndarray>x):
            memcpy(work.handle.x, data(x), R * D * sizeof(float))
        else:
            step = cnp.PyArray_STRIDES(<cnp.ndarray>x)
            copy_rows(work.handle.x, D * sizeof(float), sizeof(float), <float *>data(x), step[0], step[ndim - 1], R, D)
        if lnrnn_handle_choose(&work.handle, chosen, fresh):
            self.give(work)
            return None
        state = release_gil(multiply_adds >= LNRNN_RELEASE_LOCK_WORK)
        lnrnn_handle_run(&work.handle, py)
        acquire_gil(state)
        if py == work.y:
            step = cnp.PyArray_STRIDES(<cnp.ndarray>y)
            copy_rows(<float *>data(y), step[0], step[ndim - 1], py, H * sizeof(float), sizeof(float), R, H)
        self.give(work)
        return y

    def put(self, rows, list states, steps):
        """Sets these lanes, (R,) int64: states, (layers, R, H) float32 each, and steps, (R,) int64; None: 0,
        but of steps, where states are given: as they are. All of it or, on an error, nothing; no signal is
        handled in between."""
        cdef Py_ssize_t R = axis(rows, 0), L = len(self.network.layers), i, k
        cdef size_t row = self.network.net.units * sizeof(float)
        cdef const int64_t *chosen = indices(rows, R)
        cdef const int64_t *given = indices(steps, R)
        cdef const char *source
        cdef char *to
        if states and len(states) != len(self.states):
            raise AssertionError(f"broken promise: {len(states)} states, of {len(self.states)}")
        for i in range(R):
            if chosen[i] < 0 or chosen[i] >= self.lanes:
                raise AssertionError(f"broken promise: lane {chosen[i]}")
            # Statistics of the batch are those of one step.
            if given != NULL and (given[i] < 0 or given[i] > LNRNN_LAST_STEP or (self.network.net.together and given[i] != given[0])):
                raise AssertionError(f"broken promise: step {given[i]}")
        for new in states:
            floats(new, L * R * self.network.net.units)
        for own, new in zip(self.states, states):
            to, source = <char *>data(own), <const char *>data(new)
            for k in range(L * R):
                i = k // R * self.lanes + chosen[k % R]
                if source == NULL:
                    memset(to + i * row, 0, row)
                else:
                    memcpy(to + i * row, source + k * row, row)
        for i in range(R if given != NULL else 0):
            self.step_of[chosen[i]] = given[i]
