#if defined(__x86_64__)
#include "runtime/cpu_x86.h"

#include <cpuid.h>
#include <string.h>

#include "runtime/os.h"

/* Bits of XCR0: registers that the operating system saves. XGETBV reads XCR0, and faults unless OSXSAVE is
 * set. */
enum { SAVES_AVX = 0x6, SAVES_AVX512 = 0xe6, SAVES_TILES = 0x60000 };

/* GCOVR_EXCL_BR_START: a machine has one CPU */
static unsigned saved_state(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 0;
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return a;
}

static int saves(unsigned files) { return (saved_state() & files) == files; }

/* CPUID leaf 7 lists most extensions that are newer than AVX. */
typedef struct {
    unsigned a, b, c, d;
} leaf;

static leaf leaf_7(unsigned subleaf)
{
    leaf l = {0};
    if (!__get_cpuid_count(7, subleaf, &l.a, &l.b, &l.c, &l.d))
        return (leaf){0};
    return l;
}

int lnrnn_has_avx2(void)
{
    unsigned a, b, c, d;
    if (!saves(SAVES_AVX) || !__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_FMA) || !(c & bit_AVX)
        || !(c & bit_F16C))
        return 0;
    b = leaf_7(0).b;
    return (b & bit_AVX2) && (b & bit_BMI2);
}

int lnrnn_has_avx512(void)
{
    const unsigned need = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    return lnrnn_has_avx2() && saves(SAVES_AVX512) && (leaf_7(0).b & need) == need;
}

int lnrnn_has_avx512vnni(void) { return lnrnn_has_avx512() && (leaf_7(0).c & bit_AVX512VNNI); }

/* Tests bits of register a in subleaf 1, which exists if register a of subleaf 0 is at least 1. */
static int leaf_7_1_has(unsigned of_a) { return leaf_7(0).a >= 1 && (leaf_7(1).a & of_a); }

int lnrnn_has_avxvnni(void)
{
    const unsigned AVX_VNNI = 1u << 4;
    return lnrnn_has_avx2() && leaf_7_1_has(AVX_VNNI);
}

int lnrnn_has_avx512bf16(void)
{
    const unsigned AVX512_BF16 = 1u << 5;
    return lnrnn_has_avx512vnni() && leaf_7_1_has(AVX512_BF16);
}

unsigned lnrnn_cpu_family(const char *vendor)
{
    unsigned a, b, c, d, own[3];
    if (!__get_cpuid(0, &a, own, own + 2, own + 1) || memcmp(own, vendor, sizeof own)
        || !__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    const unsigned base = a >> 8 & 15;
    return base == 15 ? base + (a >> 20 & 255) : base;
}

/* Returns 1 for AMD's families from 25 on, because machine.py of tests/benchmarks measured fast dot products
 * on Zen 4 (25) and Zen 5 (26). On Intel's Cooper Lake, Sapphire Rapids and later, a bfloat16 dot product
 * takes twice as long, so float32 is as fast. */
int lnrnn_fast_bf16(void) { return lnrnn_cpu_family("AuthenticAMD") >= 25; }

/* Change this text, and README.md, as soon as a CPU has run the kernels for AMX. */
#define AMX_USABLE "usable, tested in an emulator only"

static const char *ask_for_amx(void)
{
    const unsigned AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24, AMX_INT8 = 1u << 25;
    const unsigned need = AMX_BF16 | AMX_TILE | AMX_INT8;
    if (!lnrnn_has_avx512vnni() || (leaf_7(0).d & need) != need)
        return "not on this CPU";
    if (!saves(SAVES_TILES))
        return "not enabled by the operating system";
    return lnrnn_permits_tiles() ? AMX_USABLE : "refused by the kernel";
}

/* GCOVR_EXCL_BR_STOP */

const char *lnrnn_amx(void)
{
    /* Ask only once, so that the answer never changes. */
    static const char *known;
    const char *answer = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!answer)
        __atomic_store_n(&known, answer = ask_for_amx(), __ATOMIC_RELAXED);
    return answer;
}

int lnrnn_has_amx(void) { return !strcmp(lnrnn_amx(), AMX_USABLE); }
#else
typedef int lnrnn_not_x86; /* C requires a declaration in every file */
#endif
