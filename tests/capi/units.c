/* An extension module of two files; this one imports the table for both. Static assertions fix the layouts and constants of the C API,
 * which compiled modules contain. A change of these needs a new major version. A new constant at the end of an enumeration needs a new
 * minor version. */
#include <lnrnn_api.h>

PyObject *names(PyObject *module, PyObject *nothing);

#define LAYOUT(type, last, offset, size) \
    _Static_assert(offsetof(type, last) == (offset) && sizeof(type) == (size), "a new layout: a new major")

_Static_assert(LNRNN_API_MAJOR == 4, "a new major: the layouts below are those of major 4");
LAYOUT(lnrnn_batch, threads, 88, 96);
LAYOUT(lnrnn_description, peepholes, 172, 176);
LAYOUT(lnrnn_array, data, 72, 80);
LAYOUT(lnrnn_sequences, cn, 80, 88);

#define ORDER(first, a, b, c, d)                                                         \
    _Static_assert((a) == (first) && (b) == (a) + 1 && (c) == (b) + 1 && (d) == (c) + 1, \
                   "other values: a new major")

ORDER(-5, LNRNN_STREAM_BUSY, LNRNN_STREAM_TOGETHER, LNRNN_STREAM_OVERRUN, LNRNN_STREAM_TWICE);
ORDER(-2, LNRNN_STREAM_TWICE, LNRNN_STREAM_NO_LANE, LNRNN_OK, LNRNN_NO_MEMORY);
ORDER(0, LNRNN_OK, LNRNN_NO_MEMORY, LNRNN_NO_FILE, LNRNN_CANNOT_READ);
ORDER(3, LNRNN_CANNOT_READ, LNRNN_INVALID, LNRNN_OTHER_VERSION, LNRNN_TOO_LONG);
ORDER(0, LNRNN_ARRAY_F32, LNRNN_ARRAY_F64, LNRNN_ARRAY_I64, LNRNN_ARRAY_I64 + 1);
ORDER(0, LNRNN_OVERRUN_RAISE, LNRNN_OVERRUN_LAST, LNRNN_OVERRUN_MEAN, LNRNN_OVERRUN_BATCH);
ORDER(0, LNRNN_MAP_EXP, LNRNN_MAP_TANH, LNRNN_MAP_SIGMOID, LNRNN_MAP_SIGMOID + 1);
ORDER(0, LNRNN_FLOAT32, LNRNN_FLOAT64, LNRNN_BFLOAT16, LNRNN_FLOAT16);
ORDER(0, LNRNN_RNN, LNRNN_LSTM, LNRNN_GRU, LNRNN_LIGRU);
ORDER(0, LNRNN_ACT_TANH, LNRNN_ACT_RELU, LNRNN_ACT_SIGMOID, LNRNN_ACT_IDENTITY);
ORDER(0, LNRNN_NORM_NONE, LNRNN_NORM_LAYER, LNRNN_NORM_BATCH, LNRNN_NORM_BATCH + 1);
ORDER(0, LNRNN_JOINT, LNRNN_SPLIT, LNRNN_GATE, LNRNN_INPUT);
ORDER(0, LNRNN_SPAN_PAPER, LNRNN_SPAN_ALL, LNRNN_SPAN_ALL + 1, LNRNN_SPAN_ALL + 2);
ORDER(0, LNRNN_CELL_NONE, LNRNN_CELL_OUT, LNRNN_CELL_CARRY, LNRNN_CELL_CARRY + 1);
ORDER(0, LNRNN_WEIGHT_F32, LNRNN_WEIGHT_BF16, LNRNN_WEIGHT_I8, LNRNN_WEIGHT_I8A8);
_Static_assert(LNRNN_MESSAGE == 256 && LNRNN_ARRAY_NAME == 64, "other sizes: a new major");

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
