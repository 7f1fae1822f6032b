/* The GRU's cell: a step after the products, and its derivative. table.h has the types of the rows. */
#ifndef LNRNN_GRU_CELL_H
#define LNRNN_GRU_CELL_H

#include "lnrnn/kernels/activations.h"
#include "lnrnn/kernels/gate_norm.h"

/* The gates, in the order of their weights. */
enum { GATE_R, GATE_Z, GATE_N, GRU_GATES };

/* Calls f(.., act, ...) for H units. act is the activation of the candidate n. The usual tanh is a
 * compile-time constant in f. */
#define LNRNN_FOR_GRU_PAIRS(act, H, f, ...)                     \
    do {                                                        \
        if ((act) == LNRNN_ACT_TANH)                            \
            LNRNN_FOR_PAIRS(H, f, LNRNN_ACT_TANH, __VA_ARGS__); \
        else                                                    \
            LNRNN_FOR_PAIRS(H, f, act, __VA_ARGS__);            \
    } while (0)

/* Computes h = (1 - z) n + z h_prev. |tanh| is at most 1, so h_prev - n has at most the rounding error of
 * h_prev or of 1. With another act, n has no bound, and h_prev - n would lose digits of h_prev. */
LNRNN_INLINE void gru_mix(int act, v32 z, v32 n, const float *h_prev, float *h, size_t k, const int whole)
{
    const v32 old = get_f32(h_prev, k, whole);
    const int bounded = act == LNRNN_ACT_TANH;
    put_f32(h, bounded ? v32_fma(z, old - n, n) : v32_fma(z, old, (v32_set1(1.0f) - z) * n), k, whole);
}

LNRNN_INLINE void gru_units(size_t first, size_t k, const int vecs, int act, const int how,
                            const int separate, const gate_row *row)
{
    const size_t H = row->hidden.norm->H;
    const int m = vecs ? vecs : 1;
    v32 rz[4], n[2];
    LNRNN_FOR_EACH (v, m) {
        const size_t i = unit_of(first, v);
        rz[2 * v] = gate_sum(how, separate, row, GATE_R, i, k, vecs);
        rz[2 * v + 1] = gate_sum(how, separate, row, GATE_Z, i, k, vecs);
    }
    gate_sigmoids(how, 2 * m, rz);
    LNRNN_FOR_EACH (v, m) {
        const size_t i = unit_of(first, v);
        const v32 recurrent = gate_read(how, &row->hidden, GATE_N, i, k, vecs);
        n[v] = separate ? v32_fma(rz[2 * v], recurrent, gate_read(how, &row->input, GATE_N, i, k, vecs))
                        : rz[2 * v] * recurrent;
    }
    v32_acts(act, m, n);
    LNRNN_FOR_EACH (v, m) {
        const size_t i = unit_of(first, v);
        if (row->saved_gates) {
            put_f32(row->saved_gates + GATE_R * H + i, rz[2 * v], k, vecs);
            put_f32(row->saved_gates + GATE_Z * H + i, rz[2 * v + 1], k, vecs);
            put_f32(row->saved_gates + GATE_N * H + i, n[v], k, vecs);
        }
        gru_mix(act, rz[2 * v + 1], n[v], row->h_prev + i, row->h + i, k, vecs);
    }
}

LNRNN_INLINE void gru_rows(const int how, const int separate, const lnrnn_step_config *step,
                           const lnrnn_step_rows *rows)
{
    rows_moments m;
    if (how == LNRNN_NORMED)
        moments_of_rows(GRU_GATES, step->hidden, rows->n, rows->a, rows->as, separate ? rows->x : NULL,
                        rows->xs, &m);
    for (size_t r = 0; r < rows->n; r++) {
        const gate_row row = gate_row_of(GRU_GATES, GATE_N, how, separate, step, rows, r, &m);
        LNRNN_FOR_GRU_PAIRS(step->act, step->hidden->H, gru_units, how, separate, &row);
    }
}

/* x is W x after the norm step->input, or 0 if x is NULL; a is W h after step->hidden. Computes
 *     r, z = sigmoid(x + a), n = act(x + r a), h = (1 - z) n + z h_prev
 * h_prev may be the array h. In a cell without a norm x is not NULL. */
static void gru_step(const lnrnn_step_config *step, const lnrnn_step_rows *rows)
{
    for (size_t r = 0; r < rows->n; r += LNRNN_ROWS_TOGETHER) {
        const lnrnn_step_rows some = rows_together(rows, r);
        LNRNN_AS_READ(gru_rows, 1, step, &some);
    }
}

