/* Layer norm and RMS norm, forward, and layer norm backward: one text for each type in memory, see norm.h.
 *
 * Rows are taken in groups of four. The dependent sum, square root and division at the end of one row's
 * statistics overlap with those of the next rows. Gain and bias, which wide rows evict from L1, are loaded
 * once for the four. The result of a row does not depend on its group.
 *
 * A row whose squares overflow or underflow (out_of_range_T in norm.h) is computed by itself and multiplied
 * by a power of two s:
 *     (x s - mean s) / sqrt(var s^2 + eps s^2) = (x - mean) / sqrt(var + eps)
 */

/* The kind of a norm, `form`, is a sum of these. It is a constant in the loops over vectors, so each kind has
 * loops of its own. */
#define LNRNN_CENTRED 1 /* layer norm; without it RMS norm */
#define LNRNN_GAIN 2
#define LNRNN_BIAS 4
#define LNRNN_SCALED 8 /* backward: the row is multiplied by a power of two */

/* --- forward -------------------------------------------------------------------------------------------- */

/* lnrnn_layer_norm_rows with types, from the row that comes next. */
typedef struct {
    size_t n;
    const elem *x; /* row stride xs */
    elem *y;       /* row stride ys */
    ptrdiff_t xs, ys;
    const real *gain, *bias; /* (n) or NULL */
    double eps;
} norm_rows_T;

/* The statistics of up to four rows, each in all lanes: the arguments of normalised_T. */
typedef struct {
    vreal mean[4], rstd[4], rest[4];
} row_statistics_T;

/* Row j of r alone. */
LNRNN_INLINE norm_rows_T norm_row_T(const norm_rows_T *r, int j)
{
    norm_rows_T row = *r;
    row.x += j * r->xs, row.y += j * r->ys;
    return row;
}

/* x (LANES), values of row j -> y (LANES). */
LNRNN_INLINE vreal layer_norm_value_T(const int form, vreal x, const row_statistics_T *s, int j, vreal gain,
                                      vreal bias)
{
    const vreal z =
        form & LNRNN_CENTRED ? normalised_T(x, s->mean[j], s->rstd[j], s->rest[j]) : v_mul(x, s->rstd[j]);
    return v_fma(z, gain, bias);
}

/* Values i .. i+k-1 of each row. rows: 1 or 4. */
LNRNN_INLINE void layer_norm_part_T(size_t i, size_t k, const int whole, const int rows, const int form,
                                    const norm_rows_T *r, const row_statistics_T *s)
{
    const vreal gain = form & LNRNN_GAIN ? get_real_T(r->gain + i, k, whole) : v_set1(1);
    const vreal bias = form & LNRNN_BIAS ? get_real_T(r->bias + i, k, whole) : v_zero();
    LNRNN_FOR_EACH (j, rows) {
        const vreal x = get_T(r->x + j * r->xs + i, k, whole);
        put_T(r->y + j * r->ys + i, layer_norm_value_T(form, x, s, j, gain, bias), k, whole);
    }
}

LNRNN_SELDOM void layer_norm_scaled_T(norm_rows_T r, int form, real scale);

