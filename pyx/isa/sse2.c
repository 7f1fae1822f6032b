/* The kernels of the instruction set sse2, which every x86-64 CPU has. */
#if defined(__x86_64__)
#define LNRNN_ISA_SSE2
#define LNRNN_ISA_SUFFIX sse2
#include "lnrnn/kernels/all.h"
#endif
