/* The LiGRU's cell: a step after the products, and its derivative. table.h has the types of the rows. */
#ifndef LNRNN_LIGRU_CELL_H
#define LNRNN_LIGRU_CELL_H

#include "lnrnn/kernels/activations.h"
#include "lnrnn/kernels/gate_norm.h"

/* The gates, in the order of their weights. */
enum { LIGRU_Z, LIGRU_N, LIGRU_GATES };

/* x (2*H): W x after its norm, or NULL. Returns a gate's pre-activation. */
LNRNN_INLINE v32 ligru_sum(const int how, const gate_row *row, const float *x, const int gate, size_t i,
                           size_t k, const int whole)
{
    const v32 a = gate_read(how, &row->hidden, gate, i, k, whole);
    return x ? get_f32(x + (size_t)gate * row->hidden.norm->H + i, k, whole) + a : a;
}

LNRNN_INLINE void ligru_units(size_t first, size_t k, const int vecs, const int how, int act,
                              const gate_row *row, const float *x)
{
    const size_t H = row->hidden.norm->H;
    const int m = vecs ? vecs : 1;
    v32 z[2], n[2];
    LNRNN_FOR_EACH (v, m) {
        z[v] = ligru_sum(how, row, x, LIGRU_Z, unit_of(first, v), k, vecs);
        n[v] = ligru_sum(how, row, x, LIGRU_N, unit_of(first, v), k, vecs);
    }
    v32_sigmoids(m, z);
    v32_acts(act, m, n);
    LNRNN_FOR_EACH (v, m) {
        const size_t i = unit_of(first, v);
        if (row->saved_gates) {
            put_f32(row->saved_gates + LIGRU_Z * H + i, z[v], k, vecs);
            put_f32(row->saved_gates + LIGRU_N * H + i, n[v], k, vecs);
        }
        /* Not n + z (h_prev - n): |n| has no bound, so the difference would lose digits of h_prev. */
        put_f32(row->h + i, v32_fma(z[v], get_f32(row->h_prev + i, k, vecs), (v32_set1(1.0f) - z[v]) * n[v]),
                k, vecs);
    }
}

/* Computes a step of at most LNRNN_ROWS_TOGETHER rows. separate: W x has its own norm, whose output is
 * written to rows->scratch, row after row. */
LNRNN_INLINE void ligru_rows(const int how, const int separate, const lnrnn_step_config *step,
                             const lnrnn_step_rows *rows)
{
    rows_moments m;
    if (how == LNRNN_NORMED)
        moments_of_rows(LIGRU_GATES, step->hidden, rows->n, rows->a, rows->as, NULL, 0, &m);
    for (size_t r = 0; r < rows->n; r++) {
        const gate_row row = gate_row_of(LIGRU_GATES, 0, how, 0, step, rows, r, &m);
        const float *const x = separate ? rows->scratch : NULL;
        if (separate)
            normalise_rows(LIGRU_GATES, step->input, 1, rows->x + (ptrdiff_t)r * rows->xs, 0, rows->scratch,
                           0);
        LNRNN_FOR_PAIRS(step->hidden->H, ligru_units, how, step->act, &row, x);
    }
}

/* x is W x after the norm step->input, or 0 if x is NULL; a is W h after step->hidden. Computes
 *     z = sigmoid(x + a), n = act(x + a), h = (1 - z) n + z h_prev
 * h_prev may be the array h. If x is not NULL, rows->scratch has 2*H floats. */
static void ligru_step(const lnrnn_step_config *step, const lnrnn_step_rows *rows)
{
    for (size_t r = 0; r < rows->n; r += LNRNN_ROWS_TOGETHER) {
        const lnrnn_step_rows some = rows_together(rows, r);
        switch (step->hidden->how) {
        case LNRNN_PLAIN:
            if (some.x)
                ligru_rows(LNRNN_PLAIN, 1, step, &some);
            else
                ligru_rows(LNRNN_PLAIN, 0, step, &some);
            break;
        default:
            if (some.x)
                ligru_rows(LNRNN_NORMED, 1, step, &some);
            else
                ligru_rows(LNRNN_NORMED, 0, step, &some);
        }
    }
}

LNRNN_INLINE void ligru_backward_units(size_t i, size_t k, const int whole, int act, const gradient_row *row)
{
    const size_t H = row->H;
    const v32 z = get_f32(row->saved_gates + LIGRU_Z * H + i, k, whole),
              n = get_f32(row->saved_gates + LIGRU_N * H + i, k, whole);
    const v32 g = get_f32(row->gh + i, k, whole), h_prev = get_f32(row->state_prev + i, k, whole);
    /* h_prev - n may overflow, because |n| has no bound. Half of the difference does not overflow. */
    const v32 half = v32_set1(0.5f), slope = sigmoid_slope(z);
    put_f32(row->ga + LIGRU_Z * H + i, g * (slope + slope) * (half * h_prev - half * n), k, whole);
    put_f32(row->ga + LIGRU_N * H + i, g * (v32_set1(1.0f) - z) * act_slope(act, n), k, whole);
    put_f32(row->gh + i, g * z, k, whole);
}

/* Back-propagates gh through h = (1 - z) n + z h_prev. Writes ga, the gradients of the arguments of z and n.
 * Replaces gh by the gradient of h_prev without its path through W h. */
static void ligru_backward(int act, const lnrnn_gate_gradients *b)
{
    for (size_t r = 0; r < b->rows; r++) {
        const gradient_row row = gradient_row_of(b, r, 0);
        LNRNN_FOR_UNITS(row.H, ligru_backward_units, act, &row);
    }
}

#endif
