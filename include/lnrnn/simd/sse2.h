/* The operations of simd.h in SSE2, which every x86-64 CPU has: four floats, two doubles, no fused
 * multiply-add. */
#include <emmintrin.h>

#define V32_LANES 4
#define V64_LANES 2
#define MR 4
#define NR_VECS 2
#define MR_S8 MR
#define S8_OFFSET 0
#define LNRNN_FEW_COPIES

typedef __m128 v32;
typedef __m128d v64;

/* SSE2 has no masked loads and stores: a part of a vector is copied through the stack. */
LNRNN_OUTLINE v32 v32_load_n(const float *p, size_t n)
{
    float t[4] = {0};
    for (size_t i = 0; i < n; i++)
        t[i] = p[i];
    return _mm_loadu_ps(t);
}

LNRNN_OUTLINE void v32_store_n(float *p, v32 v, size_t n)
{
    float t[4];
    _mm_storeu_ps(t, v);
    for (size_t i = 0; i < n; i++)
        p[i] = t[i];
}

LNRNN_INLINE v32 v32_keep_n(v32 v, size_t n)
{
    static const int32_t mask[8] = {-1, -1, -1, -1, 0, 0, 0, 0};
    return _mm_and_ps(v, _mm_loadu_ps((const float *)(mask + 4 - n)));
}

