/* The operations of simd.h in AVX-512 F + BW + DQ + VL: sixteen floats, eight doubles, masks for the ends of
 * rows. */
#include <immintrin.h>

#define V32_LANES 16
#define V64_LANES 8
#define MR 8
#define NR_VECS 3
#define LNRNN_KEEPS_WORDS
#define LNRNN_AHEAD
#if defined(__AVX512VNNI__) || defined(LNRNN_TILES)
#define MR_S8 MR
#define S8_OFFSET 128
#else
#define MR_S8 6
#define S8_OFFSET 0
#endif

LNRNN_VECTORS(64)

/* Uses bzhi, because a shift would fail for n = 16. */
LNRNN_INLINE __mmask16 v32_mask_n(size_t n) { return (__mmask16)_bzhi_u32(0xffffu, (unsigned)n); }

LNRNN_INLINE v32 v32_set1(float s) { return _mm512_set1_ps(s); }
LNRNN_INLINE v32 v32_load(const float *p) { return _mm512_loadu_ps(p); }
LNRNN_INLINE v32 v32_load_n(const float *p, size_t n) { return _mm512_maskz_loadu_ps(v32_mask_n(n), p); }
LNRNN_INLINE void v32_store(float *p, v32 v) { _mm512_storeu_ps(p, v); }
LNRNN_INLINE void v32_stream(float *p, v32 v) { _mm512_stream_ps(p, v); }
LNRNN_INLINE void v32_store_n(float *p, v32 v, size_t n) { _mm512_mask_storeu_ps(p, v32_mask_n(n), v); }
LNRNN_INLINE v32 v32_keep_n(v32 v, size_t n) { return _mm512_maskz_mov_ps(v32_mask_n(n), v); }
LNRNN_INLINE v32 v32_fma(v32 a, v32 b, v32 c) { return _mm512_fmadd_ps(a, b, c); }
LNRNN_INLINE v32 v32_sqrt(v32 v) { return _mm512_sqrt_ps(v); }
LNRNN_INLINE v32 v32_min(v32 a, v32 b) { return _mm512_min_ps(a, b); }
LNRNN_INLINE v32 v32_max(v32 a, v32 b) { return _mm512_max_ps(a, b); }

LNRNN_INLINE float v32_sum(v32 v)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* a and b hold partial sums. Adds the upper half of each to its lower half. The result has the sums of a,
 * then the sums of b. low, high: the arguments with which `shuffle` selects the halves. */
#define HALVES(shuffle, a, b, low, high) _mm512_add_ps(shuffle(a, b, low), shuffle(a, b, high))

LNRNN_INLINE v32 v32_sums(const v32 *v)
{
    v32 four[4]; /* four[i] has four partial sums of each of v[4 i] .. v[4 i + 3] */
    LNRNN_FOR_EACH (i, 4) {
        const v32 a = HALVES(_mm512_shuffle_f32x4, v[4 * i], v[4 * i + 1], 0x44, 0xee);
        const v32 b = HALVES(_mm512_shuffle_f32x4, v[4 * i + 2], v[4 * i + 3], 0x44, 0xee);
        four[i] = HALVES(_mm512_shuffle_f32x4, a, b, 0x88, 0xdd);
    }
    const v32 a = HALVES(_mm512_shuffle_ps, four[0], four[1], 0x44, 0xee);
    const v32 b = HALVES(_mm512_shuffle_ps, four[2], four[3], 0x44, 0xee);
    const v32 s = HALVES(_mm512_shuffle_ps, a, b, 0x88, 0xdd); /* lane 4 q + i: the sum of v[4 i + q] */
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), s);
}
#undef HALVES

LNRNN_INLINE v32 v32_round(v32 v)
{
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#define LNRNN_OWN_SCALE
LNRNN_INLINE v32 v32_scale(v32 v, v32 n) { return _mm512_scalef_ps(v, n); }
LNRNN_INLINE v32 v32_lookup16(const float *p, v32 v)
{
    return _mm512_permutexvar_ps(_mm512_castps_si512(v), _mm512_loadu_ps(p));
}
LNRNN_INLINE v32 v32_abs(v32 v) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), v); }

