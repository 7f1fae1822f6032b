/* Reads calls of functions of the domain lnrnn, which lnrnn.onnx.convert writes. The names of attributes are
 * fields of lnrnn_description. The weights are the last inputs, in the order of lnrnn_description_array.
 * Whether lnrnn runs a call depends only on the call and its constants, because the runtime asks twice. */
#include <stdlib.h>
#include <string.h>

#include "onnxruntime/plugin.h"

enum { FORMAT = 1 }; /* the version of the domain */

static const char *const NAMES[RUN_INPUTS] = {"x", "h0", "c0", "n0", "m0", "lengths"};

/* A call of a function of the domain lnrnn, from its attributes. Pointers belong to the runtime. */
typedef struct {
    lnrnn_description description;
    int lengths; /* 1: the call has an input `lengths` */
    run_form form;
} network_call;

#define FIELD(name, most) {#name, offsetof(network_call, description.name), 0, most}
#define SIZE(name) {#name, offsetof(network_call, description.name), 1, INT32_MAX}
#define FLAG(name) FIELD(name, 1)
static const struct {
    const char *name;
    size_t at;
    int is_size;
    int64_t most;
} INTEGERS[] = {
    FIELD(cell, LNRNN_CELLS - 1),
    FIELD(act, LNRNN_ACT_IDENTITY),
    SIZE(input_size),
    SIZE(hidden_size),
    SIZE(num_layers),
    FLAG(bias),
    FLAG(bidirectional),
    FLAG(reverse),
    FLAG(reset_after),
    FIELD(norm, LNRNN_NORMS - 1),
    FIELD(placement, LNRNN_PLACEMENTS - 1),
    FIELD(span, LNRNN_SPAN_ALL),
    FIELD(cell_norm, LNRNN_CELL_CARRY),
    FLAG(inner_bias),
    SIZE(num_heads),
    SIZE(proj_size),
    FIELD(gate_activation, LNRNN_GATES_HARD_SIGMOID),
    FLAG(exp_forget),
    FLAG(bfloat16_states),
    {"step", offsetof(network_call, form.step), 0, 1},
    {"lengths", offsetof(network_call, lengths), 0, 1},
    FLAG(peepholes), /* must be last, because it may be left out */
};
enum { COUNT = sizeof INTEGERS / sizeof *INTEGERS, ATTRIBUTES = COUNT + 1 }; /* with eps, zoneout */

int call_is(const ort_functions *ort, const OrtNode *node)
{
    const char *domain = NULL;
    return !runtime_failed(ort, ort->node_domain(node, &domain)) && !strcmp(domain, "lnrnn");
}

/* Reads the attributes into c. Fails if an attribute other than peepholes is missing, or if there are unknown
 * attributes. */
static int attributes(const ort_functions *ort, const OrtNode *node, network_call *c, char reason[REASON])
{
    float eps, zoneout[2];
    size_t count = 0, bytes = 0;
    if (runtime_failed(ort, ort->node_attribute_count(node, &count))
        || (count != ATTRIBUTES && count != ATTRIBUTES + 1))
        return runtime_refuse(reason,
                              "the node must have %d or %d attributes in version %d of domain lnrnn, got %zu",
                              ATTRIBUTES, ATTRIBUTES + 1, FORMAT, count);
    for (size_t k = 0; k < COUNT - (count == ATTRIBUTES); k++) {
        int64_t value = 0;
        char *const to = (char *)c + INTEGERS[k].at;
        runtime_refuse(reason, "attribute %s must be given, got none", INTEGERS[k].name);
        if (runtime_attribute(ort, node, INTEGERS[k].name, ORT_INT, &value, sizeof value, NULL, reason) <= 0)
            return 0;
        if (value < 0 || value > INTEGERS[k].most)
            return runtime_refuse(reason, "attribute %s must be within 0 .. %lld, got %lld", INTEGERS[k].name,
                                  (long long)INTEGERS[k].most, (long long)value);
        if (INTEGERS[k].is_size)
            *(size_t *)to = (size_t)value;
        else
            *(int *)to = (int)value;
    }
    runtime_refuse(reason, "attributes eps (a float) and zoneout (2 floats) must be given");
    if (runtime_attribute(ort, node, "eps", ORT_FLOAT_, &eps, sizeof eps, NULL, reason) <= 0
        || runtime_attribute(ort, node, "zoneout", ORT_FLOATS, zoneout, sizeof zoneout, &bytes, reason) <= 0)
        return 0;
    if (bytes != sizeof zoneout)
        return runtime_refuse(reason, "attribute zoneout must have 2 numbers, got %zu",
                              bytes / sizeof *zoneout);
    c->description.eps = eps;
    for (int k = 0; k < 2; k++)
        c->description.zoneout[k] = zoneout[k];
    return 1;
}

