# A Cython loop that steps a stream of lnrnn and normalises its output, without Python's lock.
#
#     python3 setup.py build_ext --inplace
#     python3 demo.py
cimport lnrnn

lnrnn.lnrnn_import()


def run(stream, const float[:, :, ::1] x, const float[::1] gain, const float[::1] bias, float[:, :, ::1] y):
    """x (T, R, D), gain and bias (P), y (T, R, P), all float32. Steps lanes 0 to R - 1 T times, and writes the outputs
    to y after layer norm."""
    cdef Py_ssize_t T = x.shape[0], R = x.shape[1], P = y.shape[2], t
    cdef float *row
    cdef int wrong = 0
    cdef lnrnn.lnrnn_handle *h = lnrnn.lnrnn_handle_open(stream, R, 1)  # R rows per step, on one thread
    cdef const lnrnn.lnrnn_network *n = lnrnn.lnrnn_stream_network(lnrnn.lnrnn_handle_stream(h))
    try:
        if (<size_t>x.shape[2] != lnrnn.lnrnn_network_inputs(n) or <size_t>P != lnrnn.lnrnn_network_state_size(n, 0)
                or y.shape[0] != T or y.shape[1] != R or gain.shape[0] != P or bias.shape[0] != P):
            raise ValueError("x must be (T, R, D), y (T, R, P), gain and bias (P)")
        with nogil:
            for t in range(T):
                row = &y[t, 0, 0]
                wrong = lnrnn.lnrnn_handle_step(h, NULL, &x[t, 0, 0], row)
                if wrong:
                    break
                lnrnn.lnrnn_layer_norm(lnrnn.LNRNN_FLOAT32, R, P, row, P, &gain[0], &bias[0], 1e-5, row, P, 1, 1)
        if wrong:
            raise ValueError(f"step {t} is refused: code {wrong}")
    finally:
        lnrnn.lnrnn_handle_free(h)
