/* Batch norm, forward and backward: one text for one type in memory, as norm.h says.
 *
 * x (N, C, L) is contiguous, and read as it lies in memory. By columns, if L is 1: a row is a sample, and a parameter
 * belongs to a column. By planes otherwise: a row is the L values of one channel of one sample, with one parameter.
 *
 * Statistics are taken in one pass, as in norm.h: sums of the differences to a point near each channel's mean.
 */

enum { F(PROBES) = 16 };

/* x (N, C, L) -> near (C): the mean of some values, spread over all of a channel's. */
static void F(batch_probe)(size_t N, size_t C, size_t L, const void *x_, void *near_)
{
    const S *x = x_;
    R *near = near_;
    /* scaled before they are added: large values keep their mean */
    if (L == 1) {
        const VT part = V(set1)((R)1 / F(PROBES));
        for (size_t i = 0; i < C; i += LANES) {
            const size_t k = C - i < LANES ? C - i : LANES;
            VT a = V(zero)();
            for (size_t p = 0; p < F(PROBES); p++) {
                const S *row = x + p * N / F(PROBES) * C + i;
                a = V(fma)(k == LANES ? X(load)(row) : X(load_n)(row, k), part, a);
            }
            V(store_n)(near + i, a, k);
        }
        return;
    }
    const size_t k = L < LANES ? L : LANES;
    const VT part = V(set1)(1 / (R)(F(PROBES) * k));
    for (size_t c = 0; c < C; c++) {
        VT a = V(zero)();
        for (size_t p = 0; p < F(PROBES); p++)
            a = V(fma)(X(load_n)(x + (p * N / F(PROBES) * C + c) * L + (L - k) * p / (F(PROBES) - 1), k), part, a);
        near[c] = V(sum)(a);
    }
}

/* Some rows' share of the sums of a part of the columns: d to *s, d^2 to *q, and with gradients gy to *t, gy d to *w. */
LNRNN_INLINE void F(batch_columns_part)(const int rows, size_t k, const int whole, const S *x, const S *gy, size_t C,
                                        const R *near, R *s, R *q, R *t, R *w, const int has_gy)
{
    const VT m = F(get_real)(near, k, whole), zero = V(zero)();
    VT a = zero, b = zero, c = zero, e = zero;
#pragma GCC unroll 8
    for (int j = 0; j < rows; j++) {
        const VT d = V(sub)(F(get)(x + (size_t)j * C, k, whole), m);
        a = V(add)(a, d), b = V(fma)(d, d, b);
        if (has_gy) {
            const VT g = F(get)(gy + (size_t)j * C, k, whole);
            c = V(add)(c, g), e = V(fma)(g, d, e);
        }
    }
    /* added up by themselves first: a long sum would round them to its own size */
    F(put_real)(s, V(add)(a, F(get_real)(s, k, whole)), k, whole);
    F(put_real)(q, V(add)(b, F(get_real)(q, k, whole)), k, whole);
    if (has_gy) {
        F(put_real)(t, V(add)(c, F(get_real)(t, k, whole)), k, whole);
        F(put_real)(w, V(add)(e, F(get_real)(w, k, whole)), k, whole);
    }
}

LNRNN_INLINE void F(batch_columns_sums)(size_t rows, size_t C, size_t n, const S *x, const S *gy, const R *near,
                                        double *sums, R *part, const int has_gy)
{
    R *s = part, *q = s + n, *t = q + n, *w = t + n;
    /* Rows a multiple of 4 KiB apart lie in the same sets of L1, which are not enough for eight rows of two arrays. */
    const size_t most = C * sizeof(S) % 4096 ? 8 : 4, head = C % LANES ? 0 : F(to_whole_lines)(x, n);
    /* All columns in groups of as many rows: a sum may not depend on where x lies. */
#define LNRNN_PARTS(many, i, k, whole)                                                                                 \
    F(batch_columns_part)(many, k, whole, p + (i), LNRNN_AT(g, i), C, near + (i), s + (i), q + (i), t + (i), w + (i),  \
                          has_gy)
#define LNRNN_OF_8(i, k, whole) LNRNN_PARTS(8, i, k, whole)
#define LNRNN_OF_4(i, k, whole) LNRNN_PARTS(4, i, k, whole)
#define LNRNN_OF_1(i, k, whole) LNRNN_PARTS(1, i, k, whole)
    for (size_t r = 0; r < rows;) {
        const size_t many = rows - r >= most ? most : 1;
        const S *p = x + r * C, *g = LNRNN_AT(gy, r * C);
        if (many == 8)
            LNRNN_WHOLE_ROW(head, n, LNRNN_OF_8);
        else if (many == 4)
            LNRNN_WHOLE_ROW(head, n, LNRNN_OF_4);
        else
            LNRNN_WHOLE_ROW(head, n, LNRNN_OF_1);
        r += many;
        if (r % 64 == 0 || r == rows)
            for (int j = 0; j < (has_gy ? 4 : 2); j++)
                F(flush)(n, part + (size_t)j * n, sums + (size_t)j * C);
    }
#undef LNRNN_PARTS
#undef LNRNN_OF_8
#undef LNRNN_OF_4
#undef LNRNN_OF_1
}

