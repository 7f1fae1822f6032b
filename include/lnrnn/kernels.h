/* The list of kernels. Every ISA has one table of them; all other C calls a kernel through a table and never by name.
 *
 * A unit that wants the table's type includes this file. A unit that defines LNRNN_ISA_<NAME> and
 * LNRNN_ISA_SUFFIX gets the kernels compiled for that ISA and the table lnrnn_kernels_<suffix>.
 * What a kernel does, and the shapes it takes, stands above it in norm.h, vmath.h, matmul.h, cells.h.
 */
#ifndef LNRNN_KERNELS_H
#define LNRNN_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* norm.h, for R = float or double */
#define LNRNN_NORM_KERNELS(R)                                                                                         \
    void (*layer_norm)(size_t, size_t, const R *, ptrdiff_t, const R *, const R *, R, R *, ptrdiff_t, int);           \
    void (*layer_norm_backward)(size_t, size_t, const R *, ptrdiff_t, const R *, ptrdiff_t, const R *, R, R *,        \
                                ptrdiff_t, double *, double *, R *);                                                  \
    void (*moments_columns)(size_t, size_t, const R *, ptrdiff_t, double *, double *);                                \
    void (*moments_planes)(size_t, size_t, const R *, ptrdiff_t, double *, double *);                                 \
    void (*fold)(size_t, const double *, const double *, double, const R *, const R *, double, R *, R *, R *);        \
    void (*affine_columns)(size_t, size_t, const R *, ptrdiff_t, const R *, const R *, const R *, R *, ptrdiff_t, int);\
    void (*affine_planes)(size_t, size_t, const R *, ptrdiff_t, const R *, const R *, const R *, R *, ptrdiff_t, int);\
    void (*sums_columns)(size_t, size_t, const R *, const R *, ptrdiff_t, const R *, double *, double *, R *);        \
    void (*sums_planes)(size_t, size_t, const R *, const R *, ptrdiff_t, R, double *, double *);                      \
    void (*gx_columns)(size_t, size_t, const R *, const R *, ptrdiff_t, const R *, const R *, const R *, const R *,   \
                       R *);                                                                                          \
    void (*gx_planes)(size_t, size_t, const R *, const R *, ptrdiff_t, const R *, const R *, const R *, const R *, R *)

typedef struct { LNRNN_NORM_KERNELS(float); } lnrnn_norm_f32;
typedef struct { LNRNN_NORM_KERNELS(double); } lnrnn_norm_f64;

typedef struct {
    const char *name;
    /* vmath.h */
    void (*exp)(size_t, const float *, float *);
    void (*tanh)(size_t, const float *, float *);
    void (*sigmoid)(size_t, const float *, float *);
    lnrnn_norm_f32 f32;
    lnrnn_norm_f64 f64;
    /* matmul.h; a panel is what two threads never share */
    size_t (*mm_panels)(size_t);
    size_t (*mm_width)(size_t);
    size_t (*mm_size)(int, size_t, size_t);
    size_t (*mm_scratch)(int, size_t);
    void (*mm_pack)(int, size_t, size_t, const float *, ptrdiff_t, ptrdiff_t, uint32_t *);
    void (*mm_pack_rows)(size_t, size_t, const float *const *, uint32_t *);
    void (*matmul)(int, size_t, size_t, size_t, const float *const *, const uint32_t *, size_t, size_t, int, int,
                   float *, ptrdiff_t, uint32_t *);
    /* cells.h */
    void (*rnn_layer)(int, size_t, size_t, const float *, ptrdiff_t, const float *, const float *, float,
                      float *const *);
    void (*rnn_affine)(int, size_t, size_t, const float *, ptrdiff_t, const float *, const float *, const float *,
                       float *const *);
    void (*rnn_act_backward)(int, size_t, const float *, const float *, float *);
} lnrnn_kernels;

/* The kernels in use: dispatch.c. */
const lnrnn_kernels *lnrnn_active(void);

#ifdef LNRNN_ISA_SUFFIX

#include "simd.h"

#define LNRNN_CAT_(a, b) a##b
#define LNRNN_CAT(a, b) LNRNN_CAT_(a, b)
#define LNRNN_STR_(a) #a
#define LNRNN_STR(a) LNRNN_STR_(a)

#define R float
#define VT v32
#define V(op) v32_##op
#define LANES V32_LANES
#define F(name) name##_f32
LNRNN_INLINE float root_f32(float v) { return sqrtf(v); }
#include "norm.h"
#undef R
#undef VT
#undef V
#undef LANES
#undef F

#define R double
#define VT v64
#define V(op) v64_##op
#define LANES V64_LANES
#define F(name) name##_f64
LNRNN_INLINE double root_f64(double v) { return sqrt(v); }
#include "norm.h"
#undef R
#undef VT
#undef V
#undef LANES
#undef F

#include "cells.h"
#include "matmul.h"
#include "vmath.h"

#define LNRNN_NORM_ROWS(s)                                                                                         \
    {layer_norm_##s,     layer_norm_backward_##s, moments_columns_##s, moments_planes_##s, fold_##s,               \
     affine_columns_##s, affine_planes_##s,       sums_columns_##s,    sums_planes_##s,    gx_columns_##s,         \
     gx_planes_##s}

const lnrnn_kernels LNRNN_CAT(lnrnn_kernels_, LNRNN_ISA_SUFFIX) = {
    LNRNN_STR(LNRNN_ISA_SUFFIX), exp_f32, tanh_f32, sigmoid_f32, LNRNN_NORM_ROWS(f32), LNRNN_NORM_ROWS(f64),
    mm_panels, mm_width, mm_size, mm_scratch, mm_pack, mm_pack_rows, matmul, rnn_layer, rnn_affine, rnn_act_backward,
};

#endif
#endif
