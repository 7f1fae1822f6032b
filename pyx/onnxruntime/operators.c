/* Writes the results of ONNX's operators as sums, as lnrnn/recognise/operators.py does for the importer. */
#include <math.h>
#include <string.h>

#include "onnxruntime/cells.h"

enum { MOST_SIZE = 1 << 22 }; /* of an axis that is cut into parts */

/* Returns input k of an elementwise operator as a summand or factor, or NULL. */
static const sum *side(graph *g, const node *n, size_t k, int depth)
{
    value *const v = input(n, k);
    size_t rank = 0;
    if (!v || !v->is_constant)
        return v ? operand(g, v, depth) : NULL;
    for (size_t i = 0; i < n->inputs; i++)
        if (n->in[i] && !n->in[i]->is_constant && n->in[i]->rank > rank)
            rank = n->in[i]->rank;
    return constant_sum(g, v, rank);
}

static const sum *add(graph *g, node *n, value *v, int depth)
{
    const sum *r = number_sum(g, 0);
    (void)v;
    for (size_t k = 0; k < n->inputs && r; k++)
        r = plus(g, r, side(g, n, k, depth), 1);
    return r;
}

static const sum *subtract(graph *g, node *n, value *v, int depth)
{
    (void)v;
    return plus(g, side(g, n, 0, depth), side(g, n, 1, depth), -1);
}

static const sum *multiply(graph *g, node *n, value *v, int depth)
{
    (void)v;
    return times(g, side(g, n, 0, depth), side(g, n, 1, depth));
}

static const sum *negate(graph *g, node *n, value *v, int depth)
{
    (void)v;
    return plus(g, number_sum(g, 0), side(g, n, 0, depth), -1);
}

static const sum *identity(graph *g, node *n, value *v, int depth)
{
    (void)v;
    return side(g, n, 0, depth);
}

/* --- functions ------------------------------------------------------------------------------------------ */

static const sum *activation(graph *g, node *n, value *v, int depth)
{
    static const char *const names[] = {"Sigmoid", "Tanh", "Relu", "HardSigmoid"}; /* from ATOM_SIGMOID */
    value *const a = input(n, 0);
    int kind = 0;
    (void)v;
    while (!is_operator(n, names[kind]))
        kind++;
    kind += ATOM_SIGMOID;
    const sum *of = a && !a->is_constant ? sum_of(g, a, depth) : NULL;
    if (of && kind == ATOM_HARD_SIGMOID) { /* lnrnn's is min(max(a / 6 + 1/2, 0), 1) */
        const double alpha = 6 * (double)float_attribute(g, n, "alpha", 0.2f);
        if (float_attribute(g, n, "beta", 0.5f) != 0.5f)
            return NULL;
        of = fabs(alpha - 1) < 1e-6 ? of : times(g, of, number_sum(g, alpha));
    }
    return of ? single(g, function_atom(g, kind, a, of)) : NULL;
}

/* --- products with constant matrices -------------------------------------------------------------------- */

/* Returns a times the constant b. is_transposed: the rows of b are not the results. */
static const sum *product(graph *g, value *a, value *b, int is_transposed)
{
    if (!a || a->is_constant || !b || !b->is_constant || b->constant.rank != 2
        || b->constant.type != ORT_FLOAT)
        return NULL;
    const size_t rows = (size_t)b->constant.shape[is_transposed],
                 columns = (size_t)b->constant.shape[!is_transposed];
    const node *const concat = g->joined ? producer(a, "Concat") : NULL;
    if (!concat || !is_last_axis(integer_attribute(g, concat, "axis", 1), a))
        return single(g, product_atom(g, a, (matrix){b, is_transposed, 0, rows, 0, columns}));
    const sum *r = number_sum(g, 0);
    size_t start = 0;
    for (size_t k = 0; k < concat->inputs; k++) {
        value *const part = input(concat, k);
        const size_t known = part ? part->width : 0,
                     size = known || k + 1 < concat->inputs || start >= columns ? known : columns - start;
        if (!size || part->is_constant || size > columns - start)
            return NULL;
        r = plus(g, r, single(g, product_atom(g, part, (matrix){b, is_transposed, 0, rows, start, size})), 1);
        start += size;
    }
    return start == columns ? r : NULL;
}

static const sum *matmul(graph *g, node *n, value *v, int depth)
{
    (void)v, (void)depth;
    return product(g, input(n, 0), input(n, 1), 1);
}

/* Returns a bias as that of the product with an operand, so that bias_ih and bias_hh stay apart. */
static const sum *owned(graph *g, value *by, const sum *bias)
{
    return times(g, single(g, one_atom(g, by)), bias);
}

static const sum *gemm(graph *g, node *n, value *v, int depth)
{
    value *const c = input(n, 2);
    (void)v;
    if (integer_attribute(g, n, "transA", 0))
        return NULL;
    const sum *r = product(g, input(n, 0), input(n, 1), !integer_attribute(g, n, "transB", 0));
    const double alpha = (double)float_attribute(g, n, "alpha", 1),
                 beta = (double)float_attribute(g, n, "beta", 1);
    if (r && alpha != 1)
        r = times(g, r, number_sum(g, alpha));
    if (!r || !c || beta == 0)
        return r;
    const sum *const bias = c->is_constant ? constant_sum(g, c, 2) : operand(g, c, depth);
    return plus(g, r, owned(g, input(n, 0), bias), beta);
}

