# The parameters of a recurrent layer in one direction. Part of _core.pyx.

# The enumerations of lnrnn.h for Python, which finds a member by the name that a user gives: Placement["SPLIT"].
CellKind = _enumeration("CellKind", RNN=LNRNN_RNN, LSTM=LNRNN_LSTM, GRU=LNRNN_GRU)
Activation = _enumeration("Activation", TANH=LNRNN_ACT_TANH, RELU=LNRNN_ACT_RELU, SIGMOID=LNRNN_ACT_SIGMOID,
                          IDENTITY=LNRNN_ACT_IDENTITY)
NormKind = _enumeration("NormKind", NONE=LNRNN_NORM_NONE, LAYER=LNRNN_NORM_LAYER, BATCH=LNRNN_NORM_BATCH)
Placement = _enumeration("Placement", JOINT=LNRNN_JOINT, SPLIT=LNRNN_SPLIT, GATE=LNRNN_GATE)
Span = _enumeration("Span", PAPER=LNRNN_SPAN_PAPER, ALL=LNRNN_SPAN_ALL)
CellNorm = _enumeration("CellNorm", NONE=LNRNN_CELL_NONE, OUT=LNRNN_CELL_OUT, CARRY=LNRNN_CELL_CARRY)
WeightType = _enumeration("WeightType", FLOAT32=LNRNN_WEIGHT_F32, BFLOAT16=LNRNN_WEIGHT_BF16, INT8=LNRNN_WEIGHT_I8,
                          INT8_OF_8_BITS=LNRNN_WEIGHT_I8A8)
Overrun = _enumeration("Overrun", RAISE=LNRNN_OVERRUN_RAISE, LAST=LNRNN_OVERRUN_LAST, MEAN=LNRNN_OVERRUN_MEAN,
                       BATCH=LNRNN_OVERRUN_BATCH)
INT8_INPUTS = LNRNN_INT8_INPUTS


def fold(mean, var, gain, bias, double eps, bint averages):
    """Batch norm of the known steps, mean and var (known, width), with gain (width) and bias (width) or None. averages: a
    row more, of the means over the steps. -> scale, shift (known or known + 1, width)."""
    cdef lnrnn_fold_job f
    cdef size_t rows, values
    f.known, f.width, f.averages, f.eps = axis(mean, 0), axis(mean, 1), averages, eps
    rows, values = f.known + f.averages, f.known * f.width
    f.mean, f.var = <const double *>pointer(mean, cnp.NPY_FLOAT64, values, False), <const double *>pointer(var, cnp.NPY_FLOAT64, values, False)
    f.gain, f.bias = floats(gain, f.width), floats(bias, f.width)
    scale, shift = np.empty((rows, f.width), np.float32), np.empty((rows, f.width), np.float32)
    lnrnn_fold(&f, out_floats(scale, rows * f.width), out_floats(shift, rows * f.width))
    return scale, shift


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
        """-> the address of the instruction set's name, W_ih, W_hh, packed. A caller keeps the tuple while C reads it:
        another thread may pack again."""
        cdef tuple kept
        with cython.critical_section(self):
            kept = self.packed
        name = <uintptr_t>lnrnn_isa_name()
        if kept is None or kept[0] != name:
            kept = (name, *(packed(w, False, self.config.dtype) for w in self.weights))
            with cython.critical_section(self):
                self.packed = kept
        return kept

    cdef tuple pack_transposed(self, bint both):
        """-> that address, W_hh and, if both are wanted, W_ih, transposed and packed; None for one that backward reads as
        it stands."""
        cdef tuple kept
        with cython.critical_section(self):
            kept = self.transposed
        name = <uintptr_t>lnrnn_isa_name()
        if kept is None or kept[0] != name or len(kept) < 2 + both:
            first = kept[1] if kept is not None and kept[0] == name else packed_transpose(self.weights[1])
            kept = (name, first, packed_transpose(self.weights[0])) if both else (name, first)
            with cython.critical_section(self):
                self.transposed = kept
        return kept

    @property
    def nbytes(self):
        """Bytes of the packed weights; 0 before the first call."""
        with cython.critical_section(self):
            both = self.packed, self.transposed
        return sum(w.nbytes for kept in both if kept for w in kept[1:] if w is not None)

    def tape(self, size_t steps):
        """An empty tape for so many steps of rows."""
        return aligned(lnrnn_tape_width(&self.config) * steps)

    @property
    def tape_width(self):
        """Floats of a step of a row in a tape."""
        return lnrnn_tape_width(&self.config)

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

    cdef size_t gradient_doubles(self) noexcept:
        cdef size_t index, n = 2 * self.config.outputs
        for index in range(LNRNN_SITES):
            n += 2 * self.config.site[index].width
        return n

    cdef tuple fill_gradients(self, lnrnn_rnn_gradients *g, list grads, bint inputs):
        """Weights, and where their gradients go. inputs: those of x are wanted too. -> to be kept while C reads it."""
        cdef size_t D = self.config.D, H = self.config.H, n = self.config.outputs
        cdef tuple transposed = self.pack_transposed(inputs)
        g.w_ih, g.w_hh = floats(self.weights[0], n * D), floats(self.weights[1], n * H)
        g.w_hh_t = words(transposed[1])
        if inputs:
            g.w_ih_t = words(transposed[2])
        g.gw_ih, g.gw_hh = out_floats(grads[0], n * D), out_floats(grads[1], n * H)
        return transposed

    cdef size_t width_of(self, int index) noexcept:
        """Of a site, or, from LNRNN_SITES on, of an inner bias."""
        return self.config.site[index].width if index < LNRNN_SITES else self.config.outputs

    cdef double **gradient_of(self, lnrnn_rnn_gradients *g, int index, bint gain) noexcept:
        """Where the gradient of a site's gain or bias is, or, from LNRNN_SITES on, that of an inner bias."""
        if index >= LNRNN_SITES:
            return &g.inner[1 if index > LNRNN_SITES and self.config.inner_hh != NULL else 0]
        return &g.site[index].gain if gain else &g.site[index].bias


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


cdef packed_transpose(w):
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