/* --- a norm for each gate --------------------------------------------------------------------------- */

LNRNN_INLINE void gru_gate_sum_units(size_t i, size_t k, const int whole, const float *x, const float *a,
                                     float *sum)
{
    put_f32(sum + i, get_f32(x + i, k, whole) + get_f32(a + i, k, whole), k, whole);
}

/* x, a, sum (3*H). Computes sum = x + r a for units i .. i + k - 1 of the gate n. */
LNRNN_INLINE void gru_gate_last_sum(size_t i, size_t k, const int whole, size_t H, v32 r, const float *x,
                                    const float *a, float *sum)
{
    const size_t at = GATE_N * H + i;
    put_f32(sum + at, v32_fma(r, get_f32(a + at, k, whole), get_f32(x + at, k, whole)), k, whole);
}

/* Computes the gate r, with its norm, and x + r a, the input of n's norm. Writes r to `gates` unless `gates`
 * is NULL. */
LNRNN_INLINE void gru_gate_reset_units(size_t i, size_t k, const int whole, const gate_side *side,
                                       const float *x, const float *a, float *sum, float *gates)
{
    const v32 r = v32_sigmoid(gate_read(LNRNN_NORMED, side, GATE_R, i, k, whole));
    gru_gate_last_sum(i, k, whole, side->norm->H, r, x, a, sum);
    if (gates)
        put_f32(gates + GATE_R * side->norm->H + i, r, k, whole);
}

LNRNN_INLINE void gru_gate_output_units(size_t i, size_t k, const int whole, int act, const gate_side *side,
                                        const float *h_prev, float *h, float *gates)
{
    const size_t H = side->norm->H;
    const v32 z = v32_sigmoid(gate_read(LNRNN_NORMED, side, GATE_Z, i, k, whole));
    v32 n = gate_read(LNRNN_NORMED, side, GATE_N, i, k, whole);
    v32_acts(act, 1, &n);
    if (gates) {
        put_f32(gates + GATE_Z * H + i, z, k, whole);
        put_f32(gates + GATE_N * H + i, n, k, whole);
    }
    gru_mix(act, z, n, h_prev + i, h + i, k, whole);
}

/* rows->scratch (3*H). The step of a GRU with a norm for each gate (LNRNN_SPANS_EACH):
 *     r, z = sigmoid(norm(x + a)), n = act(norm(x + r a)), h = (1 - z) n + z h_prev */
static void gru_gate_step(const lnrnn_step_config *step, const lnrnn_step_rows *rows)
{
    const lnrnn_gate_norm *norm = step->hidden;
    const size_t H = norm->H;
    const float *x = rows->x, *a = rows->a;
    float *const sum = rows->scratch;
    for (size_t r = 0; r < rows->n; r++, x += rows->xs, a += rows->as) {
        rows_moments m;
        gate_side side = {
            .norm = norm, .a = sum, .of_gate = {&m.spans[GATE_R], &m.spans[GATE_Z], &m.spans[GATE_N]}};
        const float *const h_prev = rows->h_prev[r];
        float *const h = rows->h[r];
        float *const gates = rows->saved_gates ? rows->saved_gates + (ptrdiff_t)r * rows->as : NULL;
        LNRNN_FOR_UNITS(GATE_N * H, gru_gate_sum_units, x, a, sum);
        moments_of_rows(GATE_N, norm, 1, sum, 0, NULL, 0, &m);
        LNRNN_FOR_UNITS(H, gru_gate_reset_units, &side, x, a, sum, gates);
        row_moments(H, sum + GATE_N * H, norm, &m.spans[GATE_N], 0);
        if (step->act == LNRNN_ACT_TANH)
            LNRNN_FOR_UNITS(H, gru_gate_output_units, LNRNN_ACT_TANH, &side, h_prev, h, gates);
        else
            LNRNN_FOR_UNITS(H, gru_gate_output_units, step->act, &side, h_prev, h, gates);
    }
}

/* --- the reset gate before the product -------------------------------------------------------------- */

/* Writes to *m the moments of gates from .. to - 1, which share statistics, in W x and in W h. rows: at most
 * LNRNN_ROWS_TOGETHER. */
