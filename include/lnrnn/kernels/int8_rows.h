/* Rows for products with int8 weights: they become whole numbers before the product, and its sums become floats after
 * it. Sums of integers are exact: any order gives the same bits.
 *
 * Activations have 14 bits, in two parts of 7, so that accuracy is lost to the 8 bits of the weights
 * (LNRNN_WEIGHT_I8); or 8 bits, in one part, for half of the products (LNRNN_WEIGHT_I8A8). */
#ifndef LNRNN_INT8_ROWS_H
#define LNRNN_INT8_ROWS_H

#include "lnrnn/kernels/matmul_tile.h"

/* Rows that are quantized before their product: the weights are read once for so many. Matrix tiles are done with weights
 * before the next ones have come, unless they have more rows. And how many activations of a row are read at a time. */
#ifdef LNRNN_TILES
enum { MM_I8_BLOCK = 64, MM_I8_READ = 64 };
#else
enum { MM_I8_BLOCK = 16, MM_I8_READ = 4 };
#endif

/* A row of activations, a = scale * n, four to a word. Two parts: n = 128 part[0] + part[1] - 8192; one: part[0] is n,
 * as v32_store_s8 writes it. */
typedef struct {
    const uint32_t *part[2];
    float scale;
} quantized_row;

/* Bytes of a part of a quantized row: whole vectors are written, and a cache line more keeps rows of 1024 inputs from
 * falling on the same lines of L1. */
static size_t int8_part_bytes(size_t k) { return (k + 63) / 64 * 64 + 64; }

/* Words of scratch that a product needs for rows of k activations. */
static size_t int8_scratch(int dtype, size_t rows, size_t k)
{
    const size_t parts = dtype == LNRNN_WEIGHT_I8 ? 2 : 1;
    return (rows < MM_I8_BLOCK ? rows : MM_I8_BLOCK) * parts * (int8_part_bytes(k) / sizeof(uint32_t));
}

/* max |x| of x (k), with a NaN among them a NaN or an infinity. */
LNRNN_INLINE float int8_top(size_t k, const float *x)
{
    v32 most = v32_zero();
    size_t i = 0;
    for (; i + V32_LANES <= k; i += V32_LANES)
        most = v32_larger(v32_abs(v32_load(x + i)), most);
    if (i < k)
        most = v32_larger(v32_abs(v32_load_n(x + i, k - i)), most);
    return v32_largest(most);
}

/* x (k), whose largest is `top` -> its parts in scratch, int8_part_bytes(k) each. A row with a NaN or an infinity becomes
 * NaN, for it has no scale. */
LNRNN_INLINE quantized_row int8_quantize(int parts, size_t k, const float *x, float top, uint32_t *scratch)
{
    const size_t words = int8_part_bytes(k) / sizeof *scratch;
    uint8_t *const first = (uint8_t *)scratch, *const second = (uint8_t *)(scratch + words);
    const float scale = top < 0x1p-100f ? 0 : top / (parts == 2 ? 8191 : 127); /* 1 / scale must be finite */
    const v32 inverse = v32_set1(scale > 0 ? 1 / scale : 0);
    if (V32_LANES < MM_I8_READ) /* what fills the last word or tile up is read, though its weights are 0 */
        for (int part = 0; part < parts; part++)
            memset(first + (size_t)part * int8_part_bytes(k) + k / MM_I8_READ * MM_I8_READ, 0, MM_I8_READ);
    size_t i = 0;
    for (; i + V32_LANES <= k; i += V32_LANES)
        if (parts == 2)
            v32_store_s14(first + i, second + i, v32_mul(v32_load(x + i), inverse));
        else
            v32_store_s8(first + i, v32_mul(v32_load(x + i), inverse));
    if (i < k) {
        const v32 v = v32_load_n(x + i, k - i);
        if (parts == 2)
            v32_store_s14(first + i, second + i, v32_mul(v, inverse));
        else
            v32_store_s8(first + i, v32_mul(v, inverse));
    }
    return (quantized_row){{scratch, scratch + words}, top < INFINITY ? scale : NAN};
}

