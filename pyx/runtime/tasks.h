/* How the norms and the functions are cut into tasks: by the shape alone, never by the number of threads. */
#ifndef LNRNN_TASKS_H
#define LNRNN_TASKS_H

#include <stddef.h>

#include "lnrnn.h"

/* Below ALONE elements a second thread costs more than it brings, below LARGE it is not worth it where cores are shared;
 * a task has about TASK. */
enum { LNRNN_SERIAL = 1 << 17, LNRNN_LARGE = 1 << 25, LNRNN_TASK = 1 << 14 };

/* An output of this many bytes is written past the caches: below, the caller finds it there; above, it would only push
 * out what is there, and reading it in before writing it costs a third of the time and more. Of 8 MiB each of input and
 * output, on a machine with an L3 of 32, what writing saves (0.1 ms of 0.35) is what the next reader loses; of 16 MiB,
 * writing takes half of the time. In place, the lines are in the cache already. */
enum { LNRNN_NONTEMPORAL = 12 << 20 };

static inline int lnrnn_nontemporal(const void *x, const void *y, size_t bytes)
{
    return x != y && bytes >= LNRNN_NONTEMPORAL;
}

static inline int lnrnn_threads_for(size_t elements, int threads)
{
    return elements < LNRNN_SERIAL || (threads > 1 && elements < LNRNN_LARGE && lnrnn_oversubscribed())
               ? 1
               : threads;
}

static inline size_t lnrnn_parts(size_t n, size_t part) { return (n + part - 1) / part; }

static inline size_t lnrnn_min(size_t a, size_t b) { return a < b ? a : b; }

/* x, but at least `low` and at most `high`. */
static inline size_t lnrnn_clamp(size_t x, size_t low, size_t high)
{
    return x < low ? low : lnrnn_min(x, high);
}

/* Rows of n elements to a task, at least 1. */
static inline size_t lnrnn_rows_to_task(size_t rows, size_t n)
{
    const size_t some = n < LNRNN_TASK ? LNRNN_TASK / (n ? n : 1) : 1;
    return some > rows && rows ? rows : some;
}

/* Bytes of a value in memory, and of one in the arithmetic of that type. */
static inline size_t lnrnn_size(int dtype)
{
    return dtype == LNRNN_FLOAT64 ? 8 : dtype == LNRNN_FLOAT32 ? 4 : 2;
}
static inline size_t lnrnn_real_size(int dtype) { return dtype == LNRNN_FLOAT64 ? 8 : 4; }

#endif
