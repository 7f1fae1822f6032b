/* Packed weights times rows.
 *
 * W (n, k) is packed into panels of NR_VECS vectors of outputs: panel p holds, for every input j in turn, the weights of
 * its outputs side by side, so that a product streams it with full-width loads from end to end. The last panels may be
 * narrower, and the last vector is filled up with zero weights. A word holds one float, two bfloat16 of inputs 2j and
 * 2j + 1, or four int8 of inputs 4j .. 4j + 3 (the rest of the last word 0): a panel is streamed alike in all three, and
 * has mm_words(k) words to an output.
 *
 * Every output is one chain of multiply-adds over j = 0 .. k-1 that starts from what c holds (or from 0). Tiles differ
 * only in how many chains run side by side: so the result for a row does not depend on the rows around it, nor on who
 * computes which panel. The library's promise of equal bits rests on this.
 */
#ifndef LNRNN_MATMUL_H
#define LNRNN_MATMUL_H

#include "lnrnn/simd/simd.h"

enum { LNRNN_F32, LNRNN_BF16, LNRNN_I8 }; /* as LNRNN_WEIGHT_F32 .. in lnrnn.h */

enum { NR = NR_VECS * V32_LANES };

/* A single row is bound by reading the weights. Where they do not stay in L2 (these many words) it helps to ask for them
 * some words ahead; where they do, asking only takes the place of reading (tests/benchmarks, rnn B1). */
enum { MM_FAR = 160 * 1024, MM_AHEAD = 512 };

/* Several rows do more between two loads of a weight, and want it asked for earlier (lstm B8-H1024). */
enum { MM_AHEAD_TILE = 2048 };

/* What a tile asks for: nothing, the weights that come, or the rows that follow its own. */
enum { MM_FETCH_NONE, MM_FETCH_WEIGHTS, MM_FETCH_ROWS };

/* Words that L1 holds. Weights of up to a third more go through it by halves, one step forwards and the next backwards: the
 * half that ended a step is there when the next begins. Each half has half the chains, which for float32 still keep up with
 * L2 (rnn B1-H128). */
enum { MM_NEAR = 12 * 1024, MM_HALVES = 16 * 1024 };

/* Floats in a cache line. */
enum { MM_LINE = 16 };

static size_t mm_width(size_t n) { return (n + V32_LANES - 1) / V32_LANES * V32_LANES; }

/* The width of the panel that starts where `left` floats are left. Four vectors become two and two where a panel has three:
 * one vector alone gives a tile more loads than multiply-adds. */
LNRNN_INLINE size_t mm_panel(size_t left)
{
    if (NR_VECS == 3 && left == 4 * V32_LANES)
        return 2 * V32_LANES;
    return left < NR ? left : NR;
}

/* How many panels; and the float, of width, that panel p starts at. */
static size_t mm_panels(size_t n)
{
    const size_t vecs = mm_width(n) / V32_LANES;
    return (vecs + NR_VECS - 1) / NR_VECS;
}

LNRNN_INLINE size_t mm_start(size_t n, size_t p)
{
    const size_t width = mm_width(n), at = p * NR;
    if (at >= width)
        return width;
    return NR_VECS == 3 && p && width - at == V32_LANES ? at - V32_LANES : at;
}

static size_t mm_words(int dtype, size_t k)
{
    return dtype == LNRNN_F32 ? k : dtype == LNRNN_BF16 ? (k + 1) / 2 : (k + 3) / 4;
}

/* Words of a packed (n, k). int8 has its scales and its rows' sums, (n) each, behind the panels. */
static size_t mm_size(int dtype, size_t n, size_t k)
{
    return mm_width(n) * (mm_words(dtype, k) + (dtype == LNRNN_I8 ? 2 : 0));
}

/* To bfloat16: nearest, ties to even; a NaN stays one. */
LNRNN_INLINE uint32_t mm_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return f == f ? (u + 0x7fff + (u >> 16 & 1)) >> 16 : u >> 16 | 0x40;
}

/* The word of inputs j of one output: w (k), cs apart. inverse: 1 / scale, for int8. */
LNRNN_INLINE uint32_t mm_word(int dtype, size_t k, const float *w, ptrdiff_t cs, size_t j, float inverse)
{
    uint32_t word = 0;
    if (dtype == LNRNN_F32)
        memcpy(&word, w + (ptrdiff_t)j * cs, sizeof word);
    else if (dtype == LNRNN_BF16) {
        for (size_t i = 0; i < 2 && 2 * j + i < k; i++)
            word |= mm_bf16(w[(ptrdiff_t)(2 * j + i) * cs]) << 16 * i;
    } else
        for (size_t i = 0; i < 4 && 4 * j + i < k; i++)
            word |= (uint32_t)(uint8_t)(int8_t)lrintf(w[(ptrdiff_t)(4 * j + i) * cs] * inverse) << 8 * i;
    return word;
}

