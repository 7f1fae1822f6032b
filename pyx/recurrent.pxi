# One recurrent layer in one direction, whole or a step a call. Part of _core.pyx.

# Multiply-adds between two looks for an interrupt.
cdef size_t PART = 1 << 31


cdef class Layer:
    """Parameters of one layer in one direction, packed for the instruction set in use.

    weight_ih (H, D), weight_hh (H, H), gain (H) or None, bias (H): float32, contiguous; kept, not copied, and not to be
    changed. act: 0 tanh, 1 relu, 2 sigmoid, 3 identity. norm: 0 none, 1 layer, 2 batch. dtype: what the weights are packed as,
    0 float32, 1 bfloat16, 2 int8.
    """

    cdef lnrnn_rnn r
    cdef object weights, parameters, tables
    cdef tuple packed, transposed

    def __init__(self, weight_ih, weight_hh, gain, bias, int act, int norm, double eps, bint reverse, int dtype=0):
        cdef size_t H = weight_ih.shape[0], I = weight_ih.shape[1]
        floats(weight_ih, H * I)
        floats(weight_hh, H * H)
        memset(&self.r, 0, sizeof(self.r))
        self.weights = (weight_ih, weight_hh)
        self.parameters = (gain, bias)
        self.r.D, self.r.H = I, H
        self.r.gain, self.r.bias = floats(gain, H), floats(bias, H)
        self.r.act, self.r.norm, self.r.eps, self.r.reverse = act, norm, <float>eps, reverse
        self.r.dtype = dtype

    def set_steps(self, scale, shift, size_t known, ptrdiff_t beyond):
        """Batch norm at inference: scale, shift (rows, H) by step; beyond: the row for steps from `known` on, or -1."""
        cdef size_t rows = scale.shape[0]
        if known > rows or beyond >= <ptrdiff_t>rows or (beyond < 0 and beyond != -1):
            raise AssertionError(f"broken promise: {known} known steps, beyond {beyond}, {rows} rows")
        self.r.scale, self.r.shift = floats(scale, rows * self.r.H), floats(shift, rows * self.r.H)
        self.r.known, self.r.beyond = known, beyond
        self.tables = (scale, shift)

    cdef tuple pack(self):
        """-> instruction set, W_ih, W_hh. Who computes with them keeps the tuple: another thread may pack again."""
        cdef tuple kept = self.packed
        name = isa()
        if kept is None or kept[0] != name:
            self.packed = kept = (name, *(packed(w, False, self.r.dtype) for w in self.weights))
        return kept

    cdef tuple pack_transposed(self):
        cdef tuple kept = self.transposed
        name = isa()
        if kept is None or kept[0] != name:
            self.transposed = kept = (name, *(packed(w, True, 0) for w in self.weights))
        return kept

    @property
    def nbytes(self):
        """Bytes of the packed weights; 0 before the first call."""
        return sum(w.nbytes for kept in (self.packed, self.transposed) if kept for w in kept[1:])

    cdef tuple describe(self, lnrnn_rnn *r, x, y, h0, hn, order, length, size_t start, size_t ends, statistics,
                        tape):
        """Fills r. -> what must live as long as r."""
        cdef ptrdiff_t T = x.shape[0], B = x.shape[1], I = self.r.D, H = self.r.H
        cdef float *px = NULL
        cdef tuple kept = self.pack()
        r[0] = self.r
        r.w_ih, r.w_hh = words(kept[1]), words(kept[2])
        r.T, r.B = T, B
        strided(x, T, B, I, False, &px, &r.xt, &r.xb)
        r.x = px
        strided(y, T, B, H, True, &r.y, &r.yt, &r.yb)
        r.h0, r.hn = floats(h0, B * H), out_floats(hn, B * H)
        r.order, r.length = indices(order, B), indices(length, B)
        r.start = start
        r.begin, r.end = 0, T
        r.threads = num_threads
        if r.beyond < 0 and ends <= r.known:
            r.beyond = 0 # nothing overruns: no step will need the batch
        if statistics is not None:
            mean, var, count = statistics
            r.mean, r.var = out_doubles(mean, T * H), out_doubles(var, T * H)
            r.count = <int64_t *>pointer(count, cnp.NPY_INT64, T, True)
        if tape is not None:
            r.tape = out_floats(tape, tape.size)
        return kept

    def forward(self, x, y, h0, hn, order, length, size_t start=0, statistics=None, tape=None):
        """x (T, B, I), h0 (B, H) -> y (T, B, H), hn (B, H).

        order (B): the sequences, longest first; length (B): their lengths in that order, checked by the caller.
        statistics: arrays mean, var (T, H) and count (T) that make batch norm use and report those of the batch.
        tape: tape_size floats for backward.
        """
        cdef lnrnn_rnn r
        ends = start + max(length[:1], default=0)
        kept = self.describe(&r, x, y, h0, hn, order, length, start, ends, statistics, tape)
        cdef size_t need = lnrnn_rnn_plan(&r)
        work = aligned(need)
        r.work = out_floats(work, need)
        if tape is not None:
            with nogil:
                lnrnn_rnn_forward(&r)
            return
        # In parts of some 20 ms, so that an interrupt does not wait for the end.
        cdef size_t part = 1 + PART // (1 + r.B * r.H * (r.D + r.H))
        while True:
            r.end = min(r.begin + part, r.T)
            with nogil:
                lnrnn_rnn_forward(&r)
            if r.end >= r.T:
                return
            r.begin = r.end
            PyErr_CheckSignals()

    def tape(self, size_t rows):
        """An empty tape for `rows` living steps."""
        return aligned(lnrnn_tape_width(self.r.H) * rows)

    def backward(self, x, y, h0, order, length, statistics, tape, gy, ghn, gx, gh0, gw_ih, gw_hh, ggain, gbias):
        """Gradients of what forward did with the same arguments; the arrays gx .. gbias are written."""
        cdef lnrnn_rnn r
        cdef lnrnn_rnn_gradients g
        cdef size_t T = x.shape[0], B = x.shape[1], I = self.r.D, H = self.r.H, need
        cdef float *pgy = NULL
        kept = self.describe(&r, x, y, h0, np.empty_like(h0), order, length, 0, 0, statistics, tape)
        turned = self.pack_transposed()
        strided(gy, T, B, H, False, &pgy, &g.gyt, &g.gyb)
        g.gy, g.ghn = pgy, floats(ghn, B * H)
        g.w_ih_t, g.w_hh_t = words(turned[1]), words(turned[2])
        g.gx, g.gh0 = out_floats(gx, T * B * I), out_floats(gh0, B * H)
        g.gw_ih, g.gw_hh = out_floats(gw_ih, H * I), out_floats(gw_hh, H * H)
        g.ggain, g.gbias = out_doubles(ggain, H), out_doubles(gbias, H)
        living = 2 * int(np.sum(length))
        rows = np.empty(living, np.uintp)
        g.rows = <const float **>cnp.PyArray_DATA(<cnp.ndarray>rows)
        lnrnn_rnn_plan(&r)
        need = lnrnn_rnn_backward_work(&r)
        work = aligned(need)
        g.work = out_floats(work, need)
        with nogil:
            lnrnn_rnn_backward(&r, &g)


