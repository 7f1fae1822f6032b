/* Layer norm and RMS norm, forward, and layer norm backward: one text for one type in memory, as norm.h says.
 *
 * Rows are taken in fours: the chain of sum, root and quotient at the end of one row's statistics hides behind the next
 * row's, and gain and bias, which wide rows push out of L1, are loaded once for the four. A row's result does not depend on
 * it.
 *
 * Where the squares of a row overflow or underflow (out_of_range in norm.h) it is multiplied by a power of two s, and taken
 * by itself: (x s - mean s) / sqrt(var s^2 + eps s^2) is what was asked for.
 */

/* Part of four rows or one: k values from x + i, or a vector if whole. */
LNRNN_INLINE void layer_norm_part(const int rows, size_t k, const int whole, const elem *x, ptrdiff_t xs,
                                  const real *gain, const real *bias, elem *y, ptrdiff_t ys, const vreal *m,
                                  const vreal *r, const vreal *c, int has_gain, int has_bias,
                                  const int centred)
{
    const vreal g = has_gain ? get_real(gain, k, whole) : v_set1(1);
    const vreal b = has_bias ? get_real(bias, k, whole) : v_zero();
#pragma GCC unroll 4
    for (int j = 0; j < rows; j++) {
        const vreal v = get(x + j * xs, k, whole);
        const vreal z = centred ? normalised(v, m[j], r[j], c[j]) : v_mul(v, r[j]);
        put(y + j * ys, v_fma(z, g, b), k, whole);
    }
}

LNRNN_SELDOM void layer_norm_scaled(size_t n, const elem *x, const real *gain, const real *bias, double eps,
                                    elem *y, real scale, int centred);

/* final: the rows are taken as they are. */
LNRNN_INLINE void layer_norm_group(const int rows, size_t n, const elem *x, ptrdiff_t xs, const real *gain,
                                   const real *bias, double eps, elem *y, ptrdiff_t ys, int has_gain,
                                   int has_bias, const int centred, const int final)
{
    real mean[4], m1[4], var[4], rstd[4], rest[4], spread = 0;
    moments(rows, n, x, xs, mean, m1, var, centred);
    for (int j = 0; j < rows; j++) {
        spread += var[j] + (real)eps;
        rstd[j] = 1 / real_sqrt(var[j] + (real)eps);
        rest[j] = -m1[j] * rstd[j];
    }
    /* One question for all rows in the usual case. Where only the sum of finite variances overflows, the scale is 1. */
    int far = !(spread < INFINITY);
    if (eps < least_spread())
        for (int j = 0; j < rows; j++)
            far |= out_of_range(rstd[j]);
    if (!final && __builtin_expect(far, 0)) {
        for (int j = 0; j < rows; j++)
            layer_norm_scaled(n, x + j * xs, gain, bias, eps, y + j * ys, row_scale(rstd[j], mean[j]),
                              centred);
        return;
    }
    vreal m[4], r[4], c[4];
#pragma GCC unroll 4
    for (int j = 0; j < rows; j++)
        m[j] = v_set1(mean[j]), r[j] = v_set1(rstd[j]), c[j] = v_set1(rest[j]);
#define LNRNN_PART(i, k, whole)                                                                              \
    layer_norm_part(rows, k, whole, x + (i), xs, LNRNN_AT(gain, i), LNRNN_AT(bias, i), y + (i), ys, m, r, c, \
                    has_gain, has_bias, centred)
    LNRNN_WHOLE_ROW(rows == 1 || ys % (ptrdiff_t)LANES == 0 ? to_whole_lines(y, n) : 0, n, LNRNN_PART);
#undef LNRNN_PART
}

/* One row. y holds the scaled row before it holds the result; float16 cannot hold every scaled row, but has no values whose
 * squares leave the range of float. */
static void layer_norm_scaled(size_t n, const elem *x, const real *gain, const real *bias, double eps,
                              elem *y, real scale, int centred)
{
    if (scale != 1) {
#define LNRNN_PART(i, k, whole) put(y + (i), v_mul(get(x + (i), k, whole), v_set1(scale)), k, whole)
        LNRNN_WHOLE_ROW((size_t)0, n, LNRNN_PART);
#undef LNRNN_PART
        x = y;
    }
    layer_norm_group(1, n, x, 0, gain, bias, eps * scale * scale, y, 0, !!gain, !!bias, centred, 1);
}

/* One row, written past the caches. While it is written, memory is to read on: what comes AHEAD values later at the least,
 * which is in the next row. */
