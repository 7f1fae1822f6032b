/* Every function of the table by its name, for test_c_units.py. The other unit, units.c, imports the table. */
#include <lnrnn_api.h>

PyObject *names(PyObject *module, PyObject *nothing);

/* names() -> a pair for each function of LNRNN_API_FUNCTIONS: its name, and whether the table has its address. */
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
