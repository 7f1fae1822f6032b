/* Documents every vector operation that kernels may use.
 *
 * A file that defines LNRNN_ISA_<NAME> and includes this header gets the definitions for one instruction set.
 * v32 holds V32_LANES floats, v64 V64_LANES doubles, vi32 V32_LANES integers of 32 bits. The operators of C
 * (+, *, ..) work on vectors, with one IEEE rounding each. The other operations have names. Operations marked
 * (both) exist as v32_op and v64_op; norm.h, which serves both types, writes v_op.
 *
 *   (both)  zero()            all lanes 0
 *           set1(s)           all lanes s
 *           load(p)           LANES values from p, any alignment
 *           load_n(p, n)      the first n values, 0 <= n <= LANES; the other lanes are 0 and are not read
 *           store(p, v)       LANES values to p, any alignment
 *           store_n(p, v, n)  the first n lanes; nothing else is written
 *           stream(p, v)      a non-temporal store, where the ISA has one; p aligned to the vector
 *           keep_n(v, n)      the first n lanes of v, the other lanes 0
 *           fma(a, b, c)      a*b + c: one rounding where the ISA has it, two on sse2, wasm128, scalar
 *           sum(v)            all lanes added, in one order that is fixed for the ISA
 *
 *   (v32)   sums(v)           lane i: sum(v[i]), of LANES vectors at v
 *           sqrt(v)           correctly rounded
 *           min(a, b)         a < b ? a : b; if either is NaN, b (so a NaN in b survives)
 *           max(a, b)         a > b ? a : b; if either is NaN, b
 *           prefetch(p)       prefetches the cache line at p, which may be any address
 *           prefetch_l2(p)    the same, into L2, for data that L1 would evict before its use
 *           round(v)          to the nearest integer, ties to even, for |v| < 2^22
 *           to_vi32(v)        the same as a vi32; any number for a NaN
 *           of_bits(i)        the bits of a vi32 as floats
 *           scale(v, n)       v 2^n in one rounding, for |v| in [1/2, 2] and integer-valued n in
 *                             [-252, 254]; anything if n is NaN, and NaN if v is
 *           lookup16(p, v)    p[k], lane by lane, of 16 floats; k: the last four bits of the lane's float
 *           abs(v)            sign bit cleared
 *           copysign(v, s)    magnitude of v, sign of s
 *           select_lt(a, b, x, y)   a < b ? x : y, lane by lane (y where a or b is NaN)
 *
 *   (v16)   load(p)  load_n(p, n)  store(p, v)  store_n(p, v, n)  stream(p, v)
 *                             as above, for V32_LANES uint16_t
 *
 *   (v32)   from_bf16(h)  to_bf16(v)  from_f16(h)  to_f16(v)
 *                             between v16 (bfloat16 or IEEE float16) and v32; to 16 bits: to nearest, ties to
 *                             even, values too large to infinity, NaN stays NaN
 *           load_bf16(p)  load_n_bf16(p, n)  store_bf16(p, v)  store_n_bf16(p, v, n)  stream_bf16(p, v)
 *                             as above, of arrays of bfloat16, with the conversion; and the same with f16
 *           set4(p, v)        v[i] = set1(p[i]), for i = 0 .. 3
 *           bf16_pair(p, odd) LANES words of two bfloat16: the low halves as floats, the high halves in *odd
 *           larger(a, b)      the larger, if neither has a sign bit; infinity is larger than any number, a
 *                             NaN larger than infinity
 *           largest(v)        the largest lane, in the same sense
 *           store_s14(high, low, v)   n = to_vi32(v), -8192 .. 8191: writes to high the upper 7 bits of
 *                             n + 8192, LANES bytes, and to low the lower 7; any bytes for a NaN
 *           store_s8(p, v)    n = to_vi32(v), -127 .. 127: LANES bytes n + S8_OFFSET
 *           store4_s14(high, low, v)  store4_s8(p, v)   the same for the four vectors at v
 *
 *   (vi32)  zero()
 *           load(p)  store(p, v)   LANES integers, any alignment
 *           to_v32(v)         the nearest floats
 *           dot4(v, a, p)     v + the dot product of the four bytes of a (0 .. 127, one word for all
 *                             lanes) and the four bytes at p (-128 .. 127, a word for each lane)
 *           dot4_s8(v, a, p)  as dot4, with bytes of a that store_s8 wrote: where S8_OFFSET is 128 they count
 *                             as unsigned, so that v grows by 128 times the sum of p's four bytes as well
 *
 * stream_end() orders non-temporal stores before all stores that follow.
 *
 * The constants: V32_LANES, V64_LANES, and the tile of a matrix product, MR rows by NR_VECS vectors of sums.
 * The sums, NR_VECS vectors of weights and one broadcast value fill the registers. dot4_s8 may need more
 * registers, so its tile has MR_S8 rows. S8_OFFSET is 128 if the machine multiplies unsigned by signed bytes,
 * and 0 if both are signed. LNRNN_KEEPS_WORDS: a tile of dot products has free registers for a vector of
 * weights. LNRNN_FEW_COPIES: few machines use this instruction set, so kernels omit specialised copies, which
 * would only be faster.
 *
 * All functions are static. Otherwise the linker could merge functions of different sets into one copy, which
 * the machine might not be able to run.
 */
