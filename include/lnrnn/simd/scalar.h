/* The operations of simd.h in plain C, with one lane, for every machine and for debuggers. */
#define V32_LANES 1
#define V64_LANES 1
#define MR 2
#define NR_VECS 2
#define MR_S8 MR
#define S8_OFFSET 0
#define LNRNN_FEW_COPIES

typedef float v32;
typedef double v64;
typedef int32_t vi32;

LNRNN_INLINE v32 v32_set1(float s) { return s; }
LNRNN_INLINE v32 v32_load(const float *p) { return *p; }
LNRNN_INLINE v32 v32_load_n(const float *p, size_t n) { return n ? *p : 0.0f; }
LNRNN_INLINE void v32_store(float *p, v32 v) { *p = v; }
LNRNN_INLINE void v32_stream(float *p, v32 v) { *p = v; }
/* GCOVR_EXCL_START: a vector of one lane is never partial */
LNRNN_INLINE void v32_store_n(float *p, v32 v, size_t n)
{
    if (n)
        *p = v;
}
LNRNN_INLINE v32 v32_keep_n(v32 v, size_t n) { return n ? v : 0.0f; }
/* GCOVR_EXCL_STOP */
LNRNN_INLINE v32 v32_fma(v32 a, v32 b, v32 c) { return a * b + c; }
LNRNN_INLINE v32 v32_sqrt(v32 v) { return sqrtf(v); }
LNRNN_INLINE v32 v32_min(v32 a, v32 b) { return a < b ? a : b; }
LNRNN_INLINE v32 v32_max(v32 a, v32 b) { return a > b ? a : b; }
LNRNN_INLINE float v32_sum(v32 v) { return v; }

LNRNN_INLINE v32 v32_sums(const v32 *v) { return *v; }

LNRNN_INLINE v32 v32_round(v32 v)
{
    const float big = 12582912.0f; /* 1.5 * 2^23: floats near it are integers */
    return (v + big) - big;
}

LNRNN_INLINE v32 v32_lookup16(const float *p, v32 v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return p[bits & 15];
}

LNRNN_INLINE v32 v32_abs(v32 v) { return fabsf(v); }
LNRNN_INLINE v32 v32_copysign(v32 v, v32 s) { return copysignf(v, s); }
LNRNN_INLINE v32 v32_select_lt(v32 a, v32 b, v32 x, v32 y) { return a < b ? x : y; }

typedef uint16_t v16;

LNRNN_INLINE v16 v16_load(const uint16_t *p) { return *p; }
LNRNN_INLINE v16 v16_load_n(const uint16_t *p, size_t n) { return n ? *p : 0; }
LNRNN_INLINE void v16_store(uint16_t *p, v16 v) { *p = v; }
LNRNN_INLINE void v16_stream(uint16_t *p, v16 v) { *p = v; }
/* GCOVR_EXCL_START: a vector of one lane is never partial */
LNRNN_INLINE void v16_store_n(uint16_t *p, v16 v, size_t n)
{
    if (n)
        *p = v;
}
/* GCOVR_EXCL_STOP */
LNRNN_OUTLINE v32 v32_from_bf16(v16 h) { return bf16_to_float(h); }
LNRNN_OUTLINE v16 v32_to_bf16(v32 v) { return float_to_bf16(v); }
LNRNN_OUTLINE v32 v32_from_f16(v16 h) { return f16_to_float(h); }
LNRNN_OUTLINE v16 v32_to_f16(v32 v) { return float_to_f16(v); }

LNRNN_INLINE v64 v64_set1(double s) { return s; }
LNRNN_INLINE v64 v64_load(const double *p) { return *p; }
LNRNN_INLINE v64 v64_load_n(const double *p, size_t n) { return n ? *p : 0.0; }
LNRNN_INLINE void v64_store(double *p, v64 v) { *p = v; }
LNRNN_INLINE void v64_stream(double *p, v64 v) { *p = v; }
/* GCOVR_EXCL_START: a vector of one lane is never partial */
LNRNN_INLINE void v64_store_n(double *p, v64 v, size_t n)
{
    if (n)
        *p = v;
}
LNRNN_INLINE v64 v64_keep_n(v64 v, size_t n) { return n ? v : 0.0; }
/* GCOVR_EXCL_STOP */
LNRNN_INLINE v64 v64_fma(v64 a, v64 b, v64 c) { return a * b + c; }
LNRNN_INLINE double v64_sum(v64 v) { return v; }

LNRNN_INLINE void stream_end(void) {}

LNRNN_INLINE v32 v32_larger(v32 a, v32 b) { return float_bits(a) > float_bits(b) ? a : b; }
LNRNN_INLINE float v32_largest(v32 v) { return v; }

/* Converting a NaN to an integer is undefined in C. */
LNRNN_INLINE vi32 v32_to_vi32(v32 v) { return v == v ? (vi32)v32_round(v) : 0; }

LNRNN_INLINE void v32_store_s14(uint8_t *high, uint8_t *low, v32 v)
{
    const int n = v32_to_vi32(v) + 8192;
    *high = (uint8_t)(n >> 7), *low = (uint8_t)(n & 127);
}

LNRNN_INLINE void v32_store_s8(uint8_t *p, v32 v) { *p = (uint8_t)v32_to_vi32(v); }

LNRNN_INLINE vi32 vi32_load(const int32_t *p) { return *p; }
LNRNN_INLINE void vi32_store(int32_t *p, vi32 v) { *p = v; }

LNRNN_OUTLINE vi32 vi32_dot4_s8(vi32 v, uint32_t a, const uint32_t *p)
{
    for (int b = 0; b < 32; b += 8)
        v += (int8_t)(a >> b) * (int8_t)(*p >> b);
    return v;
}

LNRNN_INLINE v32 vi32_to_v32(vi32 v) { return (float)v; }
