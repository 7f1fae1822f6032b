/* Batch norm over the living sequences of one step: few rows with a stride, and no memory to work in. For forward.c. */

/* Joins the moments of nb more values to those of na: Chan, Golub and LeVeque 1979. mean, m2: sum of squared
 * deviations. */
LNRNN_INLINE void F(join)(double na, double *mean, double *m2, double nb, double mean_b, double m2_b)
{
    const double d = mean_b - *mean, n = na + nb;
    *mean += d * (nb / n);
    *m2 += m2_b + d * d * (na * nb / n);
}

/* x (rows, VECS vectors; the last k values only), rows <= 64 -> joined to mean, m2 (VECS * LANES) over na rows. */
LNRNN_INLINE void F(tile_moments)(size_t rows, int vecs, size_t k, const S *x, ptrdiff_t xs, double na, double *mean,
                                  double *m2)
{
    VT first[4], s[4], q[4];
    const size_t last = k - (size_t)(vecs - 1) * LANES;
#define LNRNN_TILE_LOAD(r, v) \
    ((v) < vecs - 1 ? X(load)(x + (ptrdiff_t)(r) * xs + (v) * LANES) \
                    : X(load_n)(x + (ptrdiff_t)(r) * xs + (v) * LANES, last))
    for (int v = 0; v < vecs; v++)
        first[v] = LNRNN_TILE_LOAD(0, v), s[v] = V(zero)(), q[v] = V(zero)();
    for (size_t r = 1; r < rows; r++)
        for (int v = 0; v < vecs; v++)
            s[v] = V(add)(s[v], V(sub)(LNRNN_TILE_LOAD(r, v), first[v]));
    const VT over_rows = V(set1)((R)rows);
    for (int v = 0; v < vecs; v++)
        first[v] = V(add)(first[v], V(div)(s[v], over_rows)), s[v] = V(zero)();
    for (size_t r = 0; r < rows; r++)
        for (int v = 0; v < vecs; v++) {
            const VT d = V(sub)(LNRNN_TILE_LOAD(r, v), first[v]);
            s[v] = V(add)(s[v], d), q[v] = V(fma)(d, d, q[v]);
        }
#undef LNRNN_TILE_LOAD
    R m0[4 * LANES], m1[4 * LANES], sq[4 * LANES];
    for (int v = 0; v < vecs; v++) {
        V(store)(m0 + v * LANES, first[v]);
        V(store)(m1 + v * LANES, s[v]);
        V(store)(sq + v * LANES, q[v]);
    }
    for (size_t i = 0; i < k; i++) {
        const double low = (double)m1[i] / (double)rows, spread = (double)sq[i] - (double)m1[i] * low;
        F(join)(na, mean + i, m2 + i, (double)rows, (double)m0[i] + low, spread < 0 ? 0 : spread);
    }
}

/* The same for one column in double precision, for squares that leave the range of float. */
LNRNN_SELDOM void F(column_moments)(size_t rows, const S *x, ptrdiff_t xs, double *mean, double *m2)
{
    *mean = *m2 = 0;
    for (size_t r = 0; r < rows; r++)
        F(join)((double)r, mean, m2, 1, (double)V(sum)(X(load_n)(x + (ptrdiff_t)r * xs, 1)), 0);
}

/* x (rows, n), stride xs -> mean (n) and m2 (n), sum of squared deviations, of every column. rows >= 1. */
static void F(moments_columns)(size_t rows, size_t n, const void *x_, ptrdiff_t xs, double *mean, double *m2)
{
    const S *x = x_;
    for (size_t i = 0; i < n; i++)
        mean[i] = m2[i] = 0;
    /* 64 rows at a time: the block is read twice, the second time from the cache. */
    for (size_t r = 0; r < rows; r += 64) {
        const size_t b = rows - r < 64 ? rows - r : 64;
        const S *p = x + (ptrdiff_t)r * xs;
        size_t i = 0;
        for (; i + 4 * LANES <= n; i += 4 * LANES)
            F(tile_moments)(b, 4, 4 * LANES, p + i, xs, (double)r, mean + i, m2 + i);
        for (; i < n; i += LANES)
            F(tile_moments)(b, 1, n - i < LANES ? n - i : LANES, p + i, xs, (double)r, mean + i, m2 + i);
    }
    for (size_t i = 0; i < n; i++)
        if (!(m2[i] < INFINITY))
            F(column_moments)(rows, x + i, xs, mean + i, m2 + i);
}

/* gy, x (rows, n), gs and xs apart; mean (n) -> adds sum gy to sg (n) and sum gy (x - mean) to sgx (n), by columns.
 * work (2, n) holds zeros before and after. */
static void F(sums_columns)(size_t rows, size_t n, const void *gy_, ptrdiff_t gs, const void *x_, ptrdiff_t xs,
                            const void *mean_, double *sg, double *sgx, void *work)
{
    const S *gy = gy_, *x = x_;
    const R *mean = mean_;
    R *p0 = work, *p1 = p0 + n;
    for (size_t r = 0; r < rows; r++, gy += gs, x += xs) {
        for (size_t i = 0; i < n; i += LANES) {
            const size_t k = n - i < LANES ? n - i : LANES;
            const VT g = X(load_n)(gy + i, k), d = V(sub)(X(load_n)(x + i, k), V(load_n)(mean + i, k));
            V(store_n)(p0 + i, V(add)(g, V(load_n)(p0 + i, k)), k);
            V(store_n)(p1 + i, V(fma)(g, d, V(load_n)(p1 + i, k)), k);
        }
        if (r % 32 == 31)
            F(flush)(n, p0, sg), F(flush)(n, p1, sgx);
    }
    F(flush)(n, p0, sg), F(flush)(n, p1, sgx);
}
