#if defined(__aarch64__)
#include "runtime/cpu_arm.h"

#include <stddef.h>
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#if defined(__linux__)
/* Tests a bit by number, since older headers lack the names of these features. */
#define HAS(feature, type, bit) ((getauxval(type) >> (bit) & 1) != 0)
#elif defined(__APPLE__)
static int has(const char *name)
{
    int answer = 0;
    size_t size = sizeof answer;
    return sysctlbyname(name, &answer, &size, NULL, 0) == 0 && answer;
}
#define HAS(feature, type, bit) has("hw.optional.arm.FEAT_" #feature)
#else
#define HAS(feature, type, bit) 0
#endif

int lnrnn_has_neondot(void) { return HAS(DotProd, AT_HWCAP, 20); }

int lnrnn_has_neonbf16(void) { return lnrnn_has_neondot() && HAS(BF16, AT_HWCAP2, 14); }

int lnrnn_has_neoni8mm(void) { return lnrnn_has_neonbf16() && HAS(I8MM, AT_HWCAP2, 13); }
#else
typedef int lnrnn_not_arm; /* C requires a declaration in every file */
#endif
