/* The kernels of nodes and calls: working memory, inputs, outputs, errors, and claims. A run allocates only
 * if it needs more memory than earlier runs. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxruntime/plugin.h"
#include "runtime/os.h"

/* --- working memory ------------------------------------------------------------------------------------- */

/* The most blocks of working memory that are kept. A run takes a block and puts it back, so concurrent runs
 * have different blocks. */
enum { SPARES = 64 };
struct memory_pool {
    run_memory *spare[SPARES];
};

memory_pool *kernel_pool_create(void) { return calloc(1, sizeof(memory_pool)); }

static void memory_free(run_memory *m)
{
    if (m) {
        lnrnn_workspace_free(m->workspace);
        lnrnn_free_aligned(m->block);
    }
    free(m);
}

void kernel_pool_free(memory_pool *pool)
{
    for (int k = 0; pool && k < SPARES; k++)
        memory_free(pool->spare[k]);
    free(pool);
}

/* Returns the bytes of `floats` floats, rounded up to whole cache lines. */
static size_t whole_lines(size_t floats) { return (floats * sizeof(float) + 63) & ~(size_t)63; }

run_memory *kernel_memory(memory_pool *pool, const size_t *floats, void **pieces, int count)
{
    run_memory *m = NULL;
    size_t bytes = 64; /* buffers without floats get an address too */
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
        lnrnn_free_aligned(m->block);
        m->block = lnrnn_alloc_aligned(64, bytes);
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

void kernel_memory_put_back(memory_pool *pool, run_memory *m)
{
    for (int k = 0; k < SPARES; k++) { /* GCOVR_EXCL_BR_LINE: ends only with 65 runs at once */
        run_memory *none = NULL;
        if (__atomic_compare_exchange_n(&pool->spare[k], &none, m, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
    }
    memory_free(m);
}

/* --- inputs, outputs and errors ------------------------------------------------------------------------- */

OrtStatus *kernel_error(const kernel *k, int code, const char *text, ...)
{
    char message[REASON];
    const int used = snprintf(message, sizeof message, "lnrnn: %s: ", k->label);
    va_list arguments;
    va_start(arguments, text);
    vsnprintf(message + used, sizeof message - (size_t)used, text, arguments);
    va_end(arguments);
    return k->ort->create_status(code, message);
}

OrtStatus *kernel_output(const kernel *k, OrtKernelContext *context, int i, const int64_t *shape, size_t rank,
                         float **data)
{
    const int place = k->values[RUN_INPUTS + i].place;
    OrtValue *value = NULL;
    *data = NULL;
    if (place < 0)
        return NULL;
    OrtStatus *const status = k->ort->kernel_output(context, (size_t)place, shape, rank, &value);
    return status ? status : k->ort->get_tensor_mutable_data(value, (void **)data);
}

OrtStatus *kernel_tensor(const kernel *k, const OrtKernelContext *context, int i, run_tensor *t)
{
    const OrtValue *value = NULL;
    const int place = k->values[i].place;
    *t = k->values[i].constant;
    if (place < 0)
        return NULL;
    OrtStatus *status = k->ort->kernel_input(context, (size_t)place, &value);
    if (!status)
        status = k->ort->tensor_shape(value, &t->type, &t->shape, &t->rank);
    if (!status)
        status = k->ort->get_tensor_data(value, &t->data);
    return status;
}

/* --- creation ------------------------------------------------------------------------------------------- */

static OrtStatus *create_state(OrtNodeComputeInfo *info, void *context, void **state)
{
    (void)context;
    networks_close(((const kernel *)info)->list);
    *state = info;
    return NULL;
}

static void release_state(OrtNodeComputeInfo *info, void *state) { (void)info, (void)state; }

void kernel_free(OrtNodeComputeInfo *info)
{
    kernel *const k = (kernel *)info;
    if (!k)
        return;
    for (int i = 0; i < VALUES; i++)
        free(k->values[i].name), free(k->values[i].kept);
    lnrnn_network_release(k->network);
    free(k->listed);
    free(k);
}

/* Copies a constant of float32 or int32. Returns 0 without memory, or if it cannot be read. */
static int keep_constant(const kernel *k, const OrtValueInfo *info, kernel_value *v)
{
    const OrtValue *value = NULL;
    const int64_t *shape = NULL;
    const void *data = NULL;
    size_t bytes = sizeof(float);
    if (runtime_failed(k->ort, k->ort->initializer_value(info, &value))
        || runtime_failed(k->ort, k->ort->tensor_shape(value, &v->constant.type, &shape, &v->constant.rank))
        || runtime_failed(k->ort, k->ort->get_tensor_data(value, &data)))
        return 0;
    const size_t rank = v->constant.rank;
    for (size_t i = 0; i < rank; i++)
        bytes *= (size_t)shape[i];
    v->kept = malloc(rank * sizeof *shape + bytes);
    if (!v->kept)
        return 0;
    for (size_t i = 0; i < rank; i++)
        v->kept[i] = shape[i];
    if (bytes)
        memcpy(v->kept + rank, data, bytes);
    v->constant.shape = v->kept, v->constant.data = v->kept + rank;
    return 1;
}

/* Copies the data of a constant, or the name of another value, whose index in the fused node is known only
 * later. */
static int keep(const kernel *k, const OrtValueInfo *info, int is_output, kernel_value *v)
{
    bool is_constant = false;
    v->place = -1;
    if (!info)
        return 1;
    if (!is_output && runtime_failed(k->ort, k->ort->is_constant(info, &is_constant)))
        return 0;
    if (is_constant)
        return keep_constant(k, info, v);
    const char *const name = runtime_name(k->ort, info);
    v->name = malloc(strlen(name) + 1);
    if (v->name)
        strcpy(v->name, name);
    return v->name != NULL;
}

kernel *kernel_new(const provider *p, const OrtNode *node, lnrnn_network *network, const run_form *form)
{
    const OrtNodeComputeInfo info = {ORT_VERSION, create_state, run_compute, release_state, {NULL}};
    const char *name = NULL, *operator = NULL;
    kernel *const k = calloc(1, sizeof *k);
    if (!k) {
        lnrnn_network_release(network);
        return NULL;
    }
    *k = (kernel){.info = info,
                  .ort = p->ort,
                  .network = network,
                  .list = p->networks,
                  .pool = p->pool,
                  .threads = p->threads,
                  .form = *form};
    if (!runtime_failed(k->ort, k->ort->node_name(node, &name))
        && !runtime_failed(k->ort, k->ort->node_operator(node, &operator)))
        snprintf(k->label, sizeof k->label, "node '%.180s' (%.40s)", name, operator);
    for (int i = 0; i < VALUES; i++)
        if (!keep(k, form->values[i], i >= RUN_INPUTS, &k->values[i])) {
            kernel_free(&k->info);
            return NULL;
        }
    return k;
}

/* --- claims --------------------------------------------------------------------------------------------- */

OrtStatus *kernel_claim(provider *p, kernel *k, const OrtNode *node, OrtEpGraphSupportInfo *claims)
{
    static const OrtNodeFusionOptions options = {.version = ORT_VERSION, .drop_constants = true};
    const ort_functions *const ort = p->ort;
    OrtStatus *status = ort->node_id(node, &k->id);
    if (!status)
        status = ort->node_input_count(node, &k->in);
    if (!status)
        status = ort->node_output_count(node, &k->out);
    k->listed = malloc((1 + k->in + k->out) * sizeof *k->listed);
    if (!status && !k->listed)
        provider_leave(p, node, NO_MEMORY);
    else if (!status && !(status = ort->claim(claims, &node, 1, &options))) {
        kernel **last = &p->claims;
        while (*last)
            last = &(*last)->next;
        *last = k;
        return NULL;
    }
    kernel_free(&k->info);
    return status;
}

/* Sets the index of each value among the inputs or outputs of the fused node. */
static OrtStatus *find_places(kernel *k, const OrtNode *fused)
{
    size_t in = k->in, out = k->out;
    char reason[REASON];
    if (!runtime_values(k->ort, fused, k->listed, &in, k->listed + k->in, &out, reason))
        return kernel_error(k, ORT_FAIL,
                            "internal error: the node differs from the one that lnrnn accepted: %s", reason);
    for (int i = 0; i < VALUES; i++) {
        kernel_value *const v = &k->values[i];
        const int is_output = i >= RUN_INPUTS;
        const OrtValueInfo *const *const listed = is_output ? k->listed + k->in : k->listed;
        for (size_t n = 0; v->name && n < (is_output ? out : in) && v->place < 0; n++)
            if (!strcmp(v->name, runtime_name(k->ort, listed[n])))
                v->place = (int)n;
        /* An output that no node reads may be missing. */
        if (v->name && v->place < 0 && !is_output) /* GCOVR_EXCL_BR_LINE: all inputs of a node are there */
            return kernel_error(k, ORT_FAIL,
                                "internal error: the node must have input %.200s, got %zu other inputs",
                                v->name, in);
    }
    return NULL;
}

OrtNodeComputeInfo *kernel_claimed(provider *p, const OrtNode *node, const OrtNode *fused, OrtStatus **status)
{
    size_t id = 0;
    *status = p->ort->node_id(node, &id);
    for (kernel **at = &p->claims; *at && !*status; at = &(*at)->next) {
        kernel *const k = *at;
        if (id != k->id)
            continue;
        *at = k->next;
        if (!(*status = find_places(k, fused)))
            return &k->info;
        kernel_free(&k->info);
        break;
    }
    return NULL;
}

void kernel_claims_free(provider *p)
{
    for (kernel *k = p->claims, *next; k; k = next) {
        next = k->next;
        kernel_free(&k->info);
    }
    p->claims = NULL;
}
