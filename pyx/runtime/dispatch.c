/* Chooses the kernels: asks the CPU and the operating system once, and keeps the chosen table of kernels.
 *
 * The Python module reads LNRNN_ISA, because it can raise an error, and calls lnrnn_isa_use. */
#include <string.h>

#include "lnrnn.h"
#include "lnrnn/kernels/table.h"

/* Declares the tables that the object files of an instruction set define. */
#define TABLES(isa)                             \
    extern const lnrnn_norm lnrnn_norm_##isa[]; \
    extern const lnrnn_cells lnrnn_cells_##isa; \
    extern const lnrnn_product lnrnn_product_##isa, lnrnn_int8_##isa;
#define BLOCKS(isa) extern const lnrnn_blocks lnrnn_blocks_##isa, lnrnn_int8_blocks_##isa;

static int always(void) { return 1; }

#if defined(__x86_64__)
#include "runtime/cpu_x86.h"

TABLES(sse2)
TABLES(avx2)
BLOCKS(sse2)
BLOCKS(avx2)
TABLES(avx512)
extern const lnrnn_blocks lnrnn_blocks_avx512, lnrnn_int8_blocks_avxvnni, lnrnn_int8_blocks_avx512vnni;
extern const lnrnn_product lnrnn_int8_avxvnni, lnrnn_int8_avx512vnni, lnrnn_bf16_avx512bf16,
    lnrnn_bf16_avx512bf16_emulated, lnrnn_bf16_avx512amx, lnrnn_bf16_avx512amx_emulated, lnrnn_int8_avx512amx,
    lnrnn_int8_avx512amx_emulated;
#elif defined(__aarch64__)
#include "runtime/cpu_arm.h"

TABLES(neon)
BLOCKS(neon)
extern const lnrnn_blocks lnrnn_int8_blocks_neondot, lnrnn_int8_blocks_neoni8mm;
extern const lnrnn_product lnrnn_int8_neondot, lnrnn_int8_neoni8mm, lnrnn_bf16_neonbf16,
    lnrnn_bf16_neonbf16_emulated;
#endif

#if defined(__wasm__)
TABLES(wasm128)
BLOCKS(wasm128)
#else
TABLES(scalar)
BLOCKS(scalar)
#endif

/* A row of the table below: the name of an instruction set, and the set whose norms, cells and float32
 * products it uses. Then come its products with bfloat16, int8 and block-sparse int8 weights. int8_blocks is
 * NULL with AMX, whose dense products of several rows are faster. */