LNRNN_INLINE void layer_norm_nontemporal(size_t n, const elem *x, const real *gain, const real *bias,
                                         double eps, elem *y, const int centred)
{
    real m0, m1, var;
    moments(1, n, x, 0, &m0, &m1, &var, centred);
    const real rstd = 1 / real_sqrt(var + (real)eps);
    if (__builtin_expect(out_of_range(rstd), 0)) {
        layer_norm_scaled(n, x, gain, bias, eps, y, row_scale(rstd, m0), centred);
        return;
    }
    const vreal m = v_set1(m0), r = v_set1(rstd), c = v_set1(-m1 * rstd);
    const size_t head = to_aligned(y, n);
    const size_t page = 4096 / sizeof(elem), ahead = n < page ? page : n;
    size_t i = head;
    if (head)
        layer_norm_part(1, head, 0, x, 0, gain, bias, y, 0, &m, &r, &c, !!gain, !!bias, centred);
    for (; i + LANES <= n; i += LANES) {
        v32_prefetch((const float *)(x + i + ahead));
        const vreal v = v_load_elem(x + i), z = centred ? normalised(v, m, r, c) : v_mul(v, r);
        v_stream_elem(y + i,
                      v_fma(z, gain ? v_load(gain + i) : v_set1(1), bias ? v_load(bias + i) : v_zero()));
    }
    if (i < n)
        layer_norm_part(1, n - i, 0, x + i, 0, LNRNN_AT(gain, i), LNRNN_AT(bias, i), y + i, 0, &m, &r, &c,
                        !!gain, !!bias, centred);
}

LNRNN_INLINE void layer_norm_rows(size_t rows, size_t n, const elem *x, ptrdiff_t xs, const real *gain,
                                  const real *bias, double eps, elem *y, ptrdiff_t ys, const int centred,
                                  int nontemporal)
{
    size_t j = 0;
    if (nontemporal) {
        for (; j < rows; j++, x += xs, y += ys)
            layer_norm_nontemporal(n, x, gain, bias, eps, y, centred);
        stream_end();
        return;
    }
#ifdef LNRNN_FEW_COPIES
    for (; j < rows; j++, x += xs, y += ys)
        layer_norm_group(1, n, x, xs, gain, bias, eps, y, ys, gain != NULL, bias != NULL, centred, 0);
#else
#define LNRNN_GROUP(many)                                                                          \
    do {                                                                                           \
        if (gain && bias)                                                                          \
            layer_norm_group(many, n, x, xs, gain, bias, eps, y, ys, 1, 1, centred, 0);            \
        else if (gain)                                                                             \
            layer_norm_group(many, n, x, xs, gain, NULL, eps, y, ys, 1, 0, centred, 0);            \
        else                                                                                       \
            layer_norm_group(many, n, x, xs, NULL, bias, eps, y, ys, 0, bias != NULL, centred, 0); \
    } while (0)
    for (; j + 4 <= rows; j += 4, x += 4 * xs, y += 4 * ys)
        LNRNN_GROUP(4);
    for (; j < rows; j++, x += xs, y += ys)
        LNRNN_GROUP(1);
#undef LNRNN_GROUP
#endif
}

/* x (rows, n) with xs values from row to row, gain (n) or NULL, bias (n) or NULL -> y (rows, n), stride ys.
 * centred: layer norm; if not, RMS norm, which has no bias. y may be x; rows may not overlap otherwise. n >= 1.
 * nontemporal: y is too large for the caches, write past them. */
static void layer_norm_kernel(size_t rows, size_t n, const void *x, ptrdiff_t xs, const void *gain,
                              const void *bias, double eps, void *y, ptrdiff_t ys, int centred,
                              int nontemporal)
{
    if (centred)
        layer_norm_rows(rows, n, x, xs, gain, bias, eps, y, ys, 1, nontemporal);
    else
        layer_norm_rows(rows, n, x, xs, gain, NULL, eps, y, ys, 0, nontemporal);
}

/* What the gradient of a row needs: gx = rstd (u - mean - d slope) s, d = (x s - m0) - m1, u = gy gain, s the row's
 * scale. */
typedef struct {
    real m0, m1, rstd, mean, slope, scale;
} row_gradient;

LNRNN_INLINE vreal get_scaled(const elem *x, size_t k, const int whole, real scale, const int scaled)
{
    return scaled ? v_mul(get(x, k, whole), v_set1(scale)) : get(x, k, whole);
}