LNRNN_INLINE v32 v32_zero(void) { return _mm_setzero_ps(); }
LNRNN_INLINE v32 v32_set1(float s) { return _mm_set1_ps(s); }
LNRNN_INLINE v32 v32_load(const float *p) { return _mm_loadu_ps(p); }
LNRNN_INLINE void v32_store(float *p, v32 v) { _mm_storeu_ps(p, v); }
LNRNN_INLINE void v32_stream(float *p, v32 v) { _mm_stream_ps(p, v); }
LNRNN_INLINE void v32_prefetch(const float *p) { __builtin_prefetch(p); }
LNRNN_INLINE void v32_prefetch_l2(const float *p) { __builtin_prefetch(p, 0, 2); }
LNRNN_INLINE v32 v32_add(v32 a, v32 b) { return _mm_add_ps(a, b); }
LNRNN_INLINE v32 v32_sub(v32 a, v32 b) { return _mm_sub_ps(a, b); }
LNRNN_INLINE v32 v32_mul(v32 a, v32 b) { return _mm_mul_ps(a, b); }
LNRNN_INLINE v32 v32_div(v32 a, v32 b) { return _mm_div_ps(a, b); }
LNRNN_INLINE v32 v32_fma(v32 a, v32 b, v32 c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
LNRNN_INLINE v32 v32_sqrt(v32 v) { return _mm_sqrt_ps(v); }
LNRNN_INLINE v32 v32_min(v32 a, v32 b) { return _mm_min_ps(a, b); }
LNRNN_INLINE v32 v32_max(v32 a, v32 b) { return _mm_max_ps(a, b); }

LNRNN_INLINE float v32_sum(v32 v)
{
    v32 s = _mm_add_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

LNRNN_INLINE v32 v32_sums(const v32 *v)
{
    const v32 a = _mm_add_ps(_mm_shuffle_ps(v[0], v[1], 0x44), _mm_shuffle_ps(v[0], v[1], 0xee));
    const v32 b = _mm_add_ps(_mm_shuffle_ps(v[2], v[3], 0x44), _mm_shuffle_ps(v[2], v[3], 0xee));
    return _mm_add_ps(_mm_shuffle_ps(a, b, 0x88), _mm_shuffle_ps(a, b, 0xdd));
}

LNRNN_INLINE v32 v32_round(v32 v) { return _mm_cvtepi32_ps(_mm_cvtps_epi32(v)); }

LNRNN_INLINE v32 v32_scale(v32 v, v32 n)
{
    const __m128i e = _mm_cvtps_epi32(n), half = _mm_srai_epi32(e, 1), bias = _mm_set1_epi32(127);
    const __m128i a = _mm_slli_epi32(_mm_add_epi32(half, bias), 23);
    const __m128i b = _mm_slli_epi32(_mm_add_epi32(_mm_sub_epi32(e, half), bias), 23);
    return _mm_mul_ps(_mm_mul_ps(v, _mm_castsi128_ps(a)), _mm_castsi128_ps(b));
}

LNRNN_INLINE v32 v32_lookup16(const float *p, v32 v)
{
    const __m128i k = _mm_and_si128(_mm_castps_si128(v), _mm_set1_epi32(15));
    return _mm_setr_ps(p[_mm_extract_epi16(k, 0)], p[_mm_extract_epi16(k, 2)], p[_mm_extract_epi16(k, 4)],
                       p[_mm_extract_epi16(k, 6)]);
}

LNRNN_INLINE v32 v32_abs(v32 v) { return _mm_andnot_ps(_mm_set1_ps(-0.0f), v); }

LNRNN_INLINE v32 v32_copysign(v32 v, v32 s)
{
    v32 sign = _mm_set1_ps(-0.0f);
    return _mm_or_ps(_mm_andnot_ps(sign, v), _mm_and_ps(sign, s));
}

LNRNN_INLINE v32 v32_select_lt(v32 a, v32 b, v32 x, v32 y)
{
    v32 m = _mm_cmplt_ps(a, b);
    return _mm_or_ps(_mm_and_ps(m, x), _mm_andnot_ps(m, y));
}

/* SSE2 has no conversions of 16-bit floats: half.h converts lane by lane. */
typedef struct {
    uint16_t lane[4];
} v16;

LNRNN_OUTLINE v16 v16_load_n(const uint16_t *p, size_t n)
{
    v16 v = {{0}};
    memcpy(v.lane, p, n * sizeof *p);
    return v;
}

LNRNN_OUTLINE void v16_store_n(uint16_t *p, v16 v, size_t n) { memcpy(p, v.lane, n * sizeof *p); }
LNRNN_INLINE v16 v16_load(const uint16_t *p) { return v16_load_n(p, 4); }
LNRNN_INLINE void v16_store(uint16_t *p, v16 v) { v16_store_n(p, v, 4); }
LNRNN_INLINE void v16_stream(uint16_t *p, v16 v) { v16_store_n(p, v, 4); }

#define LNRNN_LANES(t)                                                                                  \
    LNRNN_OUTLINE v32 v32_from_##t(v16 h)                                                               \
    {                                                                                                   \
        return _mm_setr_ps(t##_to_float(h.lane[0]), t##_to_float(h.lane[1]), t##_to_float(h.lane[2]),   \
                           t##_to_float(h.lane[3]));                                                    \
    }                                                                                                   \
    LNRNN_OUTLINE v16 v32_to_##t(v32 v)                                                                 \
    {                                                                                                   \
        float f[4];                                                                                     \
        _mm_storeu_ps(f, v);                                                                            \
        return (v16){{float_to_##t(f[0]), float_to_##t(f[1]), float_to_##t(f[2]), float_to_##t(f[3])}}; \
    }
LNRNN_LANES(bf16)
LNRNN_LANES(f16)
#undef LNRNN_LANES

LNRNN_INLINE v64 v64_load_n(const double *p, size_t n)
{
    return n >= 2 ? _mm_loadu_pd(p) : n ? _mm_load_sd(p) : _mm_setzero_pd();
}

LNRNN_INLINE void v64_store_n(double *p, v64 v, size_t n)
{
    if (n >= 2)
        _mm_storeu_pd(p, v);
    else if (n)
        _mm_store_sd(p, v);
}

LNRNN_INLINE v64 v64_keep_n(v64 v, size_t n)
{
    return n >= 2 ? v : n ? _mm_move_sd(_mm_setzero_pd(), v) : _mm_setzero_pd();
}

LNRNN_INLINE v64 v64_zero(void) { return _mm_setzero_pd(); }
LNRNN_INLINE v64 v64_set1(double s) { return _mm_set1_pd(s); }
LNRNN_INLINE v64 v64_load(const double *p) { return _mm_loadu_pd(p); }
LNRNN_INLINE void v64_store(double *p, v64 v) { _mm_storeu_pd(p, v); }
LNRNN_INLINE void v64_stream(double *p, v64 v) { _mm_stream_pd(p, v); }
LNRNN_INLINE v64 v64_add(v64 a, v64 b) { return _mm_add_pd(a, b); }
LNRNN_INLINE v64 v64_sub(v64 a, v64 b) { return _mm_sub_pd(a, b); }
LNRNN_INLINE v64 v64_mul(v64 a, v64 b) { return _mm_mul_pd(a, b); }
LNRNN_INLINE v64 v64_div(v64 a, v64 b) { return _mm_div_pd(a, b); }
LNRNN_INLINE v64 v64_fma(v64 a, v64 b, v64 c) { return _mm_add_pd(_mm_mul_pd(a, b), c); }
LNRNN_INLINE v64 v64_sqrt(v64 v) { return _mm_sqrt_pd(v); }
LNRNN_INLINE v64 v64_min(v64 a, v64 b) { return _mm_min_pd(a, b); }
LNRNN_INLINE v64 v64_max(v64 a, v64 b) { return _mm_max_pd(a, b); }
LNRNN_INLINE double v64_sum(v64 v) { return _mm_cvtsd_f64(_mm_add_sd(v, _mm_unpackhi_pd(v, v))); }

LNRNN_INLINE void stream_end(void) { _mm_sfence(); }

LNRNN_INLINE v32 v32_bf16_pair(const uint32_t *p, v32 *odd)
{
    const __m128i w = _mm_loadu_si128((const __m128i *)p);
    *odd = _mm_castsi128_ps(_mm_and_si128(w, _mm_set1_epi32((int)0xffff0000u)));
    return _mm_castsi128_ps(_mm_slli_epi32(w, 16));
}

LNRNN_INLINE v32 v32_larger(v32 a, v32 b)
{
    const __m128i m = _mm_castps_si128(a), n = _mm_castps_si128(b), more = _mm_cmpgt_epi32(m, n);
    return _mm_castsi128_ps(_mm_or_si128(_mm_and_si128(more, m), _mm_andnot_si128(more, n)));
}

LNRNN_INLINE float v32_largest(v32 v)
{
    v = v32_larger(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(v32_larger(v, _mm_shuffle_ps(v, v, 1)));
}

LNRNN_INLINE void v32_store_s14(uint8_t *high, uint8_t *low, v32 v)
{
    const __m128i n = _mm_add_epi32(_mm_cvtps_epi32(v), _mm_set1_epi32(8192));
    const __m128i s = _mm_packs_epi32(_mm_srli_epi32(n, 7), _mm_and_si128(n, _mm_set1_epi32(127)));
    const __m128i bytes = _mm_packus_epi16(s, s);
    const int32_t of_high = _mm_cvtsi128_si32(bytes), of_low = _mm_cvtsi128_si32(_mm_srli_epi64(bytes, 32));
    memcpy(high, &of_high, sizeof of_high);
    memcpy(low, &of_low, sizeof of_low);
}

LNRNN_INLINE void v32_store_s8(uint8_t *p, v32 v)
{
    const __m128i s = _mm_packs_epi32(_mm_cvtps_epi32(v), _mm_setzero_si128());
    const int32_t bytes = _mm_cvtsi128_si32(_mm_packs_epi16(s, s));
    memcpy(p, &bytes, sizeof bytes);
}

typedef __m128i vi32;

LNRNN_INLINE vi32 vi32_zero(void) { return _mm_setzero_si128(); }
LNRNN_INLINE vi32 vi32_load(const int32_t *p) { return _mm_loadu_si128((const __m128i *)p); }
LNRNN_INLINE void vi32_store(int32_t *p, vi32 v) { _mm_storeu_si128((__m128i *)p, v); }

LNRNN_INLINE vi32 vi32_dot4_s8(vi32 v, uint32_t a, const uint32_t *p)
{
    /* Bytes are widened to 16 bits and multiplied by madd, which adds pairs of products in 32 bits; the two
     * pairs of a lane are then added. */
    const __m128i w = _mm_loadu_si128((const __m128i *)p), bytes = _mm_set1_epi32((int)a);
    const __m128i s = _mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
    const __m128 low = _mm_castsi128_ps(_mm_madd_epi16(s, _mm_srai_epi16(_mm_unpacklo_epi8(w, w), 8)));
    const __m128 high = _mm_castsi128_ps(_mm_madd_epi16(s, _mm_srai_epi16(_mm_unpackhi_epi8(w, w), 8)));
    v = _mm_add_epi32(v, _mm_castps_si128(_mm_shuffle_ps(low, high, 0x88)));
    return _mm_add_epi32(v, _mm_castps_si128(_mm_shuffle_ps(low, high, 0xdd)));
}

LNRNN_INLINE v32 vi32_to_v32(vi32 v) { return _mm_cvtepi32_ps(v); }

/* What is in 0 .. 127 is the same as a signed byte. */
LNRNN_INLINE vi32 vi32_dot4(vi32 v, uint32_t a, const uint32_t *p) { return vi32_dot4_s8(v, a, p); }

LNRNN_INLINE vi32 vi32_shifted(const int32_t *p, int bits)
{
    return _mm_sll_epi32(_mm_loadu_si128((const __m128i *)p), _mm_cvtsi32_si128(bits));
}

LNRNN_INLINE v32 vi32_less(vi32 v, vi32 s) { return _mm_cvtepi32_ps(_mm_sub_epi32(v, s)); }
