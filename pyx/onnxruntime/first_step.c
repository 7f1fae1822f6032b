/* Finds the first step of a chain whose states are 0. The runtime computes its products with constant states
 * when it loads a file, so that its nodes are no step. They are one if a known step
 * computes the same from x and states of 0. */
#include "onnxruntime/cells.h"

/* Replaces the value `from` by `to`, and h0 and c0 by 0. */
typedef struct {
    graph *g;
    const value *h0, *c0, *from;
    value *to;
} replacement;

static const sum *replaced(const replacement *r, const sum *a);

/* Returns NULL for an atom that may not be in a step, or a product that depends on the step's own values. */
static const sum *replaced_atom(const replacement *r, atom *a)
{
    graph *const g = r->g;
    if (a->kind == ATOM_ONE)
        return number_sum(g, 1); /* either side's bias counts alike */
    if (a->kind == ATOM_VALUE) {
        const value *const v = outer_value(a);
        return v && (v == r->h0 || v == r->c0) ? number_sum(g, 0) : NULL;
    }
    if (a->kind == ATOM_PRODUCT) {
        if (a->value == r->from)
            return single(g, product_atom(g, r->to, a->matrix));
        if (a->value == r->h0)
            return number_sum(g, 0);
        const sum *const of = replaced(r, sum_of(g, a->value, 0));
        return of && !of->count ? of : NULL;
    }
    const sum *const of = replaced(r, a->of);
    if (!of || (!of->count && a->kind != ATOM_NORM))
        return NULL;
    if (!of->count)
        return of;
    return single(g, a->kind == ATOM_NORM ? norm_atom(g, NULL, of, a->eps, a->start, a->width)
                                          : function_atom(g, a->kind, NULL, of));
}

static const sum *replaced(const replacement *r, const sum *a)
{
    const sum *total = number_sum(r->g, 0);
    for (int k = 0; k < a->count && total; k++) {
        const summand constant = {a->s[k].factor, 0, {NULL}};
        const sum *one = summand_sum(r->g, &constant);
        for (int i = 0; i < a->s[k].count && one; i++)
            one = times(r->g, one, replaced_atom(r, a->s[k].atom[i]));
        total = plus(r->g, total, one, 1);
    }
    return total;
}

/* Returns the value whose product with m is in a sum, or NULL. */
static value *operand_of(const sum *a, const matrix *m)
{
    value *found = NULL;
    for (int k = 0; k < a->count; k++)
        for (int i = 0; i < a->s[k].count && !found; i++) {
            const atom *const each = a->s[k].atom[i];
            if (each->kind != ATOM_PRODUCT)
                found = each->of ? operand_of(each->of, m) : NULL;
            else if (each->matrix.row == m->row && each->matrix.column == m->column
                     && constants_equal(each->matrix.of, m->of))
                found = each->value;
        }
    return found;
}

/* Returns 1 if `new` is equal to `old` after x and states of 0 take the place of the known step's. */
static int same_result(graph *g, const step *s, value *x, value *old, value *new)
{
    const replacement to_zeros = {g, s->in[VALUE_H0], s->in[VALUE_C0], s->in[VALUE_X], x},
                      same = {g, NULL, NULL, x, x};
    const sum *const a = replaced(&to_zeros, sum_of(g, old, 0)), *const b =
                                                                     replaced(&same, sum_of(g, new, 0));
    return a && b && a->count && sums_equal(a, b);
}

/* Sets *rows to the number of rows of constants that a step adds or multiplies, or to 1. Returns 0 if they
 * differ, or if another node reads a constant with rows. */
static int constant_rows(const step *s, size_t *rows)
{
    static const char *const elementwise[] = {"Add", "Sub", "Mul", "Div", "Sum"};
    *rows = 1;
    for (size_t k = 0; k < s->count; k++)
        for (size_t i = 0; i < s->nodes[k]->inputs; i++) {
            const node *const n = s->nodes[k];
            const value *const v = n->in[i];
            const int is_product = is_operator(n, "Gemm") || is_operator(n, "MatMul");
            if (!v || !v->is_constant || v->constant.rank < 2 || (is_product && i == 1))
                continue;
            int is_known = is_product && i == 2;
            for (size_t e = 0; e < sizeof elementwise / sizeof *elementwise; e++)
                is_known |= is_operator(n, elementwise[e]);
            const size_t own = (size_t)v->constant.shape[0];
            if (!is_known || v->constant.rank > 2 || (own != 1 && *rows != 1 && own != *rows))
                return 0;
            *rows = own == 1 ? *rows : own;
        }
    return 1;
}

/* The same, with sums of the present form of g. */
static step *before(graph *g, const step *s, size_t *rows)
{
    value *const h = s->in[VALUE_H0], *const c = s->in[VALUE_C0];
    value *x = NULL;
    for (int k = 0; k < s->pattern->gate_count && !x; k++) /* a reset gate may be multiplied by 0 */
        x = operand_of(sum_of(g, h, 0), &s->constants[CONSTANT_WEIGHT_IH][s->pattern->gates[k]]->matrix);
    if (!x || x->rank != 2 || x->is_constant || !same_result(g, s, x, s->out[0], h)
        || (c && !same_result(g, s, x, s->out[1], c)))
        return NULL;
    step *const first = allocate(&g->memory, sizeof *first);
    *first = *s;
    first->in[VALUE_X] = x, first->in[VALUE_H0] = first->in[VALUE_C0] = NULL;
    first->out[0] = h, first->out[1] = c;
    first->nodes = allocate(&g->memory, MOST_STEP_NODES * sizeof *first->nodes), first->count = 0;
    g->searches++;
    return step_collect(g, first, h) && step_collect(g, first, c) && !step_is_read_outside(g, first)
                   && constant_rows(first, rows)
               ? first
               : NULL;
}

step *step_from_zeros(graph *g, const step *s, size_t *rows)
{
    const value *const h = s->in[VALUE_H0], *const c = s->in[VALUE_C0];
    step *found = NULL;
    if (!h || !h->producer || h->producer->is_taken || h->rank != 2
        || (c && (!c->producer || c->producer->is_taken)))
        return NULL;
    for (g->with_rows = 1, g->joined = 0; g->joined < 2 && !found; g->joined++) {
        graph_forget(g);
        found = before(g, s, rows);
    }
    g->with_rows = 0;
    graph_forget(g);
    for (size_t k = 0; found && k < found->count; k++)
        found->nodes[k]->is_taken = 1, found->nodes[k]->step = found;
    return found;
}