LNRNN_INLINE v32 v32_copysign(v32 v, v32 s)
{
    const __m512i sign = _mm512_set1_epi32((int)0x80000000u);
    /* 0xd8: bits of s if the bit of sign is set, else bits of v */
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(_mm512_castps_si512(v), _mm512_castps_si512(s), sign, 0xd8));
}

LNRNN_INLINE v32 v32_select_lt(v32 a, v32 b, v32 x, v32 y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

typedef __m256i v16;

LNRNN_INLINE v16 v16_load(const uint16_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
LNRNN_INLINE v16 v16_load_n(const uint16_t *p, size_t n)
{
    return _mm256_maskz_loadu_epi16(v32_mask_n(n), p);
}
LNRNN_INLINE void v16_store(uint16_t *p, v16 v) { _mm256_storeu_si256((__m256i *)p, v); }
LNRNN_INLINE void v16_store_n(uint16_t *p, v16 v, size_t n) { _mm256_mask_storeu_epi16(p, v32_mask_n(n), v); }
LNRNN_INLINE void v16_stream(uint16_t *p, v16 v) { _mm256_stream_si256((__m256i *)p, v); }
LNRNN_INLINE v32 v32_from_bf16(v16 h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* vcvtneps2bf16 cannot be used, because it treats subnormal numbers as 0. */
LNRNN_INLINE v16 v32_to_bf16(v32 v)
{
    const __m512i u = _mm512_castps_si512(v), high = _mm512_srli_epi32(u, 16);
    const __m512i even = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), even), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40)));
}

LNRNN_INLINE v32 v32_from_f16(v16 h) { return _mm512_cvtph_ps(h); }
LNRNN_INLINE v16 v32_to_f16(v32 v)
{
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

LNRNN_INLINE __mmask8 v64_mask_n(size_t n) { return (__mmask8)_bzhi_u32(0xffu, (unsigned)n); }

LNRNN_INLINE v64 v64_set1(double s) { return _mm512_set1_pd(s); }
LNRNN_INLINE v64 v64_load(const double *p) { return _mm512_loadu_pd(p); }
LNRNN_INLINE v64 v64_load_n(const double *p, size_t n) { return _mm512_maskz_loadu_pd(v64_mask_n(n), p); }
LNRNN_INLINE void v64_store(double *p, v64 v) { _mm512_storeu_pd(p, v); }
LNRNN_INLINE void v64_stream(double *p, v64 v) { _mm512_stream_pd(p, v); }
LNRNN_INLINE void v64_store_n(double *p, v64 v, size_t n) { _mm512_mask_storeu_pd(p, v64_mask_n(n), v); }
LNRNN_INLINE v64 v64_keep_n(v64 v, size_t n) { return _mm512_maskz_mov_pd(v64_mask_n(n), v); }
LNRNN_INLINE v64 v64_fma(v64 a, v64 b, v64 c) { return _mm512_fmadd_pd(a, b, c); }

LNRNN_INLINE double v64_sum(v64 v)
{
    __m256d h = _mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1));
    __m128d s = _mm_add_pd(_mm256_castpd256_pd128(h), _mm256_extractf128_pd(h, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}

LNRNN_INLINE void stream_end(void) { _mm_sfence(); }

LNRNN_INLINE v32 v32_larger(v32 a, v32 b)
{
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}

LNRNN_INLINE float v32_largest(v32 v)
{
    return bits_float((uint32_t)_mm512_reduce_max_epi32(_mm512_castps_si512(v)));
}

LNRNN_INLINE vi32 v32_to_vi32(v32 v)
{
    return (vi32)_mm512_cvt_roundps_epi32(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

LNRNN_INLINE void v32_store_s14(uint8_t *high, uint8_t *low, v32 v)
{
    const vi32 n = v32_to_vi32(v) + 8192;
    _mm_storeu_si128((__m128i *)high, _mm512_cvtepi32_epi8((__m512i)(n >> 7)));
    _mm_storeu_si128((__m128i *)low, _mm512_cvtepi32_epi8((__m512i)(n & 127)));
}

LNRNN_INLINE void v32_store_s8(uint8_t *p, v32 v)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)(v32_to_vi32(v) + S8_OFFSET)));
}

