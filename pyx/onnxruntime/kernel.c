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

memory_pool *kernel_pool_create(void) { return calloc(1, sizeof(memory_pool)); }

static void memory_free(run_memory *m)
{
    if (m) {
        lnrnn_workspace_free(m->workspace);
        free(m->block);
    }
    free(m);
}

void kernel_pool_free(memory_pool *pool)
{
    for (int k = 0; pool && k < SPARES; k++)
        memory_free(pool->spare[k]);
    free(pool);
}

/* Returns the bytes of so many floats, as a multiple of a cache line. */
static size_t whole_lines(size_t floats) { return (floats * sizeof(float) + 63) & ~(size_t)63; }

run_memory *kernel_memory(memory_pool *pool, const size_t *floats, void **pieces, int count)
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

void kernel_memory_put_back(memory_pool *pool, run_memory *m)
{
    for (int k = 0; k < SPARES; k++) {
        run_memory *none = NULL;
        if (__atomic_compare_exchange_n(&pool->spare[k], &none, m, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
    }
    memory_free(m);
}

/* --- inputs, outputs and errors ------------------------------------------------------------------------- */

OrtStatus *kernel_output_data(const ort_functions *ort, OrtKernelContext *context, int place,
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

void *kernel_new(const provider *p, size_t bytes, const OrtNode *node, lnrnn_network *network,
                 kernel_compute *compute)
{
    const OrtNodeComputeInfo info = {ORT_VERSION, create_state, compute, release_state, {NULL}};
    const char *name = NULL, *operator = NULL;
    kernel_base *const k = calloc(1, bytes);
    if (!k) {
        lnrnn_network_release(network);
        return NULL;
    }
    *k = (kernel_base){.info = info,
                       .ort = p->ort,
                       .network = network,
                       .list = p->networks,
                       .pool = p->pool,
                       .threads = p->threads};
    if (!runtime_failed(k->ort, k->ort->node_name(node, &name)) && name
        && !runtime_failed(k->ort, k->ort->node_operator(node, &operator)) && operator)
        snprintf(k->label, sizeof k->label, "node '%.180s' (%.40s)", name, operator);
    return k;
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

/* Writes a shape such as "(3, any)" to `text`. Returns `text`. */
static const char *shown(const int64_t *shape, size_t rank, char text[96])
{
    size_t used = (size_t)snprintf(text, 96, "(");
    for (size_t i = 0; i < rank && used < 64; i++) {
        used += (size_t)snprintf(text + used, 96 - used, i ? ", " : "");
        used += (size_t)(shape[i] < 0 ? snprintf(text + used, 96 - used, "any")
                                      : snprintf(text + used, 96 - used, "%lld", (long long)shape[i]));
    }
    snprintf(text + used, 96 - used, "%s)", rank == 1 ? "," : "");
    return text;
}

OrtStatus *kernel_check(const kernel_base *k, const char *name, const tensor *t, const int64_t *wanted,
                        size_t rank)
{
    char is[96], should[96];
    int right = t->rank == rank;
    for (size_t i = 0; i < rank && right; i++)
        right = wanted[i] < 0 || t->shape[i] == wanted[i];
    return right ? NULL
                 : kernel_error(k, ORT_INVALID_ARGUMENT, "input %s must have shape %s, got %s", name,
                                shown(wanted, rank, should), shown(t->shape, t->rank, is));
}

OrtStatus *kernel_check_lengths(const kernel_base *k, const char *name, const tensor *t, size_t T, size_t B)
{
    const int64_t wanted = (int64_t)B;
    const int32_t *const lengths = t->data;
    OrtStatus *status = kernel_check(k, name, t, &wanted, 1);
    for (size_t b = 0; b < B && !status; b++)
        if (lengths[b] < 0 || (uint64_t)lengths[b] > T)
            status = kernel_error(k, ORT_INVALID_ARGUMENT,
                                  "input %s must be between 0 and the %zu steps, got %d for sequence %zu",
                                  name, T, (int)lengths[b], b);
    return status;
}

OrtStatus *kernel_check_sizes(const kernel_base *k, const char *name, size_t T, size_t B, size_t values)
{
    size_t floats;
    if (__builtin_mul_overflow(T ? T : 1, B, &floats) || __builtin_mul_overflow(floats, values, &floats)
        || floats > SIZE_MAX / 64)
        return kernel_error(k, ORT_INVALID_ARGUMENT, "%s has too many steps or sequences for memory", name);
    return NULL;
}

struct named {
    struct named *next;
    int is_output, *place;
    char name[];
};
struct kept {
    struct kept *next;
    int64_t data[];
};

void kernel_free(OrtNodeComputeInfo *info)
{
    kernel_base *const k = (kernel_base *)info;
    if (!k)
        return;
    for (struct named *n = k->names, *next; n; n = next) {
        next = n->next;
        free(n);
    }
    for (struct kept *c = k->constants, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    lnrnn_network_release(k->network);
    free(k->listed);
    free(k);
}

/* Keeps the name of a value, whose place in the fused node goes to *place. */
static int keep_name(kernel_base *k, int is_output, const OrtValueInfo *info, int *place)
{
    const char *const name = runtime_name(k->ort, info);
    struct named *const n = malloc(sizeof *n + strlen(name) + 1);
    if (!n)
        return 0;
    *n = (struct named){k->names, is_output, place};
    strcpy(n->name, name);
    k->names = n, *place = 0;
    return 1;
}

int kernel_output(kernel_base *k, const OrtValueInfo *info, int *place)
{
    *place = -1;
    return !info || keep_name(k, 1, info, place);
}

/* Copies a constant of at most 3 axes, of float32 or int32. */
static int keep_constant(kernel_base *k, const OrtValueInfo *info, source *s)
{
    const OrtValue *value = NULL;
    const int64_t *shape = NULL;
    const void *data = NULL;
    size_t bytes = sizeof(float);
    if (runtime_failed(k->ort, k->ort->initializer_value(info, &value)) || !value
        || runtime_failed(k->ort, k->ort->tensor_shape(value, &s->constant.type, &shape, &s->constant.rank))
        || s->constant.rank > 3 || runtime_failed(k->ort, k->ort->get_tensor_data(value, &data)))
        return 0;
    for (size_t i = 0; i < s->constant.rank; i++)
        bytes *= (size_t)(s->shape[i] = shape[i]);
    struct kept *const c = malloc(sizeof *c + bytes);
    if (!c)
        return 0;
    c->next = k->constants, k->constants = c;
    if (bytes)
        memcpy(c->data, data, bytes);
    s->constant.shape = s->shape, s->constant.data = c->data;
    return 1;
}

int kernel_source(kernel_base *k, const OrtValueInfo *info, source *s)
{
    bool is_constant = false;
    *s = (source){.place = -1};
    return !info
           || (!runtime_failed(k->ort, k->ort->is_constant(info, &is_constant)) && is_constant
                   ? keep_constant(k, info, s)
                   : keep_name(k, 0, info, &s->place));
}

OrtStatus *kernel_tensor(const kernel_base *k, const OrtKernelContext *context, const source *s, tensor *t)
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

OrtStatus *kernel_claim(provider *p, kernel_base *k, const OrtNode *node, OrtEpGraphSupportInfo *claims)
{
    static const OrtNodeFusionOptions options = {.version = ORT_VERSION, .drop_constants = true};
    const ort_functions *const ort = p->ort;
    size_t in = 0, out = 0;
    OrtStatus *status = ort->node_id(node, &k->id);
    if (!status)
        status = ort->node_input_count(node, &in);
    if (!status)
        status = ort->node_output_count(node, &out);
    k->most = 1 + in + out;
    k->listed = malloc(k->most * sizeof *k->listed);
    if (!status && !k->listed)
        provider_leave(p, node, NO_MEMORY);
    else if (!status && !(status = ort->claim(claims, &node, 1, &options))) {
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
    for (const struct named *n = k->names; n && !status; n = n->next) {
        if (n->is_output != is_output)
            continue;
        *n->place = -1;
        for (size_t i = 0; i < count && count <= k->most && *n->place < 0; i++)
            if (!strcmp(n->name, runtime_name(ort, values[i])))
                *n->place = (int)i;
        if (*n->place < 0 && !is_output) /* nothing may read an output */
            status = kernel_error(k, ORT_FAIL, "the fused node has no input %.200s", n->name);
    }
    return status;
}

OrtNodeComputeInfo *kernel_claimed(provider *p, const OrtNode *node, const OrtNode *fused, OrtStatus **status)
{
    size_t id = 0;
    *status = p->ort->node_id(node, &id);
    for (kernel_base **at = &p->claims; *at && !*status; at = &(*at)->next) {
        kernel_base *const k = *at;
        if (id != k->id)
            continue;
        *at = k->next;
        if (!(*status = find_places(k, fused, 0)) && !(*status = find_places(k, fused, 1)))
            return &k->info;
        kernel_free(&k->info);
        break;
    }
    return NULL;
}

void kernel_claims_free(provider *p)
{
    for (kernel_base *k = p->claims, *next; k; k = next) {
        next = k->next;
        kernel_free(&k->info);
    }
    p->claims = NULL;
}
