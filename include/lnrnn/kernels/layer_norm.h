/* Layer norm and RMS norm, forward and backward, for each type in memory (norm.h).
 *
 * Rows are computed in groups of four. So the sum, square root and division of one row, which wait for each
 * other, overlap with other rows. Gain and bias, which wide rows evict from L1, are loaded once for four
 * rows. The result of a row does not depend on its group.
 *
 * A row whose squares overflow or underflow (out_of_range in norm.h) is computed alone, and multiplied by a
 * power of two s:
 *     (x s - mean s) / sqrt(var s^2 + eps s^2) = (x - mean) / sqrt(var + eps)
 */

/* Bits of the argument `form`: the options of a norm. `form` is a compile-time constant in the loops over
 * vectors, so each combination has a loop without tests. */
#define LNRNN_CENTRED 1 /* layer norm; without this bit RMS norm */
#define LNRNN_GAIN 2
#define LNRNN_BIAS 4
#define LNRNN_SCALED 8 /* backward: the row is multiplied by a power of two */

/* --- forward -------------------------------------------------------------------------------------------- */

/* Statistics of up to four rows, broadcast to vectors: the arguments of T(normalised) in norm.h. */
typedef struct {
    vreal mean[4], rstd[4], rest[4];
} T(row_statistics);

LNRNN_INLINE lnrnn_layer_norm_rows T(rows_from)(lnrnn_layer_norm_rows r, int j)
{
    r.x = (const elem *)r.x + j * r.xs, r.y = (elem *)r.y + j * r.ys;
    r.rows -= (size_t)j;
    return r;
}

/* Computes y at columns i .. i+k-1 of 1 or 4 rows, from their statistics. */
LNRNN_INLINE void T(layer_norm_part)(size_t i, size_t k, const int whole, const int rows, const int form,
                                     const lnrnn_layer_norm_rows *r, const T(row_statistics) *s)
{
    const elem *const x = (const elem *)r->x + i;
    elem *const y = (elem *)r->y + i;
    const vreal gain = form & LNRNN_GAIN ? T(get_real)((const real *)r->gain + i, k, whole) : v_set1(1);
    const vreal bias = form & LNRNN_BIAS ? T(get_real)((const real *)r->bias + i, k, whole) : v_zero();
    LNRNN_FOR_EACH (j, rows) {
        const vreal v = T(get)(x + j * r->xs, k, whole);
        const vreal z =
            form & LNRNN_CENTRED ? T(normalised)(v, s->mean[j], s->rstd[j], s->rest[j]) : v * s->rstd[j];
        T(put)(y + j * r->ys, v_fma(z, gain, bias), k, whole);
    }
}

LNRNN_SELDOM void T(layer_norm_scaled)(lnrnn_layer_norm_rows r, int form, real scale);

/* Normalises the next 1 or 4 rows. final: 1 if the rows are scaled already, so that their squares need no
 * test for overflow. nontemporal: computes one row, with non-temporal stores, and with prefetches of x a row
 * ahead, or a page ahead if the row is shorter. */
LNRNN_INLINE void T(layer_norm_group)(const int rows, const int form, const lnrnn_layer_norm_rows *r,
                                      const int final, const int nontemporal)
{
    T(moments_of_4) m;
    real rstd[4], rest[4], spread = 0;
    T(moments)(rows, r->n, r->x, r->xs, &m, form & LNRNN_CENTRED);
    for (int j = 0; j < rows; j++) {
        spread += m.var[j] + (real)r->eps;
        rstd[j] = 1 / real_sqrt(m.var[j] + (real)r->eps);
        rest[j] = -m.mean_lo[j] * rstd[j];
    }
    /* Test only the sum of the variances for an overflow. If the sum overflows but no variance does, no harm
     * is done, because all scales are then 1. An underflow matters only if eps is below least_spread. */
    int rescale = !(spread < INFINITY);
    if (r->eps < T(least_spread)())
        for (int j = 0; j < rows; j++)
            rescale |= T(out_of_range)(rstd[j]);
    if (!final && __builtin_expect(rescale, 0)) {
        for (int j = 0; j < rows; j++)
            T(layer_norm_scaled)(T(rows_from)(*r, j), form, T(row_scale)(rstd[j], m.mean_hi[j]));
        return;
    }
    T(row_statistics) s;
    LNRNN_FOR_EACH (j, rows)
        s.mean[j] = v_set1(m.mean_hi[j]), s.rstd[j] = v_set1(rstd[j]), s.rest[j] = v_set1(rest[j]);
    if (nontemporal) {
        const size_t page = LNRNN_PREFETCH_ROWS / sizeof(elem), ahead = r->n < page ? page : r->n;
        LNRNN_STREAM_ROW((const elem *)r->x, ahead, r->y, r->n, T(layer_norm_part), 1, form, r, &s);
        return;
    }
    const size_t head = rows == 1 || r->ys % (ptrdiff_t)LANES == 0 ? T(to_whole_lines)(r->y, r->n) : 0;
    LNRNN_FOR_ROW(head, r->n, T(layer_norm_part), rows, form, r, &s);
}

