/* Matches one step of a cell: compares the equations of patterns with sums, and binds all constants, values
 * and nodes. The search keeps a list of goals. It binds one goal after the other, and goes back when a goal
 * cannot be met. lnrnn/recognise/matching.py does the same for the importer. */
#include <string.h>

#include "onnxruntime/match.h"

#define CELL_PATTERNS
#include "cell_patterns.h"

enum { MOST_GOALS = 20000, PATTERN_COUNT = sizeof PATTERNS / sizeof *PATTERNS };

const char *constant_name(int k) { return CONSTANT_NAMES[k]; }

/* A goal: SUM compares an equation with a sum. SUMMANDS and BIASES compare those of its terms and summands
 * whose bits are set. FACTORS compares factors with atoms, one by one. */
enum { SUM, SUMMANDS, BIASES, FACTORS };
typedef struct goal {
    int kind, at; /* at: the equation that the goal belongs to */
    equation wanted;
    unsigned terms, summands;
    const sum *given;
    const factor *factors;
    int count;
    atom *const *atoms;
    vector scale;
    const struct goal *next;
} goal;

static int solve(matcher *m, const goal *g);

/* Binds a slot. Returns 0 if it is bound to another object. */
static int bind(matcher *m, void **slot, const void *object)
{
    if (*slot)
        return *slot == object;
    if (m->count == MOST_BINDINGS)
        return 0;
    m->bindings[m->count].slot = slot, m->bindings[m->count++].before = *slot;
    *slot = (void *)object;
    return 1;
}

/* Undoes all bindings but the first `count`. Returns 0. */
static int undo(matcher *m, int count)
{
    while (m->count > count) {
        m->count--;
        *m->bindings[m->count].slot = m->bindings[m->count].before;
    }
    return 0;
}

/* --- products ------------------------------------------------------------------------------------------- */

/* Solves FACTORS for each order of the atoms. */
static int any_order(matcher *m, goal *factors, atom *const *atoms, int n)
{
    atom *order[MOST_FACTORS];
    int index[MOST_FACTORS] = {0};
    memcpy(order, atoms, (size_t)n * sizeof *order);
    factors->atoms = order;
    if (solve(m, factors))
        return 1;
    for (int i = 0; i < n;) { /* Heap's algorithm */
        if (index[i] == i) {
            index[i++] = 0;
            continue;
        }
        const int j = i % 2 ? index[i] : 0;
        atom *const a = order[i];
        order[i] = order[j], order[j] = a;
        if (solve(m, factors))
            return 1;
        index[i]++, i = 0;
    }
    return 0;
}

static int is_one(vector v)
{
    for (size_t k = 0; k < v.n; k++)
        if (v.a[k] != 1)
            return 0;
    return 1;
}

static part *new_part(matcher *m, vector v, int sign, const value *owner, part *next)
{
    part *const r = allocate(&m->g->memory, sizeof *r);
    *r = (part){.vector = v, .owner = owner, .next = next};
    if (sign < 0) {
        double *const a = allocate(&m->g->memory, v.n * sizeof *a);
        for (size_t k = 0; k < v.n; k++)
            a[k] = -v.a[k];
        r->vector.a = a;
    }
    return r;
}

static int match_value(matcher *m, const factor *f, const atom *a, const goal *rest)
{
    value *const v = a->kind == ATOM_VALUE ? outer_value(a) : NULL;
    const size_t width = f->name == VALUE_H0 ? m->state_size : m->units;
    if (!v || (f->name != VALUE_X && a->width && a->width != width))
        return 0;
    for (int k = 0; k < VALUES; k++)
        if (k != f->name && m->b.values[k] == v && (k == VALUE_X || f->name == VALUE_X))
            return 0;
    return bind(m, &m->b.values[f->name], v) && solve(m, rest);
}

static int match_function(matcher *m, const factor *f, atom *a, const goal *rest)
{
    const atom *const same = m->b.functions[f->name];
    if (!(FUNCTION_ATOMS[f->name] >> a->kind & 1) || (same && same->kind != a->kind) || a->width != m->units)
        return 0;
    void **const known = &m->b.arguments[f->name][f->of];
    if (*known)
        return *known == a && solve(m, rest);
    const goal of = {
        .kind = SUM, .at = f->of, .wanted = m->p->equations[f->of], .given = a->of, .next = rest};
    return bind(m, known, a) && (same || bind(m, &m->b.functions[f->name], a))
           && (!a->value || bind(m, &m->b.results[f->of], a->value)) && solve(m, &of);
}

