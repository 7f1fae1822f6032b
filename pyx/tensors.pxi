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
    """
    ctypedef struct lnrnn_dl_type "typeof(((lnrnn_dl_tensor *)0)->dtype)":
        unsigned char code, bits
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

cdef enum:
    SAMPLES = 8  # elements of each tensor that are compared
    AXES = 8  # the most axes of a tensor that is read

cdef object torch_tensor = None, from_numpy = None, torch_threads = None
cdef dict dtypes = {}, derivatives = {}
cdef tuple modes = ()
cdef lnrnn_dl_functions *exchange = NULL  # NULL for torch before 2.10


def use_torch(tensor, dict types, to_tensor, threads, tuple active, dict forward_ad, exchange_api):
    """Sets torch's Tensor, from_numpy and get_num_threads.

    types: DLPack's code and bits of torch's dtypes. active: functions that return a true value if a mode is
    active. forward_ad: the names of torch.autograd.forward_ad. exchange_api: the capsule of DLPack's
    functions, or None."""
    global torch_tensor, dtypes, from_numpy, torch_threads, modes, derivatives, exchange
    torch_tensor, dtypes, from_numpy, torch_threads = tensor, types, to_tensor, threads
    modes, derivatives, exchange = active, forward_ad, NULL
    if PyCapsule_IsValid(exchange_api, b"dlpack_exchange_api"):
        exchange = <lnrnn_dl_functions *>PyCapsule_GetPointer(exchange_api, b"dlpack_exchange_api")
        if exchange.version[0] != 1:
            exchange = NULL


cdef struct Sight:
    lnrnn_dl_tensor of
    int64_t[AXES] shape, strides  # of `of`, without exchange


cdef int look(Sight *s, t) except -1:
    """Reads where the numbers of a tensor of at most AXES axes are. Raises RuntimeError if it has no
    memory."""
    cdef int k
    if exchange != NULL:
        return exchange.look(<void *>t, &s.of)
    s.of.data, s.of.byte_offset, s.of.ndim = <void *><uintptr_t>t.data_ptr(), 0, t.dim()
    s.of.device[0], s.of.shape, s.of.strides = 1 if t.is_cpu else 0, s.shape, s.strides
    s.of.dtype.code, s.of.dtype.bits = dtypes.get(t.dtype, (0, 0))
    for k in range(min(s.of.ndim, AXES)):
        s.shape[k], s.strides[k] = t.size(k), t.stride(k)
    return 0


cdef object memory_of(t, Sight *s, int ndim, int at):
    """Returns a tensor's memory as an array, with a reference to `t`, and with new axes before axis `at`, up
    to ndim axes. Returns None for other dtypes than float32, float64 and int64, and for other devices."""
    cdef cnp.npy_intp[AXES] dims, strides
    cdef int k, from_, new = ndim - s.of.ndim, bits = s.of.dtype.bits, kind = -1
    if s.of.dtype.code == 2:
        kind = cnp.NPY_FLOAT32 if bits == 32 else cnp.NPY_FLOAT64 if bits == 64 else -1
    elif s.of.dtype.code == 0 and bits == 64:
        kind = cnp.NPY_INT64
    if kind < 0 or ndim > AXES or s.of.data == NULL or s.of.device[0] != 1:
        return None
    for k in range(ndim):
        if at <= k < at + new:
            dims[k], strides[k] = 1, bits // 8
        else:
            from_ = k if k < at else k - new
            dims[k], strides[k] = s.of.shape[from_], s.of.strides[from_] * (bits // 8)
    array = cnp.PyArray_New(cnp.ndarray, ndim, dims, kind, strides, <char *>s.of.data + s.of.byte_offset, 0,
                            cnp.NPY_ARRAY_WRITEABLE, <object>NULL)
    cnp.set_array_base(<cnp.ndarray>array, t)
    return array


def array_of(t):
    """Returns a tensor without gradients as an array that shares its memory, and has a reference to `t`.

    t.numpy() does the same, but then the storage cannot be resized, as FSDP does between calls. Raises the
    errors of t.numpy()."""
    cdef Sight s
    if type(t) is not torch_tensor or t.is_neg():
        return t.numpy()
    look(&s, t)
    array = memory_of(t, &s, s.of.ndim, 0)
    return t.numpy() if array is None else array


def same_memory(list arrays, list others):
    """Returns whether arrays have the addresses of others."""
    cdef Py_ssize_t k
    if len(arrays) != len(others):
        return False
    for k in range(len(arrays)):
        if cnp.PyArray_DATA(<cnp.ndarray?>arrays[k]) != cnp.PyArray_DATA(<cnp.ndarray?>others[k]):
            return False
    return True


cdef struct Mark:
    uintptr_t address
    int64_t version, first, last, stride  # torch's count of writes; two lengths and a stride
    int ndim


cdef int mark(Mark *m, t) except -1:
    """Reads the signs of a change of a tensor. Raises RuntimeError if it has no memory or no version."""
    cdef Sight s
    look(&s, t)
    memset(m, 0, sizeof(Mark))
    m.address, m.version, m.ndim = <uintptr_t>s.of.data + s.of.byte_offset, t._version, s.of.ndim
    if m.ndim:
        m.first, m.last, m.stride = s.of.shape[0], s.of.shape[m.ndim - 1], s.of.strides[0]
    return 0


cdef class Seen:
    """A record of tensors, or None with same_objects. arrays: the memory of each, of items of 4 or 8 bytes,
    to which the record has references; None if changes do not matter.

    same_objects: whether other tensor objects count as changed. The record then has references to the
    tensors. Raises RuntimeError for a tensor without a version."""

    cdef tuple tensors
    cdef list arrays
    cdef Py_ssize_t count, samples
    cdef Mark *marks
    cdef const uint32_t **places
    cdef uint32_t *values

    def __init__(self, list tensors, list arrays, bint same_objects):
        cdef Py_ssize_t k, i, n, axis, at
        cdef cnp.ndarray array
        cdef const char *place
        self.tensors, self.count = tuple(tensors) if same_objects else None, len(tensors)
        if arrays is None:
            return
        self.arrays = arrays
        self.marks = <Mark *>calloc(self.count + 1, sizeof(Mark))
        self.places = <const uint32_t **>calloc(self.count * SAMPLES + 1, sizeof(uint32_t *))
        self.values = <uint32_t *>calloc(self.count * SAMPLES + 1, sizeof(uint32_t))
        if self.marks == NULL or self.places == NULL or self.values == NULL:
            raise MemoryError
        for k in range(self.count):
            if tensors[k] is None:
                continue
            mark(&self.marks[k], tensors[k])
            array = <cnp.ndarray?>arrays[k]
            if cnp.PyArray_ITEMSIZE(array) < 4:
                raise AssertionError(f"internal error: items of {array.dtype}")
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

    def __dealloc__(self):
        free(self.marks)
        free(self.places)
        free(self.values)

    def holds(self, list tensors):
        """Returns whether `tensors` are the recorded tensors and unchanged, as far as torch's versions and
        the sampled elements show."""
        cdef Py_ssize_t k
        cdef Mark now
        if len(tensors) != self.count:
            return False
        for k in range(self.count):
            t = tensors[k]
            if self.tensors is not None and t is not self.tensors[k]:
                return False
            if t is None or self.arrays is None:
                continue
            # An inference tensor has no version. A negative view may have the memory of a recorded tensor.
            if self.tensors is None and (t.is_inference() or t.is_neg()):
                return False
            mark(&now, t)
            if memcmp(&now, &self.marks[k], sizeof(Mark)):
                return False
        for k in range(self.samples):
            if self.places[k][0] != self.values[k]:
                return False
        return True


cdef class Kept:
    """A network that a module of torch keeps between its calls. Copies and pickles of this object are None.

    network: the text of functional.described. record: of the tensors with the weights, or None. served: the
    object that has the packed weights. packed: its network, or None if `call` must not be used. pair: whether
    a state is (h, c). cell: whether a call is one step, with x (B, D), (D,) or (1, B, D), and states with as
    many axes."""

    cdef readonly str network
    cdef readonly object overrun, record, served
    cdef Network packed
    cdef bint pair, cell

    def __init__(self, str network, overrun, Seen record, served, Network packed, bint pair, bint cell):
        self.network, self.overrun, self.record, self.served = network, overrun, record, served
        self.packed, self.pair, self.cell = packed, pair, cell

    def __reduce__(self):
        return type(None), ()

    def call(self, str network, list tensors, x, state, int axes):
        """Runs the network on tensors. Returns (y, h) or (y, (h, c)); for a single step only h or (h, c).

        Returns None if a mode of torch is active, or the weights may have changed. Also returns None if an
        argument is no float32 CPU tensor of the right shape. tensors: the tensors of `record`. axes: bit n
        is set if x may have n axes."""
        cdef Network n = self.packed
        cdef int threads, own, at
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
        if type(x) is not torch_tensor:
            return None
        own, at = x.dim(), 0 if self.cell else 1  # unbatched states have no axis `at`
        x = input_of(x, own, 0 if n.d.batch_first else at) if own <= 3 and axes >> own & 1 else None
        if x is None or (self.cell and cnp.PyArray_DIMS(<cnp.ndarray>x)[0] != 1):
            return None
        if state is not None:
            if not self.pair:
                state = input_of(state, own, at)
            elif isinstance(state, (tuple, list)) and len(state) == 2:
                state = input_of(state[0], own, at), input_of(state[1], own, at)
            else:
                return None
            if state is None:
                return None
        result = n.call(x, state, None, threads)
        if result is None:
            return None
        y, end = result
        if self.pair:
            end = output_of(end[0], own, at), output_of(end[1], own, at)
        else:
            end = output_of(end, own, at)
        return end if self.cell else (output_of(y, own, 0 if n.d.batch_first else 1), end)


cdef object input_of(t, int ndim, int at):
    """Returns an array of three axes for a float32 CPU tensor of ndim axes; None for any other object.

    The array shares the tensor's memory if this is contiguous. New axes of size 1 stand before axis `at`."""
    cdef Sight s
    if type(t) is not torch_tensor:
        return None
    try:
        look(&s, t)
        # The memory of a negative view has the numbers with the other sign.
        if s.of.ndim != ndim or s.of.dtype.code != 2 or s.of.dtype.bits != 32 or t.is_neg():
            return None
        array = memory_of(t, &s, 3, at)
        if array is None or cnp.PyArray_ISCARRAY_RO(<cnp.ndarray>array):
            return array
        t = t.contiguous()
        look(&s, t)
        return memory_of(t, &s, 3, at)
    except RuntimeError:  # it has no memory
        return None


