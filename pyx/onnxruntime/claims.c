/* Claims the nodes of steps of cells, and creates the kernels of claims. */
#include <stdlib.h>
#include <string.h>

#include "onnxruntime/cells.h"

static const OrtNodeFusionOptions CLAIM_OPTIONS = {.version = ORT_VERSION, .drop_constants = true};

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

/* A function that hears which nodes are left to the runtime. */
typedef struct {
    leave *left;
    void *provider;
} listener;

/* Claims nodes as one. */
static OrtStatus *claim(graph *g, node *const *nodes, size_t count, OrtEpGraphSupportInfo *claims)
{
    const OrtNode **const infos = allocate(&g->memory, count * sizeof *infos);
    for (size_t k = 0; k < count; k++)
        infos[k] = nodes[k]->info;
    return g->ort->claim(claims, infos, count, &CLAIM_OPTIONS);
}

/* Returns all steps (*count) of a graph, and takes their nodes. is_claim: the graph is a claim, whose RNNs have a state. */
static step **steps_find(graph *g, int weights, int is_claim, size_t *count)
{
    step **const steps = allocate(&g->memory, (g->count + 1) * sizeof *steps);
    *count = 0;
    for (g->joined = 0; g->joined <= has_joined(g); g->joined++) {
        graph_forget(g);
        for (int with_rnn = 0; with_rnn < 2; with_rnn++) /* other cells have gates that are an RNN */
            for (size_t k = 0; k < g->count; k++) {
                lnrnn_description d;
                step *const s = is_root(&g->nodes[k]) ? step_match(g, g->nodes[k].out[0], with_rnn) : NULL;
                if (!s || (with_rnn && !is_claim && !has_state(s)))
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

static OrtStatus *claim_all(graph *g, int weights, OrtEpGraphSupportInfo *claims, const listener *l)
{
    OrtStatus *status = NULL;
    size_t count = 0;
    step **const steps = steps_find(g, weights, 0, &count);
    chain *const chains = allocate(&g->memory, (count + 1) * sizeof *chains);
    const size_t found = chains_find(g, steps, count, chains);
    for (size_t k = 0; k < found && !status; k++)
        status = claim(g, chains[k].nodes, chains[k].node_count, claims);
    for (size_t k = 0; k < count && !status; k++)
        if (!steps[k]->nodes[0]->chain)
            status = claim(g, steps[k]->nodes, steps[k]->count, claims);
    for (size_t k = 0; k < g->count; k++) {
        const node *const n = &g->nodes[k];
        if (is_root(n) && n->out[0]->left)
            l->left(l->provider, n->info, n->out[0]->left);
    }
    return status;
}

static OrtStatus *claim_loop(graph *g, const loop *l, OrtEpGraphSupportInfo *claims)
{
    for (size_t k = 0; k < l->count; k++)
        l->nodes[k]->is_taken = 1;
    return claim(g, l->nodes, l->count, claims);
}

/* Reads a Loop or Scan. with_loops: whether the runtime can compile a Loop. heard: NULL, or hears why a node with a step is
 * left. Returns 1, or 0 if no network replaces it. */
static int read_loop(graph *g, node *n, int with_loops, int weights, graph *body, loop *l,
                     lnrnn_description *d, const listener *heard)
{
    const int is_loop = is_operator(n, "Loop");
    if (!is_loop && !is_operator(n, "Scan"))
        return 0;
    int right = loop_match(g, n, body, l) && step_describe(l->step, weights, d);
    if (right && is_loop && !with_loops)
        l->left = "loops need ONNX Runtime 1.32 or later", right = 0;
    if (!right && heard && l->left)
        heard->left(heard->provider, n->info, l->left);
    return right;
}

/* Returns 1 if the Loop or Scan around a graph will be claimed as a whole. The runtime asks for claims in a body before those in
 * its outer graph. Meanwhile it shows only this node of the outer graph. */
static int is_in_claim(const ort_functions *ort, const OrtNode *within, int with_loops, int weights,
                       const listener *heard)
{
    graph *const g = graph_create(), *const body = graph_create();
    volatile int found = 0;
    if (g && body && !setjmp(g->memory.full))
        if (!setjmp(body->memory.full) && !failed(ort, graph_read_node(ort, within, g))) {
            loop l;
            lnrnn_description d;
            found = read_loop(g, g->nodes, with_loops, weights, body, &l, &d, heard);
        }
    graph_free(g);
    graph_free(body);
    return found;
}

static OrtStatus *claim_loops(graph *g, int with_loops, int weights, OrtEpGraphSupportInfo *claims,
                              const listener *heard)
{
    OrtStatus *volatile status = NULL;
    for (size_t k = 0; k < g->count && !status; k++) {
        graph *const body = graph_create();
        loop l;
        lnrnn_description d;
        if (body && !setjmp(body->memory.full)
            && read_loop(g, &g->nodes[k], with_loops, weights, body, &l, &d, heard))
            status = claim_loop(g, &l, claims);
        graph_free(body);
    }
    return status;
}

OrtStatus *steps_claim(const ort_functions *ort, const OrtGraph *info, const OrtNode *within, int minor,
                       int weights, OrtEpGraphSupportInfo *claims, leave *left, void *provider)
{
    const listener heard = {left, provider};
    const int with_loops = minor >= ORT_VERSION_LOOPS;
    if (within && (minor < ORT_VERSION_SUBGRAPHS || is_in_claim(ort, within, with_loops, weights, &heard)))
        return NULL;
    graph *const g = graph_create();
    OrtStatus *volatile status = NULL;
    if (g && !setjmp(g->memory.full)) {
        status = graph_read(ort, info, g);
        if (!status)
            status = claim_loops(g, with_loops, weights, claims, &heard);
        if (!status)
            status = claim_all(g, weights, claims, &heard);
    }
    graph_free(g);
    return status;
}

/* Sets *s to the step with all nodes of a graph, or *c to the chain. Returns 0 if there is neither. */
static int whole_step(graph *g, int weights, const step **s, chain *c)
{
    size_t count = 0;
    step **const steps = steps_find(g, weights, 1, &count);
    chain *const chains = allocate(&g->memory, (count + 1) * sizeof *chains);
    if (chains_find(g, steps, count, chains) == 1) {
        *c = chains[0], *s = c->steps[0];
        return c->node_count == g->count;
    }
    *s = count == 1 ? steps[0] : NULL;
    return count == 1 && steps[0]->count == g->count;
}

/* Sets *s, *c or *l to the step, chain or loop of a claim. Returns 0 if it is none. */
static int read_claim(graph *g, graph *body, int weights, const step **s, chain *c, loop *l,
                      lnrnn_description *d)
{
    for (size_t k = 0; k < g->count; k++)
        if (is_operator(&g->nodes[k], "Loop") || is_operator(&g->nodes[k], "Scan"))
            return read_loop(g, &g->nodes[k], 1, weights, body, l, d, NULL);
    return whole_step(g, weights, s, c) && step_describe(*s, weights, d);
}

int step_compile(const ort_functions *ort, const OrtGraph *info, const OrtNode *fused, int weights,
                 network_list *list, memory_pool *pool, int threads, OrtNodeComputeInfo **made,
                 OrtStatus **status)
{
    graph *const g = graph_create(), *const body = graph_create();
    volatile int done = 0;
    *status = NULL;
    if (!g || !body || setjmp(g->memory.full))
        *status = ort->create_status(ORT_FAIL, "lnrnn: no memory for a graph");
    else if (!setjmp(body->memory.full)) {
        lnrnn_description d;
        lnrnn_network *network = NULL;
        const step *s = NULL;
        chain c = {.count = 0};
        loop l;
        char message[LNRNN_MESSAGE] = "";
        *status = graph_read(ort, info, g);
        if (!*status && read_claim(g, body, weights, &s, &c, &l, &d)) {
            if (step_network(s ? s : l.step, &d, list, &network, message))
                *status = ort->create_status(ORT_FAIL, message);
            else if (c.count)
                *made = chain_kernel(ort, &c, fused, network, list, pool, threads, status);
            else if (s)
                *made = step_kernel(ort, s, fused, network, list, pool, threads, status);
            else
                *made = loop_kernel(ort, &l, fused, network, list, pool, threads, status);
            done = !*status;
        }
    }
    graph_free(g);
    graph_free(body);
    return done;
}
