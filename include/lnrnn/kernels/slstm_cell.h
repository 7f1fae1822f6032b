/* The sLSTM's cell (arXiv 2405.04517): a step after the products, its derivative, and the norm of each head
 * after it. A row of the cell state has 3 H values: c, n and m. table.h has the types of the rows. */
#ifndef LNRNN_SLSTM_CELL_H
#define LNRNN_SLSTM_CELL_H

#include "lnrnn/kernels/activations.h"
#include "lnrnn/kernels/gate_norm.h"

/* The gates, in the order of their weights: i, f, z, o. */
enum { SLSTM_I, SLSTM_F, SLSTM_Z, SLSTM_O, SLSTM_GATES };

/* log(sigmoid(x)) = min(0, x) - log(1 + e), e = exp(-|x|), with 3 ULP at most. With s = e / (2 + e), log(1 +
 * e) is 2 atanh(s), a minimax polynomial for s^2 <= 1/9 with a relative error of 6e-9. So no digits cancel
 * for large x, and nothing overflows for small x. */
LNRNN_INLINE v32 v32_log_sigmoid(v32 x)
{
    const v32 e = v32_exp(v32_zero() - v32_abs(x)), s = e / (e + v32_set1(2.0f)), t = s * s;
    v32 p = v32_set1(0x1.1ed7c2p-3f);
    p = v32_fma(p, t, v32_set1(0x1.1ebd0cp-3f));
    p = v32_fma(p, t, v32_set1(0x1.99d208p-3f));
    p = v32_fma(p, t, v32_set1(0x1.555502p-2f));
    const v32 half = v32_fma(s * t, p, s);
    return v32_min(v32_zero(), x) - (half + half);
}

/* The gates of a unit, and its new state. A unit with n = 0 is at its first step: the old c and m are not
 * used. */
typedef struct {
    v32 i, f; /* i' and f' of slstm_step: one of them is 1, none is larger */
    v32 old;  /* 1 where m' is lf + m, 0 where m' is i (slstm_step) */
    v32 c_prev, c, n, m;
} slstm_unit;

/* i, f: the gates before their activations; z: after tanh. Returns the new state of units with the state c,
 * n, m. */
LNRNN_INLINE slstm_unit slstm_new_unit(const int exp_forget, v32 i, v32 f, v32 z, v32 c, v32 n, v32 m)
{
    const v32 one = v32_set1(1.0f), zero = v32_zero(), least = v32_set1(0x1p-149f);
    const v32 size = v32_abs(n), lf = exp_forget ? f : v32_log_sigmoid(f), kept = lf + m;
    slstm_unit u;
    u.m = v32_select_lt(size, least, i, v32_max(kept, i));
    u.i = v32_exp(i - u.m);
    u.f = v32_select_lt(size, least, zero, v32_exp(kept - u.m));
    u.old = v32_select_lt(size, least, zero, v32_select_lt(i, kept, one, zero));
    u.c_prev = v32_select_lt(size, least, zero, c);
    u.c = v32_fma(u.f, u.c_prev, u.i * z);
    u.n = v32_fma(u.f, n, u.i);
    return u;
}

LNRNN_INLINE v32 slstm_rounded(const int rounds, v32 v) { return rounds ? v32_from_bf16(v32_to_bf16(v)) : v; }

/* Writes c, n, m, h and, unless NULL, saved_gates: i and f before the activation, z and o after it. */
LNRNN_INLINE void slstm_units(size_t first, size_t k, const int whole, const int exp_forget, const int rounds,
                              const gate_row *row)
{
    const size_t H = row->hidden.norm->H;
    float *const c = row->c + first, *const n = c + H, *const m = n + H;
    const v32 i = gate_sum(LNRNN_PLAIN, 0, row, SLSTM_I, first, k, whole);
    const v32 f = gate_sum(LNRNN_PLAIN, 0, row, SLSTM_F, first, k, whole);
    const v32 z = v32_tanh(gate_sum(LNRNN_PLAIN, 0, row, SLSTM_Z, first, k, whole));
    const v32 o = v32_sigmoid(gate_sum(LNRNN_PLAIN, 0, row, SLSTM_O, first, k, whole));
    const slstm_unit u =
        slstm_new_unit(exp_forget, i, f, z, get_f32(c, k, whole), get_f32(n, k, whole), get_f32(m, k, whole));
    put_f32(c, slstm_rounded(rounds, u.c), k, whole);
    put_f32(n, slstm_rounded(rounds, u.n), k, whole);
    put_f32(m, slstm_rounded(rounds, u.m), k, whole);
    put_f32(row->h + first, slstm_rounded(rounds, o * u.c / u.n), k, whole);
    if (row->saved_gates) {
        put_f32(row->saved_gates + SLSTM_I * H + first, i, k, whole);
        put_f32(row->saved_gates + SLSTM_F * H + first, f, k, whole);
        put_f32(row->saved_gates + SLSTM_Z * H + first, z, k, whole);
        put_f32(row->saved_gates + SLSTM_O * H + first, o, k, whole);
    }
}

/* a is the sum of both products, without bias. With (i, f, z, o) = a + bias and lf = log sigmoid(f), or f
 * with step->exp_forget:
 *     m' = max(i, lf + m), i' = exp(i - m'), f' = exp(lf + m - m')
 *     c' = f' c + i' tanh(z), n' = f' n + i', h' = sigmoid(o) c' / n'
 * but m' = i and f' = 0 where n is 0. step->round_states: h', c', n', m' are rounded to bfloat16. */