/* --- parts ---------------------------------------------------------------------------------------------- */

static const sum *split(graph *g, node *n, value *v, int depth)
{
    enum { MOST = 64 };
    int64_t sizes[MOST], start = 0, total = 0;
    value *const data = input(n, 0);
    if (!data || data->is_constant || n->outputs > MOST
        || !is_last_axis(integer_attribute(g, n, "axis", 0), data))
        return NULL;
    const sum *const a = operand(g, data, depth);
    const size_t width = sum_width(a);
    int count =
        input(n, 1) ? constant_integers(n, 1, sizes, MOST) : integers_attribute(g, n, "split", sizes, MOST);
    if (count < 0 && !input(n, 1) && width && width % n->outputs == 0)
        for (count = 0; count < (int)n->outputs; count++)
            sizes[count] = (int64_t)(width / n->outputs);
    int at = 0;
    while (n->out[at] != v)
        at++;
    for (int k = 0; k < count; k++) {
        if (sizes[k] < 0 || sizes[k] > MOST_SIZE)
            return NULL;
        start += k < at ? sizes[k] : 0;
        total += sizes[k];
    }
    if (count != (int)n->outputs || !width || total != (int64_t)width || !sizes[at])
        return NULL;
    return cut(g, a, (size_t)start, (size_t)(start + sizes[at]));
}

/* Returns 1 and sets *found to the only integer of a value: a constant, or one computed from the size of a
 * last axis. */
static int integer_of(graph *g, const node *n, size_t at, int64_t *found, int depth)
{
    value *const v = input(n, at), *data;
    const node *const by = v ? v->producer : NULL;
    int64_t a, b;
    if (constant_integers(n, at, found, 1) == 1)
        return 1;
    if (!by || depth > MOST_DEPTH)
        return 0;
    if (is_operator(by, "Squeeze") || is_operator(by, "Unsqueeze") || is_operator(by, "Cast")
        || (is_operator(by, "Concat") && by->inputs == 1))
        return integer_of(g, by, 0, found, depth + 1);
    if (is_operator(by, "Gather")) {
        const node *const shape = producer(input(by, 0), "Shape");
        if (!shape || !(data = input(shape, 0)) || constant_integers(by, 1, &a, 1) != 1
            || integer_attribute(g, shape, "start", 0)
            || integer_attribute(g, shape, "end", INT64_MAX) != INT64_MAX || !is_last_axis(a, data))
            return 0;
        *found = (int64_t)sum_width(sum_of(g, data, depth));
        return *found > 0;
    }
    if (!integer_of(g, by, 0, &a, depth + 1) || !integer_of(g, by, 1, &b, depth + 1) || a < 0 || b < 0
        || a > MOST_SIZE || b > MOST_SIZE)
        return 0;
    if (is_operator(by, "Mul"))
        *found = a * b;
    else if (is_operator(by, "Add"))
        *found = a + b;
    else if (is_operator(by, "Sub"))
        *found = a - b;
    else if (is_operator(by, "Div") && b)
        *found = a / b;
    else
        return 0;
    return 1;
}

/* Reads the start, stop, axis and step of a Slice of one axis into b. Returns 0 for other nodes. */
static int bounds(graph *g, node *n, int64_t b[4], int depth)
{
    b[2] = 0, b[3] = 1;
    if (n->version < 10) {
        const int axes = integers_attribute(g, n, "axes", &b[2], 1);
        return integers_attribute(g, n, "starts", &b[0], 1) == 1
               && integers_attribute(g, n, "ends", &b[1], 1) == 1 && (axes == 1 || axes == -1);
    }
    return integer_of(g, n, 1, &b[0], depth) && integer_of(g, n, 2, &b[1], depth)
           && (!input(n, 3) || constant_integers(n, 3, &b[2], 1) == 1)
           && (!input(n, 4) || constant_integers(n, 4, &b[3], 1) == 1);
}

static const sum *slice(graph *g, node *n, value *v, int depth)
{
    value *const data = input(n, 0);
    int64_t b[4];
    (void)v;
    if (!data || data->is_constant || !bounds(g, n, b, depth) || b[3] != 1 || !is_last_axis(b[2], data))
        return NULL;
    const sum *const a = operand(g, data, depth);
    const int64_t width = (int64_t)sum_width(a);
    for (int k = 0; k < 2; k++) {
        b[k] = b[k] < -width ? 0 : b[k] < 0 ? b[k] + width : b[k];
        b[k] = b[k] > width ? width : b[k];
    }
    return width && b[0] < b[1] ? cut(g, a, (size_t)b[0], (size_t)b[1]) : NULL;
}

/* --- layer norm ----------------------------------------------------------------------------------------- */

