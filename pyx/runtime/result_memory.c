/* Memory of weights, and blocks for large results. A thread takes a block by an atomic exchange of the
 * block's entry in `cached` for 0. There is no lock, because a fork could leave a lock locked. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/result_memory.h"

enum {
    HUGE = LNRNN_HUGE_PAGE, /* a multiple of every usual page size */
    GRAIN = 64 << 10        /* block sizes are multiples of GRAIN */
};

void *lnrnn_aligned_malloc(size_t bytes)
{
    const size_t whole = (bytes + 63) & ~(size_t)63;
    void *const block = whole < bytes ? NULL : lnrnn_alloc_aligned(bytes < HUGE ? 64 : HUGE, whole);
    if (block && bytes >= HUGE) /* GCOVR_EXCL_BR_LINE: no memory */
        lnrnn_pages_huge(block, bytes);
    return block;
}

/* The header stands directly before the block, outside the block's huge pages. */
typedef struct {
    void *map;
    size_t mapped, bytes; /* sizes in bytes of the mapping, of the block */
    char padding[64 - 3 * sizeof(size_t)];
} header;
_Static_assert(sizeof(header) == 64, "a block begins at a multiple of 64");

/* The address of a cached block, a multiple of HUGE, plus its size in units of GRAIN; or 0. */
static uintptr_t cached[LNRNN_CACHED_BLOCKS];
_Static_assert(LNRNN_CACHED_BYTES / GRAIN < HUGE, "the size fits into the low bits of the address");
static size_t cached_bytes;
static unsigned next_place;

static header *header_of(void *block) { return (header *)block - 1; }

static size_t bytes_of(uintptr_t entry) { return entry % HUGE * GRAIN; }

/* Returns the block of an entry that was taken out of `cached`, or NULL for an entry 0. */
static void *block_of_entry(uintptr_t entry)
{
    __atomic_fetch_sub(&cached_bytes, bytes_of(entry), __ATOMIC_RELAXED);
    return (void *)(entry - entry % HUGE);
}

static void unmap(void *block)
{
    if (block)
        lnrnn_pages_unmap(header_of(block)->map, header_of(block)->mapped);
}

void lnrnn_result_free(void *ctx, void *block, size_t size)
{
    (void)ctx, (void)size;
    if (!block) /* GCOVR_EXCL_BR_LINE: NumPy frees no NULL */
        return;
    const size_t bytes = header_of(block)->bytes;
    if (bytes > LNRNN_CACHED_BYTES
        /* GCOVR_EXCL_BR_LINE: a kernel without MADV_FREE */
        || (bytes > LNRNN_MARKED_FREE_FROM && !lnrnn_pages_discard(block, bytes))) {
        unmap(block);
        return;
    }
    const unsigned place = __atomic_fetch_add(&next_place, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&cached_bytes, bytes, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < LNRNN_CACHED_BLOCKS; i++) {
        if (__atomic_load_n(&cached_bytes, __ATOMIC_RELAXED) <= LNRNN_CACHED_BYTES)
            break;
        /* Unmap the oldest block. */
        unmap(block_of_entry(
            __atomic_exchange_n(&cached[(place + i) % LNRNN_CACHED_BLOCKS], 0, __ATOMIC_ACQ_REL)));
    }
    uintptr_t entry = (uintptr_t)block + bytes / GRAIN;
    for (unsigned i = 0; i < LNRNN_CACHED_BLOCKS; i++) {
        uintptr_t none = 0;
        if (__atomic_compare_exchange_n(&cached[(place + i) % LNRNN_CACHED_BLOCKS], &none, entry, 0,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return;
    }
    /* Test again, because other threads may have cached blocks meanwhile. */
    /* GCOVR_EXCL_BR_LINE: only if another thread caches a block meanwhile */
    if (__atomic_load_n(&cached_bytes, __ATOMIC_RELAXED) <= LNRNN_CACHED_BYTES)
        entry = __atomic_exchange_n(&cached[place % LNRNN_CACHED_BLOCKS], entry, __ATOMIC_ACQ_REL);
    unmap(block_of_entry(entry));
}

static void *map(size_t size)
{
    const size_t bytes = (size + GRAIN - 1) / GRAIN * GRAIN, mapped = bytes + HUGE;
    if (mapped < size) /* GCOVR_EXCL_BR_LINE: NumPy refuses such an array */
        return NULL;
    char *p = lnrnn_pages_map(mapped);
    if (!p) /* GCOVR_EXCL_BR_LINE: no memory */
        return NULL;
    char *block = p + (HUGE - (uintptr_t)p % HUGE);
    *header_of(block) = (header){.map = p, .mapped = mapped, .bytes = bytes};
    lnrnn_pages_huge(block, size);
    return block;
}

void *lnrnn_result_malloc(void *ctx, size_t size)
{
    (void)ctx;
    /* Search from the youngest block, which is the most likely to be in the CPU's caches. */
    const unsigned last = __atomic_load_n(&next_place, __ATOMIC_RELAXED) - 1;
    for (unsigned j = 0; j < LNRNN_CACHED_BLOCKS; j++) {
        const unsigned i = (last - j) % LNRNN_CACHED_BLOCKS;
        uintptr_t entry = __atomic_load_n(&cached[i], __ATOMIC_RELAXED);
        const size_t bytes = bytes_of(entry);
        if (bytes >= size
            && bytes - size <= size / 4 + GRAIN
            /* GCOVR_EXCL_BR_LINE: only if another thread takes the block */
            && __atomic_compare_exchange_n(&cached[i], &entry, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return block_of_entry(entry);
    }
    return map(size);
}

void *lnrnn_result_realloc(void *ctx, void *block, size_t size)
{
    /* GCOVR_EXCL_BR_START: NumPy's resize of a result is not a call of lnrnn */
    const size_t bytes = block ? header_of(block)->bytes : 0;
    if (block && size <= bytes && size >= bytes / 2)
        return block;
    void *other = lnrnn_result_malloc(ctx, size);
    if (other && block) {
        /* GCOVR_EXCL_BR_STOP */
        memcpy(other, block, size < bytes ? size : bytes);
        lnrnn_result_free(ctx, block, bytes);
    }
    return other;
}

/* GCOVR_EXCL_START: NumPy requires this function, and calls it only for arrays of zeros */
void *lnrnn_result_calloc(void *ctx, size_t n, size_t size)
{
    void *block = size && n > SIZE_MAX / size ? NULL : lnrnn_result_malloc(ctx, n * size);
    return block ? memset(block, 0, n * size) : NULL;
}
/* GCOVR_EXCL_STOP */
