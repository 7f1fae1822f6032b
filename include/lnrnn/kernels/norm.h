/* Sums over a row, and its mean and variance: the functions that all norms share.
 *
 * all.h includes norm.h, layer_norm.h and batch_norm.h once for each of four types in memory. A function or
 * type T(name) gets the suffix of its type: T(moments) is moments_f32, moments_f64, moments_bf16 and
 * moments_f16. Before each inclusion, all.h defines
 *     LNRNN_TYPE      the suffix
 *     LNRNN_NARROW    only if elem is not real, but has 16 bits
 *     LNRNN_DOUBLE    only if the arithmetic is in double; otherwise it is in float
 *     elem            the type in memory
 *     LNRNN_ELEM(op)  a load or store of elem, converted from or to real
 *
 * One pass computes the moments from the differences d to a value near the mean, the pivot:
 *     mean = pivot + mean(d),  var = mean(d^2) - mean(d)^2
 * (the shifted-data algorithm). That is as accurate as two passes if the pivot is within a standard deviation
 * of the mean. If the pivot is too far, a second pass uses the mean of the first pass as pivot. A constant
 * row has differences of exactly 0.
 *
 * The mean is stored as mean_hi, the mean rounded to real, and mean_lo, the error of this rounding. Rows with
 * a mean far from 0 need both, because x - mean_hi is exact, and mean_lo corrects up to half an ULP.
 *
 * A loop over a row has whole vectors and then a tail of fewer than LANES values. If a wide row is written,
 * or read several times, the loop begins with some values up to an aligned address. No result depends on
 * their number.
 */

#define T(name) LNRNN_CAT(name##_, LNRNN_TYPE)

/* real: the type of the arithmetic; vreal: a vector of LANES such values; v_op: operation `op` of simd.h on a
 * vreal. */
#ifdef LNRNN_DOUBLE
#define real double
#define real_sqrt sqrt
#define vreal v64
#define LANES V64_LANES
#define LNRNN_V(op) v64_##op
#else
#define real float
#define real_sqrt sqrtf
#define vreal v32
#define LANES V32_LANES
#define LNRNN_V(op) v32_##op
#endif
#define v_zero LNRNN_V(zero)
#define v_set1 LNRNN_V(set1)
#define v_load LNRNN_V(load)
#define v_load_n LNRNN_V(load_n)
#define v_store LNRNN_V(store)
#define v_store_n LNRNN_V(store_n)
#define v_keep_n LNRNN_V(keep_n)
#define v_fma LNRNN_V(fma)
#define v_sum LNRNN_V(sum)

/* Calls `part` for the vectors of a row of n elem, as LNRNN_FOR_VECTORS of vector_loop.h. */
#define LNRNN_FOR_ROW(head, n, part, ...) LNRNN_FOR_VECTORS(LANES, head, n, part, __VA_ARGS__)

/* Calls `part` as LNRNN_FOR_ROW does, with non-temporal stores to y (n), and prefetches of x, `ahead` values
 * ahead. */
#define LNRNN_STREAM_ROW(x, ahead, y, n, part, ...)               \
    do {                                                          \
        size_t i_ = T(to_aligned)(y, n);                          \
        if (i_)                                                   \
            part((size_t)0, i_, 0, __VA_ARGS__);                  \
        for (; i_ + LANES <= (n); i_ += LANES) {                  \
            v32_prefetch((const float *)((x) + i_ + (ahead)));    \
            part(i_, (size_t)LANES, LNRNN_STREAMED, __VA_ARGS__); \
        }                                                         \
        if (i_ < (n))                                             \
            part(i_, (n) - i_, 0, __VA_ARGS__);                   \
    } while (0)

/* The largest number of values that are added in real, if a sum has `ways` accumulators. Longer sums are in
 * double, because adding a value to a large sum would round too much. */
#define LNRNN_BLOCK(ways) (32 * (ways) * LANES)

/* --- loads and stores of k values, or of a vector if `whole`, a constant -------------------------------- */

LNRNN_INLINE vreal T(get)(const elem *p, size_t k, const int whole)
{
    return whole ? LNRNN_ELEM(load)(p) : LNRNN_ELEM(load_n)(p, k);
}

LNRNN_INLINE vreal T(get_real)(const real *p, size_t k, const int whole)
{
    return whole ? v_load(p) : v_load_n(p, k);
}

