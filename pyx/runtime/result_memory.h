/* result_memory.c: memory for large outputs, kept for the next one.
 *
 * A fresh array of some MiB, or what malloc has given back in between, is new to the process: the kernel clears each
 * page of it when it is first touched, which takes longer than the norm itself. So some blocks that were given back stay mapped,
 * LNRNN_CACHED_BLOCKS of them and LNRNN_CACHED_BYTES at the most; the large ones are marked as free (MADV_FREE), so that
 * the kernel takes their pages when memory is short. Contents are lost. All this is safe in any thread and
 * after a fork.
 */
#ifndef LNRNN_RESULT_MEMORY_H
#define LNRNN_RESULT_MEMORY_H

#include <stddef.h>

#include "lnrnn/tuning.h"

/* Does this system have what it takes? If not, the functions below are malloc's own. */
int lnrnn_keeps_result_memory(void);
/* -> at least `size` bytes at a multiple of 64, of any contents; NULL if there is no memory. */
void *lnrnn_result_malloc(size_t size);
/* -> the same values at what may be another place, as realloc does. */
void *lnrnn_result_realloc(void *block, size_t size);
/* NULL is allowed. */
void lnrnn_result_free(void *block);

#endif
