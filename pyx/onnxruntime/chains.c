/* Finds chains: steps of a cell with equal weights, where a step reads the states of the one before.
 * Exporters unroll loops so. A chain is claimed as one node. */
#include <string.h>

#include "onnxruntime/cells.h"

/* --- equal steps ---------------------------------------------------------------------------------------- */

static int parts_equal(const part *a, const part *b)
{
    for (; a && b; a = a->next, b = b->next) {
        const matrix *const m = &a->matrix, *const n = &b->matrix;
        if (a->vector.n != b->vector.n || memcmp(a->vector.a, b->vector.a, a->vector.n * sizeof(double)))
            return 0;
        if (!m->of != !n->of || m->is_transposed != n->is_transposed || m->row != n->row || m->rows != n->rows
            || m->column != n->column || m->columns != n->columns
            || (m->of && !constants_equal(m->of, n->of)))
            return 0;
    }
    return a == b;
}

static int steps_equal(const step *a, const step *b)
{
    int equal = a->pattern == b->pattern && a->units == b->units && a->state_size == b->state_size
                && a->input_size == b->input_size && a->eps == b->eps
                && !memcmp(a->functions, b->functions, sizeof a->functions);
    for (int k = 0; k < CONSTANTS && equal; k++)
        for (int i = 0; i < EQUATIONS && equal; i++)
            equal = parts_equal(a->constants[k][i], b->constants[k][i]);
    return equal;
}

/* Returns 1 if only nodes of these steps read a value. */
static int is_inside(const value *v, const step *a, const step *b)
{
    for (const use *u = v->uses; u; u = u->next)
        if (u->at < 0 || (u->user->step != a && u->user->step != b))
            return 0;
    return !v->is_output;
}

/* Returns 1 if b computes the step after a. Later nodes may read each h, but only the last c. */
static int follows(const step *a, const step *b)
{
    return b->in[VALUE_H0] == a->out[0] && b->in[VALUE_X] != a->out[0]
           && (a->pattern->states < 2
               || (b->in[VALUE_C0] == a->out[1] && b->in[VALUE_X] != a->out[1] && is_inside(a->out[1], a, b)))
           && steps_equal(a, b);
}

