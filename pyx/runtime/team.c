/* Teams of threads, by way of OpenMP. */
#define _GNU_SOURCE
#include <stddef.h>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define LNRNN_POSIX 1
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#include "lnrnn.h"
#include "runtime/threads.h"

/* Where not all threads could be started: whom to tell; and a number that lnrnn_try_threads_again raises, so
 * that what failed before is tried again. */
static void (*shortage)(int wanted, int given);
static unsigned generation = 1;

void lnrnn_on_shortage(void (*tell)(int wanted, int given))
{
    __atomic_store_n(&shortage, tell, __ATOMIC_RELEASE);
}

void lnrnn_try_threads_again(void) { __atomic_add_fetch(&generation, 1, __ATOMIC_RELAXED); }

#ifdef _OPENMP

int lnrnn_has_openmp(void) { return 1; }

#if defined(LNRNN_POSIX)
static int forked;

/* libgomp's threads do not survive a fork, and a child that asks for them waits for ever. This library cannot
 * know whether the parent had any: another one in the process may have used the same libgomp. */
static void after_fork(void) { forked = 1; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }
#else
enum { forked = 0 };
#endif

int lnrnn_can_have_team(int threads) { return threads > 1 && !forked && !omp_in_parallel(); }

/* State of the calling thread, for OpenMP keeps a team's threads waiting for the thread that called. */
static _Thread_local struct {
    int waiting;     /* threads that wait for its next call */
    int proven;      /* the most that could be started for it */
    unsigned failed; /* the generation that could not start more */
    lnrnn_teams teams;
} own;

lnrnn_teams *lnrnn_teams_of_thread(void) { return &own.teams; }

/* --- starting a team ---------------------------------------------------------------------------------------
 *
 * Before a team grows, plain threads are started instead and, once all have been alive at the same time,
 * ended (trial.c); where some could not be started, the team is smaller. They are twice as many as the team
 * will have: OpenMP ends threads when a smaller team follows, and starts others for the next large one before
 * those are gone; and a process that takes the last of a limit makes the next fork or allocation fail.
 *
 * Every calling thread tries for itself, once for every size that is larger than any before, and, if ever a
 * thread could not be started, for every team that grows. It is not certain: another process or library can
 * take what was free, and while threads are tried it is taken from them. */

#if defined(LNRNN_POSIX)
/* Held until a team has its threads, so that trials do not overlap. */
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static int scarce; /* has any thread not been started, ever? */

/* The most of `threads` that a team may have. From here on until started(), no other thread gets past. */
static int startable(int threads)
{
    const int limit = omp_get_thread_limit();
    int helpers = (threads < limit ? threads : limit) - 1;
    pthread_mutex_lock(&starting);
    const unsigned now = __atomic_load_n(&generation, __ATOMIC_RELAXED);
    if (helpers > own.proven && own.failed == now)
        helpers = own.proven;
    const int larger = helpers > own.proven, more = (larger ? 2 * helpers : helpers) - own.waiting;
    if (more > 0 && (larger || scarce)) {
        const int found = lnrnn_try_threads(more);
        if (found < more) {
            scarce = 1;
            own.failed = now;
            helpers = (own.waiting + found) / 2;
        }
        if (larger || found < more)
            own.proven = helpers;
    }
    return 1 + helpers;
}

static void started(void) { pthread_mutex_unlock(&starting); }
#else
static int startable(int threads) { return threads; }
static void started(void) {}
#endif

int lnrnn_run_team(int threads, void (*body)(void *ctx, int worker, int team), void *ctx)
{
    const int grows = threads - 1 > own.waiting, given = grows ? startable(threads) : threads;
    int size = 1;
#pragma omp parallel num_threads(given)
    {
        const int worker = omp_get_thread_num(), team = omp_get_num_threads();
        if (!worker) { /* now all others have been started */
            size = team;
            if (grows)
                started();
        }
        body(ctx, worker, team);
    }
    own.waiting = size - 1;
    void (*const tell)(int, int) = __atomic_load_n(&shortage, __ATOMIC_ACQUIRE);
    if (given < threads && own.failed && tell)
        tell(threads, given);
    return size;
}

#else

int lnrnn_has_openmp(void) { return 0; }

int lnrnn_can_have_team(int threads)
{
    (void)threads;
    return 0;
}

lnrnn_teams *lnrnn_teams_of_thread(void)
{
    static _Thread_local lnrnn_teams none;
    return &none;
}

int lnrnn_run_team(int threads, void (*body)(void *ctx, int worker, int team), void *ctx)
{
    (void)threads;
    body(ctx, 0, 1);
    return 1;
}

#endif
