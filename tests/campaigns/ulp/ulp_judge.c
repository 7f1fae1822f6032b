/* Judges float32 results of exp, tanh and sigmoid, as a shared library for run_ulp.py.
 *
 * The reference is computed in double. With x = n ln2 + r, |r| <= ln2/2, expm1(r) is its Taylor polynomial of degree 14. Its
 * remainder is below r^15/15! < 2^-62. ln2 is split so that n times its high part is exact for |n| < 2^11. Fewer than ten
 * roundings of 2^-53 remain, so exp, tanh and sigmoid have a relative error below 2^-49. That is 2^-25 ULP of a float.
 * judge_reference_error compares it with the long double functions of the C library.
 *
 * A ULP is the distance of two floats in the binade of the true value, at least 2^-149. If the true value rounds to
 * infinity, the result must be infinity; any other infinity counts as 2^128. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { EXP, TANH, SIGMOID };

/* If the true value is closer than this (in ULP) to the middle of two floats, either may be the nearest. This is eight times the
 * bound of the reference's error. */
#define NEAR_TIE 0x1p-22

typedef struct {
    double largest; /* the largest error in ULP, and its input and result */
    uint32_t input, result;
    uint64_t inputs; /* how many inputs are numbers */
    uint64_t nearest,
        near_ties;           /* results that are the float nearest to the true value, or may be (NEAR_TIE) */
    uint64_t nans;           /* how many inputs are NaN; the counts below are of wrong results */
    uint64_t nan_wrong;      /* NaN for a number, or a number for NaN */
    uint64_t infinity_wrong; /* infinity where the true value rounds to a finite float, or the reverse */
    uint64_t out_of_range; /* exp or sigmoid with a sign bit, sigmoid or |tanh| above 1, wrong sign of tanh */
    uint64_t special_wrong; /* not the nearest float, for 0, -0, subnormal and infinite inputs */
} verdict;

