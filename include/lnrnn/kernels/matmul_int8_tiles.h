/* Rows times packed weights of int8 on matrix tiles: as matmul_int8.h. */
#ifndef LNRNN_MATMUL_INT8_TILES_H
#define LNRNN_MATMUL_INT8_TILES_H

#include "lnrnn/kernels/int8_rows.h"
#include "lnrnn/kernels/matmul_tiles.h"

LNRNN_OUTLINE void int8_panel(int blocks, int vecs, size_t words, lnrnn_tiles *t, tile_job b)
{
    tile_panel(1, blocks, vecs, words, t, b);
}

/* rows <= MM_I8_BLOCK, quantized: a, in scratch with as many parts -> c. Blocks of rows have one height; the last one may
 * begin with rows that the one before it had, whose outputs are then made once. */
static void int8_tiles_walk(int parts, const mm_job *job, size_t rows, const quantized_row *a, size_t n,
                            size_t p0, size_t p1, float *c, ptrdiff_t cs)
{
    const size_t blocks = (rows + TILE_HEIGHT - 1) / TILE_HEIGHT, height = (rows + blocks - 1) / blocks;
    int32_t sums[TILE_HEIGHT * 2 * NR] __attribute__((aligned(64)));
    lnrnn_tiles t;
    tiles_begin(&t, (int)height);
    for (size_t i = p0; i < p1; i++) {
        const size_t p = job->from_end ? p1 - 1 - (i - p0) : i, o = mm_start(n, p),
                     m = mm_start(n, p + 1) - o;
        for (size_t k = 0; k < blocks; k++) {
            const size_t r = (k + 1) * height > rows ? rows - height : k * height, had = k * height - r;
            const tile_job b = {.w = job->w + o * job->words,
                                .panel = (ptrdiff_t)(m * sizeof(uint32_t)),
                                .a = {a[r].part[0], a[r].part[1]},
                                .as = (ptrdiff_t)((size_t)parts * int8_part_bytes(job->k)),
                                .c = {sums, sums + m},
                                .cs = (ptrdiff_t)((size_t)parts * m * sizeof(int32_t)),
                                .prefetch = job->prefetch && k == 0};
            int8_panel(parts, (int)(m / V32_LANES), job->words, &t, b);
            const int8_target to = {job, a + r + had, o, c + (ptrdiff_t)(r + had) * cs + (ptrdiff_t)o, cs};
            int8_outputs(parts, (int)(height - had), (int)(m / V32_LANES), &to,
                         sums + had * (size_t)parts * m);
        }
    }
    tiles_end(&t);
}

/* As matmul_int8. */
static void matmul_int8_tiles(const lnrnn_matmul *m, size_t rows, const float *const *a, float *c,
                              ptrdiff_t cs)
{
    const mm_job job = int8_job_of(m);
    const int parts = m->dtype == LNRNN_WEIGHT_I8 ? 2 : 1;
    for (size_t r = 0, some; r < rows; r += some) {
        quantized_row quantized[MM_I8_BLOCK];
        some = rows - r < MM_I8_BLOCK ? rows - r : MM_I8_BLOCK;
        if (parts == 2)
            int8_quantize_rows(2, m->k, some, a + r, m->scratch, quantized);
        else
            int8_quantize_rows(1, m->k, some, a + r, m->scratch, quantized);
        int8_tiles_walk(parts, &job, some, quantized, m->n, m->p0, m->p1, c + (ptrdiff_t)r * cs, cs);
    }
}

#endif
