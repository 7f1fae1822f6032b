/* The tables of kernels: every instruction set has one of each, and all other C calls a kernel through them,
 * never by name. all.h fills them in. What a kernel does, and the shapes it takes, stands above it.
 */
#ifndef LNRNN_TABLE_H
#define LNRNN_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "lnrnn.h"

/* layer_norm.h and batch_norm.h, once for every type in memory: x, y, gy, gx of that type; gain, bias and
 * what belongs to a channel float, or double for LNRNN_FLOAT64. */
typedef struct {
    void (*layer_norm)(size_t, size_t, const void *, ptrdiff_t, const void *, const void *, double, void *,
                       ptrdiff_t, int, int);
    void (*layer_norm_backward)(size_t, size_t, const void *, ptrdiff_t, const void *, ptrdiff_t,
                                const void *, double, void *, ptrdiff_t, double *, double *, void *);
    void (*batch_probe)(size_t, size_t, size_t, const void *, void *);
    void (*batch_sums)(size_t, size_t, size_t, size_t, const void *, const void *, const void *, double *,
                       void *);
    size_t (*batch_moments)(size_t, double, const double *, void *, double *, double *);
    int (*batch_scales)(size_t, const double *, const double *, double, double *, void *, void *, void *);
    void (*batch_slopes)(size_t, double, const double *, const void *, const double *, const double *,
                         const void *, double, const double *, int, void *, void *, void *, void *, double *,
                         double *);
    void (*batch_affine)(size_t, size_t, const void *, const void *, const void *, const void *, void *, int,
                         int);
    void (*fold)(size_t, const double *, const double *, double, const void *, const void *, double,
                 const double *, void *, void *, void *);
    void (*gx_columns)(size_t, size_t, const void *, const void *, ptrdiff_t, const void *, const void *,
                       const void *, const void *, void *);
    void (*gx_planes)(size_t, size_t, const void *, const void *, ptrdiff_t, const void *, const void *,
                      const void *, const void *, void *);
} lnrnn_norm;

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

/* --- the cells: G gates of H units, RNN 1, LSTM 4 (i, f, g, o), GRU 3 (r, z, n)
 * --------------------------- */

/* The kernels that make the states of a step: one for each cell, and another for a GRU with a norm for each
 * gate. */
enum { LNRNN_STEP_RNN, LNRNN_STEP_LSTM, LNRNN_STEP_GRU, LNRNN_STEP_GRU_GATE, LNRNN_STEPS };

/* What such a kernel takes beside its rows. */
typedef struct {
    const lnrnn_gate_norm *hidden; /* how W h is read, or the sum W x + W h */
    const lnrnn_gate_norm *cell;   /* LSTM with a norm of c: how c is read */
    int act;                       /* RNN: LNRNN_ACT_TANH .. */
    int cell_norm;                 /* LSTM: LNRNN_CELL_NONE .. */
    int deferred_output;           /* LSTM: h gets the output gate alone, lstm_output is still to come */
} lnrnn_step_config;

/* Some rows of one step, between their products and their states. */
typedef struct {
    size_t n;
    const float *x; /* (n, G*H), row stride xs: W x, normalised; NULL: a is the sum of both products */
    const float *a; /* (n, G*H), row stride as: W h, or the sum */
    ptrdiff_t xs, as;
    const float *const *h_prev; /* n pointers to (H): GRU */
    float *const *c;            /* n pointers to (H): LSTM: c before the step, then after it */
    float *const *h;            /* n pointers to (H): written */
    float *saved_gates;         /* (n, G*H), row stride as, or NULL: gets the gates; LSTM and GRU */
    float *scratch;             /* config->cell_scratch floats */
} lnrnn_step_rows;

/* Some rows of one step of the backward pass; gh is the gradient of the loss with respect to h, and so on. */
typedef struct {
    size_t H, rows;
    const float *saved_gates; /* (rows, G*H), row stride ks: from the forward step */
    /* (rows, H), row stride us: of an LSTM u in h = o tanh(u); of a GRU what r multiplies. */
    const float *u;
    ptrdiff_t ks, us;
    const float *const *state_prev; /* rows pointers to (H): before the step, an LSTM's c, a GRU's h */
    float *gh, *gc, *gu;            /* (rows, H), row stride hs; gc, gu: LSTM */
    float *gx, *ga; /* (rows, G*H), row stride as: of the norms' outputs, at W x (GRU) and at W h */
    ptrdiff_t hs, as;
} lnrnn_gate_gradients;

/* rnn_cell.h, lstm_cell.h, gru_cell.h, gate_norm.h, step_norm.h, vmath.h. */
typedef struct {
    void (*step[LNRNN_STEPS])(const lnrnn_step_config *step, const lnrnn_step_rows *rows);
    void (*lstm_output)(const lnrnn_step_config *step, const lnrnn_step_rows *rows);
    void (*rnn_backward)(int act, size_t n, const float *gh, const float *h, float *ga);
    void (*lstm_output_backward)(const lnrnn_gate_gradients *b);
    void (*lstm_backward)(const lnrnn_gate_gradients *b);
    void (*gru_backward)(const lnrnn_gate_gradients *b);
    void (*normalise_rows)(int num_gates, const lnrnn_gate_norm *norm, size_t rows, const float *x,
                           ptrdiff_t xs, float *y, ptrdiff_t ys);
    void (*moments_columns)(size_t rows, size_t n, const float *x, ptrdiff_t xs, double *mean, double *m2);
    void (*sums_columns)(size_t rows, size_t n, const float *gy, ptrdiff_t gs, const float *x, ptrdiff_t xs,
                         const float *mean, double *sg, double *sgx, float *work);
    void (*exp)(size_t n, const float *x, float *y);
    void (*tanh)(size_t n, const float *x, float *y);
    void (*sigmoid)(size_t n, const float *x, float *y);
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
