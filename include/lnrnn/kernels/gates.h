/* One time step of the gated cells on rows that sit in L1: what follows the matrix products.
 *
 * A row has G*H values, gate after gate. Each of the products W x and W h, or their sum, is read as
 *     LNRNN_PLAIN     v + bias
 *     LNRNN_AFFINE    (v - mean) * gain + bias       batch norm; mean may be NULL for 0
 *     LNRNN_NORMED    (v - m) / sqrt(var + eps) * gain + bias, m and var over `spans` of the row
 * and that makes all the known cells: see lnrnn_gate_norm in lnrnn.h, and lnrnn/reference for the equations.
 */
#ifndef LNRNN_GATES_H
#define LNRNN_GATES_H

#include "lnrnn/kernels/cells.h"

/* Mean and 1 / sigma of each gate's span, as normalised() wants them. */
typedef struct {
    v32 mean[4], rstd[4], c[4];
} gate_moments;

/* a (G*H) -> the moments of its spans. */
LNRNN_INLINE void gate_spans(const int G, const lnrnn_gate_norm *g, const float *a, gate_moments *m)
{
    for (int from = 0; from < G;) {
        const int to = g->spans == LNRNN_SPANS_ALL            ? G
                       : g->spans == LNRNN_SPANS_EACH || from ? from + 1
                                                              : G - 1;
        float m0, m1, rstd;
        row_moments((size_t)(to - from) * g->H, a + (size_t)from * g->H, g->eps, &m0, &m1, &rstd);
        for (; from < to; from++)
            m->mean[from] = v32_set1(m0), m->rstd[from] = v32_set1(rstd), m->c[from] = v32_set1(-m1 * rstd);
    }
}

/* Values i .. of gate j of a row, read as g says. */
LNRNN_INLINE v32 gate_read(const int how, const lnrnn_gate_norm *g, const float *a, const gate_moments *m,
                           const int j, size_t i, size_t k, const int whole)
{
    const size_t at = (size_t)j * g->H + i;
    v32 v = get_f32(a + at, k, whole);
    if (how == LNRNN_PLAIN)
        return v32_add(v, get_f32(g->bias + at, k, whole));
    if (how == LNRNN_NORMED)
        v = normalised_f32(v, m->mean[j], m->rstd[j], m->c[j]);
    else if (g->mean)
        v = v32_sub(v, get_f32(g->mean + at, k, whole));
    return v32_fma(v, get_f32(g->gain + at, k, whole), get_f32(g->bias + at, k, whole));
}

/* The same, added to what x (G*H) holds, if separate. */
LNRNN_INLINE v32 gate_sum(const int how, const int separate, const lnrnn_gate_norm *g, const float *x,
                          const float *a, const gate_moments *m, const int j, size_t i, size_t k,
                          const int whole)
{
    const v32 z = gate_read(how, g, a, m, j, i, k, whole);
    return separate ? v32_add(get_f32(x + (size_t)j * g->H + i, k, whole), z) : z;
}

/* Runs CALL(i, k, whole) over 0 .. n-1, a vector at a time. */
#define LNRNN_OVER(n, CALL)                            \
    do {                                               \
        size_t i_ = 0;                                 \
        for (; i_ + V32_LANES <= (n); i_ += V32_LANES) \
            CALL(i_, V32_LANES, 1);                    \
        if (i_ < (n))                                  \
            CALL(i_, (n) - i_, 0);                     \
    } while (0)

/* CALL(how), how a constant. */
#define LNRNN_EACH_HOW(how, CALL)                 \
    switch (how) {                                \
    case LNRNN_PLAIN: CALL(LNRNN_PLAIN); break;   \
    case LNRNN_AFFINE: CALL(LNRNN_AFFINE); break; \
    default: CALL(LNRNN_NORMED); break;           \
    }

LNRNN_INLINE void input_side_gates(const int how, const int G, const lnrnn_gate_norm *g, const float *x,
                                   float *y)
{
    gate_moments m;
    if (how == LNRNN_NORMED)
        gate_spans(G, g, x, &m);
    for (int j = 0; j < G; j++) {
#define LNRNN_CALL(i, k, whole) \
    put_f32(y + (size_t)j * g->H + (i), gate_read(how, g, x, &m, j, i, k, whole), k, whole)
        LNRNN_OVER(g->H, LNRNN_CALL);
#undef LNRNN_CALL
    }
}

