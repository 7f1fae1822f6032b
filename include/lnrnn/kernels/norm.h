/* Sums over a row, and its mean and variance: the functions that all norms share. One text for four types in
 * memory: all.h includes it once for each, and names.h explains the suffix _T, elem, real, vreal and LANES.
 *
 * The moments are taken in one pass, from the differences d to a value near the mean, the pivot:
 *     mean = pivot + mean(d),  var = mean(d^2) - mean(d)^2
 * (the shifted-data algorithm). That is as accurate as two passes while the pivot is within a standard
 * deviation of the mean. The code checks this; otherwise a second pass takes the mean of the first as its
 * pivot. A constant row has differences of exactly 0.
 *
 * mean = mean_hi + mean_lo: the mean rounded to real, and the error of that rounding. Rows with a mean far
 * from 0 need both: x - mean_hi is exact there, and without mean_lo the mean would be wrong by up to half an
 * ULP.
 *
 * A loop over a row is whole vectors and then a tail of fewer than LANES values. Where a wide row is written,
 * or read several times, some values come first, up to an aligned address: no result depends on how many they
 * are.
 */
#include "lnrnn/kernels/names.h"

/* --- loads and stores of k values, or of a vector if whole, which is a constant ------------------------- */

LNRNN_INLINE vreal get_T(const elem *p, size_t k, const int whole)
{
    return whole ? v_load_elem(p) : v_load_n_elem(p, k);
}

LNRNN_INLINE vreal get_real_T(const real *p, size_t k, const int whole)
{
    return whole ? v_load(p) : v_load_n(p, k);
}

LNRNN_INLINE void put_T(elem *p, vreal v, size_t k, const int whole)
{
    if (whole)
        v_store_elem(p, v);
    else
        v_store_n_elem(p, v, k);
}

LNRNN_INLINE void put_real_T(real *p, vreal v, size_t k, const int whole)
{
    if (whole)
        v_store(p, v);
    else
        v_store_n(p, v, k);
}

/* Values from y (n) up to the next address that is aligned to a vector in memory, where non-temporal stores
 * may begin. */
LNRNN_INLINE size_t to_aligned_T(const elem *y, size_t n)
{
    const size_t head = -(uintptr_t)y % (LANES * sizeof(elem)) / sizeof(elem);
    return head < n ? head : n;
}

/* The same for a row of at least 2 KiB, else 0: alignment does not pay in a shorter one. NumPy's large arrays
 * begin 16 bytes into a cache line: without this every vector of 64 bytes would cross a line, and every
 * second one of 32 bytes. */
LNRNN_INLINE size_t to_whole_lines_T(const elem *y, size_t n)
{
    return n * sizeof(elem) < LNRNN_WIDE_ROW ? 0 : to_aligned_T(y, n);
}

/* --- sums ----------------------------------------------------------------------------------------------- */

/* Sums of d, d^2, g and g d over a row or a channel; d: differences to a pivot, g: gradients. Each sum is
 * kept in up to four accumulators: additions to different ones do not wait for each other. */
typedef struct {
    vreal d[4], dd[4], g[4], gd[4];
} accumulators_T;

LNRNN_INLINE accumulators_T accumulators_zero_T(void)
{
    const vreal z = v_zero();
    return (accumulators_T){{z, z, z, z}, {z, z, z, z}, {z, z, z, z}, {z, z, z, z}};
}

/* Adds a vector of d, and if has_g one of g, to the accumulators numbered a. */
LNRNN_INLINE void accumulate_T(accumulators_T *s, const int a, vreal d, vreal g, const int has_g)
{
    s->d[a] = v_add(s->d[a], d);
    s->dd[a] = v_fma(d, d, s->dd[a]);
    if (has_g) {
        s->g[a] = v_add(s->g[a], g);
        s->gd[a] = v_fma(g, d, s->gd[a]);
    }
}

/* Accumulators (2 or 4) -> their total; lanes_of_4_T: that of each lane. */
LNRNN_INLINE vreal lanes_of_4_T(const vreal *a) { return v_add(v_add(a[0], a[1]), v_add(a[2], a[3])); }
LNRNN_INLINE real total_of_2_T(const vreal *a) { return v_sum(v_add(a[0], a[1])); }
LNRNN_INLINE real total_of_4_T(const vreal *a) { return v_sum(lanes_of_4_T(a)); }

