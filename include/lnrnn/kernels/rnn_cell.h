/* The RNN's cell: a step after the products, and its derivative. table.h has the type of the rows. */
#ifndef LNRNN_RNN_CELL_H
#define LNRNN_RNN_CELL_H

#include "lnrnn/kernels/activations.h"
#include "lnrnn/kernels/gate_norm.h"

LNRNN_INLINE void rnn_units(size_t first, size_t k, const int vecs, const int act, const int how,
                            const int separate, const gate_row *row)
{
    const int m = vecs ? vecs : 1;
    v32 z[2];
    LNRNN_FOR_EACH (v, m)
        z[v] = gate_sum(how, separate, row, 0, unit_of(first, v), k, vecs);
    v32_acts(act, m, z);
    LNRNN_FOR_EACH (v, m)
        put_f32(row->h + unit_of(first, v), z[v], k, vecs);
}

LNRNN_INLINE void rnn_rows(const int act, const int how, const int separate, const lnrnn_step_config *step,
                           const lnrnn_step_rows *rows)
{
    for (size_t first = 0; first < rows->n; first += LNRNN_ROWS_TOGETHER) {
        const lnrnn_step_rows some = rows_together(rows, first);
        rows_moments m;
        if (how == LNRNN_NORMED)
            moments_of_rows(1, step->hidden, some.n, some.a, some.as, separate ? some.x : NULL, some.xs, &m);
        for (size_t r = 0; r < some.n; r++) {
            const gate_row row = gate_row_of(1, 1, how, separate, step, &some, r, &m);
            LNRNN_FOR_PAIRS(step->hidden->H, rnn_units, act, how, separate, &row);
        }
    }
}

LNRNN_INLINE void rnn_rows_of_sum(const int act, const lnrnn_step_config *step, const lnrnn_step_rows *rows)
{
    switch (step->hidden->how) {
    case LNRNN_PLAIN: rnn_rows(act, LNRNN_PLAIN, 0, step, rows); break;
    case LNRNN_AFFINE: rnn_rows(act, LNRNN_AFFINE, 0, step, rows); break;
    default: rnn_rows(act, LNRNN_NORMED, 0, step, rows); break;
    }
}

/* Computes h = act(x + a), or act(a) if rows->x is NULL. x is rows->x after the norm step->input, and a is
 * rows->a after the norm step->hidden. If rows->x is not NULL, both norms are LNRNN_NORMED. */
static void rnn_step(const lnrnn_step_config *step, const lnrnn_step_rows *rows)
{
    if (rows->x) {
        rnn_rows(step->act, LNRNN_NORMED, 1, step, rows);
        return;
    }
    LNRNN_FOR_ACT(step->act, rnn_rows_of_sum, step, rows);
}

LNRNN_INLINE void rnn_backward_units(size_t i, size_t k, const int whole, int act, const float *gh,
                                     const float *h, float *ga)
{
    put_f32(ga + i, get_f32(gh + i, k, whole) * act_slope(act, get_f32(h + i, k, whole)), k, whole);
}

/* h (n), the output of a step, and gh (n), its gradient -> ga (n), the gradient of the activation's argument.
 * ga may be gh. */
static void rnn_backward(int act, size_t n, const float *gh, const float *h, float *ga)
{
    LNRNN_FOR_UNITS(n, rnn_backward_units, act, gh, h, ga);
}

#endif
