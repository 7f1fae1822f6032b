/* The operations of simd.h in AVX2 + FMA + F16C: eight floats, four doubles. */
#include <immintrin.h>

#define V32_LANES 8
#define V64_LANES 4
#define MR 6
#define NR_VECS 2
#if defined(__AVXVNNI__) || defined(__AVX512VNNI__)
#define MR_S8 MR
#define S8_OFFSET 128
#else
#define MR_S8 4
#define S8_OFFSET 0
#endif

LNRNN_VECTORS(32)

LNRNN_INLINE __m256i v32_mask_n(size_t n)
{
    static const int32_t mask[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    return _mm256_loadu_si256((const __m256i *)(mask + 8 - n));
}

LNRNN_INLINE v32 v32_set1(float s) { return _mm256_set1_ps(s); }
LNRNN_INLINE v32 v32_load(const float *p) { return _mm256_loadu_ps(p); }
LNRNN_INLINE v32 v32_load_n(const float *p, size_t n) { return _mm256_maskload_ps(p, v32_mask_n(n)); }
LNRNN_INLINE void v32_store(float *p, v32 v) { _mm256_storeu_ps(p, v); }
LNRNN_INLINE void v32_stream(float *p, v32 v) { _mm256_stream_ps(p, v); }
LNRNN_INLINE void v32_store_n(float *p, v32 v, size_t n) { _mm256_maskstore_ps(p, v32_mask_n(n), v); }
LNRNN_INLINE v32 v32_keep_n(v32 v, size_t n) { return _mm256_and_ps(v, _mm256_castsi256_ps(v32_mask_n(n))); }
LNRNN_INLINE v32 v32_fma(v32 a, v32 b, v32 c) { return _mm256_fmadd_ps(a, b, c); }
LNRNN_INLINE v32 v32_sqrt(v32 v) { return _mm256_sqrt_ps(v); }
LNRNN_INLINE v32 v32_min(v32 a, v32 b) { return _mm256_min_ps(a, b); }
LNRNN_INLINE v32 v32_max(v32 a, v32 b) { return _mm256_max_ps(a, b); }

LNRNN_INLINE float v32_sum(v32 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* a and b hold partial sums. Adds the upper half of each to its lower half. The result has the sums of a,
 * then the sums of b. low, high: the arguments with which `shuffle` selects the halves. */
#define HALVES(shuffle, a, b, low, high) _mm256_add_ps(shuffle(a, b, low), shuffle(a, b, high))

LNRNN_INLINE v32 v32_sums(const v32 *v)
{
    const v32 a = HALVES(_mm256_permute2f128_ps, v[0], v[4], 0x20, 0x31);
    const v32 b = HALVES(_mm256_permute2f128_ps, v[1], v[5], 0x20, 0x31);
    const v32 c = HALVES(_mm256_permute2f128_ps, v[2], v[6], 0x20, 0x31);
    const v32 d = HALVES(_mm256_permute2f128_ps, v[3], v[7], 0x20, 0x31);
    const v32 ab = HALVES(_mm256_shuffle_ps, a, b, 0x44, 0xee),
              cd = HALVES(_mm256_shuffle_ps, c, d, 0x44, 0xee);
    return HALVES(_mm256_shuffle_ps, ab, cd, 0x88, 0xdd);
}
#undef HALVES

LNRNN_INLINE v32 v32_round(v32 v)
{
    return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* The permutation reads bits 0 to 2 of each lane of v. The shift moves bit 3 to the sign, which the blend
 * reads. */
LNRNN_INLINE v32 v32_lookup16(const float *p, v32 v)
{
    const __m256i k = _mm256_castps_si256(v);
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(_mm256_loadu_ps(p), k),
                            _mm256_permutevar8x32_ps(_mm256_loadu_ps(p + 8), k),
                            _mm256_castsi256_ps(_mm256_slli_epi32(k, 28)));
}

LNRNN_INLINE v32 v32_abs(v32 v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }

LNRNN_INLINE v32 v32_copysign(v32 v, v32 s)
{
    v32 sign = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(sign, v), _mm256_and_ps(sign, s));
}

LNRNN_INLINE v32 v32_select_lt(v32 a, v32 b, v32 x, v32 y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

typedef __m128i v16;

LNRNN_INLINE v16 v16_load(const uint16_t *p) { return _mm_loadu_si128((const __m128i *)p); }
LNRNN_INLINE void v16_store(uint16_t *p, v16 v) { _mm_storeu_si128((__m128i *)p, v); }
LNRNN_INLINE void v16_stream(uint16_t *p, v16 v) { _mm_stream_si128((__m128i *)p, v); }
LNRNN_THROUGH_STACK(LNRNN_OUTLINE, v16, uint16_t, 8)

LNRNN_INLINE v32 v32_from_bf16(v16 h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

LNRNN_INLINE v16 v32_to_bf16(v32 v)
{
    const __m256i u = _mm256_castps_si256(v), high = _mm256_srli_epi32(u, 16);
    const __m256i even = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), even), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i r = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08));
}

