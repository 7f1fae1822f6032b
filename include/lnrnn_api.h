/* lnrnn.h for extension modules of Python, and for programs that embed Python, in C and C++. In Cython,
 * `cimport lnrnn` is the same. lnrnn.get_include() returns the folder of this header. Link with nothing.
 *
 *     #include <lnrnn_api.h>                // includes Python.h and lnrnn.h
 *     if (lnrnn_import())                   // once in a module or program, as in its PyInit_
 *         return NULL;                      // with a Python exception
 *     // stream: Python's lnrnn.load(path).stream(lanes)
 *     lnrnn_handle *h = lnrnn_handle_open(stream, rows, 1);
 *     lnrnn_handle_step(h, lanes, x, y);    // needs no interpreter's lock
 *     lnrnn_handle_free(h);
 *
 * All functions of lnrnn.h can be called by their names, but only after lnrnn_import has returned 0. Each
 * name is a macro for a pointer in a table. The module lnrnn._core exports the table as the capsule
 * LNRNN_API_CAPSULE.
 *
 * Hold the interpreter's lock (the GIL) to call lnrnn_import and lnrnn_handle_open. All other functions can
 * be called without it. lnrnn_handle_free takes the lock itself, for a handle of lnrnn_handle_open.
 *
 * Versions: a module compiled with major m and minor n needs an lnrnn with major m and minor n or more.
 * Otherwise lnrnn_import raises ImportError, whose message has both versions. Within a major version
 * functions are only added at the end of the table, and no function, struct or constant changes.
 *
 * Compilers: gcc and clang, for C99 or C++11 and later. The header needs __typeof__ and __attribute__. */
#ifndef LNRNN_API_H
#define LNRNN_API_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <lnrnn.h>

#define LNRNN_API_CAPSULE "lnrnn._core._C_API"

#ifdef __cplusplus
extern "C" {
#endif

/* stream: an object of Python, the result of rnn.stream(lanes). Returns a new handle, as lnrnn_handle_create
 * does, or NULL with a TypeError, ValueError or MemoryError. The handle steps the lanes of the Python object,
 * and keeps the lanes and the weights alive. lnrnn_handle_stream(handle) and its network belong to Python: do
 * not release them, nor use them after lnrnn_handle_free. If lnrnn_handle_create returned more handles for
 * this lnrnn_stream, free these handles first. */
lnrnn_handle *lnrnn_handle_open(PyObject *stream, size_t rows, int threads);

/* The functions of the table, in its order: lnrnn_handle_open, and all functions of lnrnn.h. For a new
 * function, add a last row here and a #define below, and increment LNRNN_API_MINOR. */
#define LNRNN_API_FUNCTIONS(X)   \
    X(lnrnn_handle_open)         \
    X(lnrnn_version)             \
    X(lnrnn_isa_list)            \
    X(lnrnn_isa_emulated)        \
    X(lnrnn_isa_name)            \
    X(lnrnn_isa_use)             \
    X(lnrnn_isa_unit)            \
    X(lnrnn_isa_amx)             \
    X(lnrnn_team_list)           \
    X(lnrnn_team_name)           \
    X(lnrnn_team_use)            \
    X(lnrnn_cores)               \
    X(lnrnn_get_num_threads)     \
    X(lnrnn_set_num_threads)     \
    X(lnrnn_on_shortage)         \
    X(lnrnn_map)                 \
    X(lnrnn_layer_norm)          \
    X(lnrnn_layer_norm_backward) \
    X(lnrnn_layer_norm_work)     \
    X(lnrnn_batch_work)          \
    X(lnrnn_batch_norm)          \
    X(lnrnn_batch_norm_backward) \
    X(lnrnn_describe)            \
    X(lnrnn_description_resolve) \
    X(lnrnn_description_arrays)  \
    X(lnrnn_description_array)   \
    X(lnrnn_network_create)      \
    X(lnrnn_network_open)        \
    X(lnrnn_network_retain)      \
    X(lnrnn_network_release)     \
    X(lnrnn_network_inputs)      \
    X(lnrnn_network_units)       \
    X(lnrnn_network_layers)      \
    X(lnrnn_network_directions)  \
    X(lnrnn_network_run)         \
    X(lnrnn_stream_create)       \
    X(lnrnn_stream_release)      \
    X(lnrnn_stream_network)      \
    X(lnrnn_stream_lanes)        \
    X(lnrnn_stream_state)        \
    X(lnrnn_stream_steps)        \
    X(lnrnn_handle_create)       \
    X(lnrnn_handle_free)         \
    X(lnrnn_handle_stream)       \
    X(lnrnn_handle_rows)         \
    X(lnrnn_handle_step)         \
    X(lnrnn_handle_reset)        \
    X(lnrnn_network_state_size)  \
    X(lnrnn_workspace_create)    \
    X(lnrnn_workspace_free)      \
    X(lnrnn_network_read)

/* In C++, ::name is the function even inside a struct with a member of this name. */
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

#ifndef LNRNN_CORE /* lnrnn._core defines the functions itself */

/* All translation units of a module or program share this pointer, because the linker merges weak
 * definitions. So one call of lnrnn_import suffices. The pointer is hidden, so each module has its own
 * pointer. */
__attribute__((weak, visibility("hidden"))) const lnrnn_api *lnrnn_api_table;

/* Imports lnrnn and its table. Returns 0, or -1 with a Python exception. Call lnrnn_import before any other
 * function of this header, with the interpreter's lock. Further calls do no harm. */
static inline int lnrnn_import(void)
{
    const lnrnn_api *const found = (const lnrnn_api *)PyCapsule_Import(LNRNN_API_CAPSULE, 0);
    if (!found) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError))
            PyErr_Format(PyExc_ImportError,
                         "compiled for version %d.%d of lnrnn's C API, but the installed lnrnn has none",
                         LNRNN_API_MAJOR, LNRNN_API_MINOR);
        return -1;
    }
    if (found->major != LNRNN_API_MAJOR || found->minor < LNRNN_API_MINOR) {
        PyErr_Format(PyExc_ImportError,
                     "compiled for version %d.%d of lnrnn's C API, but the installed lnrnn has %d.%d",
                     LNRNN_API_MAJOR, LNRNN_API_MINOR, found->major, found->minor);
        return -1;
    }
    lnrnn_api_table = found;
    return 0;
}

