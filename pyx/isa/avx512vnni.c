/* The int8 product of avx512vnni, compiled with -mavx512{f,bw,dq,vl,vnni}; its other kernels are those of
 * avx512. build_flags.py holds the flags. */
#if defined(__x86_64__)
#define LNRNN_ISA_AVX512VNNI
#define LNRNN_ISA_SUFFIX avx512vnni
#define LNRNN_UNIT "avx512_vnni"
#ifndef LNRNN_PART_INT8
#define LNRNN_PART_INT8
#endif
#include "lnrnn/kernels/all.h"
#endif