cdef class Step:
    """One step of a Layer on buffers that stay: a call allocates nothing.

    x (1, B, D) is read, y (1, B, H) written, h (B, H) read and written. The arrays are kept.
    """

    cdef lnrnn_rnn r
    cdef Layer layer
    cdef object buffers, work
    cdef tuple kept
    cdef int threads
    cdef const char *packed_for

    def __init__(self, Layer layer, x, y, h):
        cdef size_t B = x.shape[1]
        self.layer = layer
        self.buffers = (x, y, h, np.arange(B, dtype=np.int64), np.ones(B, np.int64))
        self.prepare()

    cdef int prepare(self) except -1:
        cdef lnrnn_rnn r
        x, y, h, order, length = self.buffers
        kept = self.layer.describe(&r, x, y, h, h, order, length, 0, <size_t>-1, None, None)
        cdef size_t need = lnrnn_rnn_plan(&r)
        work = aligned(need)
        r.work = out_floats(work, need)
        self.r, self.kept, self.work = r, kept, work
        self.packed_for = lnrnn_isa_name()
        self.threads = num_threads
        return 0

    def __call__(self, size_t step):
        """step: how many came before, for the statistics of batch norm."""
        if self.packed_for != lnrnn_isa_name() or self.threads != num_threads:
            self.prepare()
        # One stream belongs to one thread; another that breaks this rule may get nonsense, but not freed memory.
        cdef lnrnn_rnn r = self.r
        kept, work = self.kept, self.work
        r.start = step
        with nogil:
            lnrnn_rnn_forward(&r)


cdef inline const uint32_t *words(object array) except? NULL:
    return <const uint32_t *>floats(array, array.size)


def packed(w, bint transpose, int dtype):
    """w (n, k) or its transpose, in panels for the instruction set in use: words of 32 bits, in an array of float32."""
    cdef size_t n = w.shape[0], k = w.shape[1]
    cdef const float *p = floats(w, n * k)
    cdef size_t rows = k if transpose else n, columns = n if transpose else k
    out = aligned(lnrnn_packed_size(dtype, rows, columns))
    cdef uint32_t *q = <uint32_t *>out_floats(out, out.size)
    cdef ptrdiff_t row = 1 if transpose else <ptrdiff_t>k, column = <ptrdiff_t>k if transpose else 1
    with nogil:
        lnrnn_pack(dtype, rows, columns, p, row, column, q)
    return out
