# One recurrent layer in one direction, whole or a step a call. Part of _core.pyx.

# Multiply-adds between two looks for an interrupt.
cdef size_t PART = 1 << 31


cdef class Layer:
    """Parameters of one layer in one direction, packed for the instruction set in use.

    cell: 0 RNN, 1 LSTM, 2 GRU, of G = 1, 4, 3 gates. weight_ih (G*H, D), weight_hh (G*H, H), and parameters: the others by
    name, without the layer's suffix; absent ones are gains of 1 and biases of 0. All float32 and contiguous; kept, not copied,
    and not to be changed. act (RNN): 0 tanh, 1 relu, 2 sigmoid, 3 identity. norm: 0 none, 1 layer, 2 batch. placement: 0 joint,
    1 split, 2 gate. span: 0 the paper's, 1 all. cell_norm: 0 none, 1 out, 2 carry. dtype: what the weights are packed as, 0
    float32, 1 bfloat16, 2 int8.
    """

    cdef lnrnn_rnn r
    cdef object weights, parameters, tables
    cdef tuple packed, transposed

    def __init__(self, int cell, weight_ih, weight_hh, dict parameters, *, int act=0, int norm, int placement=0, int span=0,
                 int cell_norm=0, double eps, bint reverse, int dtype=0):
        cdef size_t H = weight_hh.shape[1], D = weight_ih.shape[1], n
        memset(&self.r, 0, sizeof(self.r))
        self.r.D, self.r.H, self.r.cell = D, H, cell
        self.r.act, self.r.norm, self.r.eps, self.r.reverse = act, norm, <float>eps, reverse
        self.r.placement, self.r.span, self.r.cell_norm = placement, span, cell_norm
        self.r.dtype = dtype
        n = outputs(&self.r)
        floats(weight_ih, n * D)
        floats(weight_hh, n * H)
        self.weights = (weight_ih, weight_hh)
        self.parameters = []
        p, apart = parameters.get, two(&self.r)
        inner_ih, inner_hh = p("inner_bias_ih"), p("inner_bias_hh")
        if not apart:
            inner_ih, inner_hh = added(inner_ih, inner_hh), None
        self.r.inner_x, self.r.inner_h = self.keep(inner_ih, n), self.keep(inner_hh, n)
        if apart:
            self.site(&self.r.at_x, n, p("gain_ih"), p("bias" if norm == 2 else "bias_ih"))
            self.site(&self.r.at_h, n, p("gain_hh"), None if norm == 2 else p("bias_hh"))
        if norm == 0 and not apart:
            self.site(&self.r.at_h, n, None, added(p("bias_ih"), p("bias_hh")))
        elif not apart or placement == 2:
            self.site(&self.r.at_h, n, p("gain"), p("bias"))
        if cell_norm:
            self.site(&self.r.at_c, H, p("gain_c"), p("bias_c"))

    cdef const float *keep(self, array, size_t n) except? NULL:
        self.parameters.append(array)
        return floats(array, n)

    cdef int site(self, lnrnn_site *site, size_t n, gain, bias) except -1:
        site.gain = self.keep(np.ones(n, np.float32) if gain is None else gain, n)
        site.bias = self.keep(np.zeros(n, np.float32) if bias is None else bias, n)
        return 0

    cdef lnrnn_site *at(self, lnrnn_rnn *r, str side, size_t *n) except NULL:
        """The site of that name, and how many values stand there."""
        n[0] = r.H if side == "c" else outputs(r)
        if side not in ("", "ih", "hh", "c"):
            raise AssertionError(f"broken promise: side {side!r}")
        return &r.at_x if side == "ih" else &r.at_c if side == "c" else &r.at_h

    def set_steps(self, dict tables, size_t known, ptrdiff_t beyond):
        """Batch norm at inference. tables: side ("" of an RNN; "ih", "hh" and for LSTM "c") -> scale, shift (rows, values) by
        step. known: steps that have a row; beyond: the row for steps from there on, or -1."""
        cdef size_t n, rows
        cdef lnrnn_site *site
        for side, (scale, shift) in tables.items():
            site, rows = self.at(&self.r, side, &n), scale.shape[0]
            if known > rows or beyond >= <ptrdiff_t>rows or (beyond < 0 and beyond != -1):
                raise AssertionError(f"broken promise: {known} known steps, beyond {beyond}, {rows} rows")
            site.scale, site.shift = floats(scale, rows * n), floats(shift, rows * n)
        self.r.known, self.r.beyond = known, beyond
        self.tables = tables

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

    cdef tuple describe(self, lnrnn_rnn *r, x, y, h0, hn, c0, cn, order, length, size_t start, size_t ends, statistics,
                        tape):
        """Fills r. -> what must live as long as r."""
        cdef ptrdiff_t T = x.shape[0], B = x.shape[1], D = self.r.D, H = self.r.H
        cdef float *px = NULL
        cdef size_t n
        cdef lnrnn_site *site
        cdef tuple kept = self.pack()
        r[0] = self.r
        r.w_ih, r.w_hh = words(kept[1]), words(kept[2])
        r.T, r.B = T, B
        strided(x, T, B, D, False, &px, &r.xt, &r.xb)
        r.x = px
        strided(y, T, B, H, True, &r.y, &r.yt, &r.yb)
        r.h0, r.hn = floats(h0, B * H), out_floats(hn, B * H)
        if r.cell == LNRNN_LSTM:
            r.c0, r.cn = floats(c0, B * H), out_floats(cn, B * H)
            if c0 is None or cn is None:
                raise AssertionError("broken promise: an LSTM without c")
        r.order, r.length = indices(order, B), indices(length, B)
        r.start = start
        r.begin, r.end = 0, T
        r.threads = num_threads
        if r.beyond < 0 and ends <= r.known:
            r.beyond = 0 # nothing overruns: no step will need the batch
        if statistics is not None:
            for side, value in statistics.items():
                if side == "count":
                    r.count = <int64_t *>pointer(value, cnp.NPY_INT64, T, True)
                else:
                    site = self.at(r, side, &n)
                    mean, var = value
                    site.mean, site.var = out_doubles(mean, T * n), out_doubles(var, T * n)
        if tape is not None:
            r.tape = out_floats(tape, tape.size)
        return kept

    def forward(self, x, y, h0, hn, order, length, size_t start=0, statistics=None, tape=None, c0=None, cn=None):
        """x (T, B, D), h0, and of an LSTM c0, (B, H) -> y (T, B, H), hn, cn (B, H).

        order (B): the sequences, longest first; length (B): their lengths in that order, checked by the caller.
        statistics: side -> (mean, var), arrays (T, values), and "count" -> (T): make batch norm use and report those of the
        batch. tape: for backward.
        """
        cdef lnrnn_rnn r
        ends = start + (length[0] if length.shape[0] else 0)
        kept = self.describe(&r, x, y, h0, hn, c0, cn, order, length, start, ends, statistics, tape)
        cdef size_t need = lnrnn_rnn_plan(&r)
        work = aligned(need)
        r.work = out_floats(work, need)
        if tape is None and r.group < r.B and length[0] != length[r.B - 1]:
            order, length = dealt(order, length, r.group)
            r.order, r.length = indices(order, r.B), indices(length, r.B)
        if tape is not None:
            with nogil:
                lnrnn_rnn_forward(&r)
            return
        # In parts of some 20 ms, so that an interrupt does not wait for the end.
        cdef size_t part = 1 + PART // (1 + r.B * outputs(&r) * (r.D + r.H))
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
        return aligned(lnrnn_tape_width(&self.r) * rows)

    def backward(self, x, y, h0, order, length, statistics, tape, gy, ghn, gx, gh0, gw_ih, gw_hh, dict grads, c0=None,
                 gcn=None, gc0=None):
        """Gradients of what forward did with the same arguments; gx .. gc0 are written. grads: name of a gain or bias, as the
        cell has it -> float64 array."""
        cdef lnrnn_rnn r
        cdef lnrnn_rnn_gradients g
        cdef size_t T = x.shape[0], B = x.shape[1], D = self.r.D, H = self.r.H, need, n
        cdef float *pgy = NULL
        memset(&g, 0, sizeof(g))
        cn = None if c0 is None else np.empty_like(c0)
        kept = self.describe(&r, x, y, h0, np.empty_like(h0), c0, cn, order, length, 0, 0, statistics, tape)
        n = outputs(&r)
        turned = self.pack_transposed()
        strided(gy, T, B, H, False, &pgy, &g.gyt, &g.gyb)
        g.gy, g.ghn, g.gcn = pgy, floats(ghn, B * H), floats(gcn, B * H)
        g.w_ih_t, g.w_hh_t = words(turned[1]), words(turned[2])
        g.gx, g.gh0, g.gc0 = out_floats(gx, T * B * D), out_floats(gh0, B * H), out_floats(gc0, B * H)
        g.gw_ih, g.gw_hh = out_floats(gw_ih, n * D), out_floats(gw_hh, n * H)
        spare = np.empty((6, n))
        g.at_h.gain, g.at_h.bias = out_doubles(spare[0], n), out_doubles(spare[1], n)
        g.at_x.gain, g.at_x.bias = out_doubles(spare[2], n), out_doubles(spare[3], n)
        g.at_c.gain, g.at_c.bias = out_doubles(spare[4, :H], H), out_doubles(spare[5, :H], H)
        cdef dict place = {"gain": 0, "gain_hh": 0, "bias": 1, "bias_hh": 1, "gain_ih": 2, "bias_ih": 3, "gain_c": 4, "bias_c": 5}
        living = int(np.sum(length))
        rows = np.empty(3 * living, np.uintp)
        g.rows = <const float **>cnp.PyArray_DATA(<cnp.ndarray>rows)
        g.gx_rows = <float **>g.rows + 2 * <size_t>living
        lnrnn_rnn_plan(&r)
        need = lnrnn_rnn_backward_work(&r)
        work = aligned(need)
        g.work = out_floats(work, need)
        with nogil:
            lnrnn_rnn_backward(&r, &g)
        for name, value in grads.items():
            row = 1 if name == "bias_ih" and not two(&r) else 3 if name == "bias" and two(&r) else place[name]
            value[...] = spare[row, :value.shape[0]]


