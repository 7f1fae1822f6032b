/* The tables of pointers to kernels. all.h defines one set of tables for every instruction set, and all other
 * C calls kernels through them. In the comments, a kernel reads the arrays before an arrow (->) and writes
 * the arrays after it.
 */
#ifndef LNRNN_TABLE_H
#define LNRNN_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "lnrnn.h"
#include "lnrnn/tuning.h"

/* --- the norms: layer_norm.h, batch_norm.h, once for every type in memory -------------------------------
 *
 * x, y, gy and gx are arrays of the type in memory. `real` is the type of the arithmetic, double for
 * LNRNN_FLOAT64 and else float. A gain of NULL means 1, and a bias of NULL means 0. Strides count values.
 */

/* Arguments of layer norm or RMS norm: y = (x - mean) / sqrt(var + eps) * gain + bias, mean and var of each
 * row. */
typedef struct {
    size_t rows, n;
    const void *x; /* (rows, n), row stride xs; n >= 1 */
    void *y;       /* (rows, n), row stride ys; may be x */
    ptrdiff_t xs, ys;
    const void *gain, *bias; /* (n) of real, or NULL */
    double eps;
    int centred;     /* 0: RMS norm, with mean 0 and without bias */
    int nontemporal; /* y is too large for the caches: use non-temporal stores */
} lnrnn_layer_norm_rows;

/* Arguments of the gradients of layer or RMS norm. gx is the gradient of the loss with respect to x, and
 * likewise gy, ggain and gbias. */
typedef struct {
    size_t rows, n;
    const void *gy, *x; /* (rows, n), row strides gys, xs; n >= 1 */
    void *gx;           /* (rows, n), row stride gxs; may be gy or x */
    ptrdiff_t gys, xs, gxs;
    const void *gain; /* (n) of real, or NULL */
    double eps;
    int centred;           /* 0: RMS norm */
    double *ggain, *gbias; /* (n): adds the sums of these rows; both NULL: the sums stay in `partial` */
    void *partial;         /* (2, n) of real: zeros before and after; without ggain the sums are added here */
} lnrnn_layer_norm_gradients;

/* Some samples and channels of a batch (N, C, L), as arguments of batch_sums. */
typedef struct {
    size_t samples, C, channels, L;
    const void *x, *gy; /* (samples, C, L), only the first `channels` of C; gy may be NULL */
    const void *pivot;  /* (channels) of real: a value near each channel's mean */
    double
        *sums; /* (2, C), with gy (4, C): sums of d, d^2, gy and gy d, where d = x - pivot, are added here */
    void *partial; /* (4, channels) of real: zeros before and after */
} lnrnn_batch_block;

/* Statistics and parameters of n channels. */
typedef struct {
    size_t n;
    const double *mean; /* (n) */
    const double *m2;   /* (n): sums of squared deviations over `count` values; with count 1: variances */
    double count;
    const void *gain, *bias; /* (n) of real, or NULL */
    double eps;
    const double *scales; /* (n) or NULL: factors of x, applied before mean and m2 were computed */
} lnrnn_channels;

/* The coefficients of each channel for a pass over x, (channels) of real each. slope is for the backward pass
 * only.
 *     y = (x - mean) scale + shift,  gx = scale (gy - (x - mean) slope - shift) */
typedef struct {
    void *mean, *scale, *shift, *slope;
} lnrnn_coefficients;