/* The next 1 or 4 rows. final: without a test whether their squares leave the range of real. */
LNRNN_INLINE void layer_norm_group_T(const int rows, const int form, const norm_rows_T *r, const int final)
{
    moments_of_4_T m;
    real rstd[4], rest[4], spread = 0;
    moments_T(rows, r->n, r->x, r->xs, &m, form & LNRNN_CENTRED);
    for (int j = 0; j < rows; j++) {
        spread += m.var[j] + (real)r->eps;
        rstd[j] = 1 / real_sqrt(m.var[j] + (real)r->eps);
        rest[j] = -m.mean_lo[j] * rstd[j];
    }
    /* Did a variance overflow? One test of their sum will do: if it overflows but no variance does, each
     * row's scale is 1. Did one underflow? Only an eps below least_spread_T leaves that open. */
    int rescale = !(spread < INFINITY);
    if (r->eps < least_spread_T())
        for (int j = 0; j < rows; j++)
            rescale |= out_of_range_T(rstd[j]);
    if (!final && __builtin_expect(rescale, 0)) {
        for (int j = 0; j < rows; j++)
            layer_norm_scaled_T(norm_row_T(r, j), form, row_scale_T(rstd[j], m.mean_hi[j]));
        return;
    }
    row_statistics_T s;
    LNRNN_FOR_EACH (j, rows)
        s.mean[j] = v_set1(m.mean_hi[j]), s.rstd[j] = v_set1(rstd[j]), s.rest[j] = v_set1(rest[j]);
    const size_t head = rows == 1 || r->ys % (ptrdiff_t)LANES == 0 ? to_whole_lines_T(r->y, r->n) : 0;
    LNRNN_FOR_ROW(head, r->n, layer_norm_part_T, rows, form, r, &s);
}

LNRNN_INLINE void scale_part_T(size_t i, size_t k, const int whole, const elem *x, elem *y, real scale)
{
    put_T(y + i, v_mul(get_T(x + i, k, whole), v_set1(scale)), k, whole);
}

/* One row, multiplied by `scale` first. y holds the scaled row before it holds the result; float16 cannot
 * hold every scaled row, but has no values whose squares leave the range of float. */
static void layer_norm_scaled_T(norm_rows_T r, int form, real scale)
{
    if (scale != 1) {
        LNRNN_FOR_ROW(0, r.n, scale_part_T, r.x, r.y, scale);
        r.x = r.y;
    }
    r.eps = r.eps * scale * scale;
    layer_norm_group_T(1, form, &r, 1);
}

/* One row with non-temporal stores. While it is written, the input that follows is prefetched: a row ahead,
 * or a page if that is more. */
LNRNN_INLINE void layer_norm_nontemporal_T(const int form, const norm_rows_T *r)
{
    moments_of_4_T m;
    moments_T(1, r->n, r->x, 0, &m, form & LNRNN_CENTRED);
    const real rstd = 1 / real_sqrt(m.var[0] + (real)r->eps);
    if (__builtin_expect(out_of_range_T(rstd), 0)) {
        layer_norm_scaled_T(norm_row_T(r, 0), form, row_scale_T(rstd, m.mean_hi[0]));
        return;
    }
    const row_statistics_T s = {
        .mean = {v_set1(m.mean_hi[0])},
        .rstd = {v_set1(rstd)},
        .rest = {v_set1(-m.mean_lo[0] * rstd)},
    };
    const size_t n = r->n, page = LNRNN_PREFETCH_ROWS / sizeof(elem), ahead = n < page ? page : n;
    size_t i = to_aligned_T(r->y, n);
    if (i)
        layer_norm_part_T(0, i, 0, 1, form, r, &s);
    for (; i + LANES <= n; i += LANES) {
        v32_prefetch((const float *)(r->x + i + ahead));
        const vreal gain = form & LNRNN_GAIN ? v_load(r->gain + i) : v_set1(1);
        const vreal bias = form & LNRNN_BIAS ? v_load(r->bias + i) : v_zero();
        v_stream_elem(r->y + i, layer_norm_value_T(form, v_load_elem(r->x + i), &s, 0, gain, bias));
    }
    if (i < n)
        layer_norm_part_T(i, n - i, 0, 1, form, r, &s);
}

LNRNN_INLINE void layer_norm_rows_T(size_t rows, const int form, const norm_rows_T *first)
{
    norm_rows_T r = *first;
#ifndef LNRNN_FEW_COPIES
    for (; rows >= 4; rows -= 4, r.x += 4 * r.xs, r.y += 4 * r.ys)
        layer_norm_group_T(4, form, &r, 0);
#endif
    for (; rows; rows--, r.x += r.xs, r.y += r.ys)
        layer_norm_group_T(1, form, &r, 0);
}

