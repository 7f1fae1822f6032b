/* Packed weights.
 *
 * W (n, k), n outputs and k inputs, is packed into panels, each with NR_VECS vectors of outputs. A panel
 * holds the weights of its outputs for input 0, then for input 1, and so on. A product reads a panel in
 * order, in whole vectors. The last panels may be narrower, and the last vector is padded with zeros.
 *
 * The weights of an output are stored in 32-bit words. Word j holds the float of input j, two bfloat16 of
 * inputs 2j and 2j + 1, or four int8 of inputs 4j to 4j + 3. The last word is padded with 0. In all three
 * types a panel has packed_words(k) words per output.
 */
#ifndef LNRNN_PACK_H
#define LNRNN_PACK_H

#include "lnrnn.h"
#include "lnrnn/kernels/table.h"
#include "lnrnn/simd/simd.h"

/* 1 if this translation unit packs weights of the type `dtype`. all.h compiles each type in its own unit. */
#if defined(LNRNN_PART_PRODUCT) || defined(LNRNN_PART_BLOCKS)
#define LNRNN_PACKS_F32(dtype) ((dtype) == LNRNN_WEIGHT_F32)
#else
#define LNRNN_PACKS_F32(dtype) ((void)(dtype), 0)
#endif
#ifndef LNRNN_PART_INT8
#define LNRNN_PACKS_INT8(dtype) ((void)(dtype), 0)
#elif defined(LNRNN_PART_PRODUCT) || defined(LNRNN_PART_BF16)
#define LNRNN_PACKS_INT8(dtype) lnrnn_is_int8(dtype)
#else
#define LNRNN_PACKS_INT8(dtype) ((void)(dtype), 1)
#endif

/* The number of outputs of a panel of full width. */
enum { NR = NR_VECS * V32_LANES };

/* The number of rows in an lnrnn_ahead (table.h). 0: too few registers for the sums of all these rows. */
#ifdef LNRNN_AHEAD
enum { ROWS_AHEAD = MR };
#else
enum { ROWS_AHEAD = 0 };
#endif

/* Returns n, the number of outputs, rounded up to whole vectors: the width of a row of sums. */
static size_t packed_width(size_t n) { return (n + V32_LANES - 1) / V32_LANES * V32_LANES; }

/* Returns the number of outputs of the next panel if `left` outputs remain. If a panel has three vectors, the
 * last four vectors become two panels of two. A tile of one vector would have more loads than
 * multiply-adds. */
LNRNN_INLINE size_t panel_width(size_t left)
{
    if (NR_VECS == 3 && left == 4 * V32_LANES)
        return 2 * V32_LANES;
    return left < NR ? left : NR;
}

/* Return the number of panels of n outputs, and the first output of panel p, at most packed_width(n). */
static inline size_t panel_count(size_t n) { return (packed_width(n) + NR - 1) / NR; }

LNRNN_INLINE size_t panel_start(size_t n, size_t p)
{
    const size_t width = packed_width(n), at = p * NR;
    if (at >= width)
        return width;
    return NR_VECS == 3 && p && width - at == V32_LANES ? at - V32_LANES : at;
}

/* Returns how many 32-bit words hold the k weights of an output. With AMX, the number is a multiple of
 * sixteen, because a tile has sixteen words in a column. */
static size_t packed_words(int dtype, size_t k)
{
    const size_t words = LNRNN_PACKS_F32(dtype) ? k : LNRNN_PACKS_INT8(dtype) ? (k + 3) / 4 : (k + 1) / 2;
#ifdef LNRNN_TILES
    return (words + 15) / 16 * 16;
#else
    return words;
#endif
}

/* An int8 product sums the inputs in blocks of 2048. A sum of a block of products of 14-bit and 8-bit
 * integers fits into 32 bits. */
enum { INT8_BLOCK_WORDS = 512 };

/* Returns in how many blocks, at least 1, an int8 product adds up `words` words of weights. */
static size_t int8_blocks(size_t words)
{
    /* GCOVR_EXCL_BR_LINE: a network has inputs */
    return words ? (words + INT8_BLOCK_WORDS - 1) / INT8_BLOCK_WORDS : 1;
}