/* The sums of one channel, in four chains. */
typedef struct { VT a[4], b[4], c[4], e[4]; } F(batch_chains);

LNRNN_INLINE void F(batch_chains_clear)(F(batch_chains) *v)
{
    for (int j = 0; j < 4; j++)
        v->a[j] = v->b[j] = v->c[j] = v->e[j] = V(zero)();
}

LNRNN_INLINE void F(batch_chains_add)(F(batch_chains) *v, int j, const S *x, const S *gy, size_t k, const int whole, VT m,
                                      const int has_gy)
{
    const VT o = V(sub)(F(get)(x, k, whole), m), d = whole ? o : V(keep_n)(o, k);
    v->a[j] = V(add)(v->a[j], d), v->b[j] = V(fma)(d, d, v->b[j]);
    if (has_gy) {
        VT g = F(get)(gy, k, whole);
        LNRNN_LOADED(g);
        v->c[j] = V(add)(v->c[j], g), v->e[j] = V(fma)(g, d, v->e[j]);
    }
}

/* Adds to sums[0], sums[C], and with gradients sums[2 C], sums[3 C]. */
LNRNN_INLINE void F(batch_chains_end)(F(batch_chains) *v, size_t C, double *sums, const int has_gy)
{
#define LNRNN_ALL(w) V(sum)(V(add)(V(add)(w[0], w[1]), V(add)(w[2], w[3])))
    sums[0] += LNRNN_ALL(v->a), sums[C] += LNRNN_ALL(v->b);
    if (has_gy)
        sums[2 * C] += LNRNN_ALL(v->c), sums[3 * C] += LNRNN_ALL(v->e);
#undef LNRNN_ALL
    F(batch_chains_clear)(v);
}

/* One channel: planes of L values, `stride` apart. */
LNRNN_INLINE void F(batch_planes_sums)(size_t samples, size_t C, size_t L, size_t stride, const S *x, const S *gy, R near,
                                       double *sums, const int has_gy)
{
    const VT m = V(set1)(near);
    F(batch_chains) v;
    F(batch_chains_clear)(&v);
    size_t room = LNRNN_BLOCK(4);
    for (size_t s = 0; s < samples; s++)
        for (size_t i = s * stride, stop = i + L; i < stop;) {
            const size_t end = stop - i < room ? stop : i + room;
            room -= end - i;
            for (; i + 4 * LANES <= end; i += 4 * LANES)
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++)
                    F(batch_chains_add)(&v, j, x + i + j * LANES, LNRNN_AT(gy, i + j * LANES), LANES, 1, m, has_gy);
            if (i + 2 * LANES <= end) {
                F(batch_chains_add)(&v, 0, x + i, LNRNN_AT(gy, i), LANES, 1, m, has_gy);
                F(batch_chains_add)(&v, 1, x + i + LANES, LNRNN_AT(gy, i + LANES), LANES, 1, m, has_gy);
                i += 2 * LANES;
            }
            if (i + LANES <= end) {
                F(batch_chains_add)(&v, 2, x + i, LNRNN_AT(gy, i), LANES, 1, m, has_gy);
                i += LANES;
            }
            if (i < end) {
                F(batch_chains_add)(&v, 3, x + i, LNRNN_AT(gy, i), end - i, 0, m, has_gy);
                i = end;
            }
            if (!room) {
                F(batch_chains_end)(&v, C, sums, has_gy);
                room = LNRNN_BLOCK(4);
            }
        }
    F(batch_chains_end)(&v, C, sums, has_gy);
}

