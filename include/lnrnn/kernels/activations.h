/* The activations of the cells, and their derivatives. */
#ifndef LNRNN_ACTIVATIONS_H
#define LNRNN_ACTIVATIONS_H

#include "lnrnn/simd/vmath.h"

/* v (m vectors): replaces v by act(v). act: LNRNN_ACT_TANH .. */
LNRNN_INLINE void v32_acts(int act, const int m, v32 *v)
{
    switch (act) {
    case LNRNN_ACT_TANH: v32_tanhs(m, v); break;
    case LNRNN_ACT_SIGMOID: v32_sigmoids(m, v); break;
    case LNRNN_ACT_RELU:
        for (int i = 0; i < m; i++)
            v[i] = v32_relu(v[i]);
        break;
    default: break;
    }
}

/* v (m vectors): replaces each value z by min(max(z / 6 + 1/2, 0), 1). NaN stays NaN. */
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
