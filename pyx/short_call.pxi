# Whole sequences where little is computed. Part of _core.pyx.

cdef enum:
    FEW = 64


cdef class Layers:
    """The layers and directions of one version of a network. refused_from: sequences may have so many steps."""

    cdef readonly tuple layers
    cdef int directions
    cdef bint batch_first
    cdef size_t inputs, units
    cdef int64_t refused_from
    cdef double work # multiply-adds of a step of one sequence
    cdef object spare # scratch that no call uses

    def __init__(self, tuple layers, int directions, bint batch_first, int64_t refused_from):
        cdef Layer layer
        self.layers, self.directions, self.batch_first = layers, directions, batch_first
        self.refused_from = refused_from
        layer = layers[0]
        self.inputs, self.units = layer.config.D, layer.config.H
        cdef int cell_state = layer.config.cell_state
        cdef Py_ssize_t k
        for k in range(len(layers)):
            layer = layers[k]
            if (layer.config.H != self.units or layer.config.cell_state != cell_state
                    or layer.config.D != (self.inputs if k < directions else directions * self.units)):
                raise AssertionError(f"broken promise: layer {k} of {layer.config.D} inputs and {layer.config.H} units")
            self.work += <double>layer.config.outputs * <double>(layer.config.D + layer.config.H)

    def together(self, rows, int threads):
        """rows (R, 6): lnrnn_row of lnrnn.h, longest first. threads: the most that are used; 0: as set for all calls. -> all
        layers and directions, to be computed side by side; or None where one after the other takes no longer."""
        cdef Together found = together_of(self.layers, self.directions, table_of(rows), axis(rows, 0),
                                          threads or allowed_threads())
        cdef lnrnn_rnn_call *r
        cdef size_t k
        if found is None:
            return None
        found.table = rows
        r = found.call_of(0)
        if found.net.groups > 1 and r.rows[0].length != r.rows[r.B - 1].length:
            other = dealt(rows, found.net.line[0].plan.group)
            found.kept.append(other)
            for k in range(<size_t>len(self.layers)):
                found.call_of(k).rows = table_of(other)
        return found

    def call(self, x, h0, lengths, int threads):
        """x (T, B, D), or (B, T, D) with batch_first -> y, and h or (h, c): what Network.__call__ gives. threads: 0: as
        set. Or None, for much to compute, arguments that are not plain arrays of the right types and shapes, and
        sequences that are refused: who calls looks closer."""
        cdef lnrnn_row rows[FEW]
        cdef const float *given[2]
        cdef int64_t T, B
        if not self.check(x, h0, lengths, rows, given, &T, &B):
            return None
        return self.run(x, T, B, rows, given, threads_for(self.work * <double>T * <double>B, threads), None)

    def train(self, x, h0, lengths):
        """As `call`, for backward: not for batch norm. -> y, h or (h, c), and what belongs to a tape, in arrays that are
        read-only and nobody else's: start (h0, or h0 and c0, each (layers, B, H)), the table of rows (B, 6), and for each
        layer and direction what it read, what the layers side by side wrote, both as x is laid out, and its record. Or
        None."""
        cdef lnrnn_row rows[FEW]
        cdef const float *given[2]
        cdef int64_t T, B
        cdef int states = 1 + (<Layer>self.layers[0]).config.cell_state, s
        cdef cnp.npy_intp dims[3]
        if not self.check(x, h0, lengths, rows, given, &T, &B):
            return None
        dims[0], dims[1], dims[2] = len(self.layers), B, self.units
        start, runs = [], []
        for s in range(states):
            if given[s] == NULL:
                one = cnp.PyArray_ZEROS(3, dims, cnp.NPY_FLOAT32, 0)
            else:
                one = cnp.PyArray_NewCopy(<cnp.ndarray>(h0[s] if states == 2 else h0), cnp.NPY_CORDER)
            given[s] = <const float *>data(one)
            start.append(read_only(one))
        x = read_only(cnp.PyArray_NewCopy(<cnp.ndarray>x, cnp.NPY_CORDER))
        dims[0], dims[1] = B, sizeof(lnrnn_row) // sizeof(int64_t)
        table = cnp.PyArray_EMPTY(2, dims, cnp.NPY_INT64, 0)
        memcpy(data(table), rows, B * sizeof(lnrnn_row))
        y, end = self.run(x, T, B, rows, given, threads_for(self.work * <double>T * <double>B, 0), runs)
        for one in runs:
            read_only(one[3])
        return cnp.PyArray_NewCopy(<cnp.ndarray>y, cnp.NPY_CORDER), end, tuple(start), read_only(table), runs

    cdef bint check(self, x, h0, lengths, lnrnn_row *rows, const float **given, int64_t *steps, int64_t *sequences) except *:
        """Are the arguments plain arrays of the right types and shapes, and few? -> the rows, longest first; given: h0, or
        h0 and c0, NULL: none; and how many steps and sequences."""
        cdef int64_t T, B, i, j
        cdef cnp.npy_intp *shape
        cdef lnrnn_row row
        cdef int states = 1 + (<Layer>self.layers[0]).config.cell_state, s
        if not plain(x, cnp.NPY_FLOAT32) or cnp.PyArray_NDIM(<cnp.ndarray>x) != 3:
            return False
        shape = cnp.PyArray_DIMS(<cnp.ndarray>x)
        T, B = (shape[1], shape[0]) if self.batch_first else (shape[0], shape[1])
        if (<size_t>shape[2] != self.inputs or T < 1 or B < 1 or B > FEW or T > self.refused_from
                or self.work * <double>T * <double>B > LNRNN_SHORT_CALL_WORK):
            return False
        given[0] = given[1] = NULL
        if h0 is not None:
            if states == 2 and (type(h0) is not tuple or len(h0) != 2):
                return False
            for s in range(states):
                one = h0[s] if states == 2 else h0
                if (not plain(one, cnp.NPY_FLOAT32) or cnp.PyArray_NDIM(<cnp.ndarray>one) != 3
                        or <size_t>cnp.PyArray_DIMS(<cnp.ndarray>one)[0] != <size_t>len(self.layers)
                        or cnp.PyArray_DIMS(<cnp.ndarray>one)[1] != B
                        or <size_t>cnp.PyArray_DIMS(<cnp.ndarray>one)[2] != self.units):
                    return False
                given[s] = <const float *>data(one)
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
            while j > 0 and rows[j - 1].length < row.length: # longest first, and otherwise as they came
                rows[j] = rows[j - 1]
                j -= 1
            rows[j] = row
        steps[0], sequences[0] = T, B
        return True

    cdef object run(self, x, int64_t T, int64_t B, const lnrnn_row *rows, const float **given, int threads, list runs):
        """-> y, and h or (h, c). runs: None, or a list that gets of each layer what `train` says; then there are h0 and
        c0."""
        cdef lnrnn_rnn_call one
        cdef lnrnn_rnn_call *r = &one
        cdef int states = 1 + (<Layer>self.layers[0]).config.cell_state
        cdef lnrnn_rnn_plan plan
        cdef Layer layer
        cdef Together beside = None
        cdef Py_ssize_t k, count = len(self.layers)
        cdef size_t H = self.units, wide = self.directions * H, from_wide = self.inputs
        cdef cnp.npy_intp dims[3]
        cdef int s, d
        cdef float *end[2]
        cdef size_t of_one = B * H
        cdef tuple kept
        dims[0], dims[1], dims[2] = count, B, H
        ends = []
        for s in range(states):
            ends.append(empty_of(3, dims, cnp.NPY_FLOAT32, count * of_one * sizeof(float)))
            end[s] = <float *>data(ends[s])
        zeros = None
        if given[0] == NULL:
            zeros = cnp.PyArray_ZEROS(2, &dims[1], cnp.NPY_FLOAT32, 0)
        dims[0], dims[1], dims[2] = (B, T, wide) if self.batch_first else (T, B, wide)
        y = x
        with cython.critical_section(self):
            scratch = self.spare
            self.spare = None
        if runs is None:
            beside = together_of(self.layers, self.directions, rows, B, threads)
        for k in range(count):
            layer, d = self.layers[k], k % self.directions
            if d == 0:
                source = y
                from_wide = layer.config.D
                y = empty_of(3, dims, cnp.NPY_FLOAT32, T * B * wide * sizeof(float))
            kept = layer.pack()
            if beside is not None:
                beside.kept.append((kept, y))
                r = beside.call_of(k)
            else:
                memset(r, 0, sizeof(one))
                r.config, r.T, r.B, r.rows, r.last_step_end = &layer.config, rows[0].length, B, rows, rows[0].length
            r.w_ih, r.w_hh = words(kept[1]), words(kept[2])
            r.x, r.y = <const float *>data(source), <float *>data(y) + d * H
            if self.batch_first:
                r.xt, r.xb, r.yt, r.yb = from_wide, T * from_wide, wide, T * wide
            else:
                r.xt, r.xb, r.yt, r.yb = B * from_wide, from_wide, B * wide, wide
            r.h0 = <const float *>data(zeros) if zeros is not None else given[0] + k * of_one
            r.hn = end[0] + k * of_one
            if states == 2:
                r.c0 = <const float *>data(zeros) if zeros is not None else given[1] + k * of_one
                r.cn = end[1] + k * of_one
            if beside is not None:
                continue
            if runs is not None:
                record = layer.tape(active_steps(r))
                r.tape = <float *>data(record)
                runs.append((layer, read_only(record), source, y))
            lnrnn_rnn_make_plan(r, threads, &plan)
            if scratch is None or <size_t>cnp.PyArray_SIZE(<cnp.ndarray>scratch) < plan.scratch.floats:
                scratch = aligned(plan.scratch.floats)
            r.plan, r.scratch = &plan, <float *>data(scratch)
            if self.work * <double>T * <double>B < LNRNN_RELEASE_LOCK_WORK:
                lnrnn_rnn_forward(r)
            else:
                with nogil:
                    lnrnn_rnn_forward(r)
        if beside is not None:
            scratch = beside.run(scratch)
        with cython.critical_section(self):
            self.spare = scratch
        return y, ends[0] if states == 1 else tuple(ends)
