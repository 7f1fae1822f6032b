/* Batch norm, forward and backward. all.h includes this file once for each type of the arrays, as norm.h
 * explains.
 *
 * x (N, C, L) is contiguous and read in the order of memory. If L is 1, a row is a sample, and each column is
 * a channel. Otherwise a row is a plane: the L values of one channel of one sample.
 *
 * One pass computes the statistics, as in norm.h, from sums of the differences to a pivot for each channel.
 */

/* A pivot, subtracted before squaring so that few digits are lost, is the mean of this many values. */
#define LNRNN_PROBES 16

/* --- sums over the batch -------------------------------------------------------------------------------- */

/* x (N, C, L) -> pivot (C): the mean of LNRNN_PROBES values, spread evenly over the channel. */
static void T(batch_probe_kernel)(size_t N, size_t C, size_t L, const void *x_, void *pivot_)
{
    const elem *x = x_;
    real *pivot = pivot_;
    /* Divide each value by LNRNN_PROBES before adding, because a sum of large values could overflow. */
    if (L == 1) {
        const vreal scale = v_set1((real)1 / LNRNN_PROBES);
        for (size_t i = 0; i < C; i += LANES) {
            const size_t k = C - i < LANES ? C - i : LANES;
            vreal mean = v_zero();
            for (size_t p = 0; p < LNRNN_PROBES; p++) {
                const elem *row = x + p * N / LNRNN_PROBES * C + i;
                mean = v_fma(k == LANES ? LNRNN_ELEM(load)(row) : LNRNN_ELEM(load_n)(row, k), scale, mean);
            }
            v_store_n(pivot + i, mean, k);
        }
        return;
    }
    const size_t k = L < LANES ? L : LANES;
    const vreal scale = v_set1(1 / (real)(LNRNN_PROBES * k));
    for (size_t c = 0; c < C; c++) {
        vreal mean = v_zero();
        for (size_t p = 0; p < LNRNN_PROBES; p++) {
            const elem *plane = x + (p * N / LNRNN_PROBES * C + c) * L;
            mean = v_fma(LNRNN_ELEM(load_n)(plane + (L - k) * p / (LNRNN_PROBES - 1), k), scale, mean);
        }
        pivot[c] = v_sum(mean);
    }
}

/* p (k). Adds the first k values of v to p. whole: 1 if k is LANES. */
LNRNN_INLINE void T(add_real)(real *p, vreal v, size_t k, const int whole)
{
    T(put_real)(p, v + T(get_real)(p, k, whole), k, whole);
}

/* Adds columns i .. i+k-1 of `rows` rows to b->sums. It first adds these rows to each other, because adding
 * each row to a long sum would round more. */
LNRNN_INLINE void T(batch_columns_part)(size_t i, size_t k, const int whole, const int rows, const int has_gy,
                                        const lnrnn_batch_block *b)
{
    const elem *const x = (const elem *)b->x + i, *const gy = has_gy ? (const elem *)b->gy + i : NULL;
    const vreal pivot = T(get_real)((const real *)b->pivot + i, k, whole);
    T(accumulators) s = {0};
    LNRNN_FOR_EACH (j, rows) {
        const size_t at = (size_t)j * b->C;
        const vreal d = T(get)(x + at, k, whole) - pivot;
        T(accumulate)(&s, 0, d, has_gy ? T(get)(gy + at, k, whole) : v_zero(), has_gy);
    }
    real *const partial = (real *)b->partial + i;
    T(add_real)(partial, s.d[0], k, whole);
    T(add_real)(partial + b->channels, s.dd[0], k, whole);
    if (has_gy) {
        T(add_real)(partial + 2 * b->channels, s.g[0], k, whole);
        T(add_real)(partial + 3 * b->channels, s.gd[0], k, whole);
    }
}

LNRNN_INLINE void T(batch_columns_group)(size_t head, const int rows, const int has_gy,
                                         const lnrnn_batch_block *b)
{
    LNRNN_FOR_ROW(head, b->channels, T(batch_columns_part), rows, has_gy, b);
}

