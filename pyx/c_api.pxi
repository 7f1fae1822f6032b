# The functions of lnrnn_api.h that need Python, and the table. Part of _core.pyx.


cdef void release_owner(void *owner) noexcept with gil:
    Py_DECREF(<object>owner)


cdef lnrnn_handle *open_handle(object stream, size_t rows, int threads) except NULL:
    found = getattr(stream, "_lanes", None)
    if type(found) is not Lanes:
        raise TypeError(f"stream must be a stream of lnrnn, as rnn.stream(lanes) gives, got {type(stream).__name__}")
    cdef Lanes lanes = found
    cdef Workspace work
    if lanes.network.net.together and rows != <size_t>lanes.lanes:
        raise ValueError(
            f"rows must be {lanes.lanes}, all lanes of the stream, with overrun='batch', for which they go together, got {rows}")
    if rows < 1 or rows > <size_t>lanes.lanes:
        raise ValueError(f"rows must be between 1 and {lanes.lanes}, the lanes of the stream, got {rows}")
    if threads < 1 or threads > LNRNN_MOST_THREADS:
        raise ValueError(f"threads must be between 1 and {LNRNN_MOST_THREADS}, got {threads}")
    work = Workspace()
    work.prepare(lanes, rows, threads)
    work.touch()
    owner = (work, lanes)
    Py_INCREF(owner)
    work.handle.owner, work.handle.release = <void *>owner, release_owner
    return <lnrnn_handle *>&work.handle


# The function above has no name for the linker: it is put into the table here, at the import.
cdef extern from *:
    """
    #define lnrnn_handle_open NULL
    #define LNRNN_API_ADDRESS(name) name,
    static lnrnn_api lnrnn_own_table = {LNRNN_API_MAJOR, LNRNN_API_MINOR, LNRNN_API_FUNCTIONS(LNRNN_API_ADDRESS)};
    #undef LNRNN_API_ADDRESS
    #undef lnrnn_handle_open
    """
    ctypedef struct lnrnn_api:
        lnrnn_handle *(*lnrnn_handle_open)(object stream, size_t rows, int threads) except NULL
    lnrnn_api lnrnn_own_table
    const char *LNRNN_API_CAPSULE

lnrnn_own_table.lnrnn_handle_open = open_handle
_C_API = PyCapsule_New(&lnrnn_own_table, LNRNN_API_CAPSULE, NULL)
