/* The norms: one text for one type in memory. kernels.h includes it once for each, with
 *     S       the type in memory           R       the type of the arithmetic: float or double
 *     X(op)   load and store of S          V(op)   the vector operation of R
 *     VT      its vector                   F(name) the name with the suffix of S
 *     LANES   values in a vector           ROOT    the square root of R
 * Here is what the norms share: the statistics of a row.
 *
 * They are taken in one pass, of the differences to a point near the mean: var = mean(d^2) - mean(d)^2. That is as
 * accurate as two passes while the point is within a standard deviation of the mean, which is checked; if it is not, a
 * second pass goes from the mean just found. A constant row has differences of exactly 0.
 *
 * mean = m0 + m1, m0 as R can hold it and m1 the rest: rows with a mean far from 0 need the digits, for x - m0 is exact
 * there, and a rounded mean alone would be off by half an ULP of itself.
 *
 * Every loop here has the shape body + tail: one vector's worth of values or less is the tail. Where a wide row is written,
 * or read many times, there is a head before them, up to where vectors are aligned: no result depends on where that is.
 */

/* Values whose sums are added up in R, in WAYS chains; longer ones are taken to double precision, for a long sum would
 * round its last terms to its own size. */
#define LNRNN_BLOCK(WAYS) (32 * (WAYS) * LANES)

/* x (n) -> a point near its mean: one value if that is all there is to a vector, else the mean of the first vector,
 * scaled before it is added: a constant row of large values keeps its mean. */
LNRNN_INLINE R F(near_mean)(size_t n, const S *x)
{
    return n < LANES ? V(sum)(X(load_n)(x, 1)) : V(sum)(V(mul)(X(load)(x), V(set1)((R)1 / LANES)));
}

/* x (n), n <= LNRNN_BLOCK(4) -> sums of d = x - near and of d^2; if not centred: only of x^2. */
LNRNN_INLINE void F(sums_about)(size_t n, const S *x, R near, R *sum, R *squares, const int centred)
{
#define LNRNN_OFF(v) (centred ? V(sub)(v, m) : (v))
    const size_t body = n - n % LANES, body4 = n - n % (4 * LANES);
    const VT m = V(set1)(near);
    VT s0 = V(zero)(), s1 = s0, s2 = s0, s3 = s0, q0 = s0, q1 = s0, q2 = s0, q3 = s0;
    size_t i = 0;
    for (; i < body4; i += 4 * LANES) {
        const VT d0 = LNRNN_OFF(X(load)(x + i)), d1 = LNRNN_OFF(X(load)(x + i + LANES));
        const VT d2 = LNRNN_OFF(X(load)(x + i + 2 * LANES)), d3 = LNRNN_OFF(X(load)(x + i + 3 * LANES));
        s0 = V(add)(s0, d0), q0 = V(fma)(d0, d0, q0);
        s1 = V(add)(s1, d1), q1 = V(fma)(d1, d1, q1);
        s2 = V(add)(s2, d2), q2 = V(fma)(d2, d2, q2);
        s3 = V(add)(s3, d3), q3 = V(fma)(d3, d3, q3);
    }
    for (; i < body; i += LANES) {
        const VT d = LNRNN_OFF(X(load)(x + i));
        s0 = V(add)(s0, d), q0 = V(fma)(d, d, q0);
    }
    if (i < n) {
        const VT d = V(keep_n)(LNRNN_OFF(X(load_n)(x + i, n - i)), n - i);
        s1 = V(add)(s1, d), q1 = V(fma)(d, d, q1);
    }
    *sum = centred ? V(sum)(V(add)(V(add)(s0, s1), V(add)(s2, s3))) : 0;
    *squares = V(sum)(V(add)(V(add)(q0, q1), V(add)(q2, q3)));
#undef LNRNN_OFF
}

/* x (n), n >= 1 -> mean = *m0 + *m1, biased variance *var; if not centred: mean 0, and the mean of squares in *var. */
LNRNN_INLINE void F(moments_about)(size_t n, const S *x, R *m0, R *m1, R *var, const int centred)
{
    R near = centred ? F(near_mean)(n, x) : 0, low, v;
    for (int again = 0;; again++) {
        R s, q;
        if (n <= LNRNN_BLOCK(4)) {
            F(sums_about)(n, x, near, &s, &q, centred);
            low = s / (R)n;
            v = q / (R)n - low * low;
        } else {
            double sum = 0, squares = 0;
            for (size_t i = 0; i < n; i += LNRNN_BLOCK(4)) {
                F(sums_about)(n - i < LNRNN_BLOCK(4) ? n - i : LNRNN_BLOCK(4), x + i, near, &s, &q, centred);
                sum += (double)s, squares += (double)q;
            }
            low = (R)(sum / (double)n);
            v = (R)(squares / (double)n) - low * low;
        }
        if (!centred || low * low <= v || again)
            break;
        near += low;
    }
    *m0 = near + low;
    *m1 = (near - *m0) + low;
    *var = v < 0 ? 0 : v; /* this way round, a NaN stays */
}

/* The same for four rows, n <= LNRNN_BLOCK(4): their quotients are taken side by side. */
LNRNN_INLINE void F(four_moments)(size_t n, const S *x, ptrdiff_t xs, R *m0, R *m1, R *var, const int centred)
{
    R near[4], s[4], q[4], low[4], v[4];
    int far = 0;
    for (int j = 0; j < 4; j++) {
        near[j] = centred ? F(near_mean)(n, x + j * xs) : 0;
        F(sums_about)(n, x + j * xs, near[j], s + j, q + j, centred);
    }
    for (int j = 0; j < 4; j++) {
        low[j] = s[j] / (R)n;
        v[j] = q[j] / (R)n - low[j] * low[j];
        m0[j] = near[j] + low[j];
        m1[j] = (near[j] - m0[j]) + low[j];
        far |= !(low[j] * low[j] <= v[j]);
        var[j] = v[j] < 0 ? 0 : v[j];
    }
    if (centred && far)
        for (int j = 0; j < 4; j++)
            F(moments_about)(n, x + j * xs, m0 + j, m1 + j, var + j, centred);
}

