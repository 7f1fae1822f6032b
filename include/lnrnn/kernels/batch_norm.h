/* Batch norm, forward and backward: one text for one type in memory, as norm.h says.
 *
 * x (N, C, L) is contiguous, and read as it lies in memory. By columns, if L is 1: a row is a sample, and a parameter
 * belongs to a column. By planes otherwise: a row is the L values of one channel of one sample, with one parameter.
 *
 * Statistics are taken in one pass, as in norm.h: sums of the differences to a point near each channel's mean.
 */

enum { PROBES = 16 };

/* x (N, C, L) -> pivot (C): the mean of some values, spread over all of a channel's. */
static void batch_probe_kernel(size_t N, size_t C, size_t L, const void *x_, void *pivot_)
{
    const elem *x = x_;
    real *pivot = pivot_;
    /* scaled before they are added: large values keep their mean */
    if (L == 1) {
        const vreal part = v_set1((real)1 / PROBES);
        for (size_t i = 0; i < C; i += LANES) {
            const size_t k = C - i < LANES ? C - i : LANES;
            vreal a = v_zero();
            for (size_t p = 0; p < PROBES; p++) {
                const elem *row = x + p * N / PROBES * C + i;
                a = v_fma(k == LANES ? v_load_elem(row) : v_load_n_elem(row, k), part, a);
            }
            v_store_n(pivot + i, a, k);
        }
        return;
    }
    const size_t k = L < LANES ? L : LANES;
    const vreal part = v_set1(1 / (real)(PROBES * k));
    for (size_t c = 0; c < C; c++) {
        vreal a = v_zero();
        for (size_t p = 0; p < PROBES; p++)
            a = v_fma(v_load_n_elem(x + (p * N / PROBES * C + c) * L + (L - k) * p / (PROBES - 1), k), part,
                      a);
        pivot[c] = v_sum(a);
    }
}

/* Some rows' share of the sums of a part of the columns: d to *s, d^2 to *q, and with gradients gy to *t, gy d to *w. */
LNRNN_INLINE void batch_columns_part(const int rows, size_t k, const int whole, const elem *x, const elem *gy,
                                     size_t C, const real *pivot, real *s, real *q, real *t, real *w,
                                     const int has_gy)
{
    const vreal m = get_real(pivot, k, whole), zero = v_zero();
    vreal a = zero, b = zero, c = zero, e = zero;
#pragma GCC unroll 8
    for (int j = 0; j < rows; j++) {
        const vreal d = v_sub(get(x + (size_t)j * C, k, whole), m);
        a = v_add(a, d), b = v_fma(d, d, b);
        if (has_gy) {
            const vreal g = get(gy + (size_t)j * C, k, whole);
            c = v_add(c, g), e = v_fma(g, d, e);
        }
    }
    /* added up by themselves first: a long sum would round them to its own size */
    put_real(s, v_add(a, get_real(s, k, whole)), k, whole);
    put_real(q, v_add(b, get_real(q, k, whole)), k, whole);
    if (has_gy) {
        put_real(t, v_add(c, get_real(t, k, whole)), k, whole);
        put_real(w, v_add(e, get_real(w, k, whole)), k, whole);
    }
}

LNRNN_INLINE void batch_columns_sums(size_t rows, size_t C, size_t n, const elem *x, const elem *gy,
                                     const real *pivot, double *sums, real *part, const int has_gy)
{
    real *s = part, *q = s + n, *t = q + n, *w = t + n;
    /* Rows a multiple of 4 KiB apart lie in the same sets of L1, which are not enough for eight rows of two arrays. */
    const size_t most = C * sizeof(elem) % 4096 ? 8 : 4, head = C % LANES ? 0 : to_whole_lines(x, n);
    /* All columns in groups of as many rows: a sum may not depend on where x lies. */
#define LNRNN_PARTS(many, i, k, whole)                                                                     \
    batch_columns_part(many, k, whole, p + (i), LNRNN_AT(g, i), C, pivot + (i), s + (i), q + (i), t + (i), \
                       w + (i), has_gy)
#define LNRNN_OF_8(i, k, whole) LNRNN_PARTS(8, i, k, whole)
#define LNRNN_OF_4(i, k, whole) LNRNN_PARTS(4, i, k, whole)
#define LNRNN_OF_1(i, k, whole) LNRNN_PARTS(1, i, k, whole)
    for (size_t r = 0; r < rows;) {
        const size_t many = rows - r >= most ? most : 1;
        const elem *p = x + r * C, *g = LNRNN_AT(gy, r * C);
        if (many == 8)
            LNRNN_WHOLE_ROW(head, n, LNRNN_OF_8);
        else if (many == 4)
            LNRNN_WHOLE_ROW(head, n, LNRNN_OF_4);
        else
            LNRNN_WHOLE_ROW(head, n, LNRNN_OF_1);
        r += many;
        if (r % 64 == 0 || r == rows)
            for (int j = 0; j < (has_gy ? 4 : 2); j++)
                flush(n, part + (size_t)j * n, sums + (size_t)j * C);
    }
#undef LNRNN_PARTS
#undef LNRNN_OF_8
#undef LNRNN_OF_4
#undef LNRNN_OF_1
}