LNRNN_INLINE void T(batch_columns_sums)(const lnrnn_batch_block *a, const int has_gy)
{
    const size_t C = a->C, n = a->channels, rows = a->samples;
    lnrnn_batch_block b = *a; /* the rows that are not added yet */
    /* The usual L1, of 64 sets of 64 bytes, cannot hold eight rows of two arrays if rows are a multiple of 4
     * KiB apart. `group` assumes this L1 on every machine, because the order of sums depends on `group`. */
    const size_t group = C * sizeof(elem) % 4096 ? 8 : 4, head = C % LANES ? 0 : T(to_whole_lines)(b.x, n);
    for (size_t r = 0; r < rows;) {
        /* Take equally many rows for all columns: otherwise the order of a sum would depend on the address of
         * x. */
        const size_t taken = rows - r >= group ? group : 1;
        if (taken == 8)
            T(batch_columns_group)(head, 8, has_gy, &b);
        else if (taken == 4)
            T(batch_columns_group)(head, 4, has_gy, &b);
        else
            T(batch_columns_group)(head, 1, has_gy, &b);
        r += taken;
        b.x = (const elem *)b.x + taken * C;
        if (has_gy)
            b.gy = (const elem *)b.gy + taken * C;
        if (r % 64 == 0 || r == rows)
            for (size_t j = 0; j < (has_gy ? 4 : 2); j++)
                T(flush)(n, (real *)b.partial + j * n, b.sums + j * C);
    }
}

/* Adds values i .. i+k-1 of a channel of one sample to accumulator number a of each sum. */
LNRNN_INLINE void T(batch_planes_part)(size_t i, size_t k, const int whole, const int a, const int has_gy,
                                       const elem *x, const elem *gy, vreal pivot, T(accumulators) *s)
{
    const vreal d = T(get)(x + i, k, whole) - pivot;
    vreal g = v_zero();
    if (has_gy) {
        g = T(get)(gy + i, k, whole);
        LNRNN_LOADED(g);
    }
    T(accumulate)(s, a, whole ? d : v_keep_n(d, k), g, has_gy);
}

/* s: sums of one channel. Adds them to sums[0] and sums[C], with has_gy also to sums[2 C] and sums[3 C]. */
LNRNN_INLINE void T(batch_planes_flush)(T(accumulators) *s, size_t C, double *sums, const int has_gy)
{
    sums[0] += (double)T(total_of_4)(s->d);
    sums[C] += (double)T(total_of_4)(s->dd);
    if (has_gy) {
        sums[2 * C] += (double)T(total_of_4)(s->g);
        sums[3 * C] += (double)T(total_of_4)(s->gd);
    }
    *s = (T(accumulators)){0};
}

/* Adds channel c of all samples to b->sums. */
LNRNN_INLINE void T(batch_planes_sums)(const lnrnn_batch_block *b, size_t c, const int has_gy)
{
    const size_t C = b->C, L = b->L;
    const elem *const x = (const elem *)b->x + c * L, *const gy = has_gy ? (const elem *)b->gy + c * L : NULL;
    const vreal pivot = v_set1(((const real *)b->pivot)[c]);
    double *const sums = b->sums + c;
    T(accumulators) s = {0};
    size_t space = LNRNN_BLOCK(4); /* the number of values that may be added to s before a flush */
    for (size_t sample = 0; sample < b->samples; sample++)
        for (size_t i = sample * C * L, stop = i + L; i < stop;) {
            const size_t end = stop - i < space ? stop : i + space;
            space -= end - i;
            for (; i + 4 * LANES <= end; i += 4 * LANES)
                LNRNN_FOR_EACH (a, 4)
                    T(batch_planes_part)(i + (size_t)a * LANES, LANES, 1, a, has_gy, x, gy, pivot, &s);
            if (i + 2 * LANES <= end) {
                T(batch_planes_part)(i, LANES, 1, 0, has_gy, x, gy, pivot, &s);
                T(batch_planes_part)(i + LANES, LANES, 1, 1, has_gy, x, gy, pivot, &s);
                i += 2 * LANES;
            }
            if (i + LANES <= end) {
                T(batch_planes_part)(i, LANES, 1, 2, has_gy, x, gy, pivot, &s);
                i += LANES;
            }
            if (i < end) {
                T(batch_planes_part)(i, end - i, 0, 3, has_gy, x, gy, pivot, &s);
                i = end;
            }
            if (!space) {
                T(batch_planes_flush)(&s, C, sums, has_gy);
                space = LNRNN_BLOCK(4);
            }
        }
    T(batch_planes_flush)(&s, C, sums, has_gy);
}

