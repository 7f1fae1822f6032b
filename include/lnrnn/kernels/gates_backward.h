/* The derivatives of the gated cells, unit by unit: what stands between the gradient of a state and those of the norms'
 * outputs. gates.h has the cells, lnrnn_gate_gradients in kernels.h names the arrays, the tape holds the gates' values.
 */
#ifndef LNRNN_GATES_BACKWARD_H
#define LNRNN_GATES_BACKWARD_H

#include "lnrnn/kernels/gates.h"

/* h = o tanh(u): gh, o and u -> the output gate's part of ga, and gu. */
static void lstm_out_backward(const lnrnn_gate_gradients *b)
{
    for (size_t r = 0; r < b->rows; r++) {
        const float *o = b->saved_gates + (ptrdiff_t)r * b->ks + 3 * b->H, *u = b->u + (ptrdiff_t)r * b->us;
        const float *gh = b->gh + (ptrdiff_t)r * b->hs;
        float *ga = b->ga + (ptrdiff_t)r * b->as + 3 * b->H, *gu = b->gu + (ptrdiff_t)r * b->hs;
#define LNRNN_CALL(i, k, whole)                                                                \
    do {                                                                                       \
        const v32 out = get_f32(o + (i), k, whole), th = v32_tanh(get_f32(u + (i), k, whole)); \
        const v32 g = get_f32(gh + (i), k, whole);                                             \
        put_f32(ga + (i), v32_mul(v32_mul(g, th), sigmoid_slope(out)), k, whole);              \
        put_f32(gu + (i), v32_mul(v32_mul(g, out), tanh_slope(th)), k, whole);                 \
    } while (0)
        LNRNN_OVER(b->H, LNRNN_CALL);
#undef LNRNN_CALL
    }
}

/* c = f c_prev + i g: gc, to which gu is still to be added -> the other parts of ga, and gc of the step before. */
static void lstm_backward(const lnrnn_gate_gradients *b)
{
    const size_t H = b->H;
    for (size_t r = 0; r < b->rows; r++) {
        const float *gates = b->saved_gates + (ptrdiff_t)r * b->ks, *c = b->state_prev[r],
                    *gu = b->gu + (ptrdiff_t)r * b->hs;
        float *ga = b->ga + (ptrdiff_t)r * b->as, *gc = b->gc + (ptrdiff_t)r * b->hs;
#define LNRNN_CALL(i, k, whole)                                                                          \
    do {                                                                                                 \
        const v32 in = get_f32(gates + (i), k, whole), forget = get_f32(gates + H + (i), k, whole);      \
        const v32 cell = get_f32(gates + 2 * H + (i), k, whole);                                         \
        const v32 g = v32_add(get_f32(gc + (i), k, whole), get_f32(gu + (i), k, whole));                 \
        put_f32(ga + (i), v32_mul(v32_mul(g, cell), sigmoid_slope(in)), k, whole);                       \
        put_f32(ga + H + (i), v32_mul(v32_mul(g, get_f32(c + (i), k, whole)), sigmoid_slope(forget)), k, \
                whole);                                                                                  \
        put_f32(ga + 2 * H + (i), v32_mul(v32_mul(g, in), tanh_slope(cell)), k, whole);                  \
        put_f32(gc + (i), v32_mul(g, forget), k, whole);                                                 \
    } while (0)
        LNRNN_OVER(H, LNRNN_CALL);
#undef LNRNN_CALL
    }
}

/* h = (1 - z) n + z h_prev, n = tanh(x + r u): gh -> gx and ga, which differ in n, and what z hands on of gh. */
static void gru_backward(const lnrnn_gate_gradients *b)
{
    const size_t H = b->H;
    const v32 one = v32_set1(1.0f);
    for (size_t row = 0; row < b->rows; row++) {
        const float *gates = b->saved_gates + (ptrdiff_t)row * b->ks, *h = b->state_prev[row],
                    *u = b->u + (ptrdiff_t)row * b->us;
        float *gx = b->gx + (ptrdiff_t)row * b->as, *ga = b->ga + (ptrdiff_t)row * b->as;
        float *gh = b->gh + (ptrdiff_t)row * b->hs;
#define LNRNN_CALL(i, k, whole)                                                                       \
    do {                                                                                              \
        const v32 r = get_f32(gates + (i), k, whole), z = get_f32(gates + H + (i), k, whole);         \
        const v32 n = get_f32(gates + 2 * H + (i), k, whole), g = get_f32(gh + (i), k, whole);        \
        const v32 gn = v32_mul(v32_mul(g, v32_sub(one, z)), tanh_slope(n));                           \
        const v32 gz = v32_mul(v32_mul(g, v32_sub(get_f32(h + (i), k, whole), n)), sigmoid_slope(z)); \
        const v32 gr = v32_mul(v32_mul(gn, get_f32(u + (i), k, whole)), sigmoid_slope(r));            \
        put_f32(gx + (i), gr, k, whole);                                                              \
        put_f32(ga + (i), gr, k, whole);                                                              \
        put_f32(gx + H + (i), gz, k, whole);                                                          \
        put_f32(ga + H + (i), gz, k, whole);                                                          \
        put_f32(gx + 2 * H + (i), gn, k, whole);                                                      \
        put_f32(ga + 2 * H + (i), v32_mul(gn, r), k, whole);                                          \
        put_f32(gh + (i), v32_mul(g, z), k, whole);                                                   \
    } while (0)
        LNRNN_OVER(H, LNRNN_CALL);
#undef LNRNN_CALL
    }
}

#endif