/* Reads the attributes as a description, in which all defaults must be written out. */
static int describe(const ort_functions *ort, const OrtNode *node, int weights, network_call *c,
                    char reason[REASON])
{
    lnrnn_description *const d = &c->description;
    char message[LNRNN_MESSAGE] = "";
    *c = (network_call){.description = lnrnn_describe(LNRNN_RNN, 1, 1), .form.names = NAMES};
    d->weights = weights;
    if (!attributes(ort, node, c, reason))
        return 0;
    const lnrnn_description given = *d;
    if (d->norm == LNRNN_NORM_BATCH)
        return runtime_refuse(reason, "attribute norm must not be %d, batch norm", d->norm);
    if (lnrnn_description_resolve(d, message))
        return runtime_refuse(reason, "%s", message);
    if (!networks_equal(&given, d))
        return runtime_refuse(reason, "attributes must have the values that lnrnn.onnx.convert writes, got "
                                      "others; convert the original file again");
    if (c->form.step && (c->lengths || d->bidirectional))
        return runtime_refuse(reason,
                              "a node with step=1 must have one direction and no lengths, got "
                              "bidirectional=%d, lengths=%d",
                              d->bidirectional, c->lengths);
    const size_t directions = d->bidirectional ? 2 : 1, H = d->hidden_size,
                 P = d->proj_size ? d->proj_size : H;
    c->form.states = d->cell == LNRNN_SLSTM ? 4 : d->cell == LNRNN_LSTM ? 2 : 1;
    c->form.lines = d->num_layers * directions, c->form.y_width = directions * P;
    c->form.input_size = d->input_size;
    for (size_t k = 0; k < c->form.states; k++)
        c->form.widths[k] = k ? H : P;
    return 1;
}

/* Checks the type of a value, and the shape as far as it is known. wanted (rank): -1 accepts any size, and
 * becomes the size seen. Returns 0 with a reason for another type or shape. */
static int fits(const ort_functions *ort, const OrtValueInfo *value, const char *kind, int type,
                int64_t *wanted, size_t rank, char reason[REASON])
{
    int64_t shape[8];
    size_t n = 0;
    char should[96], seen[96];
    const int is = runtime_type(ort, value, shape, 8, &n);
    int fitting = is == type && (!n || n == rank);
    for (size_t k = 0; k < n && fitting; k++)
        fitting = shape[k] < 0 || wanted[k] < 0 || shape[k] == wanted[k];
    if (!fitting)
        return runtime_refuse(reason, "%s '%.100s' must be %s of shape %s, got %s of shape %s", kind,
                              runtime_name(ort, value), runtime_type_name(type),
                              runtime_shape_text(wanted, rank, should), runtime_type_name(is),
                              n > 8 ? "of more axes" : runtime_shape_text(shape, n, seen));
    for (size_t k = 0; k < n; k++)
        wanted[k] = shape[k] >= 0 ? shape[k] : wanted[k];
    return 1;
}

