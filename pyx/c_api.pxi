# What lnrnn_api.h promises to C and Cython outside: the handles of a stream, and the table. Part of _core.pyx.


cdef lnrnn_stream *open_stream(object stream, size_t rows, int threads) except NULL:
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
    if threads < 1 or threads > 1024:
        raise ValueError(f"threads must be between 1 and 1024, got {threads}")
    work = Workspace()
    work.prepare(lanes, rows, threads)
    work.touch()
    owner = (work, lanes)
    Py_INCREF(owner)
    work.handle.owner = <void *>owner
    return <lnrnn_stream *>&work.handle


cdef void close_stream(lnrnn_stream *s) noexcept:
    if s != NULL:
        Py_DECREF(<object>(<lnrnn_handle *>s).owner)


# The functions above have no names for the linker: they are put into the table here, at the import.
cdef extern from *:
    """
    #define lnrnn_stream_open NULL
    #define lnrnn_stream_close NULL
    #define LNRNN_API_ADDRESS(name) name,
    static lnrnn_api lnrnn_own_table = {LNRNN_API_MAJOR, LNRNN_API_MINOR, LNRNN_API_FUNCTIONS(LNRNN_API_ADDRESS)};
    #undef LNRNN_API_ADDRESS
    #undef lnrnn_stream_open
    #undef lnrnn_stream_close
    """
    ctypedef struct lnrnn_api:
        lnrnn_stream *(*lnrnn_stream_open)(object stream, size_t rows, int threads) except NULL
        void (*lnrnn_stream_close)(lnrnn_stream *s) noexcept
    lnrnn_api lnrnn_own_table
    const char *LNRNN_API_CAPSULE

lnrnn_own_table.lnrnn_stream_open = open_stream
lnrnn_own_table.lnrnn_stream_close = close_stream
_C_API = PyCapsule_New(&lnrnn_own_table, LNRNN_API_CAPSULE, NULL)
