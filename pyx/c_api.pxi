# Defines the functions of lnrnn_api.h that need Python, and exports the table of all functions.


cdef void release_lanes(void *lanes) noexcept with gil:
    Py_DECREF(<object>lanes)


cdef lnrnn_handle *open_handle(object stream, size_t rows, int threads) except NULL:
    cdef lnrnn_handle_fields *h
    lanes = getattr(stream, "_lanes", None)
    if type(lanes) is not Lanes:
        kind = type(stream).__name__
        raise TypeError(f"stream must be a stream of lnrnn, as rnn.stream(lanes) gives, got {kind}")
    h = (<Lanes>lanes).create(rows, threads)
    Py_INCREF(lanes)
    h.owner, h.release = <void *>lanes, release_lanes
    return <lnrnn_handle *>h


# lnrnn_handle_open is defined in this module, so C has NULL in the table. The import of the module stores
# its address there.
cdef extern from *:
    """
    #define lnrnn_handle_open NULL
    #define LNRNN_API_ADDRESS(name) name,
    static lnrnn_api lnrnn_own_table = {
        LNRNN_API_MAJOR, LNRNN_API_MINOR, LNRNN_API_FUNCTIONS(LNRNN_API_ADDRESS)};
    #undef LNRNN_API_ADDRESS
    #undef lnrnn_handle_open
    """
    ctypedef struct lnrnn_api:
        lnrnn_handle *(*lnrnn_handle_open)(object stream, size_t rows, int threads) except NULL
    lnrnn_api lnrnn_own_table
    const char *LNRNN_API_CAPSULE

lnrnn_own_table.lnrnn_handle_open = open_handle
_C_API = PyCapsule_New(&lnrnn_own_table, LNRNN_API_CAPSULE, NULL)