LNRNN_INLINE void T(scale_part)(size_t i, size_t k, const int whole, const elem *x, elem *y, real scale)
{
    T(put)(y + i, T(get)(x + i, k, whole) * v_set1(scale), k, whole);
}

/* Multiplies one row by `scale`, then normalises it. y holds the scaled row, and then the result. float16
 * could not hold the scaled row, but needs no scale, because squares of float16 are in the range of float. */
static void T(layer_norm_scaled)(lnrnn_layer_norm_rows r, int form, real scale)
{
    if (scale != 1) {
        LNRNN_FOR_ROW(0, r.n, T(scale_part), r.x, r.y, scale);
        r.x = r.y;
    }
    r.eps = r.eps * scale * scale;
    T(layer_norm_group)(1, form, &r, 1, 0);
}

LNRNN_INLINE void T(layer_norm_rows)(const int form, lnrnn_layer_norm_rows r)
{
#ifndef LNRNN_FEW_COPIES
    for (; r.rows >= 4; r = T(rows_from)(r, 4))
        T(layer_norm_group)(4, form, &r, 0, 0);
#endif
    for (; r.rows; r = T(rows_from)(r, 1))
        T(layer_norm_group)(1, form, &r, 0, 0);
}

/* centred: LNRNN_CENTRED or 0. */
LNRNN_INLINE void T(layer_norm_any)(const int centred, lnrnn_layer_norm_rows r)
{
    const int form = centred | (r.gain ? LNRNN_GAIN : 0) | (r.bias ? LNRNN_BIAS : 0);
    if (r.nontemporal) {
        for (; r.rows; r = T(rows_from)(r, 1))
            T(layer_norm_group)(1, form, &r, 0, 1);
        stream_end();
        return;
    }
#ifdef LNRNN_FEW_COPIES
    T(layer_norm_rows)(form, r);
#else
    if (r.gain && r.bias)
        T(layer_norm_rows)(centred | LNRNN_GAIN | LNRNN_BIAS, r);
    else if (r.gain)
        T(layer_norm_rows)(centred | LNRNN_GAIN, r);
    else
        T(layer_norm_rows)(centred | (r.bias ? LNRNN_BIAS : 0), r);
#endif
}

/* Layer norm, or RMS norm if not centred: x (rows, n) -> y (rows, n). */
static void T(layer_norm_kernel)(const lnrnn_layer_norm_rows *a)
{
    lnrnn_layer_norm_rows r = *a;
    if (a->centred)
        T(layer_norm_any)(LNRNN_CENTRED, r);
    else {
        r.bias = NULL;
        T(layer_norm_any)(0, r);
    }
}

/* --- backward ------------------------------------------------------------------------------------------- */

/* The statistics for the gradient of a row, with u = gy gain and d = (x scale - mean_hi) - mean_lo:
 *     gx = rstd (u - mean_u - d slope) scale */
typedef struct {
    real mean_hi, mean_lo, rstd, mean_u, slope, scale;
} T(row_gradient);

LNRNN_INLINE lnrnn_layer_norm_gradients T(gradients_from)(lnrnn_layer_norm_gradients r, int j)
{
    r.gy = (const elem *)r.gy + j * r.gys, r.x = (const elem *)r.x + j * r.xs;
    r.gx = (elem *)r.gx + j * r.gxs;
    r.rows -= (size_t)j;
    return r;
}

/* Loads k values of x, and multiplies them by `scale` if form has LNRNN_SCALED. */
LNRNN_INLINE vreal T(get_scaled)(const int form, const elem *x, size_t k, const int whole, real scale)
{
    return form & LNRNN_SCALED ? T(get)(x, k, whole) * v_set1(scale) : T(get)(x, k, whole);
}

