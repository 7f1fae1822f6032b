/* The norms and biases that cells apply to the products of a step.
 *
 * A row is the product W x or W h, or the sum of both, for one sequence at one step. It has G*H values, gate
 * after gate. A norm replaces each value v by
 *     LNRNN_PLAIN     v + bias
 *     LNRNN_AFFINE    (v - mean) * gain + bias       batch norm; mean may be NULL for 0
 *     LNRNN_NORMED    (v - m) / sqrt(var + eps) * gain + bias, m and var over the `spans` of the row; an RMS
 *                     norm has m = 0
 *     LNRNN_HARD      v + bias, and the gates of an LSTM or GRU have the hard sigmoid
 * lnrnn_gate_norm of table.h describes a norm. lstm_cell.h and the headers of the other cells compute the
 * states from the results.
 *
 * The compiler makes a copy of an inline function for every constant argument. `how` is such a constant: one
 * of the forms above. `separate`: W x has a norm of its own, and is added afterwards. `whole`: the units i ..
 * i + k - 1 fill a whole vector.
 */
#ifndef LNRNN_GATE_NORM_H
#define LNRNN_GATE_NORM_H

#include "lnrnn/kernels/activations.h"
#include "lnrnn/kernels/vector_loop.h"
#include "lnrnn/kernels/span_moments.h"
#include "lnrnn/kernels/table.h"
#include "lnrnn/simd/simd.h"

enum { MOST_GATES = 4 }; /* the most gates of a cell */

/* Calls f(i, k, whole, ...) for the units i .. i + k - 1, a vector at a time, until units 0 .. n - 1 are done
 * (vector_loop.h). */
#define LNRNN_FOR_UNITS(n, f, ...) LNRNN_FOR_VECTORS(V32_LANES, (size_t)0, n, f, __VA_ARGS__)

/* Calls f(i, k, vecs, ...) until units 0 .. n - 1 are done. vecs is a constant: 2 for two whole vectors,
 * whose activations are computed together; 1 for a single whole vector; 0 for a partial vector. k is the
 * number of units per vector. */
#define LNRNN_FOR_PAIRS(n, f, ...)                            \
    do {                                                      \
        const size_t n_ = (n);                                \
        size_t i_ = 0;                                        \
        for (; i_ + 2 * V32_LANES <= n_; i_ += 2 * V32_LANES) \
            f(i_, (size_t)V32_LANES, 2, __VA_ARGS__);         \
        for (; i_ + V32_LANES <= n_; i_ += V32_LANES)         \
            f(i_, (size_t)V32_LANES, 1, __VA_ARGS__);         \
        if (i_ < n_)                                          \
            f(i_, n_ - i_, 0, __VA_ARGS__);                   \
    } while (0)

LNRNN_INLINE size_t unit_of(size_t first, int v) { return first + (size_t)v * V32_LANES; }

/* --- statistics ------------------------------------------------------------------------------------- */

/* The moments (mean, 1 / sigma) of some rows. For each gate, a pointer to the moments of its span: the gates
 * that share statistics. */
typedef struct {
    span_moments spans[MOST_GATES];
    const span_moments *of_gate[MOST_GATES];
} rows_moments;

/* a (rows, num_gates * H), row stride `as`; x, of the same shape, row stride xs, or NULL. Writes to *m, for
 * each gate, the moments of its span (span_moments.h). Index r of the moments is row r of a, and index rows +
 * r is row r of x. rows <= LNRNN_ROWS_TOGETHER. norm: the norm of a; the norm of x differs only in gain and
 * bias. */
LNRNN_INLINE void moments_of_rows(const int num_gates, const lnrnn_gate_norm *norm, size_t rows,
                                  const float *a, ptrdiff_t as, const float *x, ptrdiff_t xs, rows_moments *m)
{
    for (int from = 0, span = 0; from < num_gates; span++) {
        const int to = norm->spans == LNRNN_SPANS_ALL            ? num_gates
                       : norm->spans == LNRNN_SPANS_EACH || from ? from + 1
                                                                 : num_gates - 1;
        const float *starts[LNRNN_SPANS_TOGETHER];
        for (size_t r = 0; r < rows; r++) {
            starts[r] = a + (ptrdiff_t)r * as + (size_t)from * norm->H;
            if (x)
                starts[rows + r] = x + (ptrdiff_t)r * xs + (size_t)from * norm->H;
        }
        moments_of_spans((size_t)(to - from) * norm->H, x ? 2 * rows : rows, starts, norm, &m->spans[span]);
        for (; from < to; from++)
            m->of_gate[from] = &m->spans[span];
    }
}

