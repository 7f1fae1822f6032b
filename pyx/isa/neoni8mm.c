/* The int8 product of the instruction set neoni8mm, compiled with -march=armv8.2-a+dotprod+i8mm. Its bfloat16
 * product comes from neonbf16, the other kernels from neon. */
#if defined(__aarch64__)
#define LNRNN_ISA_NEONI8MM
#define LNRNN_ISA_SUFFIX neoni8mm
#define LNRNN_UNIT "arm_i8mm"
#define LNRNN_BLOCKS
#ifndef LNRNN_PART_INT8
#define LNRNN_PART_INT8
#endif
#include "lnrnn/kernels/all.h"
#endif
