/* Rows times packed weights of bfloat16, on matrix tiles: the rows are rounded to bfloat16.
 *
 * An output is c + s0 + s1 + .., sj the sum of 32 inputs in the unit's own order. */
#ifndef LNRNN_MATMUL_BF16_TILES_H
#define LNRNN_MATMUL_BF16_TILES_H

#include "lnrnn/kernels/matmul_tiles.h"
#include "lnrnn/kernels/short_rows.h"

LNRNN_OUTLINE void bf16_panel(int blocks, int vecs, size_t words, lnrnn_tiles *t, tile_job b)
{
    tile_panel(0, blocks, vecs, words, t, b);
}

/* rows <= MM_SHORT_ROWS, rounded: a (rows, words) -> c. Blocks of rows have one height; the last begins earlier
 * than where the one before it ends, if that is needed: both are of one pair, which is loaded before it is stored,
 * so that rows of both get the same sum twice. */
static void bf16_tiles_walk(const mm_job *job, size_t rows, const uint32_t *a, size_t n, size_t p0, size_t p1,
                            float *c, ptrdiff_t cs)
{
    const size_t blocks = (rows + TILE_HEIGHT - 1) / TILE_HEIGHT, height = (rows + blocks - 1) / blocks;
    lnrnn_tiles t;
    tiles_begin(&t, (int)height);
    for (size_t i = p0; i < p1; i++) {
        const size_t p = job->from_end ? p1 - 1 - (i - p0) : i, o = mm_start(n, p),
                     m = mm_start(n, p + 1) - o;
        for (size_t k = 0, pair; k < blocks; k += pair) {
            pair = k == 0 && blocks % 2 ? 1 : 2;
            tile_job b = {.w = job->w + o * job->words,
                          .panel = (ptrdiff_t)(m * sizeof(uint32_t)),
                          .as = (ptrdiff_t)(job->words * sizeof(uint32_t)),
                          .cs = cs * (ptrdiff_t)sizeof(float),
                          .add = job->add,
                          .prefetch = job->prefetch && k == 0};
            for (size_t x = 0; x < pair; x++) {
                const size_t r = (k + x + 1) * height > rows ? rows - height : (k + x) * height;
                b.a[x] = a + r * job->words;
                b.c[x] = c + (ptrdiff_t)r * cs + (ptrdiff_t)o;
            }
            bf16_panel((int)pair, (int)(m / V32_LANES), job->words, &t, b);
        }
    }
    tiles_end(&t);
}

/* As matmul_float, of bfloat16 weights. m->scratch: short_rows_scratch(dtype, rows, k) words. */
static void matmul_bf16_tiles(const lnrnn_matmul *m, size_t rows, const float *const *a, float *c,
                              ptrdiff_t cs)
{
    const mm_job job = mm_job_of(m);
    for (size_t r = 0; r < rows; r += MM_SHORT_ROWS) {
        const size_t some = rows - r < MM_SHORT_ROWS ? rows - r : MM_SHORT_ROWS;
        for (size_t i = 0; i < some; i++)
            round_row(m->k, job.words, a[r + i], m->scratch + i * job.words);
        bf16_tiles_walk(&job, some, m->scratch, m->n, m->p0, m->p1, c + (ptrdiff_t)r * cs, cs);
    }
}

#endif