/* Checks type and shape of x, states, lengths and outputs. T and B must be the same everywhere. */
static int values(const ort_functions *ort, network_call *c, char reason[REASON])
{
    int64_t T = -1, B = -1;
    for (int round = 0; round < 2; round++) /* the first round finds T and B */
        for (int k = 0; k < VALUES; k++) {
            const int is_output = k >= RUN_INPUTS, i = is_output ? k - RUN_INPUTS : k;
            const OrtValueInfo *const value = c->form.values[k];
            int64_t shape[3] = {T, B, (int64_t)(is_output ? c->form.y_width : c->description.input_size)};
            const int is_lengths = !is_output && i == RUN_LENGTHS, is_x = i == RUN_X;
            int64_t *const own = is_lengths || (is_x && c->form.step) ? shape + 1 : shape;
            if (!value)
                continue;
            if (!is_x)
                shape[0] = (int64_t)c->form.lines,
                shape[2] = (int64_t)c->form.widths[is_lengths ? 0 : i - RUN_STATES];
            if (!fits(ort, value, is_output ? "output" : "input", is_lengths ? ORT_INT32 : ORT_FLOAT, own,
                      is_lengths     ? 1
                      : own == shape ? 3
                                     : 2,
                      reason))
                return 0;
            B = shape[1];
            T = is_x ? shape[0] : T;
        }
    return 1;
}

/* The weights of a network, as `count` arrays with names, and memory for all inputs of the call. */
typedef struct {
    size_t count;
    const OrtValueInfo **inputs;
    lnrnn_array *arrays;
    char (*names)[LNRNN_ARRAY_NAME];
} weight_list;

/* Reads the inputs and outputs. Their numbers follow from the description. */
static int inputs(const ort_functions *ort, const OrtNode *node, network_call *c, weight_list *w,
                  char reason[REASON])
{
    const size_t before = 1 + c->form.states + (size_t)c->lengths;
    w->count = lnrnn_description_arrays(&c->description);
    size_t in = before + w->count, out = 1 + c->form.states;
    w->inputs = calloc(in, sizeof *w->inputs);
    w->arrays = calloc(w->count, sizeof *w->arrays);
    w->names = calloc(w->count, sizeof *w->names);
    if (!w->inputs || !w->arrays || !w->names)
        return runtime_refuse(reason, NO_MEMORY);
    if (!runtime_values(ort, node, w->inputs, &in, c->form.values + RUN_INPUTS, &out, reason)
        || in != before + w->count || out != 1 + c->form.states)
        return runtime_refuse(reason, "the node must have %zu inputs and %zu outputs, got %zu and %zu",
                              before + w->count, 1 + c->form.states, in, out);
    for (size_t k = 0; k < before; k++) {
        if (!w->inputs[k])
            return runtime_refuse(reason, "input %zu of the node must be given, got none", k);
        c->form.values[k <= c->form.states ? k : RUN_LENGTHS] = w->inputs[k];
    }
    for (size_t k = 0; k < w->count; k++) {
        lnrnn_array *const a = &w->arrays[k];
        *a = lnrnn_description_array(&c->description, k, w->names[k]);
        if (runtime_constant(ort, w->inputs[before + k], a->name, ORT_FLOAT, a->shape, a->ndim, &a->data,
                             reason)
            <= 0)
            return 0;
    }
    return values(ort, c, reason);
}

kernel *call_kernel(const provider *p, const OrtNode *node, char reason[REASON])
{
    network_call c;
    weight_list w = {.count = 0};
    lnrnn_network *network = NULL;
    kernel *k = NULL;
    int version = 0;
    if (runtime_failed(p->ort, p->ort->node_version(node, &version)) || version != FORMAT)
        runtime_refuse(
            reason, "the opset of domain lnrnn must be version %d, got %d; convert the original file again",
            FORMAT, version);
    else if (describe(p->ort, node, provider_weights(p, node, 0), &c, reason)
             && inputs(p->ort, node, &c, &w, reason)) {
        char message[LNRNN_MESSAGE] = NO_MEMORY;
        if (!networks_add(p->networks, &c.description, w.arrays, w.count, &network, message))
            k = kernel_new(p, node, network, &c.form);
        runtime_refuse(reason, "%s", message);
    }
    free(w.inputs), free(w.arrays), free(w.names);
    return k;
}
