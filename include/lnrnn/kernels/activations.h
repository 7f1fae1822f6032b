/* The activations of the cells, and their derivatives. */
#ifndef LNRNN_ACTIVATIONS_H
#define LNRNN_ACTIVATIONS_H

#include "lnrnn/simd/vmath.h"

/* Calls f(act, ...) with `act` as a constant, so that each activation has a copy of the inline function f. */
#define LNRNN_FOR_ACT(act, f, ...)                                    \
    switch (act) {                                                    \
    case LNRNN_ACT_TANH: f(LNRNN_ACT_TANH, __VA_ARGS__); break;       \
    case LNRNN_ACT_RELU: f(LNRNN_ACT_RELU, __VA_ARGS__); break;       \
    case LNRNN_ACT_SIGMOID: f(LNRNN_ACT_SIGMOID, __VA_ARGS__); break; \
    default: f(LNRNN_ACT_IDENTITY, __VA_ARGS__); break;               \
    }

/* v: m vectors, each replaced by act(v). act: a compile-time constant, LNRNN_ACT_TANH to
 * LNRNN_ACT_IDENTITY. */
LNRNN_INLINE void v32_acts(int act, const int m, v32 *v)
{
    switch (act) {
    case LNRNN_ACT_TANH: v32_tanhs(m, v); break;
    case LNRNN_ACT_SIGMOID: v32_sigmoids(m, v); break;
    case LNRNN_ACT_RELU:
        for (int i = 0; i < m; i++)
            v[i] = v32_max(v32_zero(), v[i]);
        break;
    default: break;
    }
}

/* v: m vectors. Replaces each value z by the hard sigmoid min(max(z / 6 + 1/2, 0), 1). NaN stays NaN. */
LNRNN_INLINE void v32_hard_sigmoids(const int m, v32 *v)
{
    const v32 zero = v32_zero(), one = v32_set1(1.0f), sixth = v32_set1(1.0f / 6), half = v32_set1(0.5f);
    for (int i = 0; i < m; i++) {
        v[i] = v32_fma(v[i], sixth, half);
        v[i] = v32_select_lt(v[i], zero, zero, v[i]);
        v[i] = v32_select_lt(one, v[i], one, v[i]);
    }
}

/* y = sigmoid(z). Returns dy/dz. */
LNRNN_INLINE v32 sigmoid_slope(v32 y) { return y * (v32_set1(1.0f) - y); }

/* y = hard_sigmoid(z). Returns dy/dz. */
LNRNN_INLINE v32 hard_sigmoid_slope(v32 y)
{
    const v32 zero = v32_zero(), one = v32_set1(1.0f), sixth = v32_set1(1.0f / 6);
    return v32_select_lt(zero, y, v32_select_lt(y, one, sixth, zero), zero);
}

/* y = tanh(z). Returns dy/dz. 1 - y*y would lose digits near 1. */
LNRNN_INLINE v32 tanh_slope(v32 y)
{
    const v32 one = v32_set1(1.0f);
    return (one - y) * (one + y);
}

/* y = act(z). Returns dy/dz. */
LNRNN_INLINE v32 act_slope(int act, v32 y)
{
    const v32 one = v32_set1(1.0f), zero = v32_zero();
    switch (act) {
    case LNRNN_ACT_TANH: return tanh_slope(y);
    case LNRNN_ACT_RELU: return v32_select_lt(zero, y, one, zero);
    case LNRNN_ACT_SIGMOID: return sigmoid_slope(y);
    default: return one;
    }
}

#endif
