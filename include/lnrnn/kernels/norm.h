/* The norms: one text for four types in memory. all.h includes it once for each; names.h says how a function here gets the
 * suffix of the type, and what elem, real, vreal and LANES are.
 * Here is what the norms share: the statistics of a row.
 *
 * They are taken in one pass, of the differences to a point near the mean: var = mean(d^2) - mean(d)^2. That is as
 * accurate as two passes while the point is within a standard deviation of the mean, which is checked; if it is not, a
 * second pass goes from the mean just found. A constant row has differences of exactly 0.
 *
 * mean = m0 + m1, m0 as real can hold it and m1 the rest: rows with a mean far from 0 need the digits, for x - m0 is exact
 * there, and a rounded mean alone would be off by half an ULP of itself.
 *
 * Every loop here has the shape body + tail: one vector's worth of values or less is the tail. Where a wide row is written,
 * or read many times, there is a head before them, up to where vectors are aligned: no result depends on where that is.
 */

/* Values whose sums are added up in real, in WAYS chains; longer ones are taken to double precision, for a long sum would
 * round its last terms to its own size. */
#define LNRNN_BLOCK(WAYS) (32 * (WAYS) * LANES)

/* x (n) -> a point near its mean: one value if that is all there is to a vector, else the mean of the first vector,
 * scaled before it is added: a constant row of large values keeps its mean. */
LNRNN_INLINE real pivot_of(size_t n, const elem *x)
{
    return n < LANES ? v_sum(v_load_n_elem(x, 1)) : v_sum(v_mul(v_load_elem(x), v_set1((real)1 / LANES)));
}

/* x (n), n <= LNRNN_BLOCK(4) -> sums of d = x - pivot and of d^2; if not centred: only of x^2. */
LNRNN_INLINE void sums_about(size_t n, const elem *x, real pivot, real *sum, real *squares, const int centred)
{
#define LNRNN_OFF(v) (centred ? v_sub(v, m) : (v))
    const size_t body = n - n % LANES, body4 = n - n % (4 * LANES);
    const vreal m = v_set1(pivot);
    vreal s0 = v_zero(), s1 = s0, s2 = s0, s3 = s0, q0 = s0, q1 = s0, q2 = s0, q3 = s0;
    size_t i = 0;
    for (; i < body4; i += 4 * LANES) {
        const vreal d0 = LNRNN_OFF(v_load_elem(x + i)), d1 = LNRNN_OFF(v_load_elem(x + i + LANES));
        const vreal d2 = LNRNN_OFF(v_load_elem(x + i + 2 * LANES)),
                    d3 = LNRNN_OFF(v_load_elem(x + i + 3 * LANES));
        s0 = v_add(s0, d0), q0 = v_fma(d0, d0, q0);
        s1 = v_add(s1, d1), q1 = v_fma(d1, d1, q1);
        s2 = v_add(s2, d2), q2 = v_fma(d2, d2, q2);
        s3 = v_add(s3, d3), q3 = v_fma(d3, d3, q3);
    }
    for (; i < body; i += LANES) {
        const vreal d = LNRNN_OFF(v_load_elem(x + i));
        s0 = v_add(s0, d), q0 = v_fma(d, d, q0);
    }
    if (i < n) {
        const vreal d = v_keep_n(LNRNN_OFF(v_load_n_elem(x + i, n - i)), n - i);
        s1 = v_add(s1, d), q1 = v_fma(d, d, q1);
    }
    *sum = centred ? v_sum(v_add(v_add(s0, s1), v_add(s2, s3))) : 0;
    *squares = v_sum(v_add(v_add(q0, q1), v_add(q2, q3)));
#undef LNRNN_OFF
}

/* x (n), n >= 1 -> mean = *m0 + *m1, biased variance *var; if not centred: mean 0, and the mean of squares in *var. */
LNRNN_INLINE void moments_about(size_t n, const elem *x, real *m0, real *m1, real *var, const int centred)
{
    real pivot = centred ? pivot_of(n, x) : 0, low, v;
    for (int again = 0;; again++) {
        real s, q;
        if (n <= LNRNN_BLOCK(4)) {
            sums_about(n, x, pivot, &s, &q, centred);
            low = s / (real)n;
            v = q / (real)n - low * low;
        } else {
            double sum = 0, squares = 0;
            for (size_t i = 0; i < n; i += LNRNN_BLOCK(4)) {
                sums_about(n - i < LNRNN_BLOCK(4) ? n - i : LNRNN_BLOCK(4), x + i, pivot, &s, &q, centred);
                sum += (double)s, squares += (double)q;
            }
            low = (real)(sum / (double)n);
            v = (real)(squares / (double)n) - low * low;
        }
        if (!centred || low * low <= v || again)
            break;
        pivot += low;
    }
    *m0 = pivot + low;
    *m1 = (pivot - *m0) + low;
    *var = v < 0 ? 0 : v; /* this way round, a NaN stays */
}

/* The same for four rows, n <= LNRNN_BLOCK(4): their quotients are taken side by side. */
LNRNN_INLINE void four_moments(size_t n, const elem *x, ptrdiff_t xs, real *m0, real *m1, real *var,
                               const int centred)
{
    real pivot[4], s[4], q[4], low[4], v[4];
    int far = 0;
    for (int j = 0; j < 4; j++) {
        pivot[j] = centred ? pivot_of(n, x + j * xs) : 0;
        sums_about(n, x + j * xs, pivot[j], s + j, q + j, centred);
    }
    for (int j = 0; j < 4; j++) {
        low[j] = s[j] / (real)n;
        v[j] = q[j] / (real)n - low[j] * low[j];
        m0[j] = pivot[j] + low[j];
        m1[j] = (pivot[j] - m0[j]) + low[j];
        far |= !(low[j] * low[j] <= v[j]);
        var[j] = v[j] < 0 ? 0 : v[j];
    }
    if (centred && far)
        for (int j = 0; j < 4; j++)
            moments_about(n, x + j * xs, m0 + j, m1 + j, var + j, centred);
}

