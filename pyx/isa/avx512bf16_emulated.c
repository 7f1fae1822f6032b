/* As avx512bf16.c, without its instructions: for AVX-512 machines that lack them. */
#define LNRNN_EMULATED
#define LNRNN_UNIT "avx512_bf16, emulated"
#define LNRNN_ISA_SUFFIX avx512bf16_emulated
#include "avx512bf16.c"
