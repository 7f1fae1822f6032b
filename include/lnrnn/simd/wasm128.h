/* The operations of simd.h in the 128-bit vectors of WebAssembly: four floats, two doubles, no fused
 * multiply-add. The operations and their order are the same as in sse2.h, so all results have the same
 * bits. */
#include <wasm_simd128.h>

#define V32_LANES 4
#define V64_LANES 2
#define MR 4
#define NR_VECS 2
#define MR_S8 MR
#define S8_OFFSET 0
#define LNRNN_FEW_COPIES
#define LNRNN_PREFETCHES 0

LNRNN_VECTORS(16)
typedef uint32_t vu32 __attribute__((vector_size(16)));

#define LNRNN_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)

LNRNN_INLINE v32 v32_keep_n(v32 v, size_t n)
{
    static const int32_t mask[8] = {-1, -1, -1, -1, 0, 0, 0, 0};
    return (v32)wasm_v128_and((v128_t)v, wasm_v128_load(mask + 4 - n));
}

LNRNN_INLINE v32 v32_set1(float s) { return (v32)wasm_f32x4_splat(s); }
LNRNN_INLINE v32 v32_load(const float *p) { return (v32)wasm_v128_load(p); }
LNRNN_INLINE void v32_store(float *p, v32 v) { wasm_v128_store(p, (v128_t)v); }
LNRNN_THROUGH_STACK(LNRNN_OUTLINE, v32, float, 4)
LNRNN_INLINE void v32_stream(float *p, v32 v) { v32_store(p, v); }
LNRNN_INLINE v32 v32_fma(v32 a, v32 b, v32 c) { return a * b + c; }
LNRNN_INLINE v32 v32_sqrt(v32 v) { return (v32)wasm_f32x4_sqrt((v128_t)v); }
/* pmin(b, a) is a < b ? a : b, and pmax(b, a) is a > b ? a : b. */
LNRNN_INLINE v32 v32_min(v32 a, v32 b) { return (v32)wasm_f32x4_pmin((v128_t)b, (v128_t)a); }
LNRNN_INLINE v32 v32_max(v32 a, v32 b) { return (v32)wasm_f32x4_pmax((v128_t)b, (v128_t)a); }

LNRNN_INLINE float v32_sum(v32 v)
{
    const v32 s = v + LNRNN_SHUFFLE(v, v, 2, 3, 2, 3);
    return s[0] + s[1];
}

LNRNN_INLINE v32 v32_sums(const v32 *v)
{
    const v32 a = LNRNN_SHUFFLE(v[0], v[1], 0, 1, 4, 5) + LNRNN_SHUFFLE(v[0], v[1], 2, 3, 6, 7);
    const v32 b = LNRNN_SHUFFLE(v[2], v[3], 0, 1, 4, 5) + LNRNN_SHUFFLE(v[2], v[3], 2, 3, 6, 7);
    return LNRNN_SHUFFLE(a, b, 0, 2, 4, 6) + LNRNN_SHUFFLE(a, b, 1, 3, 5, 7);
}

/* Floats near 1.5 * 2^23 are integers, whose low bits are the low bits of the float. WebAssembly's own
 * conversion takes several instructions of a CPU, because it saturates. */
LNRNN_INLINE v32 v32_round(v32 v) { return (v + 0x1.8p23f) - 0x1.8p23f; }
LNRNN_INLINE vi32 v32_to_vi32(v32 v) { return (vi32)(v + 0x1.8p23f) - 0x4b400000; }

LNRNN_INLINE v32 v32_lookup16(const float *p, v32 v)
{
    const vi32 k = (vi32)v & 15;
    return (v32){p[k[0]], p[k[1]], p[k[2]], p[k[3]]};
}

LNRNN_INLINE v32 v32_abs(v32 v) { return (v32)wasm_f32x4_abs((v128_t)v); }

LNRNN_INLINE v32 v32_copysign(v32 v, v32 s)
{
    return (v32)wasm_v128_bitselect((v128_t)s, (v128_t)v, wasm_i32x4_splat(INT32_MIN));
}

LNRNN_INLINE v32 v32_select_lt(v32 a, v32 b, v32 x, v32 y)
{
    return (v32)wasm_v128_bitselect((v128_t)x, (v128_t)y, (v128_t)(a < b));
}

typedef uint16_t v16 __attribute__((vector_size(8)));

LNRNN_INLINE v16 v16_load(const uint16_t *p)
{
    v16 v;
    memcpy(&v, p, sizeof v);
    return v;
}