/* The sums of one channel, in four chains. */
typedef struct {
    vreal a[4], b[4], c[4], e[4];
} batch_chains;

LNRNN_INLINE void batch_chains_clear(batch_chains *v)
{
    for (int j = 0; j < 4; j++)
        v->a[j] = v->b[j] = v->c[j] = v->e[j] = v_zero();
}

LNRNN_INLINE void batch_chains_add(batch_chains *v, int j, const elem *x, const elem *gy, size_t k,
                                   const int whole, vreal m, const int has_gy)
{
    const vreal o = v_sub(get(x, k, whole), m), d = whole ? o : v_keep_n(o, k);
    v->a[j] = v_add(v->a[j], d), v->b[j] = v_fma(d, d, v->b[j]);
    if (has_gy) {
        vreal g = get(gy, k, whole);
        LNRNN_LOADED(g);
        v->c[j] = v_add(v->c[j], g), v->e[j] = v_fma(g, d, v->e[j]);
    }
}

/* Adds to sums[0], sums[C], and with gradients sums[2 C], sums[3 C]. */
LNRNN_INLINE void batch_chains_end(batch_chains *v, size_t C, double *sums, const int has_gy)
{
#define LNRNN_ALL(w) v_sum(v_add(v_add(w[0], w[1]), v_add(w[2], w[3])))
    sums[0] += LNRNN_ALL(v->a), sums[C] += LNRNN_ALL(v->b);
    if (has_gy)
        sums[2 * C] += LNRNN_ALL(v->c), sums[3 * C] += LNRNN_ALL(v->e);
#undef LNRNN_ALL
    batch_chains_clear(v);
}

/* One channel: planes of L values, `stride` apart. */
LNRNN_INLINE void batch_planes_sums(size_t samples, size_t C, size_t L, size_t stride, const elem *x,
                                    const elem *gy, real pivot, double *sums, const int has_gy)
{
    const vreal m = v_set1(pivot);
    batch_chains v;
    batch_chains_clear(&v);
    size_t room = LNRNN_BLOCK(4);
    for (size_t s = 0; s < samples; s++)
        for (size_t i = s * stride, stop = i + L; i < stop;) {
            const size_t end = stop - i < room ? stop : i + room;
            room -= end - i;
            for (; i + 4 * LANES <= end; i += 4 * LANES)
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++)
                    batch_chains_add(&v, j, x + i + j * LANES, LNRNN_AT(gy, i + j * LANES), LANES, 1, m,
                                     has_gy);
            if (i + 2 * LANES <= end) {
                batch_chains_add(&v, 0, x + i, LNRNN_AT(gy, i), LANES, 1, m, has_gy);
                batch_chains_add(&v, 1, x + i + LANES, LNRNN_AT(gy, i + LANES), LANES, 1, m, has_gy);
                i += 2 * LANES;
            }
            if (i + LANES <= end) {
                batch_chains_add(&v, 2, x + i, LNRNN_AT(gy, i), LANES, 1, m, has_gy);
                i += LANES;
            }
            if (i < end) {
                batch_chains_add(&v, 3, x + i, LNRNN_AT(gy, i), end - i, 0, m, has_gy);
                i = end;
            }
            if (!room) {
                batch_chains_end(&v, C, sums, has_gy);
                room = LNRNN_BLOCK(4);
            }
        }
    batch_chains_end(&v, C, sums, has_gy);
}

