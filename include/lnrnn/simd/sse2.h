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

LNRNN_VECTORS(16)

LNRNN_INLINE v32 v32_keep_n(v32 v, size_t n)
{
    static const int32_t mask[8] = {-1, -1, -1, -1, 0, 0, 0, 0};
    return _mm_and_ps(v, _mm_loadu_ps((const float *)(mask + 4 - n)));
}

LNRNN_INLINE v32 v32_set1(float s) { return _mm_set1_ps(s); }
LNRNN_INLINE v32 v32_load(const float *p) { return _mm_loadu_ps(p); }
LNRNN_INLINE void v32_store(float *p, v32 v) { _mm_storeu_ps(p, v); }
LNRNN_THROUGH_STACK(LNRNN_OUTLINE, v32, float, 4)
LNRNN_INLINE void v32_stream(float *p, v32 v) { _mm_stream_ps(p, v); }
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

LNRNN_INLINE v64 v64_set1(double s) { return _mm_set1_pd(s); }
LNRNN_INLINE v64 v64_load(const double *p) { return _mm_loadu_pd(p); }
LNRNN_INLINE void v64_store(double *p, v64 v) { _mm_storeu_pd(p, v); }
LNRNN_INLINE void v64_stream(double *p, v64 v) { _mm_stream_pd(p, v); }
LNRNN_INLINE v64 v64_fma(v64 a, v64 b, v64 c) { return _mm_add_pd(_mm_mul_pd(a, b), c); }
LNRNN_INLINE double v64_sum(v64 v) { return _mm_cvtsd_f64(_mm_add_sd(v, _mm_unpackhi_pd(v, v))); }

LNRNN_INLINE void stream_end(void) { _mm_sfence(); }

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

LNRNN_INLINE vi32 v32_to_vi32(v32 v) { return (vi32)_mm_cvtps_epi32(v); }

LNRNN_INLINE void v32_store_s14(uint8_t *high, uint8_t *low, v32 v)
{
    const vi32 n = v32_to_vi32(v) + 8192;
    const __m128i s = _mm_packs_epi32((__m128i)(n >> 7), (__m128i)(n & 127));
    const __m128i bytes = _mm_packus_epi16(s, s);
    const int32_t of_high = _mm_cvtsi128_si32(bytes), of_low = _mm_cvtsi128_si32(_mm_srli_epi64(bytes, 32));
    memcpy(high, &of_high, sizeof of_high);
    memcpy(low, &of_low, sizeof of_low);
}

LNRNN_INLINE void v32_store_s8(uint8_t *p, v32 v)
{
    const __m128i s = _mm_packs_epi32((__m128i)v32_to_vi32(v), _mm_setzero_si128());
    const int32_t bytes = _mm_cvtsi128_si32(_mm_packs_epi16(s, s));
    memcpy(p, &bytes, sizeof bytes);
}

LNRNN_INLINE vi32 vi32_load(const int32_t *p) { return (vi32)_mm_loadu_si128((const __m128i *)p); }
LNRNN_INLINE void vi32_store(int32_t *p, vi32 v) { _mm_storeu_si128((__m128i *)p, (__m128i)v); }

LNRNN_INLINE vi32 vi32_dot4_s8(vi32 v, uint32_t a, const uint32_t *p)
{
    /* Widens bytes to 16 bits. madd multiplies them and adds pairs of products in 32 bits; then the two pairs
     * of a lane are added. */
    const __m128i w = _mm_loadu_si128((const __m128i *)p), bytes = _mm_set1_epi32((int)a);
    const __m128i s = _mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
    const __m128 low = _mm_castsi128_ps(_mm_madd_epi16(s, _mm_srai_epi16(_mm_unpacklo_epi8(w, w), 8)));
    const __m128 high = _mm_castsi128_ps(_mm_madd_epi16(s, _mm_srai_epi16(_mm_unpackhi_epi8(w, w), 8)));
    v += (vi32)_mm_shuffle_ps(low, high, 0x88);
    return v + (vi32)_mm_shuffle_ps(low, high, 0xdd);
}

LNRNN_INLINE v32 vi32_to_v32(vi32 v) { return _mm_cvtepi32_ps((__m128i)v); }