#define lnrnn_handle_open (lnrnn_api_table->lnrnn_handle_open)
#define lnrnn_version (lnrnn_api_table->lnrnn_version)
#define lnrnn_isa_list (lnrnn_api_table->lnrnn_isa_list)
#define lnrnn_isa_emulated (lnrnn_api_table->lnrnn_isa_emulated)
#define lnrnn_isa_name (lnrnn_api_table->lnrnn_isa_name)
#define lnrnn_isa_use (lnrnn_api_table->lnrnn_isa_use)
#define lnrnn_isa_unit (lnrnn_api_table->lnrnn_isa_unit)
#define lnrnn_isa_amx (lnrnn_api_table->lnrnn_isa_amx)
#define lnrnn_team_list (lnrnn_api_table->lnrnn_team_list)
#define lnrnn_team_name (lnrnn_api_table->lnrnn_team_name)
#define lnrnn_team_use (lnrnn_api_table->lnrnn_team_use)
#define lnrnn_cores (lnrnn_api_table->lnrnn_cores)
#define lnrnn_get_num_threads (lnrnn_api_table->lnrnn_get_num_threads)
#define lnrnn_set_num_threads (lnrnn_api_table->lnrnn_set_num_threads)
#define lnrnn_on_shortage (lnrnn_api_table->lnrnn_on_shortage)
#define lnrnn_map (lnrnn_api_table->lnrnn_map)
#define lnrnn_layer_norm (lnrnn_api_table->lnrnn_layer_norm)
#define lnrnn_layer_norm_backward (lnrnn_api_table->lnrnn_layer_norm_backward)
#define lnrnn_layer_norm_work (lnrnn_api_table->lnrnn_layer_norm_work)
#define lnrnn_batch_work (lnrnn_api_table->lnrnn_batch_work)
#define lnrnn_batch_norm (lnrnn_api_table->lnrnn_batch_norm)
#define lnrnn_batch_norm_backward (lnrnn_api_table->lnrnn_batch_norm_backward)
#define lnrnn_describe (lnrnn_api_table->lnrnn_describe)
#define lnrnn_description_resolve (lnrnn_api_table->lnrnn_description_resolve)
#define lnrnn_description_arrays (lnrnn_api_table->lnrnn_description_arrays)
#define lnrnn_description_array (lnrnn_api_table->lnrnn_description_array)
#define lnrnn_network_create (lnrnn_api_table->lnrnn_network_create)
#define lnrnn_network_open (lnrnn_api_table->lnrnn_network_open)
#define lnrnn_network_retain (lnrnn_api_table->lnrnn_network_retain)
#define lnrnn_network_release (lnrnn_api_table->lnrnn_network_release)
#define lnrnn_network_inputs (lnrnn_api_table->lnrnn_network_inputs)
#define lnrnn_network_units (lnrnn_api_table->lnrnn_network_units)
#define lnrnn_network_layers (lnrnn_api_table->lnrnn_network_layers)
#define lnrnn_network_directions (lnrnn_api_table->lnrnn_network_directions)
#define lnrnn_network_run (lnrnn_api_table->lnrnn_network_run)
#define lnrnn_stream_create (lnrnn_api_table->lnrnn_stream_create)
#define lnrnn_stream_release (lnrnn_api_table->lnrnn_stream_release)
#define lnrnn_stream_network (lnrnn_api_table->lnrnn_stream_network)
#define lnrnn_stream_lanes (lnrnn_api_table->lnrnn_stream_lanes)
#define lnrnn_stream_state (lnrnn_api_table->lnrnn_stream_state)
#define lnrnn_stream_steps (lnrnn_api_table->lnrnn_stream_steps)
#define lnrnn_handle_create (lnrnn_api_table->lnrnn_handle_create)
#define lnrnn_handle_free (lnrnn_api_table->lnrnn_handle_free)
#define lnrnn_handle_stream (lnrnn_api_table->lnrnn_handle_stream)
#define lnrnn_handle_rows (lnrnn_api_table->lnrnn_handle_rows)
#define lnrnn_handle_step (lnrnn_api_table->lnrnn_handle_step)
#define lnrnn_handle_reset (lnrnn_api_table->lnrnn_handle_reset)
#define lnrnn_network_state_size (lnrnn_api_table->lnrnn_network_state_size)
#define lnrnn_workspace_create (lnrnn_api_table->lnrnn_workspace_create)
#define lnrnn_workspace_free (lnrnn_api_table->lnrnn_workspace_free)
#define lnrnn_network_read (lnrnn_api_table->lnrnn_network_read)

#endif

#endif
