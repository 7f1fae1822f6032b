/* Memory for large results, which stays mapped for later results.
 *
 * An array of some MiB is usually new to the process: malloc has returned the memory of the last one to the
 * system. The kernel clears each page at its first touch, which takes longer than a norm. So some freed
 * blocks stay mapped, at most LNRNN_CACHED_BLOCKS with LNRNN_CACHED_BYTES. Large blocks are marked as free
 * (MADV_FREE), so that the kernel can take their pages when memory is short. The contents of a freed block
 * are lost. All functions are safe in any thread and after a fork. */
#ifndef LNRNN_RESULT_MEMORY_H
#define LNRNN_RESULT_MEMORY_H

#include <stddef.h>

#include "lnrnn/tuning.h"

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* Does this system keep blocks? If not, the functions below are malloc's own. */
int lnrnn_keeps_result_memory(void);
/* -> at least `size` bytes at a multiple of 64, not cleared; NULL if there is no memory. */
void *lnrnn_result_malloc(size_t size);
/* -> the same contents, possibly at another address, as realloc. */
void *lnrnn_result_realloc(void *block, size_t size);
/* NULL is allowed. */
void lnrnn_result_free(void *block);

#pragma GCC visibility pop

#endif