LNRNN_INLINE void F(batch_sums_any)(size_t samples, size_t C, size_t channels, size_t L, const S *x, const S *gy,
                                    const R *near, double *sums, R *part, const int has_gy)
{
    if (L == 1)
        F(batch_columns_sums)(samples, C, channels, x, gy, near, sums, part, has_gy);
    else
        for (size_t c = 0; c < channels; c++)
            F(batch_planes_sums)(samples, C, L, C * L, x + c * L, LNRNN_AT(gy, c * L), near[c], sums + c, has_gy);
}

/* x (samples, channels of C, L), gy likewise or NULL, near (channels) -> adds to sums (2, C), or with gy (4, C):
 *     sum d, sum d^2, sum gy, sum gy d  with  d = x - near
 * part: 4 * channels of R that are 0, before and after. */
static void F(batch_sums)(size_t samples, size_t C, size_t channels, size_t L, const void *x, const void *gy,
                          const void *near, double *sums, void *part)
{
    if (gy)
        F(batch_sums_any)(samples, C, channels, L, x, gy, near, sums, part, 1);
    else
        F(batch_sums_any)(samples, C, channels, L, x, NULL, near, sums, part, 0);
}

/* sums (2, n) of count values about near (n) -> mean, biased var (n). -> how many of the points were more than a standard
 * deviation from the mean: these are moved there, and the sums are to be taken again, which gives the other channels theirs
 * once more. */
static size_t F(batch_moments)(size_t n, double count, const double *sums, void *near_, double *mean_, double *var_)
{
    R *restrict near = near_;
    double *restrict mean = mean_, *restrict var = var_;
    const double over = 1 / count;
    double far = 0;
    for (size_t i = 0; i < n; i++) {
        const double low = sums[i] / count, v = sums[n + i] * over - low * low;
        mean[i] = (double)near[i] + low;
        var[i] = v < 0 ? 0 : v;
        far += low * low > v ? 1 : 0; /* not where it is NaN */
    }
    if (far > 0)
        for (size_t i = 0; i < n; i++) {
            const double low = sums[i] / count, v = sums[n + i] * over - low * low;
            near[i] = low * low > v ? (R)mean[i] : near[i];
        }
    return (size_t)far;
}

/* mean, var (n) of the batch -> scales (n): the powers of two by which channels must be multiplied whose squares left the
 * range of R, 1 for the others; and what batch_affine needs to do that. -> 0 if all are 1: then nothing is written. */
static int F(batch_scales)(size_t n, const double *mean, const double *var, double eps, double *scales, void *at_,
                              void *scale_, void *shift_)
{
    const double least = F(least_spread)();
    R *at = at_, *scale = scale_, *shift = shift_;
    uint64_t lost = 0; /* as wide as a double, so that the loop is vectorised */
    for (size_t i = 0; i < n; i++)
        lost |= (uint64_t)!(var[i] + eps >= least) | (uint64_t)!(var[i] + eps < INFINITY);
    for (size_t i = 0; i < n && lost; i++) {
        scale[i] = F(row_scale)((R)(1 / sqrt(var[i] + eps)), (R)mean[i]);
        scales[i] = scale[i];
        at[i] = shift[i] = 0;
    }
    return lost != 0;
}

/* mean, m2 (n): sums of squared deviations over count values; gain, bias (n) or NULL -> what a pass over x needs:
 * at (n), the mean as R can hold it, scale (n) = gain / sqrt(m2 / count + eps), and shift (n) = bias less what at leaves
 * of the mean. scales (n) or NULL: by what x, and so mean and m2, have been multiplied. (Where that made eps vanish, only
 * a constant channel notices: its scale must be finite.) */
static void F(fold)(size_t n, const double *mean, const double *m2, double count, const void *gain_, const void *bias_,
                    double eps, const double *scales, void *at_, void *scale_, void *shift_)
{
    const double over = 1 / count;
    const R *gain = gain_, *bias = bias_;
    R *restrict at = at_, *restrict scale = scale_, *restrict shift = shift_;
    for (size_t i = 0; i < n; i++) {
        double e = scales ? eps * scales[i] * scales[i] : eps;
        if (scales && scales[i] < 1 && eps > 0 && e < F(least_spread)())
            e = F(least_spread)();
        const double s = (gain ? (double)gain[i] : 1.0) / sqrt(m2[i] * over + e);
        at[i] = (R)mean[i];
        scale[i] = (R)s;
        shift[i] = (R)((bias ? (double)bias[i] : 0.0) - (mean[i] - (double)at[i]) * s);
    }
}

