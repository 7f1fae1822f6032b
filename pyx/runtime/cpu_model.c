/* The table of CPU models; docs/thread_model.md has the source of each rate. No result depends on the rates:
 * they only choose the number of threads. A CPU that is not in the table gets low rates. */
#include "runtime/cpu_model.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include "runtime/cpu_x86.h"
#endif

enum { ZEN_4, ZEN_5, XEON, OTHER, MODELS };

static const lnrnn_cpu_model models[] = {
    [ZEN_4] = {.multiply_adds = 58,
               .l2 = 110,
               .l3 = 105,
               .memory = 24,
               .all_memory = 200,
               .barrier = 190,
               .barrier_thread = 60},
    [ZEN_5] = {.multiply_adds = 120,
               .l2 = 200,
               .l3 = 113,
               .memory = 35,
               .all_memory = 300,
               .barrier = 150,
               .barrier_thread = 60},
    [XEON] = {.multiply_adds = 86,
              .l2 = 210,
              .l3 = 28,
              .memory = 12,
              .all_memory = 250,
              .barrier = 250,
              .barrier_thread = 80},
    [OTHER] = {.multiply_adds = 50,
               .l2 = 80,
               .l3 = 28,
               .memory = 10,
               .all_memory = 100,
               .barrier = 250,
               .barrier_thread = 100},
};
_Static_assert(sizeof models / sizeof *models == MODELS, "every model has a row");

#if defined(__x86_64__)
/* AMD's family 25 is Zen 3 and Zen 4, family 26 is Zen 5. Intel's CPUs with AVX-512 count as Xeon. */
/* GCOVR_EXCL_BR_START: a machine has one CPU */
static int model_of_machine(void)
{
    unsigned a, b, c, d;
    const unsigned amd = lnrnn_cpu_family("AuthenticAMD");
    if (amd)
        return amd == 25 ? ZEN_4 : amd >= 26 ? ZEN_5 : OTHER;
    if (lnrnn_cpu_family("GenuineIntel") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX512F))
        return XEON;
    return OTHER;
    /* GCOVR_EXCL_BR_STOP */
}
#else
static int model_of_machine(void) { return OTHER; }
#endif

/* Returns 1 on a Zen 4, where a product of one row reads 98 bytes of weights per ns from L3, but 79 with
 * software prefetches. */
int lnrnn_model_reads_ahead(void) { return model_of_machine() == ZEN_4; }

static lnrnn_cpu_model model;

__attribute__((constructor)) static void choose_model(void) { model = models[model_of_machine()]; }

lnrnn_cpu_model lnrnn_get_cpu_model(void) { return model; }

void lnrnn_set_cpu_model(lnrnn_cpu_model new_model) { model = new_model; }
