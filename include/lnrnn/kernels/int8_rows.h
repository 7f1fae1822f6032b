/* Converts rows to integers before a product with int8 weights, and the sums of the product to floats
 * afterwards. Sums of integers are exact, so any order gives the same bits.
 *
 * LNRNN_WEIGHT_I8: activations have 14 bits, in two parts of 7, so that nearly all of the error comes from
 * the weights. LNRNN_WEIGHT_I8A8: activations have 8 bits, in one part, which needs half as many
 * multiplications. */
#ifndef LNRNN_INT8_ROWS_H
#define LNRNN_INT8_ROWS_H

#include "lnrnn/kernels/tile.h"

/* INT8_READ: the number of activations that a product reads at a time. INT8_ROWS: the number of rows that are
 * quantized before a product, which reads the weights once for them. */
#ifdef LNRNN_TILES
enum { INT8_READ = 64 };
#else
enum { INT8_READ = 4 };
#endif
enum { INT8_ROWS = 64 };

/* Rows of activations, a = scale * n. A part has four integers per word. With two parts n = 128 * first +
 * second - 8192. With one, the part is n as v32_store_s8 writes it. */
typedef struct {
    const uint32_t *part[2 * INT8_ROWS]; /* those of row 0, then those of row 1, .. */
    float scale[INT8_ROWS];
    int parts;  /* the number of parts of a row */
    int passes; /* 2: a tile multiplies the first parts of its rows, then the second ones; 1: all together */
} quantized_rows;

/* Returns the number of bytes of a part of a quantized row: k rounded up to a whole cache line, and one line
 * more. Without that line, rows of 1024 inputs would share the same sets of L1. */
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

/* x (k), top = max |x|. Writes the parts of x to scratch, int8_part_bytes(k) bytes each, and returns the
 * scale. If x has a NaN or an infinity, the scale is NaN, so that all outputs become NaN. */
LNRNN_INLINE float int8_quantize(int parts, size_t k, const float *x, float top, uint32_t *scratch)
{
    uint8_t *const first = (uint8_t *)scratch, *const second = first + int8_part_bytes(k);
    const float scale = top < 0x1p-100f ? 0 : top / (parts == 2 ? 8191 : 127); /* 1 / scale is finite */
    const v32 inverse = v32_set1(scale > 0 ? 1 / scale : 0);
    if (V32_LANES < INT8_READ) /* products read the last word or tile to its end, where weights are 0 */
        for (int part = 0; part < parts; part++)
            memset(first + (size_t)part * int8_part_bytes(k) + k / INT8_READ * INT8_READ, 0, INT8_READ);
    size_t i = 0;
    for (; i + 4 * V32_LANES <= k; i += 4 * V32_LANES) {
        v32 v[4];
        LNRNN_FOR_EACH (q, 4)
            v[q] = v32_load(x + i + q * V32_LANES) * inverse;
        if (parts == 2)
            v32_store4_s14(first + i, second + i, v);
        else
            v32_store4_s8(first + i, v);
    }
    for (; i + V32_LANES <= k; i += V32_LANES)
        int8_store(parts, first + i, second + i, v32_load(x + i) * inverse);
    if (i < k)
        int8_store(parts, first + i, second + i, v32_load_n(x + i, k - i) * inverse);
    return top < INFINITY ? scale : NAN;
}

/* a: `rows` pointers to (k) activations -> q. Computes the largest values of all rows first, so that the CPU
 * can overlap the divisions of one row with work for another. */
LNRNN_INLINE void int8_quantize_parts(const int parts, size_t k, size_t rows, const float *const *a,
                                      uint32_t *scratch, quantized_rows *q)
{
    const size_t words = int8_part_bytes(k) / sizeof *scratch;
    for (size_t i = 0; i < rows; i++)
        q->scale[i] = int8_top(k, a[i]);
    for (size_t i = 0; i < rows; i++, scratch += (size_t)parts * words) {
        q->scale[i] = int8_quantize(parts, k, a[i], q->scale[i], scratch);
        for (int part = 0; part < parts; part++)
            q->part[i * (size_t)parts + (size_t)part] = scratch + (size_t)part * words;
    }
    q->parts = parts, q->passes = 1;
}

