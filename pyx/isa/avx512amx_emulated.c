/* As avx512amx.c, without its instructions: for AVX-512 machines that lack them. */
#define LNRNN_EMULATED
#define LNRNN_UNIT "amx, emulated"
#define LNRNN_ISA_SUFFIX avx512amx_emulated
#include "avx512amx.c"