#define LNRNN_OWN_STORE4
/* Converts the two vectors at v to 16-bit integers, in the order of _mm512_packs_epi32. */
#define IN_16_BITS(v) _mm512_packs_epi32((__m512i)v32_to_vi32((v)[0]), (__m512i)v32_to_vi32((v)[1]))
/* n: bytes of four vectors, in the order of two successive packs. Stores them in the order of the vectors. */
#define STORE_IN_ORDER(p, n)                         \
    _mm512_storeu_si512(p, _mm512_permutexvar_epi32( \
                               _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), n))

LNRNN_INLINE void v32_store4_s14(uint8_t *high, uint8_t *low, const v32 *v)
{
    const __m512i offset = _mm512_set1_epi16(8192), seven = _mm512_set1_epi16(127);
    const __m512i a = _mm512_add_epi16(IN_16_BITS(v), offset),
                  b = _mm512_add_epi16(IN_16_BITS(v + 2), offset);
    STORE_IN_ORDER(high, _mm512_packus_epi16(_mm512_srli_epi16(a, 7), _mm512_srli_epi16(b, 7)));
    STORE_IN_ORDER(low, _mm512_packus_epi16(_mm512_and_si512(a, seven), _mm512_and_si512(b, seven)));
}

LNRNN_INLINE void v32_store4_s8(uint8_t *p, const v32 *v)
{
    const __m512i offset = _mm512_set1_epi8((char)S8_OFFSET);
    STORE_IN_ORDER(p, _mm512_add_epi8(_mm512_packs_epi16(IN_16_BITS(v), IN_16_BITS(v + 2)), offset));
}

LNRNN_INLINE vi32 vi32_load(const int32_t *p) { return (vi32)_mm512_loadu_si512(p); }
LNRNN_INLINE void vi32_store(int32_t *p, vi32 v) { _mm512_storeu_si512(p, (__m512i)v); }

#define LNRNN_OWN_DOT4
LNRNN_INLINE vi32 vi32_dot4(vi32 v, uint32_t a, const uint32_t *p)
{
    const __m512i s = _mm512_set1_epi32((int)a), w = _mm512_loadu_si512(p);
#ifdef __AVX512VNNI__
    /* No intrinsic: gcc 12 would copy and spill the accumulators, and the int8 product would be three times
     * slower. */
    __asm__("vpdpbusd %2, %1, %0" : "+v"(v) : "v"(s), "v"(w));
    return v;
#else
    /* 2 * 127 * 128 fits in 16 bits: maddubs does not saturate */
    return v + (vi32)_mm512_madd_epi16(_mm512_maddubs_epi16(s, w), _mm512_set1_epi16(1));
#endif
}

LNRNN_INLINE v32 vi32_to_v32(vi32 v) { return _mm512_cvtepi32_ps((__m512i)v); }

LNRNN_INLINE vi32 vi32_dot4_s8(vi32 v, uint32_t a, const uint32_t *p)
{
#ifdef __AVX512VNNI__
    return vi32_dot4(v, a, p);
#else
    /* maddubs needs an unsigned factor: |w| times a with the sign of w; 2 * 127 * 128 fits in 16 bits */
    const __m512i s = _mm512_set1_epi32((int)a), w = _mm512_loadu_si512(p);
    const __m512i signs = _mm512_mask_sub_epi8(s, _mm512_movepi8_mask(w), _mm512_setzero_si512(), s);
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(w), signs);
    return v + (vi32)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#endif
}
