/* Which kernels run: asks the CPU and the operating system, once, and keeps the table in use.
 *
 * LNRNN_ISA is read by the Python module, which can say what is wrong with it; it calls lnrnn_isa_use.
 */
#include <string.h>

#include "lnrnn.h"
#include "lnrnn/kernels/table.h"

/* What the object files of an instruction set define. */
#define TABLES(isa)                             \
    extern const lnrnn_norm lnrnn_norm_##isa[]; \
    extern const lnrnn_cells lnrnn_cells_##isa; \
    extern const lnrnn_product lnrnn_product_##isa, lnrnn_int8_##isa;

#if defined(__x86_64__)
#include <cpuid.h>

TABLES(sse2)
TABLES(avx2)
TABLES(avx512)
extern const lnrnn_product lnrnn_int8_avx512vnni;

/* The parts of the register file that the operating system saves. XGETBV faults unless OSXSAVE is set. */
static unsigned saved_state(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 0;
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return a;
}

static int has_sse2(void) { return 1; }

static int has_avx2(void)
{
    unsigned a, b, c, d;
    if ((saved_state() & 0x6) != 0x6 || !__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_FMA) || !(c & bit_AVX)
        || !(c & bit_F16C))
        return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2) && (b & bit_BMI2);
}

static int has_avx512(void)
{
    const unsigned need = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    unsigned a, b, c, d;
    return has_avx2() && (saved_state() & 0xe6) == 0xe6 && __get_cpuid_count(7, 0, &a, &b, &c, &d)
           && (b & need) == need;
}

static int has_avx512vnni(void)
{
    unsigned a, b, c, d;
    return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & bit_AVX512VNNI);
}
#elif defined(__aarch64__)
TABLES(neon)
static int has_neon(void) { return 1; } /* part of the architecture */
#endif

TABLES(scalar)
static int has_scalar(void) { return 1; }

/* A set by its name, the instruction set whose kernels it has, and the one whose int8 product it has. */
#define SET(name, isa, int8) \
    {#name, lnrnn_norm_##isa, &lnrnn_cells_##isa, &lnrnn_product_##isa, &lnrnn_int8_##int8}

/* Best first. */
static const struct {
    lnrnn_kernels kernels;
    int (*runs)(void);
} sets[] = {
#if defined(__x86_64__)
    {SET(avx512vnni, avx512, avx512vnni), has_avx512vnni},
    {SET(avx512, avx512, avx512), has_avx512},
    {SET(avx2, avx2, avx2), has_avx2},
    {SET(sse2, sse2, sse2), has_sse2},
#elif defined(__aarch64__)
    {SET(neon, neon, neon), has_neon},
#endif
    {SET(scalar, scalar, scalar), has_scalar},
};
enum { SETS = sizeof sets / sizeof *sets };

static const lnrnn_kernels *active;

const lnrnn_kernels *lnrnn_active(void)
{
    /* Two threads that come here first find the same table: the race is between equal stores. */
    const lnrnn_kernels *k = __atomic_load_n(&active, __ATOMIC_RELAXED);
    for (size_t i = 0; !k && i < SETS; i++)
        if (sets[i].runs())
            __atomic_store_n(&active, k = &sets[i].kernels, __ATOMIC_RELAXED);
    return k;
}

size_t lnrnn_isa_list(const char *names[8])
{
    size_t n = 0;
    for (size_t i = 0; i < SETS; i++)
        if (sets[i].runs())
            names[n++] = sets[i].kernels.name;
    return n;
}

const char *lnrnn_isa_name(void) { return lnrnn_active()->name; }

int lnrnn_isa_use(const char *name)
{
    for (size_t i = 0; i < SETS; i++)
        if (!strcmp(sets[i].kernels.name, name) && sets[i].runs()) {
            __atomic_store_n(&active, &sets[i].kernels, __ATOMIC_RELAXED);
            return 0;
        }
    return -1;
}
