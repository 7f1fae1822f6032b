/* The LSTM's cell: a step after the products, and its derivative. table.h has the types of the rows. */
#ifndef LNRNN_LSTM_CELL_H
#define LNRNN_LSTM_CELL_H

#include "lnrnn/kernels/activations.h"
#include "lnrnn/kernels/gate_norm.h"

/* The gates, in the order of their weights. */
enum { GATE_I, GATE_F, GATE_G, GATE_O, LSTM_GATES };

/* peephole (3*H): the weights of c in i, f and o, used if the compile-time constant `peepholes` is 1. Writes
 * c, saved_gates unless NULL, and the output gate to h. lstm_output_rows then replaces h by the output. */
LNRNN_OF_UNIT void lstm_units(size_t i, size_t k, const int whole, const int how, const int separate,
                              const int peepholes, const float *peephole, const gate_row *row)
{
    const size_t H = row->hidden.norm->H;
    v32 ifo[] = {gate_sum(how, separate, row, GATE_I, i, k, whole),
                 gate_sum(how, separate, row, GATE_F, i, k, whole),
                 gate_sum(how, separate, row, GATE_O, i, k, whole)};
    const v32 g_gate = v32_tanh(gate_sum(how, separate, row, GATE_G, i, k, whole));
    if (peepholes)
        for (size_t p = 0; p < 2; p++)
            ifo[p] = v32_fma(get_f32(peephole + p * H + i, k, whole), get_f32(row->c + i, k, whole), ifo[p]);
    gate_sigmoids(how, peepholes ? 2 : 3, ifo);
    const v32 i_gate = ifo[0], f_gate = ifo[1];
    const v32 c = v32_fma(f_gate, get_f32(row->c + i, k, whole), i_gate * g_gate);
    if (peepholes) {
        ifo[2] = v32_fma(get_f32(peephole + 2 * H + i, k, whole), c, ifo[2]);
        gate_sigmoids(how, 1, ifo + 2);
    }
    const v32 o_gate = ifo[2];
    put_f32(row->c + i, c, k, whole);
    put_f32(row->h + i, o_gate, k, whole);
    if (row->saved_gates) {
        put_f32(row->saved_gates + GATE_I * H + i, i_gate, k, whole);
        put_f32(row->saved_gates + GATE_F * H + i, f_gate, k, whole);
        put_f32(row->saved_gates + GATE_G * H + i, g_gate, k, whole);
        put_f32(row->saved_gates + GATE_O * H + i, o_gate, k, whole);
    }
}

/* --- the output ------------------------------------------------------------------------------------- */

/* side = NULL: computes h = o tanh(c). Otherwise `side` is the norm of c: computes h = o tanh(norm(c)), and
 * with `carry` also replaces c by norm(c). */
LNRNN_OF_UNIT void lstm_output_units(size_t first, size_t k, const int vecs, const int how, const int carry,
                                     const gate_side *side, float *c, float *h)
{
    const int m = vecs ? vecs : 1;
    v32 u[2];
    LNRNN_FOR_EACH (v, m) {
        const size_t i = unit_of(first, v);
        u[v] = side ? gate_read(how, side, 0, i, k, vecs) : get_f32(c + i, k, vecs);
        if (carry)
            put_f32(c + i, u[v], k, vecs);
    }
    v32_tanhs(m, u);
    LNRNN_FOR_EACH (v, m)
        put_f32(h + unit_of(first, v), get_f32(h + unit_of(first, v), k, vecs) * u[v], k, vecs);
}

/* c, h: n <= LNRNN_ROWS_TOGETHER pointers to (H). h holds the output gate o. Replaces h by o tanh(norm(c)),
 * and with LNRNN_CELL_CARRY also c by norm(c). */