static inline double bits_double(uint64_t u)
{
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

static inline uint64_t double_bits(double d)
{
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    return u;
}

/* Divides x, |x| <= 300, into n ln2 + r. Returns expm1(r), and 2^n in *power. */
static inline double expm1_reduced(double x, double *power)
{
    const double magic = 0x1.8p52, shifted = x * 0x1.71547652b82fep+0 + magic, n = shifted - magic;
    const double r = (x - n * 0x1.62e42fefa3800p-1) - n * 0x1.ef35793c76730p-45;
    static const double c[] = {1 / 87178291200., 1 / 6227020800., 1 / 479001600., 1 / 39916800., 1 / 3628800.,
                               1 / 362880.,      1 / 40320.,      1 / 5040.,      1 / 720.,      1 / 120.,
                               1 / 24.,          1 / 6.,          1 / 2.};
    double q = c[0];
#pragma GCC unroll 16
    for (int i = 1; i < 13; i++)
        q = q * r + c[i];
    *power = bits_double((double_bits(shifted) + 1023) << 52);
    return r + r * r * q;
}

static inline double clamped(double x, double most) { return x > most ? most : x < -most ? -most : x; }

/* Returns the true value for x, which is not NaN. */
static inline double wide(const int function, double x)
{
    double power, p;
    if (function == EXP) {
        p = expm1_reduced(clamped(x, 200), &power);
        return power + power * p;
    }
    if (function == TANH) { /* expm1(2|x|) / (expm1(2|x|) + 2), which is 1 in double from |x| = 20 on */
        const double a = clamped(fabs(x), 25);
        p = expm1_reduced(a + a, &power);
        const double e = power * p + (power - 1);
        return copysign(e / (e + 2), x);
    }
    p = expm1_reduced(-clamped(fabs(x), 200), &power);
    const double e = power + power * p;
    return (x < 0 ? e : 1) / (1 + e);
}

/* x (n). Writes true values (n), 1 / their ULP (n), the nearest floats (n), and whether another float may be the nearest (n). */
#define REFERENCE(name, function)                                                                            \
    static void name(size_t n, const float *x, double *truth, double *per_ulp, float *nearest, uint8_t *tie) \
    {                                                                                                        \
        for (size_t i = 0; i < n; i++)                                                                       \
            truth[i] = wide(function, x[i]);                                                                 \
        for (size_t i = 0; i < n; i++) {                                                                     \
            int64_t e = (int64_t)(double_bits(truth[i]) >> 52 & 0x7ff) - 1023;                               \
            e = e < -126 ? -126 : e > 127 ? 127 : e;                                                         \
            per_ulp[i] = bits_double((uint64_t)(1023 + 23 - e) << 52);                                       \
            nearest[i] = (float)truth[i];                                                                    \
        }                                                                                                    \
        for (size_t i = 0; i < n; i++) {                                                                     \
            const double t = fabs(truth[i]) * per_ulp[i], magic = 0x1p52;                                    \
            const double off = fabs(t - ((t + magic) - magic)); /* ULP to the nearest float; 0.5 is a tie */ \
            tie[i] = off > 0.5 - NEAR_TIE;                                                                   \
        }                                                                                                    \
    }
REFERENCE(reference_exp, EXP)
REFERENCE(reference_tanh, TANH)
REFERENCE(reference_sigmoid, SIGMOID)

EXPORT void judge_reference(int function, size_t n, const float *x, double *truth, double *per_ulp,
                            float *nearest, uint8_t *tie)
{
    (function == EXP    ? reference_exp
     : function == TANH ? reference_tanh
                        : reference_sigmoid)(n, x, truth, per_ulp, nearest, tie);
}

/* Returns the largest distance of true values (n) from the C library's long double functions, in ULP of a float. */
EXPORT double judge_reference_error(int function, size_t n, const float *x, const double *truth,
                                    const double *per_ulp)
{
    double largest = 0;
    for (size_t i = 0; i < n; i++) {
        const long double v = x[i], e = expl(-fabsl(v));
        if (isnan(x[i]) || (function == EXP && v > 89)) /* exp(v) is infinite as a float */
            continue;
        const long double t = function == EXP    ? expl(v)
                              : function == TANH ? tanhl(v)
                                                 : (v < 0 ? e : 1) / (1 + e);
        const double error = (double)fabsl(t - truth[i]) * per_ulp[i];
        largest = error > largest ? error : largest;
    }
    return largest;
}

/* Writes to x (n) the floats with the bits first, first + step, ... */
EXPORT void judge_inputs(uint32_t first, uint32_t step, size_t n, uint32_t *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = first + step * (uint32_t)i;
}

static inline int is_nan(uint32_t u) { return (u & 0x7fffffff) > 0x7f800000; }

/* a (n), b (n). Returns how many differ in their bits. All NaN are equal. */
EXPORT uint64_t judge_different(size_t n, const uint32_t *a, const uint32_t *b)
{
    uint64_t different = 0;
    if (memcmp(a, b, n * sizeof *a))
        for (size_t i = 0; i < n; i++)
            different += (a[i] != b[i]) & !(is_nan(a[i]) & is_nan(b[i]));
    return different;
}

/* Adds the verdict on results got (n) of x (n), n < 2^32, to *v. errors (n): scratch. */
EXPORT void judge_compare(int function, size_t n, const uint32_t *x, const double *truth,
                          const double *per_ulp, const float *nearest, const uint8_t *tie,
                          const uint32_t *got, double *errors, verdict *v)
{
    const uint32_t infinity = 0x7f800000, sign = 0x80000000u;
    const uint32_t odd = function == TANH ? sign : 0, most = function == EXP ? infinity : 0x3f800000;
    const uint32_t *const best = (const uint32_t *)nearest; /* allowed by -fno-strict-aliasing */
    const float *const values = (const float *)got;
    /* Separate loops over doubles and over integers, so that the compiler vectorises both. */
    for (size_t i = 0; i < n; i++) {
        const double y = values[i], value = y > 0x1p128 ? 0x1p128 : y < -0x1p128 ? -0x1p128 : y;
        const double error = fabs(value - truth[i]) * per_ulp[i];
        errors[i] = error <= 0x1p1000 ? error : INFINITY; /* also if error is NaN */
    }
    uint32_t nans = 0, nan_wrong = 0, infinity_wrong = 0, range = 0, special = 0, right = 0, ties = 0;
    uint32_t overflows = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t u = x[i], magnitude = u & ~sign, g = got[i], g_magnitude = g & ~sign;
        const uint32_t nan = magnitude > infinity, number = !nan, open = tie[i];
        const uint32_t overflow = (best[i] & ~sign) == infinity;
        nans += nan, overflows += overflow;
        nan_wrong += nan != (g_magnitude > infinity);
        infinity_wrong += number & ((g_magnitude == infinity) != overflow);
        range += number & (((g ^ (u & odd)) >> 31) | (g_magnitude > most));
        special += number & ((magnitude < 0x00800000) | (magnitude == infinity)) & (g != best[i]);
        ties += number & open;
        right += number & !open & (g == best[i]);
    }
    if (nans | overflows)
        for (size_t i = 0; i < n; i++)
            errors[i] = is_nan(x[i])                    ? 0
                        : (best[i] & ~sign) == infinity ? (got[i] == best[i] ? 0 : INFINITY)
                                                        : errors[i];
    double largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = errors[i] > largest ? errors[i] : largest;
    v->inputs += n - nans;
    v->nans += nans, v->nan_wrong += nan_wrong, v->infinity_wrong += infinity_wrong, v->out_of_range += range;
    v->special_wrong += special, v->nearest += right, v->near_ties += ties;
    if (largest > v->largest) {
        size_t i = 0;
        while (errors[i] < largest)
            i++;
        v->largest = largest, v->input = x[i], v->result = got[i];
    }
}

/* *to += *block. */
EXPORT void judge_add(verdict *to, const verdict *block)
{
    if (block->largest > to->largest)
        to->largest = block->largest, to->input = block->input, to->result = block->result;
    to->inputs += block->inputs, to->nearest += block->nearest, to->near_ties += block->near_ties;
    to->nans += block->nans, to->nan_wrong += block->nan_wrong, to->infinity_wrong += block->infinity_wrong;
    to->out_of_range += block->out_of_range, to->special_wrong += block->special_wrong;
}