typedef struct {
    /* x -> y, the norm of x */
    void (*layer_norm)(const lnrnn_layer_norm_rows *rows);
    /* gy, x -> gx; adds to ggain, gbias */
    void (*layer_norm_backward)(const lnrnn_layer_norm_gradients *rows);
    /* x (N, C, L) -> pivot (C) of real, near each channel's mean */
    void (*batch_probe)(size_t N, size_t C, size_t L, const void *x, void *pivot);
    /* adds the sums of a block of x and gy to block->sums */
    void (*batch_sums)(const lnrnn_batch_block *block);
    /* sums (2, n), pivot (n) of real -> mean, var (n); returns the number of pivots that it replaced */
    size_t (*batch_moments)(size_t n, double count, const double *sums, void *pivot, double *mean,
                            double *var);
    /* returns 1 if channels must be scaled; then writes scales (n), and mean, scale and shift of `out` */
    int (*batch_scales)(const lnrnn_channels *channels, double *scales, const lnrnn_coefficients *out);
    /* sums (4, n) about pivot (n) of real -> `out`, ggain, gbias (n); dmean: the derivative of a mean with
     * respect to one value */
    void (*batch_slopes)(const lnrnn_channels *channels, double dmean, const double *sums, const void *pivot,
                         const lnrnn_coefficients *out, double *ggain, double *gbias);
    /* writes mean, scale and shift of `out`, with which y is the norm of x */
    void (*fold)(const lnrnn_channels *channels, const lnrnn_coefficients *out);
    /* x (rows, n) -> y (rows, n), contiguous. by_row = 0: a channel is a column; 1: a row */
    void (*batch_affine)(size_t rows, size_t n, const void *x, const lnrnn_coefficients *c, void *y,
                         int by_row, int nontemporal);
    /* gy, x (rows, n) -> gx (rows, n), row stride `stride`; a channel is a column, in gx_planes a row */
    void (*gx_columns)(size_t rows, size_t n, const void *gy, const void *x, ptrdiff_t stride,
                       const lnrnn_coefficients *c, void *gx);
    void (*gx_planes)(size_t rows, size_t n, const void *gy, const void *x, ptrdiff_t stride,
                      const lnrnn_coefficients *c, void *gx);
} lnrnn_norm;

/* How a product writes an output c. */
enum {
    LNRNN_ADD_NOT,  /* the sum replaces c */
    LNRNN_ADD_ON,   /* the sum starts from c */
    LNRNN_ADD_AFTER /* the sum starts from 0; c is added last, which is more accurate if |c| is large */
};

/* Returns 1 for int8 weights, with activations of 14 or of 8 bits. Both are packed in the same way. */
static inline int lnrnn_is_int8(int dtype) { return dtype == LNRNN_WEIGHT_I8 || dtype == LNRNN_WEIGHT_I8A8; }

/* Block-sparse weights (product_blocks.h). A window is the number of outputs that a thread computes at a
 * time, at most MOST_WINDOW. With more than BLOCK_INT8_INPUTS inputs, sums of int8 could exceed 32 bits. */
enum {
    LNRNN_BLOCK_OUTPUTS = 8,
    LNRNN_BLOCK_INPUTS = 4,
    LNRNN_GROUP_OUTPUTS = 32,
    LNRNN_MOST_WINDOW = 96,
    LNRNN_BLOCK_INT8_INPUTS = 2048
};

/* w: the weights of a block, row stride k. Returns 1 if any of these weights is not 0. */
static inline int lnrnn_has_block(size_t k, const float *w)
{
    for (size_t o = 0; o < LNRNN_BLOCK_OUTPUTS; o++)
        for (size_t j = 0; j < LNRNN_BLOCK_INPUTS; j++)
            if (w[o * k + j] != 0)
                return 1;
    return 0;
}

/* W_ih x of later steps, which products with W_hh compute in addition to their own. The inputs are divided
 * into rows_ahead parts. A product with W_hh computes one part for each of its whole panels, so rows_ahead
 * products compute all parts. */
typedef struct {
    const uint32_t *w;        /* packed (n, k), n and k as in W_hh; k is a multiple of rows_ahead */
    const float *const *rows; /* rows_ahead pointers to (k) */
    float *c;                 /* (rows_ahead, packed_width(n)), row stride cs: the products are added to c */
    ptrdiff_t cs;
    size_t done; /* the number of parts of panels that are computed */
} lnrnn_ahead;

/* One product: the outputs of panels p0 .. p1 - 1 of packed weights. */
typedef struct {
    int dtype;         /* type of the weights: LNRNN_WEIGHT_F32 .. */
    size_t n, k;       /* the numbers of outputs and of inputs */
    const uint32_t *w; /* packed (n, k) */
    size_t blocks;     /* the number of blocks, or 0: dense weights */
    size_t p0, p1;     /* with blocks: groups of LNRNN_GROUP_OUTPUTS outputs */
    int add;           /* LNRNN_ADD_NOT .. */
    int from_end; /* begin with the last panel; set in every second call, while that panel is in the cache */
    const lnrnn_caches *caches;
    uint32_t *scratch;  /* scratch(dtype, rows, k) words */
    lnrnn_ahead *ahead; /* or NULL; only for float32 weights and one row, if rows_ahead is not 0 */
} lnrnn_matmul;

