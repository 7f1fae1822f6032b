/* Every function of the table by its name, and a model's layers run over whole sequences; for test_c_units.py. The
 * table is imported by the other unit, units.c. */
#include <stdlib.h>
#include <string.h>

#include <lnrnn_api.h>

PyObject *names(PyObject *module, PyObject *nothing);
PyObject *whole(PyObject *module, PyObject *args);

/* names() -> of each function of the list: its name, and whether it is there. */
PyObject *names(PyObject *module, PyObject *nothing)
{
    PyObject *found = PyList_New(0);
    (void)module, (void)nothing;
#define LOOK(name)                                                           \
    if (found) {                                                             \
        PyObject *const pair = Py_BuildValue("(si)", #name, (name) != NULL); \
        if (!pair || PyList_Append(found, pair))                             \
            Py_CLEAR(found);                                                 \
        Py_XDECREF(pair);                                                    \
    }
    LNRNN_API_FUNCTIONS(LOOK)
    return found;
}

/* A layer of the model over one sequence of T steps: x (T, D) -> y (T, H), from a zero state. -> 0, or -1:
 * no memory. */
static int run_layer(const lnrnn_rnn_call *layer, size_t T, const float *x, float *y)
{
    const lnrnn_rnn_config *const config = layer->config;
    const size_t H = config->H;
    const lnrnn_row row = {.length = (int64_t)T, .end = (int64_t)T};
    lnrnn_rnn_plan plan;
    lnrnn_rnn_call r = {.config = config, .w_ih = layer->w_ih, .w_hh = layer->w_hh, .T = T, .B = 1};
    float *const states = calloc(2 * H, sizeof *states);
    r.x = x, r.xt = r.xb = (ptrdiff_t)config->D;
    r.y = y, r.yt = r.yb = (ptrdiff_t)H;
    r.h0 = r.hn = states;
    r.c0 = r.cn = config->cell_state ? states + H : NULL;
    r.rows = &row, r.last_step_end = T;
    lnrnn_rnn_make_plan(&r, 1, &plan);
    r.plan = &plan, r.scratch = malloc(plan.scratch.floats * sizeof *r.scratch);
    const int possible = states && r.scratch;
    if (possible)
        lnrnn_rnn_forward(&r);
    free(r.scratch);
    free(states);
    return possible ? 0 : -1;
}

/* whole(stream, x, y): x (T, D) -> y (T, H), all layers of the stream's network; two at the most. */
PyObject *whole(PyObject *module, PyObject *args)
{
    PyObject *stream;
    Py_buffer x, y;
    (void)module;
    if (!PyArg_ParseTuple(args, "Oy*w*", &stream, &x, &y))
        return NULL;
    lnrnn_stream *const s = lnrnn_stream_open(stream, 1, 1);
    if (s) {
        const size_t T = (size_t)x.len / (lnrnn_stream_inputs(s) * sizeof(float));
        float *const between = malloc((size_t)y.len);
        const size_t last = lnrnn_stream_layers(s) - 1;
        if (!between || (last && run_layer(lnrnn_stream_layer(s, 0), T, x.buf, between))
            || run_layer(lnrnn_stream_layer(s, last), T, last ? between : x.buf, y.buf))
            PyErr_NoMemory();
        if (lnrnn_stream_layer(s, last + 1))
            PyErr_SetString(PyExc_AssertionError, "a layer that is none");
        free(between);
        lnrnn_stream_close(s);
    }
    PyBuffer_Release(&x);
    PyBuffer_Release(&y);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}