#ifndef LNRNN_SIMD_H
#define LNRNN_SIMD_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* LNRNN_SMALL is defined for kernels that few machines use, or that run only if a user selects their
 * instruction set. Functions are then not inlined, and loops not unrolled, which halves the size of the
 * code. */
#ifdef LNRNN_SMALL
#define LNRNN_INLINE static __attribute__((unused))
#else
#define LNRNN_INLINE static inline __attribute__((always_inline, unused))
#endif
/* LNRNN_OF_UNIT marks functions that cells call for each vector of units. WebAssembly inlines them, although
 * it is small. */
#ifdef LNRNN_ISA_WASM128
#define LNRNN_OF_UNIT static inline __attribute__((always_inline, unused))
#else
#define LNRNN_OF_UNIT LNRNN_INLINE
#endif
/* LNRNN_SELDOM marks functions for rare cases: compiled for size, and placed away from frequent code. */
#define LNRNN_SELDOM static __attribute__((noinline, cold))

/* LNRNN_OUTLINE marks functions that kernels call in many places, and whose calls cost little. Inlined, they
 * would take most of the module's size and of the time to compile. */
#define LNRNN_OUTLINE static __attribute__((noinline, unused))

/* LNRNN_UNROLLED stands before a loop over v = 0 .. m - 1 and unrolls it; m is a constant, at most 16. Clang
 * needs a pragma of its own: with gcc's, clang 14 kept sums in memory, four to six times slower. */
#if defined(LNRNN_SMALL)
#define LNRNN_UNROLLED
#elif defined(__clang__)
#define LNRNN_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define LNRNN_UNROLLED _Pragma("GCC unroll 16")
#endif
#define LNRNN_FOR_EACH(v, m) LNRNN_UNROLLED for (int v = 0; v < (m); v++)

#include "lnrnn/simd/half.h"

/* The vector types of x86, of `bytes` bytes. A sum of two __m256 has such a type, not __m256, and the two
 * types cannot be mixed in a conditional expression. */
#define LNRNN_VECTORS(bytes)                                \
    typedef float v32 __attribute__((vector_size(bytes)));  \
    typedef double v64 __attribute__((vector_size(bytes))); \
    typedef int32_t vi32 __attribute__((vector_size(bytes)));

/* Defines load_n and store_n of a vector V of `lanes` values, through the stack, for instruction sets without
 * masked loads and stores. */
#define LNRNN_THROUGH_STACK(LINKAGE, V, type, lanes) \
    LINKAGE V V##_load_n(const type *p, size_t n)    \
    {                                                \
        type t[lanes] = {0};                         \
        for (size_t i = 0; i < n; i++)               \
            t[i] = p[i];                             \
        return V##_load(t);                          \
    }                                                \
    LINKAGE void V##_store_n(type *p, V v, size_t n) \
    {                                                \
        type t[lanes];                               \
        V##_store(t, v);                             \
        for (size_t i = 0; i < n; i++)               \
            p[i] = t[i];                             \
    }

#if defined(LNRNN_PART_BLOCKS) || defined(LNRNN_PART_INT8_BLOCKS)
#include "lnrnn/simd/avx2.h"
#elif defined(LNRNN_ISA_AVX512) || defined(LNRNN_ISA_AVX512VNNI) || defined(LNRNN_ISA_AVX512BF16) \
    || defined(LNRNN_ISA_AVX512AMX)
#include "lnrnn/simd/avx512.h"
#elif defined(LNRNN_ISA_AVX2) || defined(LNRNN_ISA_AVXVNNI)
#include "lnrnn/simd/avx2.h"
#elif defined(LNRNN_ISA_SSE2)
#include "lnrnn/simd/sse2.h"
#elif defined(LNRNN_ISA_NEON) || defined(LNRNN_ISA_NEONDOT) || defined(LNRNN_ISA_NEONBF16) \
    || defined(LNRNN_ISA_NEONI8MM)
#include "lnrnn/simd/neon.h"
#elif defined(LNRNN_ISA_WASM128)
#include "lnrnn/simd/wasm128.h"
#elif defined(LNRNN_ISA_SCALAR)
#include "lnrnn/simd/scalar.h"
#else
#error "define LNRNN_ISA_<NAME> before including simd.h"
#endif

LNRNN_INLINE v32 v32_zero(void) { return (v32){0}; }
LNRNN_INLINE v64 v64_zero(void) { return (v64){0}; }
LNRNN_INLINE vi32 vi32_zero(void) { return (vi32){0}; }
LNRNN_INLINE void v32_prefetch(const float *p) { __builtin_prefetch(p); }
LNRNN_INLINE void v32_prefetch_l2(const float *p) { __builtin_prefetch(p, 0, 2); }

#if V64_LANES == 2
LNRNN_INLINE v64 v64_load_n(const double *p, size_t n)
{
    return n >= 2 ? v64_load(p) : n ? (v64){*p} : (v64){0};
}