/* x (rows, G*H), xs apart -> y (rows, G*H), ys apart: x as g reads it. y may be x. */
static void input_side(int G, const lnrnn_gate_norm *g, size_t rows, const float *x, ptrdiff_t xs, float *y,
                       ptrdiff_t ys)
{
    for (size_t r = 0; r < rows; r++, x += xs, y += ys) {
#define LNRNN_CALL(c)                                \
    switch (G) {                                     \
    case 1: input_side_gates(c, 1, g, x, y); break;  \
    case 3: input_side_gates(c, 3, g, x, y); break;  \
    default: input_side_gates(c, 4, g, x, y); break; \
    }
        LNRNN_EACH_HOW(g->how, LNRNN_CALL)
#undef LNRNN_CALL
    }
}

/* x (rows, H), xs apart; a (rows, H), as apart, read as g says; y: rows pointers -> y = act(x + a). */
static void rnn_separate(int act, const lnrnn_gate_norm *g, size_t rows, const float *x, ptrdiff_t xs,
                         const float *a, ptrdiff_t as, float *const *y)
{
    for (size_t r = 0; r < rows; r++, x += xs, a += as) {
        gate_moments m;
        gate_spans(1, g, a, &m);
#define LNRNN_CALL(i, k, whole)                                                                              \
    put_f32(y[r] + (i),                                                                                      \
            v32_act(act,                                                                                     \
                    v32_add(get_f32(x + (i), k, whole), gate_read(LNRNN_NORMED, g, a, &m, 0, i, k, whole))), \
            k, whole)
        LNRNN_OVER(g->H, LNRNN_CALL);
#undef LNRNN_CALL
    }
}

/* --- LSTM ------------------------------------------------------------------------------------------------------ */

LNRNN_INLINE void lstm_units(const int how, const int separate, const lnrnn_gate_norm *g, const float *x,
                             const float *a, const gate_moments *m, float *c, float *h, float *saved_gates,
                             size_t i, size_t k, const int whole)
{
    const v32 in = v32_sigmoid(gate_sum(how, separate, g, x, a, m, 0, i, k, whole));
    const v32 forget = v32_sigmoid(gate_sum(how, separate, g, x, a, m, 1, i, k, whole));
    const v32 cell = v32_tanh(gate_sum(how, separate, g, x, a, m, 2, i, k, whole));
    const v32 out = v32_sigmoid(gate_sum(how, separate, g, x, a, m, 3, i, k, whole));
    const v32 now = v32_fma(forget, get_f32(c + i, k, whole), v32_mul(in, cell));
    put_f32(c + i, now, k, whole);
    put_f32(h + i, g->cell_norm == LNRNN_CELL_NONE ? v32_mul(out, v32_tanh(now)) : out, k, whole);
    if (saved_gates) {
        put_f32(saved_gates + i, in, k, whole);
        put_f32(saved_gates + g->H + i, forget, k, whole);
        put_f32(saved_gates + 2 * g->H + i, cell, k, whole);
        put_f32(saved_gates + 3 * g->H + i, out, k, whole);
    }
}

/* c: rows pointers to the cell states (H), h: to the output gates -> h = o * tanh(norm(c)); carry: c = norm(c) too. */
static void lstm_out(const lnrnn_gate_norm *g, size_t rows, float *const *c, float *const *h)
{
    const lnrnn_gate_norm of_c = {.H = g->H,
                                  .how = g->cell_how,
                                  .spans = LNRNN_SPANS_ALL,
                                  .eps = g->eps,
                                  .mean = g->mean_c,
                                  .gain = g->gain_c,
                                  .bias = g->bias_c};
    for (size_t r = 0; r < rows; r++) {
        gate_moments m;
        if (of_c.how == LNRNN_NORMED) {
            gate_spans(1, &of_c, c[r], &m);
#define LNRNN_CALL(i, k, whole)                                                             \
    do {                                                                                    \
        const v32 u = gate_read(LNRNN_NORMED, &of_c, c[r], &m, 0, i, k, whole);             \
        if (g->cell_norm == LNRNN_CELL_CARRY)                                               \
            put_f32(c[r] + (i), u, k, whole);                                               \
        put_f32(h[r] + (i), v32_mul(get_f32(h[r] + (i), k, whole), v32_tanh(u)), k, whole); \
    } while (0)
            LNRNN_OVER(g->H, LNRNN_CALL);
#undef LNRNN_CALL
        } else {
#define LNRNN_CALL(i, k, whole)                                                          \
    put_f32(h[r] + (i),                                                                  \
            v32_mul(get_f32(h[r] + (i), k, whole),                                       \
                    v32_tanh(gate_read(LNRNN_AFFINE, &of_c, c[r], &m, 0, i, k, whole))), \
            k, whole)
            LNRNN_OVER(g->H, LNRNN_CALL);
#undef LNRNN_CALL
        }
    }
}

