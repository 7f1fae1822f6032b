/* Rows times packed weights of bfloat16, on a unit for dot products of two: the rows are rounded to bfloat16.
 *
 * Every output is one chain of dot2 over the words of its weights, as matmul_tile.h says of multiply-adds. */
#ifndef LNRNN_MATMUL_BF16_H
#define LNRNN_MATMUL_BF16_H

#include "lnrnn/kernels/matmul_tile.h"
#include "lnrnn/kernels/short_rows.h"
#include "lnrnn/simd/units.h"

typedef vector_of_words dot2_weights;
#define dot2_load mm_words_at
#define dot2_turns(kind) 1
#define dot2_step(kind, job, turn, sum, a, i, j, w) v32_dot2(sum, a[i][j], mm_words_of(w))
#define dot2_prefetch v32_prefetch
#define dot2_ahead(kind, rows, a, j) (void)0

#define LNRNN_LOOP dot2
#define accumulator v32
#define SUMS 1
#define activations const uint32_t *const *
#define LINE_DOT v32_dot2
#include "lnrnn/kernels/matmul_loop.h"

/* a: rows pointers to (words) -> c (rows, the tile's outputs), as float_tile. */
LNRNN_INLINE void dot2_tile(int rows, int wide, int tails, int tail, int prefetch, const mm_job *job,
                            const uint32_t *const *a, size_t o, float *c, ptrdiff_t cs)
{
    const int vecs = wide * NR_VECS + tails * tail;
    v32 acc[MR][1][MM_MOST_VECS];
    LNRNN_FOR_EACH (i, rows)
        LNRNN_FOR_EACH (v, vecs)
            acc[i][0][v] = job->add == LNRNN_ADD_ON ? v32_load(c + i * cs + v * V32_LANES) : v32_zero();
    size_t done = 0;
#ifdef LNRNN_BLOCKS
    if (rows >= 4)
        done = dot2_blocks(1, rows, vecs, prefetch, job, a, o, acc);
#endif
    dot2_sums(rows > 1, rows, wide, tails, tail, prefetch, job, done, job->words, a, o, acc);
    LNRNN_ANEW(cs);
    LNRNN_FOR_EACH (i, rows)
        LNRNN_FOR_EACH (v, vecs)
            v32_store(c + i * cs + v * V32_LANES, acc[i][0][v]);
}

#define LNRNN_WEIGHTS dot2
#define activations const uint32_t *
#define TILE_ROWS MR
#if defined(LNRNN_EMULATED)
#define FEW_ROWS 0
#elif defined(LNRNN_BLOCKS)
#define FEW_ROWS 3 /* more are blocks, of one panel */
#else
#define FEW_ROWS (MR / 2)
#endif
#include "lnrnn/kernels/matmul_walk.h"

/* As matmul_float, of bfloat16 weights. m->scratch: short_rows_scratch(dtype, rows, k) words. All rows are rounded first, so that
 * each panel of weights is read once for all of them. */
static void matmul_bf16(const lnrnn_matmul *m, size_t rows, const float *const *a, float *c, ptrdiff_t cs)
{
    const mm_job job = mm_job_of(m);
    for (size_t r = 0; r < rows; r += MM_SHORT_ROWS) {
        const size_t n = rows - r < MM_SHORT_ROWS ? rows - r : MM_SHORT_ROWS;
        const uint32_t *rounded[MM_SHORT_ROWS];
        for (size_t i = 0; i < n; i++) {
            uint32_t *const to = m->scratch + i * job.words;
            round_row(m->k, job.words, a[r + i], to);
            rounded[i] = to;
        }
        dot2_walk(&job, n, rounded, m->n, m->p0, m->p1, c + (ptrdiff_t)r * cs, cs);
    }
}

#endif