LNRNN_INLINE void batch_sums_any(size_t samples, size_t C, size_t channels, size_t L, const elem *x,
                                 const elem *gy, const real *pivot, double *sums, real *part,
                                 const int has_gy)
{
    if (L == 1)
        batch_columns_sums(samples, C, channels, x, gy, pivot, sums, part, has_gy);
    else
        for (size_t c = 0; c < channels; c++)
            batch_planes_sums(samples, C, L, C * L, x + c * L, LNRNN_AT(gy, c * L), pivot[c], sums + c,
                              has_gy);
}

/* x (samples, channels of C, L), gy likewise or NULL, pivot (channels) -> adds to sums (2, C), or with gy (4, C):
 *     sum d, sum d^2, sum gy, sum gy d  with  d = x - pivot
 * part: 4 * channels of real that are 0, before and after. */
static void batch_sums_kernel(size_t samples, size_t C, size_t channels, size_t L, const void *x,
                              const void *gy, const void *pivot, double *sums, void *part)
{
    if (gy)
        batch_sums_any(samples, C, channels, L, x, gy, pivot, sums, part, 1);
    else
        batch_sums_any(samples, C, channels, L, x, NULL, pivot, sums, part, 0);
}

/* sums (2, n) of count values about pivot (n) -> mean, biased var (n). -> how many of the points were more than a standard
 * deviation from the mean: these are moved there, and the sums are to be taken again, which gives the other channels theirs
 * once more. */
static size_t batch_moments_kernel(size_t n, double count, const double *sums, void *pivot_, double *mean_,
                                   double *var_)
{
    real *restrict pivot = pivot_;
    double *restrict mean = mean_, *restrict var = var_;
    const double over = 1 / count;
    double far = 0;
    for (size_t i = 0; i < n; i++) {
        const double low = sums[i] / count, v = sums[n + i] * over - low * low;
        mean[i] = (double)pivot[i] + low;
        var[i] = v < 0 ? 0 : v;
        far += low * low > v ? 1 : 0; /* not where it is NaN */
    }
    if (far > 0)
        for (size_t i = 0; i < n; i++) {
            const double low = sums[i] / count, v = sums[n + i] * over - low * low;
            pivot[i] = low * low > v ? (real)mean[i] : pivot[i];
        }
    return (size_t)far;
}

/* mean, var (n) of the batch -> scales (n): the powers of two by which channels must be multiplied whose squares left the
 * range of real, 1 for the others; and what batch_affine needs to do that. -> 0 if all are 1: then nothing is written. */
static int batch_scales_kernel(size_t n, const double *mean, const double *var, double eps, double *scales,
                               void *at_, void *scale_, void *shift_)
{
    const double least = least_spread();
    real *at = at_, *scale = scale_, *shift = shift_;
    uint64_t lost = 0; /* as wide as a double, so that the loop is vectorised */
    for (size_t i = 0; i < n; i++)
        lost |= (uint64_t)!(var[i] + eps >= least) | (uint64_t)!(var[i] + eps < INFINITY);
    for (size_t i = 0; i < n && lost; i++) {
        scale[i] = row_scale((real)(1 / sqrt(var[i] + eps)), (real)mean[i]);
        scales[i] = scale[i];
        at[i] = shift[i] = 0;
    }
    return lost != 0;
}

/* mean, m2 (n): sums of squared deviations over count values; gain, bias (n) or NULL -> what a pass over x needs:
 * at (n), the mean as real can hold it, scale (n) = gain / sqrt(m2 / count + eps), and shift (n) = bias less what at leaves
 * of the mean. scales (n) or NULL: by what x, and so mean and m2, have been multiplied. (Where that made eps vanish, only
 * a constant channel notices: its scale must be finite.) */
static void fold_kernel(size_t n, const double *mean, const double *m2, double count, const void *gain_,
                        const void *bias_, double eps, const double *scales, void *at_, void *scale_,
                        void *shift_)
{
    const double over = 1 / count;
    const real *gain = gain_, *bias = bias_;
    real *restrict at = at_, *restrict scale = scale_, *restrict shift = shift_;
    for (size_t i = 0; i < n; i++) {
        double e = scales ? eps * scales[i] * scales[i] : eps;
        if (scales && scales[i] < 1 && eps > 0 && e < least_spread())
            e = least_spread();
        const double s = (gain ? (double)gain[i] : 1.0) / sqrt(m2[i] * over + e);
        at[i] = (real)mean[i];
        scale[i] = (real)s;
        shift[i] = (real)((bias ? (double)bias[i] : 0.0) - (mean[i] - (double)at[i]) * s);
    }
}

