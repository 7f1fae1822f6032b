/* The operations of simd.h in NEON (aarch64): four floats, two doubles, fused multiply-add. */
#include <arm_neon.h>

#define V32_LANES 4
#define V64_LANES 2
/* In products with blocks (units.h) clang runs out of registers for eight rows: its loops have 72 to 100
 * instructions, gcc's 52. */
#if defined(LNRNN_BLOCKS) && defined(__clang__)
#define MR 6
#else
#define MR 8
#endif
#define NR_VECS 3
#define MR_S8 MR
#define S8_OFFSET 0

typedef float32x4_t v32;
typedef float64x2_t v64;
typedef int32x4_t vi32;

LNRNN_INLINE v32 v32_keep_n(v32 v, size_t n)
{
    static const uint32_t mask[8] = {~0u, ~0u, ~0u, ~0u, 0, 0, 0, 0};
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v), vld1q_u32(mask + 4 - n)));
}

LNRNN_INLINE v32 v32_set1(float s) { return vdupq_n_f32(s); }
LNRNN_INLINE v32 v32_load(const float *p) { return vld1q_f32(p); }
LNRNN_INLINE void v32_store(float *p, v32 v) { vst1q_f32(p, v); }
LNRNN_THROUGH_STACK(LNRNN_INLINE, v32, float, 4)
LNRNN_INLINE void v32_stream(float *p, v32 v) { vst1q_f32(p, v); }
LNRNN_INLINE v32 v32_fma(v32 a, v32 b, v32 c) { return vfmaq_f32(c, a, b); }
LNRNN_INLINE v32 v32_sqrt(v32 v) { return vsqrtq_f32(v); }
/* vminq and vmaxq cannot be used: if a or b is NaN, they return NaN, but simd.h requires b. */
LNRNN_INLINE v32 v32_min(v32 a, v32 b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
LNRNN_INLINE v32 v32_max(v32 a, v32 b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
LNRNN_INLINE float v32_sum(v32 v) { return vaddvq_f32(v); }
LNRNN_INLINE v32 v32_sums(const v32 *v) { return vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])); }
LNRNN_INLINE v32 v32_round(v32 v) { return vrndnq_f32(v); }

/* The TBL instruction looks up bytes: float k of p has bytes 4 k .. 4 k + 3. */
LNRNN_INLINE v32 v32_lookup16(const float *p, v32 v)
{
    const uint8_t *const bytes = (const uint8_t *)p;
    const uint32x4_t k = vandq_u32(vreinterpretq_u32_f32(v), vdupq_n_u32(15));
    const uint32x4_t at = vmlaq_u32(vdupq_n_u32(0x03020100u), k, vdupq_n_u32(0x04040404u));
    const uint8x16x4_t table = {
        {vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
    return vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(at)));
}

LNRNN_INLINE v32 v32_abs(v32 v) { return vabsq_f32(v); }
LNRNN_INLINE v32 v32_copysign(v32 v, v32 s) { return vbslq_f32(vdupq_n_u32(0x80000000u), s, v); }
LNRNN_INLINE v32 v32_select_lt(v32 a, v32 b, v32 x, v32 y) { return vbslq_f32(vcltq_f32(a, b), x, y); }

typedef uint16x4_t v16;

LNRNN_INLINE v16 v16_load(const uint16_t *p) { return vld1_u16(p); }
LNRNN_INLINE void v16_store(uint16_t *p, v16 v) { vst1_u16(p, v); }
LNRNN_INLINE void v16_stream(uint16_t *p, v16 v) { vst1_u16(p, v); }
LNRNN_THROUGH_STACK(LNRNN_INLINE, v16, uint16_t, 4)

LNRNN_INLINE v32 v32_from_bf16(v16 h) { return vreinterpretq_f32_u32(vshll_n_u16(h, 16)); }

LNRNN_INLINE v16 v32_to_bf16(v32 v)
{
    const uint32x4_t u = vreinterpretq_u32_f32(v), high = vshrq_n_u32(u, 16);
    const uint32x4_t even = vandq_u32(high, vdupq_n_u32(1));
    const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), even), 16);
    return vmovn_u32(vbslq_u32(vceqq_f32(v, v), rounded, vorrq_u32(high, vdupq_n_u32(0x40))));
}

LNRNN_INLINE v32 v32_from_f16(v16 h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
LNRNN_INLINE v16 v32_to_f16(v32 v) { return vreinterpret_u16_f16(vcvt_f16_f32(v)); }

LNRNN_INLINE v64 v64_set1(double s) { return vdupq_n_f64(s); }
LNRNN_INLINE v64 v64_load(const double *p) { return vld1q_f64(p); }

LNRNN_INLINE void v64_store(double *p, v64 v) { vst1q_f64(p, v); }
LNRNN_INLINE void v64_stream(double *p, v64 v) { vst1q_f64(p, v); }

LNRNN_INLINE v64 v64_fma(v64 a, v64 b, v64 c) { return vfmaq_f64(c, a, b); }
LNRNN_INLINE double v64_sum(v64 v) { return vaddvq_f64(v); }

LNRNN_INLINE void stream_end(void) {}

LNRNN_INLINE v32 v32_larger(v32 a, v32 b)
{
    return vreinterpretq_f32_s32(vmaxq_s32(vreinterpretq_s32_f32(a), vreinterpretq_s32_f32(b)));
}

LNRNN_INLINE float v32_largest(v32 v) { return bits_float((uint32_t)vmaxvq_s32(vreinterpretq_s32_f32(v))); }

LNRNN_INLINE vi32 v32_to_vi32(v32 v) { return vcvtnq_s32_f32(v); }

LNRNN_INLINE void v32_store_s14(uint8_t *high, uint8_t *low, v32 v)
{
    const vi32 n = v32_to_vi32(v) + 8192;
    const int16x8_t s = vcombine_s16(vmovn_s32(n >> 7), vmovn_s32(n & 127));
    const uint32x2_t bytes = vreinterpret_u32_s8(vmovn_s16(s));
    const uint32_t of_high = vget_lane_u32(bytes, 0), of_low = vget_lane_u32(bytes, 1);
    memcpy(high, &of_high, sizeof of_high);
    memcpy(low, &of_low, sizeof of_low);
}

LNRNN_INLINE void v32_store_s8(uint8_t *p, v32 v)
{
    const int16x4_t s = vmovn_s32(v32_to_vi32(v));
    const uint32_t bytes = vget_lane_u32(vreinterpret_u32_s8(vmovn_s16(vcombine_s16(s, s))), 0);
    memcpy(p, &bytes, sizeof bytes);
}

LNRNN_INLINE vi32 vi32_load(const int32_t *p) { return vld1q_s32(p); }
LNRNN_INLINE void vi32_store(int32_t *p, vi32 v) { vst1q_s32(p, v); }

LNRNN_INLINE vi32 vi32_dot4_s8(vi32 v, uint32_t a, const uint32_t *p)
{
    const int8x16_t w = vreinterpretq_s8_u32(vld1q_u32(p));
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(v, vreinterpretq_s8_u32(vdupq_n_u32(a)), w);
#else
    const int8x8_t s = vreinterpret_s8_u32(vdup_n_u32(a));
    const int32x4_t low = vpaddlq_s16(vmull_s8(s, vget_low_s8(w))),
                    high = vpaddlq_s16(vmull_s8(s, vget_high_s8(w)));
    return vaddq_s32(v, vpaddq_s32(low, high));
#endif
}

LNRNN_INLINE v32 vi32_to_v32(vi32 v) { return vcvtq_f32_s32(v); }