static void int8_quantize_rows(const lnrnn_matmul *m, size_t rows, const float *const *a, quantized_rows *q)
{
    if (m->dtype == LNRNN_WEIGHT_I8)
        int8_quantize_parts(2, m->k, rows, a, m->scratch, q);
    else
        int8_quantize_parts(1, m->k, rows, a, m->scratch, q);
}

/* Selects block b of the inputs for the passes of job, and returns 1, or 0 if there is no such block. Later
 * blocks are added to c. */
LNRNN_INLINE int int8_block(const lnrnn_matmul *m, product_job *job, size_t b)
{
    if (b >= int8_blocks(job->words))
        return 0;
    const size_t first = b * INT8_BLOCK_WORDS, left = job->words - first, width = packed_width(m->n);
    job->first = first, job->end = first + (left < INT8_BLOCK_WORDS ? left : INT8_BLOCK_WORDS);
    job->add = b ? LNRNN_ADD_ON : m->add;
    job->sums = (const int32_t *)(m->w + width * (job->words + 1 + b));
    return 1;
}

/* The integers of activations have an offset, 8192 or S8_OFFSET. Returns minus the offset times the sum of
 * the weights, for a vector of outputs from o on. The sum of the first parts, which count 128 times as much
 * as the second ones, starts from it. */
LNRNN_INLINE vi32 int8_start(int parts, const product_job *job, size_t o)
{
    return parts == 2 || S8_OFFSET != 0 ? vi32_load(job->sums + o) << (parts == 2 ? 6 : 7) : vi32_zero();
}

#if S8_OFFSET != 0 && !defined(LNRNN_TILES)
/* sum (rows, vecs) -> job->c. */
LNRNN_INLINE void int8_outputs(const int rows, const int vecs, const product_job *job, size_t r, size_t o,
                               vi32 (*sum)[TILE_MOST_VECS])
{
    static const float zero[TILE_MOST_VECS * V32_LANES];
    const float *const scale = ((const quantized_rows *)job->a)->scale + r;
    float *c = tile_outputs(job, r, o);
    const float *before = job->add ? c : zero;
    const ptrdiff_t cs = job->cs, next = job->add ? cs : 0;
    v32 scales[TILE_MOST_VECS];
    LNRNN_FOR_EACH (v, vecs)
        scales[v] = v32_load(job->scale + o + v * V32_LANES);
    LNRNN_FOR_EACH (i, rows) {
        LNRNN_FOR_EACH (v, vecs)
            v32_store(c + v * V32_LANES, v32_fma(vi32_to_v32(sum[i][v]), scales[v] * v32_set1(scale[i]),
                                                 v32_load(before + v * V32_LANES)));
        c += cs, before += next;
    }
}
#else
/* sums (rows, each, vecs vectors) of a tile, where `each` is 2 if the parts of a row were multiplied
 * together. Sums of AMX do not include int8_start. Writes the outputs of `rows` rows from r on, from output o
 * on, to job->c. */
LNRNN_INLINE void int8_stored_outputs_of(const int each, int rows, int vecs, const product_job *job, size_t r,
                                         size_t o, const int32_t *sums)
{
    const float *const scale = ((const quantized_rows *)job->a)->scale + r;
    const ptrdiff_t line = (ptrdiff_t)vecs * V32_LANES, cs = job->cs;
    float *c = tile_outputs(job, r, o);
    for (int v = 0; v < vecs; v++, o += V32_LANES, sums += V32_LANES, c += V32_LANES) {
        const v32 scales = v32_load(job->scale + o);
#ifdef LNRNN_TILES
        const vi32 start = int8_start(each, job, o);
#else
        const vi32 start = vi32_zero();
#endif
        const int32_t *of_row = sums;
        float *y = c;
        for (int i = 0; i < rows; i++, of_row += each * line, y += cs) {
            vi32 sum = vi32_load(of_row) + start;
            if (each == 2)
                sum = (sum << 7) + vi32_load(of_row + line);
            v32_store(y, v32_fma(vi32_to_v32(sum), scales * v32_set1(scale[i]),
                                 job->add ? v32_load(y) : v32_zero()));
        }
    }
}

LNRNN_OUTLINE void int8_stored_outputs(int each, int rows, int vecs, const product_job *job, size_t r,
                                       size_t o, const int32_t *sums)
{
    if (each == 2)
        int8_stored_outputs_of(2, rows, vecs, job, r, o, sums);
    else
        int8_stored_outputs_of(1, rows, vecs, job, r, o, sums);
}
#endif

#endif
