/* Products with bfloat16 weights, by the CPU's dot products of two bfloat16. Rows of activations are rounded
 * to bfloat16 too. Every output is one sum, to which the dot products of two weights each are added in
 * order. */
#ifndef LNRNN_PRODUCT_BF16_H
#define LNRNN_PRODUCT_BF16_H

#include "lnrnn/kernels/bf16_rows.h"
#include "lnrnn/kernels/panel_loop.h"
#include "lnrnn/simd/units.h"
#ifdef LNRNN_BLOCKS
#include "lnrnn/kernels/row_pairs.h"
enum { DOT2_FEW_ROWS = FEW_ROWS < 3 ? FEW_ROWS : 3 }; /* tiles of more rows use pair_sums (row_pairs.h) */
#else
enum { DOT2_FEW_ROWS = FEW_ROWS };
#endif

/* Adds to acc (rows, vecs) the products of words first .. end - 1 of the rows a with the weights at output
 * o. */
LNRNN_INLINE void dot2_sums(const tile_shape s, const product_job *job, const uint32_t *const *a, size_t o,
                            size_t first, size_t end, v32 (*acc)[TILE_MOST_VECS])
{
    const int vecs = tile_vecs(s);
    for (size_t j = first; j < end; j++) {
        kept_words w[TILE_MOST_VECS];
        LNRNN_FOR_EACH (v, vecs) {
            const uint32_t *const p = tile_weights(s, job, o, v, j);
            w[v] = keep_words(p, s.rows > 1);
            tile_prefetch(s, job, p, v, j, 0);
        }
        LNRNN_FOR_EACH (i, s.rows)
            LNRNN_FOR_EACH (v, vecs)
                acc[i][v] = v32_dot2(acc[i][v], a[i][j], address_of_words(&w[v]));
    }
}

LNRNN_INLINE void dot2_tile(const tile_shape s, const product_job *job, size_t r, size_t o)
{
    const int vecs = tile_vecs(s);
    const uint32_t *const *const a = (const uint32_t *const *)job->a + r;
    float *const c = tile_outputs(job, r, o);
    ptrdiff_t cs = job->cs;
    v32 acc[MR][TILE_MOST_VECS];
    LNRNN_FOR_EACH (i, s.rows)
        LNRNN_FOR_EACH (v, vecs)
            acc[i][v] = job->add == LNRNN_ADD_ON ? v32_load(c + i * cs + v * V32_LANES) : v32_zero();
    size_t done = 0;
#ifdef LNRNN_BLOCKS
    if (s.rows >= 4)
        done = pair_sums(s, job, a, o, acc);
#endif
    dot2_sums(s, job, a, o, done, job->words, acc);
    LNRNN_ANEW(cs);
    LNRNN_FOR_EACH (i, s.rows)
        LNRNN_FOR_EACH (v, vecs)
            v32_store(c + i * cs + v * V32_LANES, acc[i][v]);
}

LNRNN_PRODUCT(dot2, PRODUCT_DOT2, MR, DOT2_FEW_ROWS)

/* a: `rows` pointers to (k) floats -> c (rows, packed_width(n)), row stride cs: the product with bfloat16
 * weights, as matmul_f32 computes it. m->scratch: bf16_scratch(dtype, rows, k) words. Rounds all rows first,
 * so that each panel of weights is read once. */
static void matmul_bf16(const lnrnn_matmul *m, size_t rows, const float *const *a, float *c, ptrdiff_t cs)
{
    const uint32_t *rounded[BF16_ROWS];
    product_job job = product_job_of(m, rounded, c, cs);
    for (size_t i = 0; i < BF16_ROWS; i++)
        rounded[i] = m->scratch + i * job.words;
    for (size_t r = 0; r < rows; r += BF16_ROWS, job.c += BF16_ROWS * cs) {
        const size_t some = rows - r < BF16_ROWS ? rows - r : BF16_ROWS;
        bf16_round_rows(&job, some, a + r, m->scratch);
        panel_loop(&dot2_product, some, &job);
    }
}

#endif