LNRNN_INLINE void T(put)(elem *p, vreal v, size_t k, const int whole)
{
    if (whole == LNRNN_STREAMED)
        LNRNN_ELEM(stream)(p, v);
    else if (whole)
        LNRNN_ELEM(store)(p, v);
    else
        LNRNN_ELEM(store_n)(p, v, k);
}

LNRNN_INLINE void T(put_real)(real *p, vreal v, size_t k, const int whole)
{
    if (whole)
        v_store(p, v);
    else
        v_store_n(p, v, k);
}

/* Returns the number of values of y (n) before the first address to which a vector may be written by a
 * non-temporal store. */
LNRNN_INLINE size_t T(to_aligned)(const elem *y, size_t n)
{
    const size_t head = -(uintptr_t)y % (LANES * sizeof(elem)) / sizeof(elem);
    return head < n ? head : n; /* GCOVR_EXCL_BR_LINE: callers have more values */
}

/* Returns to_aligned(y, n), or 0 for a row of less than LNRNN_WIDE_ROW bytes, where alignment saves
 * nothing. */
LNRNN_INLINE size_t T(to_whole_lines)(const elem *y, size_t n)
{
    return n * sizeof(elem) < LNRNN_WIDE_ROW ? 0 : T(to_aligned)(y, n);
}

/* --- sums ----------------------------------------------------------------------------------------------- */

/* Sums of d, d^2, g and g d over a row or a channel, where d are differences to a pivot and g are gradients.
 * Each sum has up to four accumulators, because additions to the same accumulator wait for each other. */
typedef struct {
    vreal d[4], dd[4], g[4], gd[4];
} T(accumulators);

/* Adds d and d^2 to accumulator a of their sums. has_g: also adds g and g d. */
LNRNN_INLINE void T(accumulate)(T(accumulators) *s, const int a, vreal d, vreal g, const int has_g)
{
    s->d[a] += d;
    s->dd[a] = v_fma(d, d, s->dd[a]);
    if (has_g) {
        s->g[a] += g;
        s->gd[a] = v_fma(g, d, s->gd[a]);
    }
}

/* lanes_of_4 returns the sum of four vectors, lane by lane. total_of_2 and total_of_4 return the sum of all
 * lanes of 2 or 4 vectors. */
LNRNN_INLINE vreal T(lanes_of_4)(const vreal *a) { return (a[0] + a[1]) + (a[2] + a[3]); }
LNRNN_INLINE real T(total_of_2)(const vreal *a) { return v_sum(a[0] + a[1]); }
LNRNN_INLINE real T(total_of_4)(const vreal *a) { return v_sum(T(lanes_of_4)(a)); }

/* partial (n): sums of a few values in real. Adds them to total (n), sums in double, and clears partial. */
LNRNN_INLINE void T(flush)(size_t n, real *partial, double *total)
{
    LNRNN_VECTORISED
    for (size_t i = 0; i < n; i++) {
        total[i] += partial[i];
        partial[i] = 0;
    }
}

/* --- the moments of a row ------------------------------------------------------------------------------- */

/* x (n). Returns lanes whose sum is the pivot: the mean of the first vector, or the first value of a row
 * shorter than a vector. Scales values before adding them, so that the mean of large values does not
 * overflow. */
LNRNN_INLINE vreal T(pivot_lanes)(size_t n, const elem *x)
{
    return n < LANES ? LNRNN_ELEM(load_n)(x, 1) : LNRNN_ELEM(load)(x) * v_set1((real)1 / LANES);
}

LNRNN_INLINE real T(pivot_of)(size_t n, const elem *x) { return v_sum(T(pivot_lanes)(n, x)); }

/* x (k). Adds the values and their squares to the sums. centred: subtracts the pivot from each value
 * first. */
LNRNN_INLINE void T(moments_part)(size_t k, const int whole, const int a, const elem *x, vreal pivot,
                                  const int centred, T(accumulators) *s)
{
    const vreal v = T(get)(x, k, whole), d = centred ? v - pivot : v;
    T(accumulate)(s, a, whole ? d : v_keep_n(d, k), v_zero(), 0);
}

/* Returns 1 if `real` is accurate enough for a sum of n values, 0 if the sum needs double. */
LNRNN_INLINE int T(in_one_block)(size_t n) { return n <= LNRNN_BLOCK(4); }

