/* The kernels of the instruction set avx512, compiled with -mavx512{f,bw,dq,vl} (build_flags.py). */
#if defined(__x86_64__)
#define LNRNN_ISA_AVX512
#define LNRNN_ISA_SUFFIX avx512
#include "lnrnn/kernels/all.h"
#endif
