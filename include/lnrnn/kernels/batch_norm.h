/* Batch norm, forward and backward: one text for each type in memory, see norm.h.
 *
 * x (N, C, L) is contiguous and read in the order of memory. If L is 1, a row is a sample, and each of its
 * columns is a channel. Otherwise a row is a plane: the L values of one channel of one sample.
 *
 * Statistics are taken in one pass, as in norm.h: from sums of the differences to a pivot for each channel.
 */

/* Samples, or places in planes, whose mean is the pivot of a channel. */
#define LNRNN_PROBES 16

/* --- sums over the batch -------------------------------------------------------------------------------- */

/* x (N, C, L) -> pivot (C): the mean of LNRNN_PROBES samples' values, which are spread over all of a
 * channel's. */
static void batch_probe_kernel_T(size_t N, size_t C, size_t L, const void *x_, void *pivot_)
{
    const elem *x = x_;
    real *pivot = pivot_;
    /* scaled before they are added: the mean of large values does not overflow */
    if (L == 1) {
        const vreal scale = v_set1((real)1 / LNRNN_PROBES);
        for (size_t i = 0; i < C; i += LANES) {
            const size_t k = C - i < LANES ? C - i : LANES;
            vreal mean = v_zero();
            for (size_t p = 0; p < LNRNN_PROBES; p++) {
                const elem *row = x + p * N / LNRNN_PROBES * C + i;
                mean = v_fma(k == LANES ? v_load_elem(row) : v_load_n_elem(row, k), scale, mean);
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
            mean = v_fma(v_load_n_elem(plane + (L - k) * p / (LNRNN_PROBES - 1), k), scale, mean);
        }
        pivot[c] = v_sum(mean);
    }
}

/* lnrnn_batch_block with types, from the row that comes next, if L is 1. */
typedef struct {
    const elem *x, *gy; /* (rows, n), row stride C */
    size_t C, n;
    const real *pivot; /* (n) */
    real *partial;     /* (4, n): the sums of d, d^2, gy, gy d of a column, added to */
} column_block_T;

/* p (LANES) += v */
LNRNN_INLINE void add_real_T(real *p, vreal v, size_t k, const int whole)
{
    put_real_T(p, v_add(v, get_real_T(p, k, whole)), k, whole);
}

/* Adds columns i .. i+k-1 of some rows. These are summed by themselves first: each alone would be rounded to
 * the size of the long sum. */
LNRNN_INLINE void batch_columns_part_T(size_t i, size_t k, const int whole, const int rows, const int has_gy,
                                       const column_block_T *b)
{
    const vreal pivot = get_real_T(b->pivot + i, k, whole);
    accumulators_T s = accumulators_zero_T();
    LNRNN_FOR_EACH (j, rows) {
        const size_t at = (size_t)j * b->C + i;
        const vreal d = v_sub(get_T(b->x + at, k, whole), pivot);
        accumulate_T(&s, 0, d, has_gy ? get_T(b->gy + at, k, whole) : v_zero(), has_gy);
    }
    real *const partial = b->partial + i;
    add_real_T(partial, s.d[0], k, whole);
    add_real_T(partial + b->n, s.dd[0], k, whole);
    if (has_gy) {
        add_real_T(partial + 2 * b->n, s.g[0], k, whole);
        add_real_T(partial + 3 * b->n, s.gd[0], k, whole);
    }
}

LNRNN_INLINE void batch_columns_group_T(size_t head, const int rows, const int has_gy,
                                        const column_block_T *b)
{
    LNRNN_FOR_ROW(head, b->n, batch_columns_part_T, rows, has_gy, b);
}

LNRNN_INLINE void batch_columns_sums_T(const lnrnn_batch_block *a, const int has_gy)
{
    const size_t C = a->C, n = a->channels, rows = a->samples;
    column_block_T b = {
        .x = a->x,
        .gy = has_gy ? a->gy : NULL,
        .C = C,
        .n = n,
        .pivot = a->pivot,
        .partial = a->partial,
    };
    /* Rows a multiple of 4 KiB apart share the sets of an L1 of 64 sets of 64 bytes, whose ways do not
     * suffice for eight rows of two arrays. The order of sums follows from it, so that it is not asked of the
     * machine. */
    const size_t group = C * sizeof(elem) % 4096 ? 8 : 4, head = C % LANES ? 0 : to_whole_lines_T(b.x, n);
    for (size_t r = 0; r < rows;) {
        /* as many rows for all columns: the order of a sum may not depend on the address of x */
        const size_t taken = rows - r >= group ? group : 1;
        if (taken == 8)
            batch_columns_group_T(head, 8, has_gy, &b);
        else if (taken == 4)
            batch_columns_group_T(head, 4, has_gy, &b);
        else
            batch_columns_group_T(head, 1, has_gy, &b);
        r += taken;
        b.x += taken * C;
        if (has_gy)
            b.gy += taken * C;
        if (r % 64 == 0 || r == rows)
            for (size_t j = 0; j < (has_gy ? 4 : 2); j++)
                flush_T(n, b.partial + j * n, a->sums + j * C);
    }
}

/* Adds values i .. i+k-1 of a plane to the accumulators numbered a. */
LNRNN_INLINE void batch_planes_part_T(size_t i, size_t k, const int whole, const int a, const int has_gy,
                                      const elem *x, const elem *gy, vreal pivot, accumulators_T *s)
{
    const vreal d = v_sub(get_T(x + i, k, whole), pivot);
    vreal g = v_zero();
    if (has_gy) {
        g = get_T(gy + i, k, whole);
        LNRNN_LOADED(g);
    }
    accumulate_T(s, a, whole ? d : v_keep_n(d, k), g, has_gy);
}

/* Adds the totals of s to sums[0], sums[C], and if has_gy to sums[2 C], sums[3 C], and clears s. */
LNRNN_INLINE void batch_planes_flush_T(accumulators_T *s, size_t C, double *sums, const int has_gy)
{
    sums[0] += (double)total_of_4_T(s->d);
    sums[C] += (double)total_of_4_T(s->dd);
    if (has_gy) {
        sums[2 * C] += (double)total_of_4_T(s->g);
        sums[3 * C] += (double)total_of_4_T(s->gd);
    }
    *s = accumulators_zero_T();
}

/* The planes of channel c. */
LNRNN_INLINE void batch_planes_sums_T(const lnrnn_batch_block *b, size_t c, const int has_gy)
{
    const size_t C = b->C, L = b->L;
    const elem *const x = (const elem *)b->x + c * L, *const gy = has_gy ? (const elem *)b->gy + c * L : NULL;
    const vreal pivot = v_set1(((const real *)b->pivot)[c]);
    double *const sums = b->sums + c;
    accumulators_T s = accumulators_zero_T();
    size_t space = LNRNN_BLOCK(4); /* values that may still be added to s */
    for (size_t sample = 0; sample < b->samples; sample++)
        for (size_t i = sample * C * L, stop = i + L; i < stop;) {
            const size_t end = stop - i < space ? stop : i + space;
            space -= end - i;
            for (; i + 4 * LANES <= end; i += 4 * LANES)
                LNRNN_FOR_EACH (a, 4)
                    batch_planes_part_T(i + (size_t)a * LANES, LANES, 1, a, has_gy, x, gy, pivot, &s);
            if (i + 2 * LANES <= end) {
                batch_planes_part_T(i, LANES, 1, 0, has_gy, x, gy, pivot, &s);
                batch_planes_part_T(i + LANES, LANES, 1, 1, has_gy, x, gy, pivot, &s);
                i += 2 * LANES;
            }
            if (i + LANES <= end) {
                batch_planes_part_T(i, LANES, 1, 2, has_gy, x, gy, pivot, &s);
                i += LANES;
            }
            if (i < end) {
                batch_planes_part_T(i, end - i, 0, 3, has_gy, x, gy, pivot, &s);
                i = end;
            }
            if (!space) {
                batch_planes_flush_T(&s, C, sums, has_gy);
                space = LNRNN_BLOCK(4);
            }
        }
    batch_planes_flush_T(&s, C, sums, has_gy);
}

LNRNN_INLINE void batch_sums_any_T(const lnrnn_batch_block *b, const int has_gy)
{
    if (b->L == 1)
        batch_columns_sums_T(b, has_gy);
    else
        for (size_t c = 0; c < b->channels; c++)
            batch_planes_sums_T(b, c, has_gy);
}

/* Adds the block's sums to b->sums. */
static void batch_sums_kernel_T(const lnrnn_batch_block *b)
{
    if (b->gy)
        batch_sums_any_T(b, 1);
    else
        batch_sums_any_T(b, 0);
}

/* --- from sums to coefficients -------------------------------------------------------------------------- */

/* sums (2, n) of count values about pivot (n) -> mean, biased var (n) of double. Returns how many pivots were
 * more than a standard deviation from their mean. These are replaced by the mean, and the sums must be taken
 * again; that gives all other channels the same moments once more. */
static size_t batch_moments_kernel_T(size_t n, double count, const double *sums, void *pivot_, double *mean_,
                                     double *var_)
{
    real *restrict pivot = pivot_;
    double *restrict mean = mean_, *restrict var = var_;
    const double over_count = 1 / count;
    double replaced = 0; /* as wide as the sums, so that the loop is vectorised */
    for (size_t i = 0; i < n; i++) {
        const double mean_d = sums[i] / count, v = sums[n + i] * over_count - mean_d * mean_d;
        mean[i] = (double)pivot[i] + mean_d;
        var[i] = v < 0 ? 0 : v;
        replaced += mean_d * mean_d > v ? 1 : 0; /* not where it is NaN */
    }
    if (replaced > 0)
        for (size_t i = 0; i < n; i++) {
            const double mean_d = sums[i] / count, v = sums[n + i] * over_count - mean_d * mean_d;
            pivot[i] = mean_d * mean_d > v ? (real)mean[i] : pivot[i];
        }
    return (size_t)replaced;
}

/* channels -> 1 if squares of one left the range of real, else 0, and nothing is written. If 1: scales (n),
 * the powers of two by which the channels must be multiplied (1 where squares are in range), and the
 * coefficients that batch_affine needs to do so. */
static int batch_scales_kernel_T(const lnrnn_channels *a, double *scales, const lnrnn_coefficients *out)
{
    const size_t n = a->n;
    const double *mean = a->mean, *m2 = a->m2, over_count = 1 / a->count, eps = a->eps,
                 least = least_spread_T();
    real *to_mean = out->mean, *to_scale = out->scale, *to_shift = out->shift;
    uint64_t lost = 0; /* as wide as a double, so that the loop is vectorised */
    for (size_t i = 0; i < n; i++) {
        const double spread = m2[i] * over_count + eps;
        lost |= (uint64_t)!(spread >= least) | (uint64_t)!(spread < INFINITY);
    }
    for (size_t i = 0; i < n && lost; i++) {
        to_scale[i] = row_scale_T((real)(1 / sqrt(m2[i] * over_count + eps)), (real)mean[i]);
        scales[i] = (double)to_scale[i];
        to_mean[i] = to_shift[i] = 0;
    }
    return lost != 0;
}

/* channels -> the coefficients of y = (x - mean) gain / sqrt(var + eps) + bias. The shift is the bias minus
 * scale times the error of rounding the mean to real. Where a channel was scaled so far down that eps
 * vanishes, a constant channel still needs a finite scale: the least spread takes eps' place. */
static void fold_kernel_T(const lnrnn_channels *a, const lnrnn_coefficients *out)
{
    const size_t n = a->n;
    const double *mean = a->mean, *m2 = a->m2, *scales = a->scales, over_count = 1 / a->count, eps = a->eps;
    const real *gain = a->gain, *bias = a->bias;
    real *restrict to_mean = out->mean, *restrict to_scale = out->scale, *restrict to_shift = out->shift;
    for (size_t i = 0; i < n; i++) {
        double e = scales ? eps * scales[i] * scales[i] : eps;
        if (scales && scales[i] < 1 && eps > 0 && e < least_spread_T())
            e = least_spread_T();
        const double scale = (gain ? (double)gain[i] : 1.0) / sqrt(m2[i] * over_count + e);
        to_mean[i] = (real)mean[i];
        to_scale[i] = (real)scale;
        to_shift[i] = (real)((bias ? (double)bias[i] : 0.0) - (mean[i] - (double)to_mean[i]) * scale);
    }
}

/* channels, sums (4, n) about pivot (n) -> the coefficients of gx, and ggain, gbias (n). With z = (x - mean)
 * rstd, rstd = 1 / sqrt(var + eps):
 *     gx = gain rstd (gy - dmean (sum gy + z sum gy z)),  ggain = sum gy z,  gbias = sum gy
 * dmean, the derivative of a mean by one of its values: 1 / values of a channel in training, 0 where mean and
 * var are given. */
static void batch_slopes_kernel_T(const lnrnn_channels *a, double dmean, const double *sums,
                                  const void *pivot_, const lnrnn_coefficients *out, double *ggain_,
                                  double *gbias_)
{
    const size_t n = a->n;
    const double *mean = a->mean, *m2 = a->m2, *scales = a->scales, over_count = 1 / a->count, eps = a->eps;
    const real *pivot = pivot_, *gain = a->gain;
    real *restrict to_mean = out->mean, *restrict to_scale = out->scale;
    real *restrict to_shift = out->shift, *restrict to_slope = out->slope;
    double *restrict ggain = ggain_, *restrict gbias = gbias_;
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

/* --- one pass over x, with the coefficients of each channel --------------------------------------------- */

/* The rows of a pass, from the one that comes next. */
typedef struct {
    const elem *gy, *x; /* (rows, n), row stride `stride`; gy: backward */
    elem *out;          /* y or gx, likewise; may be x or gy */
    ptrdiff_t stride;
} pass_rows_T;

/* The coefficients of the columns of a row: lnrnn_coefficients with types. */
typedef struct {
    const real *mean, *scale, *shift, *slope;
} coefficient_row_T;

/* Those of the values in a vector. */
typedef struct {
    vreal mean, scale, shift, slope;
} coefficients_T;

/* a's coefficients from channel `from` on. */
LNRNN_INLINE coefficient_row_T coefficients_from_T(const lnrnn_coefficients *a, size_t from,
                                                   const int backward)
{
    return (coefficient_row_T){(const real *)a->mean + from, (const real *)a->scale + from,
                               (const real *)a->shift + from,
                               backward ? (const real *)a->slope + from : NULL};
}

/* Those of channel c in all lanes: of a plane. */
LNRNN_INLINE coefficients_T plane_coefficients_T(const lnrnn_coefficients *a, size_t c, const int backward)
{
    const coefficient_row_T r = coefficients_from_T(a, c, backward);
    return (coefficients_T){v_set1(*r.mean), v_set1(*r.scale), v_set1(*r.shift),
                            backward ? v_set1(*r.slope) : v_zero()};
}

/* Those of values i .. i+k-1 of a row: the plane's, or if it is NULL those of the columns. */
LNRNN_INLINE coefficients_T coefficients_at_T(size_t i, size_t k, const int whole,
                                              const coefficients_T *plane, const coefficient_row_T *columns,
                                              const int backward)
{
    if (plane)
        return *plane;
    return (coefficients_T){get_real_T(columns->mean + i, k, whole), get_real_T(columns->scale + i, k, whole),
                            get_real_T(columns->shift + i, k, whole),
                            backward ? get_real_T(columns->slope + i, k, whole) : v_zero()};
}

/* The mean is subtracted first: as a part of the shift it would cost the digits of x - mean. */
LNRNN_INLINE vreal affine_T(vreal x, const coefficients_T *c)
{
    return v_fma(v_sub(x, c->mean), c->scale, c->shift);
}

/* Values i .. i+k-1 of each row; rows: 1 or 2. */
LNRNN_INLINE void batch_affine_part_T(size_t i, size_t k, const int whole, const int rows,
                                      const pass_rows_T *r, const coefficients_T *plane,
                                      const coefficient_row_T *columns)
{
    const coefficients_T c = coefficients_at_T(i, k, whole, plane, columns, 0);
    LNRNN_FOR_EACH (j, rows)
        put_T(r->out + j * r->stride + i, affine_T(get_T(r->x + j * r->stride + i, k, whole), &c), k, whole);
}

LNRNN_INLINE void batch_affine_columns_T(size_t n, const int rows, const pass_rows_T *r,
                                         const coefficient_row_T *c)
{
    LNRNN_FOR_ROW(to_whole_lines_T(r->out, n), n, batch_affine_part_T, rows, r, NULL, c);
}

/* One row with non-temporal stores. A page ahead, across the ends of rows and of pages, x is prefetched. */
LNRNN_INLINE void batch_affine_nontemporal_T(size_t n, const pass_rows_T *r, const coefficients_T *plane,
                                             const coefficient_row_T *columns)
{
    size_t i = to_aligned_T(r->out, n);
    if (i)
        batch_affine_part_T(0, i, 0, 1, r, plane, columns);
    for (; i + LANES <= n; i += LANES) {
        v32_prefetch((const float *)(r->x + i + LNRNN_PREFETCH_ROWS / sizeof(elem)));
        const coefficients_T c = coefficients_at_T(i, LANES, 1, plane, columns, 0);
        v_stream_elem(r->out + i, affine_T(v_load_elem(r->x + i), &c));
    }
    if (i < n)
        batch_affine_part_T(i, n - i, 0, 1, r, plane, columns);
}

/* x (rows, n) contiguous, coefficients of n columns, or if by_row of rows planes -> y (rows, n), which may be
 * x:
 *     y = (x - mean) scale + shift
 * nontemporal: with non-temporal stores. */
static void batch_affine_kernel_T(size_t rows, size_t n, const void *x, const lnrnn_coefficients *a, void *y,
                                  int by_row, int nontemporal)
{
    const coefficient_row_T columns = coefficients_from_T(a, 0, 0);
    pass_rows_T r = {.x = x, .out = y, .stride = (ptrdiff_t)n};
    size_t done = 0;
    if (by_row)
        for (; done < rows; done++, r.x += n, r.out += n) {
            const coefficients_T plane = plane_coefficients_T(a, done, 0);
            if (nontemporal)
                batch_affine_nontemporal_T(n, &r, &plane, NULL);
            else
                LNRNN_FOR_ROW(0, n, batch_affine_part_T, 1, &r, &plane, NULL);
        }
    else if (nontemporal)
        for (; done < rows; done++, r.x += n, r.out += n)
            batch_affine_nontemporal_T(n, &r, NULL, &columns);
    else {
        for (; done + 2 <= rows; done += 2, r.x += 2 * n, r.out += 2 * n)
            batch_affine_columns_T(n, 2, &r, &columns);
        if (done < rows)
            batch_affine_columns_T(n, 1, &r, &columns);
    }
    if (nontemporal)
        stream_end();
}

/* Values i .. i+k-1 of each row; rows: 1 or 2. */
LNRNN_INLINE void gx_part_T(size_t i, size_t k, const int whole, const int rows, const pass_rows_T *r,
                            const coefficients_T *plane, const coefficient_row_T *columns)
{
    const coefficients_T c = coefficients_at_T(i, k, whole, plane, columns, 1);
    LNRNN_FOR_EACH (j, rows) {
        const ptrdiff_t at = j * r->stride;
        const vreal mean_gy = v_fma(v_sub(get_T(r->x + at + i, k, whole), c.mean), c.slope, c.shift);
        put_T(r->out + at + i, v_mul(c.scale, v_sub(get_T(r->gy + at + i, k, whole), mean_gy)), k, whole);
    }
}

LNRNN_INLINE void gx_rows_T(size_t n, const int rows, const pass_rows_T *r, const coefficient_row_T *c)
{
    LNRNN_FOR_ROW(to_whole_lines_T(r->out, n), n, gx_part_T, rows, r, NULL, c);
}

/* gy, x (rows, n), coefficients of n columns -> gx (rows, n), which may be gy or x; all with row stride
 * `stride`.
 *     gx = scale (gy - (x - mean) slope - shift) */
static void gx_columns_kernel_T(size_t rows, size_t n, const void *gy, const void *x, ptrdiff_t stride,
                                const lnrnn_coefficients *a, void *gx)
{
    const coefficient_row_T c = coefficients_from_T(a, 0, 1);
    pass_rows_T r = {.gy = gy, .x = x, .out = gx, .stride = stride};
    for (; rows >= 2; rows -= 2, r.gy += 2 * stride, r.x += 2 * stride, r.out += 2 * stride)
        gx_rows_T(n, 2, &r, &c);
    if (rows)
        gx_rows_T(n, 1, &r, &c);
}

/* The same with the coefficients of rows planes. */
static void gx_planes_kernel_T(size_t rows, size_t n, const void *gy, const void *x, ptrdiff_t stride,
                               const lnrnn_coefficients *a, void *gx)
{
    pass_rows_T r = {.gy = gy, .x = x, .out = gx, .stride = stride};
    for (size_t c = 0; c < rows; c++, r.gy += stride, r.x += stride, r.out += stride) {
        const coefficients_T plane = plane_coefficients_T(a, c, 1);
        LNRNN_FOR_ROW(0, n, gx_part_T, 1, &r, &plane, NULL);
    }
}