/* m rows of activations -> quantized. The largest of all rows first: what follows from one waits for two divisions, in which
 * the next is found. */
LNRNN_INLINE void int8_quantize_rows(int parts, size_t k, size_t m, const float *const *a, uint32_t *scratch,
                                     quantized_row *quantized)
{
    const size_t words = (size_t)parts * (int8_part_bytes(k) / sizeof *scratch);
    for (size_t i = 0; i < m; i++)
        quantized[i].scale = int8_top(k, a[i]);
    for (size_t i = 0; i < m; i++)
        quantized[i] = int8_quantize(parts, k, a[i], quantized[i].scale, scratch + i * words);
}

/* Where the outputs of a tile go: those from o on of the rows a -> c, row stride cs. */
typedef struct {
    const mm_job *job;
    const quantized_row *a;
    size_t o;
    float *c;
    ptrdiff_t cs;
} int8_target;

/* What 8192 or S8_OFFSET has added to sums of a vector of outputs from o on, whose `upper` int8_output takes. */
LNRNN_INLINE vi32 int8_added(int parts, const mm_job *job, size_t o)
{
    return parts == 2 || S8_OFFSET != 0 ? vi32_shifted(job->sums + o, parts == 2 ? 6 : 7) : vi32_zero();
}

/* The sums of a vector of outputs of one row, in two parts or in `upper` -> y. Without what was added the upper parts are
 * small: exact as floats. */
LNRNN_INLINE void int8_output(int parts, int add, vi32 upper, vi32 lower, vi32 added, v32 scale, float *y)
{
    v32 sum = vi32_less(upper, added);
    if (parts == 2)
        sum = v32_fma(sum, v32_set1(128.0f), vi32_to_v32(lower));
    v32_store(y, add ? v32_fma(sum, scale, v32_load(y)) : v32_mul(sum, scale));
}

/* sums (rows, parts, vecs vectors) of a tile -> its outputs. parts and add are constants. */
LNRNN_INLINE void int8_outputs_of(int parts, int add, int rows, int vecs, const int8_target *to,
                                  const int32_t *sums)
{
    const quantized_row *const a = to->a;
    const ptrdiff_t part = (ptrdiff_t)vecs * V32_LANES, cs = to->cs;
    float *c = to->c;
    size_t o = to->o;
    for (int v = 0; v < vecs; v++, o += V32_LANES, sums += V32_LANES, c += V32_LANES) {
        const vi32 added = int8_added(parts, to->job, o);
        const v32 scales = v32_load(to->job->scale + o);
        const int32_t *of_row = sums;
        float *y = c;
        for (int i = 0; i < rows; i++, of_row += parts * part, y += cs)
            int8_output(parts, add, vi32_load(of_row), vi32_load(of_row + (parts - 1) * part), added,
                        v32_mul(scales, v32_set1(a[i].scale)), y);
    }
}

LNRNN_OUTLINE void int8_outputs(int parts, int rows, int vecs, const int8_target *to, const int32_t *sums)
{
    if (parts == 2 && to->job->add)
        int8_outputs_of(2, 1, rows, vecs, to, sums);
    else if (parts == 2)
        int8_outputs_of(2, 0, rows, vecs, to, sums);
    else if (to->job->add)
        int8_outputs_of(1, 1, rows, vecs, to, sums);
    else
        int8_outputs_of(1, 0, rows, vecs, to, sums);
}

LNRNN_INLINE mm_job int8_job_of(const lnrnn_matmul *m)
{
    mm_job job = mm_job_of(m);
    job.scale = (const float *)(m->w + mm_width(m->n) * job.words);
    job.sums = (const int32_t *)(job.scale + mm_width(m->n));
    return job;
}

#endif
