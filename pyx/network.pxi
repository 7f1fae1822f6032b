# Networks: calls of whole sequences, forward and back. Part of _core.pyx.

# A long call is done in parts, and between two of them an interrupt is served. 0: as long as tuning.h says.
cdef double fixed_part = 0

cdef enum:
    FEW = 64  # sequences of a call whose table of rows is made here


def set_part(double part):
    """For tests: the multiply-adds of a thread in each part of a call; 0: as tuning.h says."""
    global fixed_part
    fixed_part = part


def set_network_way(str way):
    """For tests: how layers and directions are computed, as wavefront.h says."""
    lnrnn_set_network_way({"fastest": LNRNN_NETWORK_FASTEST, "in turn": LNRNN_NETWORK_IN_TURN, "side by side": LNRNN_NETWORK_SIDE_BY_SIDE}[way])


cdef class Packed:
    """A network with its weights packed for one instruction set."""

    cdef lnrnn_network_fields value
    cdef object network
    cdef list kept

    def __dealloc__(self):
        free(<void *>self.value.weights)


cdef class Call:
    """The memory of a call of a network: one call at a time has it."""

    cdef lnrnn_network_call c
    cdef lnrnn_row rows[FEW]
    cdef lnrnn_line_training *line_training
    cdef lnrnn_layer_training *layer_training
    cdef Packed packed
    cdef object scratch

    def __cinit__(self, size_t layers, size_t lines):
        self.c.line = <lnrnn_line *>malloc(lines * sizeof(lnrnn_line))
        self.line_training = <lnrnn_line_training *>malloc(lines * sizeof(lnrnn_line_training))
        self.layer_training = <lnrnn_layer_training *>malloc(layers * sizeof(lnrnn_layer_training))
        if self.c.line == NULL or self.line_training == NULL or self.layer_training == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.c.line)
        free(self.line_training)
        free(self.layer_training)

    cdef int run(self, double work, lnrnn_network_gradients *g=NULL) except -1:
        """Forward, or back with g. work: multiply-adds, about."""
        cdef size_t need = lnrnn_network_plan(&self.c)
        cdef bint finished = False
        cdef double since, took
        cdef PyThreadState *state
        if g != NULL:
            need = lnrnn_network_backward_plan(&self.c, g)
        if self.scratch is None or <size_t>cnp.PyArray_SIZE(<cnp.ndarray>self.scratch) < need:
            self.scratch = aligned(need)
        self.c.scratch, self.c.resumed = <float *>data(self.scratch), 0
        self.c.part = fixed_part or (0 if work < LNRNN_FIRST_PART_WORK else LNRNN_FIRST_PART_WORK)
        while not finished:
            since = perf_counter() if self.c.part else 0
            state = release_gil(work >= LNRNN_RELEASE_LOCK_WORK)
            finished = lnrnn_network_forward(&self.c) if g == NULL else lnrnn_network_backward(&self.c, g)
            acquire_gil(state)
            if not finished:
                took = perf_counter() - since
                PyErr_CheckSignals()
                if not fixed_part:
                    self.c.part *= min(4, max(0.25, LNRNN_PART_SECONDS / max(took, 1e-6)))
                self.c.resumed = 1
        if need * sizeof(float) >= LNRNN_RESULT_FROM: # large memory belongs to all: result_memory.h
            self.scratch = None
        return 0


