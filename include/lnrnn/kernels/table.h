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

/* One product: the outputs of the panels p0 .. p1 - 1 of packed weights. */
typedef struct {
    int dtype;         /* of the weights: LNRNN_WEIGHT_F32 .. */
    size_t n, k;       /* outputs, inputs */
    const uint32_t *w; /* packed (n, k) */
    size_t p0, p1;
    int add;             /* to what the output holds, instead of to 0 */
    int backwards;       /* last panel first: a call that alternates finds in cache what it read last */
    lnrnn_caches caches; /* of the machine */
    uint32_t *scratch;   /* scratch(dtype, k) words, which int8 needs */
} lnrnn_matmul;

/* packed.h, matmul_float.h, matmul_int8.h: the product with packed weights. One table for float32 and
 * bfloat16 weights, one for int8. Two threads never share a panel. */
typedef struct lnrnn_product {
    size_t (*panels)(size_t n);
    size_t (*start)(size_t n, size_t panel);
    size_t (*width)(size_t n);
    size_t (*size)(int dtype, size_t n, size_t k);
    size_t (*scratch)(int dtype, size_t k);
    void (*pack)(int dtype, size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs, uint32_t *packed);
    void (*pack_rows)(size_t n, size_t k, const float *const *x, uint32_t *packed);
    void (*matmul)(const lnrnn_matmul *m, size_t rows, const float *const *a, float *c, ptrdiff_t cs);
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
