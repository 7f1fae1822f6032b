/* Rows times packed weights of float32 or bfloat16. */
#ifndef LNRNN_MATMUL_FLOAT_H
#define LNRNN_MATMUL_FLOAT_H

#include "lnrnn/kernels/matmul_tile.h"

/* How the rows are given: pointers to (k) floats, or (k, rows), row stride job->columns; or pointers, and the weights
 * are not packed: float32 (k, n), row stride job->lines. */
enum { MM_ROWS, MM_COLUMNS, MM_LINES };

/* The kind of a tile: how its rows are given, and MM_WIDENED with weights of bfloat16. */
enum { MM_LAYOUT = 3, MM_WIDENED = 4 };

/* Input j of row i in all lanes. */
LNRNN_INLINE v32 float_input(int kind, const mm_job *job, const void *a, int i, size_t j)
{
    return v32_set1((kind & MM_LAYOUT) == MM_COLUMNS ? ((const float *)a)[(ptrdiff_t)j * job->columns + i]
                                                     : ((const float *const *)a)[i][j]);
}

/* The weights of an input, or with MM_WIDENED of an even one and of the odd one that follows it. */
typedef struct {
    v32 even, odd;
} float_weights;

LNRNN_INLINE float_weights float_load(int kind, const mm_job *job, size_t o, int wide, int tail, int v,
                                      size_t j, const uint32_t **p)
{
    float_weights w = {.odd = v32_zero()};
    *p = (kind & MM_LAYOUT) == MM_LINES ? job->w + j * job->lines + o + (size_t)v * V32_LANES
                                        : mm_at(job, o, wide, tail, v, j);
    w.even = kind & MM_WIDENED ? v32_bf16_pair(*p, &w.odd) : v32_load((const float *)*p);
    return w;
}

LNRNN_INLINE int float_turns(int kind) { return kind & MM_WIDENED ? 2 : 1; }

LNRNN_INLINE v32 float_step(int kind, const mm_job *job, int turn, v32 sum, const void *a, int i, size_t j,
                            float_weights w)
{
    const size_t input = kind & MM_WIDENED ? 2 * j + (size_t)turn : j;
    return v32_fma(float_input(kind, job, a, i, input), turn ? w.odd : w.even, sum);
}

LNRNN_INLINE void float_ahead(int kind, int rows, const void *a, size_t j)
{
    LNRNN_FOR_EACH (i, rows) {
        const float *const next = ((const float *const *)a)[rows + i];
        v32_prefetch(next + (kind & MM_WIDENED ? 2 * j : j));
        if (kind & MM_WIDENED)
            v32_prefetch(next + 2 * j + MM_LINE);
    }
}

#define float_prefetch v32_prefetch_l2

#define LNRNN_LOOP float
#define accumulator v32
#define SUMS 1
#define activations const void *
#include "lnrnn/kernels/matmul_loop.h"

/* a: the rows -> c (rows, the tile's outputs), row stride cs, from output o on. layout, bf16, the counts and
 * prefetch are constants where this is called: the loops unroll and acc stays in registers.
 * MM_PREFETCH_ROWS: as many rows as the tile has, those that follow it in a. */
LNRNN_INLINE void float_tile(int layout, int bf16, int rows, int wide, int tails, int tail, int prefetch,
                             const mm_job *job, const void *a, size_t o, float *c, ptrdiff_t cs)
{
    const int vecs = wide * NR_VECS + tails * tail, kind = layout | (bf16 ? MM_WIDENED : 0);
    const size_t whole = bf16 ? job->k / 2 : job->end;
    v32 acc[MR][1][MM_MOST_VECS];
    LNRNN_FOR_EACH (i, rows)
        LNRNN_FOR_EACH (v, vecs)
            acc[i][0][v] = job->add == LNRNN_ADD_ON ? v32_load(c + i * cs + v * V32_LANES) : v32_zero();
    float_sums(kind, rows, wide, tails, tail, prefetch, job, bf16 ? 0 : job->first, whole, a, o, acc);
    LNRNN_ANEW(cs);
    if (bf16 && job->k % 2) /* the last input, alone in its word */
        LNRNN_FOR_EACH (v, vecs) {
            v32 odd;
            const v32 b = v32_bf16_pair(mm_at(job, o, wide, tail, v, whole), &odd);
            LNRNN_FOR_EACH (i, rows)
                acc[i][0][v] = v32_fma(float_input(kind, job, a, i, job->k - 1), b, acc[i][0][v]);
        }
    if (layout == MM_COLUMNS && job->add == LNRNN_ADD_AFTER)
        LNRNN_FOR_EACH (i, rows)
            LNRNN_FOR_EACH (v, vecs)
                acc[i][0][v] = v32_add(acc[i][0][v], v32_load(c + i * cs + v * V32_LANES));
    LNRNN_FOR_EACH (i, rows)
        LNRNN_FOR_EACH (v, vecs)
            v32_store(c + i * cs + v * V32_LANES, acc[i][0][v]);
}

