/* The kernels in plain C, for any machine. */
#if 1
#define LNRNN_ISA_SCALAR
#define LNRNN_ISA_SUFFIX scalar
#include "lnrnn/kernels/all.h"
#endif
