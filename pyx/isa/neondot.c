/* The int8 product of neondot, compiled with -march=armv8.2-a+dotprod; its other kernels are those of neon.
 * build_flags.py holds the flags. */
#if defined(__aarch64__)
#define LNRNN_ISA_NEONDOT
#define LNRNN_ISA_SUFFIX neondot
#define LNRNN_UNIT "arm_dotprod"
#ifndef LNRNN_PART_INT8
#define LNRNN_PART_INT8
#endif
#include "lnrnn/kernels/all.h"
#endif