struct quantized_rows;

/* pack.h, product_*.h: the product with packed weights of float32, of bfloat16 or of int8. Threads that
 * compute the same panel take different rows. */
typedef struct lnrnn_product {
    const char *unit;  /* name of the CPU's unit that multiplies, or NULL: lnrnn_isa_unit */
    size_t rows_ahead; /* the number of rows of lnrnn_ahead, or 0 */
    size_t (*panels)(size_t n);
    size_t (*start)(size_t n, size_t panel);
    size_t (*width)(size_t n);
    size_t (*size)(int dtype, size_t n, size_t k);
    size_t (*scratch)(int dtype, size_t rows, size_t k);
    void (*pack)(int dtype, size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs, uint32_t *packed);
    void (*matmul)(const lnrnn_matmul *m, size_t rows, const float *const *a, float *c, ptrdiff_t cs);
    /* for int8 weights, else NULL: int8_rows.h */
    void (*quantize)(const lnrnn_matmul *m, size_t rows, const float *const *a, struct quantized_rows *q);
    /* for float32 weights, else NULL; a (k, rows), row stride `as` */
    void (*pack_rows)(size_t n, size_t k, size_t at, size_t rows, const float *const *x, uint32_t *packed);
    void (*matmul_columns)(const lnrnn_matmul *m, size_t rows, const float *a, ptrdiff_t as, float *c,
                           ptrdiff_t cs);
} lnrnn_product;

/* The products with block-sparse weights. n and k are multiples of a block's sizes. */
typedef struct lnrnn_blocks {
    size_t (*size)(int dtype, size_t n, size_t count);
    size_t (*scratch)(int dtype, size_t rows, size_t k);
    void (*pack)(int dtype, size_t n, size_t k, size_t count, size_t window, const float *w,
                 uint32_t *packed);
    void (*matmul)(const lnrnn_matmul *m, size_t rows, const float *const *a, float *c, ptrdiff_t cs);
} lnrnn_blocks;

/* --- the cells: G gates of H units, RNN 1, LSTM 4 (i, f, g, o), GRU 3 (r, z, n), LiGRU 2 (z, n) -------- */

/* How a kernel reads the values of a row. PLAIN adds a bias. AFFINE is batch norm. NORMED is layer or RMS
 * norm. HARD adds a bias, and the gates are hard sigmoids. kernels/gate_norm.h has the equations. */
enum { LNRNN_PLAIN, LNRNN_AFFINE, LNRNN_NORMED, LNRNN_HARD };
/* Which gates share a mean and variance in a layer norm. ALL: all gates. EACH: no two gates. LAST: all but
 * the last, as r and z of a GRU. */
enum { LNRNN_SPANS_ALL, LNRNN_SPANS_EACH, LNRNN_SPANS_LAST };
/* The norm of one input of a cell (W h, W x or c), or only its bias, for rows (G*H) of G gates. For c, G is
 * 1. */
typedef struct {
    size_t H;
    int how, spans, centred; /* centred: 1 layer norm, 0 RMS norm */
    float eps;
    const float *mean, *gain, *bias; /* (G*H); NULL unless `how` reads it */
} lnrnn_gate_norm;

/* The kernels that compute new states: one for each cell, and three for variants of cells. LSTM_PEEPHOLE has
 * peepholes. GRU_GATE has a norm for each gate. GRU_RESET has the reset gate before the product. */
enum {
    LNRNN_STEP_RNN,
    LNRNN_STEP_LSTM,
    LNRNN_STEP_LSTM_PEEPHOLE,
    LNRNN_STEP_GRU,
    LNRNN_STEP_GRU_GATE,
    LNRNN_STEP_GRU_RESET,
    LNRNN_STEP_LIGRU,
    LNRNN_STEP_SLSTM,
    LNRNN_STEPS
};

