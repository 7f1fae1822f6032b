/* One time step of the normalised RNN on rows that sit in L1: what follows the matrix product, and its derivative. */
#ifndef LNRNN_CELLS_H
#define LNRNN_CELLS_H

#include "lnrnn/simd/vmath.h"

LNRNN_INLINE v32 v32_act(int act, v32 v)
{
    switch (act) {
    case LNRNN_ACT_TANH: return v32_tanh(v);
    case LNRNN_ACT_RELU: return v32_relu(v);
    case LNRNN_ACT_SIGMOID: return v32_sigmoid(v);
    default: return v;
    }
}

/* Each function below is a switch over the activation around a body in which the activation is a constant. */
#define LNRNN_EACH_ACT(act, CALL)                           \
    switch (act) {                                          \
    case LNRNN_ACT_TANH: CALL(LNRNN_ACT_TANH); break;       \
    case LNRNN_ACT_RELU: CALL(LNRNN_ACT_RELU); break;       \
    case LNRNN_ACT_SIGMOID: CALL(LNRNN_ACT_SIGMOID); break; \
    default: CALL(LNRNN_ACT_IDENTITY); break;               \
    }

/* What a row is normalised with: normalised_f32's. */
typedef struct {
    v32 mean, rstd, rest;
} rnn_moments;

/* row_moments in double precision, for squares that leave the range of float. */
LNRNN_SELDOM void row_moments_far(size_t n, const float *a, float eps, float *m0, float *m1, float *rstd)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)a[i];
    const double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += ((double)a[i] - mean) * ((double)a[i] - mean);
    *m0 = (float)mean;
    *m1 = (float)(mean - (double)*m0);
    *rstd = (float)(1 / sqrt(squares / (double)n + (double)eps));
}

/* a (n) -> its mean m0 + m1 and rstd = 1 / sqrt(var + eps). */
LNRNN_OUTLINE void row_moments(size_t n, const float *a, float eps, float *m0, float *m1, float *rstd)
{
    float var;
    moments_about_f32(n, a, m0, m1, &var, 1);
    *rstd = 1 / sqrtf(var + eps);
    if (__builtin_expect(out_of_range_f32(*rstd), 0))
        row_moments_far(n, a, eps, m0, m1, rstd);
}

LNRNN_INLINE rnn_moments rnn_row_moments(size_t n, const float *a, float eps)
{
    float m0, m1, rstd;
    row_moments(n, a, eps, &m0, &m1, &rstd);
    return (rnn_moments){v32_set1(m0), v32_set1(rstd), v32_set1(-m1 * rstd)};
}

/* The next row's statistics come before this row's activations: their sums, root and quotients wait for each other, and the
 * activations fill the gaps (rnn B64-H128: 4 %). */
LNRNN_INLINE void rnn_layer_rows(int act, size_t rows, size_t n, const float *a, ptrdiff_t as,
                                 const float *gain, const float *bias, float eps, float *const *y)
{
    rnn_moments next;
    if (rows)
        next = rnn_row_moments(n, a, eps);
    for (size_t r = 0; r < rows; r++, a += as) {
        const rnn_moments m = next;
        float *h = y[r];
        if (r + 1 < rows)
            next = rnn_row_moments(n, a + as, eps);
        size_t i = 0;
        for (; i + V32_LANES <= n; i += V32_LANES) {
            const v32 z = normalised_f32(v32_load(a + i), m.mean, m.rstd, m.rest);
            v32_store(h + i, v32_act(act, v32_fma(z, v32_load(gain + i), v32_load(bias + i))));
        }
        if (i < n) {
            const size_t k = n - i;
            const v32 z = normalised_f32(v32_load_n(a + i, k), m.mean, m.rstd, m.rest);
            v32_store_n(h + i, v32_act(act, v32_fma(z, v32_load_n(gain + i, k), v32_load_n(bias + i, k))), k);
        }
    }
}

/* a (rows, n), as floats from row to row; gain, bias (n); y: rows pointers to n floats.
 * y = act((a - mean) / sqrt(var + eps) * gain + bias), mean and var of each row. */
static void rnn_layer(int act, size_t rows, size_t n, const float *a, ptrdiff_t as, const float *gain,
                      const float *bias, float eps, float *const *y){
#define LNRNN_CALL(c) rnn_layer_rows(c, rows, n, a, as, gain, bias, eps, y)
    LNRNN_EACH_ACT(act, LNRNN_CALL)
#undef LNRNN_CALL
}

LNRNN_INLINE void rnn_affine_rows(int act, size_t rows, size_t n, const float *a, ptrdiff_t as,
                                  const float *mean, const float *scale, const float *shift, float *const *y)
{
    for (size_t r = 0; r < rows; r++, a += as) {
        float *h = y[r];
        for (size_t i = 0; i < n; i += V32_LANES) {
            const size_t k = n - i < V32_LANES ? n - i : V32_LANES;
            v32 v = v32_load_n(a + i, k);
            if (mean)
                v = v32_sub(v, v32_load_n(mean + i, k));
            v = scale ? v32_fma(v, v32_load_n(scale + i, k), v32_load_n(shift + i, k))
                      : v32_add(v, v32_load_n(shift + i, k));
            v32_store_n(h + i, v32_act(act, v), k);
        }
    }
}

/* a as above; mean, scale (n) or NULL for 0 and 1, shift (n) -> y = act((a - mean) * scale + shift). */
static void rnn_affine(int act, size_t rows, size_t n, const float *a, ptrdiff_t as, const float *mean,
                       const float *scale, const float *shift, float *const *y){
#define LNRNN_CALL(c) rnn_affine_rows(c, rows, n, a, as, mean, scale, shift, y)
    LNRNN_EACH_ACT(act, LNRNN_CALL)
#undef LNRNN_CALL
}

/* From y = sigmoid(a), and y = tanh(a), to dy/da. Not 1 - y*y: that cancels near 1. */
LNRNN_INLINE v32 sigmoid_slope(v32 y)
{
    return v32_mul(y, v32_sub(v32_set1(1.0f), y));
}

LNRNN_INLINE v32 tanh_slope(v32 y)
{
    const v32 one = v32_set1(1.0f);
    return v32_mul(v32_sub(one, y), v32_add(one, y));
}

/* gh, y (n): gradient of a step's output, and the output -> gz (n) = gh * act'(z), from y alone. gz may be gh. */
static void rnn_act_backward(int act, size_t n, const float *gh, const float *y, float *gz)
{
    const v32 one = v32_set1(1.0f), zero = v32_zero();
    for (size_t i = 0; i < n; i += V32_LANES) {
        const size_t k = n - i < V32_LANES ? n - i : V32_LANES;
        const v32 g = v32_load_n(gh + i, k), h = v32_load_n(y + i, k);
        v32 d = one;
        if (act == LNRNN_ACT_TANH)
            d = tanh_slope(h);
        else if (act == LNRNN_ACT_SIGMOID)
            d = sigmoid_slope(h);
        else if (act == LNRNN_ACT_RELU)
            d = v32_select_lt(zero, h, one, zero);
        v32_store_n(gz + i, v32_mul(g, d), k);
    }
}

#endif