LNRNN_INLINE void v64_store_n(double *p, v64 v, size_t n)
{
    if (n >= 2)
        v64_store(p, v);
    else if (n)
        *p = v[0];
}

LNRNN_INLINE v64 v64_keep_n(v64 v, size_t n) { return n >= 2 ? v : n ? (v64){v[0]} : (v64){0}; }
#endif

LNRNN_INLINE v32 v32_of_bits(vi32 bits)
{
    v32 v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

LNRNN_INLINE v32 v32_bf16_pair(const uint32_t *p, v32 *odd)
{
    const vi32 w = vi32_load((const int32_t *)p);
    *odd = v32_of_bits(w & (int32_t)0xffff0000);
    return v32_of_bits(w << 16);
}

/* Operations for the instruction sets that do not define their own (LNRNN_OWN_..). */
#ifndef LNRNN_OWN_DOT4
/* dot4_s8 computes dot4 too, because bytes 0 .. 127 are the same signed and unsigned. */
LNRNN_INLINE vi32 vi32_dot4(vi32 v, uint32_t a, const uint32_t *p) { return vi32_dot4_s8(v, a, p); }
#endif

#ifndef LNRNN_OWN_SET4
LNRNN_INLINE void v32_set4(const float *p, v32 *v)
{
    LNRNN_FOR_EACH (i, 4)
        v[i] = v32_set1(p[i]);
}
#endif

#ifndef LNRNN_OWN_STORE4
LNRNN_INLINE void v32_store4_s14(uint8_t *high, uint8_t *low, const v32 *v)
{
    LNRNN_FOR_EACH (i, 4)
        v32_store_s14(high + i * V32_LANES, low + i * V32_LANES, v[i]);
}

LNRNN_INLINE void v32_store4_s8(uint8_t *p, const v32 *v)
{
    LNRNN_FOR_EACH (i, 4)
        v32_store_s8(p + i * V32_LANES, v[i]);
}
#endif

#ifndef LNRNN_OWN_SCALE
/* Multiplies by two powers of two, because one alone may be out of range. */
LNRNN_INLINE v32 v32_scale(v32 v, v32 n)
{
    const vi32 e = v32_to_vi32(n), half = e >> 1;
    return v * v32_of_bits((half + 127) << 23) * v32_of_bits((e - half + 127) << 23);
}
#endif

/* LNRNN_VECTORISED stands before a loop with independent iterations, and makes clang vectorise it, even with
 * the compiler options of wheels (zig_cc.py). */
#if defined(__clang__) && !defined(LNRNN_FEW_COPIES) && !defined(LNRNN_SMALL)
#define LNRNN_VECTORISED _Pragma("clang loop vectorize(enable) interleave(disable)")
#else
#define LNRNN_VECTORISED
#endif

/* LNRNN_LOADED keeps v in a register. Otherwise GCC may load v again for each use, and a load that crosses a
 * cache line takes twice the time. */
#if defined(__aarch64__)
#define LNRNN_LOADED(v) __asm__("" : "+w"(v))
#elif defined(__AVX512F__)
#define LNRNN_LOADED(v) __asm__("" : "+v"(v))
#elif defined(__x86_64__) || defined(__SSE2__)
#define LNRNN_LOADED(v) __asm__("" : "+x"(v))
#else
#define LNRNN_LOADED(v) ((void)(v))
#endif

/* LNRNN_LOADS_STAY: the compiler moves no load across it. Otherwise GCC moves loads to the front of a loop,
 * where they take the registers of the sums. */
#define LNRNN_LOADS_STAY() __asm__("" : : : "memory")

/* LNRNN_ANEW hides the value of the integer i from the compiler. So the compiler computes values that depend
 * on i here, and does not keep them in registers during an earlier loop. */
#define LNRNN_ANEW(i) __asm__("" : "+r"(i))

/* Defines loads and stores of 16-bit floats, which are converted from and to v32. */
#define LNRNN_NARROW(t)                                                                                     \
    LNRNN_INLINE v32 v32_load_##t(const uint16_t *p) { return v32_from_##t(v16_load(p)); }                  \
    LNRNN_INLINE v32 v32_load_n_##t(const uint16_t *p, size_t n) { return v32_from_##t(v16_load_n(p, n)); } \
    LNRNN_INLINE void v32_store_##t(uint16_t *p, v32 v) { v16_store(p, v32_to_##t(v)); }                    \
    LNRNN_INLINE void v32_store_n_##t(uint16_t *p, v32 v, size_t n) { v16_store_n(p, v32_to_##t(v), n); }   \
    LNRNN_INLINE void v32_stream_##t(uint16_t *p, v32 v) { v16_stream(p, v32_to_##t(v)); }
LNRNN_NARROW(bf16)
LNRNN_NARROW(f16)
#undef LNRNN_NARROW

#if defined(LNRNN_PART_BLOCKS) || defined(LNRNN_PART_INT8_BLOCKS)
#include "lnrnn/simd/wide.h"
#endif

#endif