cdef tuple dealt(order, length, size_t group):
    """The sequences in groups that cost about the same: dealt like cards, to and fro, each group again longest first."""
    place = np.arange(order.shape[0])
    to, turn = place // group, place % group
    places = np.lexsort((np.where(turn % 2, -to, to), turn))
    dealt_order, dealt_length = np.empty_like(order), np.empty_like(length)
    dealt_order[places], dealt_length[places] = order, length
    return dealt_order, dealt_length


cdef added(a, b):
    """The sum of two arrays; None is nothing."""
    return b if a is None else a if b is None else a + b


cdef class Step:
    """One step of a Layer on buffers that stay: a call allocates nothing.

    x (1, B, D) is read, y (1, B, H) written, h and for an LSTM c (B, H) read and written. The arrays are kept.
    """

    cdef lnrnn_rnn r
    cdef Layer layer
    cdef object buffers, work
    cdef tuple kept
    cdef int threads
    cdef const char *packed_for

    def __init__(self, Layer layer, x, y, h, c=None):
        cdef size_t B = x.shape[1]
        self.layer = layer
        self.buffers = (x, y, h, c, np.arange(B, dtype=np.int64), np.ones(B, np.int64))
        self.prepare()

    cdef int prepare(self) except -1:
        cdef lnrnn_rnn r
        x, y, h, c, order, length = self.buffers
        kept = self.layer.describe(&r, x, y, h, h, c, c, order, length, 0, <size_t>-1, None, None)
        cdef size_t need = lnrnn_rnn_plan(&r)
        work = aligned(need)
        r.work = out_floats(work, need)
        self.r, self.kept, self.work = r, kept, work
        self.packed_for = lnrnn_isa_name()
        self.threads = num_threads
        return 0

    cdef int run(self, size_t step, float *y) except -1:
        if self.packed_for != lnrnn_isa_name() or self.threads != num_threads:
            self.prepare()
        # One stream belongs to one thread; another that breaks this rule may get nonsense, but not freed memory.
        cdef lnrnn_rnn r = self.r
        kept, work = self.kept, self.work
        r.start = step
        if y != NULL:
            r.y = y
        with nogil:
            lnrnn_rnn_forward(&r)
        return 0

    def inside(self, size_t step):
        """Writes the y that it keeps. step: how many came before, for the statistics of batch norm."""
        self.run(step, NULL)

    def into(self, size_t step, y):
        """Writes y, a contiguous array of B * H values, instead of the one that it keeps."""
        self.run(step, out_floats(y, self.r.B * self.r.H))


def takes_floats(y, like):
    """Is y a plain array, C-contiguous, aligned and writeable, of float32 and of the shape of `like`?"""
    return plain(y, cnp.NPY_FLOAT32) and cnp.PyArray_ISWRITEABLE(<cnp.ndarray>y) and alike(y, like)


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
