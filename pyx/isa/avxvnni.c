/* The int8 product of avxvnni, compiled with -mavx2 -mfma -mavxvnni; its other kernels are those of avx2.
 * build_flags.py holds the flags. */
#if defined(__x86_64__)
#define LNRNN_ISA_AVXVNNI
#define LNRNN_ISA_SUFFIX avxvnni
#define LNRNN_UNIT "avx_vnni"
#ifndef LNRNN_PART_INT8
#define LNRNN_PART_INT8
#endif
#include "lnrnn/kernels/all.h"
#endif
