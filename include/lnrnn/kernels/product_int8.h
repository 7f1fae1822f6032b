/* Products with int8 weights by vector instructions. int8_rows.h converts the rows to integers, and the sums to floats. */
#ifndef LNRNN_PRODUCT_INT8_H
#define LNRNN_PRODUCT_INT8_H

#include "lnrnn/kernels/int8_rows.h"
#include "lnrnn/kernels/panel_loop.h"
#include "lnrnn/simd/units.h"
#ifdef LNRNN_BLOCKS
#include "lnrnn/kernels/row_pairs.h"
#endif

/* Adds to acc (rows * parts, vecs) the products of words first .. end - 1 of the rows a with the weights at output o. */
LNRNN_INLINE void int8_sums(const int parts, const tile_shape s, const product_job *job,
                            const quantized_row *a, size_t o, size_t first, size_t end,
                            vi32 (*acc)[TILE_MOST_VECS])
{
    const int vecs = tile_vecs(s);
    for (size_t j = first; j < end; j++) {
        kept_words w[TILE_MOST_VECS];
        LNRNN_FOR_EACH (v, vecs) {
            const uint32_t *const p = tile_weights(s, job, o, v, j);
            w[v] = keep_words(p, 1);
            tile_prefetch(s, job, p, v, j, 0);
        }
        if (parts == 2)
            LNRNN_FOR_EACH (part, 2)
                LNRNN_FOR_EACH (i, s.rows)
                    LNRNN_FOR_EACH (v, vecs)
                        acc[2 * i + part][v] =
                            vi32_dot4(acc[2 * i + part][v], a[i].part[part][j], address_of_words(&w[v]));
        else
            LNRNN_FOR_EACH (i, s.rows)
                LNRNN_FOR_EACH (v, vecs)
                    acc[i][v] = vi32_dot4_s8(acc[i][v], a[i].part[0][j], address_of_words(&w[v]));
    }
}

/* Computes a tile. acc has `lines` rows of sums, one per part of a row of activations. The sums go through memory to int8_outputs.
 * That function is not inlined, because it would be most of the code of each tile. */
LNRNN_INLINE void int8_tile(const int product, const tile_shape s, const product_job *job, size_t r, size_t o)
{
    const int parts = product == PRODUCT_I8 ? 2 : 1, vecs = tile_vecs(s), lines = s.rows * parts;
    const quantized_row *const a = (const quantized_row *)job->a + r;
    vi32 acc[MR][TILE_MOST_VECS];
    LNRNN_FOR_EACH (i, lines)
        LNRNN_FOR_EACH (v, vecs)
            acc[i][v] = vi32_zero();
    size_t done = 0;
#ifdef LNRNN_BLOCKS
    if (lines >= 4) {
        const uint32_t *line[MR];
        LNRNN_FOR_EACH (i, lines)
            line[i] = a[i / parts].part[i % parts];
        tile_shape of_lines = s;
        of_lines.rows = lines;
        done = pair_sums(of_lines, job, line, o, acc);
    }
#endif
    int8_sums(parts, s, job, a, o, done, job->words, acc);
    if (s.rows == 1 && S8_OFFSET != 0) { /* one row would take a twentieth longer with sums in memory */
        float *const c = tile_outputs(job, r, o);
        LNRNN_FOR_EACH (v, vecs) {
            const size_t at = o + (size_t)v * V32_LANES;
            int8_output(parts, job->add, acc[0][v], acc[parts - 1][v], int8_added(parts, job, at),
                        v32_load(job->scale + at) * v32_set1(a->scale), c + v * V32_LANES);
        }
        return;
    }
    int32_t sums[2 * TILE_MOST_VECS * V32_LANES] __attribute__((aligned(64))); /* enough for MR = 8 lines */
    LNRNN_FOR_EACH (i, lines)
        LNRNN_FOR_EACH (v, vecs)
            vi32_store(sums + (i * vecs + v) * V32_LANES, acc[i][v]);
    int8_outputs(parts, s.rows, vecs, job, r, o, sums);
}

LNRNN_PRODUCT(i8, PRODUCT_I8, MR / 2, 0)
/* Few rows are multiplied by two panels at a time, to hide latencies, only if there are dot product instructions (S8_OFFSET). */
LNRNN_PRODUCT(i8a8, PRODUCT_I8A8, MR_S8, S8_OFFSET ? MR_S8 / 2 : 0)

/* As matmul_f32 (product_f32.h), with int8 weights. m->scratch: int8_scratch(dtype, rows, k) words. */
static void matmul_int8(const lnrnn_matmul *m, size_t rows, const float *const *a, float *c, ptrdiff_t cs)
{
    quantized_row quantized[INT8_ROWS];
    product_job job = product_job_of(m, quantized, c, cs);
    job.each_tile = NR * job.words * sizeof(uint32_t) > m->caches->l1 / 2;
    for (size_t r = 0; r < rows; r += INT8_ROWS, job.c += INT8_ROWS * cs) {
        const size_t some = rows - r < INT8_ROWS ? rows - r : INT8_ROWS;
        int8_quantize_rows(m, some, a + r, quantized);
        panel_loop(m->dtype == LNRNN_WEIGHT_I8 ? &i8_product : &i8a8_product, some, &job);
    }
}

#endif
