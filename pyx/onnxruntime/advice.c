/* Counts recurrences in plain operators, for advice to convert the file. It looks at the types of operators
 * alone: the runtime computes these operators, whether or not a conversion knows them. */
#include <stdio.h>
#include <string.h>

#include "onnxruntime/plugin.h"

/* The kinds of operators. Values before a product are not looked at. */
enum { PRODUCT = 1, SIGMOID = 2, TANH = 4, SUM = 8, GATED = 16, LOOP = 32, NODE = 64, CONVOLUTION = 128 };
enum { CELL = PRODUCT | SIGMOID | TANH, NEAR = 4, FAR = 8, MOST_INPUTS_READ = 8 };
static const struct {
    const char *operator;
    int kind;
} KINDS[] = {{"MatMul", PRODUCT}, {"Gemm", PRODUCT},    {"Sigmoid", SIGMOID}, {"HardSigmoid", SIGMOID},
             {"Tanh", TANH},      {"Add", SUM},         {"Sub", SUM},         {"Mul", GATED},
             {"Loop", LOOP},      {"Scan", LOOP},       {"RNN", NODE},        {"LSTM", NODE},
             {"GRU", NODE},       {"Conv", CONVOLUTION}};

static int kind_of(const ort_functions *ort, const OrtNode *node)
{
    const char *operator = NULL;
    const int is_known = node && !runtime_failed(ort, ort->node_operator(node, &operator)) && operator;
    for (size_t k = 0; k < sizeof KINDS / sizeof *KINDS && is_known; k++)
        if (!strcmp(operator, KINDS[k].operator))
            return KINDS[k].kind;
    return 0;
}

/* Returns the kinds of a node and of those that compute its inputs, at most `depth` nodes away. */
static int kinds_of(const ort_functions *ort, const OrtNode *node, int depth)
{
    const OrtValueInfo *in[MOST_INPUTS_READ] = {NULL};
    int kinds = kind_of(ort, node);
    size_t n = 0, output;
    if (!node || !depth || kinds & (PRODUCT | CONVOLUTION)
        || runtime_failed(ort, ort->node_input_count(node, &n)) || n > MOST_INPUTS_READ
        || runtime_failed(ort, ort->node_inputs(node, in, n)))
        return kinds;
    for (size_t k = 0; k < n; k++) {
        const OrtNode *of = NULL;
        if (*runtime_name(ort, in[k]) && !runtime_failed(ort, ort->value_producer(in[k], &of, &output)))
            kinds |= kinds_of(ort, of, depth - 1);
    }
    return kinds;
}

/* Returns 1 if a node adds a product with a sigmoid, as the new state of an LSTM or GRU does. */
static int is_state(const ort_functions *ort, const OrtNode *node)
{
    return kind_of(ort, node) & SUM && kinds_of(ort, node, 1) & GATED && kinds_of(ort, node, NEAR) & SIGMOID
           && (kinds_of(ort, node, FAR) & CELL) == CELL;
}

void advice_give(provider *p, const OrtNode *const *nodes, size_t count, const OrtNode *within)
{
    int kinds = 0;
    size_t states = 0;
    char text[REASON];
    for (size_t k = 0; k < count; k++) {
        p->is_converted |= call_is(p->ort, nodes[k]);
        kinds |= kind_of(p->ort, nodes[k]);
        states += (size_t)is_state(p->ort, nodes[k]);
    }
    if (kind_of(p->ort, within) & LOOP)
        states = kinds & PRODUCT && kinds & (SIGMOID | TANH) && !(kinds & NODE);
    p->recurrences += states;
    if (within)
        return;
    snprintf(text, sizeof text,
             "this file has %zu loops or cells that a conversion speeds up: lnrnn onnx FILE -o OUT",
             p->recurrences);
    if (p->recurrences && !p->is_converted && !p->is_advised)
        p->is_advised = !runtime_failed(
            p->ort, p->ort->log_message(p->logger, ORT_LOG_WARNING, text, "lnrnn", 0, "advice"));
    p->recurrences = 0;
}