/* Did squares leave the range of real? rstd = 1 / sqrt(var + eps) is 0 or NaN where they overflowed; beyond the bound, where
 * var + eps is so small that squares below the smallest normal number, rounded to a multiple of the smallest subnormal, may
 * have cost digits of it. */
LNRNN_INLINE int out_of_range(real rstd)
{
    return !(rstd > 0 && rstd <= (real)(sizeof(real) == 4 ? 0x1p61 : 0x1p509));
}

/* That bound of var + eps. */
LNRNN_INLINE double least_spread(void) { return sizeof(real) == 4 ? 0x1p-122 : 0x1p-1018; }

/* -> the power of two by which to multiply a row before it is normalised: 1 if nothing is wrong. A row that holds a NaN or
 * an infinity gives the same result scaled as not. Small spread about a mean that is not small is a constant row with a
 * small eps, which needs no scale and might overflow. */
LNRNN_INLINE real row_scale(real rstd, real mean)
{
    const real largest_mean = (real)(sizeof(real) == 4 ? 0x1p-30 : 0x1p-400);
    if (!out_of_range(rstd))
        return 1;
    if (rstd > 0)
        return -largest_mean < mean && mean < largest_mean ? (real)(sizeof(real) == 4 ? 0x1p100 : 0x1p700)
                                                           : 1;
    return (real)(sizeof(real) == 4 ? 0x1p-72 : 0x1p-540);
}

/* The moments of one row, or of four if n <= LNRNN_BLOCK(4), for the norms: many of their loops begin with them. */
LNRNN_OUTLINE void moments(const int rows, size_t n, const elem *x, ptrdiff_t xs, real *m0, real *m1,
                           real *var, int centred)
{
    if (rows == 4 && n <= LNRNN_BLOCK(4)) {
        if (centred)
            four_moments(n, x, xs, m0, m1, var, 1);
        else
            four_moments(n, x, xs, m0, m1, var, 0);
        return;
    }
    for (int j = 0; j < rows; j++)
        if (centred)
            moments_about(n, x + j * xs, m0 + j, m1 + j, var + j, 1);
        else
            moments_about(n, x + j * xs, m0 + j, m1 + j, var + j, 0);
}

/* x (LANES) -> (x - mean) * rstd. m0 as above, c = -m1 * rstd. */
LNRNN_INLINE vreal normalised(vreal x, vreal m0, vreal rstd, vreal c) { return v_fma(v_sub(x, m0), rstd, c); }

/* Values up to the next address that is aligned to the vector in memory, where stores past the caches may begin. */
LNRNN_INLINE size_t to_aligned(const elem *y, size_t n)
{
    const size_t head = -(uintptr_t)y % (LANES * sizeof(elem)) / sizeof(elem);
    return head < n ? head : n;
}

/* The same for a wide row, and 0 for one too short for it to pay. NumPy's large arrays begin 16 bytes into a line of the
 * cache: without this, each of their vectors of 64 bytes lies in two lines, of 32 bytes every other. */
LNRNN_INLINE size_t to_whole_lines(const elem *y, size_t n)
{
    return n * sizeof(elem) < 2048 ? 0 : to_aligned(y, n);
}

/* part(i, k, whole) for all of a row: its head, whole vectors, its tail. */
#ifndef LNRNN_WHOLE_ROW
#define LNRNN_WHOLE_ROW(head, n, part)           \
    do {                                         \
        size_t at_ = (head);                     \
        if (at_)                                 \
            part((size_t)0, at_, 0);             \
        for (; at_ + LANES <= (n); at_ += LANES) \
            part(at_, LANES, 1);                 \
        if (at_ < (n))                           \
            part(at_, (n) - at_, 0);             \
    } while (0)
#endif

/* p + i, where p may be NULL. */
#ifndef LNRNN_AT
#define LNRNN_AT(p, i) ((p) ? (p) + (i) : NULL)
#endif

/* Loads and stores of a part of a vector, or of a whole one if `whole`, a constant. */
LNRNN_INLINE vreal get(const elem *p, size_t k, const int whole)
{
    return whole ? v_load_elem(p) : v_load_n_elem(p, k);
}
LNRNN_INLINE vreal get_real(const real *p, size_t k, const int whole)
{
    return whole ? v_load(p) : v_load_n(p, k);
}

LNRNN_INLINE void put(elem *p, vreal v, size_t k, const int whole)
{
    if (whole)
        v_store_elem(p, v);
    else
        v_store_n_elem(p, v, k);
}

LNRNN_INLINE void put_real(real *p, vreal v, size_t k, const int whole)
{
    if (whole)
        v_store(p, v);
    else
        v_store_n(p, v, k);
}

/* Adds part (n) to total (n) and clears part: short sums in real, long ones in double. */
LNRNN_INLINE void flush(size_t n, real *part, double *total)
{
    for (size_t i = 0; i < n; i++) {
        total[i] += part[i];
        part[i] = 0;
    }
}

#ifdef LNRNN_PART_NORM /* the cells have use for what stands above alone */
#include "lnrnn/kernels/layer_norm.h"
#include "lnrnn/kernels/batch_norm.h"
#endif

#undef LNRNN_TYPE
#undef elem
#undef real
#undef vreal
#undef LNRNN_V
#undef LNRNN_E
#undef LANES
#undef real_sqrt
#undef LNRNN_BLOCK