LNRNN_INLINE void lstm_row(const int how, const int separate, const lnrnn_gate_norm *g, const float *x,
                           const float *a, float *c, float *h, float *saved_gates)
{
    gate_moments m;
    if (how == LNRNN_NORMED)
        gate_spans(4, g, a, &m);
#define LNRNN_CALL(i, k, whole) lstm_units(how, separate, g, x, a, &m, c, h, saved_gates, i, k, whole)
    LNRNN_OVER(g->H, LNRNN_CALL);
#undef LNRNN_CALL
}

/* x (rows, 4*H), xs apart, or NULL; a (rows, 4*H), as apart, read as g says: the gates i, f, g, o are x + a. c: rows
 * pointers to the cell states (H) -> the next ones, and h: rows pointers to the outputs (H). saved_gates (rows, 4*H), ks apart,
 * or NULL: gets the gates. With g->deferred_output h is only the output gate, and lstm_out is still to come. */
static void lstm(const lnrnn_gate_norm *g, size_t rows, const float *x, ptrdiff_t xs, const float *a,
                 ptrdiff_t as, float *const *c, float *const *h, float *saved_gates, ptrdiff_t ks)
{
    for (size_t r = 0; r < rows; r++, a += as) {
        float *const kept = saved_gates ? saved_gates + (ptrdiff_t)r * ks : NULL;
        const float *const row = x ? x + (ptrdiff_t)r * xs : NULL;
#define LNRNN_CALL(how)                                \
    if (row)                                           \
        lstm_row(how, 1, g, row, a, c[r], h[r], kept); \
    else                                               \
        lstm_row(how, 0, g, row, a, c[r], h[r], kept)
        LNRNN_EACH_HOW(g->how, LNRNN_CALL)
#undef LNRNN_CALL
        if (g->cell_norm != LNRNN_CELL_NONE && !g->deferred_output)
            lstm_out(g, 1, c + r, h + r);
    }
}

/* --- GRU ------------------------------------------------------------------------------------------------------- */

/* n and z -> h = (1 - z) n + z h */
LNRNN_INLINE void gru_mix(v32 z, v32 n, const float *h_prev, float *h, size_t k, const int whole)
{
    put_f32(h, v32_fma(z, v32_sub(get_f32(h_prev, k, whole), n), n), k, whole);
}

LNRNN_INLINE void gru_save_gates(const lnrnn_gate_norm *g, float *saved_gates, v32 r, v32 z, v32 n, size_t i,
                                 size_t k, const int whole)
{
    put_f32(saved_gates + i, r, k, whole);
    put_f32(saved_gates + g->H + i, z, k, whole);
    put_f32(saved_gates + 2 * g->H + i, n, k, whole);
}

LNRNN_INLINE void gru_units(const int how, const int separate, const lnrnn_gate_norm *g, const float *x,
                            const float *a, const gate_moments *m, const float *h_prev, float *h,
                            float *saved_gates, size_t i, size_t k, const int whole)
{
    const v32 r = v32_sigmoid(gate_sum(how, separate, g, x, a, m, 0, i, k, whole));
    const v32 z = v32_sigmoid(gate_sum(how, separate, g, x, a, m, 1, i, k, whole));
    const v32 recurrent = gate_read(how, g, a, m, 2, i, k, whole);
    const v32 n = v32_tanh(separate ? v32_fma(r, recurrent, get_f32(x + 2 * g->H + i, k, whole))
                                    : v32_mul(r, recurrent));
    if (saved_gates)
        gru_save_gates(g, saved_gates, r, z, n, i, k, whole);
    gru_mix(z, n, h_prev + i, h + i, k, whole);
}

