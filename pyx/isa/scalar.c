/* The kernels for scalar: the C of the compiler's baseline. build_flags.py holds the flags. */
#if 1
#define LNRNN_ISA_SCALAR
#define LNRNN_ISA_SUFFIX scalar
#include "lnrnn/kernels/all.h"
#endif