/* w (n, k), rs values from row to row, cs from column to column -> packed, mm_size words. int8: every output has the scale
 * max |w| / 127. */
static void mm_pack(int dtype, size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs,
                    uint32_t *packed)
{
    const size_t width = mm_width(n), words = mm_words(dtype, k);
    float *scale = (float *)(packed + width * words);
    int32_t *sums = (int32_t *)(scale + width);
    if (dtype == LNRNN_I8)
        for (size_t o = 0; o < width; o++) {
            float most = 0, check = 0;
            for (size_t j = 0; o < n && j < k; j++) {
                const float v = w[(ptrdiff_t)o * rs + (ptrdiff_t)j * cs];
                most = fmaxf(most, fabsf(v));
                check += v * 0;
            }
            /* below, 1 / scale would overflow, and such a row is nothing beside any other; a NaN or an infinity among the
             * weights makes the output NaN */
            scale[o] = check != 0 ? NAN : most < 0x1p-100f ? 0 : most / 127;
            sums[o] = 0;
        }
    for (size_t p = 0, m; p < width; p += m) {
        m = mm_panel(width - p);
        for (size_t j = 0; j < words; j++)
            for (size_t i = 0; i < m; i++) {
                const size_t o = p + i;
                const float inverse = dtype == LNRNN_I8 && scale[o] > 0 ? 1 / scale[o] : 0;
                *packed = o < n ? mm_word(dtype, k, w + (ptrdiff_t)o * rs, cs, j, inverse) : 0;
                if (dtype == LNRNN_I8)
                    for (int b = 0; b < 4; b++)
                        sums[o] += (int8_t)(*packed >> 8 * b);
                packed++;
            }
    }
}

/* Floats for the transpose of x, given as k pointers to rows of n floats: w[i][j] = x[j][i]. */
static void mm_pack_rows(size_t n, size_t k, const float *const *x, uint32_t *packed)
{
    const size_t width = mm_width(n);
    for (size_t p = 0, m; p < width; p += m) {
        m = mm_panel(width - p);
        const size_t real = n - p < m ? n - p : m;
        for (size_t j = 0; j < k; j++, packed += m) {
            memcpy(packed, x[j] + p, real * sizeof *packed);
            memset(packed + real, 0, (m - real) * sizeof *packed);
        }
    }
}

/* What the tiles of one product share. */
typedef struct {
    size_t k, words;
    const uint32_t *w;
    int add, far, halves, back;
    const float *scale;  /* int8: of the outputs */
    const int32_t *sums; /* int8: of the outputs' weights */
} mm_job;

/* The word j of vector v of a tile that starts at output o: `wide` whole panels, then panels of `tail` vectors. */
LNRNN_INLINE const uint32_t *mm_at(const mm_job *job, size_t o, int wide, int tail, int v, size_t j)
{
    const int size = v < wide * NR_VECS ? NR_VECS : tail, in = v < wide * NR_VECS ? v : v - wide * NR_VECS;
    const size_t before =
        o + (size_t)(v - in % size) * V32_LANES; /* the first output of this vector's panel */
    return job->w + before * job->words + (j * (size_t)size + (size_t)(in % size)) * V32_LANES;
}

/* Vectors of accumulators that one row may have: three panels and two of two vectors, or four panels. */
enum { MM_MOST = 3 * NR_VECS + 4 };

/* Rows in int8's tiles, which have two accumulators for an output. */
enum { MM_I8_ROWS = MR / 2 };

/* Words of scratch that int8 needs for rows of k activations. */
static size_t mm_scratch(int dtype, size_t k)
{
    const size_t bytes = (k + V32_LANES - 1) / V32_LANES * V32_LANES;
    return dtype == LNRNN_I8 ? (size_t)MM_I8_ROWS * 2 * (bytes / 4 + 1) : 0;
}

#ifdef LNRNN_PART_PRODUCT

/* a: rows pointers to k floats -> c (rows, the tile's outputs), cs floats from row to row. The counts are constants where
 * this is called: the loops unroll and acc lives in registers. So is fetch; MM_FETCH_ROWS: as many rows as the tile has,
 * those that follow it in a. */
