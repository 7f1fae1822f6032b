# All layers and directions of a network in one call of C. Part of _core.pyx.


def set_network_way(str way):
    """For tests: how layers and directions are computed, as network.h says."""
    lnrnn_set_network_way({"fastest": LNRNN_NETWORK_FASTEST, "in turn": LNRNN_NETWORK_IN_TURN, "side by side": LNRNN_NETWORK_SIDE_BY_SIDE}[way])


cdef class Together:
    """A call whose layers and directions are computed side by side. First `set` for each of them, then `run`."""

    cdef lnrnn_network_call net
    cdef object table # of rows
    cdef list kept # what C reads and writes

    def __dealloc__(self):
        free(self.net.line)

    cdef lnrnn_rnn_call *call_of(self, size_t k) noexcept:
        return &self.net.line[k].call

    def set(self, size_t k, Layer layer, *, x, y, h0, hn, c0=None, cn=None):
        """The k-th, counted layer by layer: arguments as Layer.forward has them."""
        if k >= self.net.layers * self.net.directions:
            raise AssertionError(f"broken promise: layer {k}")
        cdef lnrnn_rnn_call *r = self.call_of(k)
        cdef const lnrnn_rnn_plan *plan = r.plan
        cdef const lnrnn_row *rows = r.rows
        self.kept.append((layer.describe(r, x, y, h0, hn, c0, cn, self.table, None, None, None), x, y, h0, hn, c0, cn))
        r.plan, r.rows = plan, rows

    def run(self, scratch=None):
        """scratch: memory of an earlier call, used if it is large enough. -> that which was."""
        cdef bint finished = False
        cdef Parts parts
        if scratch is None or <size_t>cnp.PyArray_SIZE(<cnp.ndarray>scratch) < self.net.floats:
            scratch = aligned(self.net.floats)
        self.net.scratch = <float *>data(scratch)
        parts = Parts()
        self.net.part = parts.size
        while True:
            with nogil:
                finished = lnrnn_network_forward(&self.net)
            if finished:
                return scratch
            self.net.part, self.net.resumed = parts.next(), 1


cdef Together together_of(tuple layers, int directions, const lnrnn_row *rows, size_t count, int threads):
    """The layers and directions of a network, planned for these rows and at most so many threads; or None where one after
    the other takes no longer."""
    cdef Together found
    cdef Layer layer
    cdef lnrnn_rnn_call *r
    cdef size_t k, i, last_step_end = 0
    if len(layers) < 2 or threads < 2 or not count:
        return None
    for i in range(count):
        last_step_end = max(last_step_end, <size_t>(rows[i].start + rows[i].length))
    found = Together()
    found.kept = [layers]
    found.net.layers, found.net.directions = len(layers) // directions, directions
    found.net.line = <lnrnn_line *>calloc(len(layers), sizeof(lnrnn_line))
    if found.net.line == NULL:
        raise MemoryError
    for k in range(<size_t>len(layers)):
        layer, r = layers[k], found.call_of(k)
        r.config, r.rows, r.B, r.T, r.last_step_end = &layer.config, rows, count, rows[0].length, last_step_end
    return found if lnrnn_network_plan(&found.net, threads) else None
