/* Vectors of 64 bytes for products with blocks by AVX-512 (blocks_wide.h). There v32 and vi32 have 32 bytes.
 * A wide vector, w32 or wi32, is two halves: v32 or vi32. It can also be eight pairs of lanes.
 *
 *   (w32)   pairs(p)          the words p[0], p[1], p[0], p[1], ..
 *           load(p, q)        a half from p and one from q
 *           load_both(p)      load(p, p)
 *           store(p, q, w)    the first half to p, then the second one to q
 *           set(a, b)         halves of a and of b
 *           to_pairs(w)       the first lanes of both halves, then the second ones, ..
 *           to_halves(w)      the first lanes of all pairs, then the second ones
 *           fma(a, b, c)      as v32_fma
 *           of_bits(w)        the bits of a wi32 as floats
 *   (wi32)  load_both(p)  set(a, b)  to_halves(w)   as above
 *           twice(p, more)    pairs of the word p[0], of p[1], .. p[7]; *more: likewise p[8] .. p[15]
 *           pairs_dot4(w, p, u)   adds dot products as vi32_dot4: of w32_pairs(p) and u
 *           halves_dot4(w, p, q, u)   the same: of p[0] in the first half, q[0] in the second one, and the
 *                             words at u
 *           half(w, i)        the first half (i = 0) or the second one, as vi32
 *           to_w32(w)         the nearest floats
 */
#ifndef LNRNN_WIDE_H
#define LNRNN_WIDE_H

#define LNRNN_WIDE

typedef float w32 __attribute__((vector_size(64)));
typedef int32_t wi32 __attribute__((vector_size(64)));

#define SECOND_HALF 0xff00

LNRNN_INLINE w32 w32_pairs(const uint32_t *p)
{
    double two;
    memcpy(&two, p, sizeof two);
    return _mm512_castpd_ps(_mm512_set1_pd(two));
}

LNRNN_INLINE w32 w32_of_bits(wi32 w) { return _mm512_castsi512_ps((__m512i)w); }
LNRNN_INLINE w32 w32_fma(w32 a, w32 b, w32 c) { return _mm512_fmadd_ps(a, b, c); }
LNRNN_INLINE w32 w32_load(const float *p, const float *q)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(p)), _mm256_loadu_ps(q), 1);
}

LNRNN_INLINE void w32_store(float *p, float *q, w32 w)
{
    _mm256_storeu_ps(p, _mm512_castps512_ps256(w));
    _mm256_storeu_ps(q, _mm512_extractf32x8_ps(w, 1));
}

LNRNN_INLINE wi32 wi32_load_both(const int32_t *p)
{
    return (wi32)_mm512_broadcast_i32x8(_mm256_loadu_si256((const __m256i *)p));
}

LNRNN_INLINE w32 w32_load_both(const float *p) { return w32_of_bits(wi32_load_both((const int32_t *)p)); }

LNRNN_INLINE wi32 wi32_set(const int32_t *a, const int32_t *b)
{
    const __m512i of_a = _mm512_castsi256_si512(_mm256_set1_epi32(*a));
    return (wi32)_mm512_mask_broadcastd_epi32(of_a, SECOND_HALF, _mm_loadu_si32(b));
}

LNRNN_INLINE w32 w32_set(const float *a, const float *b)
{
    return w32_of_bits(wi32_set((const int32_t *)a, (const int32_t *)b));
}

LNRNN_INLINE wi32 wi32_to_halves(wi32 w)
{
    const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    return (wi32)_mm512_permutexvar_epi32(order, (__m512i)w);
}

LNRNN_INLINE w32 w32_to_halves(w32 w) { return w32_of_bits(wi32_to_halves((wi32)w)); }
LNRNN_INLINE w32 w32_to_pairs(w32 w)
{
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15), w);
}

LNRNN_INLINE wi32 wi32_twice(const uint32_t *p, wi32 *more)
{
    const __m512i order = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    __m512i words = _mm512_loadu_si512(p);
    LNRNN_LOADED(words); /* once for both permutations */
    *more = (wi32)_mm512_permutexvar_epi32(_mm512_add_epi32(order, _mm512_set1_epi32(8)), words);
    return (wi32)_mm512_permutexvar_epi32(order, words);
}

#ifdef __AVX512VNNI__
/* No intrinsic, because GCC 12 would copy the sums. */
LNRNN_INLINE wi32 wi32_pairs_dot4(wi32 w, const uint32_t *p, wi32 u)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(w) : "v"(w32_pairs(p)), "v"(u));
    return w;
}

LNRNN_INLINE wi32 wi32_halves_dot4(wi32 w, const uint32_t *p, const uint32_t *q, const uint32_t *u)
{
    const wi32 x = wi32_set((const int32_t *)p, (const int32_t *)q);
    __asm__("vpdpbusd %2, %1, %0" : "+v"(w) : "v"(x), "v"(_mm512_loadu_si512(u)));
    return w;
}
#endif

LNRNN_INLINE vi32 wi32_half(wi32 w, const int i)
{
    return (vi32)(i ? _mm512_extracti64x4_epi64((__m512i)w, 1) : _mm512_castsi512_si256((__m512i)w));
}

LNRNN_INLINE w32 wi32_to_w32(wi32 w) { return _mm512_cvtepi32_ps((__m512i)w); }

#undef SECOND_HALF

#endif
