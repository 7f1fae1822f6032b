/* Reads a Loop or Scan whose body is one step of a cell, perhaps with a mask as in files of Keras. All
 * outputs of the body are known, so that its other nodes do not matter. */
#include "onnxruntime/loops.h"

/* Reads an attribute of one integer in a list. Returns -1 for more of them. */
static int64_t only_integer(const graph *g, const node *n, const char *name)
{
    int64_t numbers[8];
    const int count = integers_attribute(g, n, name, numbers, 8);
    return count < 0 ? 0 : count == 1 ? numbers[0] : -1;
}

/* Returns the only step of a body, or NULL. */
static step *only_step(graph *body)
{
    step *found = NULL;
    for (int with_rnn = 0; with_rnn < 2 && !found; with_rnn++)
        for (size_t k = 0; k < body->count; k++) {
            node *const n = &body->nodes[k];
            step *const s = n->outputs == 1 && n->out[0] ? step_match(body, n->out[0], with_rnn) : NULL;
            if (s && found)
                return NULL;
            found = s ? s : found;
        }
    return found;
}

/* --- masks ---------------------------------------------------------------------------------------------- */

/* Splits mask new + (1 - mask) old, which may be a Where. Returns 0 for another value. */
static int is_choice(const value *v, const value **mask, const value **new, const value **old)
{
    const node *const where = producer(v, "Where"), *const add = producer(v, "Add");
    if (where)
        *mask = input(where, 0), *new = input(where, 1), *old = input(where, 2);
    for (size_t way = 0; add && way < 8; way++) {
        const size_t i = way >> 1 & 1, j = way >> 2;
        const node *const a = producer(input(add, way & 1), "Mul"), *const b = producer(
                                                                        input(add, !(way & 1)), "Mul");
        const node *const is = a ? producer(input(a, i), "Cast") : NULL,
                          *const other = b ? producer(input(b, j), "Cast") : NULL,
                          *const not = other ? producer(input(other, 0), "Not") : NULL;
        if (!is || !not || !input(is, 0) || input(is, 0) != input(not, 0))
            continue;
        *mask = input(is, 0), *new = input(a, !i), *old = input(b, !j);
        return 1;
    }
    return where != NULL;
}

/* Returns 1 if v is `new` where the mask of the loop is true, and sets *old to the other choice. */
static int is_masked(reader *r, const value *v, const value *new, const value **old)
{
    const value *mask = NULL, *chosen = NULL;
    if (!is_choice(v, &mask, &chosen, old) || chosen != new || !mask || (r->mask && mask != r->mask))
        return 0;
    r->mask = mask;
    return 1;
}

/* --- Loop ----------------------------------------------------------------------------------------------- */

/* Returns 1 if a value is a constant that is true. */
static int is_true(const value *v)
{
    return v->is_constant && v->constant.type == ORT_BOOL && v->constant.rank <= 1
           && *(const char *)v->constant.data;
}

/* Sets the number of steps: M, or that of `while (t < n)`. */
static int read_steps(reader *r)
{
    node *const n = r->n;
    value *const go = loop_before_identity(r->body->out[0]), *const M = input(n, 0);
    loop *const l = r->l;
    if (go == r->body->in[1] || is_true(go)) {
        if (!M || (!r->g->is_alone && input(n, 1) && !is_true(input(n, 1))))
            return 0;
        if (!M->constant.data && !M->constant.shape)
            l->in[LOOP_STEPS] = M->info;
        else if (constant_integers(n, 0, &l->steps, 1) != 1 || l->steps < 0)
            return 0;
        return 1;
    }
    node *const less = producer(go, "Less");
    const value *const next = less ? loop_before(input(less, 0), "Cast") : NULL;
    const value *const most = less ? loop_before(input(less, 1), "Cast") : NULL;
    if (M || !loop_is_next_number(r, next) || !input(n, 1))
        return 0;
    for (size_t k = 2; k < n->inputs; k++)
        if (most == r->body->in[k] && loop_before_identity(r->body->out[k - 1]) == most && input(n, k)) {
            l->in[LOOP_STEPS] = input(n, k)->info, l->in[LOOP_GO] = input(n, 1)->info;
            return 1;
        }
    return 0;
}

/* Sets y: output `at` of the body is a sequence to which each step adds h, and which a ConcatFromSequence
 * joins. */
