/* The module lnrnn.torch.layouts, which reads the addresses, shapes and strides of tensors. It reads tensors
 * through DLPack's C exchange API (dlpack.h 1.2), so it needs no headers of torch. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { AXES = 8 }; /* the most axes that are read */

typedef struct {
    void *data;
    int32_t device[2]; /* the type and the number of the device */
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} tensor;

typedef struct {
    uint32_t version[2]; /* major, minor */
    void *others[4];
    int (*look)(void *object, tensor *to);
} functions;

typedef struct {
    int32_t device[2], ndim;
    uint8_t dtype[4];
    int64_t shape[AXES], strides[AXES];
} layout;

/* read(exchange, objects): exchange is a capsule of `functions`, and objects a tuple of tensors. Returns
 * bytes, equal for equal dtypes, devices, shapes and strides, and a tuple of addresses. */
static PyObject *read_layouts(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    if (count != 2 || !PyTuple_CheckExact(given[1])) { /* GCOVR_EXCL_BR_LINE: lnrnn.torch alone calls it */
        return PyErr_Format(PyExc_TypeError, "read takes a capsule and a tuple");
    }
    functions *exchange = PyCapsule_GetPointer(given[0], "dlpack_exchange_api");
    if (!exchange || exchange->version[0] != 1) { /* GCOVR_EXCL_BR_LINE: PyTorch's own capsule is valid */
        /* GCOVR_EXCL_BR_LINE: PyTorch's own capsule is valid */
        return exchange ? PyErr_Format(PyExc_RuntimeError, "unknown version of DLPack") : NULL;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(given[1]);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, n * (Py_ssize_t)sizeof(layout));
    PyObject *addresses = PyTuple_New(n);
    /* GCOVR_EXCL_BR_LINE: no memory */
    PyObject *result = bytes && addresses ? PyTuple_Pack(2, bytes, addresses) : NULL;
    for (Py_ssize_t k = 0; result && k < n; k++) {
        layout *to = (layout *)PyBytes_AS_STRING(bytes) + k;
        tensor t;
        PyObject *address = NULL;
        memset(to, 0, sizeof(*to));
        if (!exchange->look(PyTuple_GET_ITEM(given[1], k), &t)) {
            /* GCOVR_EXCL_BR_LINE: more axes than a recurrent module takes */
            size_t axes = t.ndim < AXES ? (size_t)t.ndim : AXES;
            memcpy(to->device, t.device, sizeof(t.device));
            to->ndim = t.ndim;
            memcpy(to->dtype, &t.dtype, sizeof(t.dtype));
            memcpy(to->shape, t.shape, axes * sizeof(*t.shape));
            memcpy(to->strides, t.strides, axes * sizeof(*t.strides));
            address = PyLong_FromVoidPtr((char *)t.data + t.byte_offset);
        }
        if (address) {
            PyTuple_SET_ITEM(addresses, k, address);
        } else {
            Py_CLEAR(result);
        }
    }
    Py_XDECREF(bytes);
    Py_XDECREF(addresses);
    return result;
}

/* identical(a, b): returns whether two lists have the same objects. */
static PyObject *identical(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    /* GCOVR_EXCL_BR_LINE: lnrnn.torch alone calls it */
    if (count != 2 || !PyList_CheckExact(given[0]) || !PyList_CheckExact(given[1])) {
        return PyErr_Format(PyExc_TypeError, "identical takes two lists");
    }
    Py_ssize_t n = PyList_GET_SIZE(given[0]);
    int same = PyList_GET_SIZE(given[1]) == n;
    for (Py_ssize_t k = 0; same && k < n; k++) {
        same = PyList_GET_ITEM(given[0], k) == PyList_GET_ITEM(given[1], k);
    }
    return PyBool_FromLong(same);
}

static PyMethodDef methods[] = {
    {"read", (PyCFunction)(void (*)(void))read_layouts, METH_FASTCALL, NULL},
    {"identical", (PyCFunction)(void (*)(void))identical, METH_FASTCALL, NULL},
    {0},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "lnrnn.torch.layouts", .m_methods = methods,
                             .m_slots = slots};

PyMODINIT_FUNC PyInit_layouts(void) { return PyModuleDef_Init(&module); }
