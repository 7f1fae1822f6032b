/* The parts of all kernels: working memory, inputs, outputs, and errors. A run allocates only if it needs more memory than earlier
 * runs. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxruntime/plugin.h"

/* --- working memory ------------------------------------------------------------------------------------- */

/* A run takes the memory of an earlier one and puts it back, so each of n runs at the same time has its own. */
enum { SPARES = 64 };
struct memory_pool {
    run_memory *spare[SPARES];
};

memory_pool *pool_create(void) { return calloc(1, sizeof(memory_pool)); }

static void memory_free(run_memory *m)
{
    if (m) {
        lnrnn_workspace_free(m->workspace);
        free(m->block);
    }
    free(m);
}

void pool_free(memory_pool *pool)
{
    for (int k = 0; pool && k < SPARES; k++)
        memory_free(pool->spare[k]);
    free(pool);
}

/* Returns the bytes of so many floats, as a multiple of a cache line. */
static size_t whole_lines(size_t floats) { return (floats * sizeof(float) + 63) & ~(size_t)63; }

run_memory *memory_take(memory_pool *pool, const size_t *floats, void **pieces, int count)
{
    run_memory *m = NULL;
    size_t bytes = 64; /* a piece without floats has an address too */
    for (int i = 0; i < count; i++)
        bytes += whole_lines(floats[i]);
    for (int k = 0; k < SPARES && !m; k++)
        if (__atomic_load_n(&pool->spare[k], __ATOMIC_RELAXED))
            m = __atomic_exchange_n(&pool->spare[k], NULL, __ATOMIC_ACQUIRE);
    if (!m) {
        m = calloc(1, sizeof *m);
        if (m)
            m->workspace = lnrnn_workspace_create();
    }
    if (m && m->bytes < bytes) {
        free(m->block);
        m->block = aligned_alloc(64, bytes);
        m->bytes = m->block ? bytes : 0;
    }
    if (!m || !m->workspace || m->bytes < bytes) {
        memory_free(m);
        return NULL;
    }
    char *at = m->block;
    for (int i = 0; i < count; at += whole_lines(floats[i++]))
        pieces[i] = at;
    return m;
}

void memory_put_back(memory_pool *pool, run_memory *m)
{
    for (int k = 0; k < SPARES; k++) {
        run_memory *none = NULL;
        if (__atomic_compare_exchange_n(&pool->spare[k], &none, m, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
    }
    memory_free(m);
}

/* --- inputs, outputs and errors ------------------------------------------------------------------------- */

OrtStatus *kernel_output_at(const ort_functions *ort, OrtKernelContext *context, int place,
                            const int64_t *shape, size_t rank, float **data)
{
    OrtValue *value = NULL;
    *data = NULL;
    if (place < 0)
        return NULL;
    OrtStatus *const status = ort->kernel_output(context, (size_t)place, shape, rank, &value);
    return status || !value ? status : ort->get_tensor_mutable_data(value, (void **)data);
}

static OrtStatus *create_state(OrtNodeComputeInfo *info, void *context, void **state)
{
    (void)context;
    networks_close(((const kernel_base *)info)->list);
    *state = info;
    return NULL;
}

static void release_state(OrtNodeComputeInfo *info, void *state) { (void)info, (void)state; }

kernel_base kernel_base_of(const ort_functions *ort, lnrnn_network *network, network_list *list,
                           memory_pool *pool, int threads, kernel_compute *compute, kernel_release *release)
{
    const OrtNodeComputeInfo info = {ORT_VERSION, create_state, compute, release_state, {NULL}};
    return (kernel_base){info, release, ort, network, list, pool, threads, ""};
}

void kernel_label(kernel_base *k, const char *kind, const OrtNode *node)
{
    const char *name = NULL, *operator = NULL;
    const int named = !failed(k->ort, k->ort->node_name(node, &name)) && name
                      && !failed(k->ort, k->ort->node_operator(node, &operator)) && operator;
    if (named)
        snprintf(k->label, sizeof k->label, "%s '%.180s' (%.40s)", kind, name, operator);
}

OrtStatus *kernel_error(const kernel_base *k, int code, const char *text, ...)
{
    char message[REASON];
    const int used = snprintf(message, sizeof message, "lnrnn: %s: ", k->label);
    va_list arguments;
    va_start(arguments, text);
    vsnprintf(message + used, sizeof message - (size_t)used, text, arguments);
    va_end(arguments);
    return k->ort->create_status(code, message);
}

OrtStatus *kernel_refuse(const kernel_base *k, const source *input, const char *text)
{
    return kernel_error(k, ORT_INVALID_ARGUMENT, "input %s %s", input->text, text);
}

void kernel_free(OrtNodeComputeInfo *info)
{
    if (info)
        ((kernel_base *)info)->release(info);
}

int place_of(const ort_functions *ort, const OrtValueInfo *value, const OrtValueInfo *const *values, size_t n)
{
    const char *const name = name_of(ort, value);
    for (size_t i = 0; i < n && *name; i++)
        if (!strcmp(name, name_of(ort, values[i])))
            return (int)i;
    return -1;
}

/* Copies a constant of at most 3 axes. */
static int keep_constant(const ort_functions *ort, const OrtValueInfo *info, source *s)
{
    const OrtValue *value = NULL;
    const int64_t *shape = NULL;
    const void *data = NULL;
    if (failed(ort, ort->initializer_value(info, &value)) || !value
        || failed(ort, ort->tensor_shape(value, &s->constant.type, &shape, &s->constant.rank))
        || s->constant.rank > 3 || failed(ort, ort->get_tensor_data(value, &data)))
        return 0;
    size_t bytes = s->constant.type == ORT_INT64  ? sizeof(int64_t)
                   : s->constant.type == ORT_BOOL ? 1
                                                  : sizeof(float); /* an int32 has as many */
    for (size_t i = 0; i < s->constant.rank; i++)
        bytes *= (size_t)(s->shape[i] = shape[i]);
    s->owned = malloc(bytes + 1);
    if (!s->owned)
        return 0;
    if (bytes)
        memcpy(s->owned, data, bytes);
    s->constant.shape = s->shape, s->constant.data = s->owned;
    return 1;
}

int source_of(const ort_functions *ort, const char *role, const OrtValueInfo *info,
              const OrtValueInfo *const *in, size_t inputs, source *s)
{
    *s = (source){.place = place_of(ort, info, in, inputs)};
    snprintf(s->text, sizeof s->text, "%s ('%.64s')", role, name_of(ort, info));
    return !info || s->place >= 0 || keep_constant(ort, info, s);
}

OrtStatus *source_tensor(const kernel_base *k, const OrtKernelContext *context, const source *s, tensor *t)
{
    const OrtValue *value = NULL;
    *t = s->constant;
    if (s->place < 0)
        return NULL;
    OrtStatus *status = k->ort->kernel_input(context, (size_t)s->place, &value);
    if (!status && value)
        status = k->ort->tensor_shape(value, &t->type, &t->shape, &t->rank);
    if (!status && value)
        status = k->ort->get_tensor_data(value, &t->data);
    return status;
}
