/* An extension module of two files; this one imports the table for both. Static assertions fix the layouts and constants of the C API,
 * which compiled modules contain. A change of these needs a new major version. A new constant at the end of an enumeration needs a new
 * minor version. */
#include <lnrnn_api.h>

PyObject *names(PyObject *module, PyObject *nothing);

#define LAYOUT(type, last, offset, size) \
    _Static_assert(offsetof(type, last) == (offset) && sizeof(type) == (size), "a new layout: a new major")

_Static_assert(LNRNN_API_MAJOR == 4, "a new major: the layouts below are those of major 4");
LAYOUT(lnrnn_batch, threads, 88, 96);
LAYOUT(lnrnn_description, bfloat16_states, 168, 176);
LAYOUT(lnrnn_array, data, 72, 80);
LAYOUT(lnrnn_sequences, cn, 80, 88);

#define CONSTANT(name, value) _Static_assert((name) == (value), "another value: a new major")

CONSTANT(LNRNN_STREAM_NO_LANE, -1);
CONSTANT(LNRNN_STREAM_TWICE, -2);
CONSTANT(LNRNN_STREAM_OVERRUN, -3);
CONSTANT(LNRNN_STREAM_TOGETHER, -4);
CONSTANT(LNRNN_STREAM_BUSY, -5);
CONSTANT(LNRNN_OK, 0);
CONSTANT(LNRNN_NO_MEMORY, 1);
CONSTANT(LNRNN_NO_FILE, 2);
CONSTANT(LNRNN_CANNOT_READ, 3);
CONSTANT(LNRNN_INVALID, 4);
CONSTANT(LNRNN_OTHER_VERSION, 5);
CONSTANT(LNRNN_TOO_LONG, 6);
CONSTANT(LNRNN_MESSAGE, 256);
CONSTANT(LNRNN_ARRAY_F32, 0);
CONSTANT(LNRNN_ARRAY_F64, 1);
CONSTANT(LNRNN_ARRAY_I64, 2);
CONSTANT(LNRNN_ARRAY_NAME, 64);
CONSTANT(LNRNN_OVERRUN_RAISE, 0);
CONSTANT(LNRNN_OVERRUN_LAST, 1);
CONSTANT(LNRNN_OVERRUN_MEAN, 2);
CONSTANT(LNRNN_OVERRUN_BATCH, 3);
CONSTANT(LNRNN_MAP_EXP, 0);
CONSTANT(LNRNN_MAP_TANH, 1);
CONSTANT(LNRNN_MAP_SIGMOID, 2);
CONSTANT(LNRNN_FLOAT32, 0);
CONSTANT(LNRNN_FLOAT64, 1);
CONSTANT(LNRNN_BFLOAT16, 2);
CONSTANT(LNRNN_FLOAT16, 3);
CONSTANT(LNRNN_RNN, 0);
CONSTANT(LNRNN_LSTM, 1);
CONSTANT(LNRNN_GRU, 2);
CONSTANT(LNRNN_LIGRU, 3);
CONSTANT(LNRNN_ACT_TANH, 0);
CONSTANT(LNRNN_ACT_RELU, 1);
CONSTANT(LNRNN_ACT_SIGMOID, 2);
CONSTANT(LNRNN_ACT_IDENTITY, 3);
CONSTANT(LNRNN_NORM_NONE, 0);
CONSTANT(LNRNN_NORM_LAYER, 1);
CONSTANT(LNRNN_NORM_BATCH, 2);
CONSTANT(LNRNN_JOINT, 0);
CONSTANT(LNRNN_SPLIT, 1);
CONSTANT(LNRNN_GATE, 2);
CONSTANT(LNRNN_INPUT, 3);
CONSTANT(LNRNN_SPAN_PAPER, 0);
CONSTANT(LNRNN_SPAN_ALL, 1);
CONSTANT(LNRNN_CELL_NONE, 0);
CONSTANT(LNRNN_CELL_OUT, 1);
CONSTANT(LNRNN_CELL_CARRY, 2);
CONSTANT(LNRNN_WEIGHT_F32, 0);
CONSTANT(LNRNN_WEIGHT_BF16, 1);
CONSTANT(LNRNN_WEIGHT_I8, 2);
CONSTANT(LNRNN_WEIGHT_I8A8, 3);

static PyMethodDef methods[] = {
    {"names", names, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "units", .m_size = -1,
                                    .m_methods = methods};

PyMODINIT_FUNC PyInit_units(void)
{
    if (lnrnn_import())
        return NULL;
    return PyModule_Create(&module);
}
