/* The kernels for neon, which every aarch64 CPU has. build_flags.py holds the flags. */
#if defined(__aarch64__)
#define LNRNN_ISA_NEON
#define LNRNN_ISA_SUFFIX neon
#include "lnrnn/kernels/all.h"
#endif
