/* Converts rows to integers before a product with int8 weights, and the sums of the product to floats
 * afterwards. Sums of integers are exact, so any order gives the same bits.
 *
 * LNRNN_WEIGHT_I8: activations have 14 bits, in two parts of 7, so that nearly all of the error comes from
 * the weights. LNRNN_WEIGHT_I8A8: activations have 8 bits, in one part, which needs half as many
 * multiplications. */
#ifndef LNRNN_INT8_ROWS_H
#define LNRNN_INT8_ROWS_H

#include "lnrnn/kernels/tile.h"

/* INT8_READ: the number of activations that a product reads at a time. INT8_ROWS: the most rows that are
 * quantized together, so that a product reads the weights once for all of them. */
#ifdef LNRNN_TILES
enum { INT8_READ = 64 };
#else
enum { INT8_READ = 4 };
#endif
enum { INT8_ROWS = 64 };

/* Quantized activations: a = scale * (n + zero), with integers n, four in a 32-bit word. With two parts, n =
 * 128 * first + second - 8192, and zero is 0. With one part, n is stored as v32_store_s8 does. */
typedef struct quantized_rows {
    const uint32_t *part[2 * INT8_ROWS]; /* all parts of row 0, then of row 1, .. */
    float scale[INT8_ROWS];
    int32_t zero[INT8_ROWS];
    int parts;  /* the number of parts of a row */
    int passes; /* 2: a tile multiplies the first parts of its rows, then the second parts; 1: all together */
} quantized_rows;

/* Returns the number of bytes of a part of a quantized row: k rounded up to whole cache lines, plus one line.
 * Without the additional line, rows of 1024 inputs would share the same sets of L1. */
static size_t int8_part_bytes(size_t k) { return (k + 63) / 64 * 64 + 64; }

/* Returns the number of 32-bit words of scratch that a product of `rows` rows of k activations needs. */
static inline size_t int8_scratch(int dtype, size_t rows, size_t k)
{
    const size_t parts = dtype == LNRNN_WEIGHT_I8 ? 2 : 1;
    return (rows < INT8_ROWS ? rows : INT8_ROWS) * parts * (int8_part_bytes(k) / sizeof(uint32_t));
}

/* Returns max(v, 0) for each lane. NaN stays NaN. */
LNRNN_INLINE v32 int8_positive(v32 v) { return v32_abs(v32_select_lt(v, v32_zero(), v32_zero(), v)); }

/* x (k). parts = 1: sets high to max(x, 0) and low to max(-x, 0); 2: sets both to max |x|. If x has a NaN,
 * both are NaN or infinity. */
LNRNN_INLINE void int8_ends(const int parts, size_t k, const float *x, float *high, float *low)
{
    v32 most = v32_zero(), least = v32_zero();
    for (size_t i = 0; i < k; i += V32_LANES) {
        const v32 v = i + V32_LANES <= k ? v32_load(x + i) : v32_load_n(x + i, k - i);
        most = v32_larger(parts == 2 ? v32_abs(v) : int8_positive(v), most);
        if (parts == 1)
            least = v32_larger(int8_positive(v32_zero() - v), least);
    }
    *high = v32_largest(most);
    *low = parts == 2 ? *high : v32_largest(least);
}

/* Stores integers v as bytes. With two parts, `first` gets the high 7 bits, and `second` the low bits. */
LNRNN_INLINE void int8_store(const int parts, uint8_t *first, uint8_t *second, v32 v)
{
    if (parts == 2)
        v32_store_s14(first, second, v);
    else
        v32_store_s8(first, v);
}

/* Returns the integers n of the activations v (quantized_rows) before rounding. With one part, the extreme
 * values could round to 128, so n is limited to +-127. */
LNRNN_INLINE v32 int8_scaled(const int parts, v32 v, v32 inverse, v32 zero)
{
    const v32 most = v32_set1(127), n = v * inverse - zero;
    if (parts == 2)
        return v * inverse;
    return v32_select_lt(n, -most, -most, v32_select_lt(most, n, most, n));
}

/* x (k); high, low: the results of int8_ends. Writes the parts of x to scratch, int8_part_bytes(k) bytes
 * each. Sets row i of q. If x has a NaN or an infinity, the scale is NaN, so that all outputs become NaN. An
 * activation of 0 is exact, because q->zero is an integer. */