/* Returns the number of 32-bit words of packed weights (n, k). With int8, the scales of the outputs
 * (packed_width(n)), and minus the sums of their weights, (blocks, packed_width(n)), follow the panels. */
static inline size_t packed_size(int dtype, size_t n, size_t k)
{
    const size_t words = packed_words(dtype, k);
    return packed_width(n) * (words + (LNRNN_PACKS_INT8(dtype) ? 1 + int8_blocks(words) : 0));
}

/* Returns 32-bit word j of the packed weights of one output. w (k), stride cs: these weights. inverse: 1 /
 * scale, for int8. */
LNRNN_INLINE uint32_t pack_word(int dtype, size_t k, const float *w, ptrdiff_t cs, size_t j, float inverse)
{
    uint32_t word = 0;
    if (LNRNN_PACKS_F32(dtype))
        memcpy(&word, w + (ptrdiff_t)j * cs, sizeof word);
    else if (!LNRNN_PACKS_INT8(dtype)) {
        for (size_t i = 0; i < 2 && 2 * j + i < k; i++)
            word |= (uint32_t)float_to_bf16(w[(ptrdiff_t)(2 * j + i) * cs]) << 16 * i;
    } else
        for (size_t i = 0; i < 4 && 4 * j + i < k; i++)
            word |= (uint32_t)(uint8_t)(int8_t)lrintf(w[(ptrdiff_t)(4 * j + i) * cs] * inverse) << 8 * i;
    return word;
}

/* from (4, 4), row stride rs -> to (4, 4), the transpose, row stride ts. The block is 4 x 4 on all
 * instruction sets, so that few rows are left over at the end of a panel. */
LNRNN_INLINE void transpose_4(const float *from, ptrdiff_t rs, float *to, size_t ts)
{
    typedef float four __attribute__((vector_size(16)));
    four a, b, c, d;
    memcpy(&a, from, sizeof a), memcpy(&b, from + rs, sizeof b);
    memcpy(&c, from + 2 * rs, sizeof c), memcpy(&d, from + 3 * rs, sizeof d);
    const four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const four ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7),
               cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    a = __builtin_shufflevector(ab, cd, 0, 1, 4, 5), b = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    c = __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5), d = __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7);
    memcpy(to, &a, sizeof a), memcpy(to + ts, &b, sizeof b);
    memcpy(to + 2 * ts, &c, sizeof c), memcpy(to + 3 * ts, &d, sizeof d);
}

/* w (n, k) float, row stride rs, contiguous rows -> packed. A row of w becomes a column of a panel. Reads
 * four rows at a time, because the hardware prefetches a few rows, but not sixteen. */
static void pack_by_rows(size_t n, size_t k, const float *w, ptrdiff_t rs, float *packed)
{
    const size_t width = packed_width(n), quads = k / 4 * 4;
    for (size_t p = 0, m; p < width; p += m, packed += m * k) {
        m = panel_width(width - p);
        const size_t real = n - p < m ? n - p : m, whole = real / 4 * 4;
        for (size_t o = 0; o < whole; o += 4)
            for (size_t j = 0; j < quads; j += 4)
                transpose_4(w + (ptrdiff_t)(p + o) * rs + j, rs, packed + j * m + o, m);
        for (size_t j = whole == m ? quads : 0; j < k; j++)
            for (size_t o = j < quads ? whole : 0; o < m; o++)
                packed[j * m + o] = o < real ? w[(ptrdiff_t)(p + o) * rs + (ptrdiff_t)j] : 0;
    }
}

/* v (n): the weights of input j. Writes them to packed (n, k), at j * m floats after the start of each panel
 * of m outputs. */
