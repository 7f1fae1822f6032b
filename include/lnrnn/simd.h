/* The vocabulary: every vector operation the kernels may use, documented once.
 *
 * A translation unit defines LNRNN_ISA_<NAME> and includes this file; it gets one backend. v32 holds V32_LANES
 * floats, v64 holds V64_LANES doubles. The operations marked (both) exist as v32_op and v64_op; norm.h is one
 * text for the two types and spells them V(op).
 *
 *   (both)  zero()            all lanes 0
 *           set1(s)           all lanes s
 *           load(p)           LANES values from p, any alignment
 *           load_n(p, n)      the first n values, 0 <= n <= LANES; the other lanes are 0 and are not read
 *           store(p, v)       LANES values to p, any alignment
 *           store_n(p, v, n)  the first n lanes; nothing else is written
 *           stream(p, v)      as store, past the caches where the ISA can; p aligned to the vector
 *           keep_n(v, n)      the first n lanes of v, the other lanes 0
 *           add sub mul div   one rounding each, IEEE
 *           fma(a, b, c)      a*b + c: one rounding where the ISA has it, two on sse2 and scalar
 *           sqrt(v)           correctly rounded
 *           min(a, b)         a < b ? a : b; if either is NaN, b (so a NaN in b survives)
 *           max(a, b)         a > b ? a : b; likewise
 *           sum(v)            all lanes added, in one order that is fixed for the ISA
 *
 *   (v32)   prefetch(p)       asks for the cache line at p; any address will do
 *           round(v)          to the nearest integer, ties to even, for |v| < 2^22
 *           pow2(v)           2^v for integer-valued v in [-126, 127]
 *           abs(v)            sign bit cleared
 *           copysign(v, s)    magnitude of v, sign of s
 *           select_lt(a, b, x, y)   a < b ? x : y, lane by lane (y where a or b is NaN)
 *
 *           bf16_pair(p, odd) LANES words of two bfloat16: the low ones as floats, the high ones in *odd
 *           store_u8(p, v)    LANES bytes to p, v whole numbers 0 .. 127; a NaN becomes any byte
 *
 *   (vi32, LANES integers of 32 bits)
 *           zero()
 *           dot4(v, a, p)     v + the sum over four bytes of a (0 .. 127, one word for all lanes) times those of the word at
 *                             p (-127 .. 127, a word for each lane)
 *           to_v32(v)         nearest floats
 *           less_64(v, p)     v - 64 p, exact, then to floats
 *
 * stream_end() orders streamed stores before all that follows.
 *
 * and the constants V32_LANES, V64_LANES, and the tile of a matrix product: MM_ROWS rows by MM_VECS vectors of
 * accumulators, which with MM_VECS loaded weights and one broadcast fill the register file.
 *
 * Everything here is static: a function shared between objects of different ISAs could be merged by the linker
 * into the one copy that the machine cannot run.
 */
#ifndef LNRNN_SIMD_H
#define LNRNN_SIMD_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LNRNN_INLINE static inline __attribute__((always_inline, unused))

#if defined(LNRNN_ISA_AVX512)
#include "simd_avx512.h"
#elif defined(LNRNN_ISA_AVX512VNNI)
#include "simd_avx512.h"
#elif defined(LNRNN_ISA_AVX2)
#include "simd_avx2.h"
#elif defined(LNRNN_ISA_SSE2)
#include "simd_sse2.h"
#elif defined(LNRNN_ISA_NEON)
#include "simd_neon.h"
#elif defined(LNRNN_ISA_SCALAR)
#include "simd_scalar.h"
#else
#error "define LNRNN_ISA_<NAME> before including simd.h"
#endif

#endif
