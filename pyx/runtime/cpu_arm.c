#if defined(__aarch64__)
#include "runtime/cpu_arm.h"

#include <stddef.h>
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

int lnrnn_has_neonbf16(void)
{
#if defined(__linux__)
    const unsigned long BF16 = 1ul << 14; /* HWCAP2_BF16, which older headers lack */
    return (getauxval(AT_HWCAP2) & BF16) != 0;
#elif defined(__APPLE__)
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &size, NULL, 0) == 0 && has;
#else
    return 0;
#endif
}
#else
typedef int lnrnn_not_arm; /* a file of C holds at least one declaration */
#endif
