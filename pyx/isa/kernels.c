/* The kernels of one part of one instruction set. build_flags.py compiles this file once for each part, with
 * the macros that all.h explains.
 *
 * Few machines have no better set than sse2, so only its products, which take most of the time, are compiled
 * for speed. */
#if (defined(LNRNN_ISA_SSE2) || defined(LNRNN_ISA_WASM128)) \
    && (defined(LNRNN_PART_NORM) || defined(LNRNN_PART_CELLS))
#define LNRNN_SMALL
#endif
#include "lnrnn/kernels/all.h"
