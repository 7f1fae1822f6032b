/* Teams of OpenMP's threads. */
#include "runtime/team.h"

#include <stddef.h>

#ifdef _OPENMP
#include <omp.h>

#include "runtime/threads.h"

static int forked;

/* libgomp's threads do not survive a fork, and a child that uses them waits for ever. lnrnn cannot know
 * whether libgomp had threads in the parent, because other libraries use libgomp too. So a forked child has
 * no teams. */
/* No coverage is measured, because the child of a fork ends by _exit. */
static void after_fork(void) { forked = 1; } /* GCOVR_EXCL_LINE */

__attribute__((constructor)) static void watch_forks(void) { lnrnn_on_fork(NULL, NULL, after_fork); }

/* GCOVR_EXCL_BR_LINE: lnrnn runs inside no parallel region of others */
static int available(void) { return !forked && !omp_in_parallel(); }

/* libgomp keeps one pool of idle workers per calling thread. These fields describe the pool of this
 * thread. */
static LNRNN_THREAD_LOCAL struct {
    int waiting;     /* the number of idle workers */
    int proven;      /* the largest number of workers that a probe could start */
    unsigned failed; /* the lnrnn_team_generation in which a probe could not start more workers */
} own;

/* --- starting a team ---------------------------------------------------------------------------------------
 *
 * libgomp ends the process if it cannot start a thread. So before a team grows, a probe starts threads,
 * and ends them when all are alive (thread_probe.c). If the probe cannot start all threads, the team is
 * smaller.
 *
 * The probe starts twice as many threads as the team needs, for two reasons. First, when a team becomes
 * smaller, OpenMP ends threads, and it may start new threads before the old threads are gone. Second, a
 * process that has reached a limit cannot fork or allocate.
 *
 * Every calling thread probes for itself when its team becomes larger than ever before. After a first failure
 * in the process, it probes whenever a team grows. */

/* A lock, held until a team has its threads, so that probes do not overlap. */
static lnrnn_lock starting = LNRNN_LOCK;
static int scarce; /* has any probe failed in this process? */

/* Returns the size of the largest team that can start, at most `threads`. Takes the lock `starting`, which
 * run() releases. */
static int startable(int threads)
{
    const int limit = omp_get_thread_limit();
    int helpers = (threads < limit ? threads : limit) - 1;
    lnrnn_lock_take(&starting);
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
        if (larger || alive < more) /* GCOVR_EXCL_BR_LINE: a thread of OpenMP ended */
            own.proven = helpers;
    }
    return 1 + helpers;
}

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
        if (!worker) { /* the parallel region begins when all threads have started */
            size = team;
            if (grows)
                lnrnn_lock_release(&starting);
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
