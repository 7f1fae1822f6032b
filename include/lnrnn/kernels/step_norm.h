/* Batch norm over the active sequences of one time step: the statistics of the columns of x, and the sums for
 * their gradients. Unlike in batch_norm.h, x has few rows, and a row stride. */
#ifndef LNRNN_STEP_NORM_H
#define LNRNN_STEP_NORM_H

#include "lnrnn/simd/simd.h"

/* Merges the mean and the sum of squared deviations (m2) of nb values into *mean and *m2 of na values (Chan,
 * Golub and LeVeque 1979). */
LNRNN_INLINE void join(double na, double *mean, double *m2, double nb, double mean_b, double m2_b)
{
    const double d = mean_b - *mean, n = na + nb;
    *mean += d * (nb / n);
    *m2 += m2_b + d * d * (na * nb / n);
}

/* A tile: some columns of at most 64 rows of x. */
typedef struct {
    size_t rows;    /* 1 .. 64 */
    const float *x; /* (rows, columns), row stride xs */
    ptrdiff_t xs;
    size_t last; /* the number of columns in the last vector */
} column_tile;

LNRNN_INLINE v32 columns_load(const column_tile *t, const int vecs, size_t r, int v)
{
    const float *const p = t->x + (ptrdiff_t)r * t->xs + v * V32_LANES;
    return v < vecs - 1 ? v32_load(p) : v32_load_n(p, t->last);
}

/* mean, m2 (columns): the moments of na rows. Merges into them the moments of a tile of vecs vectors, 1 or 4.
 * A first pass computes means, which are the pivots of a second pass. */
LNRNN_INLINE void tile_moments(const column_tile *t, const int vecs, double na, double *mean, double *m2)
{
    v32 pivot[4], sum[4], squares[4];
    LNRNN_FOR_EACH (v, vecs)
        pivot[v] = columns_load(t, vecs, 0, v), sum[v] = v32_zero(), squares[v] = v32_zero();
    for (size_t r = 1; r < t->rows; r++)
        LNRNN_FOR_EACH (v, vecs)
            sum[v] += columns_load(t, vecs, r, v) - pivot[v];
    const v32 rows = v32_set1((float)t->rows);
    LNRNN_FOR_EACH (v, vecs)
        pivot[v] += sum[v] / rows, sum[v] = v32_zero();
    for (size_t r = 0; r < t->rows; r++)
        LNRNN_FOR_EACH (v, vecs) {
            const v32 d = columns_load(t, vecs, r, v) - pivot[v];
            sum[v] += d, squares[v] = v32_fma(d, d, squares[v]);
        }
    float pivots[4 * V32_LANES], sums[4 * V32_LANES], sums_of_squares[4 * V32_LANES];
    LNRNN_FOR_EACH (v, vecs) {
        v32_store(pivots + v * V32_LANES, pivot[v]);
        v32_store(sums + v * V32_LANES, sum[v]);
        v32_store(sums_of_squares + v * V32_LANES, squares[v]);
    }
    const double n = (double)t->rows;
    const size_t columns = (size_t)(vecs - 1) * V32_LANES + t->last;
    for (size_t i = 0; i < columns; i++) {
        const double mean_d = (double)sums[i] / n;
        const double tile_m2 = (double)sums_of_squares[i] - (double)sums[i] * mean_d;
        /* GCOVR_EXCL_BR_LINE: rounding alone makes it negative */
        join(na, mean + i, m2 + i, n, (double)pivots[i] + mean_d, tile_m2 < 0 ? 0 : tile_m2);
    }
}

/* x (rows), stride xs -> mean, m2 of one column, in double, for columns whose squares overflow float in
 * tile_moments. */
LNRNN_SELDOM void column_moments(size_t rows, const float *x, ptrdiff_t xs, double *mean, double *m2)
{
    *mean = *m2 = 0;
    for (size_t r = 0; r < rows; r++)
        join((double)r, mean, m2, 1, (double)v32_sum(v32_load_n(x + (ptrdiff_t)r * xs, 1)), 0);
}

/* x (rows, n), row stride xs, rows >= 1 -> mean and m2 (n), the sum of squared deviations, of each column. */
static void moments_columns(size_t rows, size_t n, const float *x, ptrdiff_t xs, double *mean, double *m2)
{
    for (size_t i = 0; i < n; i++)
        mean[i] = m2[i] = 0;
    /* Take 64 rows at a time, so that a tile is in the cache for its second pass. */
    for (size_t r = 0; r < rows; r += 64) {
        column_tile t = {rows - r < 64 ? rows - r : 64, x + (ptrdiff_t)r * xs, xs, V32_LANES};
        size_t i = 0;
        for (; i + 4 * V32_LANES <= n; i += 4 * V32_LANES, t.x += 4 * V32_LANES)
            tile_moments(&t, 4, (double)r, mean + i, m2 + i);
        for (; i < n; i += V32_LANES, t.x += V32_LANES) {
            t.last = n - i < V32_LANES ? n - i : V32_LANES;
            tile_moments(&t, 1, (double)r, mean + i, m2 + i);
        }
    }
    for (size_t i = 0; i < n; i++)
        if (!(m2[i] < INFINITY))
            column_moments(rows, x + i, xs, mean + i, m2 + i);
}

/* x (rows, n), row stride xs. Adds the sum of each column to sums (n). */
static void add_columns(size_t rows, size_t n, const float *x, ptrdiff_t xs, float *sums)
{
    for (size_t i = 0; i < n; i += V32_LANES) {
        const size_t k = n - i < V32_LANES ? n - i : V32_LANES;
        v32 sum = v32_load_n(sums + i, k);
        for (size_t r = 0; r < rows; r++)
            sum += v32_load_n(x + (ptrdiff_t)r * xs + i, k);
        v32_store_n(sums + i, sum, k);
    }
}

/* gy, x (rows, n), row strides gs, xs; mean (n). Adds each column's sum of gy to sum_gy (n), and its sum of
 * gy (x - mean) to sum_gyd (n). partial (2, n) must be zeros, and is zeros afterwards. */
static void sums_columns(size_t rows, size_t n, const float *gy, ptrdiff_t gs, const float *x, ptrdiff_t xs,
                         const float *mean, double *sum_gy, double *sum_gyd, float *partial)
{
    float *const partial_gy = partial, *const partial_gyd = partial + n;
    for (size_t r = 0; r < rows; r++, gy += gs, x += xs) {
        for (size_t i = 0; i < n; i += V32_LANES) {
            const size_t k = n - i < V32_LANES ? n - i : V32_LANES;
            const v32 g = v32_load_n(gy + i, k), d = v32_load_n(x + i, k) - v32_load_n(mean + i, k);
            v32_store_n(partial_gy + i, g + v32_load_n(partial_gy + i, k), k);
            v32_store_n(partial_gyd + i, v32_fma(g, d, v32_load_n(partial_gyd + i, k)), k);
        }
        if (r % 32 == 31)
            flush_f32(n, partial_gy, sum_gy), flush_f32(n, partial_gyd, sum_gyd);
    }
    flush_f32(n, partial_gy, sum_gy), flush_f32(n, partial_gyd, sum_gyd);
}

#endif