/* Part of two rows or one: y = (x - at) * scale + shift. The mean is taken off first: folded into the shift it would
 * cost the digits of x - mean. */
LNRNN_INLINE void batch_affine_part(const int rows, size_t k, const int whole, const elem *x, size_t s,
                                    elem *y, vreal m, vreal a, vreal b)
{
#pragma GCC unroll 2
    for (int j = 0; j < rows; j++)
        put(y + (size_t)j * s, v_fma(v_sub(get(x + (size_t)j * s, k, whole), m), a, b), k, whole);
}

LNRNN_INLINE void batch_affine_columns(const int rows, size_t n, const elem *x, const real *at,
                                       const real *scale, const real *shift, elem *y)
{
#define LNRNN_PART(i, k, whole)                                                          \
    batch_affine_part(rows, k, whole, x + (i), n, y + (i), get_real(at + (i), k, whole), \
                      get_real(scale + (i), k, whole), get_real(shift + (i), k, whole))
    LNRNN_WHOLE_ROW(to_whole_lines(y, n), n, LNRNN_PART);
#undef LNRNN_PART
}

/* One row. nontemporal: y is too large for the caches, write past them. */
LNRNN_INLINE void batch_affine_row(size_t n, const elem *x, const real *at, const real *scale,
                                   const real *shift, elem *y, const int by_row, const int nontemporal)
{
    const vreal m = v_set1(*at), a = v_set1(*scale), b = v_set1(*shift);
#define LNRNN_PART(i, k, whole)                                                                    \
    batch_affine_part(1, k, whole, x + (i), 0, y + (i), by_row ? m : get_real(at + (i), k, whole), \
                      by_row ? a : get_real(scale + (i), k, whole),                                \
                      by_row ? b : get_real(shift + (i), k, whole))
    const size_t head = nontemporal ? to_aligned(y, n) : 0;
    size_t i = head;
    if (head)
        LNRNN_PART(0, head, 0);
    for (; i + LANES <= n; i += LANES)
        if (nontemporal) {
            v32_prefetch(
                (const float *)(x + i + 4096 / sizeof(elem))); /* across the ends of rows and of pages */
            v_stream_elem(y + i, v_fma(v_sub(v_load_elem(x + i), by_row ? m : v_load(at + i)),
                                       by_row ? a : v_load(scale + i), by_row ? b : v_load(shift + i)));
        } else
            LNRNN_PART(i, LANES, 1);
    if (i < n)
        LNRNN_PART(i, n - i, 0);
#undef LNRNN_PART
}

/* x (rows, n), at, scale, shift (n), or (rows) if by_row -> y = (x - at) * scale + shift. y may be x. */
static void batch_affine_kernel(size_t rows, size_t n, const void *x_, const void *at_, const void *scale_,
                                const void *shift_, void *y_, int by_row, int nontemporal)
{
    const elem *x = x_;
    const real *at = at_, *scale = scale_, *shift = shift_;
    elem *y = y_;
    size_t r = 0;
    if (by_row)
        for (; r < rows; r++)
            if (nontemporal)
                batch_affine_row(n, x + r * n, at + r, scale + r, shift + r, y + r * n, 1, 1);
            else
                batch_affine_row(n, x + r * n, at + r, scale + r, shift + r, y + r * n, 1, 0);
    else if (nontemporal)
        for (; r < rows; r++)
            batch_affine_row(n, x + r * n, at, scale, shift, y + r * n, 0, 1);
    else {
        for (; r + 2 <= rows; r += 2)
            batch_affine_columns(2, n, x + r * n, at, scale, shift, y + r * n);
        if (r < rows)
            batch_affine_columns(1, n, x + r * n, at, scale, shift, y + r * n);
    }
    if (nontemporal)
        stream_end();
}

/* What batch norm's gradient needs: sums (4, n) about pivot (n), mean, var (n), gain (n) or NULL -> at, scale, c1, c2 (n) as
 * below, ggain, gbias (n). With rstd = 1 / sqrt(var + eps), z = (x - mean) rstd:
 *     gx = gain rstd (gy - mean(gy) - z mean(gy z))   where mean and var are functions of x (training)
 *     gx = gain rstd gy                               where they are given
 * scales (n) or NULL: by what x, and so mean and var, have been multiplied. */
