/* The bfloat16 product of the instruction set avx512bf16, compiled with -mavx512{f,bw,dq,vl,bf16}. The other
 * kernels come from avx512vnni. */
#if defined(__x86_64__)
#define LNRNN_ISA_AVX512BF16
#ifndef LNRNN_ISA_SUFFIX
#define LNRNN_ISA_SUFFIX avx512bf16
#endif
#ifndef LNRNN_UNIT
#define LNRNN_UNIT "avx512_bf16"
#endif
#ifndef LNRNN_PART_BF16
#define LNRNN_PART_BF16
#endif
#include "lnrnn/kernels/all.h"
#endif