LNRNN_INLINE void f32_tile(int rows, int wide, int tails, int tail, int prefetch, const mm_job *job,
                           const float *const *a, size_t o, float *c, ptrdiff_t cs)
{
    float_tile(MM_ROWS, 0, rows, wide, tails, tail, prefetch, job, a, o, c, cs);
}

LNRNN_INLINE void f32_columns_tile(int rows, int wide, int tails, int tail, int prefetch, const mm_job *job,
                                   const float *a, size_t o, float *c, ptrdiff_t cs)
{
    float_tile(MM_COLUMNS, 0, rows, wide, tails, tail, prefetch, job, a, o, c, cs);
}

LNRNN_INLINE void f32_lines_tile(int rows, int wide, int tails, int tail, int prefetch, const mm_job *job,
                                 const float *const *a, size_t o, float *c, ptrdiff_t cs)
{
    float_tile(MM_LINES, 0, rows, wide, tails, tail, prefetch, job, a, o, c, cs);
}

LNRNN_INLINE void bf16_tile(int rows, int wide, int tails, int tail, int prefetch, const mm_job *job,
                            const float *const *a, size_t o, float *c, ptrdiff_t cs)
{
    float_tile(MM_ROWS, 1, rows, wide, tails, tail, prefetch, job, a, o, c, cs);
}

#define LNRNN_WEIGHTS f32
#define activations const float *
#define TILE_ROWS MR
#define FEW_ROWS (MR / 2)
#define MAY_PREFETCH_ROWS 1
#define MAY_PART_INPUTS 1
#include "lnrnn/kernels/matmul_walk.h"

#define LNRNN_WEIGHTS f32_lines
#define activations const float *
#define TILE_ROWS MR
#define MAY_PREFETCH_ROWS 1
#include "lnrnn/kernels/matmul_walk.h"

#define LNRNN_WEIGHTS bf16
#define activations const float *
#define TILE_ROWS MR
#define MAY_PREFETCH_ROWS 1
#include "lnrnn/kernels/matmul_walk.h"

#define LNRNN_WEIGHTS f32_columns
#define activations float
#define TILE_ROWS MR
#include "lnrnn/kernels/matmul_walk.h"

/* a: rows pointers to (k) floats -> c (rows, mm_width(n)), row stride cs: c[i][o] (+)= sum_j a[i][j] w[o][j]
 * for the outputs o of the panels; outputs past n become what they were (add) or 0. */
static void matmul_float(const lnrnn_matmul *m, size_t rows, const float *const *a, float *c, ptrdiff_t cs)
{
    const mm_job job = mm_job_of(m);
    if (m->lines)
        f32_lines_walk(&job, rows, a, m->n, m->p0, m->p1, c, cs);
    else if (m->dtype == LNRNN_WEIGHT_F32)
        f32_walk(&job, rows, a, m->n, m->p0, m->p1, c, cs);
    else
        bf16_walk(&job, rows, a, m->n, m->p0, m->p1, c, cs);
}

/* No words. */
static size_t matmul_float_scratch(int dtype, size_t rows, size_t k)
{
    (void)dtype, (void)rows, (void)k;
    return 0;
}

/* As matmul_float, of float32 weights, with the rows as columns: a (k, rows), row stride as. It alone knows
 * LNRNN_ADD_AFTER. */
static void matmul_columns(const lnrnn_matmul *m, size_t rows, const float *a, ptrdiff_t as, float *c,
                           ptrdiff_t cs)
{
    mm_job job = mm_job_of(m);
    job.columns = as;
    f32_columns_walk(&job, rows, a, m->n, m->p0, m->p1, c, cs);
}

#endif
