/* Batch norm over the active sequences of one step: few rows with a stride, and no memory to work in. */
#ifndef LNRNN_STEP_NORM_H
#define LNRNN_STEP_NORM_H

#include "lnrnn/simd/simd.h"

/* Joins the moments of nb more values to those of na: Chan, Golub and LeVeque 1979. mean, m2: sum of squared
 * deviations. */
LNRNN_INLINE void join(double na, double *mean, double *m2, double nb, double mean_b, double m2_b)
{
    const double d = mean_b - *mean, n = na + nb;
    *mean += d * (nb / n);
    *m2 += m2_b + d * d * (na * nb / n);
}

/* x (rows, VECS vectors; the last k values only), rows <= 64 -> joined to mean, m2 (VECS * V32_LANES) over na rows. */
LNRNN_INLINE void tile_moments(size_t rows, int vecs, size_t k, const float *x, ptrdiff_t xs, double na,
                               double *mean, double *m2)
{
    v32 first[4], s[4], q[4];
    const size_t last = k - (size_t)(vecs - 1) * V32_LANES;
#define LNRNN_TILE_LOAD(r, v)                                             \
    ((v) < vecs - 1 ? v32_load(x + (ptrdiff_t)(r) * xs + (v) * V32_LANES) \
                    : v32_load_n(x + (ptrdiff_t)(r) * xs + (v) * V32_LANES, last))
    for (int v = 0; v < vecs; v++)
        first[v] = LNRNN_TILE_LOAD(0, v), s[v] = v32_zero(), q[v] = v32_zero();
    for (size_t r = 1; r < rows; r++)
        for (int v = 0; v < vecs; v++)
            s[v] = v32_add(s[v], v32_sub(LNRNN_TILE_LOAD(r, v), first[v]));
    const v32 over_rows = v32_set1((float)rows);
    for (int v = 0; v < vecs; v++)
        first[v] = v32_add(first[v], v32_div(s[v], over_rows)), s[v] = v32_zero();
    for (size_t r = 0; r < rows; r++)
        for (int v = 0; v < vecs; v++) {
            const v32 d = v32_sub(LNRNN_TILE_LOAD(r, v), first[v]);
            s[v] = v32_add(s[v], d), q[v] = v32_fma(d, d, q[v]);
        }
#undef LNRNN_TILE_LOAD
    float m0[4 * V32_LANES], m1[4 * V32_LANES], sq[4 * V32_LANES];
    for (int v = 0; v < vecs; v++) {
        v32_store(m0 + v * V32_LANES, first[v]);
        v32_store(m1 + v * V32_LANES, s[v]);
        v32_store(sq + v * V32_LANES, q[v]);
    }
    for (size_t i = 0; i < k; i++) {
        const double low = (double)m1[i] / (double)rows, spread = (double)sq[i] - (double)m1[i] * low;
        join(na, mean + i, m2 + i, (double)rows, (double)m0[i] + low, spread < 0 ? 0 : spread);
    }
}

/* The same for one column in double precision, for squares that leave the range of float. */
LNRNN_SELDOM void column_moments(size_t rows, const float *x, ptrdiff_t xs, double *mean, double *m2)
{
    *mean = *m2 = 0;
    for (size_t r = 0; r < rows; r++)
        join((double)r, mean, m2, 1, (double)v32_sum(v32_load_n(x + (ptrdiff_t)r * xs, 1)), 0);
}

/* x (rows, n), stride xs -> mean (n) and m2 (n), sum of squared deviations, of every column. rows >= 1. */
static void moments_columns(size_t rows, size_t n, const float *x, ptrdiff_t xs, double *mean, double *m2)
{
    for (size_t i = 0; i < n; i++)
        mean[i] = m2[i] = 0;
    /* 64 rows at a time: the block is read twice, the second time from the cache. */
    for (size_t r = 0; r < rows; r += 64) {
        const size_t b = rows - r < 64 ? rows - r : 64;
        const float *p = x + (ptrdiff_t)r * xs;
        size_t i = 0;
        for (; i + 4 * V32_LANES <= n; i += 4 * V32_LANES)
            tile_moments(b, 4, 4 * V32_LANES, p + i, xs, (double)r, mean + i, m2 + i);
        for (; i < n; i += V32_LANES)
            tile_moments(b, 1, n - i < V32_LANES ? n - i : V32_LANES, p + i, xs, (double)r, mean + i, m2 + i);
    }
    for (size_t i = 0; i < n; i++)
        if (!(m2[i] < INFINITY))
            column_moments(rows, x + i, xs, mean + i, m2 + i);
}

/* gy, x (rows, n), gs and xs apart; mean (n) -> adds sum gy to sg (n) and sum gy (x - mean) to sgx (n), by columns.
 * work (2, n) holds zeros before and after. */
static void sums_columns(size_t rows, size_t n, const float *gy, ptrdiff_t gs, const float *x, ptrdiff_t xs,
                         const float *mean, double *sg, double *sgx, float *work)
{
    float *p0 = work, *p1 = p0 + n;
    for (size_t r = 0; r < rows; r++, gy += gs, x += xs) {
        for (size_t i = 0; i < n; i += V32_LANES) {
            const size_t k = n - i < V32_LANES ? n - i : V32_LANES;
            const v32 g = v32_load_n(gy + i, k), d = v32_sub(v32_load_n(x + i, k), v32_load_n(mean + i, k));
            v32_store_n(p0 + i, v32_add(g, v32_load_n(p0 + i, k)), k);
            v32_store_n(p1 + i, v32_fma(g, d, v32_load_n(p1 + i, k)), k);
        }
        if (r % 32 == 31)
            flush_f32(n, p0, sg), flush_f32(n, p1, sgx);
    }
    flush_f32(n, p0, sg), flush_f32(n, p1, sgx);
}

#endif