LNRNN_INLINE void gru_reset_moments(const int from, const int to, const lnrnn_step_config *step,
                                    const lnrnn_step_rows *rows, rows_moments *m)
{
    const size_t H = step->hidden->H;
    const float *starts[LNRNN_SPANS_TOGETHER];
    for (size_t r = 0; r < rows->n; r++) {
        starts[r] = rows->a + (ptrdiff_t)r * rows->as + (size_t)from * H;
        starts[rows->n + r] = rows->x + (ptrdiff_t)r * rows->xs + (size_t)from * H;
    }
    moments_of_spans((size_t)(to - from) * H, 2 * rows->n, starts, step->hidden, &m->spans[0]);
    m->of_gate[GATE_N] = &m->spans[0]; /* r and z share statistics, in spans[0] */
}

LNRNN_INLINE void gru_reset_gate_units(size_t first, size_t k, const int vecs, const int how,
                                       const gate_row *row, float *reset, float *z)
{
    const size_t H = row->hidden.norm->H;
    const int m = vecs ? vecs : 1;
    v32 rz[4];
    LNRNN_FOR_EACH (v, m) {
        const size_t i = unit_of(first, v);
        rz[2 * v] = gate_sum(how, 1, row, GATE_R, i, k, vecs);
        rz[2 * v + 1] = gate_sum(how, 1, row, GATE_Z, i, k, vecs);
    }
    gate_sigmoids(how, 2 * m, rz);
    LNRNN_FOR_EACH (v, m) {
        const size_t i = unit_of(first, v);
        if (row->saved_gates) {
            put_f32(row->saved_gates + GATE_R * H + i, rz[2 * v], k, vecs);
            put_f32(row->saved_gates + GATE_Z * H + i, rz[2 * v + 1], k, vecs);
        }
        put_f32(reset + i, rz[2 * v] * get_f32(row->h_prev + i, k, vecs), k, vecs);
        put_f32(z + i, rz[2 * v + 1], k, vecs);
    }
}

LNRNN_INLINE void gru_reset_state_units(size_t first, size_t k, const int vecs, int act, const int how,
                                        const gate_row *row, const float *z)
{
    const size_t H = row->hidden.norm->H;
    const int m = vecs ? vecs : 1;
    v32 n[2];
    LNRNN_FOR_EACH (v, m)
        n[v] = gate_sum(how, 1, row, GATE_N, unit_of(first, v), k, vecs);
    v32_acts(act, m, n);
    LNRNN_FOR_EACH (v, m) {
        const size_t i = unit_of(first, v);
        if (row->saved_gates)
            put_f32(row->saved_gates + GATE_N * H + i, n[v], k, vecs);
        gru_mix(act, get_f32(z + i, k, vecs), n[v], row->h_prev + i, row->h + i, k, vecs);
    }
}

/* Computes at most LNRNN_ROWS_TOGETHER rows. states = 0: the gates, as gru_reset_gates does; 1: the new
 * state, as gru_reset_step does. */
LNRNN_INLINE void gru_reset_rows(const int how, const int states, const lnrnn_step_config *step,
                                 const lnrnn_step_rows *rows)
{
    rows_moments m;
    if (how == LNRNN_NORMED)
        gru_reset_moments(states ? GATE_N : GATE_R, states ? GRU_GATES : GATE_N, step, rows, &m);
    for (size_t r = 0; r < rows->n; r++) {
        const gate_row row = gate_row_of(GRU_GATES, GATE_N, how, 1, step, rows, r, &m);
        float *const reset = rows->reset + (ptrdiff_t)r * rows->rs, *const z = reset + rows->rs / 2;
        if (states)
            LNRNN_FOR_GRU_PAIRS(step->act, step->hidden->H, gru_reset_state_units, how, &row, z);
        else
            LNRNN_FOR_PAIRS(step->hidden->H, gru_reset_gate_units, how, &row, reset, z);
    }
}

LNRNN_INLINE void gru_reset_half(const int states, const lnrnn_step_config *step, const lnrnn_step_rows *rows)
{
    for (size_t r = 0; r < rows->n; r += LNRNN_ROWS_TOGETHER) {
        const lnrnn_step_rows some = rows_together(rows, r);
        switch (step->hidden->how) {
        case LNRNN_PLAIN: gru_reset_rows(LNRNN_PLAIN, states, step, &some); break;
        case LNRNN_AFFINE: gru_reset_rows(LNRNN_AFFINE, states, step, &some); break;
        case LNRNN_HARD: gru_reset_rows(LNRNN_HARD, states, step, &some); break;
        default: gru_reset_rows(LNRNN_NORMED, states, step, &some); break;
        }
    }
}

