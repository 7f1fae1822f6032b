/* The kernels of the instruction set neon, which every aarch64 CPU has. */
#if defined(__aarch64__)
#define LNRNN_ISA_NEON
#define LNRNN_ISA_SUFFIX neon
#include "lnrnn/kernels/all.h"
#endif
