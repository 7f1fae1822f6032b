/* exp, tanh and sigmoid of a vector of floats, within 2 ULP of the true value on every instruction set. This
 * includes subnormal results, infinities and NaN (tests/simd/test_vmath.py; tests/campaigns/ulp tries all
 * floats).
 *
 * exp and sigmoid reduce x to n ln2 + r with |r| <= ln2/2. A minimax polynomial of degree 6 approximates
 * exp(r) or exp(-r) with a relative error below 4e-9, a sixteenth of half an ULP. tanh uses tables and the
 * addition theorem. All three functions use divisions, because approximate reciprocals differ between CPUs.
 */
#ifndef LNRNN_VMATH_H
#define LNRNN_VMATH_H

#include "lnrnn.h"
#include "lnrnn/simd/simd.h"

/* Floats near 1.5 * 2^23 are integers, so adding this number rounds to an integer, whose low bits are the
 * last bits of the float. */
#define LNRNN_TO_INTEGER 0x1.8p23f

/* The functions below do each operation on m vectors (a constant) before the next operation. The operations
 * of one vector depend on each other, so the CPU overlaps them with other vectors. */
enum { LNRNN_MOST_TOGETHER = 4 };
#define EACH LNRNN_FOR_EACH (i, m)

/* x, n (m vectors), |x| <= 105. x = n ln2 + r. Replaces x by r, and writes n. */
LNRNN_OF_UNIT void v32_reduced(const int m, v32 *x, v32 *n)
{
    const v32 to_integer = v32_set1(LNRNN_TO_INTEGER);
    EACH n[i] = v32_fma(x[i], v32_set1(0x1.715476p+0f), to_integer);
    EACH n[i] -= to_integer;
    /* Cody-Waite: the high part of ln2 has 12 bits and n at most 8, so their product is exact even without
     * fma. */
    EACH x[i] = v32_fma(n[i], v32_set1(-0x1.62ep-1f), x[i]);
    EACH x[i] = v32_fma(n[i], v32_set1(-0x1.0bfbe8p-15f), x[i]);
}

LNRNN_INLINE v32 v32_exp(v32 x)
{
    /* Beyond these bounds the result is 0 or infinity. A NaN stays, as the second argument of min and max. */
    v32 n;
    const v32 one = v32_set1(1.0f);
    v32 r = v32_max(v32_set1(-105.0f), v32_min(v32_set1(89.0f), x));
    v32_reduced(1, &r, &n);
    v32 q = v32_set1(0x1.6b69fcp-10f);
    q = v32_fma(q, r, v32_set1(0x1.122f2ep-7f));
    q = v32_fma(q, r, v32_set1(0x1.55568cp-5f));
    q = v32_fma(q, r, v32_set1(0x1.5554a4p-3f));
    q = v32_fma(q, r, v32_set1(0.5f));
    q = v32_fma(q, r, one);
    return v32_scale(v32_fma(q, r, one), n);
}

/* tanh(b + d) = T + (1 - T^2) t / (1 + T t), T = tanh(b), t = tanh(d). The tables are b, T and 1 - T^2; b is
 * near k * 32/55, such that T and 1 - T^2 are almost floats. For k = 1 b is lower, because the relative error
 * is largest where T is nearly twice the result. */
static const float lnrnn_tanh_at[16] = {0x0p+0f,        0x1.1b46c0p-1f, 0x1.2a0f2ap+0f, 0x1.bd826ap+0f,
                                        0x1.29aa22p+1f, 0x1.74f1eep+1f, 0x1.be86dap+1f, 0x1.05b17ap+2f,
                                        0x1.2ba0f0p+2f, 0x1.4f24cep+2f, 0x1.74516ap+2f, 0x1.997976p+2f,
                                        0x1.bec3a6p+2f, 0x1.e434e0p+2f, 0x1.03ae5ap+3f, 0x1.154246p+3f};
static const float lnrnn_tanh_of[16] = {0x0p+0f,        0x1.01854cp-1f, 0x1.a5161cp-1f, 0x1.e16982p-1f,
                                        0x1.f64fb4p-1f, 0x1.fcfdf6p-1f, 0x1.ff0b9ep-1f, 0x1.ffb66ap-1f,
                                        0x1.ffe982p-1f, 0x1.fff896p-1f, 0x1.fffdaep-1f, 0x1.ffff46p-1f,
                                        0x1.ffffc6p-1f, 0x1.ffffeep-1f, 0x1.fffffap-1f, 0x1.fffffep-1f};
static const float lnrnn_tanh_slope[16] = {
    0x1p+0f,         0x1.7e798cp-1f,  0x1.4b5e46p-2f,  0x1.dac968p-4f,  0x1.331a8ap-5f,  0x1.7fe378p-7f,
    0x1.e84f5ap-9f,  0x1.2642d8p-10f, 0x1.67d812p-12f, 0x1.da7c86p-14f, 0x1.28ff5ap-15f, 0x1.73ffc8p-17f,
    0x1.cfffe4p-19f, 0x1.1ffffep-20f, 0x1.800012p-22f, 0x1.ffffecp-24f};

