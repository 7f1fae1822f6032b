/* blocks.c: memory for large outputs, kept for the next one.
 *
 * A fresh array of some MiB is new to the process: the kernel clears each page of it when it is first
 * touched, which takes longer than the norm itself. So a few blocks that were given back stay mapped,
 * LNRNN_KEPT of them and LNRNN_KEPT_BYTES at the most. Those of more than LNRNN_KEPT_AS_IS are marked as
 * free (MADV_FREE): the kernel takes their pages when memory is short. Smaller ones are not: marking
 * empties the translation caches of all cores, which is a quarter to a half of a layer norm of 512x4096 on
 * two threads (tests/benchmarks, "vs out="). Contents are lost. All this is safe in any thread and after a
 * fork.
 */
#ifndef LNRNN_BLOCKS_H
#define LNRNN_BLOCKS_H

#include <stddef.h>

/* NumPy asks for huge pages from 4 MiB on, and below that malloc keeps what is freed. */
enum {
    LNRNN_KEPT = 4,
    LNRNN_KEPT_BYTES = 512 << 20,
    LNRNN_KEPT_AS_IS = 16 << 20,
    LNRNN_BLOCK_BYTES = 4 << 20
};

/* Does this system have what it takes? If not, the functions below are malloc's own. */
int lnrnn_blocks(void);
/* -> at least `size` bytes at a multiple of 64, of any contents; NULL if there is no memory. */
void *lnrnn_block_take(size_t size);
/* -> the same values at what may be another place, as realloc does. */
void *lnrnn_block_resize(void *block, size_t size);
/* NULL is allowed. */
void lnrnn_block_give(void *block);

#endif
