/* Operations that only some CPUs have: dot products of bfloat16, blocks (Arm's matrix products), and AMX
 * tiles.
 *
 *   (v32)   dot2(v, a, p)     v + the dot product of the two bfloat16 of a (one word for all lanes) and
 *                             the two at p (a word for each lane); a word has an even input in its low half
 *                             and the next input, which is odd, in its high half
 *
 *   (vblock) Two words of one row (or output), then two words of the next row. vsum: a vector of sums of
 *            products, v32 for bfloat16 and vi32 for signed bytes.
 *           block_of_rows(p, q)         p[0] p[1] q[0] q[1]
 *           block_of_outputs(p, q, h)   p: a word of each of four outputs; q: their next words -> the block
 *                             of two outputs, 2h and 2h+1: p[2h] q[2h] p[2h+1] q[2h+1]
 *           vsum_half(r, s, h)  lanes 2h and 2h+1 of r, then of s. If r and s are sums of two rows, this is a
 *                             block of sums: two rows by two outputs. If they are blocks, this is row h of
 *                             both
 *           vsum_dot(v, a, p)   dot2 or dot4_s8
 *           vsum_block_dot(c, a, b)   the block of sums c + two rows a times two outputs b, with the bits of
 *                             a vsum_dot of the first words, and then one of the second words
 *
 *   (tiles) A tile has up to 16 rows of 16 words, and tiles are numbered 0 to 7. The numbers
 *           must be constants.
 *           begin(t, rows)    tiles 0 to 5 get `rows` rows, 1 to 16, tiles 6 and 7 sixteen; all values are 0
 *           end(t)            releases the tiles
 *           zero(t, i)        tile i is 0
 *           load(t, i, p, s)  rows from p, p + s bytes, ..
 *           store(t, i, p, s) likewise
 *           dot_bf16(t, c, a, b)   float tile c += tile a times tile b (6 or 7), whose words have two
 *                             bfloat16. Word k of each row of a is multiplied by row k of b
 *           dot_u8(t, c, a, b)     the same for int32 sums; words have four bytes, unsigned in a, and
 *                             signed in b
 *
 * With LNRNN_EMULATED these operations are plain C with the same bits, for machines without the instructions.
 * The C follows the manuals: the order of sums, the roundings, and 0 for subnormal operands and results.
 * Intel, Architecture Instruction Set Extensions Programming Reference: VDPBF16PS, TDPBF16PS, TDPBUSD. Arm,
 * Architecture Reference Manual: BFDOT, BFMMLA.
 */
#ifndef LNRNN_UNITS_H
#define LNRNN_UNITS_H

#include "lnrnn/simd/simd.h"

/* Replaces a subnormal number by 0 of the same sign. */
LNRNN_INLINE float without_subnormal(float v)
{
    const uint32_t u = float_bits(v);
    return u & 0x7f800000 ? v : bits_float(u & 0x80000000);
}

/* Returns sum + one product of two bfloat16, rounded once, to nearest even. As in the CPU's unit, a result
 * below the smallest normal number is 0, even if float would round it up to that number. In double the
 * product is exact. The rounding of the sum does not matter, because a product whose bits it would round away
 * is below 2^-160. */
LNRNN_INLINE float unit_fma(uint32_t a, uint32_t b, float sum)
{
    const float x = without_subnormal(bits_float(a)), y = without_subnormal(bits_float(b)),
                before = without_subnormal(sum), after = fmaf(x, y, before);
    return fabs((double)x * y + before) < 0x1p-126 - 0x1p-151 ? copysignf(0, after) : after;
}

/* --- dot2 -------------------------------------------------------------------------------------------- */

#if defined(LNRNN_EMULATED) && defined(LNRNN_ISA_NEONBF16)
/* v is a sum or product in double, rest its rounding error. Returns v + rest as float, rounded to odd:
 * truncated, and if that is not exact, with the last bit set. */
LNRNN_INLINE float to_odd(double v, double rest)
{
    if (!(fabs(v) < 0x1p128))
        return (float)v;
    uint64_t u;
    memcpy(&u, &v, sizeof u);
    if (rest != 0 && !(u & 1)) /* round to odd in double first, so that the conversion knows v is not exact */
        u = (rest > 0) == (v > 0) ? u + 1 : u - 1;
    memcpy(&v, &u, sizeof v);
    if (fabs(v) < 0x1p-126)
        return copysignf(0, (float)v);
    uint32_t near = float_bits((float)v);
    if ((double)bits_float(near) != v)
        near = (fabs((double)bits_float(near)) > fabs(v) ? near - 1 : near) | 1;
    return bits_float(near);
}