LNRNN_OF_UNIT void tanhs_of(const int m, v32 *x)
{
    enum { M = LNRNN_MOST_TOGETHER };
    v32 a[M], k[M], d[M], z[M], q[M], of[M];
    /* tanh(9.011) rounds to 1. */
    EACH a[i] = v32_min(v32_set1(9.015f), v32_abs(x[i]));
    EACH k[i] = v32_fma(a[i], v32_set1(1.71875f), v32_set1(LNRNN_TO_INTEGER));
    EACH d[i] = a[i] - v32_lookup16(lnrnn_tanh_at, k[i]); /* exact */
    EACH of[i] = v32_lookup16(lnrnn_tanh_of, k[i]);
    /* tanh(d) is d + d^3 P(d^2), with relative error 2e-8 for |d| <= 0.32. Larger |d| occur only if the
     * result is above 1 - 2^-22. */
    EACH z[i] = d[i] * d[i];
    EACH q[i] = v32_fma(v32_set1(-0x1.99e6dcp-5f), z[i], v32_set1(0x1.109d2cp-3f));
    EACH q[i] = v32_fma(q[i], z[i], v32_set1(-0x1.555466p-2f));
    EACH q[i] = v32_fma(d[i] * z[i], q[i], d[i]);
    EACH q[i] = q[i] / v32_fma(of[i], q[i], v32_set1(1.0f));
    EACH q[i] = v32_fma(v32_lookup16(lnrnn_tanh_slope, k[i]), q[i], of[i]);
    EACH x[i] = v32_copysign(q[i], x[i]);
}

/* Defines f, where x has m vectors, m from 1 to 4. f replaces x by of(x). */
#ifdef LNRNN_SMALL /* without unrolled loops, only one vector stays in registers */
#define LNRNN_OF_EACH(f, of)                 \
    LNRNN_INLINE void f(const int m, v32 *x) \
    {                                        \
        for (int i = 0; i < m; i++)          \
            of(1, x + i);                    \
    }
#else
#define LNRNN_OF_EACH(f, of) \
    LNRNN_INLINE void f(const int m, v32 *x) { of(m, x); }
#endif
LNRNN_OF_EACH(v32_tanhs, tanhs_of)

LNRNN_INLINE v32 v32_tanh(v32 x)
{
    v32_tanhs(1, &x);
    return x;
}

/* With x = n ln2 + r and p = 2^n, sigmoid(x) = p / (p + exp(-r)). p is exact. The sum is 1 + p plus r times a
 * polynomial, rounded once. p and the sum are multiplied by 5/3, for two reasons. First, 1 + p then has a
 * rounding error of at most a third of the last place, whereas 1 + 2^-24 is halfway between two floats.
 * Second, if the quotient is nearly twice a power of two, the sum is 1.67 times a power of two, so that its
 * rounding matters less. */
LNRNN_OF_UNIT void sigmoids_of(const int m, v32 *x)
{
    enum { M = LNRNN_MOST_TOGETHER };
    v32 r[M], n[M], p[M], q[M];
    const v32 scale = v32_set1(0x1.aaaaaap+0f);
    EACH r[i] = v32_max(v32_set1(-105.0f), v32_min(v32_set1(30.0f), x[i]));
    v32_reduced(m, r, n);
    EACH p[i] = v32_scale(scale, n[i]);
    EACH q[i] = v32_fma(v32_set1(0x1.2da66ep-9f), r[i], v32_set1(-0x1.c8f8d4p-7f));
    EACH q[i] = v32_fma(q[i], r[i], v32_set1(0x1.1c7526p-4f));
    EACH q[i] = v32_fma(q[i], r[i], v32_set1(-0x1.1c7118p-2f));
    EACH q[i] = v32_fma(q[i], r[i], v32_set1(0x1.aaaaa0p-1f));
    EACH q[i] = v32_fma(q[i], r[i], v32_set1(-0x1.aaaaaap+0f));
    EACH q[i] = v32_fma(q[i], r[i], p[i] + scale);
    EACH x[i] = p[i] / q[i];
}

LNRNN_OF_EACH(v32_sigmoids, sigmoids_of)
#undef LNRNN_OF_EACH

LNRNN_INLINE v32 v32_sigmoid(v32 x)
{
    v32_sigmoids(1, &x);
    return x;
}

#undef EACH

/* Returns f(v), where f is LNRNN_MAP_EXP, LNRNN_MAP_TANH or LNRNN_MAP_SIGMOID. */
LNRNN_INLINE v32 v32_map(const int f, v32 v)
{
    return f == LNRNN_MAP_EXP ? v32_exp(v) : f == LNRNN_MAP_TANH ? v32_tanh(v) : v32_sigmoid(v);
}

/* x (n) -> y (n), y = f(x); y may be x. */
LNRNN_INLINE void map_f32(const int f, size_t n, const float *x, float *y)
{
    size_t i = 0;
    for (; i + V32_LANES <= n; i += V32_LANES)
        v32_store(y + i, v32_map(f, v32_load(x + i)));
    if (i < n)
        v32_store_n(y + i, v32_map(f, v32_load_n(x + i, n - i)), n - i);
}

static void exp_f32(size_t n, const float *x, float *y) { map_f32(LNRNN_MAP_EXP, n, x, y); }
static void tanh_f32(size_t n, const float *x, float *y) { map_f32(LNRNN_MAP_TANH, n, x, y); }
static void sigmoid_f32(size_t n, const float *x, float *y) { map_f32(LNRNN_MAP_SIGMOID, n, x, y); }

#endif
