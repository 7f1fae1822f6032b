/* Values of a graph as sums of products, so that equal equations of different nodes look the same. A sum has
 * products of atoms with constant factors. Sums are multiplied out, and a part of a value (Split, Slice)
 * becomes parts of its atoms. lnrnn/recognise/terms.py does the same for the importer. */
#include <string.h>

#include "onnxruntime/cells.h"

static const double ONE_ = 1;
static const vector ONE = {&ONE_, 1};

/* --- constant factors ----------------------------------------------------------------------------------- */

static int is_number(vector v, double number) { return v.n == 1 && v.a[0] == number; }

static int is_zero(vector v)
{
    for (size_t k = 0; k < v.n; k++)
        if (v.a[k] != 0)
            return 0;
    return 1;
}

static int vectors_equal(vector a, vector b)
{
    return a.n == b.n && (a.a == b.a || !memcmp(a.a, b.a, a.n * sizeof *a.a));
}

static int fit(vector a, vector b) { return a.n == b.n || a.n == 1 || b.n == 1; }

static vector scaled(graph *g, vector a, double by)
{
    if (by == 1)
        return a;
    double *const r = allocate(&g->memory, a.n * sizeof *r);
    for (size_t k = 0; k < a.n; k++)
        r[k] = a.a[k] * by;
    return (vector){r, a.n};
}

static vector multiplied(graph *g, vector a, vector b)
{
    if (is_number(a, 1))
        return b;
    if (b.n == 1)
        return scaled(g, a, b.a[0]);
    if (a.n == 1)
        return scaled(g, b, a.a[0]);
    double *const r = allocate(&g->memory, a.n * sizeof *r);
    for (size_t k = 0; k < a.n; k++)
        r[k] = a.a[k] * b.a[k];
    return (vector){r, a.n};
}

static vector added(graph *g, vector a, vector b)
{
    const size_t n = a.n > b.n ? a.n : b.n;
    double *const r = allocate(&g->memory, n * sizeof *r);
    for (size_t k = 0; k < n; k++)
        r[k] = a.a[a.n == 1 ? 0 : k] + b.a[b.n == 1 ? 0 : k];
    return (vector){r, n};
}

/* --- atoms ---------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, uint64_t word) { return (hash ^ word) * 1099511628211u; }

static uint64_t hash_of(const sum *a)
{
    uint64_t hash = 17;
    for (int k = 0; a && k < a->count; k++) {
        uint64_t one = a->s[k].factor.n;
        for (int i = 0; i < a->s[k].count; i++)
            one = mix(one, a->s[k].atom[i]->number);
        hash += one * 31; /* the order of summands does not matter */
    }
    return hash;
}

int sums_equal(const sum *a, const sum *b)
{
    if (a == b || !a || !b || a->count != b->count)
        return a == b;
    for (int i = 0; i < a->count; i++) {
        int at = 0;
        const summand *const s = &a->s[i];
        while (at < b->count
               && (b->s[at].count != s->count
                   || memcmp(b->s[at].atom, s->atom, (size_t)s->count * sizeof *s->atom)))
            at++;
        if (at == b->count || !vectors_equal(s->factor, b->s[at].factor))
            return 0;
    }
    return 1;
}

static int same_atom(const atom *a, const atom *b)
{
    return a->kind == b->kind && a->width == b->width && a->start == b->start && a->eps == b->eps
           && (a->of || a->value == b->value) && sums_equal(a->of, b->of)
           && a->matrix.is_transposed == b->matrix.is_transposed && a->matrix.row == b->matrix.row
           && a->matrix.rows == b->matrix.rows && a->matrix.column == b->matrix.column
           && a->matrix.columns == b->matrix.columns
           && (a->matrix.of == b->matrix.of
               || (a->matrix.of && b->matrix.of && constants_equal(a->matrix.of, b->matrix.of)));
}

/* Returns the atom that equals a, which may be new. */
static atom *interned(graph *g, atom a)
{
    uint64_t hash = mix(mix(hash_of(a.of), (uint64_t)a.kind), a.start);
    hash = mix(mix(hash, a.width), a.of ? 0 : (uint64_t)((uintptr_t)a.value >> 4));
    a.hash = mix(mix(hash, a.matrix.row), a.matrix.rows);
    atom **const list = &g->atoms[a.hash % LISTS];
    for (atom *other = *list; other; other = other->next)
        if (other->hash == a.hash && same_atom(other, &a))
            return other;
    atom *const result = allocate(&g->memory, sizeof a);
    a.number = g->atom_count++, a.next = *list;
    *result = a;
    return *list = result;
}

atom *value_atom(graph *g, value *v, size_t start, size_t width)
{
    return interned(g, (atom){.kind = ATOM_VALUE, .value = v, .start = start, .width = width});
}

