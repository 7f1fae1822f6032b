/* exp, tanh and sigmoid of a vector of floats, within 2 ULP of the true value on every instruction set,
 * subnormal results, infinities and NaN included (tests/simd/test_vmath.py).
 *
 * All three use the reduction x = n ln2 + r with |r| <= ln2/2, and p = expm1(r) = r + r^2 P(r). P is a
 * minimax polynomial of degree 4; the relative error of p is below 6e-9, a tenth of half an ULP.
 */
#ifndef LNRNN_VMATH_H
#define LNRNN_VMATH_H

#include "lnrnn.h"
#include "lnrnn/simd/simd.h"

/* -> p = expm1(r), and n in *n_out. For |x| <= 105. */
LNRNN_INLINE v32 v32_expm1_reduced(v32 x, v32 *n_out)
{
    /* Cody-Waite: the high part of ln2 has 9 bits and n at most 8, so that their product is exact without fma
     * too. */
    const v32 n = v32_round(v32_mul(x, v32_set1(0x1.715476p+0f)));
    v32 r = v32_fma(n, v32_set1(-0x1.63p-1f), x);
    r = v32_fma(n, v32_set1(0x1.bd0106p-13f), r);
    v32 q = v32_set1(0x1.6d99e4p-10f);
    q = v32_fma(q, r, v32_set1(0x1.1228bep-7f));
    q = v32_fma(q, r, v32_set1(0x1.555488p-5f));
    q = v32_fma(q, r, v32_set1(0x1.5554b0p-3f));
    q = v32_fma(q, r, v32_set1(0.5f));
    *n_out = n;
    return v32_fma(v32_mul(r, r), q, r);
}

LNRNN_INLINE v32 v32_exp(v32 x)
{
    v32 n;
    /* Beyond these bounds the result is 0 or infinity, which the two multiplications by powers of two
     * give. */
    x = v32_max(v32_set1(-105.0f), v32_min(v32_set1(89.0f), x));
    v32 p = v32_add(v32_expm1_reduced(x, &n), v32_set1(1.0f));
    const v32 half = v32_round(v32_mul(n, v32_set1(0.5f)));
    return v32_mul(v32_mul(p, v32_pow2(half)), v32_pow2(v32_sub(n, half)));
}

LNRNN_INLINE v32 v32_tanh(v32 x)
{
    v32 n;
    /* tanh(9.02) rounds to 1. min returns its second argument if that is NaN. */
    const v32 one = v32_set1(1.0f), a = v32_min(v32_set1(9.5f), v32_abs(x));
    /* a >= 5/8: 1 - 2 / (e^2a + 1), whose error is at most half that of the quotient */
    const v32 p = v32_expm1_reduced(v32_add(a, a), &n);
    const v32 two_n = v32_pow2(n);
    const v32 above = v32_sub(one, v32_div(v32_set1(2.0f), v32_fma(p, two_n, v32_add(two_n, one))));
    /* a < 5/8: a + a^3 P(a^2), minimax, relative error 4e-9 */
    const v32 z = v32_mul(a, a);
    v32 q = v32_set1(-0x1.76ec98p-8f);
    q = v32_fma(q, z, v32_set1(0x1.5267a0p-6f));
    q = v32_fma(q, z, v32_set1(-0x1.b8475cp-5f));
    q = v32_fma(q, z, v32_set1(0x1.110786p-3f));
    q = v32_fma(q, z, v32_set1(-0x1.555534p-2f));
    const v32 below = v32_fma(v32_mul(a, z), q, a);
    return v32_copysign(v32_select_lt(a, v32_set1(0.625f), below, above), x);
}

LNRNN_INLINE v32 v32_sigmoid(v32 x)
{
    /* 1/(1+e) for x >= 0, e/(1+e) below: exp(-|x|) cannot overflow, and small results keep their digits. */
    const v32 one = v32_set1(1.0f);
    const v32 e = v32_exp(v32_copysign(x, v32_set1(-1.0f)));
    const v32 s = v32_add(one, e);
    /* The rounding error of s, which is known exactly, changes the quotient by up to one ULP. */
    const v32 y = v32_div(v32_select_lt(x, v32_zero(), e, one), s);
    const v32 error = v32_sub(v32_sub(s, one), e);
    const v32 reciprocal = v32_select_lt(x, v32_zero(), v32_sub(one, y), y); /* 1/s */
    return v32_fma(v32_mul(y, error), reciprocal, y);
}

LNRNN_INLINE v32 v32_relu(v32 x) { return v32_max(v32_zero(), x); }

/* f: LNRNN_MAP_EXP, .. */
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
