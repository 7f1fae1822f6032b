/* Products with int8 weights by vector instructions. int8_rows.h converts the rows to integers, and the sums
 * to floats.
 *
 * A line is one part of a quantized row (int8_rows.h). A few rows with two parts are multiplied as twice as
 * many lines, so that the weights are read once. A tile of more rows takes one line of each row. It adds up
 * the first parts, multiplies the sums by 128, and adds the second parts. */
#ifndef LNRNN_PRODUCT_INT8_H
#define LNRNN_PRODUCT_INT8_H

#include "lnrnn/kernels/int8_rows.h"
#include "lnrnn/kernels/panel_loop.h"
#include "lnrnn/simd/units.h"
#ifdef LNRNN_BLOCKS
#include "lnrnn/kernels/row_pairs.h"
#endif

/* INT8_TILES_OF_LINES: 1 if PRODUCT_I8 and PRODUCT_I8A8 share tile functions. 0 where vi32_dot4 and
 * vi32_dot4_s8 are different instructions. */
#if S8_OFFSET == 0 && defined(LNRNN_OWN_DOT4)
#define LNRNN_TWO_DOT4
enum { INT8_TILES_OF_LINES = 0 };
#else
enum { INT8_TILES_OF_LINES = 1 };
#endif

LNRNN_INLINE vi32 int8_dot(const int product, vi32 sum, uint32_t a, const uint32_t *words)
{
    return product == PRODUCT_I8 ? vi32_dot4(sum, a, words) : vi32_dot4_s8(sum, a, words);
}

/* Adds to acc (lines, vecs) the products of words first .. end - 1 of the lines a with the weights at output
 * o. */
LNRNN_INLINE void int8_sums(const int product, const int lines, const tile_shape s, const product_job *job,
                            const uint32_t *const *a, size_t o, size_t first, size_t end,
                            vi32 (*acc)[TILE_MOST_VECS])
{
    const int vecs = tile_vecs(s);
    for (size_t j = first; j < end; j++) {
        kept_words w[TILE_MOST_VECS];
        LNRNN_FOR_EACH (v, vecs) {
            const uint32_t *const p = tile_weights(s, job, o, v, j);
            w[v] = keep_words(p, 1);
            tile_prefetch(s, job, p, v, j, 0);
            if (lines <= 2) /* one row after the other, since the weights then need few registers */
                LNRNN_FOR_EACH (i, lines)
                    acc[i][v] = int8_dot(product, acc[i][v], a[i][j], address_of_words(&w[v]));
        }
        if (lines > 2)
            LNRNN_FOR_EACH (i, lines)
                LNRNN_FOR_EACH (v, vecs)
                    acc[i][v] = int8_dot(product, acc[i][v], a[i][j], address_of_words(&w[v]));
    }
}

/* Computes a tile. In a tile of PRODUCT_I8, each row has two lines. In other tiles, each row is a line: one
 * line of each row of activations, or all their lines if quantized_rows.passes is 1. */
LNRNN_INLINE void int8_tile(const int product, const tile_shape s, const product_job *job, size_t r, size_t o)
{
    const quantized_rows *const q = job->a;
    const int pairs = product == PRODUCT_I8, lines = pairs ? 2 * s.rows : s.rows, vecs = tile_vecs(s);
    const int passes = pairs || !INT8_TILES_OF_LINES ? 1 : q->passes,
              parts = INT8_TILES_OF_LINES ? q->parts : 1 + pairs, each = pairs ? 2 : parts / passes;
    const uint32_t *const *part = q->part + r * (size_t)(pairs ? 2 : passes);
    vi32 acc[MR][TILE_MOST_VECS];
    LNRNN_FOR_EACH (v, vecs) {
        const vi32 start = int8_start(parts, job, o + (size_t)v * V32_LANES);
        LNRNN_FOR_EACH (i, lines)
            acc[i][v] = i % 2 && each == 2 ? vi32_zero() : start;
    }
    for (int pass = 0;; part++) {
        const uint32_t *line[MR];
        LNRNN_FOR_EACH (i, lines)
            line[i] = part[i * passes];
        size_t done = job->first;
#ifdef LNRNN_BLOCKS
        if (lines >= 4)
            done = pair_sums(s, job, line, o, acc);
#endif
        int8_sums(product, lines, s, job, line, o, done, job->end, acc);
        if (++pass == passes)
            break;
        LNRNN_FOR_EACH (i, lines)
            LNRNN_FOR_EACH (v, vecs)
                acc[i][v] = acc[i][v] << 7;
    }
#if S8_OFFSET != 0
    if (each == 1)
        int8_outputs(1, lines, vecs, job, r, o, acc);
    else if (lines % 2 == 0) {
        LNRNN_FOR_EACH (i, lines / 2)
            LNRNN_FOR_EACH (v, vecs)
                acc[i][v] = (acc[2 * i][v] << 7) + acc[2 * i + 1][v];
        int8_outputs(2, lines / 2, vecs, job, r, o, acc);
    }
#else /* in a function, because inlined it would be most of the code of each tile */
    int32_t sums[2 * TILE_MOST_VECS * V32_LANES] __attribute__((aligned(64))); /* enough for MR = 8 lines */
    LNRNN_FOR_EACH (i, lines)
        LNRNN_FOR_EACH (v, vecs)
            vi32_store(sums + (i * vecs + v) * V32_LANES, acc[i][v]);
    int8_stored_outputs(each, lines / each, vecs, job, r, o, sums);
#endif
}

/* The most lines that are multiplied by two panels at a time, which hides the latency of dot product
 * instructions. Without such instructions (S8_OFFSET = 0), two panels save no time. */
enum { INT8_FEW_LINES = S8_OFFSET ? MR_S8 / 2 : 0 };
LNRNN_PRODUCT(i8a8, PRODUCT_I8A8, MR_S8, INT8_FEW_LINES)
#ifdef LNRNN_TWO_DOT4
LNRNN_PRODUCT(i8, PRODUCT_I8, MR / 2, 0)
#else
LNRNN_PRODUCT_ROW(i8, PRODUCT_I8)
static const product_loop i8_product = {PRODUCT_I8, i8_row, i8a8_panel, i8a8_pair, MR_S8, INT8_FEW_LINES};
#endif

/* a: `rows` pointers to (k) floats -> c (rows, packed_width(n)), row stride cs: the product with int8
 * weights, as matmul_f32 computes it. m->scratch: int8_scratch(dtype, rows, k) words. */
static void matmul_int8(const lnrnn_matmul *m, size_t rows, const float *const *a, float *c, ptrdiff_t cs)
{
    quantized_rows quantized;
    product_job job = product_job_of(m, &quantized, c, cs);
    const product_loop *const product = m->dtype == LNRNN_WEIGHT_I8 ? &i8_product : &i8a8_product;
    for (size_t r = 0; r < rows; r += INT8_ROWS, job.c += INT8_ROWS * cs) {
        const size_t some = rows - r < INT8_ROWS ? rows - r : INT8_ROWS;
        int8_quantize_rows(m, some, a + r, &quantized);
        size_t lines = some;
        if (INT8_TILES_OF_LINES && some > 1 && quantized.parts == 2) {
            if (2 * some <= MR_S8)
                lines = 2 * some;
            else
                quantized.passes = 2;
        }
        for (size_t b = 0; int8_block(m, &job, b); b++)
            panel_loop(product, lines, &job);
    }
}

#endif
