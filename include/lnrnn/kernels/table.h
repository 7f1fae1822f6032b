/* The list of kernels. Every ISA has one table of them; all other C calls a kernel through a table and never by name.
 *
 * A unit that wants the table's type includes this file. A unit that defines LNRNN_ISA_<NAME> and
 * LNRNN_ISA_SUFFIX gets the kernels compiled for that ISA and the tables
 * lnrnn_norm_<suffix>, lnrnn_cells_<suffix>, lnrnn_product_<suffix>, lnrnn_int8_<suffix>; dispatch.c puts them together.
 * What a kernel does, and the shapes it takes, stands above it in norm.h, vmath.h, matmul.h, cells.h, gates.h,
 * gates_backward.h.
 */
#ifndef LNRNN_KERNELS_H
#define LNRNN_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "lnrnn.h"

/* layer_norm.h and batch_norm.h, once for every type in memory: x, y, gy, gx of that type; gain, bias and what belongs to
 * a channel float, or double for LNRNN_FLOAT64. */
typedef struct {
    void (*layer_norm)(size_t, size_t, const void *, ptrdiff_t, const void *, const void *, double, void *, ptrdiff_t,
                       int, int);
    void (*layer_norm_backward)(size_t, size_t, const void *, ptrdiff_t, const void *, ptrdiff_t, const void *, double,
                                void *, ptrdiff_t, double *, double *, void *);
    void (*batch_probe)(size_t, size_t, size_t, const void *, void *);
    void (*batch_sums)(size_t, size_t, size_t, size_t, const void *, const void *, const void *, double *, void *);
    size_t (*batch_moments)(size_t, double, const double *, void *, double *, double *);
    int (*batch_scales)(size_t, const double *, const double *, double, double *, void *, void *, void *);
    void (*batch_slopes)(size_t, double, const double *, const void *, const double *, const double *, const void *,
                         double, const double *, int, void *, void *, void *, void *, double *, double *);
    void (*batch_affine)(size_t, size_t, const void *, const void *, const void *, const void *, void *, int, int);
    void (*fold)(size_t, const double *, const double *, double, const void *, const void *, double, const double *,
                 void *, void *, void *);
    void (*gx_columns)(size_t, size_t, const void *, const void *, ptrdiff_t, const void *, const void *, const void *,
                       const void *, void *);
    void (*gx_planes)(size_t, size_t, const void *, const void *, ptrdiff_t, const void *, const void *, const void *,
                      const void *, void *);
    /* step_norm.h */
    void (*moments_columns)(size_t, size_t, const void *, ptrdiff_t, double *, double *);
    void (*sums_columns)(size_t, size_t, const void *, ptrdiff_t, const void *, ptrdiff_t, const void *, double *, double *,
                         void *);
} lnrnn_norm;

/* gates_backward.h: some rows of one step on the way back; g... is the gradient of the loss in ... */
typedef struct {
    size_t H, rows;
    const float *gates;         /* (rows, G*H), ks apart: the gates, as the tape keeps them */
    const float *u;             /* (rows, H), us apart: of an LSTM what h = o tanh(u) had, of a GRU what r multiplied */
    ptrdiff_t ks, us;
    const float *const *before; /* rows pointers to (H): c, of a GRU h, before the step */
    float *gh, *gc, *gu;        /* (rows, H), hs apart; gc, gu: LSTM */
    float *gx, *ga;             /* (rows, G*H), as apart: of the sides of W x (GRU) and W h, after their norms */
    ptrdiff_t hs, as;
} lnrnn_gates_backward;

/* matmul.h: the product with packed weights. One table for float32 and bfloat16 weights, one for int8. A panel is what
 * two threads never share. */
typedef struct lnrnn_product {
    size_t (*panels)(size_t);
    size_t (*start)(size_t, size_t);
    size_t (*width)(size_t);
    size_t (*size)(int, size_t, size_t);
    size_t (*scratch)(int, size_t);
    void (*pack)(int, size_t, size_t, const float *, ptrdiff_t, ptrdiff_t, uint32_t *);
    void (*pack_rows)(size_t, size_t, const float *const *, uint32_t *);
    void (*matmul)(int, size_t, size_t, size_t, const float *const *, const uint32_t *, size_t, size_t, int, int,
                   float *, ptrdiff_t, uint32_t *);
} lnrnn_product;