/* --- values ----------------------------------------------------------------------------------------- */

/* One operand of a gate: a row of W h, of W x or of their sum, and the norm that is applied to it. */
typedef struct {
    const lnrnn_gate_norm *norm;
    const float *a; /* (G*H) */
    /* With LNRNN_NORMED: the moments for each gate, and `at`, the index of this row in the moments. */
    const span_moments *of_gate[MOST_GATES];
    size_t at;
} gate_side;

/* The arrays of one sequence at one step. hidden: W h, or W x + W h; input: W x if it is separate. Other
 * fields point into lnrnn_step_rows. */
typedef struct {
    gate_side hidden, input;
    const float *h_prev;
    float *c, *h, *saved_gates;
} gate_row;

/* Returns rows r .. of a step, at most LNRNN_ROWS_TOGETHER, whose moments are computed together. */
LNRNN_INLINE lnrnn_step_rows rows_together(const lnrnn_step_rows *rows, size_t r)
{
    return lnrnn_rows_from(rows, r, rows->n - r < LNRNN_ROWS_TOGETHER ? rows->n - r : LNRNN_ROWS_TOGETHER);
}

/* rows: at most LNRNN_ROWS_TOGETHER rows of a step, with the moments m. Returns row r. The first `shared`
 * gates always have the moments of the first span: the compiler sees the same pointer, and loads these
 * moments once. */
LNRNN_INLINE gate_row gate_row_of(const int num_gates, const int shared, const int how, const int separate,
                                  const lnrnn_step_config *step, const lnrnn_step_rows *rows, size_t r,
                                  const rows_moments *m)
{
    gate_row row = {
        .hidden = {.norm = step->hidden, .a = rows->a + (ptrdiff_t)r * rows->as, .at = r},
        .h_prev = rows->h_prev[r],
        .c = rows->c[r],
        .h = rows->h[r],
        .saved_gates = rows->saved_gates ? rows->saved_gates + (ptrdiff_t)r * rows->as : NULL,
    };
    if (separate)
        row.input =
            (gate_side){.norm = step->input, .a = rows->x + (ptrdiff_t)r * rows->xs, .at = rows->n + r};
    if (how == LNRNN_NORMED)
        LNRNN_FOR_EACH (gate, num_gates)
            row.hidden.of_gate[gate] = row.input.of_gate[gate] =
                gate < shared ? &m->spans[0] : m->of_gate[gate];
    return row;
}

/* Returns k units of a gate, from unit i on, after the norm of this operand. */
LNRNN_OF_UNIT v32 gate_read(const int how, const gate_side *side, const int gate, size_t i, size_t k,
                            const int whole)
{
    const lnrnn_gate_norm *norm = side->norm;
    const size_t at = (size_t)gate * norm->H + i;
    v32 v = get_f32(side->a + at, k, whole);
    if (how == LNRNN_PLAIN || how == LNRNN_HARD)
        return v + get_f32(norm->bias + at, k, whole);
    if (how == LNRNN_NORMED) {
        const span_moments *m = side->of_gate[gate];
        v = normalised_f32(v, v32_set1(m->mean[side->at]), v32_set1(m->rstd[side->at]),
                           v32_set1(m->rest[side->at]));
    } else if (norm->mean)
        v -= get_f32(norm->mean + at, k, whole);
    return v32_fma(v, get_f32(norm->gain + at, k, whole), get_f32(norm->bias + at, k, whole));
}

/* Returns the argument of the gate's activation: W h after its norm, plus W x after its norm if
 * `separate`. */
LNRNN_OF_UNIT v32 gate_sum(const int how, const int separate, const gate_row *row, const int gate, size_t i,
                           size_t k, const int whole)
{
    const v32 z = gate_read(how, &row->hidden, gate, i, k, whole);
    return separate ? gate_read(how, &row->input, gate, i, k, whole) + z : z;
}

/* v: m vectors of gates. Applies the sigmoid; the hard sigmoid if `how` is LNRNN_HARD. */
LNRNN_INLINE void gate_sigmoids(const int how, const int m, v32 *v)
{
    if (how == LNRNN_HARD)
        v32_hard_sigmoids(m, v);
    else
        v32_sigmoids(m, v);
}

/* Calls rows_of(how, separate, step, rows) with constants `how` and `separate`, so that each combination has
 * code of its own. bare: the value of `separate` for a cell without a norm. */
