/* The RNN's cell: a step after the products, and its derivative. table.h says what the rows of a step are. */
#ifndef LNRNN_RNN_CELL_H
#define LNRNN_RNN_CELL_H

#include "lnrnn/kernels/activations.h"
#include "lnrnn/kernels/gate_norm.h"

LNRNN_INLINE void rnn_units(size_t i, size_t k, const int whole, const int act, const int how,
                            const int separate, const gate_row *row, float *h)
{
    put_f32(h + i, v32_act(act, gate_sum(how, separate, row, 0, i, k, whole)), k, whole);
}

/* The next row's statistics come before this row's activations: their sums, root and quotients wait for each
 * other, and the activations fill the gaps (rnn B64-H128: 4 %). */
LNRNN_INLINE void rnn_rows(const int act, const int how, const int separate, const lnrnn_gate_norm *hidden,
                           const lnrnn_step_rows *rows)
{
    const lnrnn_gate_norm norm =
        *hidden; /* for registers: a store to h might change what a pointer points to */
    const float *a = rows->a;
    span_moments next = {v32_zero(), v32_zero(), v32_zero()};
    if (how == LNRNN_NORMED && rows->n)
        next = moments_of_span(norm.H, a, norm.eps);
    for (size_t r = 0; r < rows->n; r++, a += rows->as) {
        const span_moments span = next;
        const float *const x = separate ? rows->x + (ptrdiff_t)r * rows->xs : NULL;
        const gate_row row = {.norm = &norm, .x = x, .a = a, .span = &span};
        float *const h = rows->h[r];
        if (how == LNRNN_NORMED && r + 1 < rows->n)
            next = moments_of_span(norm.H, a + rows->as, norm.eps);
        LNRNN_FOR_UNITS(norm.H, rnn_units, act, how, separate, &row, h);
    }
}

LNRNN_INLINE void rnn_rows_of_sum(const int act, const lnrnn_gate_norm *norm, const lnrnn_step_rows *rows)
{
    switch (norm->how) {
    case LNRNN_PLAIN: rnn_rows(act, LNRNN_PLAIN, 0, norm, rows); break;
    case LNRNN_AFFINE: rnn_rows(act, LNRNN_AFFINE, 0, norm, rows); break;
    default: rnn_rows(act, LNRNN_NORMED, 0, norm, rows); break;
    }
}

/* h = act(x + a), or act(a) without x. With x, which stands for a norm of each product, a is LNRNN_NORMED. */
static void rnn_step(const lnrnn_step_config *step, const lnrnn_step_rows *rows)
{
    const lnrnn_gate_norm *norm = step->hidden;
    if (rows->x) {
        rnn_rows(step->act, LNRNN_NORMED, 1, norm, rows);
        return;
    }
    switch (step->act) {
    case LNRNN_ACT_TANH: rnn_rows_of_sum(LNRNN_ACT_TANH, norm, rows); break;
    case LNRNN_ACT_RELU: rnn_rows_of_sum(LNRNN_ACT_RELU, norm, rows); break;
    case LNRNN_ACT_SIGMOID: rnn_rows_of_sum(LNRNN_ACT_SIGMOID, norm, rows); break;
    default: rnn_rows_of_sum(LNRNN_ACT_IDENTITY, norm, rows); break;
    }
}

LNRNN_INLINE void rnn_backward_units(size_t i, size_t k, const int whole, int act, const float *gh,
                                     const float *h, float *ga)
{
    put_f32(ga + i, v32_mul(get_f32(gh + i, k, whole), act_slope(act, get_f32(h + i, k, whole))), k, whole);
}

/* gh, h (n): the gradient of a step's output, and the output -> ga (n), that of the activation's argument,
 * from h alone. ga may be gh. */
static void rnn_backward(int act, size_t n, const float *gh, const float *h, float *ga)
{
    LNRNN_FOR_UNITS(n, rnn_backward_units, act, gh, h, ga);
}

#endif
