/* Reads the sizes of the caches once, from the CPU or the operating system. */
#include <stdint.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "lnrnn/tuning.h"
#include "runtime/cpu_model.h"
#include "runtime/os.h"

/* Sizes to assume if neither CPU nor system reports them, and the limits of plausible sizes. */
static const lnrnn_caches fallback = {32 << 10, 512 << 10, 8 << 20, 0},
                          least = {8 << 10, 64 << 10, 64 << 10, 0},
                          most = {4 << 20, 128 << 20, (size_t)2 << 30, 0};

#if defined(__x86_64__)
/* GCOVR_EXCL_BR_START: a machine has one CPU */
/* Reads the caches from a leaf of CPUID: 4 (Intel) or 0x8000001d (AMD), which have the same format. */
static lnrnn_caches caches_of_leaf(unsigned leaf)
{
    lnrnn_caches sizes = {0};
    unsigned a, b, c, d;
    for (unsigned i = 0; i < 16 && __get_cpuid_count(leaf, i, &a, &b, &c, &d) && (a & 31); i++) {
        const unsigned type = a & 31, level = a >> 5 & 7;
        const size_t ways = (b >> 22) + 1, partitions = (b >> 12 & 1023) + 1, line = (b & 4095) + 1,
                     sets = (size_t)c + 1;
        if (type == 2) /* instructions */
            continue;
        if (level == 1)
            sizes.l1 = ways * partitions * line * sets;
        else if (level == 2)
            sizes.l2 = ways * partitions * line * sets;
        else if (level == 3)
            sizes.l3 = ways * partitions * line * sets;
    }
    return sizes;
}

static lnrnn_caches caches_of_machine(void)
{
    const lnrnn_caches sizes = caches_of_leaf(0x8000001d);
    return sizes.l1 ? sizes : caches_of_leaf(4);
}
#else
static lnrnn_caches caches_of_machine(void)
{
    size_t sizes[3];
    lnrnn_cache_sizes(sizes);
    return (lnrnn_caches){.l1 = sizes[0], .l2 = sizes[1], .l3 = sizes[2]};
}
#endif

static size_t plausible(size_t size, size_t low, size_t high, size_t otherwise)
{
    return size >= low && size <= high ? size : otherwise;
}

static lnrnn_caches caches;

__attribute__((constructor)) static void read_caches(void)
{
    const lnrnn_caches sizes = caches_of_machine();
    caches.l1 = plausible(sizes.l1, least.l1, most.l1, fallback.l1);
    caches.l2 = plausible(sizes.l2, least.l2, most.l2, fallback.l2);
    /* A CPU without L3 can have an L2 that is larger than the fallback. */
    caches.l3 =
        plausible(sizes.l3, least.l3, most.l3, sizes.l2 && caches.l2 > fallback.l3 ? caches.l2 : fallback.l3);
    caches.reads_ahead = lnrnn_model_reads_ahead();
}
/* GCOVR_EXCL_BR_STOP */

lnrnn_caches lnrnn_get_caches(void) { return caches; }

void lnrnn_set_caches(lnrnn_caches new_caches) { caches = new_caches; }