LNRNN_OUTLINE void lstm_output_rows(const lnrnn_step_config *step, size_t n, float *const *c, float *const *h)
{
    const lnrnn_gate_norm *norm = step->cell;
    const int carry = step->cell_norm == LNRNN_CELL_CARRY;
    span_moments m;
    if (step->cell_norm != LNRNN_CELL_NONE && norm->how == LNRNN_NORMED)
        moments_of_spans(norm->H, n, (const float *const *)c, norm, &m);
    for (size_t r = 0; r < n; r++) {
        const gate_side side = {.norm = norm, .a = c[r], .of_gate = {&m}, .at = r};
        if (step->cell_norm == LNRNN_CELL_NONE)
            LNRNN_FOR_PAIRS(step->hidden->H, lstm_output_units, LNRNN_PLAIN, 0, (const gate_side *)NULL, c[r],
                            h[r]);
        else if (norm->how == LNRNN_NORMED)
            LNRNN_FOR_PAIRS(norm->H, lstm_output_units, LNRNN_NORMED, carry, &side, c[r], h[r]);
        else
            LNRNN_FOR_PAIRS(norm->H, lstm_output_units, LNRNN_AFFINE, 0, &side, c[r], h[r]);
    }
}

/* Completes an lstm_step with deferred_output: computes h = o tanh(norm(c)), where h held the output gate
 * o. */
static void lstm_output(const lnrnn_step_config *step, const lnrnn_step_rows *rows)
{
    for (size_t r = 0, n; r < rows->n; r += n) {
        n = rows->n - r < LNRNN_ROWS_TOGETHER ? rows->n - r : LNRNN_ROWS_TOGETHER;
        lstm_output_rows(step, n, rows->c + r, rows->h + r);
    }
}

/* --- the step --------------------------------------------------------------------------------------- */

LNRNN_INLINE void lstm_rows_with(const int peepholes, const int how, const int separate,
                                 const lnrnn_step_config *step, const lnrnn_step_rows *rows)
{
    rows_moments m;
    if (how == LNRNN_NORMED)
        moments_of_rows(LSTM_GATES, step->hidden, rows->n, rows->a, rows->as, separate ? rows->x : NULL,
                        rows->xs, &m);
    for (size_t r = 0; r < rows->n; r++) {
        const gate_row row =
            gate_row_of(LSTM_GATES, separate ? LSTM_GATES : 0, how, separate, step, rows, r, &m);
        LNRNN_FOR_UNITS(step->hidden->H, lstm_units, how, separate, peepholes, step->peephole, &row);
    }
}

LNRNN_INLINE void lstm_rows(const int how, const int separate, const lnrnn_step_config *step,
                            const lnrnn_step_rows *rows)
{
    lstm_rows_with(0, how, separate, step, rows);
}

/* rows->x holds W x, and rows->a holds W h. Below, x and a are these arrays after the norms step->input and
 * step->hidden. x is 0 if rows->x is NULL. With z = x + a, computes
 *     i, f, o = sigmoid(z), g = tanh(z), c = f c + i g, h = o tanh(norm(c))
 * LNRNN_CELL_CARRY then stores c = norm(c). With deferred_output h becomes o, and the caller must call
 * lstm_output. Without a norm, rows->a holds the sum of both products. */
static void lstm_step(const lnrnn_step_config *step, const lnrnn_step_rows *rows)
{
    for (size_t r = 0; r < rows->n; r += LNRNN_ROWS_TOGETHER) {
        const lnrnn_step_rows some = rows_together(rows, r);
        LNRNN_AS_READ(lstm_rows, 0, step, &some);
        if (!step->deferred_output)
            lstm_output_rows(step, some.n, some.c, some.h);
    }
}

/* Computes a step as lstm_step does, with peephole weights p: i, f = sigmoid(z + p c) with the old c. Then o
 * = sigmoid(z + p c) with the new c before its norm. With a norm, `how` is not a compile-time constant, which
 * keeps this code small. */