/* gy, x, gain (n) -> the above. With z = d rstd:  gx = rstd (u - mean(u) - z mean(u z)). One pass, as moments_about.
 * scale: 1 unless scaled, a constant. */
LNRNN_INLINE row_gradient row_sums(size_t n, const elem *gy, const elem *x, const real *gain, double eps,
                                   const int has_gain, real scale, const int scaled)
{
#define LNRNN_ADD(c, i, k, whole)                                                \
    do {                                                                         \
        const vreal o = v_sub(get_scaled(x + (i), k, whole, scale, scaled), m);  \
        const vreal d = whole ? o : v_keep_n(o, k);                              \
        const vreal g = get(gy + (i), k, whole);                                 \
        const vreal u = has_gain ? v_mul(g, get_real(gain + (i), k, whole)) : g; \
        s[c] = v_add(s[c], d), q[c] = v_fma(d, d, q[c]);                         \
        t[c] = v_add(t[c], u), w[c] = v_fma(u, d, w[c]);                         \
    } while (0)
    real pivot = scaled ? pivot_of(n, x) * scale : pivot_of(n, x), low, v;
    double sum_u, sum_ud;
    for (int again = 0;; again++) {
        const vreal m = v_set1(pivot), zero = v_zero();
        double sum = 0, squares = 0;
        sum_u = sum_ud = 0;
        for (size_t i = 0; i < n;) {
            const size_t left = n - i < LNRNN_BLOCK(2) ? n - i : LNRNN_BLOCK(2), end = i + left;
            vreal s[2] = {zero, zero}, q[2] = {zero, zero}, t[2] = {zero, zero}, w[2] = {zero, zero};
            for (; i + 2 * LANES <= end; i += 2 * LANES) {
                LNRNN_ADD(0, i, LANES, 1);
                LNRNN_ADD(1, i + LANES, LANES, 1);
            }
            if (i + LANES <= end) {
                LNRNN_ADD(0, i, LANES, 1);
                i += LANES;
            }
            if (i < end) {
                LNRNN_ADD(1, i, end - i, 0);
                i = end;
            }
            sum += (double)v_sum(v_add(s[0], s[1]));
            squares += (double)v_sum(v_add(q[0], q[1]));
            sum_u += (double)v_sum(v_add(t[0], t[1]));
            sum_ud += (double)v_sum(v_add(w[0], w[1]));
        }
        low = (real)(sum / (double)n);
        v = (real)(squares / (double)n) - low * low;
        if (low * low <= v || again)
            break;
        pivot += low;
    }
#undef LNRNN_ADD
    row_gradient r;
    r.mean = (real)(sum_u / (double)n);
    r.m0 = pivot + low;
    r.m1 = (pivot - r.m0) + low;
    r.rstd = 1 / real_sqrt((v < 0 ? 0 : v) + (real)eps);
    r.slope = ((real)(sum_ud / (double)n) - low * r.mean) * r.rstd * r.rstd;
    r.scale = scale;
    return r;
}

/* Part of four rows or one: gx, and sum gy z to pg, sum gy to pb. */
LNRNN_INLINE void layer_norm_gx_part(const int rows, size_t k, const int whole, const elem *gy, ptrdiff_t gs,
                                     const elem *x, ptrdiff_t xs, const real *gain, elem *gx, ptrdiff_t os,
                                     real *pg, real *pb, const row_gradient *p, int has_gain,
                                     const int scaled)
{
    const vreal g = has_gain ? get_real(gain, k, whole) : v_set1(1);
    vreal a = get_real(pg, k, whole), b = get_real(pb, k, whole);
#pragma GCC unroll 4
    for (int j = 0; j < rows; j++) {
        const vreal dy = get(gy + j * gs, k, whole);
        const vreal v = get_scaled(x + j * xs, k, whole, p[j].scale, scaled);
        const vreal d = v_sub(v_sub(v, v_set1(p[j].m0)), v_set1(p[j].m1));
        const vreal u = has_gain ? v_mul(dy, g) : dy, r = v_set1(p[j].rstd);
        a = v_fma(v_mul(dy, r), d, a);
        b = v_add(b, dy);
        /* the mean taken from u itself: where both are alike, nothing may be left */
        const vreal off = v_fma(d, v_set1(-p[j].slope), v_sub(u, v_set1(p[j].mean)));
        const vreal g = v_mul(off, r);
        put(gx + j * os, scaled ? v_mul(g, v_set1(p[j].scale)) : g, k, whole);
    }
    put_real(pg, a, k, whole);
    put_real(pb, b, k, whole);
}