static int match_product(matcher *m, const factor *f, atom *a, vector scale, int at, const goal *rest)
{
    if (a->kind != ATOM_PRODUCT || a->width != (f->name == CONSTANT_WEIGHT_HR ? m->state_size : m->units))
        return 0;
    part *const rows = new_part(m, scale, 1, NULL, NULL);
    rows->matrix = a->matrix;
    const sum *const whole = f->count > 1 ? sum_of(m->g, a->value, 0)
                                          : single(m->g, value_atom(m->g, a->value, 0, a->value->width));
    goal factors = {.kind = FACTORS, .at = at, .factors = f->factors, .count = f->count, .next = rest};
    return whole->count == 1 && whole->s[0].count == f->count && whole->s[0].factor.n == 1
           && is_one(whole->s[0].factor) && bind(m, &m->b.constants[f->name][at], rows)
           && (f->name != CONSTANT_WEIGHT_HH || bind(m, &m->b.operands[at], a->value))
           && any_order(m, &factors, whole->s[0].atom, f->count);
}

static int match_norm(matcher *m, const factor *f, atom *a, int at, const goal *rest)
{
    const size_t H = m->units, gates = f->gates ? (size_t)f->gates : 1;
    const atom *const same = m->b.eps;
    if (a->kind != ATOM_NORM || a->width != H || a->start % H || sum_width(a->of) != gates * H
        || (same ? same->eps != a->eps : !bind(m, &m->b.eps, a)))
        return 0;
    goal inner = {.kind = SUM, .at = at, .wanted = f->argument, .next = rest};
    if (f->of >= 0) {
        inner.at = f->of, inner.wanted = m->p->equations[f->of], inner.given = a->of;
        return bind(m, &m->b.results[f->of], a->value) && solve(m, &inner);
    }
    if (f->gates) {
        const sum *const known = m->b.norms[f->name];
        if (known ? !sums_equal(known, a->of) : !bind(m, &m->b.norms[f->name], a->of))
            return 0;
        if (!bind(m, &m->b.places[f->name][a->start / H], &m->p->equations[at]))
            return 0;
    }
    inner.given = cut(m->g, a->of, a->start, a->start + H);
    return inner.given && solve(m, &inner);
}

static int match_factors(matcher *m, const goal *g)
{
    goal rest = *g;
    if (!g->count)
        return solve(m, g->next);
    const factor *const f = g->factors;
    atom *const a = *g->atoms;
    rest.factors++, rest.atoms++, rest.count--;
    switch (f->kind) {
    case FACTOR_VALUE: return match_value(m, f, a, &rest);
    case FACTOR_FUNCTION: return match_function(m, f, a, &rest);
    case FACTOR_PRODUCT: return match_product(m, f, a, g->scale, g->at, &rest);
    default: return match_norm(m, f, a, g->at, &rest);
    }
}

/* --- sums ----------------------------------------------------------------------------------------------- */

static int is_bias(const term *t)
{
    return t->vector >= 0 && strstr(CONSTANT_NAMES[t->vector], "bias") != NULL;
}

/* Returns the number of atoms of a summand that are not ATOM_ONE, and those atoms. */
static int without_ones(const summand *s, atom *atoms[MOST_FACTORS], const value **owner)
{
    int n = 0;
    *owner = NULL;
    for (int k = 0; k < s->count; k++) {
        if (s->atom[k]->kind == ATOM_ONE)
            *owner = s->atom[k]->value;
        else
            atoms[n++] = s->atom[k];
    }
    return n;
}

/* Separates biases, and goes on with the other terms. */
static int match_sum(matcher *m, const goal *g)
{
    goal biases = {.kind = BIASES, .at = g->at, .wanted = g->wanted, .given = g->given, .next = g->next};
    goal summands = biases;
    summands.kind = SUMMANDS, summands.next = &biases;
    for (int k = 0; k < g->wanted.count; k++) {
        goal *const of = is_bias(&g->wanted.terms[k]) ? &biases : &summands;
        of->terms |= 1u << k;
    }
    for (int k = 0; k < g->given->count; k++) {
        atom *atoms[MOST_FACTORS];
        const value *owner;
        const int n = without_ones(&g->given->s[k], atoms, &owner);
        int gates = n > 0, fits = !n;
        for (int i = 0; i < n; i++)
            gates &= (int)(FUNCTION_ATOMS[FUNCTION_SIGMA] >> atoms[i]->kind & 1);
        for (int i = 0; i < g->wanted.count; i++)
            fits |= gates && is_bias(&g->wanted.terms[i]) && g->wanted.terms[i].count == n;
        *(fits ? &biases.summands : &summands.summands) |= 1u << k;
    }
    return __builtin_popcount(summands.terms) == __builtin_popcount(summands.summands) && solve(m, &summands);
}