LNRNN_INLINE float odd_product(uint32_t a, uint32_t b)
{
    return to_odd((double)without_subnormal(bits_float(a)) * (double)without_subnormal(bits_float(b)), 0);
}

LNRNN_INLINE float odd_sum(float a, float b)
{
    const double sum = (double)a + b, of_b = sum - a;
    return to_odd(sum, (a - (sum - of_b)) + (b - of_b));
}

/* Multiplies the words a and b, two bfloat16 each. Adds the two products to each other, and the result to
 * sum. */
LNRNN_INLINE float odd_dot2(float sum, uint32_t a, uint32_t b)
{
    const float both = odd_sum(odd_product(a << 16, b << 16), odd_product(a & 0xffff0000, b & 0xffff0000));
    return odd_sum(without_subnormal(sum), both);
}

LNRNN_OUTLINE v32 v32_dot2(v32 v, uint32_t a, const uint32_t *p)
{
    float sum[V32_LANES];
    v32_store(sum, v);
    for (int i = 0; i < V32_LANES; i++)
        sum[i] = odd_dot2(sum[i], a, p[i]);
    return v32_load(sum);
}
#elif defined(LNRNN_EMULATED)
LNRNN_OUTLINE v32 v32_dot2(v32 v, uint32_t a, const uint32_t *p)
{
    float sum[V32_LANES];
    v32_store(sum, v);
    for (int i = 0; i < V32_LANES; i++) { /* the instruction adds the odd input first */
        sum[i] = unit_fma(a & 0xffff0000, p[i] & 0xffff0000, sum[i]);
        sum[i] = unit_fma(a << 16, p[i] << 16, sum[i]);
    }
    return v32_load(sum);
}
#elif defined(LNRNN_ISA_NEONBF16)
LNRNN_INLINE v32 v32_dot2(v32 v, uint32_t a, const uint32_t *p)
{
    return vbfdotq_f32(v, vreinterpretq_bf16_u32(vdupq_n_u32(a)), vreinterpretq_bf16_u32(vld1q_u32(p)));
}
#elif defined(__AVX512BF16__)
/* Assembler instead of the intrinsic, with which GCC 12 would spill the accumulators. */
LNRNN_INLINE v32 v32_dot2(v32 v, uint32_t a, const uint32_t *p)
{
    const __m512i s = _mm512_set1_epi32((int)a), w = _mm512_loadu_si512(p);
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(v) : "v"(s), "v"(w));
    return v;
}
#endif

/* --- blocks ------------------------------------------------------------------------------------------ */

#ifdef LNRNN_BLOCKS
typedef uint32x4_t vblock;

LNRNN_INLINE vblock block_of_rows(const uint32_t *p, const uint32_t *q)
{
    return vcombine_u32(vld1_u32(p), vld1_u32(q));
}

LNRNN_INLINE vblock block_of_outputs(const uint32_t *p, const uint32_t *q, int h)
{
    return h ? vzip2q_u32(vld1q_u32(p), vld1q_u32(q)) : vzip1q_u32(vld1q_u32(p), vld1q_u32(q));
}

#ifdef LNRNN_ISA_NEONI8MM
typedef vi32 vsum;
LNRNN_INLINE vsum vsum_dot(vsum v, uint32_t a, const uint32_t *p) { return vi32_dot4_s8(v, a, p); }
#else
typedef v32 vsum;
LNRNN_INLINE vsum vsum_dot(vsum v, uint32_t a, const uint32_t *p) { return v32_dot2(v, a, p); }
#endif

LNRNN_INLINE vsum vsum_half(vsum r, vsum s, int h)
{
    const float64x2_t a = (float64x2_t)r, b = (float64x2_t)s; /* reinterprets the bits */
    return (vsum)(h ? vzip2q_f64(a, b) : vzip1q_f64(a, b));
}

#ifdef LNRNN_ISA_NEONI8MM
LNRNN_INLINE vsum vsum_block_dot(vsum c, vblock a, vblock b)
{
    return vmmlaq_s32(c, vreinterpretq_s8_u32(a), vreinterpretq_s8_u32(b));
}
#elif defined(LNRNN_EMULATED)
LNRNN_OUTLINE vsum vsum_block_dot(vsum c, vblock a, vblock b)
{
    float sum[4];
    uint32_t of_a[4], of_b[4];
    v32_store(sum, c);
    vst1q_u32(of_a, a);
    vst1q_u32(of_b, b);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++)
            sum[i] = odd_dot2(sum[i], of_a[i / 2 * 2 + k], of_b[i % 2 * 2 + k]);
    return v32_load(sum);
}
#else
LNRNN_INLINE vsum vsum_block_dot(vsum c, vblock a, vblock b)
{
    return vbfmmlaq_f32(c, vreinterpretq_bf16_u32(a), vreinterpretq_bf16_u32(b));
}
#endif
#endif

