/* As neonbf16.c, without its instructions. */
#define LNRNN_EMULATED
#define LNRNN_UNIT "arm_bf16, emulated"
#define LNRNN_ISA_SUFFIX neonbf16_emulated
#include "neonbf16.c"
