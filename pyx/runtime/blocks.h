/* blocks.c: memory for large outputs, kept for the next one.
 *
 * A fresh array of some MiB, or what malloc has given back in between, is new to the process: the kernel clears each
 * page of it when it is first touched, which takes longer than the norm itself. So some blocks that were given back stay mapped,
 * LNRNN_KEPT of them and LNRNN_KEPT_BYTES at the most; the large ones are marked as free (MADV_FREE), so that
 * the kernel takes their pages when memory is short. Contents are lost. All this is safe in any thread and
 * after a fork.
 */
#ifndef LNRNN_BLOCKS_H
#define LNRNN_BLOCKS_H

#include <stddef.h>

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

#include "lnrnn/tuning.h"

/* Does this system have what it takes? If not, the functions below are malloc's own. */
int lnrnn_blocks(void);
/* -> at least `size` bytes at a multiple of 64, of any contents; NULL if there is no memory. */
void *lnrnn_block_take(size_t size);
/* -> the same values at what may be another place, as realloc does. */
void *lnrnn_block_resize(void *block, size_t size);
/* NULL is allowed. */
void lnrnn_block_give(void *block);

#pragma GCC visibility pop

#endif