LNRNN_INLINE void layer_norm_gx(const int rows, size_t n, const elem *gy, ptrdiff_t gs, const elem *x,
                                ptrdiff_t xs, const real *gain, elem *gx, ptrdiff_t os, real *pg, real *pb,
                                const row_gradient *p, const int has_gain, const int scaled)
{
#define LNRNN_PART(i, k, whole)                                                                              \
    layer_norm_gx_part(rows, k, whole, gy + (i), gs, x + (i), xs, LNRNN_AT(gain, i), gx + (i), os, pg + (i), \
                       pb + (i), p, has_gain, scaled)
    LNRNN_WHOLE_ROW(rows == 1 || os % (ptrdiff_t)LANES == 0 ? to_whole_lines(gx, n) : 0, n, LNRNN_PART);
#undef LNRNN_PART
}

/* One row whose squares may leave the range of real. gx may be gy, so that it cannot hold the scaled row. */
LNRNN_SELDOM void layer_norm_backward_scaled(size_t n, const elem *gy, const elem *x, const real *gain,
                                             double eps, elem *gx, real *pg, real *pb, real scale)
{
    const row_gradient p = row_sums(n, gy, x, gain, eps * scale * scale, !!gain, scale, 1);
    layer_norm_gx(1, n, gy, 0, x, 0, gain, gx, 0, pg, pb, &p, !!gain, 1);
}

LNRNN_INLINE void layer_norm_backward_group(const int rows, size_t n, const elem *gy, ptrdiff_t gs,
                                            const elem *x, ptrdiff_t xs, const real *gain, double eps,
                                            elem *gx, ptrdiff_t os, real *pg, real *pb, const int has_gain)
{
    row_gradient p[4];
    int far = 0;
    for (int j = 0; j < rows; j++) {
        p[j] = row_sums(n, gy + j * gs, x + j * xs, gain, eps, has_gain, 1, 0);
        far |= out_of_range(p[j].rstd);
    }
    if (__builtin_expect(far, 0))
        for (int j = 0; j < rows; j++)
            layer_norm_backward_scaled(n, gy + j * gs, x + j * xs, gain, eps, gx + j * os, pg, pb,
                                       row_scale(p[j].rstd, p[j].m0));
    else
        layer_norm_gx(rows, n, gy, gs, x, xs, gain, gx, os, pg, pb, p, has_gain, 0);
}

/* gy, x (rows, n), gain (n) or NULL -> gx (rows, n), strides gs, xs, os; adds the rows' share to ggain (n), gbias (n).
 *     ggain = sum gy z,  gbias = sum gy
 * work (2, n) of real holds zeros before and after. gx may be gy or x. n >= 1. */
static void layer_norm_backward_kernel(size_t rows, size_t n, const void *gy_, ptrdiff_t gs, const void *x_,
                                       ptrdiff_t xs, const void *gain, double eps, void *gx_, ptrdiff_t os,
                                       double *ggain, double *gbias, void *work)
{
    const elem *gy = gy_, *x = x_;
    elem *gx = gx_;
    real *pg = work, *pb = pg + n;
    for (size_t r = 0; r < rows;) {
#ifdef LNRNN_FEW_COPIES
        const size_t many = 1;
        layer_norm_backward_group(1, n, gy, gs, x, xs, gain, eps, gx, os, pg, pb, gain != NULL);
#else
        const size_t many = rows - r >= 4 ? 4 : 1;
#define LNRNN_GROUP(many)                                                                    \
    do {                                                                                     \
        if (gain)                                                                            \
            layer_norm_backward_group(many, n, gy, gs, x, xs, gain, eps, gx, os, pg, pb, 1); \
        else                                                                                 \
            layer_norm_backward_group(many, n, gy, gs, x, xs, gain, eps, gx, os, pg, pb, 0); \
    } while (0)
        if (many == 4)
            LNRNN_GROUP(4);
        else
            LNRNN_GROUP(1);
#undef LNRNN_GROUP
#endif
        r += many;
        gy += (ptrdiff_t)many * gs, x += (ptrdiff_t)many * xs, gx += (ptrdiff_t)many * os;
        if (r % 32 == 0 || r == rows) /* groups of four end there */
            flush(n, pg, ggain), flush(n, pb, gbias);
    }
}
