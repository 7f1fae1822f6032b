/* The bfloat16 product of the instruction set neonbf16, compiled with -march=armv8.2-a+bf16. Its int8 product
 * comes from neondot, the other kernels from neon. */
#if defined(__aarch64__)
#define LNRNN_ISA_NEONBF16
#ifndef LNRNN_ISA_SUFFIX
#define LNRNN_ISA_SUFFIX neonbf16
#endif
#ifndef LNRNN_UNIT
#define LNRNN_UNIT "arm_bf16"
#endif
#define LNRNN_BLOCKS
#ifndef LNRNN_PART_BF16
#define LNRNN_PART_BF16
#endif
#include "lnrnn/kernels/all.h"
#endif