/* Did squares leave the range of R? rstd = 1 / sqrt(var + eps) is 0 or NaN where they overflowed; beyond the bound, where
 * var + eps is so small that squares below the smallest normal number, rounded to a multiple of the smallest subnormal, may
 * have cost digits of it. */
LNRNN_INLINE int F(out_of_range)(R rstd) { return !(rstd > 0 && rstd <= (R)(sizeof(R) == 4 ? 0x1p61 : 0x1p509)); }

/* That bound of var + eps. */
LNRNN_INLINE double F(least_spread)(void) { return sizeof(R) == 4 ? 0x1p-122 : 0x1p-1018; }

/* -> the power of two by which to multiply a row before it is normalised: 1 if nothing is wrong. A row that holds a NaN or
 * an infinity gives the same result scaled as not. Small spread about a mean that is not small is a constant row with a
 * small eps, which needs no scale and might overflow. */
LNRNN_INLINE R F(row_scale)(R rstd, R mean)
{
    const R largest_mean = (R)(sizeof(R) == 4 ? 0x1p-30 : 0x1p-400);
    if (!F(out_of_range)(rstd))
        return 1;
    if (rstd > 0)
        return -largest_mean < mean && mean < largest_mean ? (R)(sizeof(R) == 4 ? 0x1p100 : 0x1p700) : 1;
    return (R)(sizeof(R) == 4 ? 0x1p-72 : 0x1p-540);
}

/* The moments of one row, or of four if n <= LNRNN_BLOCK(4), for the norms: many of their loops begin with them. */
LNRNN_OUTLINE void F(moments)(const int rows, size_t n, const S *x, ptrdiff_t xs, R *m0, R *m1, R *var, int centred)
{
    if (rows == 4 && n <= LNRNN_BLOCK(4)) {
        if (centred)
            F(four_moments)(n, x, xs, m0, m1, var, 1);
        else
            F(four_moments)(n, x, xs, m0, m1, var, 0);
        return;
    }
    for (int j = 0; j < rows; j++)
        if (centred)
            F(moments_about)(n, x + j * xs, m0 + j, m1 + j, var + j, 1);
        else
            F(moments_about)(n, x + j * xs, m0 + j, m1 + j, var + j, 0);
}

/* x (LANES) -> (x - mean) * rstd. m0 as above, c = -m1 * rstd. */
LNRNN_INLINE VT F(normalised)(VT x, VT m0, VT rstd, VT c) { return V(fma)(V(sub)(x, m0), rstd, c); }

/* Values up to the next address that is aligned to the vector in memory, where stores past the caches may begin. */
LNRNN_INLINE size_t F(to_aligned)(const S *y, size_t n)
{
    const size_t head = -(uintptr_t)y % (LANES * sizeof(S)) / sizeof(S);
    return head < n ? head : n;
}

/* The same for a wide row, and 0 for one too short for it to pay. NumPy's large arrays begin 16 bytes into a line of the
 * cache: without this, each of their vectors of 64 bytes lies in two lines, of 32 bytes every other. */
LNRNN_INLINE size_t F(to_whole_lines)(const S *y, size_t n) { return n * sizeof(S) < 2048 ? 0 : F(to_aligned)(y, n); }

/* part(i, k, whole) for all of a row: its head, whole vectors, its tail. */
#ifndef LNRNN_WHOLE_ROW
#define LNRNN_WHOLE_ROW(head, n, part)                  \
    do {                                          \
        size_t at_ = (head);                      \
        if (at_)                                  \
            part((size_t)0, at_, 0);              \
        for (; at_ + LANES <= (n); at_ += LANES)  \
            part(at_, LANES, 1);                  \
        if (at_ < (n))                            \
            part(at_, (n)-at_, 0);                \
    } while (0)
#endif

/* p + i, where p may be NULL. */
#ifndef LNRNN_AT
#define LNRNN_AT(p, i) ((p) ? (p) + (i) : NULL)
#endif

/* Loads and stores of a part of a vector, or of a whole one if `whole`, a constant. */
LNRNN_INLINE VT F(get)(const S *p, size_t k, const int whole) { return whole ? X(load)(p) : X(load_n)(p, k); }
LNRNN_INLINE VT F(get_real)(const R *p, size_t k, const int whole) { return whole ? V(load)(p) : V(load_n)(p, k); }

LNRNN_INLINE void F(put)(S *p, VT v, size_t k, const int whole)
{
    if (whole)
        X(store)(p, v);
    else
        X(store_n)(p, v, k);
}

LNRNN_INLINE void F(put_real)(R *p, VT v, size_t k, const int whole)
{
    if (whole)
        V(store)(p, v);
    else
        V(store_n)(p, v, k);
}

/* Adds part (n) to total (n) and clears part: short sums in R, long ones in double. */
LNRNN_INLINE void F(flush)(size_t n, R *part, double *total)
{
    for (size_t i = 0; i < n; i++) {
        total[i] += part[i];
        part[i] = 0;
    }
}

#ifdef LNRNN_PART_NORM /* the cells have use for what stands above alone */
#include "lnrnn/kernels/layer_norm.h"
#include "lnrnn/kernels/batch_norm.h"
#include "lnrnn/kernels/step_norm.h"
#endif

#undef S
#undef R
#undef VT
#undef V
#undef X
#undef F
#undef LANES
#undef ROOT
#undef LNRNN_BLOCK
