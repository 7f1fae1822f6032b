/* How the cells read the products of a step, with their norms and biases.
 *
 * A row has G*H values, gate after gate. The row of W x, of W h, or of their sum is read as
 *     LNRNN_PLAIN     v + bias
 *     LNRNN_AFFINE    (v - mean) * gain + bias       batch norm; mean may be NULL for 0
 *     LNRNN_NORMED    (v - m) / sqrt(var + eps) * gain + bias, m and var over the `spans` of the row
 * as lnrnn_gate_norm in lnrnn.h says. rnn_cell.h, lstm_cell.h and gru_cell.h make the states of what is read
 * here; lnrnn/reference/cells.py has the equations.
 *
 * Inline functions are compiled anew for every constant they are called with. Such constants are `how`, one
 * of the three above; `separate`: x is added to what is read; `whole`: i .. i + k - 1 are a whole vector.
 */
#ifndef LNRNN_GATE_NORM_H
#define LNRNN_GATE_NORM_H

#include "lnrnn/kernels/names.h"
#include "lnrnn/kernels/table.h"
#include "lnrnn/simd/simd.h"

/* Calls f(i, k, whole, ...) for the units i .. i + k - 1, a vector at a time, until all of 0 .. n - 1 are
 * done: names.h. */
#define LNRNN_FOR_UNITS(n, f, ...) LNRNN_FOR_VECTORS(V32_LANES, (size_t)0, n, f, __VA_ARGS__)

/* --- statistics ------------------------------------------------------------------------------------- */

/* row_moments in double precision, for squares that leave the range of float. */
LNRNN_SELDOM void row_moments_in_double(size_t n, const float *a, float eps, float *mean_hi, float *mean_lo,
                                        float *rstd)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)a[i];
    const double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += ((double)a[i] - mean) * ((double)a[i] - mean);
    *mean_hi = (float)mean;
    *mean_lo = (float)(mean - (double)*mean_hi);
    *rstd = (float)(1 / sqrt(squares / (double)n + (double)eps));
}

/* a (n) -> its mean, mean_hi + mean_lo, and rstd = 1 / sqrt(var + eps). */
LNRNN_OUTLINE void row_moments(size_t n, const float *a, float eps, float *mean_hi, float *mean_lo,
                               float *rstd)
{
    float var;
    moments_about_f32(n, a, mean_hi, mean_lo, &var, 1);
    *rstd = 1 / sqrtf(var + eps);
    if (__builtin_expect(out_of_range_f32(*rstd), 0))
        row_moments_in_double(n, a, eps, mean_hi, mean_lo, rstd);
}

/* Mean, 1 / sigma, and -mean_lo / sigma of a span of a row, in all lanes: what normalised_f32 (norm.h, whose
 * names get the suffix _f32 by names.h) takes beside a value. */
typedef struct {
    v32 mean, rstd, rest;
} span_moments;

/* a (n) -> its moments. */
LNRNN_INLINE span_moments moments_of_span(size_t n, const float *a, float eps)
{
    float mean_hi, mean_lo, rstd;
    row_moments(n, a, eps, &mean_hi, &mean_lo, &rstd);
    return (span_moments){v32_set1(mean_hi), v32_set1(rstd), v32_set1(-mean_lo * rstd)};
}

/* a (num_gates * H) -> span (num_gates): for each gate the moments of the span it belongs to. */
LNRNN_INLINE void moments_of_gates(const int num_gates, const lnrnn_gate_norm *norm, const float *a,
                                   span_moments *span)
{
    for (int from = 0; from < num_gates;) {
        const int to = norm->spans == LNRNN_SPANS_ALL            ? num_gates
                       : norm->spans == LNRNN_SPANS_EACH || from ? from + 1
                                                                 : num_gates - 1;
        const span_moments of_span =
            moments_of_span((size_t)(to - from) * norm->H, a + (size_t)from * norm->H, norm->eps);
        for (; from < to; from++)
            span[from] = of_span;
    }
}

/* --- values ----------------------------------------------------------------------------------------- */

/* One row of a step, about to be read. */
typedef struct {
    const lnrnn_gate_norm *norm;
    const float *x;           /* (G*H): what is added to the values read, if the products are separate */
    const float *a;           /* (G*H): what is read */
    const span_moments *span; /* (G), if LNRNN_NORMED */
} gate_row;

/* Units i .. i + k - 1 of a gate, read as the norm says. */
LNRNN_INLINE v32 gate_read(const int how, const gate_row *row, const int gate, size_t i, size_t k,
                           const int whole)
{
    const lnrnn_gate_norm *norm = row->norm;
    const size_t at = (size_t)gate * norm->H + i;
    v32 v = get_f32(row->a + at, k, whole);
    if (how == LNRNN_PLAIN)
        return v32_add(v, get_f32(norm->bias + at, k, whole));
    if (how == LNRNN_NORMED)
        v = normalised_f32(v, row->span[gate].mean, row->span[gate].rstd, row->span[gate].rest);
    else if (norm->mean)
        v = v32_sub(v, get_f32(norm->mean + at, k, whole));
    return v32_fma(v, get_f32(norm->gain + at, k, whole), get_f32(norm->bias + at, k, whole));
}

/* The same, and the input side added: the argument of the gate's activation. */
LNRNN_INLINE v32 gate_sum(const int how, const int separate, const gate_row *row, const int gate, size_t i,
                          size_t k, const int whole)
{
    const v32 z = gate_read(how, row, gate, i, k, whole);
    return separate ? v32_add(get_f32(row->x + (size_t)gate * row->norm->H + i, k, whole), z) : z;
}

/* --- rows, normalised and written ------------------------------------------------------------------- */

LNRNN_INLINE void normalise_units(size_t i, size_t k, const int whole, const int how, const gate_row *row,
                                  const int gate, float *y)
{
    put_f32(y + (size_t)gate * row->norm->H + i, gate_read(how, row, gate, i, k, whole), k, whole);
}

LNRNN_INLINE void normalise_row(const int how, int num_gates, const lnrnn_gate_norm *norm, const float *x,
                                float *y)
{
    span_moments span[4];
    const gate_row row = {.norm = norm, .a = x, .span = span};
    if (how == LNRNN_NORMED)
        moments_of_gates(num_gates, norm, x, span);
    for (int gate = 0; gate < num_gates; gate++)
        LNRNN_FOR_UNITS(norm->H, normalise_units, how, &row, gate, y);
}

/* x (rows, num_gates * H), row stride xs -> y, the same shape, row stride ys: x as the norm reads it. y may
 * be x. num_gates <= 4. */
static void normalise_rows(int num_gates, const lnrnn_gate_norm *norm, size_t rows, const float *x,
                           ptrdiff_t xs, float *y, ptrdiff_t ys)
{
    for (size_t r = 0; r < rows; r++, x += xs, y += ys)
        switch (norm->how) {
        case LNRNN_PLAIN: normalise_row(LNRNN_PLAIN, num_gates, norm, x, y); break;
        case LNRNN_AFFINE: normalise_row(LNRNN_AFFINE, num_gates, norm, x, y); break;
        default: normalise_row(LNRNN_NORMED, num_gates, norm, x, y); break;
        }
}

#endif