LNRNN_INLINE void T(batch_sums_any)(const lnrnn_batch_block *b, const int has_gy)
{
    if (b->L == 1)
        T(batch_columns_sums)(b, has_gy);
    else
        for (size_t c = 0; c < b->channels; c++)
            T(batch_planes_sums)(b, c, has_gy);
}

static void T(batch_sums_kernel)(const lnrnn_batch_block *b)
{
    if (b->gy)
        T(batch_sums_any)(b, 1);
    else
        T(batch_sums_any)(b, 0);
}

/* --- from sums to coefficients: the same for narrow types as for float ---------------------------------- */

#ifndef LNRNN_NARROW

/* sums (2, n): of d and d^2 over `count` values, d = x - pivot (n) -> mean, biased var (n) of double.
 * Replaces each pivot that is more than a standard deviation from its mean by the mean. Returns the number of
 * replaced pivots. If that is not 0, the caller must compute the sums again; channels with unchanged pivots
 * then get the same moments. */
static size_t T(batch_moments_kernel)(size_t n, double count, const double *sums, void *pivot_, double *mean_,
                                      double *var_)
{
    real *restrict pivot = pivot_;
    double *restrict mean = mean_, *restrict var = var_;
    const double over_count = 1 / count;
    double replaced = 0; /* double, as the sums are, so that the compiler vectorises the loop */
    LNRNN_VECTORISED
    for (size_t i = 0; i < n; i++) {
        const double mean_d = sums[i] / count, v = sums[n + i] * over_count - mean_d * mean_d;
        mean[i] = (double)pivot[i] + mean_d;
        var[i] = v < 0 ? 0 : v;
        replaced += mean_d * mean_d > v ? 1 : 0; /* false for NaN */
    }
    if (replaced > 0)
        for (size_t i = 0; i < n; i++) {
            const double mean_d = sums[i] / count, v = sums[n + i] * over_count - mean_d * mean_d;
            pivot[i] = mean_d * mean_d > v ? (real)mean[i] : pivot[i];
        }
    return (size_t)replaced;
}

/* Returns 1 if squares of a channel left the range of real, else 0. If so, writes scales (n), the powers of
 * two by which channels must be multiplied: 1 if the squares of the channel are in range. Then it also writes
 * the coefficients `out` with which batch_affine multiplies x by the scales. */
static int T(batch_scales_kernel)(const lnrnn_channels *a, double *scales, const lnrnn_coefficients *out)
{
    const size_t n = a->n;
    const double *mean = a->mean, *m2 = a->m2, over_count = 1 / a->count, eps = a->eps,
                 least = T(least_spread)();
    real *to_mean = out->mean, *to_scale = out->scale, *to_shift = out->shift;
    uint64_t lost = 0; /* 64 bits like a double, because the compiler then vectorises the loop */
    LNRNN_VECTORISED
    for (size_t i = 0; i < n; i++) {
        const double spread = m2[i] * over_count + eps;
        lost |= (uint64_t)!(spread >= least) | (uint64_t)!(spread < INFINITY);
    }
    for (size_t i = 0; i < n && lost; i++) {
        to_scale[i] = T(row_scale)((real)(1 / sqrt(m2[i] * over_count + eps)), (real)mean[i]);
        scales[i] = (double)to_scale[i];
        to_mean[i] = to_shift[i] = 0;
    }
    return lost != 0;
}

/* Writes the coefficients of y = (x - mean) gain / sqrt(var + eps) + bias. Rounding the mean to real has an
 * error; the shift is the bias minus scale times this error. If a channel was scaled down so far that eps
 * becomes 0, least_spread replaces eps, because a constant channel needs a finite scale. */
static void T(fold_kernel)(const lnrnn_channels *a, const lnrnn_coefficients *out)
{
    const size_t n = a->n;
    const double *mean = a->mean, *m2 = a->m2, *scales = a->scales, over_count = 1 / a->count, eps = a->eps;
    const real *gain = a->gain, *bias = a->bias;
    real *restrict to_mean = out->mean, *restrict to_scale = out->scale, *restrict to_shift = out->shift;
    LNRNN_VECTORISED
    for (size_t i = 0; i < n; i++) {
        double e = scales ? eps * scales[i] * scales[i] : eps;
        /* GCOVR_EXCL_BR_LINE: callers pass scales only if e underflows */
        if (scales && scales[i] < 1 && eps > 0 && e < T(least_spread)())
            e = T(least_spread)();
        const double scale = (gain ? (double)gain[i] : 1.0) / sqrt(m2[i] * over_count + e);
        to_mean[i] = (real)mean[i];
        to_scale[i] = (real)scale;
        to_shift[i] = (real)((bias ? (double)bias[i] : 0.0) - (mean[i] - (double)to_mean[i]) * scale);
    }
}

