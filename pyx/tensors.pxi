# Calls with tensors of torch. The functions of torch come from Python, so the compiled module does not need torch.

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void *) noexcept

cdef enum:
    SAMPLES = 8  # elements of each tensor that are compared


cdef struct Sight:
    uintptr_t address
    int64_t version
    Py_ssize_t bytes
    bint contiguous


cdef int look(Sight *s, t) except -1:
    s.address, s.version = t.data_ptr(), t._version
    s.bytes, s.contiguous = t.nbytes, t.is_contiguous()
    return 0


cdef class Seen:
    """A record of tensors, or None with same_objects. arrays: the memory of each, of items of 4 or 8 bytes, which the record keeps from being freed; None if
    changes do not matter.

    same_objects: whether other tensor objects count as changed. The record then has references to the tensors. Raises RuntimeError
    for a tensor without a version."""

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
        """Returns whether tensors are those of the record and have not changed, as far as versions and samples show."""
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
            look(&now, tensors[k])
            if (now.address != then.address or now.version != then.version or now.bytes != then.bytes
                    or now.contiguous != then.contiguous):
                return False
        for k in range(self.samples):
            if self.places[k][0] != self.values[k]:
                return False
        return True


cdef object torch_tensor = None, float32 = None, from_numpy = None, torch_threads = None
cdef tuple modes = ()


def use_torch(tensor, dtype, to_tensor, threads, tuple active):
    """Sets torch's Tensor, float32, from_numpy and get_num_threads, and functions that return a true value if a mode is active."""
    global torch_tensor, float32, from_numpy, torch_threads, modes
    torch_tensor, float32, from_numpy, torch_threads, modes = tensor, dtype, to_tensor, threads, active


cdef class Kept:
    """A network that a module of torch keeps between its calls. Copies and pickles of this object are None.

    network: the text of functional.described. record: of the tensors with the weights, or None. served: the object that has the
    packed weights. packed: its network, or None if `call` must not be used. pair: whether a state is (h, c). cell: whether a call is
    one step, with x (B, D) or (D,), and states (B, H) or (H,)."""

    cdef readonly str network
    cdef readonly object overrun, record, served
    cdef Network packed
    cdef bint pair, cell

    def __init__(self, str network, overrun, Seen record, served, Network packed, bint pair, bint cell):
        self.network, self.overrun, self.record, self.served = network, overrun, record, served
        self.packed, self.pair, self.cell = packed, pair, cell

    def __reduce__(self):
        return type(None), ()

    def call(self, str network, dict parameters, x, state):
        """Runs the network on tensors. Returns (y, h) or (y, (h, c)), of a cell h or (h, c).

        Returns None if a mode of torch is active or the weights may have changed. It also does so for an argument that is no
        contiguous float32 tensor on the CPU, of the right shape. The values of `parameters` are the tensors of `record`."""
        cdef int threads, ndim, at = 0
        cdef bint apart = not self.cell  # the axis of the sequences in states
        if (self.record is None or self.packed is None or type(x) is not torch_tensor
                or (network is not self.network and network != self.network)):
            return None
        for active in modes:
            if active():
                return None
        if not (<Seen>self.record).holds(list(parameters.values())):
            return None
        threads = torch_threads()
        if threads >= allowed_threads():
            threads = 0
        elif threads > 1:
            return None
        h = cell = None
        try:
            x = array_of(x)
            if state is not None:
                if self.pair:
                    h, cell = state
                    h, cell = array_of(h), array_of(cell)
                else:
                    h = array_of(state)
        except (AttributeError, RuntimeError, TypeError, ValueError):  # another type, or it needs gradients
            return None
        ndim = cnp.PyArray_NDIM(<cnp.ndarray?>x)
        if ndim != 3 or self.cell:
            if ndim != 2 and (ndim != 1 or not self.cell):
                return None
            if (h is not None and cnp.PyArray_NDIM(<cnp.ndarray?>h) != ndim) or (
                    cell is not None and cnp.PyArray_NDIM(<cnp.ndarray?>cell) != ndim):
                return None
            at = not (self.cell or self.packed.d.batch_first)
            x, h, cell = three_axes(x, at), three_axes(h, apart), three_axes(cell, apart)
        if not ordinary(x):
            x = copied(x)
        found = self.packed.call(x, (h, cell) if self.pair and h is not None else h, None, threads)
        if found is None:
            return None
        y, state = found
        if ndim != 3:
            y = without(y, at, ndim)
        if self.pair:
            h, cell = state
            state = tensor_of(h, apart, ndim), tensor_of(cell, apart, ndim)
        else:
            state = tensor_of(state, apart, ndim)
        return state if self.cell else (from_numpy(y), state)


cdef object array_of(t):
    """Returns the memory of a tensor as an array, which lives as long as the caller's reference to the tensor."""
    cdef cnp.npy_intp n[3]
    cdef int ndim, k
    cdef uintptr_t address
    # The same as t.numpy(), which takes twice as long.
    if type(t) is torch_tensor and t.dtype is float32 and t.is_cpu and t.is_contiguous():
        shape = <tuple>t.shape
        address, ndim = t.data_ptr(), len(shape)
        if 0 < ndim <= 3 and address != 0 and (t.nbytes > sizeof(float) or not t.is_neg()):  # views of imag have strides
            for k in range(ndim):
                n[k] = shape[k]
            return cnp.PyArray_SimpleNewFromData(ndim, n, cnp.NPY_FLOAT32, <void *>address)
    return t.detach().numpy()


cdef inline object tensor_of(array, int at, int ndim):
    return from_numpy(array if ndim == 3 else without(array, at, ndim))


cdef object reshaped(array, int ndim, cnp.npy_intp *n):
    cdef cnp.PyArray_Dims dims
    dims.ptr, dims.len = n, ndim
    return cnp.PyArray_Newshape(<cnp.ndarray>array, &dims, cnp.NPY_CORDER)


cdef object three_axes(array, int at):
    """Returns an array of one or two axes with new axes of length 1, for two axes with a new axis `at`."""
    cdef cnp.npy_intp n[3]
    cdef cnp.npy_intp *old
    if array is None:
        return None
    old = cnp.PyArray_DIMS(<cnp.ndarray>array)
    n[0] = n[1] = 1
    n[2] = old[cnp.PyArray_NDIM(<cnp.ndarray>array) - 1]
    if cnp.PyArray_NDIM(<cnp.ndarray>array) == 2:
        n[1 - at] = old[0]
    return reshaped(array, 3, n)


cdef object without(array, int at, int ndim):
    """Returns an array of three axes without the axis `at`, or for ndim 1 with the last axis alone. Those axes have length 1."""
    cdef cnp.npy_intp *old = cnp.PyArray_DIMS(<cnp.ndarray>array)
    cdef cnp.npy_intp n[2]
    n[0] = old[1 - at]
    n[ndim - 1] = old[2]
    return reshaped(array, ndim, n)