#define SET(name, isa, bf16, int8, int8_blocks)                                  \
    {#name,         lnrnn_norm_##isa, &lnrnn_cells_##isa,  &lnrnn_product_##isa, \
     &lnrnn_##bf16, &lnrnn_##int8,    &lnrnn_blocks_##isa, int8_blocks}

/* The instruction sets, best first. runs(): can this machine run the set? chosen(): if so, is it the default?
 * chosen NULL: the set emulates another set in plain C, and is never the default. */
static const struct {
    lnrnn_kernels kernels;
    int (*runs)(void), (*chosen)(void);
} sets[] = {
#if defined(__x86_64__)
    {SET(avx512amx, avx512, bf16_avx512amx, int8_avx512amx, NULL), lnrnn_has_amx, always},
    {SET(avx512bf16, avx512, bf16_avx512bf16, int8_avx512vnni, &lnrnn_int8_blocks_avx512vnni),
     lnrnn_has_avx512bf16, lnrnn_fast_bf16},
    {SET(avx512vnni, avx512, product_avx512, int8_avx512vnni, &lnrnn_int8_blocks_avx512vnni),
     lnrnn_has_avx512vnni, always},
    {SET(avx512, avx512, product_avx512, int8_avx512, &lnrnn_int8_blocks_avx2), lnrnn_has_avx512, always},
    {SET(avxvnni, avx2, product_avx2, int8_avxvnni, &lnrnn_int8_blocks_avxvnni), lnrnn_has_avxvnni, always},
    {SET(avx2, avx2, product_avx2, int8_avx2, &lnrnn_int8_blocks_avx2), lnrnn_has_avx2, always},
    {SET(sse2, sse2, product_sse2, int8_sse2, &lnrnn_int8_blocks_sse2), always, always},
    {SET(avx512amx_emulated, avx512, bf16_avx512amx_emulated, int8_avx512amx_emulated, NULL),
     lnrnn_has_avx512, NULL},
    {SET(avx512bf16_emulated, avx512, bf16_avx512bf16_emulated, int8_avx512, &lnrnn_int8_blocks_avx2),
     lnrnn_has_avx512, NULL},
#elif defined(__aarch64__)
    {SET(neoni8mm, neon, bf16_neonbf16, int8_neoni8mm, &lnrnn_int8_blocks_neoni8mm), lnrnn_has_neoni8mm,
     always},
    {SET(neonbf16, neon, bf16_neonbf16, int8_neondot, &lnrnn_int8_blocks_neondot), lnrnn_has_neonbf16,
     always},
    {SET(neondot, neon, product_neon, int8_neondot, &lnrnn_int8_blocks_neondot), lnrnn_has_neondot, always},
    {SET(neon, neon, product_neon, int8_neon, &lnrnn_int8_blocks_neon), always,
     always}, /* every aarch64 CPU has NEON */
    {SET(neonbf16_emulated, neon, bf16_neonbf16_emulated, int8_neon, &lnrnn_int8_blocks_neon), always, NULL},
#endif
#if defined(__wasm__) /* a machine without these vectors refuses the whole module */
    {SET(wasm128, wasm128, product_wasm128, int8_wasm128, &lnrnn_int8_blocks_wasm128), always, always},
#else
    {SET(scalar, scalar, product_scalar, int8_scalar, &lnrnn_int8_blocks_scalar), always, always},
#endif
};
enum { SETS = sizeof sets / sizeof *sets };
_Static_assert((int)SETS <= (int)LNRNN_ISAS, "lists of LNRNN_ISAS names hold all sets");

static const lnrnn_kernels *active;

const lnrnn_kernels *lnrnn_active(void)
{
    /* Without a lock: two threads may both choose, but they store the same pointer. */
    const lnrnn_kernels *k = __atomic_load_n(&active, __ATOMIC_RELAXED);
    for (size_t i = 0; !k && i < SETS; i++) /* GCOVR_EXCL_BR_LINE: the last set always runs */
        /* GCOVR_EXCL_BR_LINE: a machine has one CPU */
        if (sets[i].chosen && sets[i].runs() && sets[i].chosen())
            __atomic_store_n(&active, k = &sets[i].kernels, __ATOMIC_RELAXED);
    return k;
}

const char *lnrnn_version(void) { return LNRNN_VERSION; }

size_t lnrnn_isa_list(const char *names[LNRNN_ISAS])
{
    size_t n = 0;
    for (int chosen = 1; chosen >= 0; chosen--)
        for (size_t i = 0; i < SETS; i++)
            if (sets[i].chosen && sets[i].runs() && !sets[i].chosen() == !chosen)
                names[n++] = sets[i].kernels.name;
    return n;
}

size_t lnrnn_isa_emulated(const char *names[LNRNN_ISAS])
{
    size_t n = 0;
    for (size_t i = 0; i < SETS; i++)
        if (!sets[i].chosen && sets[i].runs()) /* GCOVR_EXCL_BR_LINE: a machine has one CPU */
            names[n++] = sets[i].kernels.name;
    return n;
}

const char *lnrnn_isa_name(void) { return lnrnn_active()->name; }

const char *lnrnn_isa_unit(int weights) { return lnrnn_product_of(lnrnn_active(), weights)->unit; }

const char *lnrnn_isa_amx(void)
{
#if defined(__x86_64__)
    return lnrnn_amx();
#else
    return "not on this CPU";
#endif
}

int lnrnn_isa_use(const char *name)
{
    for (size_t i = 0; i < SETS; i++)
        /* GCOVR_EXCL_BR_LINE: a machine has one CPU */
        if (!strcmp(sets[i].kernels.name, name) && sets[i].runs()) {
            __atomic_store_n(&active, &sets[i].kernels, __ATOMIC_RELAXED);
            return 0;
        }
    return -1;
}