/* centred: LNRNN_CENTRED or 0. */
LNRNN_INLINE void layer_norm_any_T(size_t rows, const int centred, const norm_rows_T *first, int nontemporal)
{
    const int form = centred | (first->gain ? LNRNN_GAIN : 0) | (first->bias ? LNRNN_BIAS : 0);
    if (nontemporal) {
        norm_rows_T r = *first;
        for (; rows; rows--, r.x += r.xs, r.y += r.ys)
            layer_norm_nontemporal_T(form, &r);
        stream_end();
        return;
    }
#ifdef LNRNN_FEW_COPIES
    layer_norm_rows_T(rows, form, first);
#else
    if (first->gain && first->bias)
        layer_norm_rows_T(rows, centred | LNRNN_GAIN | LNRNN_BIAS, first);
    else if (first->gain)
        layer_norm_rows_T(rows, centred | LNRNN_GAIN, first);
    else
        layer_norm_rows_T(rows, centred | (first->bias ? LNRNN_BIAS : 0), first);
#endif
}

/* Layer norm, or RMS norm if not centred: x (rows, n) -> y (rows, n). */
static void layer_norm_kernel_T(const lnrnn_layer_norm_rows *a)
{
    norm_rows_T r = {
        .n = a->n,
        .x = a->x,
        .y = a->y,
        .xs = a->xs,
        .ys = a->ys,
        .gain = a->gain,
        .bias = a->bias,
        .eps = a->eps,
    };
    if (a->centred)
        layer_norm_any_T(a->rows, LNRNN_CENTRED, &r, a->nontemporal);
    else {
        r.bias = NULL;
        layer_norm_any_T(a->rows, 0, &r, a->nontemporal);
    }
}

/* --- backward ------------------------------------------------------------------------------------------- */

/* lnrnn_layer_norm_gradients with types, from the row that comes next. */
typedef struct {
    size_t n;
    const elem *gy, *x; /* row strides gys, xs */
    elem *gx;           /* row stride gxs */
    ptrdiff_t gys, xs, gxs;
    const real *gain; /* (n) or NULL */
    double eps;
    real *ggain, *gbias; /* (n) partial sums, added to */
} gradient_rows_T;

/* The statistics for the gradient of a row, with u = gy gain and d = (x scale - mean_hi) - mean_lo:
 *     gx = rstd (u - mean_u - d slope) scale */
typedef struct {
    real mean_hi, mean_lo, rstd, mean_u, slope, scale;
} row_gradient_T;

/* Row j of r alone. */
LNRNN_INLINE gradient_rows_T gradient_row_T(const gradient_rows_T *r, int j)
{
    gradient_rows_T row = *r;
    row.gy += j * r->gys, row.x += j * r->xs, row.gx += j * r->gxs;
    return row;
}

/* k values of x, multiplied by scale if LNRNN_SCALED. */
LNRNN_INLINE vreal get_scaled_T(const int form, const elem *x, size_t k, const int whole, real scale)
{
    return form & LNRNN_SCALED ? v_mul(get_T(x, k, whole), v_set1(scale)) : get_T(x, k, whole);
}

/* Adds values i .. i+k-1 of a row to the accumulators numbered a: g is u. */
LNRNN_INLINE void row_sums_part_T(size_t i, size_t k, const int whole, const int a, const int form,
                                  const gradient_rows_T *r, real scale, vreal pivot, accumulators_T *s)
{
    const vreal d = v_sub(get_scaled_T(form, r->x + i, k, whole, scale), pivot);
    const vreal gy = get_T(r->gy + i, k, whole);
    const vreal u = form & LNRNN_GAIN ? v_mul(gy, get_real_T(r->gain + i, k, whole)) : gy;
    accumulate_T(s, a, whole ? d : v_keep_n(d, k), u, 1);
}