LNRNN_INLINE void gru_row(const int how, const int separate, const lnrnn_gate_norm *g, const float *x,
                          const float *a, const float *h_prev, float *h, float *saved_gates)
{
    gate_moments m;
    if (how == LNRNN_NORMED)
        gate_spans(3, g, a, &m);
#define LNRNN_CALL(i, k, whole) gru_units(how, separate, g, x, a, &m, h_prev, h, saved_gates, i, k, whole)
    LNRNN_OVER(g->H, LNRNN_CALL);
#undef LNRNN_CALL
}

/* x, a as for lstm: r, z = sigmoid(x + a), n = tanh(x + r a), or tanh(r a) without x; h_prev, h: rows pointers to the
 * states (H), which may be the same -> h. saved_gates (rows, 3*H), ks apart, or NULL: gets r, z, n. */
static void gru(const lnrnn_gate_norm *g, size_t rows, const float *x, ptrdiff_t xs, const float *a,
                ptrdiff_t as, const float *const *h_prev, float *const *h, float *saved_gates, ptrdiff_t ks)
{
    for (size_t r = 0; r < rows; r++, a += as) {
        float *const kept = saved_gates ? saved_gates + (ptrdiff_t)r * ks : NULL;
        const float *const row = x ? x + (ptrdiff_t)r * xs : NULL;
#define LNRNN_CALL(how)                                    \
    if (row)                                               \
        gru_row(how, 1, g, row, a, h_prev[r], h[r], kept); \
    else                                                   \
        gru_row(how, 0, g, row, a, h_prev[r], h[r], kept)
        LNRNN_EACH_HOW(g->how, LNRNN_CALL)
#undef LNRNN_CALL
    }
}

/* The same with a norm for each gate, LNRNN_SPANS_EACH: r, z = sigmoid(norm(x + a)), n = tanh(norm(x + r a)).
 * sum (3*H) is scratch. */
static void gru_gate(const lnrnn_gate_norm *g, size_t rows, const float *x, ptrdiff_t xs, const float *a,
                     ptrdiff_t as, const float *const *h_prev, float *const *h, float *sum)
{
    const size_t H = g->H;
    for (size_t row = 0; row < rows; row++, x += xs, a += as) {
        gate_moments m;
#define LNRNN_CALL(i, k, whole) \
    put_f32(sum + (i), v32_add(get_f32(x + (i), k, whole), get_f32(a + (i), k, whole)), k, whole)
        LNRNN_OVER(2 * H, LNRNN_CALL);
#undef LNRNN_CALL
        gate_spans(2, g, sum, &m);
#define LNRNN_CALL(i, k, whole)                                                                        \
    do {                                                                                               \
        const v32 r = v32_sigmoid(gate_read(LNRNN_NORMED, g, sum, &m, 0, i, k, whole));                \
        put_f32(sum + 2 * H + (i),                                                                     \
                v32_fma(r, get_f32(a + 2 * H + (i), k, whole), get_f32(x + 2 * H + (i), k, whole)), k, \
                whole);                                                                                \
    } while (0)
        LNRNN_OVER(H, LNRNN_CALL);
#undef LNRNN_CALL
        gate_moments last;
        gate_spans(1, g, sum + 2 * H, &last);
        m.mean[2] = last.mean[0], m.rstd[2] = last.rstd[0], m.c[2] = last.c[0];
#define LNRNN_CALL(i, k, whole)                                                                             \
    gru_mix(v32_sigmoid(gate_read(LNRNN_NORMED, g, sum, &m, 1, i, k, whole)),                               \
            v32_tanh(gate_read(LNRNN_NORMED, g, sum, &m, 2, i, k, whole)), h_prev[row] + (i), h[row] + (i), \
            k, whole)
        LNRNN_OVER(H, LNRNN_CALL);
#undef LNRNN_CALL
    }
}

#endif