/* Adds partial (n) to total (n) and clears it: sums of few values are kept in real, those of many in
 * double. */
LNRNN_INLINE void flush_T(size_t n, real *partial, double *total)
{
    for (size_t i = 0; i < n; i++) {
        total[i] += partial[i];
        partial[i] = 0;
    }
}

/* --- the moments of a row ------------------------------------------------------------------------------- */

/* x (n) -> lanes whose sum is its pivot: the first value of a row shorter than a vector, else the mean of the
 * first vector. Values are scaled before they are added, so that the mean of large values does not overflow.
 */
LNRNN_INLINE vreal pivot_lanes_T(size_t n, const elem *x)
{
    return n < LANES ? v_load_n_elem(x, 1) : v_mul(v_load_elem(x), v_set1((real)1 / LANES));
}

LNRNN_INLINE real pivot_of_T(size_t n, const elem *x) { return v_sum(pivot_lanes_T(n, x)); }

/* Adds k values of x, as differences to the pivot if centred. */
LNRNN_INLINE void moments_part_T(size_t k, const int whole, const int a, const elem *x, vreal pivot,
                                 const int centred, accumulators_T *s)
{
    const vreal v = get_T(x, k, whole), d = centred ? v_sub(v, pivot) : v;
    accumulate_T(s, a, whole ? d : v_keep_n(d, k), v_zero(), 0);
}

/* Whether the sums of n values are kept in real. */
LNRNN_INLINE int in_one_block_T(size_t n) { return n <= LNRNN_BLOCK(4); }

/* x (n), in_one_block_T -> lanes whose sums are those of d = x - pivot and of d^2; if not centred only that
 * of x^2. */
LNRNN_INLINE void lanes_about_T(size_t n, const elem *x, real pivot, vreal *sum, vreal *squares,
                                const int centred)
{
    const size_t body = n - n % LANES, body4 = n - n % (4 * LANES);
    const vreal m = v_set1(pivot);
    accumulators_T s = accumulators_zero_T();
    size_t i = 0;
    for (; i < body4; i += 4 * LANES) {
        moments_part_T(LANES, 1, 0, x + i, m, centred, &s);
        moments_part_T(LANES, 1, 1, x + i + LANES, m, centred, &s);
        moments_part_T(LANES, 1, 2, x + i + 2 * LANES, m, centred, &s);
        moments_part_T(LANES, 1, 3, x + i + 3 * LANES, m, centred, &s);
    }
    for (; i < body; i += LANES)
        moments_part_T(LANES, 1, 0, x + i, m, centred, &s);
    if (i < n)
        moments_part_T(n - i, 0, 1, x + i, m, centred, &s);
    *sum = centred ? lanes_of_4_T(s.d) : v_zero();
    *squares = lanes_of_4_T(s.dd);
}

/* The sums themselves. */
LNRNN_INLINE void sums_about_T(size_t n, const elem *x, real pivot, real *sum, real *squares,
                               const int centred)
{
    vreal sum_lanes, square_lanes;
    lanes_about_T(n, x, pivot, &sum_lanes, &square_lanes, centred);
    *sum = centred ? v_sum(sum_lanes) : 0;
    *squares = v_sum(square_lanes);
}

/* x (n), n >= 1 -> the mean, *mean_hi + *mean_lo, and the biased variance. If not centred: 0, and the mean of
 * squares. */