/* Adds values i .. i+k-1 of a row to accumulator number a of each sum: of d, d^2, u = gy gain and u d. */
LNRNN_INLINE void T(row_sums_part)(size_t i, size_t k, const int whole, const int a, const int form,
                                   const lnrnn_layer_norm_gradients *r, real scale, vreal pivot,
                                   T(accumulators) *s)
{
    const vreal d = T(get_scaled)(form, (const elem *)r->x + i, k, whole, scale) - pivot;
    const vreal gy = T(get)((const elem *)r->gy + i, k, whole);
    const vreal u = form & LNRNN_GAIN ? gy * T(get_real)((const real *)r->gain + i, k, whole) : gy;
    T(accumulate)(s, a, whole ? d : v_keep_n(d, k), u, 1);
}

/* Returns the statistics for the gradient of one row, gx = rstd (u - mean(u) - z mean(u z)) with z = d rstd.
 * RMS norm has d = x, and gx = rstd (u - z mean(u z)): pivot, mean and mean_u are 0. Reads the row a second
 * time if the pivot was far from the mean. scale: 1 unless LNRNN_SCALED. */
LNRNN_INLINE T(row_gradient)
    T(row_sums)(const int form, const lnrnn_layer_norm_gradients *r, double eps, real scale)
{
    const size_t n = r->n;
    real pivot = r->centred ? T(pivot_of)(n, r->x) : 0, mean_d, var;
    double sum_u, sum_ud;
    if (form & LNRNN_SCALED)
        pivot *= scale;
    for (int pass = 0;; pass++) {
        const vreal m = v_set1(pivot);
        double sum = 0, squares = 0;
        sum_u = sum_ud = 0;
        for (size_t i = 0; i < n;) {
            const size_t left = n - i < LNRNN_BLOCK(2) ? n - i : LNRNN_BLOCK(2), end = i + left;
            T(accumulators) s = {0};
            for (; i + 2 * LANES <= end; i += 2 * LANES) {
                T(row_sums_part)(i, LANES, 1, 0, form, r, scale, m, &s);
                T(row_sums_part)(i + LANES, LANES, 1, 1, form, r, scale, m, &s);
            }
            if (i + LANES <= end) {
                T(row_sums_part)(i, LANES, 1, 0, form, r, scale, m, &s);
                i += LANES;
            }
            if (i < end) {
                T(row_sums_part)(i, end - i, 0, 1, form, r, scale, m, &s);
                i = end;
            }
            sum += (double)T(total_of_2)(s.d);
            squares += (double)T(total_of_2)(s.dd);
            sum_u += (double)T(total_of_2)(s.g);
            sum_ud += (double)T(total_of_2)(s.gd);
        }
        mean_d = r->centred ? (real)(sum / (double)n) : 0;
        var = (real)(squares / (double)n) - mean_d * mean_d;
        if (mean_d * mean_d <= var || pass == 1)
            break;
        pivot += mean_d;
    }
    T(row_gradient) g;
    g.mean_u = r->centred ? (real)(sum_u / (double)n) : 0;
    g.mean_hi = pivot + mean_d;
    g.mean_lo = (pivot - g.mean_hi) + mean_d;
    /* GCOVR_EXCL_BR_LINE: rounding alone makes it negative */
    g.rstd = 1 / real_sqrt((var < 0 ? 0 : var) + (real)eps);
    g.slope = ((real)(sum_ud / (double)n) - mean_d * g.mean_u) * g.rstd * g.rstd;
    g.scale = scale;
    return g;
}

