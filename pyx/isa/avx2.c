/* The kernels of the instruction set avx2, compiled with -mavx2 -mfma (build_flags.py). */
#if defined(__x86_64__)
#define LNRNN_ISA_AVX2
#define LNRNN_ISA_SUFFIX avx2
#include "lnrnn/kernels/all.h"
#endif