cdef class Network:
    """The layers and directions of one version of a network. refused_from: the step that no sequence may take; together: all
    sequences take their steps together."""

    cdef readonly tuple layers
    cdef lnrnn_network_fields net
    cdef bint batch_first
    cdef Packed packed # for the instruction set in use, or for another
    cdef Call spare # that no call uses

    def __init__(self, tuple layers, size_t directions, bint batch_first, int64_t refused_from, bint together=False):
        cdef Layer layer
        cdef size_t k, lines = len(layers)
        cdef lnrnn_rnn_config *config = <lnrnn_rnn_config *>malloc(lines * sizeof(lnrnn_rnn_config))
        if config == NULL:
            raise MemoryError
        self.layers, self.batch_first, self.net.config = layers, batch_first, config
        self.net.layers, self.net.directions = lines // directions, directions
        self.net.refused_from, self.net.together = refused_from, together
        for k in range(lines):
            layer = layers[k]
            config[k] = layer.config
        k = lnrnn_network_complete(&self.net)
        if k < lines:
            raise AssertionError(f"broken promise: layer {k} of {config[k].D} inputs and {config[k].H} units")

    def __dealloc__(self):
        free(<void *>self.net.config)

    cdef Packed pack(self):
        """For the instruction set in use. A caller keeps it while C reads it: another thread may pack again."""
        cdef Packed found
        cdef Layer layer
        cdef lnrnn_packed_weights *weights
        cdef size_t k
        cdef tuple kept
        with cython.critical_section(self):
            found = self.packed
        if found is not None and found.value.isa == lnrnn_isa_name():
            return found
        found = Packed()
        found.value, found.network, found.kept = self.net, self, []
        weights = <lnrnn_packed_weights *>malloc(len(self.layers) * sizeof(lnrnn_packed_weights))
        if weights == NULL:
            raise MemoryError
        found.value.weights = weights
        for k in range(<size_t>len(self.layers)):
            layer = self.layers[k]
            kept = layer.pack()
            found.value.isa = <const char *><uintptr_t>kept[0]
            found.kept.append(kept)
            weights[k].ih, weights[k].hh = words(kept[1]), words(kept[2])
        with cython.critical_section(self):
            self.packed = found
        return found

    cdef Call take(self):
        """Memory for a call, which nobody else has."""
        cdef Call call
        cdef Packed packed = self.pack()
        cdef lnrnn_line *line
        with cython.critical_section(self):
            call = self.spare
            self.spare = None
        if call is None:
            call = Call(self.net.layers, len(self.layers))
        line = call.c.line
        memset(&call.c, 0, sizeof(call.c))
        call.packed, call.c.line, call.c.network = packed, line, &packed.value
        return call

    cdef int give(self, Call call) except -1:
        with cython.critical_section(self):
            self.spare = call
        return 0

    def call(self, x, h0, lengths, int threads):
        """x (T, B, D), or (B, T, D) with batch_first -> y, and h or (h, c), as Network.__call__. threads: 0: as set.
        Or None: for many sequences, for arguments that are not plain arrays of the right types and shapes, and for
        sequences that are refused. The caller then looks closer."""
        cdef Call call = self.take()
        found = None
        if self.takes(call, x, h0, lengths):
            found = self.run(call, threads)
        self.give(call)
        return found

    def train(self, x, h0, lengths):
        """As `call`, for backward: not for batch norm. -> y, h or (h, c), and the parts of a tape; or None.

        The parts are read-only arrays of nobody else. They are the initial states, each (lines, B, H), x, the table of
        rows (B, 6), the outputs of each layer, laid out as x, and the record of each line."""
        cdef Call call = self.take()
        cdef lnrnn_network_call *c = &call.c
        cdef const float **state
        cdef cnp.npy_intp dims[3]
        cdef size_t k
        cdef Layer layer
        if not self.takes(call, x, h0, lengths):
            self.give(call)
            return None
        dims[0], dims[1], dims[2] = len(self.layers), c.sequences, self.net.units
        start, tapes = [], []
        for k in range(<size_t>self.net.states):
            state = &c.c0 if k else &c.h0
            if state[0] == NULL:
                one = cnp.PyArray_ZEROS(3, dims, cnp.NPY_FLOAT32, 0)
            else:
                one = cnp.PyArray_NewCopy(<cnp.ndarray>(h0[k] if self.net.states == 2 else h0), cnp.NPY_CORDER)
            state[0] = <const float *>data(one)
            start.append(read_only(one))
        x = read_only(cnp.PyArray_NewCopy(<cnp.ndarray>x, cnp.NPY_CORDER))
        c.x = <const float *>data(x)
        dims[0], dims[1] = c.B, sizeof(lnrnn_row) // sizeof(int64_t)
        table = read_only(cnp.PyArray_EMPTY(2, dims, cnp.NPY_INT64, 0))
        memcpy(data(table), c.rows, c.B * sizeof(lnrnn_row))
        outputs = [] # no comprehension: see Lanes
        for k in range(self.net.layers):
            outputs.append(self.empty_outputs(c))
        memset(call.line_training, 0, len(self.layers) * sizeof(lnrnn_line_training))
        memset(call.layer_training, 0, self.net.layers * sizeof(lnrnn_layer_training))
        c.line_training, c.layer_training = call.line_training, call.layer_training
        for k in range(<size_t>len(self.layers)):
            layer = self.layers[k]
            tapes.append(read_only(layer.tape(lnrnn_active_steps(c))))
            call.line_training[k].tape = <float *>data(tapes[k])
        for k in range(self.net.layers):
            call.layer_training[k].y = <float *>data(outputs[k])
        y, end = self.run(call, 0, outputs[self.net.layers - 1])
        self.give(call)
        for one in outputs:
            read_only(one)
        return cnp.PyArray_NewCopy(<cnp.ndarray>y, cnp.NPY_CORDER), end, tuple(start), x, table, outputs, tapes

    cdef bint takes(self, Call call, x, h0, lengths) except *:
        """Are the arguments plain arrays of the right types and shapes, and sequences few? Then they stand in the call."""
        cdef lnrnn_network_call *c = &call.c
        cdef lnrnn_row row
        cdef int64_t T, B, i, j
        cdef cnp.npy_intp *shape
        cdef int s
        if not plain(x, cnp.NPY_FLOAT32) or cnp.PyArray_NDIM(<cnp.ndarray>x) != 3:
            return False
        shape = cnp.PyArray_DIMS(<cnp.ndarray>x)
        T, B = (shape[1], shape[0]) if self.batch_first else (shape[0], shape[1])
        if <size_t>shape[2] != self.net.inputs or T < 1 or B < 1 or B > FEW or T > self.net.refused_from:
            return False
        if h0 is not None:
            if self.net.states == 2 and (type(h0) is not tuple or len(h0) != 2):
                return False
            for s in range(self.net.states):
                one = h0[s] if self.net.states == 2 else h0
                if (not plain(one, cnp.NPY_FLOAT32) or cnp.PyArray_NDIM(<cnp.ndarray>one) != 3
                        or cnp.PyArray_DIMS(<cnp.ndarray>one)[0] != len(self.layers)
                        or cnp.PyArray_DIMS(<cnp.ndarray>one)[1] != B
                        or <size_t>cnp.PyArray_DIMS(<cnp.ndarray>one)[2] != self.net.units):
                    return False
                if s:
                    c.c0 = <const float *>data(one)
                else:
                    c.h0 = <const float *>data(one)
        if lengths is not None and not (plain(lengths, cnp.NPY_INT64) and cnp.PyArray_NDIM(<cnp.ndarray>lengths) == 1
                                        and cnp.PyArray_SIZE(<cnp.ndarray>lengths) == B):
            return False
        for i in range(B):
            row.sequence = row.state = i
            row.first, row.start = 0, 0
            row.length, row.end = T if lengths is None else (<const int64_t *>data(lengths))[i], T
            if row.length < 0 or row.length > T:
                return False
            j = i
            while j > 0 and call.rows[j - 1].length < row.length: # longest first, and otherwise as they came
                call.rows[j] = call.rows[j - 1]
                j -= 1
            call.rows[j] = row
        c.x, c.rows, c.B, c.steps, c.sequences, c.states = <const float *>data(x), call.rows, B, T, B, B
        self.lay_out(c, &c.xt, &c.xb, self.net.inputs)
        return True

    cdef void lay_out(self, lnrnn_network_call *c, ptrdiff_t *steps, ptrdiff_t *sequences, size_t width) noexcept:
        """The strides of a C-contiguous array of the caller."""
        steps[0] = width if self.batch_first else c.sequences * width
        sequences[0] = c.steps * width if self.batch_first else width

    cdef object empty_outputs(self, lnrnn_network_call *c):
        """An array for the outputs of a layer."""
        cdef cnp.npy_intp dims[3]
        dims[0], dims[1] = (c.sequences, c.steps) if self.batch_first else (c.steps, c.sequences)
        dims[2] = self.net.directions * self.net.units
        return empty_of(3, dims, cnp.NPY_FLOAT32, dims[0] * dims[1] * dims[2] * sizeof(float))

    cdef object run(self, Call call, int threads, y=None):
        """-> y, and h or (h, c)."""
        cdef lnrnn_network_call *c = &call.c
        cdef double work = self.net.step_work * <double>c.steps * <double>c.sequences
        cdef cnp.npy_intp dims[3]
        cdef size_t bytes = len(self.layers) * c.states * self.net.units * sizeof(float)
        dims[0], dims[1], dims[2] = len(self.layers), c.states, self.net.units
        h, cell = empty_of(3, dims, cnp.NPY_FLOAT32, bytes), None
        if self.net.states == 2:
            cell = empty_of(3, dims, cnp.NPY_FLOAT32, bytes)
        if y is None:
            y = self.empty_outputs(c)
        c.y, c.hn, c.cn = <float *>data(y), <float *>data(h), <float *>data(cell)
        self.lay_out(c, &c.yt, &c.yb, self.net.directions * self.net.units)
        c.threads = threads_for(work, threads)
        call.run(work)
        return y, h if cell is None else (h, cell)

    def forward(self, *, x, y, h0, hn, c0=None, cn=None, rows, training=None, int threads=0):
        """x (T, B, D), h0, c0 (lines, states, H) -> y (T, B, directions * H), hn, cn (lines, states, H). A line is a layer
        in one direction; only an LSTM has c0 and cn.

        rows (R, 6): lnrnn_row, longest first; no other thread can change them. training: None, or an engine.Training,
        whose arrays are written for `backward`. threads: the most that are used; 0: as set for all calls.
        """
        cdef Call call = self.take()
        call.c.threads = threads or allowed_threads()
        self.fill(call, x, y, h0, hn, c0, cn, rows, training, True)
        call.run(self.net.step_work * <double>call.c.steps * <double>call.c.sequences)
        self.give(call)

    cdef int fill(self, Call call, x, y, h0, hn, c0, cn, rows, training, bint writable) except -1:
        """Arguments as of forward. Not writable: for backward, which only reads these arrays."""
        cdef lnrnn_network_call *c = &call.c
        cdef size_t lines = len(self.layers), width = self.net.directions * self.net.units, k, states
        cdef float *px = NULL
        c.steps, c.sequences, c.states = axis(x, 0), axis(x, 1), axis(h0, 1)
        strided(x, c.steps, c.sequences, self.net.inputs, False, &px, &c.xt, &c.xb)
        c.x = px
        strided(y, c.steps, c.sequences, width, writable, &c.y, &c.yt, &c.yb)
        states = lines * c.states * self.net.units
        c.h0, c.hn = floats(h0, states), <float *>pointer(hn, cnp.NPY_FLOAT32, states, writable)
        if self.net.states == 2:
            c.c0, c.cn = floats(c0, states), <float *>pointer(cn, cnp.NPY_FLOAT32, states, writable)
            if cn is None or axis(c0, 1) != <Py_ssize_t>c.states:
                raise AssertionError("broken promise: an LSTM without c")
        c.B, c.rows = axis(rows, 0), <const lnrnn_row *>indices(rows, 6 * <size_t>axis(rows, 0))
        seen = np.zeros(c.states, np.bool_)
        if not lnrnn_rows_fit(c, <char *>data(seen)):
            raise AssertionError("broken promise: rows that cannot be")
        if training is None:
            return 0
        memset(call.line_training, 0, lines * sizeof(lnrnn_line_training))
        for k in range(lines):
            self.fill_line(c, &call.line_training[k], k, training, writable)
        c.line_training = call.line_training
        if training.outputs is not None:
            memset(call.layer_training, 0, self.net.layers * sizeof(lnrnn_layer_training))
            for k in range(self.net.layers - 1):
                call.layer_training[k].y = laid_out(c, training.outputs[k], width, writable)
            for k in range(1, self.net.layers):
                self.fill_dropped(c, &call.layer_training[k], training.dropped[k], writable)
            c.layer_training = call.layer_training
        return 0

    cdef int fill_line(self, lnrnn_network_call *c, lnrnn_line_training *line, size_t k, training, bint writable) except -1:
        cdef Layer layer = self.layers[k]
        cdef lnrnn_rnn_config *config = &layer.config
        cdef size_t T = c.rows[0].length if c.B else 0, n
        cdef int index
        if training.statistics is not None:
            for side, value in training.statistics[k].items():
                if side == "count":
                    line.count = <int64_t *>pointer(value, cnp.NPY_INT64, T, writable)
                else:
                    index, (mean, var) = layer.site_of(side), value
                    n = T * config.site[index].width  # GCOVR_EXCL_LINE: gcc moves the computation
                    line.statistics[index].mean = <double *>pointer(mean, cnp.NPY_FLOAT64, n, writable)
                    line.statistics[index].var = <double *>pointer(var, cnp.NPY_FLOAT64, n, writable)
        if training.masks is not None:
            state, of_h, of_c = training.masks[k]
            line.masks.sequences, n = c.sequences, c.steps * c.sequences * config.H
            line.masks.state = floats(state, c.sequences * config.H)
            line.masks.h = <const unsigned char *>pointer(of_h, cnp.NPY_BOOL, n, False)
            line.masks.c = <const unsigned char *>pointer(of_c, cnp.NPY_BOOL, n, False)
        if training.tapes is not None:
            if (line.masks.h == NULL) != (config.zoneout_h == 0) or (line.masks.c == NULL) != (config.zoneout_c == 0):
                raise AssertionError("broken promise: a tape with zoneout, and no masks of it")
            n = lnrnn_tape_width(config) * lnrnn_active_steps(c)
            line.tape = <float *>pointer(training.tapes[k], cnp.NPY_FLOAT32, n, writable)
        return 0

    cdef int fill_dropped(self, lnrnn_network_call *c, lnrnn_layer_training *layer, dropped, bint writable) except -1:
        cdef size_t width = self.net.directions * self.net.units
        if dropped is None:
            return 0
        inputs, kept, scale, factors = dropped
        layer.dropped, layer.scale = laid_out(c, inputs, width, writable), scale
        layer.kept = <const unsigned char *>pointer(kept, cnp.NPY_BOOL, c.steps * c.sequences * width, False)
        layer.factors = floats(factors, c.sequences * width)
        return 0

    def backward(self, *, x, y, h0, c0=None, rows, training, gy, ghn, gcn=None, gx, gh0, gc0=None,
                 list grads=None, bint add=False, int threads=0):
        """Gradients of a call of `forward` with the same arguments, which here are only read. gx, gh0, gc0 are written; gx
        None: it is not wanted.

        -> for each line the gradients of weight_ih and weight_hh, then of the gain and the bias of each site that has
        them, then of the inner biases, all float32. They stand in the arrays of `grads`, or are added to them (add), or
        stand in new ones."""
        cdef Call call = self.take()
        cdef lnrnn_network_call *c = &call.c
        cdef lnrnn_network_gradients g
        cdef lnrnn_rnn_gradients *line
        cdef size_t lines = len(self.layers), states, k, need = 0, n
        cdef int index
        cdef float *pgy = NULL
        cdef Layer layer
        cdef double *sums = NULL
        # A tape belongs to the caller, who may make its arrays writeable again.
        rows = cnp.PyArray_NewCopy(<cnp.ndarray?>rows, cnp.NPY_CORDER)
        call.c.threads = threads or allowed_threads()
        self.fill(call, x, y, h0, h0, c0, c0, rows, training, False)
        memset(&g, 0, sizeof(g))
        strided(gy, c.steps, c.sequences, self.net.directions * self.net.units, False, &pgy, &g.gyt, &g.gyb)
        states = lines * c.states * self.net.units
        g.gy, g.ghn, g.gcn = pgy, floats(ghn, states), floats(gcn, states)
        if gx is not None:
            strided(gx, c.steps, c.sequences, self.net.inputs, True, &g.gx, &g.gxt, &g.gxb)
        g.gh0, g.gc0 = out_floats(gh0, states), out_floats(gc0, states)
        if grads is None:
            grads, add = [], False
            for each in self.layers:
                grads.append((<Layer>each).empty_gradients())
        for each in self.layers:
            need += (<Layer>each).gradient_doubles()
        g.line = <lnrnn_rnn_gradients *>calloc(lines, sizeof(lnrnn_rnn_gradients))
        try:
            if g.line == NULL:
                raise MemoryError
            sums = malloc_doubles(need)
            kept, need = [], 0
            for k in range(lines):
                layer, line = self.layers[k], &g.line[k]
                for index in range(LNRNN_SITES):
                    if c.line_training == NULL or c.line_training[k].tape == NULL or (
                            layer.config.norm == LNRNN_NORM_BATCH and layer.config.site[index].width and (
                                c.line_training[k].count == NULL or c.line_training[k].statistics[index].mean == NULL)):
                        raise AssertionError("broken promise: a tape without its records or statistics")
                kept.append(layer.fill_gradients(line, grads[k], gx is not None or k >= self.net.directions))
                line.add = add
                for index, gain in layer.learnt: # two biases of one sum have one gradient
                    where = layer.gradient_of(line, index, gain)
                    if where[0] == NULL:
                        where[0] = sums + need
                        need += layer.width_of(index)
            call.run(self.net.step_work * <double>c.steps * <double>c.sequences, &g)
            for k in range(lines):
                layer = self.layers[k]
                for one, (index, gain) in zip(grads[k][2:], layer.learnt, strict=True):
                    n = layer.width_of(index)
                    lnrnn_write_doubles(n, layer.gradient_of(&g.line[k], index, gain)[0], out_floats(one, n), False, add)
            self.give(call)
            return grads
        finally:
            free(g.line)
            free(sums)


cdef float *laid_out(lnrnn_network_call *c, array, size_t width, bint writable) except? NULL:
    """The data of an array (steps, sequences, width) without gaps, with axes in the order of y."""
    cdef float *found = NULL
    cdef ptrdiff_t steps, sequences, t = width * c.sequences, b = width
    strided(array, c.steps, c.sequences, width, writable, &found, &steps, &sequences)
    if c.yb > c.yt:
        t, b = width, width * c.steps
    if c.steps and c.sequences and ((c.steps > 1 and steps != t) or (c.sequences > 1 and sequences != b)):
        raise AssertionError(f"broken promise: {array.shape} {array.strides}")
    return found
