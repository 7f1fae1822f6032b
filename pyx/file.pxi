# Files of networks. Part of _core.pyx.

cdef int *FILE_KINDS = [cnp.NPY_FLOAT32, cnp.NPY_FLOAT64, cnp.NPY_INT64]  # by LNRNN_ARRAY_F32 ..


cdef class FileMemory:
    """The memory of a file's arrays, which keep it."""

    cdef lnrnn_model_file model

    def __dealloc__(self):
        lnrnn_model_file_close(&self.model)

    cdef object view(self, const lnrnn_array *array):
        cdef cnp.npy_intp shape[LNRNN_ARRAY_DIMS]
        cdef size_t k
        for k in range(array.ndim):
            shape[k] = array.shape[k]
        cdef int kind = FILE_KINDS[array.dtype]
        view = cnp.PyArray_SimpleNewFromData(<int>array.ndim, shape, kind, <void *>array.data)
        cnp.PyArray_CLEARFLAGS(view, cnp.NPY_ARRAY_WRITEABLE)
        cnp.set_array_base(view, self)
        return view


cdef object name_of(enumeration, int value):
    """The name that Python's arguments have for a value; None for the value that says none."""
    name = enumeration(value).name
    return None if name in ("NONE", "PAPER") else name.lower()


cdef dict norm_of(const lnrnn_description *d):
    if d.norm == LNRNN_NORM_LAYER:
        return {
            "kind": "layer", "placement": name_of(Placement, d.placement),
            "cell": name_of(CellNorm, d.cell_norm), "eps": d.eps, "span": name_of(Span, d.span),
            "inner_bias": bool(d.inner_bias),
        }
    if d.norm == LNRNN_NORM_BATCH:
        return {
            "kind": "batch", "max_steps": d.max_steps or None, "overrun": name_of(Overrun, d.overrun),
            "momentum": d.momentum if d.momentum >= 0 else None, "eps": d.eps,
        }
    return None


def read_model(path):
    """-> the configuration of the network in that file, as file_format.py writes it, and its arrays by name,
    read-only views of one block of memory. Raises FileNotFoundError, MemoryError or ValueError, with the path."""
    cdef FileMemory memory = FileMemory()
    cdef lnrnn_description *d = &memory.model.description
    cdef lnrnn_status status = LNRNN_NO_FILE
    cdef char message[LNRNN_MESSAGE]
    cdef bytes encoded = os.fsencode(path)
    cdef const char *name = encoded
    if b"\0" not in encoded:
        with nogil:
            status = lnrnn_model_file_open(name, &memory.model, message)
    if status == LNRNN_NO_FILE:
        raise FileNotFoundError(f"no such file: {path!r}")
    if status == LNRNN_NO_MEMORY:
        raise MemoryError(f"cannot load {path!r}: {message.decode()}")
    if status != LNRNN_OK:
        raise ValueError(f"cannot load {path!r}: {message.decode('utf-8', 'replace')}")
    bits = {LNRNN_WEIGHT_I8: 14, LNRNN_WEIGHT_I8A8: 8}.get(d.weights)
    rates = (d.zoneout[0], d.zoneout[1])[:2 if d.cell == LNRNN_LSTM else 1]
    config = {
        "cell": CellKind(d.cell).name, "nonlinearity": name_of(Activation, d.act), "input_size": d.input_size,
        "hidden_size": d.hidden_size, "num_layers": d.num_layers, "bias": bool(d.bias),
        "batch_first": bool(d.batch_first), "bidirectional": bool(d.bidirectional), "norm": norm_of(d),
        "dtype": "int8" if bits else name_of(WeightType, d.weights), "activation_bits": bits,
        "zoneout": rates if any(rates) else (), "dropout": d.dropout,
    }
    cdef const lnrnn_array *array = memory.model.arrays
    cdef size_t k
    arrays = {array[k].name.decode(): memory.view(&array[k]) for k in range(memory.model.count)}
    return config, arrays
