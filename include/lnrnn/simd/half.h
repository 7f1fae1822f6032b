/* Converts between float and bfloat16 or float16, one value at a time in integer arithmetic, for instruction
 * sets without conversions. Conversion to 16 bits rounds to nearest, ties to even; too large values become
 * infinity, NaN stays NaN. Conversion from 16 bits is exact. */
#ifndef LNRNN_HALF_H
#define LNRNN_HALF_H

LNRNN_INLINE uint32_t float_bits(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

LNRNN_INLINE float bits_float(uint32_t u)
{
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}

LNRNN_INLINE float bf16_to_float(uint16_t h) { return bits_float((uint32_t)h << 16); }

LNRNN_INLINE uint16_t float_to_bf16(float v)
{
    const uint32_t u = float_bits(v);
    return (uint16_t)(v == v ? (u + 0x7fff + (u >> 16 & 1)) >> 16 : u >> 16 | 0x40);
}

LNRNN_INLINE float f16_to_float(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, digits = h & 0x3ff;
    if (exponent == 0)
        return bits_float(sign | float_bits((float)digits * 0x1p-24f));
    return bits_float(sign | (exponent == 31 ? 255u : exponent + 112) << 23 | digits << 13);
}

LNRNN_INLINE uint16_t float_to_f16(float v)
{
    const uint32_t u = float_bits(v), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a >= 0x47800000) /* 2^16, infinity, NaN */
        return (uint16_t)(sign | (a > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (a < 0x38800000) /* subnormal: adding 0.5 rounds to multiples of the last place, 2^-24 */
        return (uint16_t)(sign | (float_bits(bits_float(a) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13);
}

#endif
