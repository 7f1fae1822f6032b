/* The kernels of avx512bf16.c in plain C, for AVX-512 machines without BF16. */
#define LNRNN_EMULATED
#define LNRNN_UNIT "avx512_bf16, emulated"
#define LNRNN_ISA_SUFFIX avx512bf16_emulated
#include "avx512bf16.c"