LNRNN_INLINE void float_tile(int bf16, int rows, int wide, int tails, int tail, int fetch, const mm_job *job,
                             const float *const *a, size_t o, float *c, ptrdiff_t cs)
{
    const int vecs = wide * NR_VECS + tails * tail;
    const size_t whole = bf16 ? job->k / 2 : job->words;
    v32 acc[MR][MM_MOST];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++)
            acc[i][v] = job->add ? v32_load(c + i * cs + v * V32_LANES) : v32_zero();
    for (size_t j = 0; j < whole; j++) {
        if (fetch == MM_FETCH_ROWS && j % MM_LINE == 0)
#pragma GCC unroll 16
            for (int i = 0; i < rows; i++) {
                v32_prefetch(a[rows + i] + (bf16 ? 2 * j : j));
                if (bf16)
                    v32_prefetch(a[rows + i] + 2 * j + MM_LINE);
            }
        v32 b[MM_MOST], odd[MM_MOST];
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++) {
            const uint32_t *p = mm_at(job, o, wide, tail, v, j);
            b[v] = bf16 ? v32_bf16_pair(p, &odd[v]) : v32_load((const float *)p);
            if (fetch == MM_FETCH_WEIGHTS)
                v32_prefetch((const float *)p + (rows == 1 ? MM_AHEAD : MM_AHEAD_TILE));
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const v32 s = v32_set1(a[i][bf16 ? 2 * j : j]);
#pragma GCC unroll 16
            for (int v = 0; v < vecs; v++)
                acc[i][v] = v32_fma(s, b[v], acc[i][v]);
        }
        if (!bf16)
            continue;
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const v32 s = v32_set1(a[i][2 * j + 1]);
#pragma GCC unroll 16
            for (int v = 0; v < vecs; v++)
                acc[i][v] = v32_fma(s, odd[v], acc[i][v]);
        }
    }
    if (bf16 && job->k % 2) /* the last input, alone in its word */
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++) {
            v32 odd;
            const v32 b = v32_bf16_pair(mm_at(job, o, wide, tail, v, whole), &odd);
#pragma GCC unroll 16
            for (int i = 0; i < rows; i++)
                acc[i][v] = v32_fma(v32_set1(a[i][job->k - 1]), b, acc[i][v]);
        }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++)
            v32_store(c + i * cs + v * V32_LANES, acc[i][v]);
}

LNRNN_INLINE void f32_tile(int rows, int wide, int tails, int tail, int fetch, const mm_job *job,
                           const float *const *a, size_t o, float *c, ptrdiff_t cs)
{
    float_tile(0, rows, wide, tails, tail, fetch, job, a, o, c, cs);
}

LNRNN_INLINE void bf16_tile(int rows, int wide, int tails, int tail, int fetch, const mm_job *job,
                            const float *const *a, size_t o, float *c, ptrdiff_t cs)
{
    float_tile(1, rows, wide, tails, tail, fetch, job, a, o, c, cs);
}

#define ROWS MR
#define A const float *
#define F(name) f32_##name
#include "lnrnn/kernels/matmul_walk.h"
#undef F
#define F(name) bf16_##name
#include "lnrnn/kernels/matmul_walk.h"
#undef F
#undef ROWS
#undef A

/* a: rows pointers to k floats each; packed (n, k); c (rows, mm_width(n)), cs floats from row to row
 * -> c[i][o] (+)= sum_j a[i][j] w[o][j] for the outputs o of panels p0 <= p < p1; outputs past n become what they were
 * (add) or 0. back: from the last panel to the first, so that a caller who comes again finds in the cache what he read
 * last. dtype: LNRNN_F32 or LNRNN_BF16; scratch is not used. */
static void mm_float(int dtype, size_t rows, size_t n, size_t k, const float *const *a,
                     const uint32_t *packed, size_t p0, size_t p1, int add, int back, float *c, ptrdiff_t cs,
                     uint32_t *scratch)
{
    const size_t width = mm_width(n), words = mm_words(dtype, k);
    const mm_job job = {k, words, packed, add, width * words > MM_FAR, dtype == LNRNN_F32, back, NULL, NULL};
    (void)scratch;
    if (dtype == LNRNN_F32)
        f32_walk(&job, rows, a, n, p0, p1, c, cs);
    else
        bf16_walk(&job, rows, a, n, p0, p1, c, cs);
}
#endif

#ifdef LNRNN_PART_INT8

/* A row of activations: a = scale * (128 high + low - 8192), high and low 7 bits each and four to a word: 14 bits in all, so that the weights' 8
 * are what costs accuracy. Sums of integers are exact: any order gives the same bits. */
typedef struct {
    const uint32_t *high, *low;
    float scale;
} mm_i8_row;