/* Returns the norm of a over the last axis, which has `width` numbers, or as many as the sum has. */
static const sum *norm(graph *g, value *a, double eps, size_t width, int depth)
{
    const sum *const of = a->is_constant ? NULL : sum_of(g, a, depth);
    const size_t own = of ? sum_width(of) : 0;
    return of && of->count ? single(g, norm_atom(g, a, of, eps, 0, own ? own : width)) : NULL;
}

static const sum *layer_norm(graph *g, node *n, value *v, int depth)
{
    value *const a = input(n, 0), *const gain = input(n, 1), *const bias = input(n, 2), *by = NULL;
    if (!a || v != n->out[0] || !is_last_axis(integer_attribute(g, n, "axis", -1), a) || !gain
        || !gain->is_constant || gain->constant.rank != 1
        || (bias && (!bias->is_constant || bias->constant.rank > 1)))
        return NULL;
    const double eps = (double)float_attribute(g, n, "epsilon", 1e-5f);
    const sum *r = norm(g, a, eps, (size_t)gain->constant.shape[0], depth);
    if (!r)
        return NULL;
    const sum *const of = r->s[0].atom[0]->of;
    int operands = 0;
    for (int k = 0; k < of->count; k++)
        for (int i = 0; i < of->s[k].count; i++)
            if (of->s[k].atom[i]->kind == ATOM_PRODUCT && by != of->s[k].atom[i]->value)
                by = of->s[k].atom[i]->value, operands++;
    r = times(g, r, constant_sum(g, gain, 1));
    if (!bias)
        return r;
    return plus(g, r, operands == 1 ? owned(g, by, constant_sum(g, bias, 1)) : constant_sum(g, bias, 1), 1);
}

/* Returns the argument of a mean over the last axis that keeps the axis, or NULL. */
static value *mean(graph *g, value *v)
{
    node *const n = producer(v, "ReduceMean");
    value *const whole = n ? input(n, 0) : NULL;
    int64_t axis = 0;
    if (!whole || !integer_attribute(g, n, "keepdims", 1))
        return NULL;
    const int count =
        input(n, 1) ? constant_integers(n, 1, &axis, 1) : integers_attribute(g, n, "axes", &axis, 1);
    return count == 1 && is_last_axis(axis, whole) ? whole : NULL;
}

/* Returns a if the value is a - mean(a), else NULL. */
static value *centred(graph *g, value *v)
{
    node *const n = producer(v, "Sub");
    return n && input(n, 0) && input(n, 0) == mean(g, input(n, 1)) ? input(n, 0) : NULL;
}

/* Returns the only number of a constant, or `other`. */
static double number(const value *v, double other)
{
    if (!v || !v->is_constant || v->constant.type != ORT_FLOAT || v->constant.rank > 1
        || (v->constant.rank && v->constant.shape[0] != 1))
        return other;
    return (double)*(const float *)v->constant.data;
}

/* Returns eps if the value is sqrt(mean(d d) + eps), where d is `of`, a value without its mean, else -1. */
static double deviation(graph *g, value *v, value *of)
{
    node *const root = producer(v, "Sqrt"), *const total = root ? producer(input(root, 0), "Add") : NULL;
    for (size_t at = 0; total && at < 2; at++) {
        value *const square = mean(g, input(total, at));
        const double eps = number(input(total, 1 - at), -1);
        node *const power = producer(square, "Pow"), *const twice = producer(square, "Mul");
        value *const d = power ? input(power, 0) : twice ? input(twice, 0) : NULL;
        if (eps < 0 || !d || (power ? number(input(power, 1), 0) != 2 : input(twice, 1) != d))
            continue;
        if (d == of || (centred(g, of) && centred(g, d) == centred(g, of)))
            return eps;
    }
    return -1;
}

/* A quotient: the norm (a - mean) / sqrt(var + eps), or a division by a constant. */
static const sum *divide(graph *g, node *n, value *v, int depth)
{
    value *const a = input(n, 0), *const b = input(n, 1);
    (void)v;
    if (!a || !b)
        return NULL;
    if (b->is_constant) {
        const double by = number(b, 0);
        return by != 0 ? times(g, side(g, n, 0, depth), number_sum(g, 1 / by)) : NULL;
    }
    value *const of = centred(g, a);
    const double eps = of ? deviation(g, b, a) : -1;
    return eps >= 0 ? norm(g, of, eps, of->width, depth) : NULL;
}

const sum *operator_sum(graph *g, node *n, value *v, int depth)
{
    static const struct {
        const char *name;
        const sum *(*write)(graph *, node *, value *, int);
    } operators[] = {{"Add", add},
                     {"Sum", add},
                     {"Sub", subtract},
                     {"Mul", multiply},
                     {"Neg", negate},
                     {"Identity", identity},
                     {"Div", divide},
                     {"Gemm", gemm},
                     {"MatMul", matmul},
                     {"Split", split},
                     {"Slice", slice},
                     {"LayerNormalization", layer_norm},
                     {"Sigmoid", activation},
                     {"Tanh", activation},
                     {"Relu", activation},
                     {"HardSigmoid", activation}};
    for (size_t k = 0; k < sizeof operators / sizeof *operators; k++)
        if (is_operator(n, operators[k].name))
            return operators[k].write(g, n, v, depth);
    return NULL;
}
