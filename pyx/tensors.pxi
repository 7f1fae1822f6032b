# Calls with tensors of torch. The functions of torch come from Python, so the compiled module does not need
# torch.

cdef extern from *:
    """
    /* A part of DLPack's C exchange API, dlpack.h 1.2. */
    typedef struct {
        void *data;
        int32_t device[2]; /* type, number */
        int32_t ndim;
        struct {
            uint8_t code, bits;
            uint16_t lanes;
        } dtype;
        int64_t *shape, *strides;
        uint64_t byte_offset;
    } lnrnn_dl_tensor;
    typedef struct {
        uint32_t version[2]; /* major, minor */
        void *others[4];
        int (*look)(void *object, lnrnn_dl_tensor *to);
    } lnrnn_dl_functions;
    enum { LNRNN_DL_CPU = 1, LNRNN_DL_INT = 0, LNRNN_DL_FLOAT = 2 };
    """
    enum:
        LNRNN_DL_CPU
        LNRNN_DL_INT
        LNRNN_DL_FLOAT
    ctypedef struct lnrnn_dl_type "typeof(((lnrnn_dl_tensor *)0)->dtype)":
        unsigned char code, bits
        unsigned short lanes
    ctypedef struct lnrnn_dl_tensor:
        void *data
        int32_t device[2]
        int32_t ndim
        lnrnn_dl_type dtype
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset
    ctypedef struct lnrnn_dl_functions:
        uint32_t version[2]
        int (*look)(void *object, lnrnn_dl_tensor *to) except -1
    void prefetch "__builtin_prefetch"(const void *) noexcept
    dict PyObject_GenericGetDict(object, void *)

cdef enum:
    SAMPLES = 8  # elements of each tensor that are compared
    AXES = 8  # axes whose lengths are read

cdef object torch_tensor = None, float32 = None, from_numpy = None, torch_threads = None
cdef object derivatives = None, compile_callback = None
cdef tuple modes = ()
cdef lnrnn_dl_functions *exchange = NULL  # if NULL, `look` reads attributes of tensors, which takes longer


def use_torch(tensor, dtype, to_tensor, threads, tuple active, callback, dict forward_ad, exchange_api):
    """Sets torch's Tensor, float32, from_numpy and get_num_threads, and functions that return a true value if
    a mode is active.

    The first of these is is_grad_enabled. callback: returns torch.compile's callback, or None if it is not
    active. forward_ad: the names of torch.autograd.forward_ad. exchange_api: the capsule of DLPack's
    functions, or another object."""
    global torch_tensor, float32, from_numpy, torch_threads, modes, derivatives, exchange, compile_callback
    torch_tensor, float32, from_numpy, torch_threads = tensor, dtype, to_tensor, threads
    modes, compile_callback, derivatives, exchange = active, callback, forward_ad, NULL
    if PyCapsule_IsValid(exchange_api, b"dlpack_exchange_api"):
        exchange = <lnrnn_dl_functions *>PyCapsule_GetPointer(exchange_api, b"dlpack_exchange_api")
        if exchange.version[0] != 1:
            exchange = NULL


cdef struct Sight:
    const float *address
    int64_t version  # only of parameters
    Py_ssize_t bytes
    bint contiguous
    bint floats  # whether it is float32 on the CPU
    int ndim
    int64_t n[AXES]


cdef int look(Sight *s, t) except -1:
    """Reads where the numbers of a tensor are. Raises an exception for tensors without memory."""
    cdef lnrnn_dl_tensor seen
    cdef int k
    cdef int64_t items = 1
    if exchange == NULL:
        s.address, s.bytes, s.contiguous = <const float *><uintptr_t>t.data_ptr(), t.nbytes, t.is_contiguous()
        s.floats = t.dtype is float32 and t.is_cpu
        s.ndim = t.dim()
        for k in range(min(s.ndim, AXES)):
            s.n[k] = t.size(k)
        return 0
    exchange.look(<void *>t, &seen)
    s.address = <const float *>(<uintptr_t>seen.data + seen.byte_offset)
    s.ndim, s.contiguous = seen.ndim, True
    for k in range(s.ndim - 1, -1, -1):
        s.contiguous = s.contiguous and (seen.shape[k] == 1 or seen.strides[k] == items)
        items *= seen.shape[k]
        if k < AXES:
            s.n[k] = seen.shape[k]
    s.bytes = items * seen.dtype.bits // 8
    s.floats = seen.dtype.code == LNRNN_DL_FLOAT and seen.dtype.bits == 32 and seen.device[0] == LNRNN_DL_CPU
    return 0


