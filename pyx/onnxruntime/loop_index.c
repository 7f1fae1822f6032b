/* Reads which step of x the body of a Loop reads. */
#include <string.h>

#include "onnxruntime/loops.h"

value *loop_before(value *v, const char *operator)
{
    for (node *n; (n = producer(v, operator)) && input(n, 0);)
        v = input(n, 0);
    return v;
}

value *loop_before_identity(value *v) { return loop_before(v, "Identity"); }

value *loop_outer_input(const graph *body, value *v)
{
    for (node *n; (n = producer(v, "Slice"));) {
        int64_t start[8], stop[8], steps[8];
        const int count = constant_integers(n, 1, start, 8);
        if (!input(n, 0) || count < 1 || constant_integers(n, 2, stop, 8) != count
            || (input(n, 4) && constant_integers(n, 4, steps, 8) != count))
            return NULL;
        for (int k = 0; k < count; k++)
            if (start[k] || stop[k] < INT32_MAX || (input(n, 4) && steps[k] != 1))
                return NULL;
        v = input(n, 0);
    }
    for (size_t k = 0; k < body->inputs; k++)
        if (v == body->in[k])
            return NULL;
    return v && !v->producer && !v->is_constant ? v : NULL;
}

/* Returns 1 if v is `old` plus 1. */
static int is_next(const value *v, const value *old)
{
    const node *const add = producer(v, "Add");
    int64_t one;
    for (size_t k = 0; add && k < 2; k++)
        if (input(add, k) == old && constant_integers(add, 1 - k, &one, 1) == 1 && one == 1)
            return 1;
    return 0;
}

int loop_is_step_number(const reader *r, const value *v)
{
    if (v == r->body->in[0])
        return !v->rank;
    for (size_t k = 2; k < r->n->inputs; k++) {
        int64_t start;
        const int begins = r->g->is_alone || (constant_integers(r->n, k, &start, 1) == 1 && !start);
        if (v == r->body->in[k] && !v->rank && begins
            && is_next(loop_before_identity(r->body->out[k - 1]), v))
            return 1;
    }
    return 0;
}

int loop_is_next_number(const reader *r, const value *v)
{
    const node *const add = producer(v, "Add");
    for (size_t k = 0; add && k < 2; k++)
        if (loop_is_step_number(r, input(add, k)) && is_next(v, input(add, k)))
            return 1;
    return 0;
}

/* Adds factor times v to an index. Returns 0 for a value that is no sum of the step's number, sizes and
 * constants. */
static int add_index(const reader *r, value *v, int64_t factor, const value *x, loop *l, int depth)
{
    int64_t number;
    const value *const M = input(r->n, 0);
    v = loop_before(loop_before_identity(v), "Cast");
    node *const n = v ? v->producer : NULL;
    if (!v || depth > 8)
        return 0;
    if (v->is_constant) {
        const node constant = {.inputs = 1, .in = &v};
        if (constant_integers(&constant, 0, &number, 1) != 1 || number != (int32_t)number)
            return 0;
        l->index.constant += factor * number;
        return 1;
    }
    if (loop_is_step_number(r, v))
        l->index.step += factor;
    else if (!n && M && !strcmp(name_of(r->g->ort, v->info), name_of(r->g->ort, M->info)))
        l->index.steps += factor;
    else if (is_operator(n, "Add") || is_operator(n, "Sub"))
        return add_index(r, input(n, 0), factor, x, l, depth + 1)
               && add_index(r, input(n, 1), is_operator(n, "Sub") ? -factor : factor, x, l, depth + 1);
    else if (is_operator(n, "Gather") && !integer_attribute(r->g, n, "axis", 0)
             && constant_integers(n, 1, &number, 1) == 1 && number == l->x_axis
             && producer(input(n, 0), "Shape")
             && loop_outer_input(r->body, input(input(n, 0)->producer, 0)) == x
             && !integer_attribute(r->g, input(n, 0)->producer, "start", 0))
        l->index.size += factor;
    else
        return 0;
    return 1;
}

int loop_read_x(reader *r)
{
    loop *const l = r->l;
    value *const x_t = l->step->in[VALUE_X];
    node *const gather = producer(x_t, "Gather");
    value *const x = gather ? loop_outer_input(r->body, input(gather, 0)) : NULL;
    if (!x || x->rank != 3 || x_t->rank == 1 || x_t->rank > 2)
        return 0;
    l->x_axis = (int)integer_attribute(r->body, gather, "axis", 0);
    l->in[VALUE_X] = x->info;
    if ((l->x_axis != 0 && l->x_axis != 1) || !add_index(r, input(gather, 1), 1, x, l, 0))
        return 0;
    const int is_number = !l->index.steps && !l->index.size && !l->index.constant && l->index.step == 1;
    return is_number || (x_t->rank == 2 && (l->index.step == 1 || l->index.step == -1));
}