LNRNN_INLINE v32 v32_from_f16(v16 h) { return _mm256_cvtph_ps(h); }
LNRNN_INLINE v16 v32_to_f16(v32 v)
{
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

LNRNN_INLINE __m256i v64_mask_n(size_t n)
{
    static const int64_t mask[8] = {-1, -1, -1, -1, 0, 0, 0, 0};
    return _mm256_loadu_si256((const __m256i *)(mask + 4 - n));
}

LNRNN_INLINE v64 v64_set1(double s) { return _mm256_set1_pd(s); }
LNRNN_INLINE v64 v64_load(const double *p) { return _mm256_loadu_pd(p); }
LNRNN_INLINE v64 v64_load_n(const double *p, size_t n) { return _mm256_maskload_pd(p, v64_mask_n(n)); }
LNRNN_INLINE void v64_store(double *p, v64 v) { _mm256_storeu_pd(p, v); }
LNRNN_INLINE void v64_stream(double *p, v64 v) { _mm256_stream_pd(p, v); }
LNRNN_INLINE void v64_store_n(double *p, v64 v, size_t n) { _mm256_maskstore_pd(p, v64_mask_n(n), v); }
LNRNN_INLINE v64 v64_keep_n(v64 v, size_t n) { return _mm256_and_pd(v, _mm256_castsi256_pd(v64_mask_n(n))); }
LNRNN_INLINE v64 v64_fma(v64 a, v64 b, v64 c) { return _mm256_fmadd_pd(a, b, c); }

LNRNN_INLINE double v64_sum(v64 v)
{
    __m128d s = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}

LNRNN_INLINE void stream_end(void) { _mm_sfence(); }

LNRNN_INLINE v32 v32_larger(v32 a, v32 b)
{
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}

LNRNN_INLINE float v32_largest(v32 v)
{
    const __m256i n = _mm256_castps_si256(v);
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
    h = _mm_max_epi32(h, _mm_unpackhi_epi64(h, h));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 1));
    return bits_float((uint32_t)_mm_cvtsi128_si32(h));
}

LNRNN_INLINE vi32 v32_to_vi32(v32 v) { return (vi32)_mm256_cvtps_epi32(v); }

LNRNN_INLINE void v32_store_s14(uint8_t *high, uint8_t *low, v32 v)
{
    const vi32 n = v32_to_vi32(v) + 8192;
    /* each half of 128 bits: the upper parts of four integers, then the lower parts */
    const __m256i s = _mm256_packs_epi32((__m256i)(n >> 7), (__m256i)(n & 127));
    const __m256i bytes = _mm256_packus_epi16(s, s);
    const __m128i both =
        _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    _mm_storel_epi64((__m128i *)high, both);
    _mm_storel_epi64((__m128i *)low, _mm_unpackhi_epi64(both, both));
}

LNRNN_INLINE void v32_store_s8(uint8_t *p, v32 v)
{
    const __m256i n = (__m256i)(v32_to_vi32(v) + S8_OFFSET);
    const __m128i s = _mm_packs_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
    _mm_storel_epi64((__m128i *)p, S8_OFFSET ? _mm_packus_epi16(s, s) : _mm_packs_epi16(s, s));
}

LNRNN_INLINE vi32 vi32_load(const int32_t *p) { return (vi32)_mm256_loadu_si256((const __m256i *)p); }
LNRNN_INLINE void vi32_store(int32_t *p, vi32 v) { _mm256_storeu_si256((__m256i *)p, (__m256i)v); }

/* Loads once, because the loads limit a product of one row with blocks. The empty assembly keeps Clang from
 * loading each number again. */
#define LNRNN_OWN_SET4
LNRNN_INLINE void v32_set4(const float *p, v32 *v)
{
    __m256 four = _mm256_broadcast_ps((const __m128 *)p);
    __asm__("" : "+x"(four));
    v[0] = _mm256_permute_ps(four, 0x00), v[1] = _mm256_permute_ps(four, 0x55);
    v[2] = _mm256_permute_ps(four, 0xaa), v[3] = _mm256_permute_ps(four, 0xff);
}

#define LNRNN_OWN_DOT4
LNRNN_INLINE vi32 vi32_dot4(vi32 v, uint32_t a, const uint32_t *p)
{
    const __m256i s = _mm256_set1_epi32((int)a), w = _mm256_loadu_si256((const __m256i *)p);
#if defined(__AVX512VNNI__)
    __asm__("vpdpbusd %2, %1, %0" : "+v"(v) : "v"(s), "v"(w));
    return v;
#elif defined(__AVXVNNI__)
    /* No intrinsic, because GCC 12 would spill the accumulators. Without {vex}, assemblers use AVX-512's
     * encoding. */
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(v) : "x"(s), "x"(w));
    return v;
#else
    /* 2 * 127 * 128 fits in 16 bits: maddubs does not saturate */
    return v + (vi32)_mm256_madd_epi16(_mm256_maddubs_epi16(s, w), _mm256_set1_epi16(1));
#endif
}

LNRNN_INLINE v32 vi32_to_v32(vi32 v) { return _mm256_cvtepi32_ps((__m256i)v); }

LNRNN_INLINE vi32 vi32_dot4_s8(vi32 v, uint32_t a, const uint32_t *p)
{
#if S8_OFFSET
    return vi32_dot4(v, a, p);
#else
    /* maddubs needs an unsigned factor: |w| times a with the sign of w; 2 * 127 * 128 fits in 16 bits */
    const __m256i w = _mm256_loadu_si256((const __m256i *)p);
    const __m256i pairs =
        _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(_mm256_set1_epi32((int)a), w));
    return v + (vi32)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
}
