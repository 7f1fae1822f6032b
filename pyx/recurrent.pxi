# One recurrent layer in one direction, whole or a step a call. Part of _core.pyx.

# A long call is done in parts, and between two of them an interrupt is served. 0: as long as tuning.h says.
cdef double fixed_part = 0


def set_part(double part):
    """For tests: the multiply-adds of a thread in each part of a call; 0: as tuning.h says."""
    global fixed_part
    fixed_part = part


cdef class Parts:
    """The sizes of a call's parts."""

    cdef double size, since

    def __cinit__(self):
        self.size = fixed_part or LNRNN_FIRST_PART_WORK
        self.since = perf_counter()

    cdef double next(self) except -1:
        """Serves an interrupt. -> the next part."""
        cdef double took = perf_counter() - self.since
        PyErr_CheckSignals()
        if not fixed_part:
            self.size *= min(4, max(0.25, LNRNN_PART_SECONDS / max(took, 1e-6)))
        self.since = perf_counter()
        return self.size


cdef class Layer:
    """Parameters of one layer in one direction, packed for the instruction set in use.

    cell: a CellKind, of G = 1, 4 or 3 gates. weight_ih (G*H, D), weight_hh (G*H, H). sites: by side
    (lnrnn/rnn/sites.py) the gain and the bias that stand there; None is a gain of 1, a bias of 0.
    inner_bias_ih, inner_bias_hh (G*H) or None. All float32 and contiguous; kept, not copied, and not to be
    changed. act (RNN): an Activation. norm, placement, span, cell_norm: NormKind, Placement, Span, CellNorm.
    dtype: the WeightType that the weights are packed as. zoneout_h, zoneout_c: how much of the old h and c a
    step keeps.
    """

    cdef lnrnn_rnn_config config
    cdef object weights, parameters, tables
    cdef tuple packed, transposed
    # (site, is it a gain?) of each parameter that `sites` has; (LNRNN_SITES, False), (LNRNN_SITES + 1, False): the inner biases
    cdef tuple learnt

    def __init__(self, int cell, weight_ih, weight_hh, dict sites, *, inner_bias_ih=None, inner_bias_hh=None,
                 int act=LNRNN_ACT_TANH, int norm, int placement=LNRNN_JOINT, int span=LNRNN_SPAN_PAPER,
                 int cell_norm=LNRNN_CELL_NONE, double eps, bint reverse, int dtype=LNRNN_WEIGHT_F32,
                 double zoneout_h=0, double zoneout_c=0):
        cdef lnrnn_rnn_config *config = &self.config
        cdef size_t n
        memset(config, 0, sizeof(self.config))
        config.D, config.H, config.cell = weight_ih.shape[1], weight_hh.shape[1], cell
        config.act, config.norm, config.reverse = act, norm, reverse
        config.placement, config.span, config.cell_norm = placement, span, cell_norm
        config.dtype = dtype
        cdef lnrnn_floats own = lnrnn_enter_floats()
        config.eps, config.zoneout_h, config.zoneout_c = <float>eps, <float>zoneout_h, <float>zoneout_c
        lnrnn_leave_floats(&own)
        lnrnn_rnn_configure(config)
        n = config.outputs
        floats(weight_ih, n * config.D)
        floats(weight_hh, n * config.H)
        self.weights = (weight_ih[:], weight_hh[:]) # views: the shapes of the caller's arrays can be set
        self.parameters = []
        inner = (inner_bias_ih is not None) + (inner_bias_hh is not None)
        if not config.separate_products:
            inner_bias_ih, inner_bias_hh = added(inner_bias_ih, inner_bias_hh), None
        learnt = sites.items()
        config.inner_ih, config.inner_hh = self.keep(inner_bias_ih, n), self.keep(inner_bias_hh, n)
        if not config.input_side and "ih" in sites: # two biases of one sum
            sites = {"hh": (None, added(sites["ih"][1], sites["hh"][1]))}
        for side, (gain, bias) in sites.items():
            self.set_site(&config.site[self.site_of(side)], gain, bias)
        self.learnt = tuple(
            (self.site_of(side), gain) for side, pair in learnt for gain in (True, False) if pair[not gain] is not None
        ) + tuple((LNRNN_SITES + k, False) for k in range(inner))
        lnrnn_rnn_configure(config)

    cdef const float *keep(self, array, size_t n) except? NULL:
        self.parameters.append(array)
        return floats(array, n)

    cdef int set_site(self, lnrnn_site *site, gain, bias) except -1:
        site.gain = self.keep(np.ones(site.width, np.float32) if gain is None else gain, site.width)
        site.bias = self.keep(np.zeros(site.width, np.float32) if bias is None else bias, site.width)
        return 0

    cdef int site_of(self, str side) except -1:
        """Where a side of lnrnn/rnn/sites.py stands in the configuration."""
        if side not in ("", "ih", "hh", "c"):
            raise AssertionError(f"broken promise: side {side!r}")
        if side == "c":
            return LNRNN_SITE_CELL
        return LNRNN_SITE_INPUT if side == "ih" and self.config.input_side else LNRNN_SITE_HIDDEN

    def set_steps(self, dict tables, size_t known, ptrdiff_t overrun_row):
        """Batch norm at inference. tables: side ("" of an RNN; "ih", "hh" and for LSTM "c") -> scale, shift
        (rows, values) by step. known: steps that have a row; overrun_row: the row for later steps, or -1:
        these use the batch's statistics."""
        cdef size_t rows
        cdef lnrnn_site *site
        for side, (scale, shift) in tables.items():
            site, rows = &self.config.site[self.site_of(side)], scale.shape[0]
            if known > rows or overrun_row >= <ptrdiff_t>rows or overrun_row < -1:
                raise AssertionError(
                    f"broken promise: {known} known steps, row {overrun_row} for later ones, {rows} rows"
                )
            site.scale, site.shift = floats(scale, rows * site.width), floats(shift, rows * site.width)
        self.config.known, self.config.overrun_row = known, overrun_row
        lnrnn_rnn_configure(&self.config)
        self.tables = tables

    cdef tuple pack(self):
        """-> instruction set, W_ih, W_hh, packed. A caller keeps the tuple while C reads it: another thread
        may pack again."""
        cdef tuple kept
        with cython.critical_section(self):
            kept = self.packed
        name = isa()
        if kept is None or kept[0] != name:
            kept = (name, *(packed(w, False, self.config.dtype) for w in self.weights))
            with cython.critical_section(self):
                self.packed = kept
        return kept

    cdef tuple pack_transposed(self, bint both):
        """-> instruction set, W_hh and, if both are wanted, W_ih, transposed and packed; None for one that backward reads as
        it stands."""
        cdef tuple kept
        with cython.critical_section(self):
            kept = self.transposed
        name = isa()
        if kept is None or kept[0] != name or len(kept) < 2 + both:
            first = kept[1] if kept is not None and kept[0] == name else turned(self.weights[1])
            kept = (name, first, turned(self.weights[0])) if both else (name, first)
            with cython.critical_section(self):
                self.transposed = kept
        return kept

    @property
    def nbytes(self):
        """Bytes of the packed weights; 0 before the first call."""
        with cython.critical_section(self):
            both = self.packed, self.transposed
        return sum(w.nbytes for kept in both if kept for w in kept[1:] if w is not None)

    cdef tuple describe(self, lnrnn_rnn_call *r, x, y, h0, hn, c0, cn, rows, statistics, tape, masks, bint writable=True):
        """Fills r, all but its plan. Not writable: for backward, which only reads these arrays. -> what must
        live as long as r."""
        cdef ptrdiff_t steps = axis(x, 0), sequences = axis(x, 1), states = axis(h0, 0)
        cdef ptrdiff_t D = self.config.D, H = self.config.H, R = axis(rows, 0)
        cdef float *px = NULL
        cdef size_t n, T
        cdef int index
        cdef tuple kept = self.pack()
        memset(r, 0, sizeof(r[0]))
        r.config = &self.config
        r.w_ih, r.w_hh = words(kept[1]), words(kept[2])
        strided(x, steps, sequences, D, False, &px, &r.xt, &r.xb)
        r.x = px
        strided(y, steps, sequences, H, writable, &r.y, &r.yt, &r.yb)
        r.h0, r.hn = floats(h0, states * H), <float *>pointer(hn, cnp.NPY_FLOAT32, states * H, writable)
        if self.config.cell_state:
            r.c0, r.cn = floats(c0, states * H), <float *>pointer(cn, cnp.NPY_FLOAT32, states * H, writable)
            if c0 is None or cn is None:
                raise AssertionError("broken promise: an LSTM without c")
        r.rows, r.B = table_of(rows), R
        check_rows(r, steps, sequences, states)
        T = r.T
        if statistics is not None:
            for side, value in statistics.items():
                if side == "count":
                    r.count = <int64_t *>pointer(value, cnp.NPY_INT64, T, writable)
                else:
                    index, (mean, var) = self.site_of(side), value
                    n = T * self.config.site[index].width  # GCOVR_EXCL_LINE: gcc moves the computation
                    r.statistics[index].mean = <double *>pointer(mean, cnp.NPY_FLOAT64, n, writable)
                    r.statistics[index].var = <double *>pointer(var, cnp.NPY_FLOAT64, n, writable)
        if masks is not None:
            r.masks.sequences, n = sequences, steps * sequences * H
            r.masks.state = floats(masks[0], sequences * H)
            r.masks.h = <const unsigned char *>pointer(masks[1], cnp.NPY_BOOL, n, False)
            r.masks.c = <const unsigned char *>pointer(masks[2], cnp.NPY_BOOL, n, False)
        if tape is not None:
            if (r.masks.h == NULL) != (self.config.zoneout_h == 0) or (r.masks.c == NULL) != (self.config.zoneout_c == 0):
                raise AssertionError("broken promise: a tape with zoneout, and no masks of it")
            n = lnrnn_tape_width(&self.config) * active_steps(r)
            r.tape = <float *>pointer(tape, cnp.NPY_FLOAT32, n, writable)
        return kept

    def forward(self, *, x, y, h0, hn, c0=None, cn=None, rows, statistics=None, tape=None, tuple masks=None, int threads=0):
        """x (T, B, D), h0, and of an LSTM c0, (states, H) -> y (T, B, H), hn, cn (states, H).

        rows (R, 6): lnrnn_row of lnrnn.h, longest first; no other thread can change them. statistics: side ->
        (mean, var), arrays (steps of the longest row, values), and "count" -> (steps): make batch norm use and report those
        of the batch. tape: written, for backward. masks: in training, what is dropped, each None for nothing: factors of
        h on its way to W_hh, (B, H) float32; where zoneout keeps the old h, and the old c, (T, B, H) bool. threads: the
        most that are used; 0: as set for all calls.
        """
        cdef lnrnn_rnn_call r
        cdef lnrnn_rnn_plan plan
        cdef Parts parts
        cdef bint finished = False
        kept = self.describe(&r, x, y, h0, hn, c0, cn, rows, statistics, tape, masks)
        lnrnn_rnn_make_plan(&r, threads or allowed_threads(), &plan)
        scratch = aligned(plan.scratch.floats)
        r.plan, r.scratch = &plan, out_floats(scratch, plan.scratch.floats)
        if tape is None and plan.group < r.B and r.rows[0].length != r.rows[r.B - 1].length:
            rows = dealt(rows, plan.group)
            r.rows = table_of(rows)
        parts = Parts()
        r.part = parts.size
        while True:
            with nogil:
                finished = lnrnn_rnn_forward(&r)
            if finished:
                return
            r.part, r.resumed = parts.next(), 1

    def tape(self, size_t steps):
        """An empty tape for so many steps of rows."""
        return aligned(lnrnn_tape_width(&self.config) * steps)

    @property
    def tape_width(self):
        """Floats of a step of a row in a tape."""
        return lnrnn_tape_width(&self.config)

    def backward(self, *, x, y, h0, c0=None, rows, statistics, tape, tuple masks=None, gy, ghn, gcn=None, gx,
                 gh0, gc0=None, list grads=None, bint add=False, int threads=0):
        """Gradients of what forward did with the same arguments, which here are only read; gx, gh0, gc0 are written; gx
        None: it is not wanted. -> the gradients of weight_ih and weight_hh, then of the gain and the bias of each of the
        sites, where it has them, then of the inner biases: float32, in the order in which they were given. They stand in the
        arrays of `grads`, which they are added to (add), or in new ones."""
        cdef lnrnn_rnn_call r
        cdef lnrnn_rnn_plan plan
        cdef lnrnn_rnn_gradients g
        cdef size_t T = axis(x, 0), B = axis(x, 1), states = axis(h0, 0)
        cdef size_t D = self.config.D, H = self.config.H, n = self.config.outputs
        cdef size_t need
        cdef int index
        cdef float *pgy = NULL
        cdef Parts parts
        cdef bint finished = False
        cdef room doubles
        memset(&g, 0, sizeof(g))
        # A tape belongs to the caller, who may make its arrays writeable again.
        rows = cnp.PyArray_NewCopy(<cnp.ndarray?>rows, cnp.NPY_CORDER)
        kept = self.describe(&r, x, y, h0, h0, c0, c0, rows, statistics, tape, masks, False)
        for index in range(LNRNN_SITES):
            if tape is None or (self.config.norm == LNRNN_NORM_BATCH and self.config.site[index].width
                                and (r.count == NULL or r.statistics[index].mean == NULL)):
                raise AssertionError("broken promise: a tape without its records or statistics")
        transposed = self.pack_transposed(gx is not None)
        strided(gy, T, B, H, False, &pgy, &g.gyt, &g.gyb)
        g.gy, g.ghn, g.gcn = pgy, floats(ghn, states * H), floats(gcn, states * H)
        g.w_ih, g.w_hh = floats(self.weights[0], n * D), floats(self.weights[1], n * H)
        g.w_hh_t = words(transposed[1])
        if gx is not None:
            g.w_ih_t = words(transposed[2])
            g.gx, g.gxt, g.gxb = out_floats(gx, T * B * D), B * D, D
        g.gh0, g.gc0 = out_floats(gh0, states * H), out_floats(gc0, states * H)
        if grads is None:
            grads = self.empty_gradients()
            add = False
        g.gw_ih, g.gw_hh, g.add = out_floats(grads[0], n * D), out_floats(grads[1], n * H), add
        lnrnn_rnn_make_plan(&r, threads or allowed_threads(), &plan)
        r.plan = &plan
        need = lnrnn_rnn_backward_work(&r)
        work = aligned(need)
        g.work = out_floats(work, need)
        parts = Parts()
        r.part = parts.size
        need = 2 * n
        for index in range(LNRNN_SITES):
            need += 2 * self.config.site[index].width
        take(&doubles, need)
        try:
            need = 0
            for index, gain in self.learnt: # two biases of one sum have one gradient
                where = self.gradient_of(&g, index, gain)
                if where[0] == NULL:
                    where[0] = doubles.values + need
                    need += self.width_of(index)
            while True:
                with nogil:
                    finished = lnrnn_rnn_backward(&r, &g)
                if finished:
                    break
                r.part, r.resumed = parts.next(), 1
            for one, (index, gain) in zip(grads[2:], self.learnt, strict=True):
                rounded_to(self.width_of(index), self.gradient_of(&g, index, gain)[0], one, add)
            return grads
        finally:
            leave(&doubles)

    def empty_gradients(self):
        """Arrays for the gradients that `backward` gives."""
        cdef cnp.npy_intp dims[2]
        cdef cnp.npy_intp n = self.config.outputs
        cdef int index
        dims[0], dims[1] = n, self.config.D
        found = [empty_of(2, dims, cnp.NPY_FLOAT32, n * dims[1] * sizeof(float))]
        dims[1] = self.config.H
        found.append(empty_of(2, dims, cnp.NPY_FLOAT32, n * dims[1] * sizeof(float)))
        for index, gain in self.learnt:
            dims[0] = self.width_of(index)
            found.append(cnp.PyArray_EMPTY(1, dims, cnp.NPY_FLOAT32, 0))
        return found

    cdef size_t width_of(self, int index) noexcept:
        """Of a site, or, from LNRNN_SITES on, of an inner bias."""
        return self.config.site[index].width if index < LNRNN_SITES else self.config.outputs

    cdef double **gradient_of(self, lnrnn_rnn_gradients *g, int index, bint gain) noexcept:
        """Where the gradient of a site's gain or bias is, or, from LNRNN_SITES on, that of an inner bias."""
        if index >= LNRNN_SITES:
            return &g.inner[1 if index > LNRNN_SITES and self.config.inner_hh != NULL else 0]
        return &g.site[index].gain if gain else &g.site[index].bias