/* --- tiles ------------------------------------------------------------------------------------------- */

enum { TILE_HEIGHT = 16, TILE_WORDS = 16, TILE_BYTES = 64 };

#ifdef LNRNN_EMULATED
typedef struct {
    int rows[8];
    uint32_t word[8][TILE_HEIGHT][TILE_WORDS];
} lnrnn_tiles;

LNRNN_INLINE void tiles_begin(lnrnn_tiles *t, int rows)
{
    memset(t, 0, sizeof *t);
    for (int i = 0; i < 8; i++)
        t->rows[i] = i < 6 ? rows : TILE_HEIGHT;
}

LNRNN_INLINE void tiles_end(lnrnn_tiles *t) { (void)t; }
LNRNN_INLINE void tile_zero(lnrnn_tiles *t, int i) { memset(t->word[i], 0, sizeof t->word[i]); }

LNRNN_INLINE void tile_load(lnrnn_tiles *t, int i, const void *p, ptrdiff_t stride)
{
    for (int r = 0; r < t->rows[i]; r++)
        memcpy(t->word[i][r], (const char *)p + r * stride, TILE_BYTES);
}

LNRNN_INLINE void tile_store(lnrnn_tiles *t, int i, void *p, ptrdiff_t stride)
{
    for (int r = 0; r < t->rows[i]; r++)
        memcpy((char *)p + r * stride, t->word[i][r], TILE_BYTES);
}

/* In each tile, the sums of even and of odd inputs begin at 0. The two sums are added, and the result is
 * added to c. */
LNRNN_INLINE void tile_dot_bf16(lnrnn_tiles *t, int c, int a, int b)
{
    for (int m = 0; m < t->rows[c]; m++) {
        float even[TILE_WORDS] = {0}, odd[TILE_WORDS] = {0};
        for (int k = 0; k < TILE_WORDS; k++)
            for (int n = 0; n < TILE_WORDS; n++) {
                const uint32_t x = t->word[a][m][k], w = t->word[b][k][n];
                even[n] = unit_fma(x << 16, w << 16, even[n]);
                odd[n] = unit_fma(x & 0xffff0000, w & 0xffff0000, odd[n]);
            }
        for (int n = 0; n < TILE_WORDS; n++) {
            const float sum = without_subnormal(even[n] + odd[n]);
            const float was = without_subnormal(bits_float(t->word[c][m][n]));
            t->word[c][m][n] = float_bits(without_subnormal(was + sum));
        }
    }
}

LNRNN_INLINE void tile_dot_u8(lnrnn_tiles *t, int c, int a, int b)
{
    for (int m = 0; m < t->rows[c]; m++)
        for (int k = 0; k < TILE_WORDS; k++)
            for (int n = 0; n < TILE_WORDS; n++)
                for (int at = 0; at < 32; at += 8)
                    t->word[c][m][n] += (uint32_t)((int)(t->word[a][m][k] >> at & 255)
                                                   * (int8_t)(t->word[b][k][n] >> at & 255));
}
#elif defined(__x86_64__)
/* AMX instructions as assembler text. gcc's intrinsics need literal tile numbers, and compiler flags that
 * would let gcc itself use tiles. Tiles are not named as clobbered, because the compiler keeps no values in
 * them. */
typedef struct {
    int unused;
} lnrnn_tiles;

LNRNN_INLINE void tiles_begin(lnrnn_tiles *t, int rows)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes_in_row[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.bytes_in_row[i] = TILE_BYTES;
        config.rows[i] = (uint8_t)(i < 6 ? rows : TILE_HEIGHT);
    }
    (void)t;
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

LNRNN_INLINE void tiles_end(lnrnn_tiles *t)
{
    (void)t;
    __asm__ volatile("tilerelease");
}

LNRNN_INLINE void tile_zero(lnrnn_tiles *t, int i)
{
    (void)t;
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(i));
}

LNRNN_INLINE void tile_load(lnrnn_tiles *t, int i, const void *p, ptrdiff_t stride)
{
    (void)t;
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(i) : "memory");
}

LNRNN_INLINE void tile_store(lnrnn_tiles *t, int i, void *p, ptrdiff_t stride)
{
    (void)t;
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(i) : "memory");
}

/* AT&T syntax: operands in reverse order. */
LNRNN_INLINE void tile_dot_bf16(lnrnn_tiles *t, int c, int a, int b)
{
    (void)t;
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
}

LNRNN_INLINE void tile_dot_u8(lnrnn_tiles *t, int c, int a, int b)
{
    (void)t;
    __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
}
#endif

#endif