/* channels, sums (4, n) about pivot (n) -> the coefficients of gx, and ggain, gbias (n). With z = (x - mean)
 * rstd, rstd = 1 / sqrt(var + eps):
 *     gx = gain rstd (gy - dmean (sum gy + z sum gy z)),  ggain = sum gy z,  gbias = sum gy
 * dmean is the derivative of a mean with respect to one of its values. In training it is 1 / (number of
 * values of a channel), and 0 if mean and var are given. */
static void T(batch_slopes_kernel)(const lnrnn_channels *a, double dmean, const double *sums,
                                   const void *pivot_, const lnrnn_coefficients *out, double *ggain_,
                                   double *gbias_)
{
    const size_t n = a->n;
    const double *mean = a->mean, *m2 = a->m2, *scales = a->scales, over_count = 1 / a->count, eps = a->eps;
    const real *pivot = pivot_, *gain = a->gain;
    real *restrict to_mean = out->mean, *restrict to_scale = out->scale;
    real *restrict to_shift = out->shift, *restrict to_slope = out->slope;
    double *restrict ggain = ggain_, *restrict gbias = gbias_;
    LNRNN_VECTORISED
    for (size_t i = 0; i < n; i++) {
        const double s = scales ? scales[i] : 1, rstd = 1 / sqrt(m2[i] * over_count + eps * s * s);
        const double sum_gy = sums[2 * n + i];
        const double sum_gyz = (sums[3 * n + i] - (mean[i] - (double)pivot[i]) * sum_gy) * rstd;
        const double slope = sum_gyz * dmean * rstd;
        ggain[i] = sum_gyz;
        gbias[i] = sum_gy;
        to_mean[i] = (real)mean[i];
        to_scale[i] = (real)((gain ? (double)gain[i] : 1) * rstd * s);
        to_shift[i] = (real)(sum_gy * dmean - (mean[i] - (double)to_mean[i]) * slope);
        to_slope[i] = (real)slope;
    }
}

#endif

/* --- one pass over x, with the coefficients of each channel --------------------------------------------- */

/* The progress of a pass over a batch: the rows that are not computed yet. */
typedef struct {
    const elem *gy, *x; /* (rows, n), row stride `stride`; gy only in backward */
    elem *out;          /* (rows, n), row stride `stride`: y or gx; may be x or gy */
    ptrdiff_t stride;
} T(pass_rows);

typedef struct {
    vreal mean, scale, shift, slope;
} T(coefficients);

/* Returns the coefficients of channel c, broadcast to vectors, for rows within one channel. */
LNRNN_INLINE T(coefficients) T(plane_coefficients)(const lnrnn_coefficients *a, size_t c, const int backward)
{
    const real *mean = a->mean, *scale = a->scale, *shift = a->shift, *slope = a->slope;
    return (T(coefficients)){v_set1(mean[c]), v_set1(scale[c]), v_set1(shift[c]),
                             backward ? v_set1(slope[c]) : v_zero()};
}

/* Returns the coefficients of channels i .. i+k-1, for rows with a channel in each column. */
LNRNN_INLINE T(coefficients) T(column_coefficients)(const lnrnn_coefficients *a, size_t i, size_t k,
                                                    const int whole, const int backward)
{
    const real *mean = a->mean, *scale = a->scale, *shift = a->shift, *slope = a->slope;
    return (T(coefficients)){T(get_real)(mean + i, k, whole), T(get_real)(scale + i, k, whole),
                             T(get_real)(shift + i, k, whole),
                             backward ? T(get_real)(slope + i, k, whole) : v_zero()};
}

/* Computes y = (x - mean) scale + shift, or backward gx = scale (gy - (x - mean) slope - shift), for values i
 * .. i+k-1 of 1 or 2 rows. The coefficients are *plane. If plane is NULL, `columns` has coefficients for each
 * column. The mean is not part of the shift, because x scale - mean scale would lose digits. */
