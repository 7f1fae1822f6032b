/* Layer norm and batch norm, forward and backward: one text for one real type. kernels.h includes it once for float
 * and once for double, with
 *     R       the type                 V(op)   the vector operation of that type
 *     VT      its vector               F(name) the name with the type's suffix
 *     LANES   values in a vector
 *
 * Statistics of a row are taken in one pass, of the differences to a point near the mean: var = mean(d^2) - mean(d)^2.
 * That is as accurate as two passes while the point is within a standard deviation of the mean, which is checked; if it
 * is not, a second pass goes from the mean just found. A constant row has differences of exactly 0.
 *
 * mean = m0 + m1, m0 as R can hold it and m1 the rest: rows with a mean far from 0 need the digits, for x - m0 is exact
 * there, and a rounded mean alone would be off by half an ULP of itself.
 */

/* One vector's worth of columns or less is the tail; every loop here has the shape body + tail. */

/* x (n), n >= 1 -> mean = *m0 + *m1, biased variance *var. */
LNRNN_INLINE void F(row_moments)(size_t n, const R *x, R *m0, R *m1, R *var)
{
    /* Sums are taken to double precision every 32 rounds: a longer sum would round its last terms to its own size. */
    enum { BLOCK = 32 * 4 * LANES };
    /* scaled before it is added: a constant row of large values keeps its mean */
    R near = n < LANES ? x[0] : V(sum)(V(mul)(V(load)(x), V(set1)((R)1 / LANES))), low, v;
    for (int again = 0;; again++) {
        const VT m = V(set1)(near);
        double sum = 0, squares = 0;
        for (size_t i = 0; i < n;) {
            const size_t left = n - i < BLOCK ? n - i : BLOCK, end = i + left;
            const size_t body = end - left % LANES, body4 = end - left % (4 * LANES);
            VT s0 = V(zero)(), s1 = s0, s2 = s0, s3 = s0, q0 = s0, q1 = s0, q2 = s0, q3 = s0;
            for (; i < body4; i += 4 * LANES) {
                const VT d0 = V(sub)(V(load)(x + i), m), d1 = V(sub)(V(load)(x + i + LANES), m);
                const VT d2 = V(sub)(V(load)(x + i + 2 * LANES), m), d3 = V(sub)(V(load)(x + i + 3 * LANES), m);
                s0 = V(add)(s0, d0), q0 = V(fma)(d0, d0, q0);
                s1 = V(add)(s1, d1), q1 = V(fma)(d1, d1, q1);
                s2 = V(add)(s2, d2), q2 = V(fma)(d2, d2, q2);
                s3 = V(add)(s3, d3), q3 = V(fma)(d3, d3, q3);
            }
            for (; i < body; i += LANES) {
                const VT d = V(sub)(V(load)(x + i), m);
                s0 = V(add)(s0, d), q0 = V(fma)(d, d, q0);
            }
            if (i < end) {
                const VT d = V(keep_n)(V(sub)(V(load_n)(x + i, end - i), m), end - i);
                s1 = V(add)(s1, d), q1 = V(fma)(d, d, q1);
                i = end;
            }
            sum += (double)V(sum)(V(add)(V(add)(s0, s1), V(add)(s2, s3)));
            squares += (double)V(sum)(V(add)(V(add)(q0, q1), V(add)(q2, q3)));
        }
        low = (R)(sum / (double)n);
        v = (R)(squares / (double)n) - low * low;
        if (low * low <= v || again)
            break;
        near += low;
    }
    *m0 = near + low;
    *m1 = (near - *m0) + low;
    *var = v < 0 ? 0 : v; /* this way round, a NaN stays */
}

/* Values up to the next address that is aligned to the vector, where stores past the caches may begin. */
LNRNN_INLINE size_t F(to_aligned)(const R *y, size_t n)
{
    const size_t head = -(uintptr_t)y % sizeof(VT) / sizeof(R);
    return head < n ? head : n;
}

/* x (LANES) -> (x - mean) * rstd * gain + bias. m0 as above, c = -m1 * rstd. */
LNRNN_INLINE VT F(normalised)(VT x, VT m0, VT rstd, VT c) { return V(fma)(V(sub)(x, m0), rstd, c); }

