/* Teams of OpenMP's threads. */
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

/* libgomp's threads do not survive a fork, and a child that uses them waits for ever. Whether the parent had
 * any cannot be known, since another library in the process may use the same libgomp. So a child has no
 * teams. */
/* The child of a fork ends by _exit and writes no counts. */
static void after_fork(void) { forked = 1; } /* GCOVR_EXCL_LINE */

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }
#else
enum { forked = 0 };
#endif

static int available(void) { return !forked && !omp_in_parallel(); }

/* State of the calling thread. libgomp keeps one pool of idle workers per calling thread; these fields
 * describe it. */
static LNRNN_THREAD_LOCAL struct {
    int waiting;     /* idle workers */
    int proven;      /* the most workers that a probe could start */
    unsigned failed; /* the generation in which a probe could not start more */
} own;

/* --- starting a team ---------------------------------------------------------------------------------------
 *
 * libgomp ends the process if it cannot start a thread. So before a team grows, a probe starts plain threads
 * and ends them once all were alive at the same time (thread_probe.c). If it could not start all, the team is
 * smaller.
 *
 * The probe starts twice as many threads as the team needs, for two reasons. When a smaller team follows,
 * OpenMP ends threads, and it may start others before these are gone. And a process that has reached a limit
 * cannot fork or allocate.
 *
 * Every calling thread probes for itself, once for every size that is larger than any before. After a first
 * failure in the process it probes for every team that grows. A gap remains: another process or library can
 * take the resources after the probe, and during a probe they are missing elsewhere. */

#if defined(LNRNN_POSIX)
/* Held until a team has its threads, so that probes do not overlap. */
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static int scarce; /* has any probe failed in this process? */

/* -> the largest possible team of at most `threads`. Takes the lock; started() releases it. */
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
        const int alive = lnrnn_probe_threads(more);
        if (alive < more) {
            scarce = 1;
            own.failed = now;
            helpers = (own.waiting + alive) / 2;
        }
        if (larger || alive < more)
            own.proven = helpers;
    }
    return 1 + helpers;
}

static void started(void) { pthread_mutex_unlock(&starting); }
#else
static int startable(int threads) { return threads; }
static void started(void) {}
#endif

/* OpenMP always waits for all threads of a team. */
static int run(int threads, int64_t arrival, void (*body)(void *ctx, int worker, int team), void *ctx,
               int *short_of)
{
    (void)arrival;
    const int grows = threads - 1 > own.waiting, given = grows ? startable(threads) : threads;
    int size = 1;
#pragma omp parallel num_threads(given)
    {
        const int worker = omp_get_thread_num(), team = omp_get_num_threads();
        if (!worker) { /* all others have started */
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
    static const lnrnn_team_kind kind = {"openmp", available, run};
    return &kind;
}

#else
const lnrnn_team_kind *lnrnn_openmp_team(void) { return NULL; }
#endif