cdef int rounded_to(size_t n, const double *values, object array, bint add) except -1:
    """values (n) -> array (n), or added to it."""
    cdef float *to = out_floats(array, n)
    cdef size_t i
    cdef lnrnn_floats own = lnrnn_enter_floats()
    for i in range(n):
        to[i] = to[i] + <float>values[i] if add else <float>values[i]
    lnrnn_leave_floats(&own)
    return 0


cdef inline const lnrnn_row *table_of(object rows) except? NULL:
    return <const lnrnn_row *>indices(rows, 6 * <size_t>axis(rows, 0))


cdef int check_rows(lnrnn_rnn_call *r, int64_t steps, int64_t sequences, int64_t states) except -1:
    """Rows within these arrays, longest first, no two with one state? Sets T and last_step_end."""
    cdef size_t i, wrong = 0
    cdef char some[512]
    cdef char *seen = &some[0]
    cdef const lnrnn_row *row
    if states > <int64_t>sizeof(some):
        seen = <char *>malloc(states)
    if seen == NULL:
        raise MemoryError  # GCOVR_EXCL_LINE: no memory for the marks of more than 512 states
    memset(seen, 0, states)
    r.T = r.rows[0].length if r.B else 0
    r.last_step_end = 0
    for i in range(r.B):
        row = &r.rows[i]
        if (row.sequence < 0 or row.sequence >= sequences or row.first < 0 or row.length < 0 or row.first > steps
                or row.length > steps - row.first or row.end < row.first + row.length or row.end > steps
                or row.state < 0 or row.state >= states or seen[row.state] or row.start < 0 or row.start > INT64_MAX - row.length
                or (i and row.length > r.rows[i - 1].length)):
            wrong += 1
            break
        seen[row.state] = 1
        r.last_step_end = max(r.last_step_end, <size_t>(row.start + row.length))
    if seen != &some[0]:
        free(seen)
    if wrong:
        raise AssertionError("broken promise: rows that cannot be")
    return 0