LNRNN_INLINE void moments_about_T(size_t n, const elem *x, real *mean_hi, real *mean_lo, real *var,
                                  const int centred)
{
    real pivot = centred ? pivot_of_T(n, x) : 0, mean_d, v;
    for (int pass = 0;; pass++) {
        real sum, squares;
        if (in_one_block_T(n)) {
            sums_about_T(n, x, pivot, &sum, &squares, centred);
            mean_d = sum / (real)n;
            v = squares / (real)n - mean_d * mean_d;
        } else {
            double all = 0, all_squares = 0;
            for (size_t i = 0; i < n; i += LNRNN_BLOCK(4)) {
                const size_t k = n - i < LNRNN_BLOCK(4) ? n - i : LNRNN_BLOCK(4);
                sums_about_T(k, x + i, pivot, &sum, &squares, centred);
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
    *var = v < 0 ? 0 : v; /* not v > 0 ? v : 0, which would lose a NaN */
}

/* The moments of one row or four. */
typedef struct {
    real mean_hi[4], mean_lo[4], var[4];
} moments_of_4_T;

/* x (4, n), row stride xs, in_one_block_T -> as moments_about_T for each row: the divisions of the four
 * overlap. */
LNRNN_INLINE void four_moments_T(size_t n, const elem *x, ptrdiff_t xs, moments_of_4_T *m, const int centred)
{
    real pivot[4], sum[4], squares[4];
    int second_pass = 0;
    for (int j = 0; j < 4; j++) {
        pivot[j] = centred ? pivot_of_T(n, x + j * xs) : 0;
        sums_about_T(n, x + j * xs, pivot[j], sum + j, squares + j, centred);
    }
    for (int j = 0; j < 4; j++) {
        const real mean_d = sum[j] / (real)n, v = squares[j] / (real)n - mean_d * mean_d;
        m->mean_hi[j] = pivot[j] + mean_d;
        m->mean_lo[j] = (pivot[j] - m->mean_hi[j]) + mean_d;
        m->var[j] = v < 0 ? 0 : v;
        second_pass |= !(mean_d * mean_d <= v);
    }
    if (centred && second_pass)
        for (int j = 0; j < 4; j++)
            moments_about_T(n, x + j * xs, m->mean_hi + j, m->mean_lo + j, m->var + j, centred);
}

/* x (rows, n), row stride xs, rows 4 or 1 -> as moments_about_T. Not inlined: most of the norms' loops begin
 * with it. */
LNRNN_OUTLINE void moments_T(const int rows, size_t n, const elem *x, ptrdiff_t xs, moments_of_4_T *m,
                             int centred)
{
    if (rows == 4 && in_one_block_T(n)) {
        if (centred)
            four_moments_T(n, x, xs, m, 1);
        else
            four_moments_T(n, x, xs, m, 0);
        return;
    }
    for (int j = 0; j < rows; j++)
        if (centred)
            moments_about_T(n, x + j * xs, m->mean_hi + j, m->mean_lo + j, m->var + j, 1);
        else
            moments_about_T(n, x + j * xs, m->mean_hi + j, m->mean_lo + j, m->var + j, 0);
}

/* x (LANES) -> (x - mean) * rstd; rest = -mean_lo * rstd. */
LNRNN_INLINE vreal normalised_T(vreal x, vreal mean_hi, vreal rstd, vreal rest)
{
    return v_fma(v_sub(x, mean_hi), rstd, rest);
}

/* --- squares out of the range of real ------------------------------------------------------------------- */

/* Did the squares of a row with this 1 / sqrt(var + eps) leave the range of real? Where they overflow it is 0
 * or NaN. Above the bound var + eps is so small that squares below the smallest normal number, which are
 * rounded to multiples of the smallest subnormal one, may have cost it digits. */
LNRNN_INLINE int out_of_range_T(real rstd)
{
    return !(rstd > 0 && rstd <= (real)(sizeof(real) == 4 ? 0x1p61 : 0x1p509));
}

/* The var + eps that belongs to that bound. */
LNRNN_INLINE double least_spread_T(void) { return sizeof(real) == 4 ? 0x1p-122 : 0x1p-1018; }

/* -> the power of two by which a row is multiplied before it is normalised; 1 if its squares are in range. A
 * row that holds a NaN or an infinity has the same result with any scale. A row whose variance is small
 * compared with its mean is constant up to rounding, and eps is small: it needs no scale, and might overflow
 * with one. Float: 2^100 takes a spread below 2^-61 to where squares are normal numbers, and 2^-72 the
 * largest values to where the squares of a row of any length are finite; double likewise. */
LNRNN_INLINE real row_scale_T(real rstd, real mean)
{
    const real largest_mean = (real)(sizeof(real) == 4 ? 0x1p-30 : 0x1p-400);
    if (!out_of_range_T(rstd))
        return 1;
    if (rstd > 0)
        return -largest_mean < mean && mean < largest_mean ? (real)(sizeof(real) == 4 ? 0x1p100 : 0x1p700)
                                                           : 1;
    return (real)(sizeof(real) == 4 ? 0x1p-72 : 0x1p-540);
}

#ifdef LNRNN_PART_NORM /* the cells need only the functions above */
#include "lnrnn/kernels/layer_norm.h"
#include "lnrnn/kernels/batch_norm.h"
#endif

#include "lnrnn/kernels/names.h"
