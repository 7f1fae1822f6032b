/* lnrnn for C and C++: extension modules of Python, and programs that embed it. Cython has the same by `cimport
 * lnrnn`. The folder of this header is what lnrnn.get_include() says; there is nothing to link with.
 *
 *     #include <lnrnn_api.h>                       // includes Python.h and lnrnn.h
 *     if (lnrnn_import())                          // once in a module or program, as in its PyInit_
 *         return NULL;                             // with a Python exception
 *     lnrnn_stream *s = lnrnn_stream_open(stream, rows, 1); // stream: Python's lnrnn.load(path).stream(lanes)
 *     ... without the interpreter's lock: lnrnn_stream_step(s, lanes, x, y);
 *     lnrnn_stream_close(s);
 *
 * lnrnn.h says what the functions do, and what may alias. The functions in the list below can be called by
 * their names once lnrnn_import has returned 0, and not before: each name is a macro then, for a pointer in a
 * table that the compiled module lnrnn._core exports as the capsule LNRNN_API_CAPSULE. The other functions of
 * lnrnn.h cannot be called from outside.
 *
 * The interpreter's lock (the GIL): lnrnn_import, lnrnn_stream_open and lnrnn_stream_close need it, all others
 * do not, and never take it. These allocate nothing, take no lock and make no system call with threads = 1, but
 * for lnrnn_cores, which asks the system.
 *
 * Versions: a module that was compiled with major m and minor n runs with every lnrnn whose API has major m and
 * minor n or more. Within a major the table only grows at its end, and no function, struct or constant of
 * lnrnn.h that it needs changes. Else lnrnn_import raises ImportError, which says both versions.
 *
 * Compilers: those that build lnrnn, gcc and clang, as C99 or C++11 and later, with __typeof__ and
 * __attribute__. */
#ifndef LNRNN_API_H
#define LNRNN_API_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <lnrnn.h>

#define LNRNN_API_CAPSULE "lnrnn._core._C_API"

#ifdef __cplusplus
extern "C" {
#endif

/* stream: of lnrnn, as rnn.stream(lanes) gives in Python. -> a handle that steps `rows` (1 .. lanes) of its
 * lanes a call, on up to `threads` (1 .. 1024) threads; NULL with a TypeError, ValueError or MemoryError. With
 * overrun="batch" rows has to be that of all lanes. The handle has working memory of its own, and keeps the
 * stream's lanes, weights and plans, of the instruction set in use now; other handles of the stream, and
 * Python, see the same lanes. Needs the interpreter's lock. */
lnrnn_stream *lnrnn_stream_open(PyObject *stream, size_t rows, int threads);
/* s: a handle that no thread uses, or NULL. Needs the interpreter's lock. */
void lnrnn_stream_close(lnrnn_stream *s);

/* The functions of the table, in its order; a new one comes last, and with it a new minor. Each has its
 * #define below. */
#define LNRNN_API_FUNCTIONS(X)   \
    X(lnrnn_stream_open)         \
    X(lnrnn_stream_close)        \
    X(lnrnn_stream_step)         \
    X(lnrnn_stream_reset)        \
    X(lnrnn_stream_inputs)       \
    X(lnrnn_stream_units)        \
    X(lnrnn_stream_layers)       \
    X(lnrnn_stream_lanes)        \
    X(lnrnn_stream_rows)         \
    X(lnrnn_stream_state)        \
    X(lnrnn_stream_steps)        \
    X(lnrnn_isa_name)            \
    X(lnrnn_cores)               \
    X(lnrnn_map)                 \
    X(lnrnn_layer_norm)          \
    X(lnrnn_layer_norm_backward) \
    X(lnrnn_layer_norm_work)     \
    X(lnrnn_batch_work)          \
    X(lnrnn_batch_norm)          \
    X(lnrnn_batch_norm_backward)

/* In C++ the ::name keeps its meaning where a member has that name too. */
#ifdef __cplusplus
#define LNRNN_API_MEMBER(name) __typeof__(&::name) name;
#else
#define LNRNN_API_MEMBER(name) __typeof__(&name) name;
#endif

typedef struct {
    int major, minor;
    LNRNN_API_FUNCTIONS(LNRNN_API_MEMBER)
} lnrnn_api;

#undef LNRNN_API_MEMBER

#ifdef __cplusplus
}
#endif

#ifndef LNRNN_CORE /* lnrnn._core itself, which has the functions */

/* One for all units of a module or program, so that one of them calls lnrnn_import for all; the linker takes
 * the weak ones for one, and nobody outside sees it. */
__attribute__((weak, visibility("hidden"))) const lnrnn_api *lnrnn_api_table;

/* Imports lnrnn and its table. -> 0, or -1 with a Python exception. To be called with the interpreter's lock,
 * once or more often, before any other function here. */
static inline int lnrnn_import(void)
{
    const lnrnn_api *const found = (const lnrnn_api *)PyCapsule_Import(LNRNN_API_CAPSULE, 0);
    if (!found) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError))
            PyErr_Format(
                PyExc_ImportError,
                "compiled for version %d.%d of lnrnn's C API, and the lnrnn that is installed has none",
                LNRNN_API_MAJOR, LNRNN_API_MINOR);
        return -1;
    }
    if (found->major != LNRNN_API_MAJOR || found->minor < LNRNN_API_MINOR) {
        PyErr_Format(PyExc_ImportError,
                     "compiled for version %d.%d of lnrnn's C API, and the lnrnn that is installed has %d.%d",
                     LNRNN_API_MAJOR, LNRNN_API_MINOR, found->major, found->minor);
        return -1;
    }
    lnrnn_api_table = found;
    return 0;
}

#define lnrnn_stream_open (lnrnn_api_table->lnrnn_stream_open)
#define lnrnn_stream_close (lnrnn_api_table->lnrnn_stream_close)
#define lnrnn_stream_step (lnrnn_api_table->lnrnn_stream_step)
#define lnrnn_stream_reset (lnrnn_api_table->lnrnn_stream_reset)
#define lnrnn_stream_inputs (lnrnn_api_table->lnrnn_stream_inputs)
#define lnrnn_stream_units (lnrnn_api_table->lnrnn_stream_units)
#define lnrnn_stream_layers (lnrnn_api_table->lnrnn_stream_layers)
#define lnrnn_stream_lanes (lnrnn_api_table->lnrnn_stream_lanes)
#define lnrnn_stream_rows (lnrnn_api_table->lnrnn_stream_rows)
#define lnrnn_stream_state (lnrnn_api_table->lnrnn_stream_state)
#define lnrnn_stream_steps (lnrnn_api_table->lnrnn_stream_steps)
#define lnrnn_isa_name (lnrnn_api_table->lnrnn_isa_name)
#define lnrnn_cores (lnrnn_api_table->lnrnn_cores)
#define lnrnn_map (lnrnn_api_table->lnrnn_map)
#define lnrnn_layer_norm (lnrnn_api_table->lnrnn_layer_norm)
#define lnrnn_layer_norm_backward (lnrnn_api_table->lnrnn_layer_norm_backward)
#define lnrnn_layer_norm_work (lnrnn_api_table->lnrnn_layer_norm_work)
#define lnrnn_batch_work (lnrnn_api_table->lnrnn_batch_work)
#define lnrnn_batch_norm (lnrnn_api_table->lnrnn_batch_norm)
#define lnrnn_batch_norm_backward (lnrnn_api_table->lnrnn_batch_norm_backward)

#endif

#endif
