/* The kernels for avx512vnni: compiled with -mavx512{f,bw,dq,vl,vnni}. setup.py holds the flags. */
#if defined(__x86_64__)
#define LNRNN_ISA_AVX512VNNI
#define LNRNN_ISA_SUFFIX avx512vnni
#include "lnrnn/kernels.h"
#endif
