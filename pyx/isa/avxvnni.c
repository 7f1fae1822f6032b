/* The int8 product of the instruction set avxvnni, compiled with -mavx2 -mfma -mavxvnni. The other kernels
 * come from avx2. */
#if defined(__x86_64__)
#define LNRNN_ISA_AVXVNNI
#define LNRNN_ISA_SUFFIX avxvnni
#define LNRNN_UNIT "avx_vnni"
#ifndef LNRNN_PART_INT8
#define LNRNN_PART_INT8
#endif
#include "lnrnn/kernels/all.h"
#endif
