# Calls with tensors of torch. The functions of torch come from Python, so the compiled module does not need
# torch.

cdef enum:
    SAMPLES = 8  # elements of each tensor that are compared
    AXES = 8  # the most axes that array_of reads

cdef object torch_tensor = None, from_numpy = None, torch_threads = None
cdef dict kinds = {}, derivatives = {}
cdef tuple modes = ()


def use_torch(tensor, dict dtypes, to_tensor, threads, tuple active, dict forward_ad):
    """Sets torch's Tensor, from_numpy and get_num_threads.

    dtypes: NumPy's type number of torch's dtypes. active: functions that return a true value if a mode is
    active. forward_ad: the names of torch.autograd.forward_ad."""
    global torch_tensor, kinds, from_numpy, torch_threads, modes, derivatives
    torch_tensor, kinds, from_numpy, torch_threads = tensor, dtypes, to_tensor, threads
    modes, derivatives = active, forward_ad


cdef object memory_of(t, int kind, int ndim, int at):
    """Returns a tensor's memory as an array, with a reference to `t`, and with new axes before axis `at`, up
    to ndim axes. Raises RuntimeError if it has no memory."""
    cdef cnp.npy_intp[AXES] dims, strides
    cdef cnp.npy_intp size = t.element_size()
    cdef uintptr_t address = t.data_ptr()
    cdef int k, new = ndim - <int>t.dim()
    if not address and t.numel():  # as torch._efficientzerotensor
        raise RuntimeError("the tensor has no memory")
    for k in range(ndim):
        if at <= k < at + new:
            dims[k], strides[k] = 1, size
        else:
            dims[k], strides[k] = t.size(k if k < at else k - new), t.stride(k if k < at else k - new) * size
    array = cnp.PyArray_New(cnp.ndarray, ndim, dims, kind, strides, <void *>address, 0,
                            cnp.NPY_ARRAY_WRITEABLE, <object>NULL)
    cnp.set_array_base(<cnp.ndarray>array, t)
    return array


def array_of(t):
    """Returns a tensor without gradients as an array that shares its memory, and has a reference to `t`.

    t.numpy() does the same, but then the storage cannot be resized, as FSDP does between calls. Raises the
    errors of t.numpy()."""
    cdef int kind = kinds.get(t.dtype, -1)
    if kind < 0 or type(t) is not torch_tensor or t.dim() > AXES or not t.is_cpu or t.is_neg():
        return t.numpy()
    return memory_of(t, kind, t.dim(), 0) if t.data_ptr() else t.numpy()


def same_memory(list arrays, list others):
    """Returns whether arrays have the addresses of others."""
    cdef Py_ssize_t k
    if len(arrays) != len(others):
        return False
    for k in range(len(arrays)):
        if cnp.PyArray_DATA(<cnp.ndarray?>arrays[k]) != cnp.PyArray_DATA(<cnp.ndarray?>others[k]):
            return False
    return True


cdef struct Sight:
    uintptr_t address
    int64_t version  # torch's count of writes
    Py_ssize_t bytes, stride


cdef int look(Sight *s, t) except -1:
    """Reads the signs of a change of a tensor. Raises RuntimeError if it has no memory or no version."""
    s.address, s.version, s.bytes = t.data_ptr(), t._version, t.nbytes
    s.stride = t.stride(0) if t.dim() else 0
    return 0


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
        cdef Py_ssize_t k, i, n, axis, at
        cdef cnp.ndarray array
        cdef const char *place
        self.tensors, self.count = tuple(tensors) if same_objects else None, len(tensors)
        if arrays is None:
            return
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

    def __dealloc__(self):
        free(self.sights)
        free(self.places)
        free(self.values)

    def holds(self, list tensors):
        """Returns whether tensors are those of the record and have not changed, as far as versions and
        samples show."""
        cdef Py_ssize_t k
        cdef Sight now
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
            look(&now, t)
            if (now.address != self.sights[k].address or now.version != self.sights[k].version
                    or now.bytes != self.sights[k].bytes or now.stride != self.sights[k].stride):
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
        """Runs the network on tensors. Returns (y, h) or (y, (h, c)), of a cell h or (h, c).

        Returns None if a mode of torch is active or the weights may have changed. It also does so for an
        argument that is no float32 tensor on the CPU, of the right shape. tensors: those of `record`. axes:
        bit n is set if x may have n axes."""
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
        x = input_of(x, own, 0 if n.d.batch_first else at) if axes >> min(own, 31) & 1 else None
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
    """Returns the memory of a float32 tensor of ndim axes on the CPU, or a contiguous copy; None for others.

    The array has three axes, with new ones before axis `at`."""
    if type(t) is not torch_tensor or t.dim() != ndim or kinds.get(t.dtype) != cnp.NPY_FLOAT32:
        return None
    try:
        # The memory of a negative view has the numbers with the other sign.
        return None if not t.is_cpu or t.is_neg() else memory_of(t.contiguous(), cnp.NPY_FLOAT32, 3, at)
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
