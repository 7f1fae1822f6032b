/* Teams of threads, by way of OpenMP. */
#define _GNU_SOURCE
#include "runtime/team.h"

#include <stddef.h>

#ifdef _OPENMP
#include <omp.h>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define LNRNN_POSIX 1
#endif

#include "runtime/threads.h"

#if defined(LNRNN_POSIX)
static int forked;

/* libgomp's threads do not survive a fork, and a child that asks for them waits for ever. This library cannot
 * know whether the parent had any: another one in the process may have used the same libgomp. */
/* The child of a fork ends by _exit and writes no counts. */
static void after_fork(void) { forked = 1; } /* GCOVR_EXCL_LINE */

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }
#else
enum { forked = 0 };
#endif

static int can(void) { return !forked && !omp_in_parallel(); }

/* State of the calling thread, for OpenMP keeps a team's threads waiting for the thread that called. */
static LNRNN_THREAD_LOCAL struct {
    int waiting;     /* threads that wait for its next call */
    int proven;      /* the most that could be started for it */
    unsigned failed; /* the generation that could not start more */
} own;

/* --- starting a team ---------------------------------------------------------------------------------------
 *
 * Before a team grows, plain threads are started instead and, once all have been alive at the same time,
 * ended (thread_probe.c); where some could not be started, the team is smaller. They are twice as many as the team
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
    const unsigned now = lnrnn_team_generation();
    if (helpers > own.proven && own.failed == now)
        helpers = own.proven;
    const int larger = helpers > own.proven, more = (larger ? 2 * helpers : helpers) - own.waiting;
    if (more > 0 && (larger || scarce)) {
        const int found = lnrnn_probe_threads(more);
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

/* OpenMP has all threads of a team come. */
static int run(int threads, int64_t arrival, void (*body)(void *ctx, int worker, int team), void *ctx,
               int *short_of)
{
    (void)arrival;
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
    *short_of = given < threads && own.failed;
    return size;
}

const lnrnn_team_kind *lnrnn_openmp_team(void)
{
    static const lnrnn_team_kind kind = {"openmp", can, run};
    return &kind;
}

#else
const lnrnn_team_kind *lnrnn_openmp_team(void) { return NULL; }
#endif