LNRNN_INLINE void int8_quantize(const int parts, size_t k, const float *x, float high, float low,
                                uint32_t *scratch, quantized_rows *q, size_t row)
{
    uint8_t *const first = (uint8_t *)scratch, *const second = first + int8_part_bytes(k);
    const float top = high > low ? high : low;
    const float scale = top < 0x1p-100f ? 0 /* else 1 / scale could be infinite */
                        : parts == 2    ? top / 8191
                                        : high / 254 + low / 254;
    const float inverse_scale = scale > 0 && top < INFINITY ? 1 / scale : 0;
    const v32 inverse = v32_set1(inverse_scale);
    q->scale[row] = top < INFINITY ? scale : NAN;
    q->zero[row] = inverse_scale > 0 ? (int32_t)lrintf((high - low) * inverse_scale * 0.5f) : 0;
    const v32 zero = v32_set1((float)q->zero[row]);
    if (V32_LANES < INT8_READ) /* fill up the last 32-bit word or tile, whose weights are 0 */
        for (int part = 0; part < parts; part++)
            memset(first + (size_t)part * int8_part_bytes(k) + k / INT8_READ * INT8_READ, 0, INT8_READ);
    size_t i = 0;
    for (; i + 4 * V32_LANES <= k; i += 4 * V32_LANES) {
        v32 v[4];
        LNRNN_FOR_EACH (each, 4)
            v[each] = int8_scaled(parts, v32_load(x + i + each * V32_LANES), inverse, zero);
        if (parts == 2)
            v32_store4_s14(first + i, second + i, v);
        else
            v32_store4_s8(first + i, v);
    }
    for (; i + V32_LANES <= k; i += V32_LANES)
        int8_store(parts, first + i, second + i, int8_scaled(parts, v32_load(x + i), inverse, zero));
    if (i < k)
        int8_store(parts, first + i, second + i, int8_scaled(parts, v32_load_n(x + i, k - i), inverse, zero));
}

/* a: `rows` pointers to (k) activations -> q. Finds the largest values of all rows first, so that the
 * divisions of different rows overlap. */
LNRNN_INLINE void int8_quantize_parts(const int parts, size_t k, size_t rows, const float *const *a,
                                      uint32_t *scratch, quantized_rows *q)
{
    const size_t words = int8_part_bytes(k) / sizeof *scratch;
    float low[INT8_ROWS];
    for (size_t i = 0; i < rows; i++)
        int8_ends(parts, k, a[i], &q->scale[i], &low[i]);
    for (size_t i = 0; i < rows; i++, scratch += (size_t)parts * words) {
        int8_quantize(parts, k, a[i], q->scale[i], low[i], scratch, q, i);
        for (int part = 0; part < parts; part++)
            q->part[i * (size_t)parts + (size_t)part] = scratch + (size_t)part * words;
    }
    q->parts = parts, q->passes = 1;
}

LNRNN_OUTLINE void int8_quantize_rows(const lnrnn_matmul *m, size_t rows, const float *const *a,
                                      quantized_rows *q)
{
    if (m->dtype == LNRNN_WEIGHT_I8)
        int8_quantize_parts(2, m->k, rows, a, m->scratch, q);
    else
        int8_quantize_parts(1, m->k, rows, a, m->scratch, q);
}

/* An int8 product adds up the inputs in blocks, since a longer sum could overflow 32 bits. Selects block b of
 * inputs for `job`. Returns 0 if b is past the last block. Blocks after the first add to c. */
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
 * the weights, for a vector of outputs from o on. The sum of products of the first parts starts from this
 * value. First parts count 128 times as much as second parts. */
LNRNN_INLINE vi32 int8_start(int parts, const product_job *job, size_t o)
{
    return parts == 2 || S8_OFFSET != 0 ? vi32_load(job->sums + o) << (parts == 2 ? 6 : 7) : vi32_zero();
}

/* sum: sums of products of weights with n, for a row of activations scale * (n + zero). Adds `zero` times
 * the sums of the weights, which job->sums has with the opposite sign. */
LNRNN_INLINE vi32 int8_shifted(vi32 sum, int32_t zero, const product_job *job, size_t o)
{
    return sum - vi32_load(job->sums + o) * zero;
}

#if S8_OFFSET != 0 && !defined(LNRNN_TILES)
/* sum (rows, vecs) -> job->c, as int8_stored_outputs_of, but from sums in registers. */
LNRNN_INLINE void int8_outputs(const int each, const int rows, const int vecs, const product_job *job,
                               size_t r, size_t o, vi32 (*sum)[TILE_MOST_VECS])
{
    static const float zero[TILE_MOST_VECS * V32_LANES];
    const quantized_rows *const q = job->a;
    const float *const scale = q->scale + r;
    float *c = tile_outputs(job, r, o);
    const float *before = job->add ? c : zero;
    const ptrdiff_t cs = job->cs, next = job->add ? cs : 0;
    v32 scales[TILE_MOST_VECS];
    LNRNN_FOR_EACH (v, vecs)
        scales[v] = v32_load(job->scale + o + v * V32_LANES);
    LNRNN_FOR_EACH (i, rows) {
        LNRNN_FOR_EACH (v, vecs)
            if (each == 1)
                sum[i][v] = int8_shifted(sum[i][v], q->zero[r + (size_t)i], job, o + (size_t)v * V32_LANES);
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
    const quantized_rows *const q = job->a;
    const float *const scale = q->scale + r;
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
            sum = each == 2 ? (sum << 7) + vi32_load(of_row + line)
                            : int8_shifted(sum, q->zero[r + (size_t)i], job, o);
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
