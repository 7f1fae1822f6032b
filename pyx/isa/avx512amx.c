/* The products of the instruction set avx512amx, compiled with -mavx512{f,bw,dq,vl}. The other kernels
 * come from avx512. */
#if defined(__x86_64__)
#define LNRNN_ISA_AVX512AMX
#ifndef LNRNN_ISA_SUFFIX
#define LNRNN_ISA_SUFFIX avx512amx
#endif
#ifndef LNRNN_UNIT
#define LNRNN_UNIT "amx"
#endif
#define LNRNN_TILES
#if !defined(LNRNN_PART_BF16) && !defined(LNRNN_PART_INT8)
#define LNRNN_PART_BF16
#define LNRNN_PART_INT8
#endif
#include "lnrnn/kernels/all.h"
#endif