/* x, gain, bias, y (k), k <= LANES: the last step of layer norm on part of a row. */
LNRNN_INLINE void F(layer_norm_part)(size_t k, const R *x, const R *gain, const R *bias, R *y, VT m0, VT rstd, VT c,
                                     int has_gain, int has_bias)
{
    const VT z = F(normalised)(V(load_n)(x, k), m0, rstd, c);
    V(store_n)(y, V(fma)(z, has_gain ? V(load_n)(gain, k) : V(set1)(1), has_bias ? V(load_n)(bias, k) : V(zero)()), k);
}

LNRNN_INLINE void F(layer_norm_rows)(size_t rows, size_t n, const R *x, ptrdiff_t xs, const R *gain, const R *bias,
                                     R eps, R *y, ptrdiff_t ys, int has_gain, int has_bias, int past)
{
    const VT one = V(set1)(1), zero = V(zero)();
    for (size_t r = 0; r < rows; r++, x += xs, y += ys) {
        R m0, m1, var;
        F(row_moments)(n, x, &m0, &m1, &var);
        const R rstd = 1 / F(root)(var + eps);
        const VT vm = V(set1)(m0), vr = V(set1)(rstd), vc = V(set1)(-m1 * rstd);
        size_t i = past ? F(to_aligned)(y, n) : 0;
        if (i)
            F(layer_norm_part)(i, x, gain, bias, y, vm, vr, vc, has_gain, has_bias);
        for (; i + LANES <= n; i += LANES) {
            const VT z = F(normalised)(V(load)(x + i), vm, vr, vc);
            const VT v = V(fma)(z, has_gain ? V(load)(gain + i) : one, has_bias ? V(load)(bias + i) : zero);
            if (past)
                V(stream)(y + i, v);
            else
                V(store)(y + i, v);
        }
        if (i < n)
            F(layer_norm_part)(n - i, x + i, has_gain ? gain + i : NULL, has_bias ? bias + i : NULL, y + i, vm, vr, vc,
                               has_gain, has_bias);
    }
}

/* x (rows, n) with xs values from row to row, gain (n) or NULL, bias (n) or NULL -> y (rows, n), stride ys.
 * y may be x; rows may not overlap otherwise. n >= 1. past: y is too large for the caches, write past them. */
static void F(layer_norm)(size_t rows, size_t n, const R *x, ptrdiff_t xs, const R *gain, const R *bias, R eps, R *y,
                          ptrdiff_t ys, int past)
{
#define LNRNN_CALL(g, b)                                                             \
    do {                                                                             \
        if (past)                                                                    \
            F(layer_norm_rows)(rows, n, x, xs, gain, bias, eps, y, ys, g, b, 1);     \
        else                                                                         \
            F(layer_norm_rows)(rows, n, x, xs, gain, bias, eps, y, ys, g, b, 0);     \
    } while (0)
    if (gain && bias)
        LNRNN_CALL(1, 1);
    else if (gain)
        LNRNN_CALL(1, 0);
    else if (bias)
        LNRNN_CALL(0, 1);
    else
        LNRNN_CALL(0, 0);
#undef LNRNN_CALL
    if (past)
        stream_end();
}

/* Adds part (n) to total (n) and clears part: short sums in R, long ones in double. */
LNRNN_INLINE void F(flush)(size_t n, R *part, double *total)
{
    for (size_t i = 0; i < n; i++) {
        total[i] += part[i];
        part[i] = 0;
    }
}

/* gy, x (rows, n), gain (n) or NULL -> gx (rows, n), strides gs, xs, os; adds the rows' share to ggain (n), gbias (n).
 *     gx = rstd * (u - mean(u) - z * mean(u z)),  z = (x - mean) * rstd,  u = gy * gain
 *     ggain = sum gy z,  gbias = sum gy
 * work (2, n) holds zeros before and after. gx may be gy or x. n >= 1. */
