/* Claims the nodes of steps of cells, and creates the kernels of claims. */
#include <stdlib.h>
#include <string.h>

#include "onnxruntime/cells.h"

enum { MOST_BYTES = 1 << 28 }; /* of memory to read a graph; the runtime keeps the rest of a larger one */

static int is_root(const node *n)
{
    static const char *const roots[] = {"Mul",  "Add",     "Sub",    "Sum", "Tanh",
                                        "Relu", "Sigmoid", "MatMul", "Gemm"};
    for (size_t k = 0; k < sizeof roots / sizeof *roots && n->outputs == 1 && n->out[0] && !n->is_taken; k++)
        if (is_operator(n, roots[k]))
            return 1;
    return 0;
}

/* Returns 1 if a product with a Concat may be that of one matrix for x and h. */
static int has_joined(const graph *g)
{
    for (size_t k = 0; k < g->count; k++)
        if ((is_operator(&g->nodes[k], "Gemm") || is_operator(&g->nodes[k], "MatMul"))
            && producer(input(&g->nodes[k], 0), "Concat"))
            return 1;
    return 0;
}

/* Returns the constant of a matrix of an RNN's step. */
static const value *matrix_of(const step *s, int name)
{
    return s->constants[name][s->pattern->gates[0]]->matrix.of;
}

/* Returns 1 if h0 and h of an RNN's step are a state. Two products in a tanh are also an attention, or a gate. */
static int has_state(const step *s)
{
    const value *const matrices[2] = {matrix_of(s, CONSTANT_WEIGHT_IH), matrix_of(s, CONSTANT_WEIGHT_HH)};
    for (int k = 0; k < 2; k++)
        if (s->in[k]->state && constants_equal(s->in[k]->state, matrices[k]))
            return 1;
    for (const use *u = s->out[0]->uses; u; u = u->next) {
        const value *const by = input(u->user, 1);
        if (u->at == 0 && by && (constants_equal(by, matrices[0]) || constants_equal(by, matrices[1])))
            return 1;
    }
    return s->out[0]->is_output && (!s->in[0]->producer || !s->in[1]->producer);
}

static OrtStatus *claim(graph *g, step *s, OrtEpGraphSupportInfo *claims)
{
    static const OrtNodeFusionOptions options = {.version = ORT_VERSION, .drop_constants = true};
    const OrtNode **const infos = allocate(&g->memory, s->count * sizeof *infos);
    for (size_t k = 0; k < s->count; k++) {
        infos[k] = s->nodes[k]->info;
        s->nodes[k]->is_taken = 1;
    }
    s->out[0]->state = matrix_of(s, CONSTANT_WEIGHT_HH);
    return g->ort->claim(claims, infos, s->count, &options);
}

static OrtStatus *claim_all(graph *g, int weights, OrtEpGraphSupportInfo *claims)
{
    OrtStatus *status = NULL;
    for (g->joined = 0; g->joined <= has_joined(g) && !status; g->joined++) {
        graph_forget(g);
        for (int with_rnn = 0; with_rnn < 2; with_rnn++) /* other cells have gates that are an RNN */
            for (size_t k = 0; k < g->count && !status; k++) {
                lnrnn_description d;
                step *const s = is_root(&g->nodes[k]) ? step_match(g, g->nodes[k].out[0], with_rnn) : NULL;
                if (s && step_describe(s, weights, &d) && (!with_rnn || has_state(s)))
                    status = claim(g, s, claims);
            }
    }
    return status;
}

/* Returns an empty graph, or NULL without memory. */
static graph *graph_create(void)
{
    graph *const g = calloc(1, sizeof *g);
    if (g)
        g->memory.most = MOST_BYTES;
    return g;
}

static void graph_free(graph *g)
{
    arena_free(&g->memory);
    free(g);
}

OrtStatus *steps_claim(const ort_functions *ort, const OrtGraph *info, int weights,
                       OrtEpGraphSupportInfo *claims)
{
    graph *const g = graph_create();
    OrtStatus *volatile status = NULL;
    if (g && !setjmp(g->memory.full)) {
        status = graph_read(ort, info, g);
        if (!status)
            status = claim_all(g, weights, claims);
    }
    if (g)
        graph_free(g);
    return status;
}

/* Returns the step with all nodes of a graph, or NULL. */
static step *whole_step(graph *g)
{
    for (g->joined = 0; g->joined <= has_joined(g); g->joined++) {
        graph_forget(g);
        for (int with_rnn = 0; with_rnn < 2; with_rnn++)
            for (size_t k = 0; k < g->count; k++) {
                step *const s = is_root(&g->nodes[k]) ? step_match(g, g->nodes[k].out[0], with_rnn) : NULL;
                if (s && s->count == g->count)
                    return s;
            }
    }
    return NULL;
}

int step_compile(const ort_functions *ort, const OrtGraph *info, const OrtNode *fused, int weights,
                 network_list *list, memory_pool *pool, int threads, OrtNodeComputeInfo **made,
                 OrtStatus **status)
{
    graph *const g = graph_create();
    int done = 0;
    if (g && !setjmp(g->memory.full)) {
        lnrnn_description d;
        lnrnn_network *network = NULL;
        char message[LNRNN_MESSAGE] = "";
        *status = graph_read(ort, info, g);
        const step *const s = *status ? NULL : whole_step(g);
        if (s && step_describe(s, weights, &d)) {
            if (step_network(s, &d, list, &network, message))
                *status = ort->create_status(ORT_FAIL, message);
            else
                *made = step_kernel(ort, s, fused, network, list, pool, threads, status);
            done = !*status;
        }
    }
    if (g)
        graph_free(g);
    return done;
}