static void batch_slopes_kernel(size_t n, double count, const double *sums, const void *pivot_,
                                const double *mean, const double *var, const void *gain_, double eps,
                                const double *scales, int training, void *at_, void *scale_, void *c1_,
                                void *c2_, double *ggain_, double *gbias_)
{
    const real *pivot = pivot_, *gain = gain_;
    real *restrict at = at_, *restrict scale = scale_, *restrict c1 = c1_, *restrict c2 = c2_;
    double *restrict ggain = ggain_, *restrict gbias = gbias_;
    const double over = training ? 1 / count : 0;
    for (size_t i = 0; i < n; i++) {
        const double s = scales ? scales[i] : 1, rstd = 1 / sqrt(var[i] + eps * s * s), g = sums[2 * n + i];
        const double gz = (sums[3 * n + i] - (mean[i] - (double)pivot[i]) * g) * rstd,
                     slope = gz * over * rstd;
        ggain[i] = gz;
        gbias[i] = g;
        at[i] = (real)mean[i];
        scale[i] = (real)((gain ? (double)gain[i] : 1) * rstd * s);
        c1[i] = (real)(g * over - (mean[i] - (double)at[i]) * slope);
        c2[i] = (real)slope;
    }
}

/* Part of two rows or one: gx = scale * (gy - (x - mean) * c2 - c1). */
LNRNN_INLINE void gx_part(const int rows, size_t k, const int whole, const elem *gy, const elem *x,
                          ptrdiff_t s, elem *gx, vreal m, vreal a, vreal b, vreal c)
{
#pragma GCC unroll 2
    for (int j = 0; j < rows; j++) {
        const vreal off = v_fma(v_sub(get(x + j * s, k, whole), m), c, b);
        put(gx + j * s, v_mul(a, v_sub(get(gy + j * s, k, whole), off)), k, whole);
    }
}

LNRNN_INLINE void gx_rows(const int rows, size_t n, const elem *gy, const elem *x, ptrdiff_t s,
                          const real *mean, const real *scale, const real *c1, const real *c2, elem *gx)
{
#define LNRNN_PART(i, k, whole)                                                             \
    gx_part(rows, k, whole, gy + (i), x + (i), s, gx + (i), get_real(mean + (i), k, whole), \
            get_real(scale + (i), k, whole), get_real(c1 + (i), k, whole), get_real(c2 + (i), k, whole))
    LNRNN_WHOLE_ROW(to_whole_lines(gx, n), n, LNRNN_PART);
#undef LNRNN_PART
}

/* gy, x (rows, n), stride s; mean, scale, c1, c2 (n) -> gx (rows, n), stride s. gx may be gy or x. */
static void gx_columns_kernel(size_t rows, size_t n, const void *gy_, const void *x_, ptrdiff_t s,
                              const void *mean, const void *scale, const void *c1, const void *c2, void *gx_)
{
    const elem *gy = gy_, *x = x_;
    elem *gx = gx_;
    for (; rows >= 2; rows -= 2, gy += 2 * s, x += 2 * s, gx += 2 * s)
        gx_rows(2, n, gy, x, s, mean, scale, c1, c2, gx);
    if (rows)
        gx_rows(1, n, gy, x, s, mean, scale, c1, c2, gx);
}

/* The same with mean, scale, c1, c2 (rows). */
static void gx_planes_kernel(size_t rows, size_t n, const void *gy_, const void *x_, ptrdiff_t s,
                             const void *mean_, const void *scale_, const void *c1_, const void *c2_,
                             void *gx_)
{
    const elem *gy = gy_, *x = x_;
    const real *mean = mean_, *scale = scale_, *c1 = c1_, *c2 = c2_;
    elem *gx = gx_;
    for (size_t r = 0; r < rows; r++, gy += s, x += s, gx += s) {
        const vreal m = v_set1(mean[r]), a = v_set1(scale[r]), b = v_set1(c1[r]), c = v_set1(c2[r]);
        size_t i = 0;
        for (; i + LANES <= n; i += LANES)
            gx_part(1, LANES, 1, gy + i, x + i, 0, gx + i, m, a, b, c);
        if (i < n)
            gx_part(1, n - i, 0, gy + i, x + i, 0, gx + i, m, a, b, c);
    }
}
