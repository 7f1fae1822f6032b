/* Divides norms and elementwise functions into tasks, which depend only on the shape, not on the number of
 * threads. */
#ifndef LNRNN_TASKS_H
#define LNRNN_TASKS_H

#include <stddef.h>

#include "lnrnn/tuning.h"
#include "runtime/thread_policy.h"
#include "runtime/threads.h"

/* The number of elements per task. It is not in tuning.h, because the order of sums in the backward passes
 * depends on it. */
enum { LNRNN_TASK = 1 << 14 };

/* Returns 1 if y, of `bytes` bytes, should be written by non-temporal stores. Returns 0 if y is x, because x
 * is in the caches. */
static inline int lnrnn_nontemporal(const void *x, const void *y, size_t bytes)
{
    return x != y && bytes >= lnrnn_nontemporal_from(lnrnn_get_caches());
}

static inline size_t lnrnn_ceil_div(size_t n, size_t d) { return (n + d - 1) / d; }

static inline size_t lnrnn_min(size_t a, size_t b) { return a < b ? a : b; }

static inline size_t lnrnn_clamp(size_t x, size_t low, size_t high)
{
    return x < low ? low : lnrnn_min(x, high);
}

/* Returns the number of rows per task, at least 1, if each row has n elements. */
static inline size_t lnrnn_rows_to_task(size_t rows, size_t n)
{
    /* GCOVR_EXCL_BR_LINE: callers have values */
    const size_t some = n < LNRNN_TASK ? LNRNN_TASK / (n ? n : 1) : 1;
    return some > rows && rows ? rows : some; /* GCOVR_EXCL_BR_LINE: callers have rows */
}

/* Return the number of bytes of a value in memory, and of a value in the arithmetic. */
static inline size_t lnrnn_size(int dtype)
{
    return dtype == LNRNN_FLOAT64 ? 8 : dtype == LNRNN_FLOAT32 ? 4 : 2;
}
static inline size_t lnrnn_real_size(int dtype) { return dtype == LNRNN_FLOAT64 ? 8 : 4; }

#endif