/* The part of a layer's configuration that a kernel for new states needs; it is the same at all steps. */
typedef struct {
    const lnrnn_gate_norm *hidden; /* norm of W h, or of the sum W x + W h */
    const lnrnn_gate_norm *input;  /* norm of W x, or NULL. LiGRU: with the same `how` as `hidden` */
    const lnrnn_gate_norm *cell;   /* LSTM: norm of c, or NULL */
    int act;                       /* RNN, GRU, LiGRU: LNRNN_ACT_TANH .. */
    int cell_norm;                 /* LSTM: LNRNN_CELL_NONE .. */
    const float *peephole;         /* LSTM_PEEPHOLE: (3*H), factors of c in i, f and o */
    int deferred_output;           /* LSTM: write only the output gate to h; lstm_output follows */
    int exp_forget, round_states;  /* SLSTM: f is the argument of an exp; states are rounded to bfloat16 */
} lnrnn_step_config;

/* n sequences at one step: the products W x and W h, and the states that a kernel replaces. */
typedef struct {
    size_t n;
    const float *x; /* (n, G*H), row stride xs: W x; NULL: a is the sum of both products */
    const float *a; /* (n, G*H), row stride `as`: W h, or the sum */
    ptrdiff_t xs, as;
    const float *const *h_prev; /* n pointers to (H): h before the step, for GRU and LiGRU */
    float *const *c;            /* n pointers to (H), LSTM, or (3 H), SLSTM: c, replaced by the new c */
    float *const *h;            /* n pointers to (H): written */
    float *saved_gates;         /* (n, G*H), row stride `as`, or NULL: receives the gates; NULL for an RNN */
    float *scratch;             /* config->cell_scratch floats */
    float *reset; /* (n, 2, H), row stride rs, z at rs / 2: r h and z; GRU with reset before the product */
    ptrdiff_t rs;
} lnrnn_step_rows;

/* Returns rows first .. first + n - 1. */
static inline lnrnn_step_rows lnrnn_rows_from(const lnrnn_step_rows *rows, size_t first, size_t n)
{
    lnrnn_step_rows some = *rows;
    some.n = n;
    some.x += rows->x ? (ptrdiff_t)first * rows->xs : 0;
    some.a += (ptrdiff_t)first * rows->as;
    some.h_prev += first, some.c += first, some.h += first;
    some.saved_gates += rows->saved_gates ? (ptrdiff_t)first * rows->as : 0;
    some.reset += rows->reset ? (ptrdiff_t)first * rows->rs : 0;
    return some;
}

/* Some sequences of one backward step. gh is the gradient of the loss with respect to h, and likewise gc, gu,
 * gx and ga. */
typedef struct {
    size_t H, rows;
    const float *saved_gates; /* (rows, G*H), row stride ks: the gates of the forward step */
    const float *x, *a; /* (rows, G*H), row stride ks: W x and W h; only GRU with a norm for each gate */
    /* (rows, H), row stride us. LSTM: u in h = o tanh(u); GRU: u in n = act(x + r u). */
    const float *u;
    ptrdiff_t ks, us;
    const float *const *state_prev; /* `rows` pointers to (H), before the step: c of an LSTM, else h */
    /* (rows, H), row stride hs. gc: only LSTM. gu: only LSTM, and GRU with the reset gate before the
     * product. */
    float *gh, *gc, *gu;
    /* (rows, G*H), row stride `as`: the gradients of the norms' outputs. ga: norm of W h, or of the sum of
     * both products. gx: norm of W x in a GRU; NULL if the sum is normalised. */
    float *gx, *ga;
    ptrdiff_t hs, as;
    /* (rows, G*H), LSTM (rows, H), row stride ss: inputs of a norm, computed again because the tape lacks
     * them. */
    float *sum;
    ptrdiff_t ss;
    int carry; /* LSTM: the next step got norm(c) in place of c (LNRNN_CELL_CARRY) */
    int hard;  /* the gates have the hard sigmoid */
    int act;   /* GRU: LNRNN_ACT_TANH .. */
    /* SLSTM: gc is (rows, 3 H), row stride gcs (slstm_cell.h). */
    ptrdiff_t gcs;
    int exp_forget;
} lnrnn_gate_gradients;

