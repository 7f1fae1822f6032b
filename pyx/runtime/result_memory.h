/* Memory of weights, and an allocator for large results. Freed blocks of results stay mapped for later
 * results.
 *
 * malloc returns large blocks to the operating system when they are freed. The kernel then clears each page
 * of the next block at the first touch, which takes longer than a norm. So some freed blocks stay mapped: at
 * most LNRNN_CACHED_BLOCKS blocks, and LNRNN_CACHED_BYTES bytes. Large blocks are marked as free (MADV_FREE),
 * so that the kernel can take their pages when memory is short.
 *
 * Without MADV_FREE, large blocks are not kept. */
#ifndef LNRNN_RESULT_MEMORY_H
#define LNRNN_RESULT_MEMORY_H

#include <stddef.h>

#include "lnrnn/tuning.h"
#include "runtime/os.h"

/* Exported for the Cython module. */
#pragma GCC visibility push(default)

/* The four functions have the signatures of a memory handler of NumPy (NEP 49). ctx is unused. The functions
 * are safe in any thread and after a fork.
 *
 * Returns at least `size` uninitialised bytes, aligned to 64 bytes, or NULL if there is no
 * memory. */
void *lnrnn_result_malloc(void *ctx, size_t size);
/* Returns n * size bytes of 0, or NULL. */
void *lnrnn_result_calloc(void *ctx, size_t n, size_t size);
/* Resizes a block as realloc does. Returns the address of the resized block, or NULL. */
void *lnrnn_result_realloc(void *ctx, void *block, size_t size);
/* Frees a block, which may be NULL. size is unused. */
void lnrnn_result_free(void *ctx, void *block, size_t size);

#pragma GCC visibility pop

/* Returns at least `bytes` uninitialised bytes, aligned to 64 bytes, or NULL if there is no memory.
 * lnrnn_free_aligned frees them. On Linux, large blocks are in huge pages, because a step reads more small
 * pages of weights than the TLB holds (benchmark lstm B12-H768). */
void *lnrnn_aligned_malloc(size_t bytes);

#endif
