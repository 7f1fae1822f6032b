/* Makes a step of a cell from the bindings of a search, and checks its nodes. */
#include "onnxruntime/match.h"

int step_collect(graph *g, step *s, value *v)
{
    if (!v || v->is_constant || v == s->in[0] || v == s->in[1] || v == s->in[2])
        return 1;
    node *const n = v->producer;
    if (!n)
        return 0;
    if (n->mark == g->searches)
        return 1;
    if (s->count == MOST_STEP_NODES || n->is_taken)
        return 0;
    n->mark = g->searches;
    s->nodes[s->count++] = n;
    for (size_t k = 0; k < n->inputs; k++)
        if (!step_collect(g, s, n->in[k]))
            return 0;
    return 1;
}

int step_is_read_outside(const graph *g, const step *s)
{
    for (int k = 0; k < VALUES; k++)
        if (s->in[k] && s->in[k]->producer && s->in[k]->producer->mark == g->searches)
            return 1;
    for (size_t k = 0; k < s->count; k++)
        for (size_t i = 0; i < s->nodes[k]->outputs; i++) {
            const value *const v = s->nodes[k]->out[i];
            if (!v || v == s->out[0] || v == s->out[1])
                continue;
            if (v->is_output)
                return 1;
            for (const use *u = v->uses; u; u = u->next)
                if (u->user->mark != g->searches || u->at < 0)
                    return 1;
        }
    return 0;
}

/* Returns 1 if nodes of the step read all its inputs. They do not if the search went through an input that is
 * computed from another one: h0 may be a product with x. */
static int reads_inputs(const graph *g, const step *s)
{
    for (int k = 0; k < VALUES; k++) {
        int is_read = !s->in[k];
        for (const use *u = is_read ? NULL : s->in[k]->uses; u; u = u->next)
            is_read |= u->user->mark == g->searches;
        if (!is_read)
            return 0;
    }
    return 1;
}

/* A file may add bias_hh to the product with h0 in place of a bias of the sum: gives each its own name. */
static void divide_biases(matcher *m, step *s, int name, int other)
{
    for (int k = 0; k < m->p->gate_count; k++) {
        const int gate = m->p->gates[k];
        part *const all = s->constants[name][gate];
        if (!all || m->p->has[gate] >> other & 1)
            continue;
        s->constants[name][gate] = NULL;
        for (part *each = all, *next; each; each = next) {
            int of_h = 0;
            for (int i = 0; i < m->p->gate_count; i++)
                of_h |= each->owner && m->b.operands[m->p->gates[i]] == each->owner;
            part **const list = &s->constants[of_h ? other : name][gate];
            next = each->next, each->next = *list, *list = each;
        }
    }
}

int match_accept(matcher *m)
{
    step s = {.pattern = m->p, .units = m->units, .state_size = m->state_size};
    const atom *const norm = m->b.eps;
    s.eps = norm ? norm->eps : 0;
    s.out[0] = m->b.results[EQUATION_H], s.out[1] = m->p->states > 1 ? m->b.results[EQUATION_C] : NULL;
    for (int k = 0; k < VALUES; k++) {
        s.in[k] = m->b.values[k];
        if (s.in[k] && s.in[k]->is_constant)
            return 0;
    }
    if (!s.in[VALUE_X] || !s.in[VALUE_H0] || (m->p->states > 1 && (!s.out[1] || !s.in[VALUE_C0])))
        return 0;
    for (int k = 0; k < FUNCTIONS_; k++)
        s.functions[k] = m->b.functions[k] ? ((const atom *)m->b.functions[k])->kind : 0;
    for (int k = 0; k < CONSTANTS; k++)
        for (int i = 0; i < EQUATIONS; i++)
            if (m->b.constants[k][i]) { /* copies, because divide_biases changes lists */
                part **to = &s.constants[k][i];
                for (const part *each = m->b.constants[k][i]; each; each = each->next, to = &(*to)->next)
                    *(*to = allocate(&m->g->memory, sizeof **to)) = *each;
            }
    for (int k = 0; k < m->p->gate_count; k++) {
        const part *const x = s.constants[CONSTANT_WEIGHT_IH][m->p->gates[k]],
                          *const h = s.constants[CONSTANT_WEIGHT_HH][m->p->gates[k]];
        if (!x || !h || h->matrix.columns != m->state_size
            || (s.input_size && s.input_size != x->matrix.columns))
            return 0;
        s.input_size = x->matrix.columns;
    }
    divide_biases(m, &s, CONSTANT_BIAS_IH, m->p->bias_of_h);
    divide_biases(m, &s, CONSTANT_INNER_BIAS_IH, CONSTANT_INNER_BIAS_HH);
    s.nodes = allocate(&m->g->memory, MOST_STEP_NODES * sizeof *s.nodes);
    m->g->searches++;
    if (!step_collect(m->g, &s, s.out[0]) || !step_collect(m->g, &s, s.out[1]) || !reads_inputs(m->g, &s))
        return 0;
    if (step_is_read_outside(m->g, &s)) {
        s.out[0]->left = "another node or an output reads a value within the step";
        return 0;
    }
    m->found = allocate(&m->g->memory, sizeof s);
    *m->found = s;
    return 1;
}