int step_exchange(step *s)
{
    static const int sides[][2] = {{CONSTANT_WEIGHT_IH, CONSTANT_WEIGHT_HH},
                                   {CONSTANT_BIAS_IH, CONSTANT_BIAS_HH},
                                   {CONSTANT_GAIN_IH, CONSTANT_GAIN_HH},
                                   {CONSTANT_INNER_BIAS_IH, CONSTANT_INNER_BIAS_HH}};
    value *const x = s->in[VALUE_X];
    if ((s->pattern->cell != LNRNN_RNN && s->pattern->cell != LNRNN_LSTM) || s->input_size != s->state_size)
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

static const part *part_of(const step *s, int name)
{
    const part *found = NULL;
    for (int i = 0; i < EQUATIONS && !found; i++)
        found = s->constants[name][i];
    return found;
}

/* Gives b the pattern of a if they differ only in c, and no step follows b: its normed c is that of either
 * pattern. */
static void adopt_pattern(const step *a, step *b)
{
    static const int names[] = {CONSTANT_GAIN_C, CONSTANT_BIAS_C};
    const pattern *const p = a->pattern, *const q = b->pattern;
    if (p->cell != q->cell || p->placement != q->placement || p->span != q->span
        || p->cell_norm != LNRNN_CELL_CARRY || q->cell_norm != LNRNN_CELL_OUT || !is_inside(b->out[1], b, b))
        return;
    for (int k = 0; k < 2; k++)
        if (!parts_equal(part_of(a, names[k]), part_of(b, names[k])))
            return;
    for (int k = 0; k < 2; k++)
        memcpy(b->constants[names[k]], a->constants[names[k]], sizeof a->constants[names[k]]);
    b->pattern = p, b->out[1] = NULL;
}

/* Returns 1 if b follows a, perhaps after exchanges. a_is_first: whether a is the first step of a chain. */
static int joins(step *a, int a_is_first, step *b)
{
    if (b->in[VALUE_X] != a->out[0] && b->in[VALUE_H0] != a->out[0])
        return 0;
    adopt_pattern(a, b);
    for (int of_b = 0; of_b < 2; of_b++) {
        if (follows(a, b))
            return 1;
        if (a_is_first && step_exchange(a)) {
            if (follows(a, b))
                return 1;
            step_exchange(a);
        }
        if (!step_exchange(b))
            return 0;
    }
    return 0;
}

/* --- the input and the output of all steps -------------------------------------------------------------- */

/* Sets x and `first` if each input is a step of x (T, B, D), in the order of steps or in the reverse
 * order. */
static void join_inputs(graph *g, chain *c)
{
    value *x = NULL;
    for (size_t t = 0; t < c->count; t++) {
        const step *const s = c->steps[t];
        const node *const gather = producer(s->in[VALUE_X], "Gather");
        const value *const index = gather ? input(gather, 1) : NULL;
        int64_t at;
        if (!index || gather->is_taken || integer_attribute(g, gather, "axis", 0)
            || constant_integers(gather, 1, &at, 1) != 1 || index->constant.rank || at != (int32_t)at
            || !is_inside(s->in[VALUE_X], s, s) || (x && input(gather, 0) != x))
            return;
        x = input(gather, 0);
        if (!x || x->is_constant || x->rank != 3)
            return;
        if (t == 0)
            c->first = at;
        if (t == 1)
            c->direction = at - c->first;
        if ((t && c->direction != 1 && c->direction != -1) || at != c->first + (int64_t)t * c->direction
            || (at < 0) != (c->first < 0))
            return;
    }
    c->x = x;
}

/* Returns the only Unsqueeze of axis 0 that reads h, and that one Concat reads at `place`, or NULL. */
static node *unsqueezed(graph *g, const value *h, size_t place, const node *concat)
{
    for (const use *u = h->uses; u; u = u->next) {
        node *const n = u->user;
        int64_t axis = -1;
        if (u->at != 0 || !is_operator(n, "Unsqueeze") || n->is_taken || !n->out[0] || n->out[0]->is_output)
            continue;
        const int count =
            input(n, 1) ? constant_integers(n, 1, &axis, 1) : integers_attribute(g, n, "axes", &axis, 1);
        const use *const by = n->out[0]->uses;
        if (count == 1 && axis == 0 && by && !by->next && by->at == (int)place
            && is_operator(by->user, "Concat") && !by->user->is_taken && (!concat || by->user == concat))
            return n;
    }
    return NULL;
}

/* Sets y (T, B, P) if a Concat joins all h and nothing else. */
static void join_outputs(graph *g, chain *c, node **nodes)
{
    node *concat = NULL;
    for (size_t t = 0; t < c->count; t++) {
        if (!(nodes[t] = unsqueezed(g, c->steps[t]->out[0], t, concat)))
            return;
        concat = nodes[t]->out[0]->uses->user;
    }
    if (concat->inputs == c->count && !integer_attribute(g, concat, "axis", -1)) {
        nodes[c->count] = concat;
        c->y = concat->out[0];
    }
}

/* --- chains --------------------------------------------------------------------------------------------- */

/* Returns 1 if no path leads from the chain through other nodes back to it. Each other chain counts as one
 * node. */
static int is_closed(graph *g, int chain)
{
    char *const after = allocate(&g->memory, g->count), *const whole =
                                                            allocate(&g->memory, (size_t)chain + 1);
    for (int changed = 1; changed;) {
        changed = 0;
        for (size_t k = 0; k < g->count; k++) {
            const node *const n = &g->nodes[k];
            const int mine = n->chain == chain;
            if (!mine && n->chain && whole[n->chain] != after[k])
                changed = whole[n->chain] = after[k] = 1;
            for (size_t i = 0; i < n->outputs && (mine || after[k]); i++)
                for (const use *u = n->out[i] ? n->out[i]->uses : NULL; u; u = u->next) {
                    if (u->user->chain == chain && !mine)
                        return 0;
                    if (u->user->chain != chain && !after[u->user->place])
                        changed = after[u->user->place] = 1;
                }
        }
    }
    return 1;
}

static void add_node(chain *c, node *n, int number)
{
    n->chain = number;
    c->nodes[c->node_count++] = n;
}

/* Lists and marks all nodes of a chain. Returns 0, without marks, for one that cannot be one node. */
static int collect(graph *g, chain *c, int number)
{
    node **const joins = allocate(&g->memory, (c->count + 1) * sizeof *joins);
    size_t most = 2 * c->count + 1;
    for (size_t t = 0; t < c->count; t++) {
        const step *const s = c->steps[t];
        if (s->out[0]->rank != 2 || s->in[VALUE_X]->rank != 2)
            return 0;
        most += s->count;
    }
    for (int k = VALUE_H0; k < VALUES; k++)
        if (c->steps[0]->in[k] && c->steps[0]->in[k]->rank != 2)
            return 0;
    join_inputs(g, c);
    join_outputs(g, c, joins);
    c->nodes = allocate(&g->memory, most * sizeof *c->nodes);
    for (size_t t = 0; t < c->count; t++) {
        for (size_t k = 0; k < c->steps[t]->count; k++)
            add_node(c, c->steps[t]->nodes[k], number);
        if (c->x)
            add_node(c, c->steps[t]->in[VALUE_X]->producer, number);
    }
    for (size_t t = 0; t <= c->count && c->y; t++)
        add_node(c, joins[t], number);
    if (is_closed(g, number))
        return 1;
    for (size_t k = 0; k < c->node_count; k++)
        c->nodes[k]->chain = 0;
    return 0;
}

/* Adds a first step with states of 0, if the chain begins after one. */
static void start_from_zeros(graph *g, chain *c)
{
    step *const s = c->steps[0];
    c->rows = 1;
    step *first = step_from_zeros(g, s, &c->rows);
    if (!first && c->count == 1 && step_exchange(s) && !(first = step_from_zeros(g, s, &c->rows)))
        step_exchange(s);
    if (!first || !follows(first, s))
        return;
    memmove(c->steps + 1, c->steps, c->count++ * sizeof *c->steps);
    c->steps[0] = first;
}

size_t chains_find(graph *g, step *const *steps, size_t count, chain *chains)
{
    char *const seen = allocate(&g->memory, count + 1);
    size_t found = 0;
    for (size_t k = 0; k < count; k++)
        for (size_t i = 0; i < steps[k]->count; i++)
            steps[k]->nodes[i]->step = steps[k];
    for (size_t k = 0; k < count; k++) {
        chain c = {.count = 0};
        if (seen[k])
            continue;
        c.steps = allocate(&g->memory, (count - k + 1) * sizeof *c.steps);
        for (size_t next = k; next < count;) {
            step *const last = steps[next];
            seen[next] = 1;
            c.steps[c.count++] = last;
            for (next = k + 1; next < count && (seen[next] || !joins(last, c.count == 1, steps[next]));)
                next++;
        }
        start_from_zeros(g, &c);
        if (c.count > 1 && collect(g, &c, (int)found + 1))
            chains[found++] = c;
    }
    return found;
}
