# One step of some lanes of a stream. Part of _core.pyx.

cdef int64_t last_step = <int64_t>1 << 62 # so that a count of steps and those of a call never overflow
LAST_STEP = last_step


cdef inline bint native_floats(object array) noexcept:
    """A numpy array, no subclass, of float32 in the machine's byte order?"""
    return (cnp.PyArray_CheckExact(array) and cnp.PyArray_TYPE(<cnp.ndarray>array) == cnp.NPY_FLOAT32
            and cnp.PyArray_ISNOTSWAPPED(<cnp.ndarray>array))


cdef class Workspace:
    """What one call on R rows works with: a call of another thread has another one.

    handle: of pyx/rnn/stream.c, which does the step; and its memory: the table of rows, a copy of x (R, D),
    y (R, H) for a result that is not contiguous, what two layers in turn write (R, H), scratch, and for each
    layer its call and its plan.
    """

    cdef lnrnn_handle handle
    cdef lnrnn_rnn_plan *plans
    cdef Py_ssize_t rows
    cdef int threads
    cdef const char *packed_for
    cdef object table, x, x_flat, y, y_flat, between, scratch, seen
    cdef list kept

    def __cinit__(self, Lanes lanes):
        cdef lnrnn_handle *s = &self.handle
        s.inputs, s.units, s.layers, s.lanes = lanes.inputs, lanes.units, len(lanes.layers), lanes.lanes
        s.by_step, s.together, s.refused_from = lanes.by_step, lanes.together, lanes.refused_from
        s.steps = lanes.step_of
        s.calls = <lnrnn_rnn_call *>malloc(s.layers * sizeof(lnrnn_rnn_call))
        self.plans = <lnrnn_rnn_plan *>malloc(s.layers * sizeof(lnrnn_rnn_plan))
        if s.calls == NULL or self.plans == NULL:
            raise MemoryError
        self.rows = -1
        self.seen = np.zeros(lanes.lanes, np.int64)
        s.seen = <int64_t *>cnp.PyArray_DATA(<cnp.ndarray>self.seen)

    def __dealloc__(self):
        free(self.handle.calls)
        free(self.plans)

    cdef int prepare(self, Lanes lanes, Py_ssize_t rows, int threads) except -1:
        """For calls on so many rows."""
        cdef Py_ssize_t k, layers = len(lanes.layers), last = layers - 1, D = lanes.inputs, H = lanes.units
        cdef Layer layer
        cdef lnrnn_rnn_call *r
        cdef size_t floats_needed = 0
        self.rows = -1 # until all is ready
        table, x = np.zeros((rows, 6), np.int64), np.zeros((rows, D), np.float32)
        table[:, 0] = table[:, 4] = np.arange(rows)
        table[:, 2] = table[:, 3] = 1
        between = tuple(np.zeros((rows, H), np.float32) for k in range(min(last, 2)))
        kept = []
        for k in range(layers):
            layer, r = lanes.layers[k], &self.handle.calls[k]
            weights = layer.pack()
            kept.append(weights)
            memset(r, 0, sizeof(r[0]))
            r.config, r.T, r.B = &layer.config, 1, rows
            r.w_ih, r.w_hh = words(weights[1]), words(weights[2])
            source = between[(k - 1) % 2] if k else x
            r.x, r.xb = floats(source, rows * layer.config.D), layer.config.D
            if k < last:
                r.y = out_floats(between[k % 2], rows * H)
            r.yb = H
            r.hn = out_floats(lanes.states[0][k], lanes.lanes * H)
            if layer.config.cell_state:
                r.cn = out_floats(lanes.states[1][k], lanes.lanes * H)
            r.h0, r.c0 = r.hn, r.cn
            r.rows, r.last_step_end = table_of(table), SIZE_MAX
            lnrnn_rnn_make_plan(r, threads, &self.plans[k])
            r.plan = &self.plans[k]
            floats_needed = max(floats_needed, self.plans[k].scratch.floats)
        if self.scratch is None or <size_t>self.scratch.size < floats_needed:
            self.scratch = aligned(floats_needed)
        for k in range(layers):
            self.handle.calls[k].scratch = out_floats(self.scratch, self.scratch.size)
        y = np.zeros((rows, H), np.float32)
        self.x, self.x_flat, self.y, self.y_flat = x, x.reshape(-1), y, y.reshape(-1)
        self.table, self.between, self.kept = table, between, kept
        self.handle.x = <float *>cnp.PyArray_DATA(<cnp.ndarray>x)
        self.handle.table = <lnrnn_row *>cnp.PyArray_DATA(<cnp.ndarray>table)
        self.packed_for, self.threads = lnrnn_isa_name(), threads
        self.rows = self.handle.rows = rows
        return 0

    cdef int touch(self) except -1:
        """Before the first step: every page of its memory is there by then."""
        for array in (self.seen, self.x, *self.between):
            array.fill(0)
        memset(cnp.PyArray_DATA(<cnp.ndarray>self.scratch), 0, cnp.PyArray_NBYTES(<cnp.ndarray>self.scratch))
        return 0


