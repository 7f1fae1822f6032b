#if defined(__aarch64__)
#include "runtime/cpu_arm.h"

#include "runtime/os.h"

int lnrnn_has_neondot(void) { return lnrnn_has_extension(LNRNN_ARM_DOTPROD); }

int lnrnn_has_neonbf16(void) { return lnrnn_has_neondot() && lnrnn_has_extension(LNRNN_ARM_BF16); }

int lnrnn_has_neoni8mm(void) { return lnrnn_has_neonbf16() && lnrnn_has_extension(LNRNN_ARM_I8MM); }
#else
typedef int lnrnn_not_arm; /* C requires a declaration in every file */
#endif