/* Computes r, z = sigmoid(x + a). Writes r h_prev and z to rows->reset. */
static void gru_reset_gates(const lnrnn_step_config *step, const lnrnn_step_rows *rows)
{
    gru_reset_half(0, step, rows);
}

/* Runs after gru_reset_gates and the product W_hh (r h_prev) of the gate n, which is now in rows->a. Computes
 * n = act(x + a), h = (1 - z) n + z h_prev. */
static void gru_reset_step(const lnrnn_step_config *step, const lnrnn_step_rows *rows)
{
    gru_reset_half(1, step, rows);
}

/* --- backward --------------------------------------------------------------------------------------- */

/* Calls f as LNRNN_FOR_GRADIENTS does, with b->act. The usual tanh is a constant in f, which tests no act. */
#define LNRNN_FOR_GRU_GRADIENTS(b, f)                              \
    if ((b)->act == LNRNN_ACT_TANH)                                \
        LNRNN_FOR_GRADIENTS(b, f)                                  \
    else                                                           \
        for (size_t r_ = 0; r_ < (b)->rows; r_++) {                \
            gradient_row row_ = gradient_row_of(b, r_, (b)->hard); \
            row_.act = (b)->act;                                   \
            LNRNN_FOR_UNITS(row_.H, f, &row_);                     \
        }

/* Back-propagates gh through h = (1 - z) n + z h_prev. Returns the gradient of the argument of n's act, and
 * sets *gz to the gradient of the argument of z's sigmoid. Replaces gh by the gradient of h_prev. */
LNRNN_INLINE v32 gru_mix_backward(size_t i, size_t k, const int whole, const gradient_row *row, v32 *gz)
{
    const size_t H = row->H;
    const v32 z = get_f32(row->saved_gates + GATE_Z * H + i, k, whole),
              n = get_f32(row->saved_gates + GATE_N * H + i, k, whole);
    const v32 g = get_f32(row->gh + i, k, whole), h_prev = get_f32(row->state_prev + i, k, whole);
    const v32 half = v32_set1(0.5f),
              slope = gate_slope(row, z); /* n may be unbounded, so h_prev - n may overflow */
    *gz = row->act == LNRNN_ACT_TANH ? g * (h_prev - n) * slope
                                     : g * (slope + slope) * (half * h_prev - half * n);
    put_f32(row->gh + i, g * z, k, whole);
    return g * (v32_set1(1.0f) - z) * act_slope(row->act, n);
}

LNRNN_INLINE void gru_backward_units(size_t i, size_t k, const int whole, const gradient_row *row)
{
    const size_t H = row->H;
    const v32 r = get_f32(row->saved_gates + GATE_R * H + i, k, whole), u = get_f32(row->u + i, k, whole);
    v32 gz;
    const v32 gn = gru_mix_backward(i, k, whole, row, &gz);
    const v32 gr = gn * u * gate_slope(row, r);
    put_f32(row->ga + GATE_R * H + i, gr, k, whole);
    put_f32(row->ga + GATE_Z * H + i, gz, k, whole);
    put_f32(row->ga + GATE_N * H + i, gn * r, k, whole);
    if (!row->gx)
        return;
    put_f32(row->gx + GATE_R * H + i, gr, k, whole);
    put_f32(row->gx + GATE_Z * H + i, gz, k, whole);
    put_f32(row->gx + GATE_N * H + i, gn, k, whole);
}

/* u: the gate n of W h after its norm. Back-propagates gh through h = (1 - z) n + z h_prev and n = act(x + r
 * u). Writes gx and ga, which differ only in the gate n. Replaces gh by the gradient of h_prev without its
 * path through W h. If gx is NULL, n = act(r u). */
static void gru_backward(const lnrnn_gate_gradients *b) { LNRNN_FOR_GRU_GRADIENTS(b, gru_backward_units); }

/* --- backward, a norm for each gate ----------------------------------------------------------------- */

LNRNN_INLINE void gru_gate_sum_backward_units(size_t i, size_t k, const int whole, const gradient_row *row)
{
    const size_t H = row->H;
    const v32 r = get_f32(row->saved_gates + GATE_R * H + i, k, whole);
    gru_gate_sum_units(GATE_R * H + i, k, whole, row->x, row->a, row->sum);
    gru_gate_sum_units(GATE_Z * H + i, k, whole, row->x, row->a, row->sum);
    gru_gate_last_sum(i, k, whole, H, r, row->x, row->a, row->sum);
}

