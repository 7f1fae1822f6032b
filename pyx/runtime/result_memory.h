/* Memory for large results, which stays mapped for later results.
 *
 * An array of some MiB is usually new to the process: malloc has returned the memory of the last one to the
 * system. The kernel clears each page at its first touch, which takes longer than a norm. So some freed
 * blocks stay mapped, at most LNRNN_CACHED_BLOCKS with LNRNN_CACHED_BYTES. Large blocks are marked as free
 * (MADV_FREE), so that the kernel can take their pages when memory is short. The contents of a freed block
 * are lost.
 *
 * Systems without MADV_FREE use malloc. */
#ifndef LNRNN_RESULT_MEMORY_H
#define LNRNN_RESULT_MEMORY_H

#include <stddef.h>

#include "lnrnn/tuning.h"

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* The four functions have the signatures of a memory handler of NumPy (NEP 49). ctx is unused. They are safe
 * in any thread and after a fork.
 *
 * -> at least `size` bytes, not cleared, at a multiple of 64 (on Linux); NULL if there is no memory. */
void *lnrnn_result_malloc(void *ctx, size_t size);
/* -> n * size bytes of 0. */
void *lnrnn_result_calloc(void *ctx, size_t n, size_t size);
/* -> the same contents, possibly at another address, as realloc. */
void *lnrnn_result_realloc(void *ctx, void *block, size_t size);
/* block may be NULL. size is unused. */
void lnrnn_result_free(void *ctx, void *block, size_t size);

#pragma GCC visibility pop

#endif
