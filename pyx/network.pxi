# Networks: descriptions, and calls on whole sequences, forward and backward.

cdef enum:
    FEW = 64  # largest batch with lengths that `call` accepts; Python converts larger ones
    MANY = 4096  # largest batch without lengths that `call` accepts

# NumPy typenums, indexed by LNRNN_ARRAY_F32 ..
cdef int *KINDS = [cnp.NPY_FLOAT32, cnp.NPY_FLOAT64, cnp.NPY_INT64, cnp.NPY_BOOL]
# `use` in the results of Description.arrays, indexed by the roles of description.h.
cdef tuple USES = (
    "weight", "weight", "weight", "inner", "inner", "peephole", "count",
    *3 * ("gain", "bias", "mean", "variance"))


cdef int check(int status, const char *message) except -1:
    if status == LNRNN_NO_MEMORY:
        raise MemoryError(message.decode())
    if status:
        raise ValueError(message.decode("utf-8", "replace"))
    return 0


cdef inline bint fits(object array, int kind, int ndim, Py_ssize_t n0, Py_ssize_t n1, Py_ssize_t n2) noexcept:
    """Returns True for an ordinary array with the typenum `kind` and these axis sizes. -1 permits any
    size."""
    cdef cnp.npy_intp *n
    if not plain(array, kind) or cnp.PyArray_NDIM(<cnp.ndarray>array) != ndim:
        return False
    n = cnp.PyArray_DIMS(<cnp.ndarray>array)
    return ((n0 < 0 or n[0] == n0) and (ndim < 2 or n1 < 0 or n[1] == n1)
            and (ndim < 3 or n2 < 0 or n[2] == n2))


cdef object empty_axes(cnp.npy_intp n0, cnp.npy_intp n1, cnp.npy_intp n2):
    cdef cnp.npy_intp[3] dims = [n0, n1, n2]
    return empty_of(3, dims, cnp.NPY_FLOAT32, n0 * n1 * n2 * sizeof(float))


cdef class Description:
    """A network without arrays. configuration: JSON text, as in the metadata of a model file."""

    cdef lnrnn_description d

    def __init__(self, str configuration):
        cdef char message[LNRNN_MESSAGE]
        cdef bytes text = configuration.encode()
        check(lnrnn_description_read(text, len(text), &self.d, message), message)

    def arrays(self):
        """Returns (name, shape, use, site) of each array, in C's order. use: one of USES. site: the
        number of the position of its norm or bias, or -1."""
        cdef int roles[LNRNN_ROLES]
        cdef char name[LNRNN_ARRAY_NAME]
        cdef lnrnn_array array
        cdef size_t k, count = lnrnn_description_roles(&self.d, roles)
        cdef int role
        found = []
        for k in range(lnrnn_description_arrays(&self.d)):
            array, role = lnrnn_description_array(&self.d, k, name), roles[k % count]
            shape = array.shape[0], array.shape[1]
            site = (role - LNRNN_AT_SITES) // 4 if role >= LNRNN_AT_SITES else -1
            found.append((array.name.decode(), shape[:array.ndim], USES[role], site))
        return found

    @property
    def tape_width(self):
        """The number of floats in a tape for one step and sequence, in one layer and direction."""
        return lnrnn_description_tape_width(&self.d)


cdef class Call:
    """The memory of a network's call. Only one call at a time uses an object."""

    cdef lnrnn_network_call c
    cdef lnrnn_row *rows
    cdef Py_ssize_t room  # allocated number of rows
    cdef lnrnn_network_fields *network  # the packed network; this object holds a reference
    cdef lnrnn_network_fields one  # one layer and direction of the packed network
    cdef object scratch

    def __cinit__(self, size_t lines):
        self.c.line = <lnrnn_line *>calloc(lines, sizeof(lnrnn_line))
        if self.c.line == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.c.line)
        free(self.rows)
        lnrnn_network_release(<lnrnn_network *>self.network)

    cdef int reserve(self, Py_ssize_t rows) except -1:
        cdef void *memory
        if rows > self.room:
            memory = realloc(self.rows, rows * sizeof(lnrnn_row))
            if memory == NULL:
                raise MemoryError
            self.rows, self.room = <lnrnn_row *>memory, rows
        return 0

    cdef inline double work(self) noexcept:
        return self.c.network.step_work * <double>self.c.steps * <double>self.c.sequences

    cdef int run(self, int threads, lnrnn_network_gradients *g=NULL) except -1:
        """Runs the call: forward, or backward if g is not NULL. threads: the limit."""
        cdef bint release = self.work() >= LNRNN_RELEASE_LOCK_WORK, finished = False
        cdef PyThreadState *state
        cdef size_t need
        self.c.threads = threads
        need = lnrnn_network_plan(&self.c)
        if g != NULL:
            need = lnrnn_network_backward_plan(&self.c, g)
        scratch = self.scratch
        if scratch is None or <size_t>cnp.PyArray_SIZE(<cnp.ndarray>scratch) < need:
            scratch = aligned(need)
        self.c.scratch = <float *>data(scratch)
        lnrnn_network_begin(&self.c)
        while not finished:
            state = release_gil(release)
            finished = lnrnn_network_go_on(&self.c, g)
            acquire_gil(state)
            if not finished:
                PyErr_CheckSignals()
        if need * sizeof(float) < LNRNN_RESULT_FROM:  # result_memory.h reuses larger memory
            self.scratch = scratch
        return 0


