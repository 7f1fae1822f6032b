/* Converts rows to integers before a product with int8 weights, and the sums of the product to floats afterwards. Sums of integers are
 * exact, so any order gives the same bits.
 *
 * LNRNN_WEIGHT_I8: activations have 14 bits, in two parts of 7, so that nearly all of the error comes from the weights. LNRNN_WEIGHT_I8A8:
 * activations have 8 bits, in one part, which needs half as many multiplications. */
#ifndef LNRNN_INT8_ROWS_H
#define LNRNN_INT8_ROWS_H

#include "lnrnn/kernels/tile.h"

/* INT8_ROWS: the number of rows that are quantized before a product, which reads the weights once for them. AMX needs
 * more rows, so that computing takes as long as loading the next weights. INT8_READ: the number of activations that a
 * product reads at a time. */
#ifdef LNRNN_TILES
enum { INT8_ROWS = 64, INT8_READ = 64 };
#else
enum { INT8_ROWS = 16, INT8_READ = 4 };
#endif

/* A row of activations, a = scale * n, four per word. With two parts n = 128 part[0] + part[1] - 8192. With
 * one, part[0] is n as v32_store_s8 writes it. */
typedef struct {
    const uint32_t *part[2];
    float scale;
} quantized_row;

/* Returns the number of bytes of a part of a quantized row: k rounded up to a whole cache line, and one line more.
 * Without that line, rows of 1024 inputs would share the same sets of L1. */
static size_t int8_part_bytes(size_t k) { return (k + 63) / 64 * 64 + 64; }

/* Returns the number of 32-bit words of scratch that a product of `rows` rows of k activations needs. */
static size_t int8_scratch(int dtype, size_t rows, size_t k)
{
    const size_t parts = dtype == LNRNN_WEIGHT_I8 ? 2 : 1;
    return (rows < INT8_ROWS ? rows : INT8_ROWS) * parts * (int8_part_bytes(k) / sizeof(uint32_t));
}

/* x (k). Returns max |x|, or NaN or infinity if x has a NaN. */
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

/* Writes the values of v as integers, in two parts or one. */
LNRNN_INLINE void int8_store(const int parts, uint8_t *first, uint8_t *second, v32 v)
{
    if (parts == 2)
        v32_store_s14(first, second, v);
    else
        v32_store_s8(first, v);
}

/* x (k), top = max |x|. Writes the parts of x to scratch, int8_part_bytes(k) bytes each, and returns the quantized
 * row. If x has a NaN or an infinity, the scale is NaN, so that all outputs become NaN. */
LNRNN_INLINE quantized_row int8_quantize(int parts, size_t k, const float *x, float top, uint32_t *scratch)
{
    const size_t words = int8_part_bytes(k) / sizeof *scratch;
    uint8_t *const first = (uint8_t *)scratch, *const second = (uint8_t *)(scratch + words);
    const float scale = top < 0x1p-100f ? 0 : top / (parts == 2 ? 8191 : 127); /* 1 / scale is finite */
    const v32 inverse = v32_set1(scale > 0 ? 1 / scale : 0);
    if (V32_LANES < INT8_READ) /* products read the last word or tile to its end, where weights are 0 */
        for (int part = 0; part < parts; part++)
            memset(first + (size_t)part * int8_part_bytes(k) + k / INT8_READ * INT8_READ, 0, INT8_READ);
    size_t i = 0;
    for (; i + V32_LANES <= k; i += V32_LANES)
        int8_store(parts, first + i, second + i, v32_load(x + i) * inverse);
    if (i < k)
        int8_store(parts, first + i, second + i, v32_load_n(x + i, k - i) * inverse);
    return (quantized_row){{scratch, scratch + words}, top < INFINITY ? scale : NAN};
}

/* a: `rows` pointers to (k) activations -> quantized (rows). Computes the largest values of all rows first, so that
 * the CPU can overlap the divisions of one row with work for another. */
LNRNN_INLINE void int8_quantize_parts(const int parts, size_t k, size_t rows, const float *const *a,
                                      uint32_t *scratch, quantized_row *quantized)
{
    const size_t words = (size_t)parts * (int8_part_bytes(k) / sizeof *scratch);
    for (size_t i = 0; i < rows; i++)
        quantized[i].scale = int8_top(k, a[i]);
    for (size_t i = 0; i < rows; i++)
        quantized[i] = int8_quantize(parts, k, a[i], quantized[i].scale, scratch + i * words);
}

LNRNN_INLINE void int8_quantize_rows(const lnrnn_matmul *m, size_t rows, const float *const *a,
                                     quantized_row *quantized)
{
    if (m->dtype == LNRNN_WEIGHT_I8)
        int8_quantize_parts(2, m->k, rows, a, m->scratch, quantized);
    else
        int8_quantize_parts(1, m->k, rows, a, m->scratch, quantized);
}

/* The integers of activations have an offset, 8192 or S8_OFFSET. Returns the offset times the sum of the weights, for
 * a vector of outputs from o on. int8_output subtracts it. */
LNRNN_INLINE vi32 int8_added(const int parts, const product_job *job, size_t o)
{
    return parts == 2 || S8_OFFSET != 0 ? vi32_load(job->sums + o) << (parts == 2 ? 6 : 7) : vi32_zero();
}

/* upper, lower: the sums of a vector of outputs of one row over its two parts; with one part only `upper`. Writes the
 * outputs to y. The upper sums minus `added` are small enough to be exact as floats. */
LNRNN_INLINE void int8_output(const int parts, int add, vi32 upper, vi32 lower, vi32 added, v32 scale,
                              float *y)
{
    v32 sum = vi32_to_v32(upper - added);
    if (parts == 2)
        sum = v32_fma(sum, v32_set1(128.0f), vi32_to_v32(lower));
    v32_store(y, add ? v32_fma(sum, scale, v32_load(y)) : sum * scale);
}

/* sums (rows, parts, vecs vectors) of a tile. Writes the outputs of `rows` rows from r on, from output o on, to job->c. */
LNRNN_INLINE void int8_outputs_of(const int parts, const int add, int rows, int vecs, const product_job *job,
                                  size_t r, size_t o, const int32_t *sums)
{
    const quantized_row *const a = (const quantized_row *)job->a + r;
    const ptrdiff_t part = (ptrdiff_t)vecs * V32_LANES, cs = job->cs;
    float *c = tile_outputs(job, r, o);
    for (int v = 0; v < vecs; v++, o += V32_LANES, sums += V32_LANES, c += V32_LANES) {
        const vi32 added = int8_added(parts, job, o);
        const v32 scales = v32_load(job->scale + o);
        const int32_t *of_row = sums;
        float *y = c;
        for (int i = 0; i < rows; i++, of_row += parts * part, y += cs)
            int8_output(parts, add, vi32_load(of_row), vi32_load(of_row + (parts - 1) * part), added,
                        scales * v32_set1(a[i].scale), y);
    }
}

LNRNN_OUTLINE void int8_outputs(int parts, int rows, int vecs, const product_job *job, size_t r, size_t o,
                                const int32_t *sums)
{
    if (parts == 2 && job->add)
        int8_outputs_of(2, 1, rows, vecs, job, r, o, sums);
    else if (parts == 2)
        int8_outputs_of(2, 0, rows, vecs, job, r, o, sums);
    else if (job->add)
        int8_outputs_of(1, 1, rows, vecs, job, r, o, sums);
    else
        int8_outputs_of(1, 0, rows, vecs, job, r, o, sums);
}

#endif