def array_of(t):
    """Returns a tensor without gradients as an array that shares its memory, and has a reference to `t`.

    t.numpy() does the same, but then the storage cannot be resized, as FSDP does between calls. Raises the
    errors of t.numpy()."""
    cdef lnrnn_dl_tensor seen
    cdef cnp.npy_intp[AXES] dims, strides
    cdef int k, kind = -1
    if exchange == NULL or type(t) is not torch_tensor or t.is_neg():
        return t.numpy()
    exchange.look(<void *>t, &seen)
    if seen.device[0] == LNRNN_DL_CPU and seen.dtype.lanes == 1:
        if seen.dtype.code == LNRNN_DL_FLOAT:
            kind = (cnp.NPY_FLOAT32 if seen.dtype.bits == 32
                    else cnp.NPY_FLOAT64 if seen.dtype.bits == 64 else -1)
        elif seen.dtype.code == LNRNN_DL_INT and seen.dtype.bits == 64:
            kind = cnp.NPY_INT64
    if kind < 0 or seen.ndim > AXES or seen.data == NULL:
        return t.numpy()
    for k in range(seen.ndim):
        dims[k], strides[k] = seen.shape[k], seen.strides[k] * (seen.dtype.bits // 8)
    array = cnp.PyArray_New(cnp.ndarray, seen.ndim, dims, kind, strides,
                            <char *>seen.data + seen.byte_offset, 0, cnp.NPY_ARRAY_WRITEABLE, <object>NULL)
    cnp.set_array_base(<cnp.ndarray>array, t)
    return array


def same_memory(list arrays, list others):
    """Returns whether arrays have the addresses of others."""
    cdef Py_ssize_t k
    if len(arrays) != len(others):
        return False
    for k in range(len(arrays)):
        if cnp.PyArray_DATA(<cnp.ndarray?>arrays[k]) != cnp.PyArray_DATA(<cnp.ndarray?>others[k]):
            return False
    return True


cdef class Seen:
    """A record of tensors, or None with same_objects. arrays: the memory of each, of items of 4 or 8 bytes,
    to which the record has references; None if changes do not matter.

    same_objects: whether other tensor objects count as changed. The record then has references to the
    tensors. Raises RuntimeError for a tensor without a version."""

    cdef tuple tensors
    cdef list arrays
    cdef Py_ssize_t count, samples
    cdef Sight *sights
    cdef const uint32_t **places
    cdef uint32_t *values

    def __init__(self, list tensors, list arrays, bint same_objects):
        self.tensors = tuple(tensors) if same_objects else None
        self.count = len(tensors)
        if arrays is not None:
            self.record(tensors, arrays)

    cdef int record(self, list tensors, list arrays) except -1:
        cdef Py_ssize_t k, i, n, axis, at
        cdef cnp.ndarray array
        cdef const char *place
        self.arrays = arrays
        self.sights = <Sight *>calloc(self.count + 1, sizeof(Sight))
        self.places = <const uint32_t **>calloc(self.count * SAMPLES + 1, sizeof(uint32_t *))
        self.values = <uint32_t *>calloc(self.count * SAMPLES + 1, sizeof(uint32_t))
        if self.sights == NULL or self.places == NULL or self.values == NULL:
            raise MemoryError
        for k in range(self.count):
            if tensors[k] is None:
                continue
            look(&self.sights[k], tensors[k])
            self.sights[k].version = tensors[k]._version
            array = <cnp.ndarray?>arrays[k]
            if cnp.PyArray_ITEMSIZE(array) < 4:
                raise AssertionError(f"broken promise: items of {array.dtype}")
            n = cnp.PyArray_SIZE(array)
            for i in range(min(n, SAMPLES)):
                # Elements at equal distances, from the first to the last.
                at = i * (n - 1) // (min(n, SAMPLES) - 1) if n > 1 else 0
                place = cnp.PyArray_BYTES(array)
                for axis in range(cnp.PyArray_NDIM(array) - 1, -1, -1):
                    place += at % cnp.PyArray_DIMS(array)[axis] * cnp.PyArray_STRIDES(array)[axis]
                    at //= cnp.PyArray_DIMS(array)[axis]
                self.places[self.samples] = <const uint32_t *>place
                self.values[self.samples] = self.places[self.samples][0]
                self.samples += 1
        return 0

    def __dealloc__(self):
        free(self.sights)
        free(self.places)
        free(self.values)

    def holds(self, list tensors):
        """Returns whether tensors are those of the record and have not changed, as far as versions and
        samples show."""
        cdef Py_ssize_t k
        cdef Sight now
        cdef Sight *then
        if len(tensors) != self.count:
            return False
        if self.tensors is not None:
            for k in range(self.count):
                if tensors[k] is not self.tensors[k]:
                    return False
        if self.arrays is None:
            return True
        for k in range(self.samples):  # they have left the cache since the last call, so fetch all at once
            prefetch(self.places[k])
        for k in range(self.count):
            then = &self.sights[k]
            if tensors[k] is None:
                continue
            # An inference tensor has no version. A negative view may have the memory of a recorded tensor.
            if self.tensors is None and (tensors[k].is_inference() or tensors[k].is_neg()):
                return False
            look(&now, tensors[k])
            now.version = tensors[k]._version
            if (now.address != then.address or now.version != then.version or now.bytes != then.bytes
                    or now.contiguous != then.contiguous or now.ndim != then.ndim
                    or (now.ndim and now.n[0] != then.n[0])):
                return False
        for k in range(self.samples):
            if self.places[k][0] != self.values[k]:
                return False
        return True


cdef class Kept:
    """A network that a module of torch keeps between its calls. Copies and pickles of this object are None.

    network: the text of functional.described. record: of the tensors with the weights, or None. served: the
    object that has the packed weights. packed: its network, or None if `call` must not be used. pair: whether
    a state is (h, c). cell: 0 if calls have sequences. If it is 1, a call is one step, with x (B, D) or (D,),
    and states (B, H) or (H,). If it is 2, x is (B, D) or (1, B, D), and states are (B, H) or (1, B, H)."""

    cdef readonly str network
    cdef readonly object overrun, record, served
    cdef Network packed
    cdef bint pair
    cdef int cell

    def __init__(self, str network, overrun, Seen record, served, Network packed, bint pair, int cell):
        self.network, self.overrun, self.record, self.served = network, overrun, record, served
        self.packed, self.pair, self.cell = packed, pair, cell

    def __reduce__(self):
        return type(None), ()

    def call(self, str network, dict parameters, x, state):
        """Runs the network on tensors. Returns (y, h) or (y, (h, c)), of a cell h or (h, c).

        Returns None if a mode of torch is active or the weights may have changed. It also does so for an
        argument that is no contiguous float32 tensor on the CPU, of the right shape. The values of
        `parameters` are the tensors of `record`."""
        return self.run(network, list(parameters.values()), x, state, -1)

    cdef object run(self, str network, list tensors, x, state, int axes):
        """Does the work of `call`. tensors: the values of `parameters`. axes: bit n is set if x may have n
        axes."""
        cdef Network n = self.packed
        cdef Call call
        cdef Sight at, h, cell
        cdef int threads
        if self.record is None or n is None or (network is not self.network and network != self.network):
            return None
        for active in modes:
            if active():
                return None
        if <int>derivatives["_current_level"] >= 0 or not (<Seen>self.record).holds(tensors):
            return None
        threads = torch_threads()
        if threads >= allowed_threads():
            threads = 0
        elif threads > 1:
            return None
        first = second = None
        if self.pair and state is not None:
            if not isinstance(state, (tuple, list)) or len(state) != 2:
                return None
            first, second = state
        else:
            first = state
        x, first, second = seen_input(&at, x), seen_input(&h, first), seen_input(&cell, second)
        if (x is None or not axes >> at.ndim & 1
                or (state is not None and (first is None or (self.pair and second is None)))):
            return None
        call = n.take()
        try:
            return self.computed(call, &at, &h if state is not None else NULL, &cell, threads)
        finally:
            n.give(call)

    cdef object computed(self, Call call, Sight *x, Sight *h, Sight *cell, int threads):
        """Returns the result of `call` for memory of tensors. h: NULL for zeros; cell: the second state, if
        there are two."""
        cdef Network n = self.packed
        cdef lnrnn_network_call *c = &call.c
        cdef cnp.npy_intp T = 1, B = 1
        cdef cnp.npy_intp[3] dims
        # The axes before those of a batch: T or a step's 1. Those of states: lines, the same 1, or none.
        cdef int before = 1 if not self.cell else self.cell == 2 and x.ndim == 3
        cdef int batch = x.ndim - 1 - before, k, states
        if batch < (self.cell == 2) or batch > 1 or x.n[x.ndim - 1] != <int64_t>c.network.inputs:
            return None
        if not self.cell:
            T = x.n[batch and n.d.batch_first]
        elif before and x.n[0] != 1:
            return None
        if batch:
            B = x.n[before and not (n.d.batch_first and not self.cell)]
        dims[0] = 1 if self.cell else c.network.layers * c.network.directions
        dims[before], states = B, before + batch
        if h != NULL and not (same_axes(h, dims, states, c.network.h_width)
                              and (not self.pair or same_axes(cell, dims, states, c.network.c_width))):
            return None
        if not n.starts(call, T, B, x.address, h.address if h != NULL else NULL,
                        cell.address if h != NULL and self.pair else NULL, None):
            return None
        end = new_floats(dims, states, c.network.h_width)
        last = new_floats(dims, states, c.network.c_width) if self.pair else None
        for k in range(x.ndim - 1):
            dims[k] = x.n[k]
        y = new_floats(dims, x.ndim - 1, c.network.directions * c.network.h_width)
        n.compute(call, threads, y, end, last)
        end = from_numpy(end)
        if self.pair:
            end = end, from_numpy(last)
        return end if self.cell else (from_numpy(y), end)


cdef object seen_input(Sight *s, t):
    """Looks at a contiguous float32 tensor on the CPU, or at a copy. Returns that tensor, or None for
    others."""
    if type(t) is not torch_tensor:
        return None
    try:
        look(s, t)
        if t.is_neg():  # its memory has the numbers with the other sign
            return None
        if not s.contiguous:
            t = t.contiguous()
            look(s, t)
    except RuntimeError:  # it has no memory
        return None
    return t if s.floats and s.contiguous and s.address and 0 < s.ndim <= 3 else None


cdef inline bint same_axes(const Sight *s, const cnp.npy_intp *dims, int ndim, size_t width) noexcept:
    """Returns whether a tensor has the axes dims (ndim) and a last axis of this width."""
    cdef int k
    if s.ndim != ndim + 1 or s.n[ndim] != <int64_t>width:
        return False
    for k in range(ndim):
        if s.n[k] != dims[k]:
            return False
    return True


cdef inline object new_floats(cnp.npy_intp *dims, int ndim, size_t width):
    """Returns a new array with the axes dims (ndim) and a last axis of this width. Writes dims[ndim]."""
    dims[ndim] = width
    return empty_of(ndim + 1, dims, cnp.NPY_FLOAT32, cnp.PyArray_MultiplyList(dims, ndim + 1) * sizeof(float))