LNRNN_INLINE void T(pass_part)(size_t i, size_t k, const int whole, const int rows, const int backward,
                               const T(pass_rows) *r, const T(coefficients) *plane,
                               const lnrnn_coefficients *columns)
{
    const T(coefficients) c = plane ? *plane : T(column_coefficients)(columns, i, k, whole, backward);
    LNRNN_FOR_EACH (j, rows) {
        const ptrdiff_t at = j * r->stride + (ptrdiff_t)i;
        const vreal d = T(get)(r->x + at, k, whole) - c.mean;
        if (backward)
            T(put)(r->out + at, c.scale * (T(get)(r->gy + at, k, whole) - v_fma(d, c.slope, c.shift)), k,
                   whole);
        else
            T(put)(r->out + at, v_fma(d, c.scale, c.shift), k, whole);
    }
}

LNRNN_INLINE void T(next_rows)(T(pass_rows) *r, ptrdiff_t rows)
{
    r->x += rows * r->stride, r->out += rows * r->stride;
    if (r->gy)
        r->gy += rows * r->stride;
}

/* r (rows, n): computes all rows, with the coefficients of n columns. nontemporal: uses non-temporal stores,
 * and prefetches x a page ahead, across the ends of rows and of pages. */
LNRNN_INLINE void T(pass_columns)(size_t rows, size_t n, const int backward, int nontemporal, T(pass_rows) r,
                                  const lnrnn_coefficients *a)
{
    const lnrnn_coefficients c = *a; /* a copy stays in registers, whereas a store might change *a */
    for (; nontemporal && rows; rows--, T(next_rows)(&r, 1))
        LNRNN_STREAM_ROW(r.x, LNRNN_PREFETCH_ROWS / sizeof(elem), r.out, n, T(pass_part), 1, backward, &r,
                         NULL, &c);
    for (; rows >= 2; rows -= 2, T(next_rows)(&r, 2))
        LNRNN_FOR_ROW(T(to_whole_lines)(r.out, n), n, T(pass_part), 2, backward, &r, NULL, &c);
    if (rows)
        LNRNN_FOR_ROW(T(to_whole_lines)(r.out, n), n, T(pass_part), 1, backward, &r, NULL, &c);
}

/* r (rows, n): computes all rows, each with coefficients of its own. nontemporal: as for pass_columns. */
LNRNN_INLINE void T(pass_planes)(size_t rows, size_t n, const int backward, int nontemporal, T(pass_rows) r,
                                 const lnrnn_coefficients *a)
{
    for (size_t c = 0; c < rows; c++, T(next_rows)(&r, 1)) {
        const T(coefficients) plane = T(plane_coefficients)(a, c, backward);
        if (nontemporal)
            LNRNN_STREAM_ROW(r.x, LNRNN_PREFETCH_ROWS / sizeof(elem), r.out, n, T(pass_part), 1, backward, &r,
                             &plane, NULL);
        else
            LNRNN_FOR_ROW(0, n, T(pass_part), 1, backward, &r, &plane, NULL);
    }
}

/* x (rows, n) contiguous -> y (rows, n), which may be x. by_row = 0: `a` has coefficients for each column; 1:
 * for each row. */
static void T(batch_affine_kernel)(size_t rows, size_t n, const void *x, const lnrnn_coefficients *a, void *y,
                                   int by_row, int nontemporal)
{
    const T(pass_rows) r = {.x = x, .out = y, .stride = (ptrdiff_t)n};
    if (by_row)
        T(pass_planes)(rows, n, 0, nontemporal, r, a);
    else
        T(pass_columns)(rows, n, 0, nontemporal, r, a);
    if (nontemporal)
        stream_end();
}

/* gy, x (rows, n) -> gx (rows, n), which may be gy or x; all with row stride `stride`. a: the coefficients of
 * n columns. */
static void T(gx_columns_kernel)(size_t rows, size_t n, const void *gy, const void *x, ptrdiff_t stride,
                                 const lnrnn_coefficients *a, void *gx)
{
    T(pass_columns)(rows, n, 1, 0, (T(pass_rows)){.gy = gy, .x = x, .out = gx, .stride = stride}, a);
}

/* gy, x (rows, n) -> gx (rows, n), as gx_columns_kernel. a: the coefficients of each row. */
static void T(gx_planes_kernel)(size_t rows, size_t n, const void *gy, const void *x, ptrdiff_t stride,
                                const lnrnn_coefficients *a, void *gx)
{
    T(pass_planes)(rows, n, 1, 0, (T(pass_rows)){.gy = gy, .x = x, .out = gx, .stride = stride}, a);
}