atom *product_atom(graph *g, value *v, matrix m)
{
    return interned(g, (atom){.kind = ATOM_PRODUCT, .value = v, .width = m.rows, .matrix = m});
}

atom *one_atom(graph *g, value *v) { return interned(g, (atom){.kind = ATOM_ONE, .value = v, .width = 1}); }

/* Returns the largest number of nested functions and norms in a sum. */
static int nested(const sum *a)
{
    int most = 0;
    for (int k = 0; k < a->count; k++)
        for (int i = 0; i < a->s[k].count; i++)
            most = a->s[k].atom[i]->nested > most ? a->s[k].atom[i]->nested : most;
    return most;
}

atom *norm_atom(graph *g, value *v, const sum *of, double eps, size_t start, size_t width)
{
    return interned(g, (atom){.kind = ATOM_NORM,
                              .value = v,
                              .of = of,
                              .eps = eps,
                              .start = start,
                              .width = width,
                              .nested = 1 + nested(of)});
}

atom *function_atom(graph *g, int kind, value *v, const sum *of)
{
    return interned(
        g, (atom){.kind = kind, .value = v, .of = of, .width = sum_width(of), .nested = 1 + nested(of)});
}

value *outer_value(const atom *a)
{
    const int whole = a->start == 0 && a->width == a->value->width;
    return a->part ? a->part : whole ? a->value : NULL;
}

/* --- sums ----------------------------------------------------------------------------------------------- */

static sum *new_sum(graph *g, int count)
{
    return allocate(&g->memory, sizeof(sum) + (size_t)count * sizeof(summand));
}

const sum *single(graph *g, atom *a)
{
    sum *const r = new_sum(g, 1);
    r->count = 1;
    r->s[0] = (summand){ONE, 1, {a}};
    return a->nested > MOST_NESTED ? NULL : r;
}

const sum *summand_sum(graph *g, const summand *s)
{
    sum *const r = new_sum(g, 1);
    r->count = 1;
    r->s[0] = *s;
    return r;
}

const sum *number_sum(graph *g, double number)
{
    double *const a = allocate(&g->memory, sizeof *a);
    sum *const r = new_sum(g, 1);
    *a = number;
    r->count = number != 0;
    r->s[0] = (summand){{a, 1}, 0, {NULL}};
    return r;
}

static int rows_equal(const tensor *t, size_t rows, size_t n)
{
    const float *const data = t->data;
    for (size_t k = 1; k < rows; k++)
        if (memcmp(data, data + k * n, n * sizeof *data))
            return 0;
    return 1;
}

const sum *constant_sum(graph *g, const value *v, size_t rank)
{
    const tensor *const t = &v->constant;
    const size_t n = t->rank ? (size_t)t->shape[t->rank - 1] : 1;
    size_t rows = 1;
    for (size_t k = 0; k + 1 < t->rank; k++)
        rows *= (size_t)t->shape[k];
    if (t->type != ORT_FLOAT || n > MOST_NUMBERS || (rows > 1 && !(g->with_rows && rows_equal(t, rows, n)))
        || (t->rank > 1 && t->rank > rank))
        return NULL;
    double *const a = allocate(&g->memory, n * sizeof *a);
    for (size_t k = 0; k < n; k++)
        a[k] = ((const float *)t->data)[k];
    sum *const r = new_sum(g, 1);
    r->s[0] = (summand){{a, n}, 0, {NULL}};
    r->count = !is_zero(r->s[0].factor);
    return r;
}

size_t sum_width(const sum *a)
{
    size_t most = 0;
    int unknown = 0;
    for (int k = 0; k < a->count; k++) {
        if (a->s[k].factor.n > most && a->s[k].factor.n > 1)
            most = a->s[k].factor.n;
        for (int i = 0; i < a->s[k].count; i++) {
            const size_t width = a->s[k].atom[i]->width;
            unknown |= !width;
            most = width > most ? width : most;
        }
    }
    return most || unknown ? most : 1;
}

/* Adds factor times a product of atoms to a sum, which has room. Returns 0 if the sum is too large. */
static int add(graph *g, sum *r, const summand *s, vector factor)
{
    for (int k = 0; k < r->count; k++) {
        summand *const old = &r->s[k];
        if (old->count != s->count || memcmp(old->atom, s->atom, (size_t)s->count * sizeof *s->atom))
            continue;
        if (!fit(old->factor, factor))
            return 0;
        old->factor = added(g, old->factor, factor);
        if (is_zero(old->factor))
            *old = r->s[--r->count];
        return 1;
    }
    if (is_zero(factor))
        return 1;
    if (r->count == MOST_TERMS)
        return 0;
    r->s[r->count] = *s;
    r->s[r->count++].factor = factor;
    return 1;
}

