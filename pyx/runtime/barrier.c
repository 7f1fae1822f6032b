/* The barrier between the steps of a sequence whose units are divided among threads: it spins, for a step
 * takes microseconds and waking a thread that sleeps takes longer; and it yields the core once a wait shows
 * that a thread of the team has lost its own. */
#define _GNU_SOURCE
#include <stdint.h>

#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#define LNRNN_POSIX 1
#endif

#include "lnrnn/tuning.h"
#include "runtime/threads.h"

static void yield_core(void)
{
#if defined(LNRNN_POSIX)
    sched_yield();
#endif
}

int64_t lnrnn_long_wait(lnrnn_wait *p)
{
    lnrnn_pause_core();
    if (++p->spins % LNRNN_SPINS)
        return 0;
    const int64_t now = lnrnn_nanoseconds();
    p->since = p->since ? p->since : now;
    if (now - p->since <= LNRNN_PREEMPTED)
        return 0;
    yield_core(); /* not before: a thread that yields gives its core away for a whole time slice */
    return now - p->since;
}

void lnrnn_stagger(void)
{
    for (const int64_t start = lnrnn_nanoseconds(); lnrnn_nanoseconds() - start < 200000;)
        lnrnn_pause_core();
}

void lnrnn_barrier_wait(lnrnn_barrier *b, int team)
{
    const int mode = lnrnn_barrier_mode();
    const unsigned round = __atomic_load_n(&b->round, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&b->arrived, 1, __ATOMIC_ACQ_REL) == team) {
        __atomic_store_n(&b->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&b->round, round + 1, __ATOMIC_RELEASE);
        if (mode == LNRNN_BARRIER_STAGGERED && round % 2)
            lnrnn_stagger();
        return;
    }
    if (mode == LNRNN_BARRIER_SLOW)
        __atomic_store_n(&b->oversubscribed, 1, __ATOMIC_RELAXED);
    for (lnrnn_wait wait = {0}; __atomic_load_n(&b->round, __ATOMIC_ACQUIRE) == round;) {
        if (lnrnn_long_wait(&wait)) {
            __atomic_store_n(&b->oversubscribed, 1, __ATOMIC_RELAXED);
            lnrnn_back_off();
        }
    }
    if (mode == LNRNN_BARRIER_STAGGERED && round % 2 == 0)
        lnrnn_stagger();
}