LNRNN_INLINE void v16_store(uint16_t *p, v16 v) { memcpy(p, &v, sizeof v); }
LNRNN_INLINE void v16_stream(uint16_t *p, v16 v) { v16_store(p, v); }
LNRNN_THROUGH_STACK(LNRNN_OUTLINE, v16, uint16_t, 4)

LNRNN_INLINE v32 v32_from_bf16(v16 h) { return (v32)(__builtin_convertvector(h, vu32) << 16); }

LNRNN_INLINE v16 v32_to_bf16(v32 v)
{
    const vu32 u = (vu32)v, high = u >> 16, rounded = (u + 0x7fff + (high & 1)) >> 16;
    const v128_t number = (v128_t)(v == v), nan = (v128_t)(high | 0x40);
    return __builtin_convertvector((vu32)wasm_v128_bitselect((v128_t)rounded, nan, number), v16);
}

/* WebAssembly has no conversions of IEEE's 16-bit floats: half.h converts lane by lane. */
LNRNN_OUTLINE v32 v32_from_f16(v16 h)
{
    return (v32){f16_to_float(h[0]), f16_to_float(h[1]), f16_to_float(h[2]), f16_to_float(h[3])};
}

LNRNN_OUTLINE v16 v32_to_f16(v32 v)
{
    return (v16){float_to_f16(v[0]), float_to_f16(v[1]), float_to_f16(v[2]), float_to_f16(v[3])};
}

LNRNN_INLINE v64 v64_set1(double s) { return (v64)wasm_f64x2_splat(s); }
LNRNN_INLINE v64 v64_load(const double *p) { return (v64)wasm_v128_load(p); }
LNRNN_INLINE void v64_store(double *p, v64 v) { wasm_v128_store(p, (v128_t)v); }
LNRNN_INLINE void v64_stream(double *p, v64 v) { v64_store(p, v); }
LNRNN_INLINE v64 v64_fma(v64 a, v64 b, v64 c) { return a * b + c; }
LNRNN_INLINE double v64_sum(v64 v) { return v[0] + v[1]; }

LNRNN_INLINE void stream_end(void) {}

LNRNN_INLINE v32 v32_larger(v32 a, v32 b) { return (v32)wasm_i32x4_max((v128_t)a, (v128_t)b); }

LNRNN_INLINE float v32_largest(v32 v)
{
    v = v32_larger(v, LNRNN_SHUFFLE(v, v, 2, 3, 2, 3));
    return v32_larger(v, LNRNN_SHUFFLE(v, v, 1, 1, 1, 1))[0];
}

LNRNN_INLINE void v32_store_s14(uint8_t *high, uint8_t *low, v32 v)
{
    const vi32 n = v32_to_vi32(v) + 8192;
    const v128_t s = wasm_i16x8_narrow_i32x4((v128_t)(n >> 7), (v128_t)(n & 127));
    const v128_t bytes = wasm_u8x16_narrow_i16x8(s, s);
    wasm_v128_store32_lane(high, bytes, 0);
    wasm_v128_store32_lane(low, bytes, 1);
}

LNRNN_INLINE void v32_store_s8(uint8_t *p, v32 v)
{
    const v128_t n = (v128_t)v32_to_vi32(v), s = wasm_i16x8_narrow_i32x4(n, n);
    wasm_v128_store32_lane(p, wasm_i8x16_narrow_i16x8(s, s), 0);
}

LNRNN_INLINE vi32 vi32_load(const int32_t *p) { return (vi32)wasm_v128_load(p); }
LNRNN_INLINE void vi32_store(int32_t *p, vi32 v) { wasm_v128_store(p, (v128_t)v); }

LNRNN_INLINE vi32 vi32_dot4_s8(vi32 v, uint32_t a, const uint32_t *p)
{
    const v128_t w = wasm_v128_load(p), s = wasm_i16x8_extend_low_i8x16(wasm_i32x4_splat((int32_t)a));
    const vi32 low = (vi32)wasm_i32x4_dot_i16x8(s, wasm_i16x8_extend_low_i8x16(w)),
               high = (vi32)wasm_i32x4_dot_i16x8(s, wasm_i16x8_extend_high_i8x16(w));
    v += LNRNN_SHUFFLE(low, high, 0, 2, 4, 6);
    return v + LNRNN_SHUFFLE(low, high, 1, 3, 5, 7);
}

LNRNN_INLINE v32 vi32_to_v32(vi32 v) { return (v32)wasm_f32x4_convert_i32x4((v128_t)v); }
