/* Exponential back-off from oversubscribed cores.
 *
 * If other processes use the cores too, a thread can lose its core for a time slice of the scheduler, which
 * is milliseconds. A short call that waits for this thread takes a hundred times as long as on one thread. So
 * a wait of 0.4 ms at a barrier, or a call 0.4 ms longer than on one thread, starts a back-off. During a
 * back-off of 2 ms, brief calls, and calls whose threads would meet at barriers, run on one thread. If a
 * second back-off follows soon, it is twice as long. A back-off is at least eight times as long as the wait
 * that started it, and at most 800 ms. */
#include <stdint.h>

#include "lnrnn/tuning.h"
#include "runtime/threads.h"

static int64_t back_off_until, back_off_length;
static int mode = LNRNN_BARRIER_NORMAL;

int lnrnn_barrier_mode(void) { return __atomic_load_n(&mode, __ATOMIC_RELAXED); }

void lnrnn_set_barrier_mode(int new_mode)
{
    __atomic_store_n(&mode, new_mode, __ATOMIC_RELAXED);
    __atomic_store_n(&back_off_length, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&back_off_until, 0, __ATOMIC_RELAXED);
}

int64_t lnrnn_next_back_off(int64_t last, int64_t since, int64_t waited)
{
    int64_t length = !last || since > 4 * last + LNRNN_RECENT ? LNRNN_FIRST_BACK_OFF : 2 * last;
    length = length > 8 * waited ? length : 8 * waited;
    return length < LNRNN_LONGEST_BACK_OFF ? length : LNRNN_LONGEST_BACK_OFF;
}

void lnrnn_back_off(int64_t waited)
{
    const int64_t now = lnrnn_nanoseconds(), until = __atomic_load_n(&back_off_until, __ATOMIC_RELAXED);
    if (now < until || lnrnn_barrier_mode() != LNRNN_BARRIER_NORMAL)
        return;
    const int64_t last = __atomic_load_n(&back_off_length, __ATOMIC_RELAXED),
                  length = lnrnn_next_back_off(last, now - until, waited);
    __atomic_store_n(&back_off_length, length, __ATOMIC_RELAXED);
    __atomic_store_n(&back_off_until, now + length, __ATOMIC_RELAXED);
}

void lnrnn_set_back_off(int64_t nanoseconds)
{
    __atomic_store_n(&back_off_until, nanoseconds ? lnrnn_nanoseconds() + nanoseconds : 0, __ATOMIC_RELAXED);
}

int lnrnn_oversubscribed(void)
{
    const int64_t until = __atomic_load_n(&back_off_until, __ATOMIC_RELAXED);
    return until && lnrnn_nanoseconds() < until;
}
