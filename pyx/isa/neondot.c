/* The int8 product of the instruction set neondot, compiled with -march=armv8.2-a+dotprod. The other kernels
 * come from neon. */
#if defined(__aarch64__)
#define LNRNN_ISA_NEONDOT
#define LNRNN_ISA_SUFFIX neondot
#define LNRNN_UNIT "arm_dotprod"
#ifndef LNRNN_PART_INT8
#define LNRNN_PART_INT8
#endif
#include "lnrnn/kernels/all.h"
#endif