static void F(layer_norm_backward)(size_t rows, size_t n, const R *gy, ptrdiff_t gs, const R *x, ptrdiff_t xs,
                                   const R *gain, R eps, R *gx, ptrdiff_t os, double *ggain, double *gbias, R *work)
{
    const VT one = V(set1)(1);
    R *pg = work, *pb = work + n;
    for (size_t r = 0; r < rows; r++, x += xs, gy += gs, gx += os) {
        R m0, m1, var;
        F(row_moments)(n, x, &m0, &m1, &var);
        const R rstd = 1 / F(root)(var + eps);
        const VT vm = V(set1)(m0), vr = V(set1)(rstd), vc = V(set1)(-m1 * rstd);
        VT su = V(zero)(), suz = V(zero)();
        for (size_t i = 0; i < n; i += LANES) {
            const size_t k = n - i < LANES ? n - i : LANES;
            const VT g = V(load_n)(gy + i, k);
            const VT z = V(keep_n)(F(normalised)(V(load_n)(x + i, k), vm, vr, vc), k);
            const VT u = V(mul)(g, gain ? V(load_n)(gain + i, k) : one);
            V(store_n)(pg + i, V(fma)(g, z, V(load_n)(pg + i, k)), k);
            V(store_n)(pb + i, V(add)(g, V(load_n)(pb + i, k)), k);
            su = V(add)(su, u), suz = V(fma)(u, z, suz);
        }
        const VT mu = V(set1)(V(sum)(su) / (R)n), muz = V(set1)(V(sum)(suz) / (R)n);
        for (size_t i = 0; i < n; i += LANES) {
            const size_t k = n - i < LANES ? n - i : LANES;
            const VT z = F(normalised)(V(load_n)(x + i, k), vm, vr, vc);
            const VT u = V(mul)(V(load_n)(gy + i, k), gain ? V(load_n)(gain + i, k) : one);
            V(store_n)(gx + i, V(mul)(vr, V(sub)(V(sub)(u, mu), V(mul)(z, muz))), k);
        }
        if (r % 32 == 31)
            F(flush)(n, pg, ggain), F(flush)(n, pb, gbias);
    }
    F(flush)(n, pg, ggain), F(flush)(n, pb, gbias);
}

/* Batch norm sees x as rows of n values. By columns (N, C): a channel is a column, a parameter belongs to a column.
 * By planes (C, L), once for every sample: a channel is a row of L values, a parameter belongs to a row. */

/* Joins the moments of nb more values to those of na: Chan, Golub and LeVeque 1979. mean, m2: sum of squared
 * deviations. */
LNRNN_INLINE void F(join)(double na, double *mean, double *m2, double nb, double mean_b, double m2_b)
{
    const double d = mean_b - *mean, n = na + nb;
    *mean += d * (nb / n);
    *m2 += m2_b + d * d * (na * nb / n);
}