/* Kernels of the cells: steps, their derivatives, and norms (gate_norm.h, step_norm.h, vmath.h). */
typedef struct {
    void (*step[LNRNN_STEPS])(const lnrnn_step_config *step, const lnrnn_step_rows *rows);
    void (*lstm_output)(const lnrnn_step_config *step, const lnrnn_step_rows *rows);
    void (*reset_gates)(const lnrnn_step_config *step, const lnrnn_step_rows *rows);
    void (*rnn_backward)(int act, size_t n, const float *gh, const float *h, float *ga);
    void (*lstm_cell_sum)(const lnrnn_gate_gradients *b);
    void (*lstm_output_backward)(const lnrnn_gate_gradients *b);
    void (*lstm_backward)(const lnrnn_gate_gradients *b);
    void (*gru_backward)(const lnrnn_gate_gradients *b);
    void (*ligru_backward)(int act, const lnrnn_gate_gradients *b);
    void (*gru_gate_sum)(const lnrnn_gate_gradients *b);
    void (*gru_gate_output_backward)(const lnrnn_gate_gradients *b);
    void (*gru_gate_reset_backward)(const lnrnn_gate_gradients *b);
    void (*gru_reset_input)(const lnrnn_gate_gradients *b);
    void (*gru_reset_output_backward)(const lnrnn_gate_gradients *b);
    void (*gru_reset_backward)(const lnrnn_gate_gradients *b);
    void (*slstm_backward)(const lnrnn_gate_gradients *b);
    void (*normalise_heads)(const lnrnn_gate_norm *norm, size_t heads, size_t rows, const float *const *h,
                            float *const *y);
    void (*normalise_rows)(int num_gates, const lnrnn_gate_norm *norm, size_t rows, const float *x,
                           ptrdiff_t xs, float *y, ptrdiff_t ys);
    void (*moments_columns)(size_t rows, size_t n, const float *x, ptrdiff_t xs, double *mean, double *m2);
    void (*sums_columns)(size_t rows, size_t n, const float *gy, ptrdiff_t gs, const float *x, ptrdiff_t xs,
                         const float *mean, double *sg, double *sgx, float *work);
    void (*add_columns)(size_t rows, size_t n, const float *x, ptrdiff_t xs, float *sums);
    void (*exp)(size_t n, const float *x, float *y);
    void (*tanh)(size_t n, const float *x, float *y);
    void (*sigmoid)(size_t n, const float *x, float *y);
} lnrnn_cells;

/* The kernels of one instruction set. Instruction sets may share tables. */
typedef struct lnrnn_kernels {
    const char *name;
    const lnrnn_norm *norm; /* indexed by dtype, LNRNN_FLOAT32 to LNRNN_FLOAT16 */
    const lnrnn_cells *cells;
    const lnrnn_product *product, *bf16, *int8; /* for float32, bfloat16 and int8 weights */
    const lnrnn_blocks *blocks, *int8_blocks;   /* blocks: not for bfloat16 weights where bf16 has a unit */
} lnrnn_kernels;

/* Returns the kernels in use (dispatch.c). */
const lnrnn_kernels *lnrnn_active(void);

/* Returns the products with weights of this type, LNRNN_WEIGHT_F32 .. */
static inline const lnrnn_product *lnrnn_product_of(const lnrnn_kernels *k, int dtype)
{
    return lnrnn_is_int8(dtype) ? k->int8 : dtype == LNRNN_WEIGHT_BF16 ? k->bf16 : k->product;
}

/* Returns the products with block-sparse weights of this type, or NULL if the instruction set has no such
 * products. */
static inline const lnrnn_blocks *lnrnn_blocks_of(const lnrnn_kernels *k, int dtype)
{
    if (lnrnn_is_int8(dtype))
        return k->int8_blocks;
    return dtype == LNRNN_WEIGHT_BF16 && k->bf16->unit ? NULL : k->blocks;
}

#endif
