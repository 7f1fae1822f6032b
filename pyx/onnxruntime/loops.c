/* Reads a Loop or Scan whose body is one step of a cell. All outputs of the body are those of the step, so that its other nodes
 * do not matter. */
#include <string.h>

#include "onnxruntime/cells.h"

/* Returns the value behind Identity nodes. */
static value *before_identity(value *v)
{
    for (node *n; (n = producer(v, "Identity")) && input(n, 0);)
        v = input(n, 0);
    return v;
}

/* Returns 1 if all numbers of an attribute with `count` integers are `number`, or if it is left out and may be. */
static int all_are(const graph *g, const node *n, const char *name, size_t count, int64_t number)
{
    int64_t numbers[8];
    const int given = integers_attribute(g, n, name, numbers, 8);
    if (given < 0)
        return number == 0;
    for (int k = 0; k < given; k++)
        if (numbers[k] != number)
            return 0;
    return (size_t)given == count;
}

/* Returns the only step of a body, or NULL. */
static const step *only_step(graph *body)
{
    const step *found = NULL;
    for (int with_rnn = 0; with_rnn < 2 && !found; with_rnn++)
        for (size_t k = 0; k < body->count; k++) {
            node *const n = &body->nodes[k];
            const step *const s = n->outputs == 1 && n->out[0] ? step_match(body, n->out[0], with_rnn) : NULL;
            if (s && found)
                return NULL;
            found = s ? s : found;
        }
    return found;
}

/* Sets a state, which is an input of the node and of the body, and an output of the body. The first output of a Loop's
 * body is the condition. Returns 0 for a value that is no state of the step. */
static int set_state(const node *n, const graph *body, loop *l, size_t in, size_t out)
{
    const step *const s = l->step;
    const value *const before = input(n, in), *const after = n->out[out - (is_operator(n, "Loop") ? 1 : 0)];
    for (int k = 0; k < s->pattern->states; k++) {
        const value *const inner = body->in[in];
        if (inner != s->in[VALUE_H0 + k])
            continue;
        if (!before || (before->rank ? before->rank : inner->rank) != 2 || l->in[VALUE_H0 + k]
            || before_identity(body->out[out]) != s->out[k])
            return 0;
        l->in[VALUE_H0 + k] = before->info;
        l->out[k] = after ? after->info : NULL;
        return 1;
    }
    return 0;
}

/* Body: states and x_t -> states and y_t. */
static int match_scan(graph *g, node *n, graph *body, loop *l)
{
    const size_t states = (size_t)l->step->pattern->states;
    const int64_t back = all_are(g, n, "scan_input_directions", 1, 1);
    if (n->version < 9 || integer_attribute(g, n, "num_scan_inputs", 0) != 1 || n->inputs != states + 1
        || body->inputs != states + 1 || body->outputs != n->outputs || n->outputs != states + 1
        || !all_are(g, n, "scan_input_axes", 1, 0) || !all_are(g, n, "scan_output_axes", 1, 0)
        || !all_are(g, n, "scan_input_directions", 1, back)
        || !all_are(g, n, "scan_output_directions", 1, back))
        return 0;
    for (size_t k = 0; k < states; k++)
        if (!set_state(n, body, l, k, k))
            return 0;
    const value *const x = input(n, states), *const y = n->out[states];
    if (!x || x->rank != 3 || x->is_constant || body->in[states] != l->step->in[VALUE_X]
        || before_identity(body->out[states]) != l->step->out[0])
        return 0;
    l->in[VALUE_X] = x->info, l->y = y ? y->info : NULL, l->is_reverse = (int)back;
    l->nodes[0] = n, l->count = 1;
    return 1;
}

/* Returns 1 if a value is a constant that is true. */
static int is_true(const value *v)
{
    return v->is_constant && v->constant.type == ORT_BOOL && v->constant.rank <= 1
           && *(const char *)v->constant.data;
}

/* Sets y: output `at` of the body is a sequence to which each step adds h, and which a ConcatFromSequence joins. */
static int match_sequence(graph *g, node *n, const graph *body, loop *l, size_t at)
{
    const node *const insert = producer(before_identity(body->out[at]), "SequenceInsert");
    const value *const all = n->out[at - 1], *const first = input(n, at + 1);
    if (!insert || !all || !first || insert->inputs > 2 || input(insert, 0) != body->in[at + 1]
        || input(insert, 1) != l->step->out[0])
        return 0;
    if (g->is_alone)
        return 1;
    node *const empty = producer(first, "SequenceEmpty");
    if (!empty || first->uses->next || first->is_output || all->is_output || !all->uses || all->uses->next)
        return 0;
    node *const join = all->uses->user;
    if (!is_operator(join, "ConcatFromSequence") || join->inputs != 1 || !join->out[0]
        || integer_attribute(g, join, "axis", -1) != 0 || integer_attribute(g, join, "new_axis", 0) != 1)
        return 0;
    l->nodes[l->count++] = empty, l->nodes[l->count++] = join;
    l->y = join->out[0]->info;
    return 1;
}

/* Body: the step's number, the condition, states [and a sequence] -> the condition, states [and a sequence, or y_t]. */
static int match_loop(graph *g, node *n, graph *body, loop *l)
{
    const size_t states = (size_t)l->step->pattern->states, extra = n->inputs - 2 - states;
    const node *const gather = l->step->in[VALUE_X]->producer;
    if (n->inputs < 2 + states || extra > 1 || body->inputs != n->inputs || body->outputs != n->outputs + 1
        || body->outputs != 2 + states || !input(n, 0)
        || (!g->is_alone && input(n, 1) && !is_true(input(n, 1))))
        return 0;
    if (before_identity(body->out[0]) != body->in[1] && !is_true(before_identity(body->out[0])))
        return 0;
    for (size_t k = 0; k < states; k++)
        if (!set_state(n, body, l, 2 + k, 1 + k))
            return 0;
    if (!is_operator(gather, "Gather") || integer_attribute(g, gather, "axis", 0) || body->in[0]->rank)
        return 0;
    const value *const x = input(gather, 0);
    if (!x || x->producer || x->is_constant || x->rank != 3 || input(gather, 1) != body->in[0])
        return 0;
    for (size_t k = 0; k < body->inputs; k++)
        if (x == body->in[k])
            return 0;
    l->in[VALUE_X] = x->info;
    const tensor *const M = &input(n, 0)->constant;
    if (!M->data && !M->shape)
        l->T = input(n, 0)->info;
    else if (constant_integers(n, 0, &l->steps, 1) != 1 || l->steps < 0)
        return 0;
    l->nodes[0] = n, l->count = 1;
    if (extra)
        return match_sequence(g, n, body, l, 1 + states);
    const value *const y = n->out[states];
    l->y = y ? y->info : NULL;
    return before_identity(body->out[1 + states]) == l->step->out[0];
}

int loop_match(graph *g, node *n, graph *body, loop *l)
{
    const OrtGraph *info = NULL;
    const char *name = NULL;
    size_t count = 0;
    *l = (loop){.steps = -1};
    if (failed(g->ort, g->ort->node_subgraph_count(n->info, &count)) || count != 1
        || failed(g->ort, g->ort->node_subgraphs(n->info, &info, 1, &name)) || !info
        || failed(g->ort, graph_read(g->ort, info, body)) || !(l->step = only_step(body)))
        return 0;
    return is_operator(n, "Scan") ? match_scan(g, n, body, l) : match_loop(g, n, body, l);
}