/* One row -> the statistics for its gradient, gx = rstd (u - mean(u) - z mean(u z)) with z = d rstd. One pass
 * over the row, or two, as in moments_about_T. scale: 1 unless LNRNN_SCALED. */
LNRNN_INLINE row_gradient_T row_sums_T(const int form, const gradient_rows_T *r, double eps, real scale)
{
    const size_t n = r->n;
    real pivot = form & LNRNN_SCALED ? pivot_of_T(n, r->x) * scale : pivot_of_T(n, r->x), mean_d, var;
    double sum_u, sum_ud;
    for (int pass = 0;; pass++) {
        const vreal m = v_set1(pivot);
        double sum = 0, squares = 0;
        sum_u = sum_ud = 0;
        for (size_t i = 0; i < n;) {
            const size_t left = n - i < LNRNN_BLOCK(2) ? n - i : LNRNN_BLOCK(2), end = i + left;
            accumulators_T s = accumulators_zero_T();
            for (; i + 2 * LANES <= end; i += 2 * LANES) {
                row_sums_part_T(i, LANES, 1, 0, form, r, scale, m, &s);
                row_sums_part_T(i + LANES, LANES, 1, 1, form, r, scale, m, &s);
            }
            if (i + LANES <= end) {
                row_sums_part_T(i, LANES, 1, 0, form, r, scale, m, &s);
                i += LANES;
            }
            if (i < end) {
                row_sums_part_T(i, end - i, 0, 1, form, r, scale, m, &s);
                i = end;
            }
            sum += (double)total_of_2_T(s.d);
            squares += (double)total_of_2_T(s.dd);
            sum_u += (double)total_of_2_T(s.g);
            sum_ud += (double)total_of_2_T(s.gd);
        }
        mean_d = (real)(sum / (double)n);
        var = (real)(squares / (double)n) - mean_d * mean_d;
        if (mean_d * mean_d <= var || pass == 1)
            break;
        pivot += mean_d;
    }
    row_gradient_T g;
    g.mean_u = (real)(sum_u / (double)n);
    g.mean_hi = pivot + mean_d;
    g.mean_lo = (pivot - g.mean_hi) + mean_d;
    g.rstd = 1 / real_sqrt((var < 0 ? 0 : var) + (real)eps);
    g.slope = ((real)(sum_ud / (double)n) - mean_d * g.mean_u) * g.rstd * g.rstd;
    g.scale = scale;
    return g;
}

/* Values i .. i+k-1 of each row: gx, and their terms of ggain, sum gy z, and of gbias, sum gy. rows: 1 or 4.
 */
LNRNN_INLINE void layer_norm_gx_part_T(size_t i, size_t k, const int whole, const int rows, const int form,
                                       const gradient_rows_T *r, const row_gradient_T *g)
{
    const vreal gain = form & LNRNN_GAIN ? get_real_T(r->gain + i, k, whole) : v_set1(1);
    vreal ggain = get_real_T(r->ggain + i, k, whole), gbias = get_real_T(r->gbias + i, k, whole);
    LNRNN_FOR_EACH (j, rows) {
        const vreal gy = get_T(r->gy + j * r->gys + i, k, whole);
        const vreal x = get_scaled_T(form, r->x + j * r->xs + i, k, whole, g[j].scale);
        const vreal d = v_sub(v_sub(x, v_set1(g[j].mean_hi)), v_set1(g[j].mean_lo));
        const vreal u = form & LNRNN_GAIN ? v_mul(gy, gain) : gy, rstd = v_set1(g[j].rstd);
        ggain = v_fma(v_mul(gy, rstd), d, ggain);
        gbias = v_add(gbias, gy);
        /* mean_u is subtracted first: if all u are equal, the difference is exactly 0 */
        const vreal du = v_fma(d, v_set1(-g[j].slope), v_sub(u, v_set1(g[j].mean_u)));
        const vreal gx = v_mul(du, rstd);
        put_T(r->gx + j * r->gxs + i, form & LNRNN_SCALED ? v_mul(gx, v_set1(g[j].scale)) : gx, k, whole);
    }
    put_real_T(r->ggain + i, ggain, k, whole);
    put_real_T(r->gbias + i, gbias, k, whole);
}

