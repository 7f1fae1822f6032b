# Loads networks from files.

cdef class FileMemory:
    """Owns the memory of a model file. Arrays of the file refer to this object."""

    cdef lnrnn_model_file model

    def __dealloc__(self):
        lnrnn_model_file_close(&self.model)

    cdef object view(self, const lnrnn_array *array):
        cdef cnp.npy_intp shape[LNRNN_ARRAY_DIMS]
        cdef size_t k
        for k in range(array.ndim):
            shape[k] = array.shape[k]
        view = cnp.PyArray_SimpleNewFromData(<int>array.ndim, shape, KINDS[array.dtype], <void *>array.data)
        cnp.set_array_base(view, self)
        return read_only(view)


def read_model(path):
    """Reads a model file. Returns (configuration, numbers, arrays). Raises FileNotFoundError, MemoryError or
    ValueError, with the path.

    configuration: JSON text, which C has checked. numbers: eps, momentum, two zoneout rates and dropout, as
    C has parsed them. arrays: {name: read-only view of one block of memory}."""
    cdef FileMemory memory = FileMemory()
    cdef int status = LNRNN_NO_FILE
    cdef char message[LNRNN_MESSAGE]
    cdef bytes encoded = os.fsencode(path)
    cdef const char *name = encoded
    cdef const lnrnn_array *array = NULL
    cdef lnrnn_description d
    cdef size_t k
    if b"\0" not in encoded:
        with nogil:
            status = lnrnn_model_file_open(name, &memory.model, message)
    if status == LNRNN_NO_FILE:
        raise FileNotFoundError(f"no such file: {path!r}")
    if status == LNRNN_NO_MEMORY:
        raise MemoryError(f"cannot load {path!r}: {message.decode()}")
    if status != LNRNN_OK:
        raise ValueError(f"cannot load {path!r}: {message.decode('utf-8', 'replace')}")
    d, array = memory.model.description, memory.model.arrays
    arrays = {array[k].name.decode(): memory.view(&array[k]) for k in range(memory.model.count)}
    numbers = d.eps, d.momentum, d.zoneout[0], d.zoneout[1], d.dropout
    return memory.model.configuration.decode(), numbers, arrays