cdef size_t active_steps(const lnrnn_rnn_call *r) noexcept:
    """Those of all rows: the sum of their lengths."""
    cdef size_t i, n = 0
    for i in range(r.B):
        n += <size_t>r.rows[i].length
    return n


cdef object dealt(rows, size_t group):
    """The rows in groups that cost about the same, each group longest first: one row to each group in turn,
    longest first, the turns alternately from the first group and from the last."""
    place = np.arange(rows.shape[0])
    to, turn = place // group, place % group
    places = np.lexsort((np.where(turn % 2, -to, to), turn))
    found = np.empty_like(rows)
    found[places] = rows
    return found


cdef added(a, b):
    """The sum of two arrays; None is nothing."""
    if a is None or b is None:
        return b if a is None else a
    cdef lnrnn_floats own = lnrnn_enter_floats()
    try:
        return a + b
    finally:
        lnrnn_leave_floats(&own)


cdef inline const uint32_t *words(object array) except? NULL:
    if array is None:
        return NULL
    return <const uint32_t *>floats(array, array.size)


cdef turned(w):
    """The transpose of a weight, packed; None: backward reads the weight as it stands."""
    cdef size_t k = w.shape[1]
    return None if lnrnn_reads_lines(floats(w, w.size), k) else packed(w, True, LNRNN_WEIGHT_F32)


def packed(w, bint transpose, int dtype):
    """w (n, k) or its transpose, packed for the instruction set in use: 32-bit words in a float32 array."""
    cdef size_t n = w.shape[0], k = w.shape[1]
    cdef const float *p = floats(w, n * k)
    cdef size_t rows = k if transpose else n, columns = n if transpose else k
    out = aligned(lnrnn_packed_size(dtype, rows, columns))
    cdef uint32_t *q = <uint32_t *>out_floats(out, out.size)
    cdef ptrdiff_t row = 1 if transpose else <ptrdiff_t>k, column = <ptrdiff_t>k if transpose else 1
    with nogil:
        lnrnn_pack(dtype, rows, columns, p, row, column, q)
    return out