/* Part of two rows or one: y = (x - at) * scale + shift. The mean is taken off first: folded into the shift it would
 * cost the digits of x - mean. */
LNRNN_INLINE void F(batch_affine_part)(const int rows, size_t k, const int whole, const S *x, size_t s, S *y, VT m, VT a,
                                       VT b)
{
#pragma GCC unroll 2
    for (int j = 0; j < rows; j++)
        F(put)(y + (size_t)j * s, V(fma)(V(sub)(F(get)(x + (size_t)j * s, k, whole), m), a, b), k, whole);
}

LNRNN_INLINE void F(batch_affine_columns)(const int rows, size_t n, const S *x, const R *at, const R *scale,
                                          const R *shift, S *y)
{
#define LNRNN_PART(i, k, whole)                                                                                         \
    F(batch_affine_part)(rows, k, whole, x + (i), n, y + (i), F(get_real)(at + (i), k, whole),                          \
                         F(get_real)(scale + (i), k, whole), F(get_real)(shift + (i), k, whole))
    LNRNN_WHOLE_ROW(F(to_whole_lines)(y, n), n, LNRNN_PART);
#undef LNRNN_PART
}

/* One row. past: y is too large for the caches, write past them. */
LNRNN_INLINE void F(batch_affine_row)(size_t n, const S *x, const R *at, const R *scale, const R *shift, S *y,
                                      const int by_row, const int past)
{
    const VT m = V(set1)(*at), a = V(set1)(*scale), b = V(set1)(*shift);
#define LNRNN_PART(i, k, whole)                                                                                 \
    F(batch_affine_part)(1, k, whole, x + (i), 0, y + (i), by_row ? m : F(get_real)(at + (i), k, whole),        \
                         by_row ? a : F(get_real)(scale + (i), k, whole),                                       \
                         by_row ? b : F(get_real)(shift + (i), k, whole))
    const size_t head = past ? F(to_aligned)(y, n) : 0;
    size_t i = head;
    if (head)
        LNRNN_PART(0, head, 0);
    for (; i + LANES <= n; i += LANES)
        if (past) {
            v32_prefetch((const float *)(x + i + 4096 / sizeof(S))); /* across the ends of rows and of pages */
            X(stream)(y + i, V(fma)(V(sub)(X(load)(x + i), by_row ? m : V(load)(at + i)),
                                    by_row ? a : V(load)(scale + i), by_row ? b : V(load)(shift + i)));
        } else
            LNRNN_PART(i, LANES, 1);
    if (i < n)
        LNRNN_PART(i, n - i, 0);
#undef LNRNN_PART
}

/* x (rows, n), at, scale, shift (n), or (rows) if by_row -> y = (x - at) * scale + shift. y may be x. */
static void F(batch_affine)(size_t rows, size_t n, const void *x_, const void *at_, const void *scale_,
                            const void *shift_, void *y_, int by_row, int past)
{
    const S *x = x_;
    const R *at = at_, *scale = scale_, *shift = shift_;
    S *y = y_;
    size_t r = 0;
    if (by_row)
        for (; r < rows; r++)
            if (past)
                F(batch_affine_row)(n, x + r * n, at + r, scale + r, shift + r, y + r * n, 1, 1);
            else
                F(batch_affine_row)(n, x + r * n, at + r, scale + r, shift + r, y + r * n, 1, 0);
    else if (past)
        for (; r < rows; r++)
            F(batch_affine_row)(n, x + r * n, at, scale, shift, y + r * n, 0, 1);
    else {
        for (; r + 2 <= rows; r += 2)
            F(batch_affine_columns)(2, n, x + r * n, at, scale, shift, y + r * n);
        if (r < rows)
            F(batch_affine_columns)(1, n, x + r * n, at, scale, shift, y + r * n);
    }
    if (past)
        stream_end();
}

/* What batch norm's gradient needs: sums (4, n) about near (n), mean, var (n), gain (n) or NULL -> at, scale, c1, c2 (n) as
 * below, ggain, gbias (n). With rstd = 1 / sqrt(var + eps), z = (x - mean) rstd:
 *     gx = gain rstd (gy - mean(gy) - z mean(gy z))   where mean and var are functions of x (training)
 *     gx = gain rstd gy                               where they are given
 * scales (n) or NULL: by what x, and so mean and var, have been multiplied. */
