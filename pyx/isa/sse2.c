/* The kernels for sse2: x86-64 baseline. build_flags.py holds the flags. */
#if defined(__x86_64__)
#define LNRNN_ISA_SSE2
#define LNRNN_ISA_SUFFIX sse2
#include "lnrnn/kernels/all.h"
#endif
