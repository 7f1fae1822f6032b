/* The kernels for sse2, which every x86-64 CPU has. build_flags.py holds the flags. */
#if defined(__x86_64__)
#define LNRNN_ISA_SSE2
#define LNRNN_ISA_SUFFIX sse2
#include "lnrnn/kernels/all.h"
#endif
