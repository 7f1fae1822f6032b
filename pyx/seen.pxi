# Tensors of torch, by duck typing: the compiled module does not need torch.

cdef enum:
    SAMPLES = 32  # elements of each tensor that are compared


cdef struct Sight:
    uintptr_t address
    int64_t version
    Py_ssize_t size
    bint contiguous


cdef int look(Sight *s, t) except -1:
    s.address, s.version = t.data_ptr(), t._version
    s.size, s.contiguous = t.numel(), t.is_contiguous()
    return 0


cdef class Seen:
    """A record of tensors. arrays: the memory of each, of items of 4 or 8 bytes, which the record keeps from being freed; None if
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
        for k in range(self.count):
            then = &self.sights[k]
            look(&now, tensors[k])
            if (now.address != then.address or now.version != then.version or now.size != then.size
                    or now.contiguous != then.contiguous):
                return False
        for k in range(self.samples):
            if self.places[k][0] != self.values[k]:
                return False
        return True
