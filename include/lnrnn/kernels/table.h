/* The tables of kernels. Every instruction set has one of each, which all.h fills in; all other C calls
 * kernels through them and never by name.
 */
#ifndef LNRNN_TABLE_H
#define LNRNN_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "lnrnn.h"

/* --- the norms: layer_norm.h, batch_norm.h, once for every type in memory ------------------------------
 *
 * x, y, gy and gx are arrays of that type. `real` is the type of the arithmetic, double for LNRNN_FLOAT64 and
 * else float. An array that may be NULL is then not used: a gain of 1, a bias of 0. Strides count values.
 */

/* Rows of layer norm, or RMS norm: y = (x - mean) / sqrt(var + eps) * gain + bias, mean and var of each
 * row. */
typedef struct {
    size_t rows, n;
    const void *x; /* (rows, n), row stride xs; n >= 1 */
    void *y;       /* (rows, n), row stride ys; may be x */
    ptrdiff_t xs, ys;
    const void *gain, *bias; /* (n) of real, or NULL */
    double eps;
    int centred;     /* 0: RMS norm, whose mean is 0 and which has no bias */
    int nontemporal; /* y is too large for the caches: use non-temporal stores */
} lnrnn_layer_norm_rows;

/* Rows of layer norm's backward pass; g... is the gradient of the loss in ... */
typedef struct {
    size_t rows, n;
    const void *gy, *x; /* (rows, n), row strides gys, xs; n >= 1 */
    void *gx;           /* (rows, n), row stride gxs; may be gy or x */
    ptrdiff_t gys, xs, gxs;
    const void *gain; /* (n) of real, or NULL */
    double eps;
    double *ggain, *gbias; /* (n): the sums of these rows are added */
    void *partial;         /* (2, n) of real: zeros before and after */
} lnrnn_layer_norm_gradients;

/* Samples of a batch (N, C, L), and some of its channels, to be summed. */
typedef struct {
    size_t samples, C, channels, L;
    const void *x, *gy; /* (samples, the first `channels` of C, L); gy may be NULL */
    const void *pivot;  /* (channels) of real: a value near each channel's mean */
    double *sums;  /* (2, C), with gy (4, C): sum d, sum d^2, sum gy, sum gy d are added, d = x - pivot */
    void *partial; /* (4, channels) of real: zeros before and after */
} lnrnn_batch_block;

/* Statistics and parameters of n channels. */
typedef struct {
    size_t n;
    const double *mean; /* (n) */
    const double *m2; /* (n): sums of squared deviations over `count` values; with a count of 1: variances */
    double count;
    const void *gain, *bias; /* (n) of real, or NULL */
    double eps;
    const double *scales; /* (n) or NULL: what x, and so mean and m2, have been multiplied by */
} lnrnn_channels;

/* What a pass over x needs to know of each channel, (channels) of real each; slope: backward.
 *     y = (x - mean) scale + shift,  gx = scale (gy - (x - mean) slope - shift) */
typedef struct {
    void *mean, *scale, *shift, *slope;
} lnrnn_coefficients;

typedef struct {
    /* x -> y */
    void (*layer_norm)(const lnrnn_layer_norm_rows *rows);
    /* gy, x -> gx; adds to ggain, gbias */
    void (*layer_norm_backward)(const lnrnn_layer_norm_gradients *rows);
    /* x (N, C, L) -> pivot (C) of real */
    void (*batch_probe)(size_t N, size_t C, size_t L, const void *x, void *pivot);
    /* x, gy -> adds to sums */
    void (*batch_sums)(const lnrnn_batch_block *block);
    /* sums (2, n), pivot (n) of real -> mean, var (n); returns how many pivots it had to replace */
    size_t (*batch_moments)(size_t n, double count, const double *sums, void *pivot, double *mean,
                            double *var);
    /* -> whether channels must be scaled, and then: scales (n), mean, scale and shift of `out` */
    int (*batch_scales)(const lnrnn_channels *channels, double *scales, const lnrnn_coefficients *out);
    /* sums (4, n) about pivot (n) of real -> `out`, ggain, gbias (n); dmean: the derivative of a mean by one
     * value */
    void (*batch_slopes)(const lnrnn_channels *channels, double dmean, const double *sums, const void *pivot,
                         const lnrnn_coefficients *out, double *ggain, double *gbias);
    /* -> mean, scale and shift of `out` */
    void (*fold)(const lnrnn_channels *channels, const lnrnn_coefficients *out);
    /* x (rows, n) -> y (rows, n), contiguous; a channel is a column, or if by_row a row */
    void (*batch_affine)(size_t rows, size_t n, const void *x, const lnrnn_coefficients *c, void *y,
                         int by_row, int nontemporal);
    /* gy, x (rows, n) -> gx (rows, n), row stride `stride`; a channel is a column, or (planes) a row */
    void (*gx_columns)(size_t rows, size_t n, const void *gy, const void *x, ptrdiff_t stride,
                       const lnrnn_coefficients *c, void *gx);
    void (*gx_planes)(size_t rows, size_t n, const void *gy, const void *x, ptrdiff_t stride,
                      const lnrnn_coefficients *c, void *gx);
} lnrnn_norm;

