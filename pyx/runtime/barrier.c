/* The barrier between time steps if threads divide the hidden units. Waiting threads spin, because a step
 * takes microseconds and waking a sleeping thread takes longer. After a long wait a thread yields its core,
 * because another thread of the team must have lost its core. A time slice of another process is as long as
 * many steps, and more slices follow. So the first wait that is too long ends the team. The last thread that
 * arrives at the barrier decides this, and tells all threads. */
#include <stdint.h>

#include "lnrnn/tuning.h"
#include "runtime/threads.h"

int64_t lnrnn_long_wait(lnrnn_wait *w)
{
    lnrnn_pause_core();
    if (++w->spins % LNRNN_SPINS)
        return 0;
    const int64_t now = lnrnn_nanoseconds();
    w->since = w->since ? w->since : now;
    if (now - w->since <= LNRNN_PREEMPTED)
        return 0;
    lnrnn_yield(); /* yield only after a long wait: a thread that yields may lose its core for a time slice */
    return now - w->since;
}

void lnrnn_stagger(void)
{
    for (const int64_t start = lnrnn_nanoseconds(); lnrnn_nanoseconds() - start < 200000;)
        lnrnn_pause_core();
}

static unsigned slow_from;

void lnrnn_set_slow_from(unsigned phase) { __atomic_store_n(&slow_from, phase, __ATOMIC_RELAXED); }

int lnrnn_waits_too_long(int64_t waited, int64_t since, unsigned barriers)
{
    const int64_t work = (since - waited) / barriers;
    return waited > (work > LNRNN_PREEMPTED ? work : LNRNN_PREEMPTED);
}

void lnrnn_barrier_begin(lnrnn_barrier *b)
{
    __atomic_store_n(&b->begun, lnrnn_nanoseconds(), __ATOMIC_RELAXED);
}

/* Returns the ns since lnrnn_barrier_begin, or 0 if the calling thread itself arrived late. */
static int64_t since_begin(const lnrnn_barrier *b)
{
    const int64_t begun = __atomic_load_n(&b->begun, __ATOMIC_RELAXED);
    return begun ? lnrnn_nanoseconds() - begun : 0;
}

int lnrnn_barrier_wait(lnrnn_barrier *b, int team)
{
    const int mode = lnrnn_barrier_mode();
    const unsigned phase = __atomic_load_n(&b->phase, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&b->arrived, 1, __ATOMIC_ACQ_REL) == team) {
        const int slow = mode == LNRNN_BARRIER_SLOW && phase >= __atomic_load_n(&slow_from, __ATOMIC_RELAXED),
                  ended = slow || __atomic_load_n(&b->oversubscribed, __ATOMIC_RELAXED);
        b->ended = ended;
        __atomic_store_n(&b->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&b->phase, phase + 1, __ATOMIC_RELEASE);
        if (mode == LNRNN_BARRIER_STAGGERED && phase % 2)
            lnrnn_stagger();
        return ended;
    }
    int64_t waited = 0;
    for (lnrnn_wait wait = {0}; __atomic_load_n(&b->phase, __ATOMIC_ACQUIRE) == phase;) {
        const int64_t now = lnrnn_long_wait(&wait);
        if (!now || !lnrnn_waits_too_long(now, since_begin(b), phase + 1))
            continue;
        waited = now;
        if (mode == LNRNN_BARRIER_NORMAL)
            __atomic_store_n(&b->oversubscribed, 1, __ATOMIC_RELAXED);
    }
    if (waited)
        lnrnn_back_off(waited);
    if (mode == LNRNN_BARRIER_STAGGERED && phase % 2 == 0)
        lnrnn_stagger();
    return b->ended; /* safe: other threads write b->ended only after this thread is at the next barrier */
}