@cython.final
cdef class Network:
    """A network with arrays. state: {name: array} of parameters and statistics. They are kept, and must not
    change."""

    cdef lnrnn_description d
    cdef lnrnn_array *arrays
    cdef size_t of_line, parameters  # arrays, and parameters, of one line (layer and direction)
    cdef list kept
    cdef lnrnn_network_fields *packed  # for the instruction set of the last call
    cdef Call spare # unused memory for a call

    def __init__(self, Description description, dict state):
        cdef size_t k, count
        cdef int roles[LNRNN_ROLES]
        cdef lnrnn_array *array
        self.d, self.kept = description.d, []
        if "count_l0" in state:  # the arrays determine the number of steps, not max_steps
            self.d.max_steps, self.d.steps = 0, axis(state["count_l0"], 0)
        count = lnrnn_description_arrays(&self.d)
        self.of_line = lnrnn_description_roles(&self.d, roles)
        self.parameters = lnrnn_description_parameters(&self.d)
        self.arrays = <lnrnn_array *>calloc(count, sizeof(lnrnn_array) + LNRNN_ARRAY_NAME)
        if self.arrays == NULL:
            raise MemoryError
        for k in range(count):
            array = &self.arrays[k]
            array[0] = lnrnn_description_array(
                &self.d, k, <char *>(self.arrays + count) + k * LNRNN_ARRAY_NAME)
            given = state[array.name.decode()]
            array.data = pointer(given, KINDS[array.dtype], elements(array), False)
            self.kept.append(given)

    def __dealloc__(self):
        free(self.arrays)
        lnrnn_network_release(<lnrnn_network *>self.packed)

    @property
    def nbytes(self):
        """The number of bytes of the packed weights, or 0 before the first call."""
        cdef size_t found = 0
        with cython.critical_section(self):
            if self.packed != NULL:
                found = self.packed.weight_bytes
        return found

    cdef lnrnn_network_fields *pack(self) except NULL:
        """Returns the network packed for the current instruction set. The caller gets a reference."""
        cdef lnrnn_network *found = NULL
        cdef lnrnn_network_fields *old
        cdef char message[LNRNN_MESSAGE]
        cdef int status
        with cython.critical_section(self):
            if self.packed != NULL and self.packed.isa == lnrnn_isa_name():
                found = lnrnn_network_retain(<lnrnn_network *>self.packed)
        if found != NULL:
            return <lnrnn_network_fields *>found
        with nogil:
            status = lnrnn_network_create(
                &self.d, self.arrays, lnrnn_description_arrays(&self.d), &found, message)
        check(status, message)
        with cython.critical_section(self):
            old, self.packed = self.packed, <lnrnn_network_fields *>lnrnn_network_retain(found)
        lnrnn_network_release(<lnrnn_network *>old)
        return <lnrnn_network_fields *>found

    cdef Call take(self, Py_ssize_t line=-1):
        """Returns a Call that is not in use. line: the only layer and direction to compute; -1: all."""
        cdef Call call
        cdef lnrnn_network_fields *network
        cdef lnrnn_line *memory
        with cython.critical_section(self):
            call, self.spare = self.spare, None
        if call is None:
            call = Call(self.d.num_layers * (2 if self.d.bidirectional else 1))
        if call.network == NULL or call.network.isa != lnrnn_isa_name():
            network = self.pack()
            lnrnn_network_release(<lnrnn_network *>call.network)
            call.network = network
        memory = call.c.line
        memset(&call.c, 0, sizeof(call.c))
        call.c.line, call.c.network = memory, call.network
        if line >= 0:
            call.one = lnrnn_network_line(call.network, line)
            call.c.network = &call.one
        return call

    cdef int give(self, Call call) except -1:
        with cython.critical_section(self):
            self.spare = call
        return 0

    # --- plain arrays ---

    cpdef object call(self, x, h0, lengths, int threads):
        """Computes Network.__call__ of x (T, B, D), or (B, T, D) with batch_first. Returns y, h or (h, c).
        threads 0: the default.

        Returns None for more than MANY sequences, or FEW with lengths. Also returns None if arguments are
        not ordinary arrays of the right dtypes and shapes, and for invalid lengths. The caller converts the
        arguments then, or raises the error."""
        cdef Call call = self.take()
        found = self.run(call, threads) if self.takes(call, x, h0, lengths) else None
        self.give(call)
        return found

    def call_at(self, uintptr_t x, uintptr_t h, uintptr_t cell, Py_ssize_t T, Py_ssize_t B, int most):
        """Computes `call` of contiguous float32 at these addresses. h, cell: 0 for zeros. most: another limit
        on the number of threads. Returns None as `call`."""
        cdef Call call = self.take()
        found = None
        if self.starts(call, T, B, <const float *>x, <const float *>h, <const float *>cell, None):
            found = self.run(call, min(most, threads_for(call.work(), 0)))
        self.give(call)
        return found

    def train(self, x, h0, lengths):
        """Computes `call` and records a tape, but not for batch norm. Returns None, or y, h or (h, c), and
        the arrays of the tape.

        They are new read-only arrays: initial states (lines, B, H), x, the table of rows (B, 6), outputs
        of layers, tapes of lines (layers and directions)."""
        cdef Call call = self.take()
        cdef lnrnn_network_call *c = &call.c
        cdef size_t k, layers = c.network.layers, lines = layers * c.network.directions
        cdef lnrnn_training_array one
        cdef size_t[2] widths = [c.network.h_width, c.network.c_width]
        cdef cnp.npy_intp[3] dims = [lines, 0, 0]
        if not self.takes(call, x, h0, lengths):
            self.give(call)
            return None
        start, outputs, tapes = [], [], []  # no comprehensions: see Lanes.__init__
        dims[1] = c.sequences
        for k in range(<size_t>c.network.states):
            dims[2] = widths[k]
            given = h0[k] if c.network.states == 2 and h0 is not None else h0
            given = cnp.PyArray_ZEROS(3, dims, cnp.NPY_FLOAT32, 0) if given is None else copied(given)
            start.append(read_only(given))
        x = read_only(copied(x))
        c.x, c.h0 = <float *>data(x), <float *>data(start[0])
        c.c0 = <float *>data(start[c.network.states - 1])
        dims[0], dims[1] = c.B, sizeof(lnrnn_row) // sizeof(int64_t)
        table = read_only(cnp.PyArray_EMPTY(2, dims, cnp.NPY_INT64, 0))
        memcpy(data(table), c.rows, c.B * sizeof(lnrnn_row))
        lnrnn_training_begin(c)
        for k in range(lines):
            one = lnrnn_training_array_of(c, 4 * k, False)
            tapes.append(read_only(aligned(one.size)))
            one.to[0] = data(tapes[k])
        for k in range(layers):
            outputs.append(self.empty_outputs(c))
            if k < layers - 1:
                lnrnn_training_array_of(c, 4 * lines + 5 * k, False).to[0] = data(outputs[k])
        y, end = self.run(call, 0, outputs[layers - 1])
        self.give(call)
        for given in outputs:
            read_only(given)
        return copied(y), end, tuple(start), x, table, outputs, tapes

    cdef bint takes(self, Call call, x, h0, lengths) except *:
        """Sets the call's arrays. Returns False if an array is not ordinary, or if there are too many
        sequences."""
        cdef lnrnn_network_call *c = &call.c
        cdef const lnrnn_network_fields *n = c.network
        cdef Py_ssize_t lines = n.layers * n.directions, T, B
        h = cell = None
        if not fits(x, cnp.NPY_FLOAT32, 3, -1, -1, n.inputs):
            return False
        T, B = cnp.PyArray_DIMS(<cnp.ndarray>x)[0], cnp.PyArray_DIMS(<cnp.ndarray>x)[1]
        if self.d.batch_first:
            T, B = B, T
        if h0 is not None:
            if n.states == 1:
                h = h0
            elif type(h0) is tuple and len(h0) == 2:
                h, cell = h0
            if (not fits(h, cnp.NPY_FLOAT32, 3, lines, B, n.h_width)
                    or (n.states == 2 and not fits(cell, cnp.NPY_FLOAT32, 3, lines, B, n.c_width))):
                return False
        if lengths is not None and not fits(lengths, cnp.NPY_INT64, 1, B, -1, -1):
            return False
        return self.starts(call, T, B, <float *>data(x), <float *>data(h), <float *>data(cell), lengths)

    cdef bint starts(self, Call call, Py_ssize_t T, Py_ssize_t B, const float *x, const float *h,
                     const float *cell, lengths) except *:
        """Sets the call's x, and h0 and c0, which may be NULL. lengths: an ordinary array (B,) or
        None. Returns False for too many sequences or steps, and for invalid lengths."""
        cdef lnrnn_network_call *c = &call.c
        if T < 1 or B < 1 or B > (FEW if lengths is not None else MANY) or T > c.network.refused_from:
            return False
        call.reserve(B)
        if not lnrnn_rows_of_lengths(call.rows, B, T, <const int64_t *>data(lengths)):
            return False
        c.x, c.h0, c.c0, c.rows = x, h, cell, call.rows
        c.B, c.steps, c.sequences, c.states = B, T, B, B
        lnrnn_network_lay_out(c, self.d.batch_first)
        return True

    cdef object empty_outputs(self, lnrnn_network_call *c):
        """Returns an uninitialised array for the outputs of a layer."""
        cdef size_t T = c.steps, B = c.sequences
        if self.d.batch_first:
            T, B = B, T
        return empty_axes(T, B, c.network.directions * c.network.h_width)

    cdef object run(self, Call call, int threads, y=None):
        """Runs the call. Returns y, and h or (h, c). y: where to write y, or None."""
        cdef lnrnn_network_call *c = &call.c
        cdef size_t lines = c.network.layers * c.network.directions
        h = empty_axes(lines, c.states, c.network.h_width)
        cell = empty_axes(lines, c.states, c.network.c_width) if c.network.states == 2 else None
        if y is None:
            y = self.empty_outputs(c)
        self.compute(call, threads, y, h, cell)
        return y, h if cell is None else (h, cell)

    cdef int compute(self, Call call, int threads, y, h, cell) except -1:
        """Runs the call, which writes to these ordinary arrays. cell: None if there is one state."""
        call.c.y, call.c.hn, call.c.cn = <float *>data(y), <float *>data(h), <float *>data(cell)
        call.run(threads_for(call.work(), threads))
        return 0

    # --- arrays that Python has checked ---

    def forward(self, *, x, y, h0, hn, c0=None, cn=None, rows, training=None, int threads=0,
                Py_ssize_t line=-1):
        """Computes y (T, B, directions * P), hn and cn from x (T, B, D), h0 (lines, states, P) and c0 (lines,
        states, C). A line is a layer and direction. Only LSTM and SLSTM have c0 and cn.

        rows (R, 6): lnrnn_row structs, longest first; no other thread may change them. training: None, or the
        arrays that lnrnn_training_array_of lists. threads: the thread limit; 0: the global limit.
        line: the only line to compute; -1: all."""
        cdef Call call = self.take(line)
        self.fill(call, x, y, h0, hn, c0, cn, rows, training, True)
        call.run(threads or allowed_threads())
        self.give(call)

    cdef int fill(self, Call call, x, y, h0, hn, c0, cn, rows, list training, bint writable) except -1:
        """Sets the call's arrays. writable: False in backward, which only reads them."""
        cdef lnrnn_network_call *c = &call.c
        cdef const lnrnn_network_fields *n = c.network
        cdef size_t k, states = n.layers * n.directions * axis(h0, 1)
        cdef size_t h = states * n.h_width, cells = states * n.c_width
        cdef lnrnn_training_array one
        cdef float *px = NULL
        c.steps, c.sequences, c.states = axis(x, 0), axis(x, 1), axis(h0, 1)
        strided(x, c.steps, c.sequences, n.inputs, False, &px, &c.xt, &c.xb)
        c.x = px
        strided(y, c.steps, c.sequences, n.directions * n.h_width, writable, &c.y, &c.yt, &c.yb)
        c.h0, c.hn = floats(h0, h), <float *>pointer(hn, cnp.NPY_FLOAT32, h, writable)
        if n.states == 2:
            c.c0, c.cn = floats(c0, cells), <float *>pointer(cn, cnp.NPY_FLOAT32, cells, writable)
            if c.c0 == NULL or c.cn == NULL:
                raise AssertionError("internal error: an LSTM without c")
        c.B, c.rows = axis(rows, 0), <const lnrnn_row *>indices(rows, 6 * <size_t>axis(rows, 0))
        seen = np.zeros(c.states, np.bool_)
        if not lnrnn_rows_fit(c, <char *>data(seen)):
            raise AssertionError("internal error: rows that cannot be")
        if training is None:
            return 0
        if <size_t>len(training) != lnrnn_training_begin(c):
            raise AssertionError(f"internal error: {len(training)} arrays of training")
        for k in range(<size_t>len(training)):
            one = lnrnn_training_array_of(c, k, not writable)
            one.to[0] = pointer(training[k], KINDS[one.dtype], one.size, writable and one.written)
            if one.needed and training[k] is None:
                raise AssertionError(f"internal error: no array {k} of training")
        return 0

    def backward(self, *, x, y, h0, c0=None, rows, training, gy, ghn, gcn=None, gx, gh0, gc0=None,
                 list grads, bint add=False, int threads=0, Py_ssize_t line=-1):
        """Computes the gradients of a call of `forward`, whose arrays x, y, h0, c0, rows and training it
        reads. Writes gx (if not None), gh0, gc0 and grads. grads: arrays for gradients of each line's
        parameters, in the order of Description.arrays. If `add` is set, gradients are added to grads."""
        cdef Call call = self.take(line)
        cdef lnrnn_network_call *c = &call.c
        cdef const lnrnn_network_fields *n = c.network
        cdef lnrnn_network_gradients g
        cdef size_t first = line if line >= 0 else 0, lines = n.layers * n.directions, states, h, cells, k
        cdef bint inputs = gx is not None and first < call.network.directions
        cdef float *pgy = NULL
        cdef float **parameters
        # The rows are copied: the caller owns the tape, and may make its arrays writeable again.
        rows = copied(<cnp.ndarray?>rows)
        self.fill(call, x, y, h0, h0, c0, c0, rows, training, False)
        if <size_t>len(grads) != lines * self.parameters:
            raise AssertionError(f"internal error: gradients of {len(grads)} parameters")
        memset(&g, 0, sizeof(g))
        strided(gy, c.steps, c.sequences, n.directions * n.h_width, False, &pgy, &g.gyt, &g.gyb)
        states = lines * c.states
        h, cells = states * n.h_width, states * n.c_width
        g.gy, g.ghn, g.gh0, g.add = pgy, floats(ghn, h), out_floats(gh0, h), add
        if n.states == 2:
            g.gcn, g.gc0 = floats(gcn, cells), out_floats(gc0, cells)
        if gx is not None:
            strided(gx, c.steps, c.sequences, n.inputs, True, &g.gx, &g.gxt, &g.gxb)
        addresses = np.empty(len(grads), np.uintp)
        parameters = <float **>data(addresses)
        for k in range(lines * self.parameters):
            parameters[k] = out_floats(grads[k], elements(
                &self.arrays[(first + k // self.parameters) * self.of_line + k % self.parameters]))
        g.parameters = parameters
        with nogil:
            g.weights = lnrnn_network_backward_weights(call.network, self.arrays, inputs)
        if g.weights == NULL:
            raise MemoryError
        g.weights += first
        call.run(threads or allowed_threads(), &g)
        self.give(call)


@cython.binding(True)  # a method with an attribute __wrapped__
def call_network(self, *arguments, **named):
    """The `__call__` of networks. Its __wrapped__ is a Python function, which takes a third of the time of a
    small call. So it is called only for arguments that Network.call does not accept."""
    compiled = self._snapshot._compiled
    if (not named and 1 <= len(arguments) <= 2 and type(compiled) is Network
            and (<Network>compiled).d.cell != LNRNN_SLSTM):
        found = (<Network>compiled).call(arguments[0], arguments[1] if len(arguments) == 2 else None, None, 0)
        if found is not None:
            return found
    return call_network.__wrapped__(self, *arguments, **named)


cdef inline size_t elements(const lnrnn_array *array) noexcept:
    return array.shape[0] * (array.shape[1] if array.ndim == 2 else 1)
