/* The kernels for avx2: compiled with -mavx2 -mfma. build_flags.py holds the flags. */
#if defined(__x86_64__)
#define LNRNN_ISA_AVX2
#define LNRNN_ISA_SUFFIX avx2
#include "lnrnn/kernels/all.h"
#endif