/* gates_backward.h: some rows of one step on the way back; g... is the gradient of the loss in ... */
typedef struct {
    size_t H, rows;
    const float *saved_gates; /* (rows, G*H), ks apart: the gates, as the tape keeps them */
    const float *u; /* (rows, H), us apart: of an LSTM what h = o tanh(u) had, of a GRU what r multiplied */
    ptrdiff_t ks, us;
    const float *const *state_prev; /* rows pointers to (H): c, of a GRU h, before the step */
    float *gh, *gc, *gu;            /* (rows, H), hs apart; gc, gu: LSTM */
    float *gx, *ga; /* (rows, G*H), as apart: of the sides of W x (GRU) and W h, after their norms */
    ptrdiff_t hs, as;
} lnrnn_gate_gradients;

/* matmul.h: the product with packed weights. One table for float32 and bfloat16 weights, one for int8. A
 * panel is what separate threads never share. */
typedef struct lnrnn_product {
    size_t (*panels)(size_t);
    size_t (*start)(size_t, size_t);
    size_t (*width)(size_t);
    size_t (*size)(int, size_t, size_t);
    size_t (*scratch)(int, size_t);
    void (*pack)(int, size_t, size_t, const float *, ptrdiff_t, ptrdiff_t, uint32_t *);
    void (*pack_rows)(size_t, size_t, const float *const *, uint32_t *);
    void (*matmul)(int, size_t, size_t, size_t, const float *const *, const uint32_t *, size_t, size_t, int,
                   int, float *, ptrdiff_t, uint32_t *);
} lnrnn_product;

/* cells.h, gates.h, gates_backward.h, vmath.h. */
typedef struct {
    void (*rnn_layer)(int, size_t, size_t, const float *, ptrdiff_t, const float *, const float *, float,
                      float *const *);
    void (*rnn_affine)(int, size_t, size_t, const float *, ptrdiff_t, const float *, const float *,
                       const float *, float *const *);
    void (*rnn_act_backward)(int, size_t, const float *, const float *, float *);
    void (*input_side)(int, const lnrnn_gate_norm *, size_t, const float *, ptrdiff_t, float *, ptrdiff_t);
    void (*rnn_separate)(int, const lnrnn_gate_norm *, size_t, const float *, ptrdiff_t, const float *,
                         ptrdiff_t, float *const *);
    void (*lstm)(const lnrnn_gate_norm *, size_t, const float *, ptrdiff_t, const float *, ptrdiff_t,
                 float *const *, float *const *, float *, ptrdiff_t);
    void (*lstm_out)(const lnrnn_gate_norm *, size_t, float *const *, float *const *);
    void (*gru)(const lnrnn_gate_norm *, size_t, const float *, ptrdiff_t, const float *, ptrdiff_t,
                const float *const *, float *const *, float *, ptrdiff_t);
    void (*gru_gate)(const lnrnn_gate_norm *, size_t, const float *, ptrdiff_t, const float *, ptrdiff_t,
                     const float *const *, float *const *, float *);
    void (*lstm_out_backward)(const lnrnn_gate_gradients *);
    void (*lstm_backward)(const lnrnn_gate_gradients *);
    void (*gru_backward)(const lnrnn_gate_gradients *);
    /* step_norm.h */
    void (*moments_columns)(size_t rows, size_t n, const float *x, ptrdiff_t xs, double *mean, double *m2);
    void (*sums_columns)(size_t rows, size_t n, const float *gy, ptrdiff_t gs, const float *x, ptrdiff_t xs,
                         const float *mean, double *sg, double *sgx, float *work);
    /* vmath.h */
    void (*exp)(size_t, const float *, float *);
    void (*tanh)(size_t, const float *, float *);
    void (*sigmoid)(size_t, const float *, float *);
} lnrnn_cells;

/* One instruction set. Sets may have tables in common. */
typedef struct lnrnn_kernels {
    const char *name;
    const lnrnn_norm *norm; /* by dtype: LNRNN_FLOAT32 .. */
    const lnrnn_cells *cells;
    const lnrnn_product *product, *int8;
} lnrnn_kernels;

/* The kernels in use: dispatch.c. */
const lnrnn_kernels *lnrnn_active(void);

/* The table for weights of that type, LNRNN_WEIGHT_F32 .. */
static inline const lnrnn_product *lnrnn_product_of(const lnrnn_kernels *k, int dtype)
{
    return dtype == LNRNN_WEIGHT_I8 ? k->int8 : k->product;
}

#endif