LNRNN_INLINE void layer_norm_gx_T(const int rows, const int form, const gradient_rows_T *r,
                                  const row_gradient_T *g)
{
    const size_t head = rows == 1 || r->gxs % (ptrdiff_t)LANES == 0 ? to_whole_lines_T(r->gx, r->n) : 0;
    LNRNN_FOR_ROW(head, r->n, layer_norm_gx_part_T, rows, form, r, g);
}

/* One row whose squares may leave the range of real. gx may be gy, so that it cannot hold the scaled row. */
LNRNN_SELDOM void layer_norm_backward_scaled_T(gradient_rows_T r, real scale)
{
    const int form = LNRNN_SCALED | (r.gain ? LNRNN_GAIN : 0);
    const row_gradient_T g = row_sums_T(form, &r, r.eps * scale * scale, scale);
    layer_norm_gx_T(1, form, &r, &g);
}

/* The next 1 or 4 rows. */
LNRNN_INLINE void layer_norm_backward_group_T(const int rows, const int form, const gradient_rows_T *r)
{
    row_gradient_T g[4];
    int rescale = 0;
    for (int j = 0; j < rows; j++) {
        const gradient_rows_T row = gradient_row_T(r, j);
        g[j] = row_sums_T(form, &row, r->eps, 1);
        rescale |= out_of_range_T(g[j].rstd);
    }
    if (__builtin_expect(rescale, 0))
        for (int j = 0; j < rows; j++)
            layer_norm_backward_scaled_T(gradient_row_T(r, j), row_scale_T(g[j].rstd, g[j].mean_hi));
    else
        layer_norm_gx_T(rows, form, r, g);
}

LNRNN_INLINE void layer_norm_backward_rows_T(size_t rows, const int form, const gradient_rows_T *first,
                                             double *ggain, double *gbias)
{
    gradient_rows_T r = *first;
    for (size_t done = 0; done < rows;) {
#ifdef LNRNN_FEW_COPIES
        const int group = 1;
        layer_norm_backward_group_T(1, form, &r);
#else
        const int group = rows - done >= 4 ? 4 : 1;
        if (group == 4)
            layer_norm_backward_group_T(4, form, &r);
        else
            layer_norm_backward_group_T(1, form, &r);
#endif
        r = gradient_row_T(&r, group);
        done += (size_t)group;
        if (ggain && (done % 32 == 0 || done == rows)) /* 32 is a multiple of a group */
            flush_T(r.n, r.ggain, ggain), flush_T(r.n, r.gbias, gbias);
    }
}

/* gy, x (rows, n) -> gx (rows, n). The sums of the rows are added to ggain = sum gy z and gbias = sum gy,
 * both (n) of double; without these two they stay in a->partial. */
static void layer_norm_backward_kernel_T(const lnrnn_layer_norm_gradients *a)
{
    real *const partial = a->partial;
    const gradient_rows_T r = {
        .n = a->n,
        .gy = a->gy,
        .x = a->x,
        .gx = a->gx,
        .gys = a->gys,
        .xs = a->xs,
        .gxs = a->gxs,
        .gain = a->gain,
        .eps = a->eps,
        .ggain = partial,
        .gbias = partial + a->n,
    };
#ifdef LNRNN_FEW_COPIES
    layer_norm_backward_rows_T(a->rows, r.gain ? LNRNN_GAIN : 0, &r, a->ggain, a->gbias);
#else
    if (r.gain)
        layer_norm_backward_rows_T(a->rows, LNRNN_GAIN, &r, a->ggain, a->gbias);
    else
        layer_norm_backward_rows_T(a->rows, 0, &r, a->ggain, a->gbias);
#endif
}
