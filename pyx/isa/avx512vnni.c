/* The int8 product of the instruction set avx512vnni, compiled with -mavx512{f,bw,dq,vl,vnni}. The other
 * kernels come from avx512. */
#if defined(__x86_64__)
#define LNRNN_ISA_AVX512VNNI
#define LNRNN_ISA_SUFFIX avx512vnni
#define LNRNN_UNIT "avx512_vnni"
#ifndef LNRNN_PART_INT8
#define LNRNN_PART_INT8
#endif
#include "lnrnn/kernels/all.h"
#endif