cdef class Lanes:
    """The states and steps of a stream's lanes, and the step that some of them take.

    states: arrays (layers, lanes, H), float32, one or two; steps (lanes,) int64. refused_from: the step that
    no lane may take. by_step: the result depends on the step: batch norm. together: all lanes have to take their
    steps together. Threads that step different lanes share nothing that is written.
    """

    cdef readonly list states
    cdef readonly object steps
    cdef tuple layers
    cdef Py_ssize_t lanes, inputs, units
    cdef int64_t refused_from
    cdef int64_t *step_of
    cdef bint by_step, together
    cdef double work
    cdef Workspace spare
    cdef list more

    def __init__(self, tuple layers, Py_ssize_t lanes, int64_t refused_from, bint together):
        cdef Layer first = layers[0]
        cdef Layer layer
        self.layers, self.lanes, self.refused_from, self.together = layers, lanes, refused_from, together
        self.inputs, self.units = first.config.D, first.config.H
        self.by_step = first.config.norm == LNRNN_NORM_BATCH
        for layer in layers:
            self.work += <double>layer.config.outputs * <double>(layer.config.D + layer.config.H)
        shape = len(layers), lanes, self.units
        # No comprehension: where there is no memory for its list, Cython 3.3 gives a new element up twice.
        self.states = []
        for _ in range(1 + first.config.cell_state):
            one = np.zeros(shape, np.float32)
            self.states.append(one)
        self.steps = np.zeros(lanes, np.int64)
        self.step_of = <int64_t *>cnp.PyArray_DATA(<cnp.ndarray>self.steps)
        self.more = []
        self.give(self.take(lanes, threads_for(self.work * lanes, 0))) # so that the first step has nothing to pack

    cdef Workspace take(self, Py_ssize_t rows, int threads):
        """A workspace that no other call has."""
        cdef Workspace found
        with cython.critical_section(self):
            found = self.spare
            self.spare = None
            if found is None and self.more:
                found = self.more.pop()
        if found is None:
            found = Workspace(self)
        if found.rows != rows or found.threads != threads or found.packed_for != lnrnn_isa_name():
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

        -> None, and nothing has changed, for arguments that are not arrays of these types and shapes, for
        lanes that are none or come twice, and for a step that is refused: who calls looks closer. Or an
        error, of memory, and nothing has changed. No signal is handled in between.
        """
        cdef Py_ssize_t R = self.lanes
        cdef int ndim
        cdef cnp.npy_intp *shape
        cdef cnp.npy_intp dims[2]
        cdef const int64_t *chosen = NULL
        cdef const cnp.npy_bool *fresh = NULL
        cdef Workspace work
        cdef float *py
        if not native_floats(x):
            return None
        ndim, shape = cnp.PyArray_NDIM(<cnp.ndarray>x), cnp.PyArray_DIMS(<cnp.ndarray>x)
        if rows is not None:
            if not plain(rows, cnp.NPY_INT64) or cnp.PyArray_NDIM(<cnp.ndarray>rows) != 1:
                return None
            R, chosen = cnp.PyArray_SIZE(<cnp.ndarray>rows), <const int64_t *>cnp.PyArray_DATA(<cnp.ndarray>rows)
        if not (ndim == 2 and shape[0] == R and shape[1] == self.inputs or ndim == 1 and R == 1 and shape[0] == self.inputs):
            return None
        if resets is not None:
            if not plain(resets, cnp.NPY_BOOL) or cnp.PyArray_NDIM(<cnp.ndarray>resets) != 1 or cnp.PyArray_SIZE(<cnp.ndarray>resets) != R:
                return None
            fresh = <const cnp.npy_bool *>cnp.PyArray_DATA(<cnp.ndarray>resets)
        dims[0], dims[ndim - 1] = R, self.units
        y = out
        if out is None:
            y = empty_of(ndim, dims, cnp.NPY_FLOAT32, R * self.units * sizeof(float))
        elif (not native_floats(out) or not cnp.PyArray_ISWRITEABLE(<cnp.ndarray>out)
                or cnp.PyArray_NDIM(<cnp.ndarray>out) != ndim or cnp.PyArray_DIMS(<cnp.ndarray>out)[0] != dims[0]
                or cnp.PyArray_DIMS(<cnp.ndarray>out)[ndim - 1] != self.units):
            return None
        work = self.take(R, threads_for(self.work * R, threads))
        if not ordinary(y):
            y = work.y if ndim == 2 else work.y_flat
        py = <float *>cnp.PyArray_DATA(<cnp.ndarray>y)
        if cnp.PyArray_ISCARRAY_RO(<cnp.ndarray>x):
            memcpy(cnp.PyArray_DATA(<cnp.ndarray>work.x), cnp.PyArray_DATA(<cnp.ndarray>x), R * self.inputs * sizeof(float))
        else:
            cnp.PyArray_CopyInto(<cnp.ndarray>(work.x if ndim == 2 else work.x_flat), <cnp.ndarray>x)
        if lnrnn_stream_choose(&work.handle, chosen, fresh):
            self.give(work)
            return None
        if self.work * R < LNRNN_RELEASE_LOCK_WORK:
            lnrnn_stream_run(&work.handle, py)
        else:
            with nogil:
                lnrnn_stream_run(&work.handle, py)
        self.give(work)
        if out is None:
            return y
        if y is not out:
            cnp.PyArray_CopyInto(<cnp.ndarray>out, <cnp.ndarray>y)
        return out

    def put(self, rows, list states, steps):
        """Sets these lanes, (R,) int64: states, (layers, R, H) float32 each, and steps, (R,) int64; None: 0,
        but of steps, where states are given: as they are. All of it or, on an error, nothing; no signal is
        handled in between."""
        cdef Py_ssize_t R = axis(rows, 0), L = len(self.layers), i, k, n
        cdef size_t H = self.units
        cdef const int64_t *chosen = indices(rows, R)
        cdef const int64_t *given = indices(steps, R)
        cdef const float *source
        cdef float *to
        if states and len(states) != len(self.states):
            raise AssertionError(f"broken promise: {len(states)} states, of {len(self.states)}")
        for i in range(R):
            if chosen[i] < 0 or chosen[i] >= self.lanes:
                raise AssertionError(f"broken promise: lane {chosen[i]}")
            # What the batch gives is taken for all lanes at once: at one step.
            if given != NULL and (given[i] < 0 or given[i] > last_step or (self.together and given[i] != given[0])):
                raise AssertionError(f"broken promise: step {given[i]}")
        for new in states:
            floats(new, L * R * H)
        for n in range(len(states)):
            source, to = floats(states[n], L * R * H), out_floats(self.states[n], L * self.lanes * H)
            for k in range(L):
                for i in range(R):
                    if source == NULL:
                        memset(to + (k * self.lanes + chosen[i]) * H, 0, H * sizeof(float))
                    else:
                        memcpy(to + (k * self.lanes + chosen[i]) * H, source + (k * R + i) * H, H * sizeof(float))
        for i in range(R):
            if given != NULL:
                self.step_of[chosen[i]] = given[i]
