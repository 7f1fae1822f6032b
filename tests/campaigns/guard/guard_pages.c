/* A Python module. After set(mode), NumPy allocates the data of an array between two pages without access. With mode 1 the
 * data end at such a page, with mode 2 they begin after one. Mode 0 is NumPy's allocator. Memory that need not be 0 has
 * bytes 0xff, which are NaN in every floating-point type. */
#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#include <Python.h>
#include <numpy/arrayobject.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, AFTER = 1, BEFORE = 2 };
static int mode;
static size_t arrays;

static size_t pages_of(size_t n) { return (n + PAGE - 1) / PAGE + !n; }

/* Allocates n bytes between two pages without access. Returns their address, or NULL if there is no memory. */
static char *guarded(size_t n)
{
    const size_t pages = pages_of(n);
    char *base =
        mmap(NULL, (pages + 2) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    if (mprotect(base + PAGE, pages * PAGE, PROT_READ | PROT_WRITE)) {
        munmap(base, (pages + 2) * PAGE);
        return NULL;
    }
    arrays++;
    return base + PAGE + (mode == AFTER && n ? pages * PAGE - n : 0);
}

static void *take(void *ctx, size_t n)
{
    (void)ctx;
    char *p = guarded(n);
    return p ? memset(p, 0xff, n) : NULL;
}

static void *take_zeroed(void *ctx, size_t count, size_t size)
{
    (void)ctx;
    return guarded(count * size);
}

static void give(void *ctx, void *p, size_t n)
{
    (void)ctx;
    if (p) /* p is in the page that follows the first page without access */
        munmap((char *)((uintptr_t)p & ~(uintptr_t)(PAGE - 1)) - PAGE, (pages_of(n) + 2) * PAGE);
}

static void *change(void *ctx, void *old, size_t n)
{
    /* Not implemented, because NumPy does not pass the old size. No campaign resizes an array. */
    (void)ctx, (void)old, (void)n;
    return NULL;
}

static PyDataMem_Handler handler = {"guard_pages", 1, {NULL, take, take_zeroed, change, give}};

static PyObject *set(PyObject *self, PyObject *number)
{
    (void)self;
    const long wanted = PyLong_AsLong(number);
    if (wanted == -1 && PyErr_Occurred())
        return NULL;
    mode = (int)wanted;
    PyObject *capsule = mode ? PyCapsule_New(&handler, "mem_handler", NULL) : NULL;
    PyObject *old = PyDataMem_SetHandler(capsule);
    Py_XDECREF(capsule);
    if (!old)
        return NULL;
    Py_DECREF(old);
    return PyLong_FromSize_t(arrays);
}

static PyMethodDef methods[] = {{"set", set, METH_O, "set(mode) -> the number of guarded arrays until now"},
                                {0}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "guard_pages", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_guard_pages(void)
{
    import_array();
    return PyModule_Create(&module);
}