/* Writes b->sum (rows, 3*H), the inputs of the three norms, from x, a and the saved gates, bit for bit as in
 * gru_gate_step. */
static void gru_gate_sum(const lnrnn_gate_gradients *b)
{
    LNRNN_FOR_GRADIENTS(b, gru_gate_sum_backward_units);
}

LNRNN_INLINE void gru_gate_output_backward_units(size_t i, size_t k, const int whole, const gradient_row *row)
{
    v32 gz;
    put_f32(row->ga + GATE_N * row->H + i, gru_mix_backward(i, k, whole, row, &gz), k, whole);
    put_f32(row->ga + GATE_Z * row->H + i, gz, k, whole);
}

/* Back-propagates gh through the new state. Writes to the gates z and n of ga the gradients of their norms'
 * outputs. Replaces gh by the gradient of h_prev without its path through W h. */
static void gru_gate_output_backward(const lnrnn_gate_gradients *b)
{
    LNRNN_FOR_GRU_GRADIENTS(b, gru_gate_output_backward_units);
}

LNRNN_INLINE void gru_gate_reset_backward_units(size_t i, size_t k, const int whole, const gradient_row *row)
{
    const size_t H = row->H;
    const v32 r = get_f32(row->saved_gates + GATE_R * H + i, k, whole),
              gs = get_f32(row->ga + GATE_N * H + i, k, whole);
    put_f32(row->ga + GATE_R * H + i, gs * get_f32(row->a + GATE_N * H + i, k, whole) * gate_slope(row, r), k,
            whole);
    put_f32(row->gx + GATE_N * H + i, gs, k, whole);
    put_f32(row->ga + GATE_N * H + i, gs * r, k, whole);
}

/* Back-propagates the gate n of ga, the gradient of x + r a. Writes the gate n of gx and of ga, and to the
 * gate r of ga the gradient of its norm's output. */
static void gru_gate_reset_backward(const lnrnn_gate_gradients *b)
{
    LNRNN_FOR_GRADIENTS(b, gru_gate_reset_backward_units);
}

/* --- backward, the reset gate before the product ---------------------------------------------------- */

LNRNN_INLINE void gru_reset_input_units(size_t i, size_t k, const int whole, const gradient_row *row)
{
    const v32 r = get_f32(row->saved_gates + GATE_R * row->H + i, k, whole);
    put_f32(row->gu + i, r * get_f32(row->state_prev + i, k, whole), k, whole);
}

/* Writes to gu r h_prev, which W_hh multiplies for the gate n. */
static void gru_reset_input(const lnrnn_gate_gradients *b) { LNRNN_FOR_GRADIENTS(b, gru_reset_input_units); }

LNRNN_INLINE void gru_reset_output_backward_units(size_t i, size_t k, const int whole,
                                                  const gradient_row *row)
{
    const size_t H = row->H;
    v32 gz;
    const v32 gn = gru_mix_backward(i, k, whole, row, &gz);
    put_f32(row->ga + GATE_Z * H + i, gz, k, whole);
    put_f32(row->gx + GATE_Z * H + i, gz, k, whole);
    put_f32(row->ga + GATE_N * H + i, gn, k, whole);
    put_f32(row->gx + GATE_N * H + i, gn, k, whole);
}

/* Back-propagates gh through the new state. Writes the gates z and n of gx and ga. Replaces gh by the
 * gradient of h_prev without its paths through the products. */
static void gru_reset_output_backward(const lnrnn_gate_gradients *b)
{
    LNRNN_FOR_GRU_GRADIENTS(b, gru_reset_output_backward_units);
}

LNRNN_INLINE void gru_reset_backward_units(size_t i, size_t k, const int whole, const gradient_row *row)
{
    const size_t H = row->H;
    const v32 r = get_f32(row->saved_gates + GATE_R * H + i, k, whole), g = get_f32(row->gu + i, k, whole);
    const v32 gr = g * get_f32(row->state_prev + i, k, whole) * gate_slope(row, r);
    put_f32(row->ga + GATE_R * H + i, gr, k, whole);
    put_f32(row->gx + GATE_R * H + i, gr, k, whole);
    put_f32(row->gu + i, g * r, k, whole);
}

/* gu: the gradient of r h_prev. Replaces gu by the gradient of h_prev through r h_prev, and writes the gate r
 * of gx and ga. */
static void gru_reset_backward(const lnrnn_gate_gradients *b)
{
    LNRNN_FOR_GRADIENTS(b, gru_reset_backward_units);
}

#endif