static void lstm_peephole_step(const lnrnn_step_config *step, const lnrnn_step_rows *rows)
{
    for (size_t r = 0; r < rows->n; r += LNRNN_ROWS_TOGETHER) {
        const lnrnn_step_rows some = rows_together(rows, r);
        if (step->hidden->how == LNRNN_PLAIN)
            lstm_rows_with(1, LNRNN_PLAIN, 0, step, &some);
        else
            lstm_rows_with(1, step->hidden->how, rows->x != NULL, step, &some);
        if (!step->deferred_output)
            lstm_output_rows(step, some.n, some.c, some.h);
    }
}

/* --- backward --------------------------------------------------------------------------------------- */

LNRNN_INLINE void lstm_cell_sum_units(size_t i, size_t k, const int whole, const gradient_row *row)
{
    const float *const gates = row->saved_gates + i;
    const v32 i_gate = get_f32(gates + GATE_I * row->H, k, whole);
    const v32 f_gate = get_f32(gates + GATE_F * row->H, k, whole);
    const v32 g_gate = get_f32(gates + GATE_G * row->H, k, whole);
    const v32 c_prev = get_f32(row->state_prev + i, k, whole);
    put_f32(row->sum + i, v32_fma(f_gate, c_prev, i_gate * g_gate), k, whole);
}

/* Writes b->sum (rows, H) = f c_prev + i g, bit for bit as in lstm_step. */
static void lstm_cell_sum(const lnrnn_gate_gradients *b) { LNRNN_FOR_GRADIENTS(b, lstm_cell_sum_units); }

LNRNN_INLINE void lstm_output_backward_units(size_t i, size_t k, const int whole, const gradient_row *row)
{
    const size_t at_o = GATE_O * row->H + i;
    const v32 o = get_f32(row->saved_gates + at_o, k, whole),
              tanh_u = v32_tanh(get_f32(row->u + i, k, whole));
    const v32 gh = get_f32(row->gh + i, k, whole), gu = gh * o * tanh_slope(tanh_u);
    put_f32(row->ga + at_o, gh * tanh_u * gate_slope(row, o), k, whole);
    put_f32(row->gu + i, row->carry ? gu + get_f32(row->gc + i, k, whole) : gu, k, whole);
    if (row->carry)
        put_f32(row->gc + i, v32_zero(), k, whole);
}

/* Back-propagates gh through h = o tanh(u), u = norm(c). Writes the output gate of ga, and gu. If the next
 * step gets u (LNRNN_CELL_CARRY), adds gc to gu and sets gc to 0. */
static void lstm_output_backward(const lnrnn_gate_gradients *b)
{
    LNRNN_FOR_GRADIENTS(b, lstm_output_backward_units);
}

LNRNN_INLINE void lstm_backward_units(size_t i, size_t k, const int whole, const gradient_row *row)
{
    const size_t H = row->H;
    const float *const gates = row->saved_gates + i;
    float *const ga = row->ga + i;
    const v32 i_gate = get_f32(gates + GATE_I * H, k, whole), f_gate = get_f32(gates + GATE_F * H, k, whole);
    const v32 g_gate = get_f32(gates + GATE_G * H, k, whole), c_prev = get_f32(row->state_prev + i, k, whole);
    const v32 gc = get_f32(row->gc + i, k, whole) + get_f32(row->gu + i, k, whole);
    put_f32(ga + GATE_I * H, gc * g_gate * gate_slope(row, i_gate), k, whole);
    put_f32(ga + GATE_F * H, gc * c_prev * gate_slope(row, f_gate), k, whole);
    put_f32(ga + GATE_G * H, gc * i_gate * tanh_slope(g_gate), k, whole);
    put_f32(row->gc + i, gc * f_gate, k, whole);
}

/* Adds gu to gc, and back-propagates gc through c = f c_prev + i g. Writes the gates i, f and g of ga, and
 * replaces gc by the gradient of c_prev. */
static void lstm_backward(const lnrnn_gate_gradients *b) { LNRNN_FOR_GRADIENTS(b, lstm_backward_units); }

#endif