/* cells.h, gates.h, gates_backward.h, vmath.h. */
typedef struct {
    void (*rnn_layer)(int, size_t, size_t, const float *, ptrdiff_t, const float *, const float *, float,
                      float *const *);
    void (*rnn_affine)(int, size_t, size_t, const float *, ptrdiff_t, const float *, const float *, const float *,
                       float *const *);
    void (*rnn_act_backward)(int, size_t, const float *, const float *, float *);
    void (*side)(int, const lnrnn_gates *, size_t, const float *, ptrdiff_t, float *, ptrdiff_t);
    void (*rnn_two)(int, const lnrnn_gates *, size_t, const float *, ptrdiff_t, const float *, ptrdiff_t, float *const *);
    void (*lstm)(const lnrnn_gates *, size_t, const float *, ptrdiff_t, const float *, ptrdiff_t, float *const *,
                 float *const *, float *, ptrdiff_t);
    void (*lstm_out)(const lnrnn_gates *, size_t, float *const *, float *const *);
    void (*gru)(const lnrnn_gates *, size_t, const float *, ptrdiff_t, const float *, ptrdiff_t, const float *const *,
                float *const *, float *, ptrdiff_t);
    void (*gru_gate)(const lnrnn_gates *, size_t, const float *, ptrdiff_t, const float *, ptrdiff_t, const float *const *,
                     float *const *, float *);
    void (*lstm_out_backward)(const lnrnn_gates_backward *);
    void (*lstm_backward)(const lnrnn_gates_backward *);
    void (*gru_backward)(const lnrnn_gates_backward *);
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

#ifdef LNRNN_ISA_SUFFIX

#include "lnrnn/simd/simd.h"

/* A unit of the compiler is one of four parts of an instruction set, or all: a change of a header compiles only the parts
 * that include it. */
#if !defined(LNRNN_PART_NORM) && !defined(LNRNN_PART_CELLS) && !defined(LNRNN_PART_PRODUCT) && !defined(LNRNN_PART_INT8)
#define LNRNN_PART_NORM
#define LNRNN_PART_CELLS
#define LNRNN_PART_PRODUCT
#define LNRNN_PART_INT8
#endif

#define LNRNN_CAT_(a, b) a##b
#define LNRNN_CAT(a, b) LNRNN_CAT_(a, b)
#if defined(LNRNN_PART_NORM) || defined(LNRNN_PART_CELLS)
#define S float
#define R float
#define VT v32
#define V(op) v32_##op
#define X(op) v32_##op
#define F(name) name##_f32
#define LANES V32_LANES
#define ROOT sqrtf
#include "lnrnn/kernels/norm.h"
#endif

#ifdef LNRNN_PART_NORM
#define S double
#define R double
#define VT v64
#define V(op) v64_##op
#define X(op) v64_##op
#define F(name) name##_f64
#define LANES V64_LANES
#define ROOT sqrt
#include "lnrnn/kernels/norm.h"

#define S uint16_t
#define R float
#define VT v32
#define V(op) v32_##op
#define X(op) v32_##op##_bf16
#define F(name) name##_bf16
#define LANES V32_LANES
#define ROOT sqrtf
#include "lnrnn/kernels/norm.h"

#define S uint16_t
#define R float
#define VT v32
#define V(op) v32_##op
#define X(op) v32_##op##_f16
#define F(name) name##_f16
#define LANES V32_LANES
#define ROOT sqrtf
#include "lnrnn/kernels/norm.h"

#define LNRNN_NORM_ROW(s)                                                                        \
    {layer_norm_##s, layer_norm_backward_##s, batch_probe_##s, batch_sums_##s, batch_moments_##s,    \
     batch_scales_##s, batch_slopes_##s, batch_affine_##s, fold_##s,                                                   \
     gx_columns_##s, gx_planes_##s, moments_columns_##s, sums_columns_##s}

const lnrnn_norm LNRNN_CAT(lnrnn_norm_, LNRNN_ISA_SUFFIX)[LNRNN_DTYPES] = {
    LNRNN_NORM_ROW(f32), LNRNN_NORM_ROW(f64), LNRNN_NORM_ROW(bf16), LNRNN_NORM_ROW(f16)};
#endif

#ifdef LNRNN_PART_CELLS
#include "lnrnn/kernels/cells.h"
#include "lnrnn/kernels/gates.h"
#include "lnrnn/kernels/gates_backward.h"
#include "lnrnn/simd/vmath.h"

const lnrnn_cells LNRNN_CAT(lnrnn_cells_, LNRNN_ISA_SUFFIX) = {
    rnn_layer, rnn_affine, rnn_act_backward, side, rnn_two, lstm, lstm_out, gru, gru_gate,
    lstm_out_backward, lstm_backward, gru_backward, exp_f32, tanh_f32, sigmoid_f32,
};
#endif

#if defined(LNRNN_PART_PRODUCT) || defined(LNRNN_PART_INT8)
#include "lnrnn/kernels/matmul.h"
#endif
#ifdef LNRNN_PART_PRODUCT
const lnrnn_product LNRNN_CAT(lnrnn_product_, LNRNN_ISA_SUFFIX) = {
    mm_panels, mm_start, mm_width, mm_size, mm_scratch, mm_pack, mm_pack_rows, mm_float,
};
#endif
#ifdef LNRNN_PART_INT8
const lnrnn_product LNRNN_CAT(lnrnn_int8_, LNRNN_ISA_SUFFIX) = {
    mm_panels, mm_start, mm_width, mm_size, mm_scratch, mm_pack, mm_pack_rows, mm_int8,
};
#endif

#endif
#endif