#define LNRNN_AS_READ(rows_of, bare, step, rows)      \
    do {                                              \
        if ((step)->hidden->how == LNRNN_PLAIN)       \
            rows_of(LNRNN_PLAIN, bare, step, rows);   \
        else if ((step)->hidden->how == LNRNN_AFFINE) \
            rows_of(LNRNN_AFFINE, 1, step, rows);     \
        else if ((step)->hidden->how == LNRNN_HARD)   \
            rows_of(LNRNN_HARD, bare, step, rows);    \
        else if ((rows)->x)                           \
            rows_of(LNRNN_NORMED, 1, step, rows);     \
        else                                          \
            rows_of(LNRNN_NORMED, 0, step, rows);     \
    } while (0)

/* --- gradients -------------------------------------------------------------------------------------- */

/* The arrays of lnrnn_gate_gradients for one sequence. */
typedef struct {
    size_t H;
    const float *saved_gates, *x, *a, *u, *state_prev;
    float *gh, *gc, *gu, *gx, *ga, *sum;
    int carry, hard, act;
} gradient_row;

/* Returns the arrays of sequence r, with act LNRNN_ACT_TANH. hard: a compile-time constant, 1 if the gates
 * have the hard sigmoid. */
LNRNN_INLINE gradient_row gradient_row_of(const lnrnn_gate_gradients *b, size_t r, const int hard)
{
    const ptrdiff_t row = (ptrdiff_t)r;
    return (gradient_row){
        .H = b->H,
        .saved_gates = b->saved_gates + row * b->ks,
        .x = b->x + row * b->ks,
        .a = b->a + row * b->ks,
        .u = b->u + row * b->us,
        .state_prev = b->state_prev[r],
        .gh = b->gh + row * b->hs,
        .gc = b->gc + row * b->hs,
        .gu = b->gu + row * b->hs,
        .gx = b->gx ? b->gx + row * b->as : NULL,
        .ga = b->ga + row * b->as,
        .sum = b->sum + row * b->ss,
        .carry = b->carry,
        .hard = hard,
        .act = LNRNN_ACT_TANH,
    };
}

/* Calls f(i, k, whole, row) for all units, a vector at a time, of each sequence of a backward step. */
#define LNRNN_FOR_GRADIENTS(b, f)                                \
    for (size_t r_ = 0; r_ < (b)->rows; r_++) {                  \
        if ((b)->hard) {                                         \
            const gradient_row row_ = gradient_row_of(b, r_, 1); \
            LNRNN_FOR_UNITS(row_.H, f, &row_);                   \
        } else {                                                 \
            const gradient_row row_ = gradient_row_of(b, r_, 0); \
            LNRNN_FOR_UNITS(row_.H, f, &row_);                   \
        }                                                        \
    }

/* y: the sigmoid or hard sigmoid of z. Returns dy/dz. */
LNRNN_INLINE v32 gate_slope(const gradient_row *row, v32 y)
{
    return row->hard ? hard_sigmoid_slope(y) : sigmoid_slope(y);
}

/* --- rows, normalised and written ------------------------------------------------------------------- */

LNRNN_INLINE void normalise_units(size_t i, size_t k, const int whole, const int how, const gate_side *side,
                                  const int gate, float *y)
{
    put_f32(y + (size_t)gate * side->norm->H + i, gate_read(how, side, gate, i, k, whole), k, whole);
}

LNRNN_INLINE void normalise_row(const int how, int num_gates, const lnrnn_gate_norm *norm, const float *x,
                                float *y)
{
    rows_moments m;
    gate_side side = {.norm = norm, .a = x};
    if (how == LNRNN_NORMED) {
        moments_of_rows(num_gates, norm, 1, x, 0, NULL, 0, &m);
        memcpy(side.of_gate, m.of_gate, sizeof m.of_gate);
    }
    for (int gate = 0; gate < num_gates; gate++)
        LNRNN_FOR_UNITS(norm->H, normalise_units, how, &side, gate, y);
}

/* x (rows, num_gates * H), row stride xs -> y, the same shape, row stride ys: x after the norm. y may be x.
 * num_gates <= MOST_GATES. */
static void normalise_rows(int num_gates, const lnrnn_gate_norm *norm, size_t rows, const float *x,
                           ptrdiff_t xs, float *y, ptrdiff_t ys)
{
    for (size_t r = 0; r < rows; r++, x += xs, y += ys)
        switch (norm->how) {
        case LNRNN_HARD:
        case LNRNN_PLAIN: normalise_row(LNRNN_PLAIN, num_gates, norm, x, y); break;
        case LNRNN_AFFINE: normalise_row(LNRNN_AFFINE, num_gates, norm, x, y); break;
        default: normalise_row(LNRNN_NORMED, num_gates, norm, x, y); break;
        }
}

#endif