LNRNN_INLINE void i8_tile(int rows, int wide, int tails, int tail, int fetch, const mm_job *job,
                          const mm_i8_row *a, size_t o, float *c, ptrdiff_t cs)
{
    const int vecs = wide * NR_VECS + tails * tail;
    vi32 high[MM_I8_ROWS][MM_MOST], low[MM_I8_ROWS][MM_MOST];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++)
            high[i][v] = low[i][v] = vi32_zero();
    for (size_t j = 0; j < job->words; j++) {
        const uint32_t *w[MM_MOST];
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++) {
            w[v] = mm_at(job, o, wide, tail, v, j);
            if (fetch == MM_FETCH_WEIGHTS)
                v32_prefetch((const float *)w[v] + (rows == 1 ? MM_AHEAD : MM_AHEAD_TILE));
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
#pragma GCC unroll 16
            for (int v = 0; v < vecs; v++)
                high[i][v] = vi32_dot4(high[i][v], a[i].high[j], w[v]);
#pragma GCC unroll 16
            for (int v = 0; v < vecs; v++)
                low[i][v] = vi32_dot4(low[i][v], a[i].low[j], w[v]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++) {
            float *to = c + i * cs + v * V32_LANES;
            const size_t at = o + (size_t)v * V32_LANES;
            /* high - 64 * sums is what the signed high parts would have summed to: small, and exact as a float */
            const v32 sum =
                v32_fma(vi32_less_64(high[i][v], job->sums + at), v32_set1(128.0f), vi32_to_v32(low[i][v]));
            const v32 scale = v32_mul(v32_load(job->scale + at), v32_set1(a[i].scale));
            v32_store(to, job->add ? v32_fma(sum, scale, v32_load(to)) : v32_mul(sum, scale));
        }
}

/* x (k) -> its two parts in room for k bytes each, rounded up to whole vectors. A row with a NaN or an infinity becomes
 * NaN, for it has no scale. */
static mm_i8_row mm_i8_quantize(size_t k, const float *x, uint32_t *room)
{
    const size_t words = (k + V32_LANES - 1) / V32_LANES * V32_LANES / 4 + 1;
    uint8_t *high = (uint8_t *)room, *low = (uint8_t *)(room + words);
    v32 most = v32_zero(), check = v32_zero();
    for (size_t i = 0; i < k; i += V32_LANES) {
        const v32 v = v32_load_n(x + i, k - i < V32_LANES ? k - i : V32_LANES);
        most = v32_max(v32_abs(v), most);
        check = v32_fma(v, v32_zero(), check);
    }
    float lanes[V32_LANES], top = 0;
    v32_store(lanes, most);
    for (int i = 0; i < V32_LANES; i++)
        top = lanes[i] > top ? lanes[i] : top;
    const float scale = top < 0x1p-100f ? 0 : top / 8191; /* 1 / scale must be finite */
    const v32 inverse = v32_set1(scale > 0 ? 1 / scale : 0);
    for (size_t i = 0; i < k; i += V32_LANES) {
        const v32 v = v32_load_n(x + i, k - i < V32_LANES ? k - i : V32_LANES);
        const v32 u = v32_add(v32_round(v32_mul(v, inverse)), v32_set1(8192.0f));
        /* floor(u / 128): u is whole, so nothing lies within 1/256 of a tie */
        const v32 h = v32_round(v32_mul(v32_sub(u, v32_set1(63.5f)), v32_set1(1.0f / 128)));
        v32_store_u8(high + i, h);
        v32_store_u8(low + i, v32_sub(u, v32_mul(h, v32_set1(128.0f))));
    }
    return (mm_i8_row){room, room + words, v32_sum(check) == 0 ? scale : NAN};
}

#define F(name) i8_##name
#define ROWS MM_I8_ROWS
#define A mm_i8_row
#include "lnrnn/kernels/matmul_walk.h"
#undef F
#undef ROWS
#undef A

/* mm_float's arguments with int8 weights. scratch: mm_scratch(dtype, k) words. */
static void mm_int8(int dtype, size_t rows, size_t n, size_t k, const float *const *a, const uint32_t *packed,
                    size_t p0, size_t p1, int add, int back, float *c, ptrdiff_t cs, uint32_t *scratch)
{
    const size_t width = mm_width(n), words = mm_words(dtype, k);
    const float *scale = (const float *)(packed + width * words);
    const mm_job job = {
        k, words, packed, add, width * words > MM_FAR, 0, back, scale, (const int32_t *)(scale + width)};
    for (size_t r = 0; r < rows; r += MM_I8_ROWS) { /* rows outside: each is made whole numbers once */
        mm_i8_row q[MM_I8_ROWS];
        const size_t m = rows - r < MM_I8_ROWS ? rows - r : MM_I8_ROWS;
        for (size_t i = 0; i < m; i++)
            q[i] = mm_i8_quantize(k, a[r + i], scratch + i * (mm_scratch(dtype, k) / MM_I8_ROWS));
        i8_walk(&job, m, q, n, p0, p1, c + (ptrdiff_t)r * cs, cs);
    }
}
#endif

#endif