static void F(batch_slopes)(size_t n, double count, const double *sums, const void *near_, const double *mean,
                            const double *var, const void *gain_, double eps, const double *scales, int training,
                            void *at_, void *scale_, void *c1_, void *c2_, double *ggain_, double *gbias_)
{
    const R *near = near_, *gain = gain_;
    R *restrict at = at_, *restrict scale = scale_, *restrict c1 = c1_, *restrict c2 = c2_;
    double *restrict ggain = ggain_, *restrict gbias = gbias_;
    const double over = training ? 1 / count : 0;
    for (size_t i = 0; i < n; i++) {
        const double s = scales ? scales[i] : 1, rstd = 1 / sqrt(var[i] + eps * s * s), g = sums[2 * n + i];
        const double gz = (sums[3 * n + i] - (mean[i] - (double)near[i]) * g) * rstd, slope = gz * over * rstd;
        ggain[i] = gz;
        gbias[i] = g;
        at[i] = (R)mean[i];
        scale[i] = (R)((gain ? (double)gain[i] : 1) * rstd * s);
        c1[i] = (R)(g * over - (mean[i] - (double)at[i]) * slope);
        c2[i] = (R)slope;
    }
}

/* Part of two rows or one: gx = scale * (gy - (x - mean) * c2 - c1). */
LNRNN_INLINE void F(gx_part)(const int rows, size_t k, const int whole, const S *gy, const S *x, ptrdiff_t s, S *gx, VT m,
                             VT a, VT b, VT c)
{
#pragma GCC unroll 2
    for (int j = 0; j < rows; j++) {
        const VT off = V(fma)(V(sub)(F(get)(x + j * s, k, whole), m), c, b);
        F(put)(gx + j * s, V(mul)(a, V(sub)(F(get)(gy + j * s, k, whole), off)), k, whole);
    }
}

LNRNN_INLINE void F(gx_rows)(const int rows, size_t n, const S *gy, const S *x, ptrdiff_t s, const R *mean, const R *scale,
                             const R *c1, const R *c2, S *gx)
{
#define LNRNN_PART(i, k, whole)                                                                                   \
    F(gx_part)(rows, k, whole, gy + (i), x + (i), s, gx + (i), F(get_real)(mean + (i), k, whole),                 \
               F(get_real)(scale + (i), k, whole), F(get_real)(c1 + (i), k, whole), F(get_real)(c2 + (i), k, whole))
    LNRNN_WHOLE_ROW(F(to_whole_lines)(gx, n), n, LNRNN_PART);
#undef LNRNN_PART
}

/* gy, x (rows, n), stride s; mean, scale, c1, c2 (n) -> gx (rows, n), stride s. gx may be gy or x. */
static void F(gx_columns)(size_t rows, size_t n, const void *gy_, const void *x_, ptrdiff_t s, const void *mean,
                          const void *scale, const void *c1, const void *c2, void *gx_)
{
    const S *gy = gy_, *x = x_;
    S *gx = gx_;
    for (; rows >= 2; rows -= 2, gy += 2 * s, x += 2 * s, gx += 2 * s)
        F(gx_rows)(2, n, gy, x, s, mean, scale, c1, c2, gx);
    if (rows)
        F(gx_rows)(1, n, gy, x, s, mean, scale, c1, c2, gx);
}

/* The same with mean, scale, c1, c2 (rows). */
static void F(gx_planes)(size_t rows, size_t n, const void *gy_, const void *x_, ptrdiff_t s, const void *mean_,
                         const void *scale_, const void *c1_, const void *c2_, void *gx_)
{
    const S *gy = gy_, *x = x_;
    const R *mean = mean_, *scale = scale_, *c1 = c1_, *c2 = c2_;
    S *gx = gx_;
    for (size_t r = 0; r < rows; r++, gy += s, x += s, gx += s) {
        const VT m = V(set1)(mean[r]), a = V(set1)(scale[r]), b = V(set1)(c1[r]), c = V(set1)(c2[r]);
        size_t i = 0;
        for (; i + LANES <= n; i += LANES)
            F(gx_part)(1, LANES, 1, gy + i, x + i, 0, gx + i, m, a, b, c);
        if (i < n)
            F(gx_part)(1, n - i, 0, gy + i, x + i, 0, gx + i, m, a, b, c);
    }
}
