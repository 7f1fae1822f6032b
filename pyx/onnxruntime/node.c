/* Reads nodes RNN, LSTM and GRU of ONNX, opsets 7 to 22, and DynamicQuantizeLSTM of ONNX Runtime. */
#include <string.h>
#include <strings.h>

#include "onnxruntime/node.h"

enum { MOST_FUNCTIONS = 6, MOST_NAMES = 256, QUANTIZED = 3 };

/* Of each operator: the domain, the cell, and the numbers of gates G and of activations of a direction. */
static const struct {
    const char *operator, *domain;
    int cell, functions;
    size_t gates;
} OPERATORS[] = {{"RNN", "ai.onnx", LNRNN_RNN, 1, 1},
                 {"LSTM", "ai.onnx", LNRNN_LSTM, 3, 4},
                 {"GRU", "ai.onnx", LNRNN_GRU, 2, 3},
                 {"DynamicQuantizeLSTM", "com.microsoft", LNRNN_LSTM, 3, 4}};

/* Returns the row of OPERATORS of a node, or -1. */
static int row_of(const ort_functions *ort, const OrtNode *node)
{
    const char *operator = NULL, *domain = NULL;
    if (runtime_failed(ort, ort->node_operator(node, &operator))
        || runtime_failed(ort, ort->node_domain(node, &domain)) || !operator)
        return -1;
    if (!domain || !*domain)
        domain = "ai.onnx";
    for (int k = 0; k < (int)(sizeof OPERATORS / sizeof *OPERATORS); k++)
        if (!strcmp(operator, OPERATORS[k].operator) && !strcmp(domain, OPERATORS[k].domain))
            return k;
    return -1;
}

int node_is_recurrent(const ort_functions *ort, const OrtNode *node) { return row_of(ort, node) >= 0; }

int node_integer(const ort_functions *ort, const OrtNode *node, const char *name, int64_t *value,
                 char reason[REASON])
{
    return runtime_attribute(ort, node, name, ORT_INT, value, sizeof *value, NULL, reason) >= 0;
}

/* An activation with its parameters, which are 0 if it has none. */
typedef struct {
    char name[16];
    float alpha, beta;
} function;

