/* The kernels of avx512amx.c in plain C, for AVX-512 machines without AMX. */
#define LNRNN_EMULATED
#define LNRNN_UNIT "amx, emulated"
#define LNRNN_ISA_SUFFIX avx512amx_emulated
#include "avx512amx.c"