static int read_sequence(reader *r, size_t at)
{
    node *const n = r->n;
    loop *const l = r->l;
    const node *const insert = producer(loop_before_identity(r->body->out[at]), "SequenceInsert");
    const value *const all = n->out[at - 1], *const first = input(n, at + 1);
    int64_t place = 0;
    if (!insert || !all || !first || input(insert, 0) != r->body->in[at + 1]
        || input(insert, 1) != l->step->out[0] || r->y || l->nodes[1]
        || (input(insert, 2) && (constant_integers(insert, 2, &place, 1) != 1 || place)))
        return 0;
    l->y_is_back = input(insert, 2) != NULL;
    r->y = l->step->out[0];
    if (r->g->is_alone)
        return 1;
    node *const empty = producer(first, "SequenceEmpty");
    if (!empty || first->uses->next || first->is_output || all->is_output || !all->uses || all->uses->next)
        return 0;
    node *const join = all->uses->user;
    l->y_axis = is_operator(join, "ConcatFromSequence") ? (int)integer_attribute(r->g, join, "axis", -1) : -1;
    if ((l->y_axis != 0 && l->y_axis != 1) || join->inputs != 1 || !join->out[0]
        || integer_attribute(r->g, join, "new_axis", 0) != 1)
        return 0;
    l->nodes[l->count++] = empty, l->nodes[l->count++] = join;
    l->y = join->out[0]->info;
    return 1;
}

/* Sets state k, which is input `in` of the node and of the body. new: its next value, and after: its last
 * one. */
static int read_state(reader *r, int k, size_t in, const value *new, const value *after)
{
    loop *const l = r->l;
    const value *const first = input(r->n, in), *const inner = r->body->in[in], *old = NULL;
    if (!first || (first->rank ? first->rank : inner->rank) != 2 || l->in[VALUE_H0 + k])
        return 0;
    if (new != l->step->out[k]) {
        if (!is_masked(r, new, l->step->out[k], &old) || old != inner)
            return 0;
        r->masked++;
    }
    r->states++;
    l->in[VALUE_H0 + k] = first->info;
    l->out[k] = after ? after->info : NULL;
    return 1;
}

/* Reads input k of a Loop, which the body changes. */
static int read_carried(reader *r, size_t k)
{
    const loop *const l = r->l;
    const value *const inner = r->body->in[k], *const new = loop_before_identity(r->body->out[k - 1]),
                       *const after = r->n->out[k - 2];
    for (int s = 0; s < l->step->pattern->states; s++)
        if (inner == l->step->in[VALUE_H0 + s])
            return read_state(r, s, k, new, after);
    if (producer(new, "SequenceInsert"))
        return read_sequence(r, k - 1);
    if (after && !r->g->is_alone && (after->uses || after->is_output))
        return 0;
    return new == inner || loop_is_step_number(r, inner) || (r->y && new == r->y);
}

/* Sets y, output `at` of the body. Where a mask is false, it is the y before, or a value of the outer
 * graph. */
static int read_y(reader *r, size_t at)
{
    loop *const l = r->l;
    const value *const y = r->n->out[at - 1];
    r->y = loop_before_identity(r->body->out[at]);
    l->y = y ? y->info : NULL;
    return r->y == l->step->out[0] || is_masked(r, r->y, l->step->out[0], &r->kept);
}

/* Sets the mask, and the values of y where it is false. */
static int read_mask(reader *r)
{
    loop *const l = r->l;
    node *const gather = producer(r->mask, "Gather");
    value *const mask = gather ? loop_outer_input(r->body, input(gather, 0)) : NULL;
    if (!mask || mask->rank != 3 || mask->width != 1 || r->masked != r->states
        || integer_attribute(r->body, gather, "axis", 0) || !loop_is_step_number(r, input(gather, 1)))
        return 0;
    l->in[LOOP_MASK] = mask->info;
    for (size_t k = 2; k < r->n->inputs; k++) {
        const value *const first = input(r->n, k), *const new = loop_before_identity(r->body->out[k - 1]);
        if (r->kept != r->body->in[k] || !first)
            continue;
        l->repeats = new == r->y || r->kept == l->step->in[VALUE_H0];
        l->in[LOOP_KEPT] = first->info;
        return (first->rank ? first->rank : r->body->in[k]->rank) == 2 && (l->repeats || new == r->kept);
    }
    return !r->y;
}

/* Takes constants that the body hands on for constants of the body. Files of Keras have weights so. */
static void keep_weights(const node *n, const graph *body)
{
    for (size_t k = 2; k < n->inputs && k < body->inputs && k - 1 < body->outputs; k++) {
        const value *const outer = input(n, k);
        if (outer && outer->is_constant && outer->constant.rank
            && loop_before_identity(body->out[k - 1]) == body->in[k])
            body->in[k]->is_constant = 1, body->in[k]->constant = outer->constant;
    }
}

