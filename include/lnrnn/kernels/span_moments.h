/* The statistics of a layer norm or RMS norm inside a cell: the moments of spans (the values of a row that
 * share statistics). In an RMS norm the mean is 0, and the variance is the mean of squares.
 *
 * 1 / sigma of a span needs two sums over lanes, a square root and two divisions in sequence. In a short row
 * this takes most of the time. So V32_LANES spans are computed together, each in one lane of a vector. The
 * results are the same bits as for one span at a time.
 */
#ifndef LNRNN_SPAN_MOMENTS_H
#define LNRNN_SPAN_MOMENTS_H

#include "lnrnn/kernels/table.h"
#include "lnrnn/kernels/vector_loop.h"
#include "lnrnn/simd/simd.h"

/* The largest number of rows whose moments are computed together, and the number of their spans in W h and W
 * x. Both numbers fill whole vectors. The gates read the rows again, so the rows must fit into L1. Fewer than
 * LNRNN_FEW_SPANS spans are computed one by one. */
enum { LNRNN_ROWS_TOGETHER = 16, LNRNN_SPANS_TOGETHER = 2 * LNRNN_ROWS_TOGETHER, LNRNN_FEW_SPANS = 4 };

/* For each span the arguments of normalised_f32 (norm.h): mean, 1 / sigma, and -mean_lo / sigma. */
typedef struct {
    float mean[LNRNN_SPANS_TOGETHER], rstd[LNRNN_SPANS_TOGETHER], rest[LNRNN_SPANS_TOGETHER];
} span_moments;

/* a (n). Computes moments in double, because the squares of a leave the range of float. */
LNRNN_SELDOM void row_moments_in_double(size_t n, const float *a, const lnrnn_gate_norm *norm, float *mean_hi,
                                        float *mean_lo, float *rstd)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)a[i];
    const double mean = norm->centred ? sum / (double)n : 0;
    for (size_t i = 0; i < n; i++)
        squares += ((double)a[i] - mean) * ((double)a[i] - mean);
    *mean_hi = (float)mean;
    *mean_lo = (float)(mean - (double)*mean_hi);
    *rstd = (float)(1 / sqrt(squares / (double)n + (double)norm->eps));
}

/* a (n). Writes the mean, as mean and rest, and rstd = 1 / sqrt(var + eps), to *m at index `at`. */
LNRNN_OUTLINE void row_moments(size_t n, const float *a, const lnrnn_gate_norm *norm, span_moments *m,
                               size_t at)
{
    float mean_hi, mean_lo, var;
    if (norm->centred)
        moments_about_f32(n, a, &mean_hi, &mean_lo, &var, 1);
    else
        moments_about_f32(n, a, &mean_hi, &mean_lo, &var, 0);
    float rstd = 1 / sqrtf(var + norm->eps);
    if (__builtin_expect(out_of_range_f32(rstd), 0))
        row_moments_in_double(n, a, norm, &mean_hi, &mean_lo, &rstd);
    m->mean[at] = mean_hi, m->rstd[at] = rstd, m->rest[at] = -mean_lo * rstd;
}

/* a: k <= V32_LANES pointers to spans of n values, in_one_block(n). Writes their moments to *m at indices at
 * .. at + V32_LANES - 1; only the first k are valid. The operations are the same as in row_moments, which
 * computes spans that need a second pass or double. centred: norm->centred, a constant. */
LNRNN_INLINE void moments_in_lanes(size_t n, size_t k, const float *const *a, const lnrnn_gate_norm *norm,
                                   const int centred, span_moments *m, size_t at)
{
    const v32 of = v32_set1((float)n), one = v32_set1(1.0f), zero = v32_zero();
    v32 lanes[V32_LANES], square_lanes[V32_LANES];
    float pivots[V32_LANES];
    for (size_t j = k; j < V32_LANES; j++)
        lanes[j] = square_lanes[j] = zero;
    for (size_t j = 0; j < k; j++)
        lanes[j] = centred ? pivot_lanes_f32(n, a[j]) : zero;
    const v32 pivot = centred ? v32_sums(lanes) : zero;
    v32_store(pivots, pivot);
    for (size_t j = 0; j < k; j++)
        lanes_about_f32(n, a[j], pivots[j], lanes + j, square_lanes + j, centred);
    const v32 mean_d = centred ? v32_sums(lanes) / of : zero, mean_d2 = mean_d * mean_d;
    const v32 v = v32_sums(square_lanes) / of - mean_d2;
    const v32 mean = pivot + mean_d, mean_lo = (pivot - mean) + mean_d;
    const v32 var = v32_select_lt(v, zero, zero, v);
    const v32 rstd = one / v32_sqrt(var + v32_set1(norm->eps));
    v32_store(m->mean + at, mean);
    v32_store(m->rstd + at, rstd);
    v32_store(m->rest + at, mean_lo * v32_set1(-1.0f) * rstd);
    /* 1 in each lane whose pivot is near the mean and whose squares are in range. */
    const v32 in_range = v32_select_lt(zero, rstd, v32_select_lt(v32_set1(0x1p61f), rstd, zero, one), zero);
    const v32 exact = v32_select_lt(v, mean_d2, zero, in_range);
    if (__builtin_expect(v32_sum(v32_keep_n(exact, k)) != (float)k, 0)) {
        float is_exact[V32_LANES];
        v32_store(is_exact, exact);
        for (size_t j = 0; j < k; j++)
            if (is_exact[j] == 0)
                row_moments(n, a[j], norm, m, at + j);
    }
}

/* a: count <= LNRNN_SPANS_TOGETHER pointers to spans of n values. Writes their moments to *m from index 0
 * on. */
LNRNN_OUTLINE void moments_of_spans(size_t n, size_t count, const float *const *a,
                                    const lnrnn_gate_norm *norm, span_moments *m)
{
    const int alone = count < LNRNN_FEW_SPANS || !in_one_block_f32(n);
    for (size_t j = 0; alone && j < count; j++)
        row_moments(n, a[j], norm, m, j);
    for (size_t j = 0; !alone && j < count; j += V32_LANES) {
        const size_t k = count - j < V32_LANES ? count - j : V32_LANES;
        if (norm->centred)
            moments_in_lanes(n, k, a + j, norm, 1, m, j);
        else
            moments_in_lanes(n, k, a + j, norm, 0, m, j);
    }
}

#endif