/* x (n), in_one_block(n). Writes to *sum and *squares vectors whose lanes add up to the sums of d = x - pivot
 * and of d^2. If not centred, writes only *squares, of x^2. */
LNRNN_INLINE void T(lanes_about)(size_t n, const elem *x, real pivot, vreal *sum, vreal *squares,
                                 const int centred)
{
    const size_t body = n - n % LANES, body4 = n - n % (4 * LANES);
    const vreal m = v_set1(pivot);
    T(accumulators) s = {0};
    size_t i = 0;
    for (; i < body4; i += 4 * LANES) {
        T(moments_part)(LANES, 1, 0, x + i, m, centred, &s);
        T(moments_part)(LANES, 1, 1, x + i + LANES, m, centred, &s);
        T(moments_part)(LANES, 1, 2, x + i + 2 * LANES, m, centred, &s);
        T(moments_part)(LANES, 1, 3, x + i + 3 * LANES, m, centred, &s);
    }
    for (; i < body; i += LANES)
        T(moments_part)(LANES, 1, 0, x + i, m, centred, &s);
    if (i < n)
        T(moments_part)(n - i, 0, 1, x + i, m, centred, &s);
    *sum = centred ? T(lanes_of_4)(s.d) : v_zero();
    *squares = T(lanes_of_4)(s.dd);
}

/* Does the same as lanes_about, but adds up the lanes: writes the sums of d = x - pivot and of d^2. */
LNRNN_INLINE void T(sums_about)(size_t n, const elem *x, real pivot, real *sum, real *squares,
                                const int centred)
{
    vreal sum_lanes, square_lanes;
    T(lanes_about)(n, x, pivot, &sum_lanes, &square_lanes, centred);
    *sum = centred ? v_sum(sum_lanes) : 0;
    *squares = v_sum(square_lanes);
}

/* x (n), n >= 1. Writes the mean as *mean_hi + *mean_lo, and the biased variance to *var. If not centred, the
 * mean is 0, and *var is the mean of squares. */
LNRNN_INLINE void T(moments_about)(size_t n, const elem *x, real *mean_hi, real *mean_lo, real *var,
                                   const int centred)
{
    real pivot = centred ? T(pivot_of)(n, x) : 0, mean_d, v;
    for (int pass = 0;; pass++) {
        real sum, squares;
        if (T(in_one_block)(n)) {
            T(sums_about)(n, x, pivot, &sum, &squares, centred);
            mean_d = sum / (real)n;
            v = squares / (real)n - mean_d * mean_d;
        } else {
            double all = 0, all_squares = 0;
            for (size_t i = 0; i < n; i += LNRNN_BLOCK(4)) {
                const size_t k = n - i < LNRNN_BLOCK(4) ? n - i : LNRNN_BLOCK(4);
                T(sums_about)(k, x + i, pivot, &sum, &squares, centred);
                all += (double)sum, all_squares += (double)squares;
            }
            mean_d = (real)(all / (double)n);
            v = (real)(all_squares / (double)n) - mean_d * mean_d;
        }
        if (!centred || mean_d * mean_d <= v || pass == 1)
            break;
        pivot += mean_d;
    }
    *mean_hi = pivot + mean_d;
    *mean_lo = (pivot - *mean_hi) + mean_d;
    /* GCOVR_EXCL_BR_LINE: rounding alone makes it negative */
    *var = v < 0 ? 0 : v; /* v > 0 ? v : 0 would lose a NaN */
}

typedef struct {
    real mean_hi[4], mean_lo[4], var[4];
} T(moments_of_4);

/* x (4, n), row stride xs, in_one_block(n). Writes the moments of four rows, as moments_about does, with
 * overlapping divisions. */
