/* Claims the nodes of steps of cells, and creates the kernels of claims. */
#include <stdio.h>
#include <string.h>

#include "onnxruntime/cells.h"

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

/* Returns 1 if h0 and h of an RNN's step are a state. Two products in a tanh are also an attention, or a
 * gate. */
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

/* Returns 1 if a kernel writes all values of nodes that other nodes, or the graph, read. */
static int writes_all(graph *g, node *const *nodes, size_t count, const kernel_base *k)
{
    g->searches++;
    for (size_t i = 0; i < count; i++)
        nodes[i]->mark = g->searches;
    for (size_t i = 0; i < count; i++)
        for (size_t o = 0; o < nodes[i]->outputs; o++) {
            const value *const v = nodes[i]->out[o];
            int is_read = v && v->is_output, is_written = 0;
            for (const use *u = v ? v->uses : NULL; u; u = u->next)
                is_read |= u->user->mark != g->searches;
            const char *const name = is_read ? name_of(g->ort, v->info) : "";
            for (const named *n = k->names; n && is_read && !is_written; n = n->next)
                is_written = n->is_output && !strcmp(n->name, name);
            if (is_read && !is_written)
                return 0;
        }
    return 1;
}

/* Claims nodes as one: a chain, a loop, or, if both are NULL, a step. Leaves them to the runtime if they have
 * no kernel. */
static OrtStatus *claim(provider *p, graph *g, node *const *nodes, size_t count, const step *s,
                        const chain *c, const loop *l, OrtEpGraphSupportInfo *claims)
{
    const OrtNode **const infos = allocate(&g->memory, count * sizeof *infos);
    char message[LNRNN_MESSAGE] = NO_MEMORY;
    lnrnn_description d;
    lnrnn_network *network = NULL;
    kernel_base *k = NULL;
    for (size_t i = 0; i < count; i++)
        infos[i] = nodes[i]->info;
    if (step_describe(s, p->weights, &d) && !step_network(s, &d, p->networks, &network, message))
        k = c ? chain_kernel(p, c, network) : l ? loop_kernel(p, l, network) : step_kernel(p, s, network);
    if (k && writes_all(g, nodes, count, k))
        return kernel_claim(p, k, infos, count, claims);
    if (k) {
        kernel_free(&k->info);
        snprintf(message, sizeof message, "another node or an output reads a value within it");
    }
    leave(p, infos[0], message);
    return NULL;
}

/* Returns all steps (*count) of a graph, and takes their nodes. */
static step **steps_find(graph *g, int weights, size_t *count)
{
    step **const steps = allocate(&g->memory, (g->count + 1) * sizeof *steps);
    *count = 0;
    for (g->joined = 0; g->joined <= has_joined(g); g->joined++) {
        graph_forget(g);
        for (int with_rnn = 0; with_rnn < 2; with_rnn++) /* other cells have gates that are an RNN */
            for (size_t k = 0; k < g->count; k++) {
                lnrnn_description d;
                step *const s = is_root(&g->nodes[k]) ? step_match(g, g->nodes[k].out[0], with_rnn) : NULL;
                if (!s || (with_rnn && !has_state(s)))
                    continue;
                if (!step_describe(s, weights, &d)) {
                    s->out[0]->left = "no network has its sizes and functions";
                    continue;
                }
                for (size_t i = 0; i < s->count; i++)
                    s->nodes[i]->is_taken = 1;
                s->out[0]->state = matrix_of(s, CONSTANT_WEIGHT_HH);
                steps[(*count)++] = s;
            }
    }
    return steps;
}

static OrtStatus *claim_all(provider *p, graph *g, OrtEpGraphSupportInfo *claims)
{
    OrtStatus *status = NULL;
    size_t count = 0;
    step **const steps = steps_find(g, p->weights, &count);
    chain *const chains = allocate(&g->memory, (count + 1) * sizeof *chains);
    const size_t found = chains_find(g, steps, count, chains);
    for (size_t k = 0; k < found && !status; k++)
        status =
            claim(p, g, chains[k].nodes, chains[k].node_count, chains[k].steps[0], &chains[k], NULL, claims);
    for (size_t k = 0; k < count && !status; k++)
        if (!steps[k]->nodes[0]->chain)
            status = claim(p, g, steps[k]->nodes, steps[k]->count, steps[k], NULL, NULL, claims);
    for (size_t k = 0; k < g->count; k++) {
        const node *const n = &g->nodes[k];
        if (is_root(n) && n->out[0]->left)
            leave(p, n->info, n->out[0]->left);
    }
    return status;
}

/* Reads a Loop or Scan, and logs why one with a step is left. Returns 1, or 0 if no network replaces it. */
static int read_loop(provider *p, graph *g, node *n, graph *body, loop *l)
{
    const int is_loop = is_operator(n, "Loop");
    lnrnn_description d;
    int right = loop_match(g, n, body, l) && step_describe(l->step, p->weights, &d);
    if (right && is_loop && p->minor < ORT_VERSION_LOOPS)
        l->left = "loops need ONNX Runtime 1.32 or later", right = 0;
    if (!right && l->left)
        leave(p, n->info, l->left);
    return right;
}

/* Returns 1 if the Loop or Scan around a graph will be claimed as a whole. The runtime asks for claims in a
 * body before those in its outer graph. Meanwhile it shows only this node of the outer graph. */
static int is_in_claim(provider *p, const OrtNode *within)
{
    graph *const g = graph_create(), *const body = graph_create();
    volatile int found = 0;
    if (g && body && !setjmp(g->memory.full))
        if (!setjmp(body->memory.full) && !failed(p->ort, graph_read_node(p->ort, within, g))) {
            loop l;
            found = (is_operator(g->nodes, "Loop") || is_operator(g->nodes, "Scan"))
                    && read_loop(p, g, g->nodes, body, &l);
        }
    graph_free(g);
    graph_free(body);
    return found;
}

static OrtStatus *claim_loops(provider *p, graph *g, OrtEpGraphSupportInfo *claims)
{
    OrtStatus *volatile status = NULL;
    for (size_t k = 0; k < g->count && !status; k++) {
        loop l;
        graph_free(g->body);
        g->body = NULL;
        if (!is_operator(&g->nodes[k], "Loop") && !is_operator(&g->nodes[k], "Scan"))
            continue;
        graph *const body = g->body = graph_create();
        if (!body || setjmp(body->memory.full))
            leave(p, g->nodes[k].info, NO_MEMORY);
        else if (read_loop(p, g, &g->nodes[k], body, &l)) {
            for (size_t i = 0; i < l.count; i++)
                l.nodes[i]->is_taken = 1;
            status = claim(p, g, l.nodes, l.count, l.step, NULL, &l, claims);
        }
    }
    return status;
}

OrtStatus *steps_claim(provider *p, const OrtGraph *info, const OrtNode *within,
                       OrtEpGraphSupportInfo *claims)
{
    if (within && (p->minor < ORT_VERSION_SUBGRAPHS || is_in_claim(p, within)))
        return NULL;
    graph *const g = graph_create();
    OrtStatus *volatile status = NULL;
    if (!g || setjmp(g->memory.full))
        leave(p, NULL, NO_MEMORY);
    else {
        status = graph_read(p->ort, info, g);
        if (!status)
            status = claim_loops(p, g, claims);
        if (!status)
            status = claim_all(p, g, claims);
    }
    graph_free(g);
    return status;
}
