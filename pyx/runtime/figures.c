/* The figures of CPU models, from which the cost model of threads (rnn/cost_model.c) computes. docs/thread_model.md says where
 * each comes from. They choose between ways that give the same bits, and a model that is not in the table gets figures
 * that are low for its kind. */
#include "runtime/figures.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { ZEN_4, ZEN_5, XEON, OTHER, KINDS };

static const lnrnn_figures table[KINDS] = {
    [ZEN_4] = {57, 105, 60, 20, 200, 150, 60},
    [ZEN_5] = {135, 200, 113, 35, 300, 150, 60},
    [XEON] = {86, 210, 28, 12, 250, 250, 80},
    [OTHER] = {50, 80, 28, 10, 100, 250, 100},
};

#if defined(__x86_64__)
/* Family 25 is Zen 3 and Zen 4, family 26 Zen 5. Of Intel's those with AVX-512, whose L3 is a mesh. */
static int kind_of_machine(void)
{
    unsigned a, b, c, d, text[3];
    if (!__get_cpuid(0, &a, text, text + 2, text + 1) || !__get_cpuid(1, &a, &b, &c, &d))
        return OTHER;
    const unsigned family = (a >> 8 & 15) == 15 ? 15 + (a >> 20 & 255) : a >> 8 & 15;
    if (!memcmp(text, "AuthenticAMD", 12))
        return family == 25 ? ZEN_4 : family >= 26 ? ZEN_5 : OTHER;
    if (!memcmp(text, "GenuineIntel", 12) && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX512F))
        return XEON;
    return OTHER;
}
#else
static int kind_of_machine(void) { return OTHER; }
#endif

/* Seen on a Zen 4: one row's product of 4 MiB of weights reads 98 bytes a ns from L3, and 79 with a prefetch for each line.
 * Others have not been measured without. */
int lnrnn_model_reads_ahead(void) { return kind_of_machine() == ZEN_4; }

static lnrnn_figures figures;

__attribute__((constructor)) static void ask_the_machine(void) { figures = table[kind_of_machine()]; }

lnrnn_figures lnrnn_get_figures(void) { return figures; }

void lnrnn_set_figures(lnrnn_figures new_figures) { figures = new_figures; }
