/* The kernels of the instruction set sse2, which every x86-64 CPU has. Few machines have no better set, so
 * only its products, which take most of the time, are compiled for speed. */
#if defined(__x86_64__)
#define LNRNN_ISA_SSE2
#define LNRNN_ISA_SUFFIX sse2
#if defined(LNRNN_PART_NORM) || defined(LNRNN_PART_CELLS)
#define LNRNN_SMALL
#endif
#include "lnrnn/kernels/all.h"
#endif
