/* Reads a graph of the runtime: its nodes, their values, and who reads each value. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxruntime/cells.h"

/* --- memory --------------------------------------------------------------------------------------------- */

struct block {
    struct block *next;
    size_t used, size;
    char data[];
};

enum {
    BLOCK = 1 << 16,
    MOST_BYTES = 1 << 28
}; /* the plug-in leaves a graph that needs more to the runtime */

void *allocate(arena *memory, size_t bytes)
{
    struct block *b = memory->blocks;
    bytes = (bytes + 15) & ~(size_t)15;
    if (!b || b->size - b->used < bytes) {
        const size_t size = bytes > BLOCK ? bytes : BLOCK;
        b = memory->bytes + size > memory->most ? NULL : malloc(sizeof *b + size);
        if (!b)
            longjmp(memory->full, 1);
        *b = (struct block){memory->blocks, 0, size};
        memory->blocks = b, memory->bytes += size;
    }
    void *const result = b->data + b->used;
    b->used += bytes;
    return memset(result, 0, bytes);
}

void arena_free(arena *memory)
{
    for (struct block *b = memory->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    memory->blocks = NULL;
}

/* --- values --------------------------------------------------------------------------------------------- */

/* Sets the rank and the width, which stay 0 if the runtime does not know the shape. */
static void read_shape(graph *g, value *v)
{
    const ort_functions *const ort = g->ort;
    const OrtTypeInfo *type = NULL;
    const OrtTensorTypeAndShapeInfo *shape = NULL;
    int64_t sizes[8];
    size_t rank = 0;
    if (failed(ort, ort->value_type(v->info, &type)) || !type
        || failed(ort, ort->tensor_info_of_type(type, &shape)) || !shape
        || failed(ort, ort->axis_count(shape, &rank)) || !rank || rank > 8
        || failed(ort, ort->axis_sizes(shape, sizes, rank)))
        return;
    v->rank = rank;
    v->width = sizes[rank - 1] > 0 ? (size_t)sizes[rank - 1] : 0;
}

static void read_constant(graph *g, value *v)
{
    const ort_functions *const ort = g->ort;
    const OrtValue *given = NULL;
    bool is = false;
    v->is_constant =
        !failed(ort, ort->is_constant(v->info, &is)) && is
        && !failed(ort, ort->initializer_value(v->info, &given)) && given
        && !failed(ort, ort->tensor_shape(given, &v->constant.type, &v->constant.shape, &v->constant.rank))
        && !failed(ort, ort->get_tensor_data(given, &v->constant.data)) && v->constant.data;
    for (size_t k = 0; k < v->constant.rank && v->is_constant; k++)
        v->is_constant = v->constant.shape[k] > 0;
}

/* Returns the value of this description, which may be new, or NULL for an input that is left out. */
static value *value_of(graph *g, const OrtValueInfo *info)
{
    bool is_output = false;
    if (!*name_of(g->ort, info))
        return NULL;
    value **const list = &g->values[((uintptr_t)info >> 4) % LISTS];
    for (value *v = *list; v; v = v->next)
        if (v->info == info)
            return v;
    value *const v = allocate(&g->memory, sizeof *v);
    *v = (value){.info = info, .next = *list};
    *list = v;
    v->is_output = failed(g->ort, g->ort->is_graph_output(info, &is_output)) || is_output;
    read_shape(g, v);
    read_constant(g, v);
    return v;
}

static void add_use(graph *g, value *v, node *user, int at)
{
    if (!v)
        return;
    use *const u = allocate(&g->memory, sizeof *u);
    *u = (use){user, at, v->uses};
    v->uses = u;
}

/* --- nodes ---------------------------------------------------------------------------------------------- */

/* Sets *n to the number of values that a node or graph lists, and *values (n) to them. `status` stays if it
 * is an error. */
#define READ_VALUES(status, g, of, count, get, values, n)                                      \
    do {                                                                                       \
        if (!(status))                                                                         \
            (status) = count(of, n);                                                           \
        const OrtValueInfo **const infos = allocate(&(g)->memory, (*(n) + 1) * sizeof *infos); \
        if (!(status) && *(n))                                                                 \
            (status) = get(of, infos, *(n));                                                   \
        *(values) = (status) ? NULL : values_of(g, infos, *(n));                               \
    } while (0)

static value **values_of(graph *g, const OrtValueInfo *const *infos, size_t n)
{
    value **const values = allocate(&g->memory, (n + 1) * sizeof *values);
    for (size_t k = 0; k < n; k++)
        values[k] = value_of(g, infos[k]);
    return values;
}

static OrtStatus *read_node(graph *g, node *n)
{
    const ort_functions *const ort = g->ort;
    const char *operator = NULL, *domain = NULL;
    value **outer = NULL;
    size_t count = 0;
    OrtStatus *status = ort->node_operator(n->info, &operator);
    if (!status)
        status = ort->node_domain(n->info, &domain);
    if (!status)
        status = ort->node_version(n->info, &n->version);
    READ_VALUES(status, g, n->info, ort->node_input_count, ort->node_inputs, &n->in, &n->inputs);
    READ_VALUES(status, g, n->info, ort->node_output_count, ort->node_outputs, &n->out, &n->outputs);
    READ_VALUES(status, g, n->info, ort->node_outer_count, ort->node_outer_values, &outer, &count);
    if (status)
        return status;
    n->operator = operator && !(domain && *domain && strcmp(domain, "ai.onnx")) ? operator : "";
    for (size_t k = 0; k < n->inputs; k++)
        add_use(g, n->in[k], n, (int)k);
    for (size_t k = 0; k < count; k++)
        add_use(g, outer[k], n, -1);
    for (size_t k = 0; k < n->outputs; k++)
        if (n->out[k])
            n->out[k]->producer = n;
    return NULL;
}

OrtStatus *graph_read(const ort_functions *ort, const OrtGraph *info, graph *g)
{
    size_t n = 0;
    OrtStatus *status = ort->graph_node_count(info, &n);
    g->ort = ort;
    const OrtNode **const infos = allocate(&g->memory, (n + 1) * sizeof *infos);
    g->nodes = allocate(&g->memory, (n + 1) * sizeof *g->nodes);
    if (!status && n)
        status = ort->graph_nodes(info, infos, n);
    for (; g->count < n && !status; g->count++) {
        node *const each = &g->nodes[g->count];
        each->info = infos[g->count], each->place = (int)g->count;
        status = read_node(g, each);
    }
    READ_VALUES(status, g, info, ort->graph_input_count, ort->graph_inputs, &g->in, &g->inputs);
    READ_VALUES(status, g, info, ort->graph_output_count, ort->graph_outputs, &g->out, &g->outputs);
    return status;
}

graph *graph_create(void)
{
    graph *const g = calloc(1, sizeof *g);
    if (g)
        g->memory.most = MOST_BYTES;
    return g;
}

void graph_free(graph *g)
{
    if (!g)
        return;
    graph_free(g->body);
    arena_free(&g->memory);
    free(g);
}

OrtStatus *graph_read_node(const ort_functions *ort, const OrtNode *info, graph *g)
{
    g->ort = ort, g->count = 1, g->is_alone = 1;
    g->nodes = allocate(&g->memory, sizeof *g->nodes);
    g->nodes->info = info;
    return read_node(g, g->nodes);
}

void graph_forget(graph *g)
{
    memset(g->atoms, 0, sizeof g->atoms);
    for (size_t k = 0; k < LISTS; k++)
        for (value *v = g->values[k]; v; v = v->next)
            v->sum = NULL;
}

/* --- facts ---------------------------------------------------------------------------------------------- */

int is_operator(const node *n, const char *name) { return n && !strcmp(n->operator, name); }

node *producer(const value *v, const char *operator)
{
    return v && is_operator(v->producer, operator) ? v->producer : NULL;
}

const OrtValueInfo *info_of(const value *v) { return v ? v->info : NULL; }

value *input(const node *n, size_t at) { return at < n->inputs ? n->in[at] : NULL; }

/* Reads an attribute of at most `bytes` bytes. Returns the number of bytes read, or 0. */
static size_t attribute(const graph *g, const node *n, const char *name, int type, void *data, size_t bytes)
{
    const ort_functions *const ort = g->ort;
    const OrtOpAttr *found = NULL;
    size_t needed = 0;
    int is = 0;
    const int read = !failed(ort, ort->node_attribute(n->info, name, &found)) && found
                     && !failed(ort, ort->attribute_type(found, &is)) && is == type
                     && !failed(ort, ort->read_attribute(found, type, data, bytes, &needed))
                     && needed <= bytes;
    return read ? needed : 0;
}

int64_t integer_attribute(const graph *g, const node *n, const char *name, int64_t value)
{
    int64_t found;
    return attribute(g, n, name, ORT_INT, &found, sizeof found) ? found : value;
}

float float_attribute(const graph *g, const node *n, const char *name, float value)
{
    float found;
    return attribute(g, n, name, ORT_FLOAT_, &found, sizeof found) ? found : value;
}

int integers_attribute(const graph *g, const node *n, const char *name, int64_t *numbers, int most)
{
    const size_t bytes = attribute(g, n, name, ORT_INTS, numbers, (size_t)most * sizeof *numbers);
    return bytes ? (int)(bytes / sizeof *numbers) : -1;
}

int constant_integers(const node *n, size_t at, int64_t *numbers, int most)
{
    const value *const v = input(n, at);
    if (!v || !v->is_constant || v->constant.rank > 1
        || (v->constant.type != ORT_INT64 && v->constant.type != ORT_INT32))
        return -1;
    const int64_t count = v->constant.rank ? v->constant.shape[0] : 1;
    for (int64_t k = 0; k < count && count <= most; k++)
        numbers[k] = v->constant.type == ORT_INT64 ? ((const int64_t *)v->constant.data)[k]
                                                   : ((const int32_t *)v->constant.data)[k];
    return count <= most ? (int)count : -1;
}

int is_last_axis(int64_t axis, const value *v)
{
    return axis == -1 || (v->rank && axis == (int64_t)v->rank - 1);
}

int constants_equal(const value *a, const value *b)
{
    const tensor *const p = &a->constant, *const q = &b->constant;
    size_t bytes = sizeof(float);
    if (a == b)
        return 1;
    if (!a->is_constant || !b->is_constant || p->type != ORT_FLOAT || q->type != ORT_FLOAT
        || p->rank != q->rank)
        return 0;
    for (size_t k = 0; k < p->rank; k++) {
        if (p->shape[k] != q->shape[k])
            return 0;
        bytes *= (size_t)p->shape[k];
    }
    return p->data == q->data || !memcmp(p->data, q->data, bytes);
}
