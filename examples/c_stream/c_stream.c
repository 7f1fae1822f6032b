/* An extension module whose C code steps a stream of lnrnn, without Python's lock and without allocation.
 *
 *     cc -O2 -shared -fPIC -I"$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
 *         -I"$(python3 -c 'import lnrnn; print(lnrnn.get_include())')" \
 *         c_stream.c -o c_stream.so                # on macOS add -undefined dynamic_lookup
 *     python3 demo.py
 *
 * The module is not linked with lnrnn, because lnrnn_import() finds lnrnn's functions when Python imports the module. */
#include <lnrnn_api.h>

/* x (T, D), y (T, P). Steps one lane of the stream T times. Returns 0, or the status of the failed step *t. Such a loop
 * may also run in a thread that Python does not know, such as the thread of a sound card. */
static int take_steps(lnrnn_handle *h, int64_t lane, size_t T, const float *x, float *y, size_t *t)
{
    const lnrnn_network *const n = lnrnn_stream_network(lnrnn_handle_stream(h));
    const size_t D = lnrnn_network_inputs(n), P = lnrnn_network_state_size(n, 0);
    for (*t = 0; *t < T; ++*t) {
        const int wrong = lnrnn_handle_step(h, &lane, x + *t * D, y + *t * P);
        if (wrong)
            return wrong;
    }
    return 0;
}

/* Python's run(stream, x, y, lane): x (T, D) and y (T, P) are contiguous arrays of float32. */
static PyObject *run(PyObject *module, PyObject *args)
{
    PyObject *stream;
    long long lane;
    Py_buffer x, y;
    (void)module;
    if (!PyArg_ParseTuple(args, "Oy*w*L", &stream, &x, &y, &lane))
        return NULL;
    lnrnn_handle *const h = lnrnn_handle_open(stream, 1, 1); /* steps one lane, on one thread */
    if (h) {
        const lnrnn_network *const n = lnrnn_stream_network(lnrnn_handle_stream(h));
        const size_t row = lnrnn_network_inputs(n) * sizeof(float), T = (size_t)x.len / row;
        size_t t = 0;
        int wrong = 0;
        if ((size_t)x.len != T * row || (size_t)y.len != T * lnrnn_network_state_size(n, 0) * sizeof(float)) {
            PyErr_SetString(PyExc_ValueError, "x must be (T, D) and y (T, P), float32");
        } else {
            Py_BEGIN_ALLOW_THREADS;
            wrong = take_steps(h, lane, T, x.buf, y.buf, &t);
            Py_END_ALLOW_THREADS;
            if (wrong)
                PyErr_Format(PyExc_ValueError, "step %zu of lane %lld is refused: code %d", t, lane, wrong);
        }
        lnrnn_handle_free(h);
    }
    PyBuffer_Release(&x);
    PyBuffer_Release(&y);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"run", run, METH_VARARGS,
     "run(stream, x, y, lane): steps a lane T times; x (T, D) is read, y (T, P) is written"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "c_stream", .m_size = -1,
                                    .m_methods = methods};

PyMODINIT_FUNC PyInit_c_stream(void)
{
    if (lnrnn_import())
        return NULL;
    return PyModule_Create(&module);
}
