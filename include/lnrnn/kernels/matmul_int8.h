/* Rows times packed weights of int8 on vectors: int8_rows.h makes whole numbers of the rows, tiles sum their products, and
 * int8_rows.h makes floats of the sums. */
#ifndef LNRNN_MATMUL_INT8_H
#define LNRNN_MATMUL_INT8_H

#include "lnrnn/kernels/int8_rows.h"
#include "lnrnn/simd/units.h"

/* Integers of a tile's sums: of one row with two parts, or of all rows. */
enum {
    INT8_ONE_ROW = 2 * MM_MOST_VECS,
    INT8_ALL_ROWS = MR * NR_VECS,
    INT8_SUMS = (INT8_ONE_ROW > INT8_ALL_ROWS ? INT8_ONE_ROW : INT8_ALL_ROWS) * V32_LANES
};

typedef vector_of_words int8_weights;
#define int8_load mm_words_at
#define int8_turns(parts) (parts)
#define int8_prefetch v32_prefetch
#define int8_ahead(parts, rows, a, j) (void)0

LNRNN_INLINE vi32 int8_step(int parts, const mm_job *job, int turn, vi32 sum, const quantized_row *a, int i,
                            size_t j, int8_weights w)
{
    (void)job;
    return parts == 2 ? vi32_dot4(sum, a[i].part[turn][j], mm_words_of(w))
                      : vi32_dot4_s8(sum, a[i].part[0][j], mm_words_of(w));
}

#define LNRNN_LOOP int8
#define accumulator vi32
#define SUMS 2
#define activations const quantized_row *
#define LINE_DOT vi32_dot4_s8
#include "lnrnn/kernels/matmul_loop.h"

/* a (rows) -> c (rows, the tile's outputs), as float_tile. The sums of several rows go through memory, so that one text
 * makes outputs of all tiles: unrolled in each tile it would be most of the code. */
LNRNN_INLINE void int8_tile(int parts, int rows, int wide, int tails, int tail, int prefetch,
                            const mm_job *job, const quantized_row *a, size_t o, float *c, ptrdiff_t cs)
{
    const int vecs = wide * NR_VECS + tails * tail;
    int8_target to = {job, a, o, c, cs};
    LNRNN_STORED(to); /* the loop needs the registers for its rows */
    vi32 acc[MR][2][MM_MOST_VECS];
    LNRNN_FOR_EACH (i, rows)
        LNRNN_FOR_EACH (v, vecs)
            acc[i][0][v] = acc[i][1][v] = vi32_zero();
    size_t done = 0;
#ifdef LNRNN_BLOCKS
    if (rows * parts >= 4) {
        const uint32_t *lines[2 * MR];
        LNRNN_FOR_EACH (i, rows * parts)
            lines[i] = a[i / parts].part[i % parts];
        done = int8_blocks(parts, rows, vecs, prefetch, job, lines, o, acc);
    }
#endif
    int8_sums(parts, rows, wide, tails, tail, prefetch, job, done, job->words, a, o, acc);
    if (rows == 1 && S8_OFFSET != 0) { /* on a unit the way through memory is a twentieth of the time */
        LNRNN_FOR_EACH (v, vecs) {
            const size_t at = o + (size_t)v * V32_LANES;
            int8_output(parts, job->add, acc[0][0][v], acc[0][1][v], int8_added(parts, job, at),
                        v32_mul(v32_load(job->scale + at), v32_set1(a->scale)), c + v * V32_LANES);
        }
        return;
    }
    int32_t sums[INT8_SUMS] __attribute__((aligned(64)));
    LNRNN_FOR_EACH (i, rows)
        LNRNN_FOR_EACH (p, parts)
            LNRNN_FOR_EACH (v, vecs)
                vi32_store(sums + ((i * parts + p) * vecs + v) * V32_LANES, acc[i][p][v]);
    int8_outputs(parts, rows, vecs, &to, sums);
}

LNRNN_INLINE void i8_tile(int rows, int wide, int tails, int tail, int prefetch, const mm_job *job,
                          const quantized_row *a, size_t o, float *c, ptrdiff_t cs)
{
    int8_tile(2, rows, wide, tails, tail, prefetch, job, a, o, c, cs);
}

LNRNN_INLINE void i8a8_tile(int rows, int wide, int tails, int tail, int prefetch, const mm_job *job,
                            const quantized_row *a, size_t o, float *c, ptrdiff_t cs)
{
    int8_tile(1, rows, wide, tails, tail, prefetch, job, a, o, c, cs);
}

#define LNRNN_WEIGHTS i8
#define activations quantized_row
#define TILE_ROWS (MR / 2) /* two accumulators for an output */
#include "lnrnn/kernels/matmul_walk.h"

#define LNRNN_WEIGHTS i8a8
#define activations quantized_row
#define TILE_ROWS MR_S8
#define FEW_ROWS (S8_OFFSET ? MR_S8 / 2 : 0) /* of multiply-adds without a unit there are enough */
#include "lnrnn/kernels/matmul_walk.h"

/* As matmul_float, of int8 weights. m->scratch: int8_scratch(dtype, rows, k) words. */
static void matmul_int8(const lnrnn_matmul *m, size_t rows, const float *const *a, float *c, ptrdiff_t cs)
{
    mm_job job = int8_job_of(m);
    job.each_tile = NR * job.words * sizeof(uint32_t) > m->caches.l1 / 2;
    for (size_t r = 0, height; r < rows; r += height) {
        quantized_row quantized[MM_I8_BLOCK];
        float *const to = c + (ptrdiff_t)r * cs;
        height = rows - r < MM_I8_BLOCK ? rows - r : MM_I8_BLOCK;
        if (m->dtype == LNRNN_WEIGHT_I8) {
            int8_quantize_rows(2, m->k, height, a + r, m->scratch, quantized);
            i8_walk(&job, height, quantized, m->n, m->p0, m->p1, to, cs);
        } else {
            int8_quantize_rows(1, m->k, height, a + r, m->scratch, quantized);
            i8a8_walk(&job, height, quantized, m->n, m->p0, m->p1, to, cs);
        }
    }
}

#endif