static int has_alpha(const char *name)
{
    static const char *const names[] = {"affine",          "hardsigmoid", "leakyrelu",
                                        "thresholdedrelu", "elu",         "scaledtanh"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        if (!strcasecmp(name, names[k]))
            return 1;
    return 0;
}

static int has_beta(const char *name)
{
    return !strcasecmp(name, "affine") || !strcasecmp(name, "hardsigmoid") || !strcasecmp(name, "scaledtanh");
}

/* Sets alpha (which = 0) or beta (1) of n functions. The attribute has a number for each function that uses
 * one. Some exporters write a number for each function. */
static int parameters(const ort_functions *ort, const OrtNode *node, function *f, size_t n, int which,
                      char reason[REASON])
{
    float given[MOST_FUNCTIONS];
    const char *const name = which ? "activation_beta" : "activation_alpha";
    size_t bytes = 0, users = 0, next = 0;
    if (runtime_attribute(ort, node, name, ORT_FLOATS, given, sizeof given, &bytes, reason) < 0)
        return 0;
    const size_t count = bytes / sizeof *given;
    for (size_t i = 0; i < n; i++)
        users += (size_t)(which ? has_beta(f[i].name) : has_alpha(f[i].name));
    for (size_t i = 0; i < n; i++) {
        float *const value = which ? &f[i].beta : &f[i].alpha;
        if (!(which ? has_beta(f[i].name) : has_alpha(f[i].name)))
            continue;
        if (count && count == users)
            *value = given[next++];
        else if (count == n)
            *value = given[i];
        else if (!count && !strcasecmp(f[i].name, "hardsigmoid"))
            *value = which ? 0.5f : 0.2f;
        else
            return runtime_refuse(reason, "attribute %s must have %zu numbers, got %zu", name, users, count);
    }
    return 1;
}

/* Reads activations, activation_alpha and activation_beta into the description. */
static int activations(const ort_functions *ort, const OrtNode *node, int row, recurrent_node *read,
                       char reason[REASON])
{
    char names[MOST_NAMES] = {0};
    function f[MOST_FUNCTIONS] = {{{0}, 0, 0}};
    size_t bytes = 0, n = 0;
    const size_t each = (size_t)OPERATORS[row].functions;
    const int given =
        runtime_attribute(ort, node, "activations", ORT_STRINGS, names, sizeof names - 1, &bytes, reason);
    if (given <= 0)
        return !given;
    for (const char *at = names; at < names + bytes && *at; at += strlen(at) + 1, n++) {
        if (n == MOST_FUNCTIONS || strlen(at) >= sizeof f->name)
            return runtime_refuse(reason, "attribute activations must have %zu known names",
                                  each * read->directions);
        strcpy(f[n].name, at);
    }
    if (!n)
        return 1;
    if (n == 2 && each == 1 && read->directions == 1 && !strcasecmp(f[0].name, "tanh")
        && !strcasecmp(f[1].name, "tanh"))
        n = 1; /* the runtime writes an RNN's default, which has a name for each of two directions */
    if (n != each * read->directions)
        return runtime_refuse(reason, "attribute activations must have %zu names, got %zu",
                              each * read->directions, n);
    if (!parameters(ort, node, f, n, 0, reason) || !parameters(ort, node, f, n, 1, reason))
        return 0;
    for (size_t i = each; i < n; i++)
        if (strcasecmp(f[i].name, f[i - each].name) || f[i].alpha != f[i - each].alpha
            || f[i].beta != f[i - each].beta)
            return runtime_refuse(reason, "attribute activations must be the same in both directions");
    if (OPERATORS[row].cell == LNRNN_RNN) {
        static const char *const known[] = {"tanh", "relu", "sigmoid", "affine"};
        for (int act = 0; act < 4; act++)
            if (!strcasecmp(f->name, known[act]) && (act < 3 || (f->alpha == 1 && f->beta == 0))) {
                read->description.act = act; /* LNRNN_ACT_TANH .. */
                return 1;
            }
        return runtime_refuse(
            reason, "activation %s is not Tanh, Relu, Sigmoid, or Affine with alpha 1 and beta 0", f->name);
    }
    for (size_t i = 1; i < each; i++)
        if (strcasecmp(f[i].name, "tanh"))
            return runtime_refuse(reason, "activation %s of the candidate or the output is not Tanh",
                                  f[i].name);
    if (!strcasecmp(f->name, "sigmoid"))
        return 1;
    if (strcasecmp(f->name, "hardsigmoid") || !(f->alpha > 0) || f->beta != 0.5f)
        return runtime_refuse(
            reason, "activation %s of the gates is not Sigmoid, or HardSigmoid with beta 0.5", f->name);
    read->description.gate_activation = LNRNN_GATES_HARD_SIGMOID;
    read->gate_factor = 6 * (double)f->alpha; /* clip(alpha a + 1/2) is clip(6 alpha a / 6 + 1/2) */
    return 1;
}

/* Reads all attributes but hidden_size. */
static int attributes(const ort_functions *ort, const OrtNode *node, int row, recurrent_node *read,
                      char reason[REASON])
{
    char direction[16] = {0}; /* the runtime writes no 0 after a string */
    float clip = 0;
    int64_t layout = 0, input_forget = 0, before = 0;
    const int directed =
        runtime_attribute(ort, node, "direction", ORT_STRING, direction, sizeof direction - 1, NULL, reason);
    if (directed < 0)
        return 0;
    if (!directed)
        strcpy(direction, "forward");
    read->description.bidirectional = !strcmp(direction, "bidirectional");
    read->description.reverse = !strcmp(direction, "reverse");
    read->directions = read->description.bidirectional ? 2 : 1;
    if (!read->description.bidirectional && !read->description.reverse && strcmp(direction, "forward"))
        return runtime_refuse(reason, "attribute direction is unknown");
    const int clipped = runtime_attribute(ort, node, "clip", ORT_FLOAT_, &clip, sizeof clip, NULL, reason);
    if (clipped)
        return clipped < 0 ? 0 : runtime_refuse(reason, "attribute clip is set, and no network has a clip");
    if (!node_integer(ort, node, "layout", &layout, reason)
        || !node_integer(ort, node, "input_forget", &input_forget, reason)
        || !node_integer(ort, node, "linear_before_reset", &before, reason))
        return 0;
    if (layout != 0 && layout != 1)
        return runtime_refuse(reason, "attribute layout must be 0 or 1, got %lld", (long long)layout);
    if (input_forget)
        return runtime_refuse(reason, "attribute input_forget is set, and no network couples these gates");
    read->layout = (int)layout;
    read->description.batch_first = (int)layout;
    read->description.reset_after = OPERATORS[row].cell != LNRNN_GRU || before != 0;
    return activations(ort, node, row, read, reason);
}

int node_read(const ort_functions *ort, const OrtNode *node, int weights, recurrent_node *read,
              char reason[REASON])
{
    const int row = row_of(ort, node);
    int version = 0;
    size_t in = 0, out = 0;
    const char *name = NULL;
    const OrtValueInfo *all[MOST_INPUTS] = {NULL};
    *reason = 0;
    if (row < 0)
        return runtime_refuse(reason, "the node is not recurrent");
    *read = (recurrent_node){.kind = OPERATORS[row].operator,
                             .gate_factor = 1,
                             .description = lnrnn_describe(OPERATORS[row].cell, 1, 1)};
    read->name = runtime_failed(ort, ort->node_name(node, &name)) || !name ? "" : name;
    read->description.norm = LNRNN_NORM_NONE;
    /* DynamicQuantizeLSTM rounds x and h to 8 bits too. */
    read->description.weights = row == QUANTIZED ? LNRNN_WEIGHT_I8A8 : weights;
    if (runtime_failed(ort, ort->node_version(node, &version)) || (version < 7 && row != QUANTIZED))
        return runtime_refuse(reason, "the operator must be of opset 7 or later");
    if (runtime_failed(ort, ort->node_input_count(node, &in))
        || in > (row == QUANTIZED ? MOST_INPUTS : INPUTS)
        || runtime_failed(ort, ort->node_inputs(node, all, in))
        || runtime_failed(ort, ort->node_output_count(node, &out)) || out > OUTPUTS
        || runtime_failed(ort, ort->node_outputs(node, read->output, out)))
        return runtime_refuse(reason, "the node has more inputs or outputs than its operator");
    for (int k = 0; k < INPUTS; k++)
        read->input[k] = *runtime_name(ort, all[k]) ? all[k] : NULL;
    for (int k = 0; k < OUTPUTS; k++)
        if (!*runtime_name(ort, read->output[k]))
            read->output[k] = NULL;
    if (!attributes(ort, node, row, read, reason)
        || !node_inputs(ort, node, all, OPERATORS[row].gates, row == QUANTIZED, read, reason))
        return read->contradictory ? -1 : 0;
    read->description.bias = read->weight[B] != NULL;
    char message[LNRNN_MESSAGE] = "";
    if (lnrnn_description_resolve(&read->description, message))
        return runtime_refuse(reason, "%s", message);
    return 1;
}