/* Returns 0. */
static int leave_loop(reader *r, const char *reason)
{
    r->l->left = reason;
    return 0;
}

/* Body: the step's number, the condition, values -> the condition, values [and y_t]. */
static int match_loop(reader *r)
{
    node *const n = r->n;
    const graph *const body = r->body;
    const size_t ys = body->outputs - (n->inputs - 1);
    if (!loop_read_x(r))
        return leave_loop(r, "the body does not read one step of x, forwards or backwards");
    if (!read_steps(r))
        return leave_loop(r, "the condition of the loop is not a number of steps");
    if (ys && !read_y(r, n->inputs - 1))
        return leave_loop(r, "an output of the body is not h");
    for (size_t k = 2; k < n->inputs; k++)
        if (!read_carried(r, k))
            return leave_loop(r, "a value that the loop carries is no state of the step");
    if (r->states != r->l->step->pattern->states || (r->mask && !read_mask(r)))
        return leave_loop(r, "the states or the mask of the loop are not those of a recurrent layer");
    return 1;
}

/* --- Scan ----------------------------------------------------------------------------------------------- */

/* Body: states and x_t -> states and y_t. */
static int match_scan(reader *r)
{
    static const char unlike[] = "its inputs and outputs are not x, h and the states of one step";
    node *const n = r->n;
    const graph *const body = r->body;
    loop *const l = r->l;
    const size_t states = (size_t)l->step->pattern->states;
    const int64_t x_is_back = only_integer(r->g, n, "scan_input_directions"),
                  y_is_back = only_integer(r->g, n, "scan_output_directions"),
                  x_axis = only_integer(r->g, n, "scan_input_axes"),
                  y_axis = only_integer(r->g, n, "scan_output_axes");
    if (n->version < 9 || integer_attribute(r->g, n, "num_scan_inputs", 0) != 1 || n->inputs != states + 1
        || body->inputs != states + 1 || body->outputs != n->outputs || n->outputs != states + 1
        || (x_axis | y_axis | x_is_back | y_is_back) & ~1)
        return leave_loop(r, unlike);
    for (size_t k = 0; k < states; k++) {
        const int s = body->in[k] == l->step->in[VALUE_H0] ? 0 : 1;
        if (body->in[k] != l->step->in[VALUE_H0 + s] || loop_before_identity(body->out[k]) != l->step->out[s]
            || !read_state(r, s, k, l->step->out[s], n->out[k]))
            return leave_loop(r, unlike);
    }
    const value *const x = input(n, states), *const y = n->out[states];
    if (!x || x->rank != 3 || x->is_constant || body->in[states] != l->step->in[VALUE_X]
        || loop_before_identity(body->out[states]) != l->step->out[0])
        return leave_loop(r, unlike);
    l->in[VALUE_X] = x->info, l->y = y ? y->info : NULL;
    l->x_axis = (int)x_axis, l->y_axis = (int)y_axis, l->y_is_back = (int)y_is_back;
    l->index.step = x_is_back ? -1 : 1, l->index.size = x_is_back, l->index.constant = -x_is_back;
    return 1;
}

int loop_match(graph *g, node *n, graph *body, loop *l)
{
    const OrtGraph *info = NULL;
    const char *name = NULL;
    size_t count = 0;
    *l = (loop){.steps = -1};
    if (failed(g->ort, g->ort->node_subgraph_count(n->info, &count)) || count != 1
        || failed(g->ort, g->ort->node_subgraphs(n->info, &info, 1, &name)) || !info
        || failed(g->ort, graph_read(g->ort, info, body)))
        return 0;
    const int is_scan = is_operator(n, "Scan");
    if (!is_scan
        && (n->inputs < 3 || body->inputs != n->inputs || body->outputs != n->outputs + 1
            || body->outputs < n->inputs - 1 || body->outputs > n->inputs))
        return 0;
    if (!is_scan)
        keep_weights(n, body);
    step *const s = only_step(body);
    for (int way = 0; s && way < 2; way++) {
        reader r = {.g = g, .body = body, .n = n, .l = l};
        *l = (loop){.step = s, .steps = -1, .nodes = {n}, .count = 1};
        if (is_scan ? match_scan(&r) : match_loop(&r))
            return 1;
        if (!step_exchange(s))
            break;
    }
    return 0;
}
