/* Finds chains: steps of one network, where a step reads the states that the one before computes. */
#include <string.h>

#include "onnxruntime/cells.h"

/* --- equal constants ------------------------------------------------------------------------------------ */

static int vectors_equal(vector a, vector b)
{
    return a.n == b.n && (a.a == b.a || !memcmp(a.a, b.a, a.n * sizeof *a.a));
}

static int matrices_equal(const matrix *a, const matrix *b)
{
    if (!a->of || !b->of)
        return a->of == b->of;
    return a->is_transposed == b->is_transposed && a->row == b->row && a->rows == b->rows
           && a->column == b->column && a->columns == b->columns && constants_equal(a->of, b->of);
}

static int parts_equal(const part *a, const part *b)
{
    for (; a && b; a = a->next, b = b->next)
        if (!vectors_equal(a->vector, b->vector) || !matrices_equal(&a->matrix, &b->matrix))
            return 0;
    return !a && !b;
}

/* Returns 1 if one network computes both steps. */
static int steps_equal(const step *a, const step *b)
{
    if (a->pattern != b->pattern || a->units != b->units || a->state_size != b->state_size
        || a->input_size != b->input_size || a->eps != b->eps
        || memcmp(a->functions, b->functions, sizeof a->functions))
        return 0;
    for (int k = 0; k < CONSTANTS; k++)
        for (int i = 0; i < EQUATIONS; i++)
            if (!parts_equal(a->constants[k][i], b->constants[k][i]))
                return 0;
    return 1;
}

/* --- the order of computation --------------------------------------------------------------------------- */

static step *first_of(step *s)
{
    while (s->before)
        s = s->before;
    return s;
}

/* Nodes whose inputs a search has not looked at yet: (count) of memory for all nodes. */
typedef struct {
    node **nodes;
    size_t count;
} node_stack;

static void push(const graph *g, node_stack *stack, const value *v)
{
    node *const n = v ? v->producer : NULL;
    if (!n || n->mark == g->searches)
        return;
    n->mark = g->searches;
    stack->nodes[stack->count++] = n;
}

/* Returns 1 if the computation of v needs a step of the chain, or may need one. A chain computes nothing before it has the x
 * of all its steps, so a node of another chain needs all that this chain reads. */
static int needs(graph *g, node_stack *stack, const value *v, const step *chain)
{
    g->searches++, stack->count = 0;
    push(g, stack, v);
    while (stack->count) {
        const node *const n = stack->nodes[--stack->count];
        const step *const first = n->step ? first_of(n->step) : NULL;
        if (n->has_outer || (first && first == chain))
            return 1;
        for (size_t k = 0; k < n->inputs; k++)
            push(g, stack, n->in[k]);
        for (const step *s = first; s; s = s->after)
            for (int k = 0; k < VALUES; k++)
                push(g, stack, s->in[k]);
    }
    return 0;
}

/* Returns 1 if only these steps read a value. */
static int is_read_by(const value *v, const step *a, const step *b)
{
    if (v->is_output)
        return 0;
    for (const use *u = v->uses; u; u = u->next)
        if ((u->user->step != a && u->user->step != b) || u->at < 0)
            return 0;
    return 1;
}

static int is_row(const value *v) { return !v || v->rank == 2; }

/* Returns 1 if one call of a network can compute step b after step a. */
static int can_follow(graph *g, node_stack *stack, step *a, const step *b)
{
    return !b->before && b->in[VALUE_H0] == a->out[0] && b->in[VALUE_C0] == a->out[1]
           && (!a->out[1] || is_read_by(a->out[1], a, b)) && is_row(a->in[VALUE_X]) && is_row(a->in[VALUE_H0])
           && is_row(a->in[VALUE_C0]) && is_row(b->in[VALUE_X]) && steps_equal(a, b)
           && !needs(g, stack, b->in[VALUE_X], first_of(a));
}

/* Exchanges x and h0 of an RNN or LSTM whose D is P: its equation does not tell them apart. Returns 1, or 0 for another step. */
static int exchange(step *s)
{
    static const int sides[][2] = {{CONSTANT_WEIGHT_IH, CONSTANT_WEIGHT_HH},
                                   {CONSTANT_BIAS_IH, CONSTANT_BIAS_HH},
                                   {CONSTANT_GAIN_IH, CONSTANT_GAIN_HH},
                                   {CONSTANT_INNER_BIAS_IH, CONSTANT_INNER_BIAS_HH}};
    value *const x = s->in[VALUE_X];
    if ((s->pattern->cell != LNRNN_RNN && s->pattern->cell != LNRNN_LSTM) || s->input_size != s->state_size
        || s->before || s->after)
        return 0;
    s->in[VALUE_X] = s->in[VALUE_H0], s->in[VALUE_H0] = x;
    for (size_t k = 0; k < sizeof sides / sizeof *sides; k++)
        for (int i = 0; i < EQUATIONS; i++) {
            part *const of_x = s->constants[sides[k][0]][i];
            s->constants[sides[k][0]][i] = s->constants[sides[k][1]][i];
            s->constants[sides[k][1]][i] = of_x;
        }
    return 1;
}

/* Returns 1 if step b follows step a, perhaps with x and h0 of one or both exchanged. */
static int follows(graph *g, node_stack *stack, step *a, step *b)
{
    for (int exchanged_b = 0; exchanged_b < 2; exchanged_b++) {
        if (can_follow(g, stack, a, b))
            return 1;
        if (b->in[VALUE_H0] == a->out[0] && exchange(a)) {
            if (can_follow(g, stack, a, b))
                return 1;
            exchange(a);
        }
        if (!exchange(b))
            return 0;
    }
    return 0;
}

/* Returns the step that follows, or NULL. */
static step *next_of(graph *g, node_stack *stack, step *s)
{
    for (const use *u = s->out[0]->uses; u; u = u->next)
        if (u->user->step && u->user->step != s && follows(g, stack, s, u->user->step))
            return u->user->step;
    return NULL;
}

void chains_link(graph *g, const step_list *list)
{
    node_stack stack = {.nodes = allocate(&g->memory, (g->count + 1) * sizeof *stack.nodes)};
    /* A chain is whole before the next one begins, because `needs` must know all its steps. */
    for (size_t k = 0; k < list->count; k++)
        for (step *s = list->steps[k]; s && !s->after; s = s->after)
            if ((s->after = next_of(g, &stack, s)))
                s->after->before = s;
}

size_t chain_length(const step *first)
{
    size_t n = 0;
    for (; first; first = first->after)
        n++;
    return n;
}
