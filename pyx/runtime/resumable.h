/* Tasks that stop after some time and continue in the next call, so that Python can handle an interrupt
 * (Ctrl-C) in between. Defined in resumable.c. */
#ifndef LNRNN_RESUMABLE_H
#define LNRNN_RESUMABLE_H

#include <stddef.h>
#include <stdint.h>

/* The value of position[index] when task `index` is finished. */
#define LNRNN_DONE SIZE_MAX

/* Runs the unfinished tasks of n until each thread has done about `part` multiply-adds. With part = 0, or if
 * all tasks together cost no more, it finishes all tasks. A task starts at position[index], which it
 * advances. The task subtracts its cost from *left, which all threads share, and stops when *left is used up.
 * Returns 1 if all tasks are finished. */
int lnrnn_limited_tasks(size_t n, int threads, const size_t *position, double cost, double part,
                        void (*task)(void *ctx, size_t index, int worker, int64_t *left), void *ctx);

static inline int64_t remaining(const int64_t *left) { return __atomic_load_n(left, __ATOMIC_RELAXED); }

/* GCOVR_EXCL_BR_LINE: such a call takes 300 years */
static inline int64_t whole_number(double cost) { return cost < 9e18 ? (int64_t)cost : INT64_MAX; }

static inline void spend(int64_t *left, double cost)
{
    __atomic_sub_fetch(left, (int64_t)cost, __ATOMIC_RELAXED);
}

/* Returns the first address at or after p that is aligned for size_t. The caller must reserve one float more
 * than the array of positions needs. */
static inline size_t *positions_at(float *p)
{
    return (size_t *)(((uintptr_t)p + sizeof(size_t) - 1) & ~(sizeof(size_t) - 1));
}

#endif
