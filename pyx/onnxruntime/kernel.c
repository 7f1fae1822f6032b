/* The parts of all kernels: working memory, inputs, outputs, and errors. A run allocates only if it needs
 * more memory than earlier runs. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxruntime/plugin.h"

/* --- working memory ------------------------------------------------------------------------------------- */

/* A run takes the memory of an earlier one and puts it back, so each of n runs at the same time has its
 * own. */
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

void *kernel_new(const provider *p, size_t bytes, lnrnn_network *network, kernel_compute *compute,
                 kernel_release *release)
{
    const OrtNodeComputeInfo info = {ORT_VERSION, create_state, compute, release_state, {NULL}};
    kernel_base *const k = calloc(1, bytes);
    if (k)
        *k = (kernel_base){.info = info,
                           .release = release,
                           .ort = p->ort,
                           .network = network,
                           .list = p->networks,
                           .pool = p->pool,
                           .threads = p->threads};
    else
        lnrnn_network_release(network);
    return k;
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
    kernel_base *const k = (kernel_base *)info;
    if (!k)
        return;
    if (k->release)
        k->release(info);
    for (named *n = k->names, *next; n; n = next) {
        next = n->next;
        free(n);
    }
    lnrnn_network_release(k->network);
    free(k->listed);
    free(k);
}

/* Keeps the name of a value, whose place in the fused node goes to *place. */
static int keep_name(kernel_base *k, int is_output, const OrtValueInfo *info, int *place)
{
    const char *const name = name_of(k->ort, info);
    named *const n = malloc(sizeof *n + strlen(name) + 1);
    if (!n)
        return 0;
    *n = (named){k->names, is_output, place};
    strcpy(n->name, name);
    k->names = n, *place = 0;
    return 1;
}

int output_of(kernel_base *k, const OrtValueInfo *info, int *place)
{
    *place = -1;
    return !info || keep_name(k, 1, info, place);
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

int source_of(kernel_base *k, const char *role, const OrtValueInfo *info, source *s)
{
    bool is_constant = false;
    *s = (source){.place = -1};
    snprintf(s->text, sizeof s->text, "%s ('%.64s')", role, name_of(k->ort, info));
    return !info
           || (!failed(k->ort, k->ort->is_constant(info, &is_constant)) && is_constant
                   ? keep_constant(k->ort, info, s)
                   : keep_name(k, 0, info, &s->place));
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

/* --- claims --------------------------------------------------------------------------------------------- */

/* Returns the least id of nodes, which names a claim in its graph. */
static OrtStatus *least_id(const ort_functions *ort, const OrtNode *const *nodes, size_t count, size_t *least)
{
    OrtStatus *status = NULL;
    *least = SIZE_MAX;
    for (size_t i = 0, id = 0; i < count && !status; i++) {
        status = ort->node_id(nodes[i], &id);
        *least = id < *least ? id : *least;
    }
    return status;
}

OrtStatus *kernel_claim(provider *p, kernel_base *k, const OrtNode *const *nodes, size_t count,
                        OrtEpGraphSupportInfo *claims)
{
    static const OrtNodeFusionOptions options = {.version = ORT_VERSION, .drop_constants = true};
    const ort_functions *const ort = p->ort;
    OrtStatus *status = least_id(ort, nodes, count, &k->id);
    k->most = count;
    for (size_t i = 0, n = 0; i < count && !status; i++, k->most += n) {
        size_t in = 0, out = 0;
        status = ort->node_input_count(nodes[i], &in);
        if (!status)
            status = ort->node_output_count(nodes[i], &out);
        if (!status)
            status = ort->node_outer_count(nodes[i], &n);
        n += in + out;
    }
    k->listed = malloc(k->most * sizeof *k->listed);
    if (!status && !k->listed)
        leave(p, nodes[0], NO_MEMORY);
    else if (!status && !(status = ort->claim(claims, nodes, count, &options))) {
        kernel_base **last = &p->claims;
        while (*last)
            last = &(*last)->next;
        *last = k;
        return NULL;
    }
    kernel_free(&k->info);
    return status;
}

/* Sets the places of all inputs (is_output = 0) or outputs (1) in the fused node. */
static OrtStatus *find_places(kernel_base *k, const OrtNode *fused, int is_output)
{
    const ort_functions *const ort = k->ort;
    const OrtValueInfo **const values = (const OrtValueInfo **)k->listed;
    size_t count = 0;
    OrtStatus *status =
        is_output ? ort->node_output_count(fused, &count) : ort->node_input_count(fused, &count);
    if (!status && count <= k->most)
        status = is_output ? ort->node_outputs(fused, values, count) : ort->node_inputs(fused, values, count);
    for (const named *n = k->names; n && !status; n = n->next) {
        if (n->is_output != is_output)
            continue;
        *n->place = -1;
        for (size_t i = 0; i < count && count <= k->most && *n->place < 0; i++)
            if (!strcmp(n->name, name_of(ort, values[i])))
                *n->place = (int)i;
        if (*n->place < 0 && !is_output) /* nothing may read an output */
            status = kernel_error(k, ORT_FAIL, "the fused node has no input %.200s", n->name);
    }
    return status;
}

OrtNodeComputeInfo *kernel_claimed(provider *p, const OrtGraph *graph, const OrtNode *fused,
                                   OrtStatus **status)
{
    size_t count = 0, id = 0;
    *status = p->ort->graph_node_count(graph, &count);
    for (kernel_base **at = &p->claims; *at && !*status; at = &(*at)->next) {
        kernel_base *const k = *at;
        const OrtNode **const nodes = (const OrtNode **)k->listed;
        if (count > k->most || (*status = p->ort->graph_nodes(graph, nodes, count))
            || (*status = least_id(p->ort, nodes, count, &id)) || id != k->id)
            continue;
        *at = k->next;
        if (!(*status = find_places(k, fused, 0)) && !(*status = find_places(k, fused, 1)))
            return &k->info;
        kernel_free(&k->info);
        break;
    }
    return NULL;
}

void claims_free(provider *p)
{
    for (kernel_base *k = p->claims, *next; k; k = next) {
        next = k->next;
        kernel_free(&k->info);
    }
    p->claims = NULL;
}