LNRNN_INLINE void T(four_moments)(size_t n, const elem *x, ptrdiff_t xs, T(moments_of_4) *m,
                                  const int centred)
{
    real pivot[4], sum[4], squares[4];
    int second_pass = 0;
    for (int j = 0; j < 4; j++) {
        pivot[j] = centred ? T(pivot_of)(n, x + j * xs) : 0;
        T(sums_about)(n, x + j * xs, pivot[j], sum + j, squares + j, centred);
    }
    for (int j = 0; j < 4; j++) {
        const real mean_d = sum[j] / (real)n, v = squares[j] / (real)n - mean_d * mean_d;
        m->mean_hi[j] = pivot[j] + mean_d;
        m->mean_lo[j] = (pivot[j] - m->mean_hi[j]) + mean_d;
        m->var[j] = v < 0 ? 0 : v; /* GCOVR_EXCL_BR_LINE: rounding alone makes it negative */
        second_pass |= !(mean_d * mean_d <= v);
    }
    if (centred && second_pass)
        for (int j = 0; j < 4; j++)
            T(moments_about)(n, x + j * xs, m->mean_hi + j, m->mean_lo + j, m->var + j, centred);
}

/* x (rows, n), row stride xs. Writes the moments of 1 or 4 rows, as moments_about does. Not inlined, because
 * most loops of the norms call it. */
LNRNN_OUTLINE void T(moments)(const int rows, size_t n, const elem *x, ptrdiff_t xs, T(moments_of_4) *m,
                              int centred)
{
    if (rows == 4 && T(in_one_block)(n)) {
        if (centred)
            T(four_moments)(n, x, xs, m, 1);
        else
            T(four_moments)(n, x, xs, m, 0);
        return;
    }
    for (int j = 0; j < rows; j++)
        if (centred)
            T(moments_about)(n, x + j * xs, m->mean_hi + j, m->mean_lo + j, m->var + j, 1);
        else
            T(moments_about)(n, x + j * xs, m->mean_hi + j, m->mean_lo + j, m->var + j, 0);
}

/* Returns (x - mean) * rstd, where rest = -mean_lo * rstd. */
LNRNN_INLINE vreal T(normalised)(vreal x, vreal mean_hi, vreal rstd, vreal rest)
{
    return v_fma(x - mean_hi, rstd, rest);
}

/* --- squares out of the range of real ------------------------------------------------------------------- */

/* Returns 1 if squares of a row with this rstd = 1 / sqrt(var + eps) left the range of real. If they
 * overflow, rstd is 0 or NaN. If rstd is above 2^61 (in double 2^509), var + eps is so small that some
 * squares may be subnormal, with fewer digits. */
LNRNN_INLINE int T(out_of_range)(real rstd)
{
    return !(rstd > 0 && rstd <= (real)(sizeof(real) == 4 ? 0x1p61 : 0x1p509));
}

/* Returns the least var + eps at which no square may be subnormal (out_of_range). */
LNRNN_INLINE double T(least_spread)(void) { return sizeof(real) == 4 ? 0x1p-122 : 0x1p-1018; }

/* Returns the power of two by which a row is multiplied before it is normalised; 1 if its squares are in
 * range. For a row with a NaN or an infinity any scale is right. A row whose variance is tiny compared with
 * its mean is constant except for rounding. Its scale is 1, because a larger scale might make the row
 * overflow. In float, 2^100 makes the squares of differences below 2^-61 normal numbers, and 2^-72 makes the
 * squares of the largest values finite. */
LNRNN_INLINE real T(row_scale)(real rstd, real mean)
{
    const real largest_mean = (real)(sizeof(real) == 4 ? 0x1p-30 : 0x1p-400);
    if (!T(out_of_range)(rstd))
        return 1;
    if (rstd > 0)
        return -largest_mean < mean && mean < largest_mean ? (real)(sizeof(real) == 4 ? 0x1p100 : 0x1p700)
                                                           : 1;
    return (real)(sizeof(real) == 4 ? 0x1p-72 : 0x1p-540);
}

#ifdef LNRNN_PART_NORM /* units with kernels of cells need only the functions above */
#include "lnrnn/kernels/layer_norm.h"
#include "lnrnn/kernels/batch_norm.h"
#endif

/* Other headers must not see these macros, and the next type defines them again. */
#undef LNRNN_TYPE
#undef LNRNN_NARROW
#undef LNRNN_DOUBLE
#undef elem
#undef LNRNN_ELEM
#undef T
#undef real
#undef real_sqrt
#undef vreal
#undef LANES
#undef LNRNN_V
#undef v_zero
#undef v_set1
#undef v_load
#undef v_load_n
#undef v_store
#undef v_store_n
#undef v_keep_n
#undef v_fma
#undef v_sum
#undef LNRNN_FOR_ROW
#undef LNRNN_STREAM_ROW
#undef LNRNN_BLOCK