/* Computes values i .. i+k-1 of gx for 1 or 4 rows, and adds gy z and gy to the sums for ggain and gbias. */
LNRNN_INLINE void T(layer_norm_gx_part)(size_t i, size_t k, const int whole, const int rows, const int form,
                                        const lnrnn_layer_norm_gradients *r, const T(row_gradient) *g)
{
    const elem *const gy_row = (const elem *)r->gy + i, *const x_row = (const elem *)r->x + i;
    elem *const gx_row = (elem *)r->gx + i;
    real *const partial = (real *)r->partial + i;
    const vreal gain = form & LNRNN_GAIN ? T(get_real)((const real *)r->gain + i, k, whole) : v_set1(1);
    vreal ggain = T(get_real)(partial, k, whole), gbias = T(get_real)(partial + r->n, k, whole);
    LNRNN_FOR_EACH (j, rows) {
        const vreal gy = T(get)(gy_row + j * r->gys, k, whole);
        const vreal x = T(get_scaled)(form, x_row + j * r->xs, k, whole, g[j].scale);
        const vreal d = (x - v_set1(g[j].mean_hi)) - v_set1(g[j].mean_lo);
        const vreal u = form & LNRNN_GAIN ? gy * gain : gy, rstd = v_set1(g[j].rstd);
        ggain = v_fma(gy * rstd, d, ggain);
        gbias += gy;
        /* subtract mean_u first: if all u are equal, the difference is exactly 0 */
        const vreal du = v_fma(d, v_set1(-g[j].slope), u - v_set1(g[j].mean_u));
        const vreal gx = du * rstd;
        T(put)(gx_row + j * r->gxs, form & LNRNN_SCALED ? gx * v_set1(g[j].scale) : gx, k, whole);
    }
    T(put_real)(partial, ggain, k, whole);
    T(put_real)(partial + r->n, gbias, k, whole);
}

LNRNN_INLINE void T(layer_norm_gx)(const int rows, const int form, const lnrnn_layer_norm_gradients *r,
                                   const T(row_gradient) *g)
{
    const size_t head = rows == 1 || r->gxs % (ptrdiff_t)LANES == 0 ? T(to_whole_lines)(r->gx, r->n) : 0;
    LNRNN_FOR_ROW(head, r->n, T(layer_norm_gx_part), rows, form, r, g);
}

/* Computes the gradient of one row whose squares may leave the range of real. Each value is multiplied by
 * `scale` when it is read. gx cannot hold the scaled row, because gx may be gy. */
LNRNN_SELDOM void T(layer_norm_backward_scaled)(lnrnn_layer_norm_gradients r, real scale)
{
    const int form = LNRNN_SCALED | (r.gain ? LNRNN_GAIN : 0);
    const T(row_gradient) g = T(row_sums)(form, &r, r.eps * scale * scale, scale);
    T(layer_norm_gx)(1, form, &r, &g);
}

/* Computes gx of the next 1 or 4 rows, and adds to the sums for ggain and gbias. */
LNRNN_INLINE void T(layer_norm_backward_group)(const int rows, const int form,
                                               const lnrnn_layer_norm_gradients *r)
{
    T(row_gradient) g[4];
    int rescale = 0;
    for (int j = 0; j < rows; j++) {
        const lnrnn_layer_norm_gradients row = T(gradients_from)(*r, j);
        g[j] = T(row_sums)(form, &row, r->eps, 1);
        rescale |= T(out_of_range)(g[j].rstd);
    }
    if (__builtin_expect(rescale, 0))
        for (int j = 0; j < rows; j++)
            T(layer_norm_backward_scaled)(T(gradients_from)(*r, j), T(row_scale)(g[j].rstd, g[j].mean_hi));
    else
        T(layer_norm_gx)(rows, form, r, g);
}

LNRNN_INLINE void T(layer_norm_backward_rows)(const int form, lnrnn_layer_norm_gradients r)
{
    real *const partial = r.partial;
    for (size_t done = 0; r.rows;) {
#ifdef LNRNN_FEW_COPIES
        const int group = 1;
        T(layer_norm_backward_group)(1, form, &r);
#else
        const int group = r.rows >= 4 ? 4 : 1;
        if (group == 4)
            T(layer_norm_backward_group)(4, form, &r);
        else
            T(layer_norm_backward_group)(1, form, &r);
#endif
        r = T(gradients_from)(r, group);
        done += (size_t)group;
        if (r.ggain && (done % 32 == 0 || !r.rows)) /* 32 is a multiple of a group's rows, 1 or 4 */
            T(flush)(r.n, partial, r.ggain), T(flush)(r.n, partial + r.n, r.gbias);
    }
}

/* gy, x (rows, n) -> gx (rows, n). Adds the sums over the rows: of gy z to ggain (n), and of gy to gbias (n),
 * in double. If ggain and gbias are NULL, the sums stay in a->partial. */
static void T(layer_norm_backward_kernel)(const lnrnn_layer_norm_gradients *a)
{
#ifdef LNRNN_FEW_COPIES
    T(layer_norm_backward_rows)(a->gain ? LNRNN_GAIN : 0, *a);
#else
    if (a->gain)
        T(layer_norm_backward_rows)(LNRNN_GAIN, *a);
    else
        T(layer_norm_backward_rows)(0, *a);
#endif
}