/* x (rows, VECS vectors; the last k values only), rows <= 64 -> joined to mean, m2 (VECS * LANES) over na rows. */
LNRNN_INLINE void F(tile_moments)(size_t rows, int vecs, size_t k, const R *x, ptrdiff_t xs, double na, double *mean,
                                  double *m2)
{
    VT first[4], s[4], q[4];
    const size_t last = k - (size_t)(vecs - 1) * LANES;
#define LNRNN_TILE_LOAD(r, v) \
    ((v) < vecs - 1 ? V(load)(x + (ptrdiff_t)(r) * xs + (v) * LANES) \
                    : V(load_n)(x + (ptrdiff_t)(r) * xs + (v) * LANES, last))
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

/* x (rows, n), stride xs -> mean (n) and m2 (n), sum of squared deviations, of every column. rows >= 1. */
static void F(moments_columns)(size_t rows, size_t n, const R *x, ptrdiff_t xs, double *mean, double *m2)
{
    for (size_t i = 0; i < n; i++)
        mean[i] = m2[i] = 0;
    /* 64 rows at a time: the block is read twice, the second time from the cache. */
    for (size_t r = 0; r < rows; r += 64) {
        const size_t b = rows - r < 64 ? rows - r : 64;
        const R *p = x + (ptrdiff_t)r * xs;
        size_t i = 0;
        for (; i + 4 * LANES <= n; i += 4 * LANES)
            F(tile_moments)(b, 4, 4 * LANES, p + i, xs, (double)r, mean + i, m2 + i);
        for (; i < n; i += LANES)
            F(tile_moments)(b, 1, n - i < LANES ? n - i : LANES, p + i, xs, (double)r, mean + i, m2 + i);
    }
}

/* x (samples, n): one channel of a batch, xs values from sample to sample -> *mean, *m2 over all of it. n >= 1. */
static void F(moments_planes)(size_t samples, size_t n, const R *x, ptrdiff_t xs, double *mean, double *m2)
{
    double count = 0;
    *mean = *m2 = 0;
    for (size_t s = 0; s < samples; s++)
        for (size_t i = 0; i < n; i += 2048) { /* a block that the second pass finds in L1 */
            const size_t b = n - i < 2048 ? n - i : 2048;
            R m0, m1, var;
            F(row_moments)(b, x + (ptrdiff_t)s * xs + i, &m0, &m1, &var);
            F(join)(count, mean, m2, (double)b, (double)m0 + (double)m1, (double)var * (double)b);
            count += (double)b;
        }
}

/* mean, m2 (n): sums of squared deviations over count values; gain, bias (n) or NULL -> what a pass over x needs:
 * at (n), the mean as R can hold it, scale (n) = gain / sqrt(m2 / count + eps), and shift (n) = bias less what at leaves
 * of the mean. */
static void F(fold)(size_t n, const double *mean, const double *m2, double count, const R *gain, const R *bias,
                    double eps, R *at, R *scale, R *shift)
{
    for (size_t i = 0; i < n; i++) {
        const double s = (gain ? (double)gain[i] : 1.0) / sqrt(m2[i] / count + eps);
        at[i] = (R)mean[i];
        scale[i] = (R)s;
        shift[i] = (R)((bias ? (double)bias[i] : 0.0) - (mean[i] - (double)at[i]) * s);
    }
}

/* x (rows, n), mean, scale, shift (n), or (rows) if by_row -> y = (x - mean) * scale + shift. y may be x.
 * The mean is taken off first: folded into the shift it would cost the digits of x - mean. */
LNRNN_INLINE void F(affine_part)(size_t k, const R *x, const R *mean, const R *scale, const R *shift, R *y, VT m, VT a,
                                 VT b, int by_row)
{
    const VT v = V(load_n)(x, k);
    V(store_n)(y, by_row ? V(fma)(V(sub)(v, m), a, b)
                         : V(fma)(V(sub)(v, V(load_n)(mean, k)), V(load_n)(scale, k), V(load_n)(shift, k)), k);
}

LNRNN_INLINE void F(affine_any)(size_t rows, size_t n, const R *x, ptrdiff_t xs, const R *mean, const R *scale,
                                const R *shift, R *y, ptrdiff_t ys, int by_row, int past)
{
    for (size_t r = 0; r < rows; r++, x += xs, y += ys) {
        const VT m = V(set1)(by_row ? mean[r] : 0), a = V(set1)(by_row ? scale[r] : 0);
        const VT b = V(set1)(by_row ? shift[r] : 0);
        size_t i = past ? F(to_aligned)(y, n) : 0;
        if (i)
            F(affine_part)(i, x, mean, scale, shift, y, m, a, b, by_row);
        for (; i + LANES <= n; i += LANES) {
            const VT v = by_row ? V(fma)(V(sub)(V(load)(x + i), m), a, b)
                                : V(fma)(V(sub)(V(load)(x + i), V(load)(mean + i)), V(load)(scale + i),
                                         V(load)(shift + i));
            if (past)
                V(stream)(y + i, v);
            else
                V(store)(y + i, v);
        }
        if (i < n)
            F(affine_part)(n - i, x + i, mean + i, scale + i, shift + i, y + i, m, a, b, by_row);
    }
}

/* past: as in layer_norm. */
#define LNRNN_AFFINE(by_row)                                                              \
    do {                                                                                  \
        if (past) {                                                                       \
            F(affine_any)(rows, n, x, xs, mean, scale, shift, y, ys, by_row, 1);          \
            stream_end();                                                                 \
        } else                                                                            \
            F(affine_any)(rows, n, x, xs, mean, scale, shift, y, ys, by_row, 0);          \
    } while (0)

static void F(affine_columns)(size_t rows, size_t n, const R *x, ptrdiff_t xs, const R *mean, const R *scale,
                              const R *shift, R *y, ptrdiff_t ys, int past)
{
    LNRNN_AFFINE(0);
}

static void F(affine_planes)(size_t rows, size_t n, const R *x, ptrdiff_t xs, const R *mean, const R *scale,
                             const R *shift, R *y, ptrdiff_t ys, int past)
{
    LNRNN_AFFINE(1);
}
#undef LNRNN_AFFINE

/* gy, x (rows, n), strides s; mean (n) -> adds sum gy to sg (n) and sum gy (x - mean) to sgx (n), by columns.
 * work (2, n) holds zeros before and after. */
static void F(sums_columns)(size_t rows, size_t n, const R *gy, const R *x, ptrdiff_t s, const R *mean, double *sg,
                            double *sgx, R *work)
{
    R *p0 = work, *p1 = work + n;
    for (size_t r = 0; r < rows; r++, gy += s, x += s) {
        for (size_t i = 0; i < n; i += LANES) {
            const size_t k = n - i < LANES ? n - i : LANES;
            const VT g = V(load_n)(gy + i, k), d = V(sub)(V(load_n)(x + i, k), V(load_n)(mean + i, k));
            V(store_n)(p0 + i, V(add)(g, V(load_n)(p0 + i, k)), k);
            V(store_n)(p1 + i, V(fma)(g, d, V(load_n)(p1 + i, k)), k);
        }
        if (r % 32 == 31)
            F(flush)(n, p0, sg), F(flush)(n, p1, sgx);
    }
    F(flush)(n, p0, sg), F(flush)(n, p1, sgx);
}

/* gy, x (samples, n) of one channel, s values from sample to sample -> adds to *sg and *sgx likewise. */
static void F(sums_planes)(size_t samples, size_t n, const R *gy, const R *x, ptrdiff_t s, R mean, double *sg,
                           double *sgx)
{
    const VT m = V(set1)(mean);
    for (size_t j = 0; j < samples; j++)
        for (size_t i = 0; i < n;) {
            VT a = V(zero)(), b = V(zero)();
            const size_t end = n - i < 2048 ? n : i + 2048;
            for (; i < end; i += LANES) {
                const size_t k = end - i < LANES ? end - i : LANES;
                const VT g = V(load_n)(gy + (ptrdiff_t)j * s + i, k);
                a = V(add)(a, g), b = V(fma)(g, V(sub)(V(load_n)(x + (ptrdiff_t)j * s + i, k), m), b);
            }
            i = end;
            *sg += V(sum)(a), *sgx += V(sum)(b);
        }
}

/* gy, x (rows, n); mean, scale, c1, c2 (n), or (rows) if by_row -> gx = scale * (gy - (x - mean) * c2 - c1). gx may be
 * gy or x. */
LNRNN_INLINE void F(batch_norm_gx)(size_t rows, size_t n, const R *gy, const R *x, ptrdiff_t s, const R *mean,
                                   const R *scale, const R *c1, const R *c2, R *gx, int by_row)
{
    for (size_t r = 0; r < rows; r++, gy += s, x += s, gx += s)
        for (size_t i = 0; i < n; i += LANES) {
            const size_t k = n - i < LANES ? n - i : LANES;
            const VT m = by_row ? V(set1)(mean[r]) : V(load_n)(mean + i, k);
            const VT a = by_row ? V(set1)(scale[r]) : V(load_n)(scale + i, k);
            const VT b = by_row ? V(set1)(c1[r]) : V(load_n)(c1 + i, k);
            const VT c = by_row ? V(set1)(c2[r]) : V(load_n)(c2 + i, k);
            const VT off = V(fma)(V(sub)(V(load_n)(x + i, k), m), c, b);
            V(store_n)(gx + i, V(mul)(a, V(sub)(V(load_n)(gy + i, k), off)), k);
        }
}

static void F(gx_columns)(size_t rows, size_t n, const R *gy, const R *x, ptrdiff_t s, const R *mean, const R *scale,
                          const R *c1, const R *c2, R *gx)
{
    F(batch_norm_gx)(rows, n, gy, x, s, mean, scale, c1, c2, gx, 0);
}

static void F(gx_planes)(size_t rows, size_t n, const R *gy, const R *x, ptrdiff_t s, const R *mean, const R *scale,
                         const R *c1, const R *c2, R *gx)
{
    F(batch_norm_gx)(rows, n, gy, x, s, mean, scale, c1, c2, gx, 1);
}
