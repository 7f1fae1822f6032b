/* Uses every function of the C API's table by its name, for test_c_units.py. units.c imports the table for both files. */
#include <lnrnn_api.h>

PyObject *names(PyObject *module, PyObject *nothing);

/* names() returns (name, 1 if the table has its address) for each function of LNRNN_API_FUNCTIONS. */
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