static void slstm_step(const lnrnn_step_config *step, const lnrnn_step_rows *rows)
{
    for (size_t r = 0; r < rows->n; r++) {
        const gate_row row = gate_row_of(SLSTM_GATES, 0, LNRNN_PLAIN, 0, step, rows, r, NULL);
        if (step->round_states)
            LNRNN_FOR_UNITS(step->hidden->H, slstm_units, step->exp_forget, 1, &row);
        else if (step->exp_forget)
            LNRNN_FOR_UNITS(step->hidden->H, slstm_units, 1, 0, &row);
        else
            LNRNN_FOR_UNITS(step->hidden->H, slstm_units, 0, 0, &row);
    }
}

/* --- the norm of each head ----------------------------------------------------------------------------- */

LNRNN_INLINE void head_units(size_t i, size_t k, const int whole, const float *x, const float *gain,
                             const float *bias, const span_moments *m, size_t at, float *y)
{
    const v32 v = normalised_f32(get_f32(x + i, k, whole), v32_set1(m->mean[at]), v32_set1(m->rstd[at]),
                                 v32_set1(m->rest[at]));
    put_f32(y + i, v32_fma(v, get_f32(gain + i, k, whole), get_f32(bias + i, k, whole)), k, whole);
}

/* h, y: `rows` pointers to (heads * norm->H). Writes to y each head of h after the norm, with gain and
 * bias. */
static void normalise_heads(const lnrnn_gate_norm *norm, size_t heads, size_t rows, const float *const *h,
                            float *const *y)
{
    const size_t width = norm->H, all = rows * heads;
    for (size_t first = 0, some; first < all; first += some) {
        const float *starts[LNRNN_SPANS_TOGETHER];
        span_moments m;
        some = all - first < LNRNN_SPANS_TOGETHER ? all - first : LNRNN_SPANS_TOGETHER;
        for (size_t j = 0; j < some; j++)
            starts[j] = h[(first + j) / heads] + (first + j) % heads * width;
        moments_of_spans(width, some, starts, norm, &m);
        for (size_t j = 0; j < some; j++) {
            const size_t at = (first + j) % heads * width;
            LNRNN_FOR_UNITS(width, head_units, starts[j], norm->gain + at, norm->bias + at, &m, j,
                            y[(first + j) / heads] + at);
        }
    }
}

/* --- backward ------------------------------------------------------------------------------------------ */

LNRNN_INLINE void slstm_backward_units(size_t first, size_t k, const int whole, const int exp_forget,
                                       const gradient_row *row)
{
    const size_t H = row->H;
    const float *const gates = row->saved_gates + first, *const c = row->state_prev + first;
    float *const ga = row->ga + first, *const gc_row = row->gc + first;
    const v32 f = get_f32(gates + SLSTM_F * H, k, whole), z = get_f32(gates + SLSTM_Z * H, k, whole);
    const v32 o = get_f32(gates + SLSTM_O * H, k, whole), n = get_f32(c + H, k, whole);
    const slstm_unit u = slstm_new_unit(exp_forget, get_f32(gates + SLSTM_I * H, k, whole), f, z,
                                        get_f32(c, k, whole), n, get_f32(c + 2 * H, k, whole));
    const v32 gh = get_f32(row->gh + first, k, whole), ratio = u.c / u.n, share = gh * o / u.n;
    const v32 gc = get_f32(gc_row, k, whole) + share;
    const v32 gn = get_f32(gc_row + H, k, whole) - share * ratio;
    const v32 gm = get_f32(gc_row + 2 * H, k, whole), gm_old = u.old * gm;
    const v32 gf = v32_fma(v32_fma(gc, u.c_prev, gn * n), u.f, gm_old);
    put_f32(ga + SLSTM_I * H, v32_fma(v32_fma(gc, z, gn), u.i, gm - gm_old), k, whole);
    put_f32(ga + SLSTM_F * H, exp_forget ? gf : gf * v32_sigmoid(v32_zero() - f), k, whole);
    put_f32(ga + SLSTM_Z * H, gc * u.i * tanh_slope(z), k, whole);
    put_f32(ga + SLSTM_O * H, gh * ratio * sigmoid_slope(o), k, whole);
    put_f32(gc_row, gc * u.f, k, whole);
    put_f32(gc_row + H, gn * u.f, k, whole);
    put_f32(gc_row + 2 * H, gm_old, k, whole);
}

/* Writes ga. Replaces gc, the gradients of c', n' and m', by the gradients of c, n and m. The gradient of m'
 * is taken at constant c' exp(m') and n' exp(m'), which alone determine h'. So the gradient of m' is 0, and
 * no large terms cancel, unless the loss depends on the last c, n or m. Ignores the rounding of states. */
static void slstm_backward(const lnrnn_gate_gradients *b)
{
    for (size_t r = 0; r < b->rows; r++) {
        gradient_row row = gradient_row_of(b, r, 0);
        row.gc = b->gc + (ptrdiff_t)r * b->gcs;
        if (b->exp_forget)
            LNRNN_FOR_UNITS(row.H, slstm_backward_units, 1, &row);
        else
            LNRNN_FOR_UNITS(row.H, slstm_backward_units, 0, &row);
    }
}

#endif