const sum *plus(graph *g, const sum *a, const sum *b, double sign)
{
    if (!a || !b)
        return NULL;
    sum *const r = new_sum(g, a->count + b->count);
    memcpy(r->s, a->s, (size_t)a->count * sizeof *a->s);
    r->count = a->count;
    for (int k = 0; k < b->count; k++)
        if (!add(g, r, &b->s[k], scaled(g, b->s[k].factor, sign)))
            return NULL;
    return r;
}

/* Sorts the atoms of a product by number. */
static void sort(summand *s)
{
    for (int i = 1; i < s->count; i++)
        for (int j = i; j > 0 && s->atom[j - 1]->number > s->atom[j]->number; j--) {
            atom *const a = s->atom[j];
            s->atom[j] = s->atom[j - 1], s->atom[j - 1] = a;
        }
}

const sum *times(graph *g, const sum *a, const sum *b)
{
    if (!a || !b)
        return NULL;
    sum *const r = new_sum(g, MOST_TERMS);
    for (int i = 0; i < a->count; i++)
        for (int j = 0; j < b->count; j++) {
            summand s = a->s[i];
            const summand *const t = &b->s[j];
            if (s.count + t->count > MOST_FACTORS || !fit(s.factor, t->factor))
                return NULL;
            memcpy(s.atom + s.count, t->atom, (size_t)t->count * sizeof *t->atom);
            s.count += t->count;
            sort(&s);
            if (!add(g, r, &s, multiplied(g, s.factor, t->factor)))
                return NULL;
        }
    return r;
}

/* Returns the part start:stop of an atom in a sum of this width, or NULL. */
static atom *cut_atom(graph *g, atom *a, size_t width, size_t start, size_t stop)
{
    if (a->width == 1)
        return a;
    if (a->width && a->width != width)
        return NULL;
    if (a->kind == ATOM_VALUE)
        return value_atom(g, a->value, a->start + start, stop - start);
    if (a->kind == ATOM_PRODUCT) {
        matrix m = a->matrix;
        m.row += start, m.rows = stop - start;
        return product_atom(g, a->value, m);
    }
    if (a->kind == ATOM_NORM)
        return norm_atom(g, a->value, a->of, a->eps, a->start + start, stop - start);
    const sum *const of = cut(g, a->of, start, stop);
    return of ? function_atom(g, a->kind, NULL, of) : NULL;
}

const sum *cut(graph *g, const sum *a, size_t start, size_t stop)
{
    const size_t width = a ? sum_width(a) : 0;
    if (!a || (start == 0 && stop == width))
        return a;
    sum *const r = new_sum(g, a->count);
    for (int k = 0; k < a->count; k++) {
        summand s = a->s[k];
        vector factor = s.factor;
        if (factor.n > 1) {
            if (factor.n != width || stop > width)
                return NULL;
            factor = (vector){factor.a + start, stop - start};
        }
        for (int i = 0; i < s.count; i++)
            if (!(s.atom[i] = cut_atom(g, s.atom[i], width, start, stop)))
                return NULL;
        sort(&s);
        if (!add(g, r, &s, factor))
            return NULL;
    }
    return r;
}

/* --- values --------------------------------------------------------------------------------------------- */

/* Returns 1 if a value is the argument of a product with a constant, a norm, or a function. */
static int is_argument(const value *v)
{
    static const char *const functions[] = {"Sigmoid",   "Tanh", "Relu", "HardSigmoid", "LayerNormalization",
                                            "ReduceMean"};
    for (const use *u = v->uses; u; u = u->next) {
        const value *const matrix = input(u->user, 1);
        if (u->at != 0)
            continue;
        for (size_t k = 0; k < sizeof functions / sizeof *functions; k++)
            if (is_operator(u->user, functions[k]))
                return 1;
        if ((is_operator(u->user, "Gemm") || is_operator(u->user, "MatMul")) && matrix && matrix->is_constant)
            return 1;
    }
    return 0;
}

const sum *operand(graph *g, value *v, int depth)
{
    return is_argument(v) ? single(g, value_atom(g, v, 0, v->width)) : sum_of(g, v, depth);
}

const sum *sum_of(graph *g, value *v, int depth)
{
    if (v->sum)
        return v->sum;
    const sum *r = v->producer && depth < MOST_DEPTH ? operator_sum(g, v->producer, v, depth + 1) : NULL;
    if (!r)
        r = single(g, value_atom(g, v, 0, v->width));
    if (r->count == 1 && r->s[0].count == 1 && is_number(r->s[0].factor, 1)) {
        atom *const a = r->s[0].atom[0];
        if (a->kind == ATOM_VALUE && a->value != v && !a->part)
            a->part = v;
    }
    return v->sum = r;
}
