/* The kernels of neonbf16.c in plain C, for machines without BF16. */
#define LNRNN_EMULATED
#define LNRNN_UNIT "arm_bf16, emulated"
#define LNRNN_ISA_SUFFIX neonbf16_emulated
#include "neonbf16.c"