static int match_summands(matcher *m, const goal *g)
{
    if (!g->terms)
        return solve(m, g->next);
    const int at = __builtin_ctz(g->terms), count = m->count;
    const term *const t = &g->wanted.terms[at];
    for (int k = 0; k < g->given->count; k++) {
        atom *atoms[MOST_FACTORS];
        const value *owner;
        const summand *const s = &g->given->s[k];
        const size_t n = s->factor.n;
        if (!(g->summands >> k & 1) || without_ones(s, atoms, &owner) != t->count
            || (n != 1 && n != m->units && n != m->state_size))
            continue;
        goal rest = *g;
        rest.terms &= ~(1u << at), rest.summands &= ~(1u << k);
        const part *const factor = new_part(m, s->factor, t->sign, NULL, NULL);
        goal factors = {.kind = FACTORS,
                        .at = g->at,
                        .factors = t->factors,
                        .count = t->count,
                        .scale = factor->vector,
                        .next = &rest};
        int has_product = 0;
        for (int i = 0; i < t->count; i++)
            has_product |= t->factors[i].kind == FACTOR_PRODUCT;
        const int fits = t->vector >= 0 ? bind(m, &m->b.constants[t->vector][g->at], factor)
                                        : has_product || is_one(factor->vector);
        if (fits && any_order(m, &factors, atoms, t->count))
            return 1;
        undo(m, count);
    }
    return 0;
}

/* Matches constants, and products of a constant and a gate. They may have several owners, and be missing. */
static int match_biases(matcher *m, const goal *g)
{
    if (!g->terms)
        return !g->summands && solve(m, g->next);
    const int at = __builtin_ctz(g->terms), count = m->count;
    const term *const t = &g->wanted.terms[at];
    goal rest = *g;
    rest.terms &= ~(1u << at);
    for (int k = 0; k < g->given->count; k++) {
        atom *atoms[MOST_FACTORS], *others[MOST_FACTORS];
        const value *owner;
        part *mine = NULL;
        int fits = 1;
        if (!(g->summands >> k & 1) || without_ones(&g->given->s[k], atoms, &owner) != t->count)
            continue;
        rest.summands = g->summands;
        for (int i = 0; i < g->given->count; i++) {
            const vector factor = g->given->s[i].factor;
            if (!(g->summands >> i & 1) || without_ones(&g->given->s[i], others, &owner) != t->count
                || memcmp(atoms, others, (size_t)t->count * sizeof *atoms))
                continue;
            fits &= factor.n == 1 || factor.n == m->units;
            rest.summands &= ~(1u << i);
            mine = new_part(m, factor, t->sign, owner, mine);
        }
        goal factors = {
            .kind = FACTORS, .at = g->at, .factors = t->factors, .count = t->count, .next = &rest};
        if (fits && bind(m, &m->b.constants[t->vector][g->at], mine)
            && any_order(m, &factors, atoms, t->count))
            return 1;
        undo(m, count);
    }
    rest.summands = g->summands;
    return solve(m, &rest);
}

/* --- steps ---------------------------------------------------------------------------------------------- */

static int solve(matcher *m, const goal *g)
{
    const int count = m->count;
    int found = 0;
    if (++m->goals > MOST_GOALS)
        return 0;
    if (!g)
        found = match_accept(m);
    else if (g->kind == SUM)
        found = match_sum(m, g);
    else if (g->kind == SUMMANDS)
        found = match_summands(m, g);
    else if (g->kind == BIASES)
        found = match_biases(m, g);
    else
        found = match_factors(m, g);
    return found ? 1 : undo(m, count);
}

/* Returns 1 if each term of an equation has as many factors as a summand of its own. */
static int same_outline(const equation *e, const sum *s)
{
    int terms[MOST_FACTORS + 1] = {0};
    if (e->count != s->count)
        return 0;
    for (int k = 0; k < e->count; k++) {
        terms[e->terms[k].count]++;
        terms[s->s[k].count]--;
    }
    for (int k = 0; k <= MOST_FACTORS; k++)
        if (terms[k])
            return 0;
    return 1;
}

step *step_match(graph *g, value *v, int with_rnn)
{
    const sum *const h = sum_of(g, v, 0);
    const size_t width = sum_width(h);
    for (int k = 0; k < PATTERN_COUNT && width; k++) {
        const pattern *const p = &PATTERNS[k];
        if ((p->cell == LNRNN_RNN) != with_rnn || !same_outline(&p->equations[EQUATION_H], h))
            continue;
        matcher m = {.g = g, .p = p, .units = width, .state_size = width};
        if (p->has[EQUATION_H] >> CONSTANT_WEIGHT_HR & 1) {
            if (h->s[0].atom[0]->kind != ATOM_PRODUCT)
                continue;
            m.units = h->s[0].atom[0]->matrix.columns;
        }
        m.b.results[EQUATION_H] = v;
        const goal whole = {.kind = SUM, .at = EQUATION_H, .wanted = p->equations[EQUATION_H], .given = h};
        if (solve(&m, &whole))
            return m.found;
    }
    return NULL;
}
