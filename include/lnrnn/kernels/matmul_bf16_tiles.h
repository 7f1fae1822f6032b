/* Rows times packed weights of bfloat16, on matrix tiles: the rows are rounded to bfloat16.
 *
 * Sixteen words of a vector of outputs, which a panel holds row by row, are a tile as they stand. An output is
 * c + s0 + s1 + .., sj the sum of 32 inputs in the unit's own order; inputs are filled up with 0 to whole tiles.
 * So a row has the same bits beside others and alone, and one row takes the time of sixteen: that of loading the
 * weights. */
#ifndef LNRNN_MATMUL_BF16_TILES_H
#define LNRNN_MATMUL_BF16_TILES_H

#include "lnrnn/kernels/matmul_tile.h"
#include "lnrnn/kernels/short_rows.h"
#include "lnrnn/simd/units.h"

/* Some vectors of outputs of one panel, and rows in one or two blocks of the tiles' height. */
typedef struct {
    const uint32_t *w;    /* (words, panel): the first of these outputs' words */
    ptrdiff_t panel;      /* bytes from a word of an output to its next */
    const uint32_t *a[2]; /* (height, words): the blocks */
    float *c[2];          /* (height, vecs * 16), row stride cs bytes */
    ptrdiff_t cs;
} bf16_tiles;

/* blocks times vecs <= 4, and constants. Tiles: the sums, 0 to 3; rows, 4 and 5; weights, 6 and 7. */
LNRNN_INLINE void bf16_blocks(const int blocks, const int vecs, const mm_job *job, lnrnn_tiles *t,
                              int prefetch, const bf16_tiles *b)
{
#pragma GCC unroll 2
    for (int i = 0; i < blocks; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            if (job->add)
                tile_load(t, i * vecs + v, b->c[i] + v * TILE_WORDS, b->cs);
            else
                tile_zero(t, i * vecs + v);
    const ptrdiff_t row = (ptrdiff_t)(job->words * sizeof(uint32_t));
    const char *w = (const char *)b->w;
    for (size_t j = 0; j < job->words; j += TILE_WORDS, w += TILE_HEIGHT * b->panel) {
        if (prefetch)
            for (int r = 0; r < TILE_HEIGHT; r++)
#pragma GCC unroll 4
                for (int v = 0; v < vecs; v++)
                    v32_prefetch((const float *)(w + r * b->panel) + v * TILE_WORDS + LNRNN_PREFETCH_TILE);
#pragma GCC unroll 2
        for (int i = 0; i < blocks; i++)
            tile_load(t, 4 + i, b->a[i] + j, row);
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) {
            tile_load(t, 6 + v % 2, w + v * TILE_BYTES, b->panel);
#pragma GCC unroll 2
            for (int i = 0; i < blocks; i++)
                tile_dot_bf16(t, i * vecs + v, 4 + i, 6 + v % 2);
        }
    }
#pragma GCC unroll 2
    for (int i = 0; i < blocks; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            tile_store(t, i * vecs + v, b->c[i] + v * TILE_WORDS, b->cs);
}

/* One block: all vectors of a panel at once. Two: four tiles of sums are the most beside two of rows and two of
 * weights. */
LNRNN_OUTLINE void bf16_panel(int blocks, int vecs, const mm_job *job, lnrnn_tiles *t, int prefetch,
                              bf16_tiles b)
{
    if (blocks == 1) {
        switch (vecs) {
        case 1: bf16_blocks(1, 1, job, t, prefetch, &b); return;
        case 2: bf16_blocks(1, 2, job, t, prefetch, &b); return;
        default: bf16_blocks(1, 3, job, t, prefetch, &b); return;
        }
    }
    if (vecs > 1) {
        bf16_blocks(2, 2, job, t, prefetch, &b);
        b.w += 2 * TILE_WORDS, b.c[0] += 2 * TILE_WORDS, b.c[1] += 2 * TILE_WORDS;
    }
    if (vecs % 2)
        bf16_blocks(2, 1, job, t, prefetch, &b);
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
            bf16_tiles b = {.w = job->w + o * job->words,
                            .panel = (ptrdiff_t)(m * sizeof(uint32_t)),
                            .cs = cs * (ptrdiff_t)sizeof(float)};
            for (size_t x = 0; x < pair; x++) {
                const size_t r = (k + x + 1) * height > rows ? rows - height : (k + x) * height;
                b.a[x] = a + r * job->words;
                b.c[x] = c + (ptrdiff_t)r * cs + (ptrdiff_t)o;
            }
            bf16_panel((int)pair, (int)(m / V32_LANES), job, &t, job->prefetch && k == 0, b);
        }
    }
    tiles_end(&t);
}

/* As matmul_float, of bfloat16 weights. m->scratch: mm_scratch(dtype, k) words. */
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