cdef object output_of(array, int ndim, int at):
    """Returns an array of three axes as a tensor of ndim axes, without axes at `at`."""
    for _ in range(3 - ndim):
        array = array[:, 0] if at else array[0]
    return from_numpy(array)


@cython.binding(True)  # torch.compile warns of other compiled functions in code that it reads
def same_objects(list contents, list tensors, list constants):
    """Returns whether all values in lists of lnrnn.torch's Settings are the same objects, and tensors have
    the same versions.

    If not, values may still be equal."""
    cdef tuple entry
    cdef list tensor
    cdef Py_ssize_t k
    for entry in contents:
        of, then = entry[0], entry[1]
        if isinstance(then, list):
            if len(of) != len(<list>then):
                return False
            for k in range(len(<list>then)):
                if of[k] is not (<list>then)[k]:
                    return False
        else:
            own = of if isinstance(of, dict) else of.__dict__
            if len(own) != len(<dict>then) + len(<frozenset>entry[2]):
                return False
            for name, value in (<dict>then).items():
                if own.get(name, entry) is not value:  # entry: the name is absent
                    return False
    for tensor in tensors:
        if tensor[1] == -1 or tensor[0]._version != tensor[1]:
            return False
    for entry in constants:
        if getattr(entry[0], entry[1], entry) is not entry[2]:
            return False
    return True