LNRNN_INLINE void pack_column(size_t n, size_t k, size_t j, const float *v, float *packed)
{
    const size_t width = packed_width(n);
    for (size_t p = 0, m; p < width; p += m) {
        m = panel_width(width - p);
        float *const to = packed + p * k + j * m;
        for (size_t i = 0; i < m; i += V32_LANES)
            v32_store(to + i,
                      p + i + V32_LANES <= n ? v32_load(v + p + i) : v32_load_n(v + p + i, n - p - i));
    }
}

/* w (k), stride cs: the weights of one output, most = max |w| > 0. Returns 1 if each weight is n most / top,
 * where n is an integer in the range of int8. The test allows for the rounding of `most` and of each weight
 * to float32, by at most 2^-24. */
LNRNN_INLINE int are_multiples(size_t k, const float *w, ptrdiff_t cs, float most, int top)
{
    const double step = (double)most / top;
    for (size_t j = 0; j < k; j++) {
        const double v = w[(ptrdiff_t)j * cs], n = v != 0 ? rint(v / step) : 0;
        if (fabs(v - n * step) > fabs(v) * 0x1.01p-23 || n > 127)
            return 0;
    }
    return 1;
}

/* w (k), stride cs: the weights of one output, most = max |w| > 0. Returns their scale in int8. Weights that
 * are integers times any scale become integers times this scale or a fraction of it, so they are not rounded
 * again. */
static float int8_scale(size_t k, const float *w, ptrdiff_t cs, float most)
{
    int top = 127;
    if (are_multiples(k, w, cs, most, top))
        return most / 127;
    for (top = 128; top && !are_multiples(k, w, cs, most, top); top--)
        ;
    return most / (float)(top ? top : 127);
}

/* w (n, k), strides rs, cs -> scale (n). The scale of an output is 0 if all its weights are below 2^-100,
 * because 1 / scale would overflow. If a weight is NaN or infinite, the output is NaN. */
static void int8_scales(size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs, float *scale)
{
    for (size_t o = 0; o < n; o++, w += rs) {
        float most = 0, check = 0;
        for (size_t j = 0; j < k; j++) {
            const float v = w[(ptrdiff_t)j * cs];
            most = fmaxf(most, fabsf(v));
            check += v * 0;
        }
        scale[o] = check != 0 ? NAN : most < 0x1p-100f ? 0 : int8_scale(k, w, cs, most);
    }
}

/* w (n, k) float, strides rs, cs -> packed, packed_size words. */
static inline void pack_weights(int dtype, size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs,
                                uint32_t *packed)
{
    const size_t width = packed_width(n), words = packed_words(dtype, k);
    const int int8 = LNRNN_PACKS_INT8(dtype);
    float *scale = (float *)(packed + width * words);
    int32_t *sums = (int32_t *)(scale + width);
    /* GCOVR_EXCL_BR_START: clang counts one variant of this function only */
    if (LNRNN_PACKS_F32(dtype) && cs == 1) {
        pack_by_rows(n, k, w, rs, (float *)packed);
        return;
    }
    if (LNRNN_PACKS_F32(dtype) && rs == 1) {
        for (size_t j = 0; j < k; j++)
            pack_column(n, k, j, w + (ptrdiff_t)j * cs, (float *)packed);
        /* GCOVR_EXCL_BR_STOP */
        return;
    }
    if (int8) {
        int8_scales(n, k, w, rs, cs, scale);
        memset(scale + n, 0, (width - n) * sizeof *scale);
    }
    if (int8)
        memset(sums, 0, int8_blocks(words) * width * sizeof *sums);
    for (size_t p = 0, m; p < width; p += m) {
        m = panel_width(width - p);
        for (size_t j = 0; j < words; j++)
            for (size_t i = 0; i < m; i++) {
                const size_t o = p + i;
                const float inverse = int8 && scale[o] > 0 ? 1 / scale[o] : 0;
                *packed = o < n ? pack_word(dtype, k, w + (ptrdiff_t)o * rs, cs, j, inverse) : 0;
                if (int8)
                    for (int b = 0; b < 4; b++)
                        sums[j / INT8_BLOCK_WORDS * width + o] -= (int8_t)(*packed >> 8 * b);
                packed++;
            }
    }
}

#endif
